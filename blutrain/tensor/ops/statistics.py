"""Statistics made of the reductions: var, std, norm, logsumexp, count_nonzero; narrow floats computed in float32."""

from __future__ import annotations

from ..dtype import bool_, compute_dtype
from ..shapes import normalize_dims, reduced_shape
from . import arithmetic, cast, extremum, movement, reduce, unary


def _wide(x):
    return cast.cast(x, compute_dtype(x._aval.dtype))


def var(x, dim=None, correction: int = 1, keepdim: bool = False):
    """Variance over `dim`, in two passes (mean first), divided by n - correction."""
    dims = normalize_dims("var", dim, x.ndim)
    wide = _wide(x)
    total = reduce.sum(unary.square(wide - reduce.mean(wide, dims, True)), dims, keepdim)
    return cast.cast(total / max(reduce.count(x.shape, dims) - correction, 0), x._aval.dtype)


def std(x, dim=None, correction: int = 1, keepdim: bool = False):
    """Standard deviation over `dim`: the root of var."""
    return cast.cast(unary.sqrt(var(_wide(x), dim, correction, keepdim)), x._aval.dtype)


def logsumexp(x, dim, keepdim: bool = False):
    """log(sum(exp(x))) over `dim` without overflow; -inf where all elements are -inf."""
    dims = normalize_dims("logsumexp", dim, x.ndim)
    wide = _wide(x)
    largest = extremum.amax(wide.detach(), dims, True)
    shift = arithmetic.where(unary.isfinite(largest), largest, 0.0)
    total = unary.log(reduce.sum(unary.exp(wide - shift), dims, True)) + shift
    result = cast.cast(total, x._aval.dtype)
    return result if keepdim else movement.reshape(result, reduced_shape(x.shape, dims, False))


def norm(x, p: float = 2.0, dim=None, keepdim: bool = False):
    """The p-norm of the elements over `dim`: p > 0 or inf."""
    wide = _wide(x)
    if p == 2:
        result = unary.sqrt(reduce.sum(unary.square(wide), dim, keepdim))
    elif p == float("inf"):
        result = extremum.amax(unary.abs(wide), dim, keepdim)
    else:
        result = arithmetic.pow(reduce.sum(arithmetic.pow(unary.abs(wide), p), dim, keepdim), 1 / p)
    return cast.cast(result, x._aval.dtype)


def count_nonzero(x, dim=None):
    """Number of nonzero elements over `dim`, int64."""
    return reduce.sum(cast.cast(x, bool_), dim)
