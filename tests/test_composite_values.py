"""Every composite: eager against its meaning in simple primitives, in all float dtypes;

shapes and dtypes as `infer` says.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from composite_cases import CASES, DTYPES, TOLERANCE, Source, case_id

import blutrain as bt
from blutrain.tensor import dispatch
from blutrain.tensor.aval import Aval
from blutrain.tensor.primitive import TABLE
from blutrain.tensor.tensor import Tensor

HAVE_CASES = {case.name for case in CASES}


def operands_of(case, dtype, device=None):
    """Tensors and numbers for one run of a case."""
    arrays = case.operands(Source(dtype))
    return [bt.tensor(x, device=device) if isinstance(x, np.ndarray | np.generic) else x for x in arrays]


def as_tuple(results) -> tuple:
    return results if isinstance(results, tuple) else (results,)


def distance(found: Tensor, wanted: np.ndarray) -> float:
    """|found - wanted| / |wanted|, in float64."""
    difference = found.cpu().to(bt.float64).numpy() - wanted
    return float(np.linalg.norm(difference) / max(np.linalg.norm(wanted), 1e-30))


def test_every_composite_has_a_case():
    missing = {
        p.name for p in TABLE.values() if p.kind == "composite" and "composite" in p.eager.__module__
    } - HAVE_CASES
    assert not missing


@pytest.mark.parametrize("case", CASES, ids=case_id)
@pytest.mark.parametrize("short", DTYPES)
def test_eager_equals_compose(case, short):
    prim = TABLE[case.name]
    # The reference is the composite's meaning in float64, on the same (already rounded) operands.
    operands = operands_of(case, DTYPES[short])
    wide = [x.to(bt.float64) if isinstance(x, Tensor) and x.dtype.is_floating else x for x in operands]
    reference = [r.numpy() for r in as_tuple(prim.compose(*wide, **case.attrs))]
    for results in (dispatch.apply(prim, *operands, **case.attrs), prim.compose(*operands, **case.attrs)):
        for found, wanted in zip(as_tuple(results), reference, strict=True):
            assert found.shape == wanted.shape
            assert distance(found, wanted) <= TOLERANCE[short]


@pytest.mark.parametrize("case", CASES, ids=case_id)
@pytest.mark.parametrize("short", DTYPES)
def test_results_are_what_infer_says(case, short):
    prim = TABLE[case.name]
    operands = operands_of(case, DTYPES[short])
    arrays = [x._buffer() if isinstance(x, Tensor) else x for x in operands]
    avals = prim.infer(*[dispatch.aval_of(x) for x in operands], **case.attrs)
    avals = (avals,) if isinstance(avals, Aval) else avals
    results = as_tuple(dispatch.execute(prim, operands[0].device, arrays, case.attrs))
    composed = as_tuple(prim.compose(*operands, **case.attrs))
    for array, tensor, aval in zip(results, composed, avals, strict=True):
        assert (tuple(array.shape), array.dtype) == (aval.shape, aval.dtype.numpy)
        assert (tensor.shape, tensor.dtype) == (aval.shape, aval.dtype)


@pytest.mark.parametrize("case", CASES, ids=case_id)
def test_operands_need_not_be_contiguous(case):
    prim = TABLE[case.name]
    operands = operands_of(case, np.float64)
    strided = []
    for x in operands:
        if isinstance(x, Tensor) and x.ndim:
            array = np.full((*x.shape[:-1], 2 * x.shape[-1]), 7, x.dtype.numpy)
            array[..., ::2] = x.numpy()
            strided.append(bt.from_numpy(array)[..., ::2])
        else:
            strided.append(x)
    pairs = zip(
        as_tuple(dispatch.apply(prim, *operands, **case.attrs)), as_tuple(dispatch.apply(prim, *strided, **case.attrs))
    )
    for plain, found in pairs:
        np.testing.assert_allclose(found.numpy(), plain.numpy(), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("case", CASES, ids=case_id)
def test_operands_are_not_written(case):
    operands = operands_of(case, np.float32)
    before = [x.clone() if isinstance(x, Tensor) else x for x in operands]
    dispatch.apply(TABLE[case.name], *operands, **case.attrs)
    for x, old in zip(operands, before):
        if isinstance(x, Tensor):
            assert x.numpy().tobytes() == old.numpy().tobytes()


def test_blocks_do_not_show(monkeypatch):
    from blutrain.tensor.ops.composite import blocks

    for case in CASES:
        operands = operands_of(case, np.float64)
        plain = as_tuple(dispatch.apply(TABLE[case.name], *operands, **case.attrs))
        with monkeypatch.context() as patch:
            patch.setattr(blocks, "BLOCK", 16)
            cut = as_tuple(dispatch.apply(TABLE[case.name], *operands, **case.attrs))
        for a, b in zip(plain, cut, strict=True):
            np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-12, atol=1e-14, err_msg=case.name)


def test_gelu_against_math():
    values = np.linspace(-9, 9, 181)
    exact = [x * 0.5 * math.erfc(-x / math.sqrt(2)) for x in values]
    np.testing.assert_allclose(bt.nn.functional.gelu(bt.tensor(values)).numpy(), exact, atol=3e-14)
    single = bt.nn.functional.gelu(bt.tensor(values.astype(np.float32)))
    np.testing.assert_allclose(single.numpy(), exact, atol=1e-6)
    inner = math.sqrt(2 / math.pi) * (values + 0.044715 * values**3)
    tanh = bt.nn.functional.gelu(bt.tensor(values), approximate="tanh")
    np.testing.assert_allclose(tanh.numpy(), 0.5 * values * (1 + np.tanh(inner)), atol=1e-14)


def test_layer_norm_against_numpy():
    x = np.random.default_rng(0).standard_normal((4, 6))
    wanted = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)
    np.testing.assert_allclose(bt.nn.functional.layer_norm(bt.tensor(x), (6,)).numpy(), wanted, rtol=1e-12)


def test_cross_entropy_against_numpy():
    logits, target = np.random.default_rng(0).standard_normal((5, 4)), np.array([0, 3, -100, 1, 2])
    shares = np.log(np.exp(logits) / np.exp(logits).sum(-1, keepdims=True))
    kept = [0, 1, 3, 4]
    wanted = -shares[kept, target[kept]].mean()
    assert bt.nn.functional.cross_entropy(bt.tensor(logits), bt.tensor(target)).item() == pytest.approx(
        wanted, rel=1e-13
    )
    smooth = bt.nn.functional.cross_entropy(bt.tensor(logits), bt.tensor(target), label_smoothing=0.2).item()
    assert smooth == pytest.approx(0.8 * wanted - 0.2 * shares[kept].mean(), rel=1e-13)
