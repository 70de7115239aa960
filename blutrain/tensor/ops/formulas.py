"""Short formulas under names of their own: lerp, addcmul, addcdiv, logaddexp, nan_to_num."""

from __future__ import annotations

from ..dtype import finfo
from . import arithmetic, unary


def lerp(x, end, weight):
    """x + weight * (end - x)."""
    return x + weight * (end - x)


def addcmul(x, first, second, *, value=1):
    """x + value * first * second."""
    return x + (first * second if value == 1 else first * second * value)


def addcdiv(x, first, second, *, value=1):
    """x + value * first / second."""
    return x + (first / second if value == 1 else first / second * value)


def logaddexp(x, other):
    """log(exp(x) + exp(other)) without overflow."""
    largest = arithmetic.maximum(x, other)
    shift = arithmetic.where(unary.isfinite(largest), largest, 0.0).detach()
    return unary.log(unary.exp(x - shift) + unary.exp(other - shift)) + shift


def nan_to_num(x, nan: float = 0.0, posinf: float | None = None, neginf: float | None = None):
    """x with NaN and the infinities replaced, these by the largest finite numbers where nothing else is given."""
    if not x.dtype.is_floating:
        return x
    largest = finfo(x.dtype).max
    x = arithmetic.where(unary.isnan(x), nan, x)
    x = arithmetic.where(x == float("inf"), largest if posinf is None else posinf, x)
    return arithmetic.where(x == -float("inf"), -largest if neginf is None else neginf, x)
