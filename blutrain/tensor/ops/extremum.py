"""The largest and the smallest: amax and amin over dimensions, argmax and argmin along one, PyTorch's max and min.

NaN wins where there is one, of argmax and argmin the first. Of no elements all of them raise.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from ...errors import message
from ..aval import Aval
from ..dispatch import apply
from ..dtype import from_numpy_dtype, int64
from ..primitive import NotDifferentiable, Reduction, Saves, define
from ..shapes import normalize_dim, normalize_dims, reduced_shape
from ..tensor import Tensor
from . import arithmetic, cast, compare, gather, movement, reduce


class ValuesIndices(NamedTuple):
    """What max(x, dim) and min(x, dim) return."""

    values: Tensor
    indices: Tensor


def _infer_extremum(name: str):
    def infer(x: Aval, *, dims, keepdim) -> Aval:
        shape = reduced_shape(x.shape, dims, keepdim)
        if not reduce.count(x.shape, dims) and Aval(shape, x.dtype).size:
            raise ValueError(message(name, "no elements to choose from", got=f"{x} reduced over dims {dims}"))
        return Aval(shape, x.dtype)

    return infer


def _eager_extremum(fn: str):
    def eager(xp, x, *, dims, keepdim):
        dtype = from_numpy_dtype(x.dtype)
        wide = x.astype(xp.float32) if dtype.is_narrow else x
        if not x.size:
            return xp.empty(reduced_shape(x.shape, dims, keepdim), dtype.numpy)
        return getattr(xp, fn)(wide, axis=dims, keepdims=keepdim).astype(dtype.numpy)

    return eager


def _vjp_extremum(ctx, g):
    """All elements equal to the extremum share the gradient evenly."""
    x = ctx.operands[0]
    chosen = cast.cast(compare.eq(x, reduce.restore(ctx.results[0], ctx)), x._aval.dtype)
    share = arithmetic.div(chosen, reduce.sum(chosen, ctx.attrs["dims"], True))
    return (arithmetic.mul(share, reduce.restore(g, ctx)),)


def _extremum(name: str, combiner: str, doc: str):
    return define(
        name,
        "reduce",
        infer=_infer_extremum(name),
        eager=_eager_extremum(combiner),
        vjp=_vjp_extremum,
        saves=Saves(operands=(0,), results=(0,)),
        nova=Reduction(combiner),
        doc=doc,
    )


AMAX = _extremum("amax", "max", "Largest element over dims; NaN if there is one. Equal ones share the gradient evenly.")
AMIN = _extremum(
    "amin", "min", "Smallest element over dims; NaN if there is one. Equal ones share the gradient evenly."
)


def amax(x, dim=None, keepdim: bool = False):
    """Largest element over `dim` (an integer, several or all). Errors: ValueError of no elements."""
    return apply(AMAX, x, dims=normalize_dims("amax", dim, x.ndim), keepdim=keepdim)


def amin(x, dim=None, keepdim: bool = False):
    """Smallest element over `dim` (an integer, several or all). Errors: ValueError of no elements."""
    return apply(AMIN, x, dims=normalize_dims("amin", dim, x.ndim), keepdim=keepdim)


def _chosen(name: str, x, dim, keepdim, whole, arg, pairwise):
    if dim is None:
        return whole(x)
    if hasattr(dim, "_aval"):
        return pairwise(x, dim)
    indices = arg(x, dim, True)
    values = gather.gather(x, dim, indices)
    if not keepdim:
        values, indices = values.squeeze(dim), indices.squeeze(dim)
    return ValuesIndices(values, indices)


def max(x, dim=None, keepdim: bool = False) -> Any:
    """Without `dim` the largest element; with `dim` an integer, (values, indices) along it, lowest index on ties; with
    a tensor, maximum(x, dim).
    """
    return _chosen("max", x, dim, keepdim, amax, argmax, arithmetic.maximum)


def min(x, dim=None, keepdim: bool = False) -> Any:
    """Without `dim` the smallest element; with `dim` an integer, (values, indices) along it, lowest index on ties; with
    a tensor, minimum(x, dim).
    """
    return _chosen("min", x, dim, keepdim, amin, argmin, arithmetic.minimum)


def _infer_arg(name: str):
    def infer(x: Aval, *, dim: int, keepdim) -> Aval:
        shape = reduced_shape(x.shape, (dim,), keepdim)
        if not x.shape[dim] and Aval(shape, int64).size:
            raise ValueError(message(name, "no elements to choose from", got=f"{x} along dim {dim}"))
        return Aval(shape, int64)

    return infer


def _eager_arg(fn: str):
    def eager(xp, x, *, dim, keepdim):
        if not x.size:
            return xp.empty(reduced_shape(x.shape, (dim,), keepdim), xp.int64)
        if from_numpy_dtype(x.dtype).is_narrow:
            x = x.astype(xp.float32)
        return getattr(xp, fn)(x, axis=dim, keepdims=keepdim).astype(xp.int64)

    return eager


def _arg(name: str, doc: str):
    return define(
        name,
        "reduce",
        infer=_infer_arg(name),
        eager=_eager_arg(name),
        vjp=NotDifferentiable("the result is an index"),
        nova=Reduction(name),
        doc=doc,
    )


ARGMAX = _arg("argmax", "Index of the largest element along dim: the lowest on ties, the first NaN if there is one.")
ARGMIN = _arg("argmin", "Index of the smallest element along dim: the lowest on ties, the first NaN if there is one.")


def argmax(x, dim=None, keepdim: bool = False):
    """Index (int64) of the largest element along `dim`, or in the flattened tensor."""
    return _apply_arg("argmax", ARGMAX, x, dim, keepdim)


def argmin(x, dim=None, keepdim: bool = False):
    """Index (int64) of the smallest element along `dim`, or in the flattened tensor."""
    return _apply_arg("argmin", ARGMIN, x, dim, keepdim)


def _apply_arg(name: str, prim, x, dim, keepdim):
    if dim is None:
        result = apply(prim, movement.reshape(x, (-1,)), dim=0, keepdim=False)
        return movement.reshape(result, (1,) * x.ndim) if keepdim else result
    return apply(prim, x, dim=normalize_dim(name, dim, x.ndim), keepdim=keepdim)
