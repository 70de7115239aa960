"""Order along a dimension: argsort is the primitive, sort, topk and what they give gather by it."""

from __future__ import annotations

from ...errors import message
from ..aval import Aval
from ..dispatch import apply
from ..dtype import from_numpy_dtype, int64
from ..primitive import NotDifferentiable, Unsupported, define
from ..shapes import normalize_dim
from . import arithmetic, gather, movement, unary
from .extremum import ValuesIndices


def _eager(xp, x, *, dim: int, descending: bool):
    if from_numpy_dtype(x.dtype).is_narrow:
        x = x.astype(xp.float32)
    if not descending:
        return xp.argsort(x, axis=dim, kind="stable").astype(xp.int64)
    backwards = xp.argsort(xp.flip(x, dim), axis=dim, kind="stable")  # equal elements keep their order
    return (x.shape[dim] - 1 - xp.flip(backwards, dim)).astype(xp.int64)


ARGSORT = define(
    "argsort",
    "reduce",
    infer=lambda x, *, dim, descending: Aval(x.shape, int64),
    eager=_eager,
    vjp=NotDifferentiable("the result is an index"),
    nova=Unsupported("argsort has no generator: no kernel sorts"),
    doc="The indices that sort x along dim, equal elements in their order; NaN counts as the largest.",
)


def argsort(x, dim: int = -1, descending: bool = False, *, stable: bool = True):
    """The indices (int64) that sort x along `dim`; equal elements stay in their order, `stable` or not, NaN is the largest."""
    if not x.ndim:
        return apply(ARGSORT, movement.reshape(x, (1,)), dim=0, descending=descending).reshape(())
    return apply(ARGSORT, x, dim=normalize_dim("argsort", dim, x.ndim), descending=bool(descending))


def sort(x, dim: int = -1, descending: bool = False, *, stable: bool = True) -> ValuesIndices:
    """(values, indices) of x sorted along `dim`; differentiable."""
    indices = argsort(x, dim, descending)
    return ValuesIndices(gather.gather(x, dim, indices) if x.ndim else x, indices)


def topk(x, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> ValuesIndices:
    """(values, indices) of the k largest (or smallest) elements along `dim`: in order, `sorted` or not; of equal ones the
    first. Differentiable.

    Errors: ValueError for a k that is negative or larger than the dimension.
    """
    dim = normalize_dim("topk", dim, x.ndim)
    if not 0 <= k <= x.shape[dim]:
        raise ValueError(message("topk", "k is out of range", expected=f"0 <= k <= {x.shape[dim]}", got=str(k)))
    indices = movement.narrow(argsort(x, dim, largest), dim, 0, k)
    return ValuesIndices(gather.gather(x, dim, indices), indices)


def kthvalue(x, k: int, dim: int = -1, keepdim: bool = False) -> ValuesIndices:
    """(values, indices) of the k-th smallest elements along `dim`, counted from 1."""
    dim = normalize_dim("kthvalue", dim, x.ndim)
    if not 1 <= k <= x.shape[dim]:
        raise ValueError(message("kthvalue", "k is out of range", expected=f"1 <= k <= {x.shape[dim]}", got=str(k)))
    values, indices = [movement.narrow(y, dim, k - 1, 1) for y in sort(x, dim)]
    return ValuesIndices(values, indices) if keepdim else ValuesIndices(values.squeeze(dim), indices.squeeze(dim))


def median(x, dim: int | None = None, keepdim: bool = False):
    """The middle element in order, of two the lower: of all elements, or (values, indices) along `dim`. NaN where there is
    one.
    """
    if dim is None:
        return median(movement.reshape(x, (-1,)), 0).values
    n = x.shape[normalize_dim("median", dim, x.ndim)]
    if not n:
        raise ValueError(message("median", "no elements to choose from", got=str(x._aval)))
    middle, last = [kthvalue(x, k, dim, keepdim) for k in ((n + 1) // 2, n)]  # NaN is the largest
    if not x.dtype.is_floating:
        return middle
    is_nan = unary.isnan(last.values)
    return ValuesIndices(*[arithmetic.where(is_nan, of_last, of_middle) for of_last, of_middle in zip(last, middle)])
