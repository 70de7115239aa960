"""norm of every order: NumPy's values, gradients by differences and as PyTorch defines them where there is none; compiled."""

from __future__ import annotations

import math

import numpy as np
import pytest

import blutrain as bt
from blutrain import nova
from blutrain.autograd import gradcheck

ORDERS = [0, 1, 2, 3, 1.5, 0.5, -1, -2.5, math.inf, -math.inf]
ROWS = np.array([[1.0, -2.0, 3.0, 0.5], [-0.3, 4.0, -4.5, 2.0], [0.1, 0.2, -0.7, 1.5]])
TIES = np.array([[3.0, -3.0, 0.0, 3.0], [0.0, 0.0, 0.0, 0.0], [1.0, 0.0, -2.0, 0.0]])


def eager(p, dim, keepdim):
    return lambda x: x.norm(p, dim, keepdim)


def compiled(p, dim, keepdim):
    return nova.jit(eager(p, dim, keepdim), strict=True, first_step="compiled")


def value_and_gradient(f, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    x = bt.tensor(x, requires_grad=True)
    y = f(x)
    (y * bt.arange(1.0, y.numel() + 1, dtype=bt.float64).reshape(y.shape)).sum().backward()
    return y.detach().numpy(), x.grad.numpy()


@pytest.mark.parametrize("dim", [None, 0, 1, -1, (0, 1)])
@pytest.mark.parametrize("p", ORDERS)
def test_values_over_dimensions(p, dim):
    for x in (ROWS, TIES):
        for keepdim in (False, True):
            flat = x.reshape(-1) if dim in (None, (0, 1)) else x
            with np.errstate(divide="ignore"):
                expected = np.linalg.norm(flat, p, None if flat.ndim == 1 else dim, keepdims=keepdim and flat.ndim == 2)
            shape = [1, 1] if keepdim and flat.ndim == 1 else list(np.shape(expected))
            got = bt.tensor(x).norm(p, dim, keepdim)
            assert list(got.shape) == shape and got.dtype is bt.float64
            np.testing.assert_allclose(got.numpy().reshape(np.shape(expected)), expected, rtol=1e-12)


@pytest.mark.parametrize("p", ORDERS)
def test_gradients_away_from_zero(p):
    assert gradcheck(lambda x: x.norm(p, 1), [bt.tensor(ROWS, requires_grad=True)])


@pytest.mark.parametrize(
    ("p", "expected"),
    [
        (0, [[0, 0, 0, 0]] * 3),
        (1, [[1, -1, 0, 1], [0, 0, 0, 0], [3, 0, -3, 0]]),
        (2, [[3**-0.5, -(3**-0.5), 0, 3**-0.5], [0, 0, 0, 0], [3 * 5**-0.5, 0, -6 * 5**-0.5, 0]]),
        (0.5, [[3, -3, 0, 3], [0, 0, 0, 0], [3 + 3 * 2**0.5, 0, -(3 + 1.5 * 2**0.5), 0]]),
        (-1, [[0, 0, 0, 0]] * 3),
        (math.inf, [[1 / 3, -1 / 3, 0, 1 / 3], [0, 0, 0, 0], [0, 0, -3, 0]]),
        (-math.inf, [[0, 0, 0, 0]] * 3),
    ],
)
def test_gradients_at_zeros_and_ties(p, expected):
    """As PyTorch's: 0 at elements that are 0, shared among equal extrema."""
    for f in (eager(p, 1, False), compiled(p, 1, False)):
        np.testing.assert_allclose(value_and_gradient(f, TIES)[1], expected, atol=1e-12)


@pytest.mark.parametrize("p", ORDERS)
def test_compiled_as_eagerly(p):
    for x in (ROWS, TIES):
        for dim, keepdim in ((None, False), (1, True)):
            got = value_and_gradient(compiled(p, dim, keepdim), x)
            for g, e in zip(got, value_and_gradient(eager(p, dim, keepdim), x)):
                np.testing.assert_allclose(g, e, rtol=1e-11, atol=1e-13)


def test_names_and_narrow_floats():
    x = bt.tensor(ROWS)
    assert x.norm("fro").item() == x.norm().item()
    assert bt.ones(4096, dtype=bt.float16).norm(1).item() == 4096.0
    assert bt.full((4,), 300.0, dtype=bt.float16).norm(3).dtype is bt.float16


def test_what_has_no_norm_is_refused():
    with pytest.raises(TypeError, match="norm: not defined for integers"):
        bt.arange(3).norm()
    for p in (math.nan, "nuc", True):
        with pytest.raises(ValueError, match="norm: p is no order of a norm"):
            bt.ones(3).norm(p)
    for p in (-1, math.inf, -math.inf):
        with pytest.raises(ValueError, match="norm: no elements have no norm of order"):
            bt.zeros(0).norm(p)
    assert bt.zeros(2, 0).norm(0, 1).tolist() == bt.zeros(2, 0).norm(3, 1).tolist() == [0.0, 0.0]
