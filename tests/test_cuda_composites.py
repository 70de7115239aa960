"""The CUDA kernels of eager mode against the composites' meaning in float64 on the CPU."""

from __future__ import annotations

import math
import sys

import numpy as np
import pytest
from composite_cases import CASES, DTYPES, TOLERANCE, Source, case_id
from gpu import needs_gpu

import blutrain as bt
from blutrain.autograd import gradcheck
from blutrain.nn import functional as F
from blutrain.tensor import dispatch, late_checks
from blutrain.tensor.aval import Aval
from blutrain.tensor.ops import composite
from blutrain.tensor.primitive import TABLE
from blutrain.tensor.tensor import Tensor

pytestmark = needs_gpu
GPU = "cuda:0"


def on(device, arrays):
    return [bt.tensor(x, device=device) if isinstance(x, np.ndarray) else x for x in arrays]


def as_tuple(results) -> tuple:
    return results if isinstance(results, tuple) else (results,)


def run(case, arrays):
    return as_tuple(dispatch.apply(TABLE[case.name], *on(GPU, arrays), **case.attrs))


def reference(case, arrays) -> list[np.ndarray]:
    wide = [x.to(bt.float64) if isinstance(x, Tensor) and x.dtype.is_floating else x for x in on("cpu", arrays)]
    return [r.numpy() for r in as_tuple(TABLE[case.name].compose(*wide, **case.attrs))]


@pytest.mark.parametrize("case", CASES, ids=case_id)
@pytest.mark.parametrize("short", DTYPES)
def test_values_and_avals(case, short):
    arrays = case.operands(Source(DTYPES[short]))
    prim = TABLE[case.name]
    avals = prim.infer(*[dispatch.aval_of(x) for x in on("cpu", arrays)], **case.attrs)
    avals = (avals,) if isinstance(avals, Aval) else avals
    for found, wanted, aval in zip(run(case, arrays), reference(case, arrays), avals, strict=True):
        assert (tuple(found._buffer().shape), found._buffer().dtype) == (aval.shape, aval.dtype.numpy)
        difference = found.to(bt.float64).cpu().numpy() - wanted
        assert np.linalg.norm(difference) <= TOLERANCE[short] * max(np.linalg.norm(wanted), 1e-30)


@pytest.mark.parametrize("case", CASES, ids=case_id)
def test_the_same_bits_each_time(case):
    arrays = case.operands(Source(np.float32))
    first = [r.cpu().numpy().tobytes() for r in run(case, arrays)]
    for _ in range(5):
        assert [r.cpu().numpy().tobytes() for r in run(case, arrays)] == first


@pytest.mark.parametrize("case", CASES, ids=case_id)
def test_strided_operands(case):
    arrays = case.operands(Source(np.float64))
    strided = [x[..., ::2] if isinstance(x, Tensor) and x.ndim else x for x in on(GPU, [_spread(x) for x in arrays])]
    results = as_tuple(dispatch.apply(TABLE[case.name], *strided, **case.attrs))
    for found, wanted in zip(results, run(case, arrays), strict=True):
        np.testing.assert_allclose(found.cpu().numpy(), wanted.cpu().numpy(), rtol=1e-12, atol=1e-14)


def _spread(x):
    """`x` with a gap after every element; what has no dimensions as it is."""
    if not isinstance(x, np.ndarray) or not x.ndim:
        return x
    wide = np.zeros((*x.shape[:-1], 2 * x.shape[-1]), x.dtype)
    wide[..., ::2] = x
    return wide


LARGE = [
    ("layer_norm", lambda s: (s.floats(300, 5000), s.floats(5000), s.floats(5000)), {"num_dims": 1, "eps": 1e-5}),
    (
        "layer_norm_backward",
        lambda s: (s.floats(3000, 770), s.floats(3000, 770), s.wide(3000, 1), s.wide(3000, 1), s.floats(770)),
        {"num_dims": 1, "needs": (True, True, True)},
    ),
    (
        "cross_entropy",
        lambda s: (s.floats(2000, 5000), s.integers(5000, 2000)),
        {"ignore_index": 7, "label_smoothing": 0.1, "reduction": "mean"},
    ),
    (
        "embedding_backward",
        lambda s: (s.floats(5000, 770), s.integers(3, 5000)),
        {"num_rows": 4, "padding_idx": None},
    ),
    ("gelu", lambda s: (s.floats(5_000_003),), {"approximate": "tanh"}),
]


@pytest.mark.parametrize("name, operands, attrs", LARGE, ids=[c[0] for c in LARGE])
def test_many_blocks(name, operands, attrs):
    arrays = operands(Source(np.float32))
    prim = TABLE[name]
    found = as_tuple(dispatch.apply(prim, *on(GPU, arrays), **attrs))
    again = as_tuple(dispatch.apply(prim, *on(GPU, arrays), **attrs))
    wanted = as_tuple(dispatch.apply(prim, *on("cpu", arrays), **attrs))
    for a, b, c in zip(found, again, wanted, strict=True):
        a, b, c = a.cpu().numpy(), b.cpu().numpy(), c.numpy()
        assert a.tobytes() == b.tobytes()
        assert np.linalg.norm(a - c) <= 5e-6 * np.linalg.norm(c)


def test_limits():
    inf = math.inf
    x = np.array([-inf, -1e30, -1e4, -50, -10, 0, 10, 50, 1e4, 1e30, inf, math.nan], np.float32)
    for approximate in ("none", "tanh"):
        found = F.gelu(bt.tensor(x, device=GPU), approximate=approximate).cpu().numpy()
        np.testing.assert_allclose(found, F.gelu(bt.tensor(x), approximate=approximate).numpy(), atol=1e-12, rtol=1e-6)
    rows = np.array([[-inf, 0, 0], [-inf] * 3, [inf, 0, 1], [math.nan, 0, 0]], np.float32)
    losses = F.cross_entropy(bt.tensor(rows, device=GPU), bt.tensor([1, 1, 1, 1], device=GPU), reduction="none")
    np.testing.assert_allclose(losses.cpu().numpy(), [math.log(2), math.nan, math.nan, math.nan], rtol=1e-6)
    constant = F.layer_norm(bt.full((2, 300), 8.5e37, device=GPU), (300,)).cpu().numpy()
    np.testing.assert_allclose(constant, 0, atol=1e-3)


def test_ignored_rows_and_bad_targets():
    x = bt.tensor([[1.0, 2.0], [math.nan, 0.0]], device=GPU, requires_grad=True)
    loss = F.cross_entropy(x, bt.tensor([0, -100], device=GPU))
    loss.backward()
    np.testing.assert_array_equal(x.grad.cpu().numpy()[1], 0)
    assert math.isnan(F.cross_entropy(x.detach(), bt.tensor([-100, -100], device=GPU)).item())
    for bad in (-1, 2):
        with pytest.raises(ValueError, match=f"cross_entropy: a target is out of range\n.*\n  got: {bad}\n"):
            F.cross_entropy(x.detach(), bt.tensor([0, bad], device=GPU)).item()
        with pytest.raises(ValueError, match=f"embedding: an id is out of range\n.*\n  got: {bad}\n"):
            F.embedding(bt.tensor([0, bad], device=GPU), bt.zeros(2, 3, device=GPU)).cpu()


def read(w, optimizer, loss):
    loss.item()


def write(w, optimizer, loss):
    with bt.no_grad():
        w += 1


def step(w, optimizer, loss):
    loss.backward()
    optimizer.step()


@pytest.mark.parametrize("meet", [read, write, step])
def test_a_bad_index_is_heard_of_before_values_are_read_or_written(meet):
    w = bt.ones(2, 3, device=GPU, requires_grad=True)
    optimizer = bt.optim.AdamW([w], lr=0.1)
    for bad, ids, target in (("cross_entropy", [0, 1], [0, 3]), ("embedding", [0, 2], [0, 1])):
        line = sys._getframe().f_lineno + 1
        loss = F.cross_entropy(F.embedding(bt.tensor(ids, device=GPU), w), bt.tensor(target, device=GPU))
        with pytest.raises(ValueError, match=rf"{bad}: (?s:.*)test_cuda_composites.py:{line}"):
            meet(w, optimizer, loss)
        assert w.tolist() == [[1.0] * 3] * 2 and bt.equal(w, w)
        optimizer.zero_grad()
    loss = F.cross_entropy(F.embedding(bt.tensor([0, 1], device=GPU), w), bt.tensor([0, 2], device=GPU))
    meet(w, optimizer, loss)  # nothing of the errors before is left


@pytest.mark.parametrize("good", [0, 3], ids=["interpreted", "compiled"])
def test_a_compiled_step_behind_a_bad_index_updates_nothing(good):
    table, model = bt.ones(2, 8, device=GPU), bt.nn.Linear(8, 8).to(GPU).compile()
    optimizer = bt.optim.AdamW(model.parameters(), lr=0.1)

    def step(ids):
        model(F.embedding(bt.tensor(ids, device=GPU), table)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    for _ in range(good):
        step([0, 1])
    before = model.weight.detach().cpu().numpy()
    with pytest.raises(ValueError, match=r"embedding: an id is out of range\n.*\n  got: 2\n"):
        step([0, 2])
    np.testing.assert_array_equal(model.weight.detach().cpu().numpy(), before)


def test_checks_that_nobody_asks_for_do_not_pile_up():
    w, ids = bt.zeros(2, 3, device=GPU), bt.tensor([0, 1], device=GPU)
    for _ in range(20):
        F.embedding(ids, w)
        bt.device(GPU).xp.cuda.get_current_stream().synchronize()
    assert len(late_checks._running) <= 1
    late_checks.settle()


def test_gradients():
    rng = np.random.default_rng(0)

    def leaf(*shape):
        return bt.tensor(rng.standard_normal(shape), device=GPU).requires_grad_()

    target = bt.tensor([0, 2, -100], device=GPU)
    assert gradcheck(lambda x, w, b: F.linear(x, w, b), [leaf(4, 3), leaf(5, 3), leaf(5)], order=2)
    assert gradcheck(lambda x, w, b: F.layer_norm(x, (4,), w, b), [leaf(3, 4), leaf(4), leaf(4)], order=2)
    assert gradcheck(lambda x: F.cross_entropy(x, target, label_smoothing=0.1), [leaf(3, 4)], order=2)
    assert gradcheck(lambda x: F.gelu(x), [leaf(9)], order=2)
    assert gradcheck(lambda x: composite.dropout(x, 0.4, 1, 2), [leaf(9)])


@pytest.mark.slow
def test_more_than_2_to_the_31_elements():
    size = 2**31 + 8
    x = bt.full((size,), 2.0, dtype=bt.bfloat16, device=GPU)
    y = composite.dropout(F.gelu(x), 0.0, 1, 2)
    assert y[size - 1].item() == pytest.approx(1.9545, rel=1e-2)
    kept = composite.dropout(x, 0.5, 1, 2)[size - 64 :].cpu().to(bt.float32).numpy()
    assert set(np.unique(kept)) == {0.0, 4.0}
