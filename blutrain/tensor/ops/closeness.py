"""Are two tensors equal, exactly or nearly? `equal` and `allclose` read the answer."""

from __future__ import annotations

from . import compare, reduce, unary


def isclose(x, other, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False):
    """bool, where |x - other| <= atol + rtol * |other|; infinities are close to themselves, NaN to NaN if `equal_nan`."""
    close = compare.eq(x, other)
    if x._aval.dtype.is_floating and other._aval.dtype.is_floating and equal_nan:
        close = close | (unary.isnan(x) & unary.isnan(other))
    near = unary.abs(x - other) <= atol + rtol * unary.abs(other)
    return close | (near & unary.isfinite(x) & unary.isfinite(other))


def allclose(x, other, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False) -> bool:
    """Whether all elements are close: see isclose."""
    return bool(reduce.all(isclose(x, other, rtol, atol, equal_nan)))


def equal(x, other) -> bool:
    """Whether shapes and all elements are equal."""
    return x.shape == other.shape and bool(reduce.all(compare.eq(x, other)))
