"""Eager results against float64 NumPy for every case of the table: values, shapes, dtypes, strides, and that infer
tells the truth.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from cases import CASES, ERRORS, TOLERANCE, Case

import blutrain as bt
from blutrain.tensor.primitive import TABLE
from blutrain.tensor.tensor import Tensor

RUNS = [
    pytest.param(c, d, id=f"{c.name}-{d}")
    for c in CASES
    for d in c.dtypes
    if d == "float32" or any(x.kind == "float" for x in c.inputs)
]


def widened(tensor: Tensor) -> np.ndarray:
    """A tensor as float64, int64 or bool."""
    array = tensor.detach().numpy()
    return array.astype(np.float64) if tensor.dtype.is_floating else array


def check(case: Case, tensors, result: Tensor) -> None:
    """Compare with the reference on exactly the values that the tensors hold."""
    expected = np.asarray(case.reference(*[widened(x) for x in tensors]))
    assert result.shape == expected.shape
    if not result.dtype.is_floating:
        np.testing.assert_array_equal(result.numpy().astype(np.int64), expected.astype(np.int64))
        return
    relative, absolute = TOLERANCE[result.dtype.name]
    np.testing.assert_allclose(widened(result), expected, relative * case.scale, absolute * case.scale)


@pytest.mark.parametrize("case, dtype", RUNS)
def test_values(case: Case, dtype: str):
    tensors = case.tensors(dtype)
    check(case, tensors, case.call(*tensors))


@pytest.mark.parametrize("case", [c for c in CASES if any(x.shape for x in c.inputs)], ids=lambda c: c.name)
def test_strided_inputs(case: Case):
    """Inputs that are every second element of a larger tensor, stored backwards, give what contiguous ones give."""
    tensors = [stretched(x) for x in case.tensors("float64")]
    assert any(not x.is_contiguous() for x in tensors if x.numel() > 1) or all(x.numel() <= 1 for x in tensors)
    check(case, tensors, case.call(*tensors))


def stretched(x: Tensor) -> Tensor:
    if not x.ndim:
        return x
    array = np.zeros((*x.shape[:-1], 2 * x.shape[-1]), x.dtype.numpy)
    array[..., ::-2] = x.numpy()
    return bt.from_numpy(array[..., ::-2])


@pytest.fixture
def seen():
    """Names of the primitives that run, each checked: the arrays are what infer says, and the prepared rule gives what
    the eager rule gives.
    """
    names: list[str] = []
    originals = {prim: prim.plan for prim in TABLE.values()}

    def checked(prim):
        def plan(*avals, **attrs):
            result, rule = originals[prim](*avals, **attrs)

            def run(*arrays):
                names.append(prim.name)
                values = rule(*arrays)
                again = prim.eager(np, *arrays, **attrs)
                several = prim.num_results != 1
                for value, same, aval in zip(
                    *((values, again, result) if several else ([values], [again], [result])), strict=True
                ):
                    assert np.shape(value) == aval.shape, prim.name
                    assert np.asarray(value).dtype == aval.dtype.numpy, prim.name
                    assert not aval.weak
                    assert np.asarray(value).tobytes() == np.asarray(same).tobytes(), prim.name
                return values

            return result, run

        return plan

    for prim in originals:
        object.__setattr__(prim, "plan", checked(prim))
    yield names
    for prim, plan in originals.items():
        object.__setattr__(prim, "plan", plan)


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_infer_tells_what_eager_returns(case: Case, seen):
    with np.errstate(all="ignore"):
        for dtype in case.dtypes:
            case.call(*case.tensors(dtype, requires_grad=case.order > 0))
    assert case.primitive in seen or case.primitive in (
        "transfer",
        "assign",
    )  # these two do not go through dispatch.apply


@pytest.mark.parametrize("bad", ERRORS, ids=lambda b: f"{b.primitive}-{b.text[:20]}")
def test_errors_name_the_rule_and_the_line(bad):
    with pytest.raises(bad.error) as info:
        bad.call()
    text = str(info.value)
    assert bad.text in text
    assert "cases.py:" in text


@pytest.mark.parametrize("dtype", ["int8", "int16", "int32", "int64", "uint8", "uint16"])
def test_integers_keep_their_dtype(dtype):
    x = bt.tensor([1, 2, 7], dtype=getattr(bt, dtype))
    for y in (x + 1, x * x, x - x, x // 2, x % 3, x**2, x.abs(), bt.maximum(x, 2), x & 3, x.sign()):
        assert y.dtype.name == dtype
    assert (x / x).dtype is bt.float32 and x.exp().dtype is bt.float32 and (x > 1).dtype is bt.bool


def test_integer_division_by_zero_is_zero():
    x = bt.tensor([5, -5])
    assert (x // 0).tolist() == [0, 0] and (x % 0).tolist() == [0, 0]


def test_narrow_floats_accumulate_in_float32():
    """NumPy with ml_dtypes alone gives 256 for the sum of 4096 bfloat16 ones."""
    x = bt.ones(4096, dtype=bt.bfloat16)
    assert x.sum().item() == 4096 and x.mean().item() == 1 and x.cumsum(0)[-1].item() == 4096
    assert (x + 1.0).dtype is bt.bfloat16 and (x.reshape(64, 64) @ x.reshape(64, 64)).dtype is bt.bfloat16
    counts = bt.zeros(2, dtype=bt.float16).index_add(0, bt.zeros(3000, dtype=bt.int64), bt.ones(3000, dtype=bt.float16))
    assert counts.tolist() == [3000, 0]


def test_scalars_are_rounded_to_the_tensors_dtype():
    x = bt.ones(1, dtype=bt.bfloat16)
    assert (x * 1.00390625).item() == 1.0  # 1 + 2**-8 is halfway between two bfloat16 and goes to the even one
    assert (bt.tensor([0.1]) == 0.1).item()


def test_no_warning_for_infinite_values():
    """NumPy warns of these; here they are values. (Warnings are errors in this test suite.)"""
    zero = bt.zeros(2)
    assert (1 / zero).isinf().all() and zero.log().isinf().all() and (zero / zero).isnan().all()
    assert bt.full((2,), 1e38).square().isinf().all()
    assert zero[:0].mean().isnan()


@pytest.mark.parametrize("value", [10.0, 50.0, 1e4, float("inf")])
def test_saturating_functions_stay_finite(value):
    x = bt.tensor([value, -value], dtype=bt.float32, requires_grad=True)
    for y, limits in ((x.tanh(), [1, -1]), (x.erf(), [1, -1])):
        assert y.tolist() == limits
    s = x.sigmoid()
    s.sum().backward()
    assert s.isfinite().all() and x.grad.isfinite().all()


def test_var_of_values_far_from_zero():
    x = bt.tensor(np.random.default_rng(0).normal(1e4, 1, 10000).astype(np.float32))
    assert abs(x.var().item() - 1) < 0.05


def test_logsumexp_does_not_overflow():
    x = bt.tensor([[1e30, 1e30], [-np.inf, -np.inf], [np.inf, 0]])
    np.testing.assert_allclose(x.logsumexp(1).numpy(), [1e30, -np.inf, np.inf])


def test_logsumexp_of_integers_and_of_nothing():
    x = bt.tensor([[1, 2], [3, 4]])
    assert x.logsumexp(1).dtype is bt.float32
    np.testing.assert_allclose(x.logsumexp(1).numpy(), x.float().logsumexp(1).numpy())
    assert bt.zeros(0, 2).logsumexp(0).tolist() == [-math.inf] * 2


@pytest.mark.parametrize("norm", [lambda x: x.norm(), lambda x: x.norm(3), lambda x: x.std(), lambda x: x.norm(dim=1)])
def test_gradients_where_a_norm_is_zero_are_zero(norm):
    x = bt.zeros(2, 3, requires_grad=True)
    norm(x).sum().backward()
    assert not x.grad.numpy().any()


def test_negative_powers_of_integers():
    x, y = bt.tensor([3, 2, 1, -1, -1, 5]), bt.tensor([2, -1, -3, -2, -3, 0])
    assert (x**y).tolist() == [9, 0, 1, 1, -1, 1] and (2**y).tolist() == [4, 0, 0, 0, 0, 1]
    with pytest.raises(ValueError, match="integers have no negative powers"):
        x**-1


def test_a_product_with_a_number_is_no_matrix_product():
    for call in (lambda: bt.ones(2, 2) @ 2, lambda: 2.5 @ bt.ones(2, 2)):
        with pytest.raises(TypeError, match="unsupported operand"):
            call()


def test_linspace_ends_where_it_should():
    for n in range(1, 120):
        assert bt.linspace(0.1, 0.7, n, dtype=bt.float64).tolist() == np.linspace(0.1, 0.7, n).tolist()


def test_erf_to_the_last_bit():
    x = np.linspace(-7, 7, 5001)
    import math

    exact = np.array([math.erf(v) for v in x])
    np.testing.assert_allclose(bt.tensor(x, dtype=bt.float64).erf().numpy(), exact, rtol=4e-16)
    rounded = np.array([math.erf(v) for v in x.astype(np.float32)])
    np.testing.assert_allclose(bt.tensor(x, dtype=bt.float32).erf().numpy(), rounded, rtol=3e-7)
