"""Statistics made of the reductions: var, std, norm, logsumexp, count_nonzero; narrow floats computed in float32.

The gradients of std and norm are 0 where they are 0 themselves, as in PyTorch.
"""

from __future__ import annotations

from ...errors import message
from ..dtype import bool_, compute_dtype, float_dtype
from ..shapes import normalize_dims, reduced_shape
from . import arithmetic, cast, compare, extremum, movement, reduce, unary


def _wide(x):
    return cast.cast(x, compute_dtype(x._aval.dtype))


def _root(x, power: float = 0.5, at_zero: float = 0.0):
    """x ** power of x >= 0, with `at_zero`, and gradient 0, where x is 0: the derivative there is infinite."""
    positive = compare.ne(x, 0)
    safe = arithmetic.where(positive, x, 1.0)
    root = unary.sqrt(safe) if power == 0.5 else arithmetic.pow(safe, power)
    return arithmetic.where(positive, root, at_zero)


def var(x, dim=None, correction: int = 1, keepdim: bool = False, *, unbiased: bool | None = None):
    """Variance over `dim`, in two passes (mean first), divided by n - correction; `unbiased`: whether correction is 1."""
    correction = correction if unbiased is None else int(unbiased)
    dims = normalize_dims("var", dim, x.ndim)
    wide = _wide(x)
    total = reduce.sum(unary.square(wide - reduce.mean(wide, dims, True)), dims, keepdim)
    return cast.cast(total / max(reduce.count(x.shape, dims) - correction, 0), x._aval.dtype)


def std(x, dim=None, correction: int = 1, keepdim: bool = False, *, unbiased: bool | None = None):
    """Standard deviation over `dim`: the root of var."""
    return cast.cast(_root(var(_wide(x), dim, correction, keepdim, unbiased=unbiased)), x._aval.dtype)


def logsumexp(x, dim, keepdim: bool = False):
    """log(sum(exp(x))) over `dim` without overflow, floating; -inf where all elements are -inf, or there are none."""
    dims = normalize_dims("logsumexp", dim, x.ndim)
    x = cast.cast(x, float_dtype(x._aval.dtype))
    wide = _wide(x)
    shift = 0.0
    if x.numel():
        largest = extremum.amax(wide.detach(), dims, True)
        shift = arithmetic.where(unary.isfinite(largest), largest, 0.0)
    total = unary.log(reduce.sum(unary.exp(wide - shift), dims, True)) + shift
    result = cast.cast(total, x._aval.dtype)
    return result if keepdim else movement.reshape(result, reduced_shape(x.shape, dims, False))


def norm(x, p: float | str = 2.0, dim=None, keepdim: bool = False):
    """The p-norm of the elements over `dim`: any number, inf and -inf, or "fro" for 2. 0 counts what is not 0.

    Errors: TypeError for integers, ValueError for another p, or for an empty `dim` where p is inf or below 0.
    """
    if not x._aval.dtype.is_floating:
        raise TypeError(message("norm", "not defined for integers", got=str(x._aval), help="cast with .float() first"))
    p = 2.0 if isinstance(p, str) and p == "fro" else p
    if isinstance(p, (str, bool)) or not p == p:
        raise ValueError(message("norm", "p is no order of a norm", expected="a number, or 'fro'", got=repr(p)))
    dims = normalize_dims("norm", dim, x.ndim)
    if not reduce.count(x.shape, dims) and (p < 0 or p == float("inf")):
        raise ValueError(message("norm", f"no elements have no norm of order {p}", got=str(x._aval)))
    return cast.cast(_norm(_wide(x), p, dims, keepdim), x._aval.dtype)


def _norm(x, p: float, dims, keepdim: bool):
    if p == 2:
        return _root(reduce.sum(unary.square(x), dims, keepdim))
    size = unary.abs(x)
    if p == 1:
        return reduce.sum(size, dims, keepdim)
    if abs(p) == float("inf"):
        return (extremum.amax if p > 0 else extremum.amin)(size, dims, keepdim)
    powers = arithmetic.pow(size, p) if p > 1 else _root(size, p, 0.0 if p >= 0 else float("inf"))
    total = reduce.sum(powers, dims, keepdim)
    return total if p == 0 else _root(total, 1 / p) if p > 0 else arithmetic.pow(total, 1 / p)


def count_nonzero(x, dim=None):
    """Number of nonzero elements over `dim`, int64."""
    return reduce.sum(cast.cast(x, bool_), dim)
