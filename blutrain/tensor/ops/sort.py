"""Order along a dimension: argsort is the primitive, sort and topk gather by it."""

from __future__ import annotations

from ...errors import message
from ..aval import Aval
from ..dispatch import apply
from ..dtype import from_numpy_dtype, int64
from ..primitive import NotDifferentiable, Unsupported, define
from ..shapes import normalize_dim
from . import gather, movement
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


def topk(x, k: int, dim: int = -1, largest: bool = True) -> ValuesIndices:
    """(values, indices) of the k largest (or smallest) elements along `dim`, in order.

    Errors: ValueError for a k that is negative or larger than the dimension.
    """
    dim = normalize_dim("topk", dim, x.ndim)
    if not 0 <= k <= x.shape[dim]:
        raise ValueError(message("topk", "k is out of range", expected=f"0 <= k <= {x.shape[dim]}", got=str(k)))
    indices = movement.narrow(argsort(x, dim, largest), dim, 0, k)
    return ValuesIndices(gather.gather(x, dim, indices), indices)
