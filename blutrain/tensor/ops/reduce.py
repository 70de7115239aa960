"""Reductions over dimensions: sum, mean, prod, max, min, any, all, argmax, argmin, cumsum; var, std, norm and logsumexp
made of them.

float16 and bfloat16 accumulate in float32 and are rounded once. Of no elements the sum is 0, the product 1, the mean
NaN; max, min, argmax and argmin raise.
"""

from __future__ import annotations

import builtins
import functools
from typing import Any, NamedTuple

import numpy

from ...errors import message
from ..aval import Aval
from ..dispatch import apply
from ..dtype import FLOATING, as_dtype, bool_, compute_dtype, from_numpy_dtype, int64
from ..primitive import NotDifferentiable, Reduction, Saves, Unsupported, define
from ..shapes import normalize_dim, normalize_dims, reduced_shape
from ..tensor import Tensor
from . import arithmetic, cast, compare, gather, movement, unary


class ValuesIndices(NamedTuple):
    """What max(x, dim) and min(x, dim) return."""

    values: Tensor
    indices: Tensor


def _restore(x, ctx):
    """A reduced tensor broadcast back over the operand's shape."""
    shape = ctx.avals[0].shape
    kept = reduced_shape(shape, ctx.attrs["dims"], True)
    return movement.expand(movement.reshape(x, kept), shape)


def _count(shape, dims) -> int:
    n = 1
    for d in dims:
        n *= shape[d]
    return n


def _accumulated(fn: str):
    """Eager rule: integers and bools in int64, narrow floats in float32, rounded once."""

    def eager(xp, x, *, dims, keepdim):
        dtype = from_numpy_dtype(x.dtype)
        computing = compute_dtype(dtype) if dtype.is_floating else int64
        total = getattr(xp, fn)(x, axis=dims, dtype=computing.numpy, keepdims=keepdim)
        return total.astype(dtype.numpy) if dtype.is_narrow else total

    return eager


def _prepared(fn: str):
    """The same rule specialised: NumPy's reduction itself, except where a result is rounded."""

    def prepare(x: Aval, *, dims, keepdim):
        if x.dtype.is_narrow:
            return functools.partial(_accumulated(fn), numpy, dims=dims, keepdim=keepdim)
        computing = x.dtype if x.dtype.is_floating else int64
        reduction = {"sum": numpy.add, "prod": numpy.multiply}[fn].reduce
        return functools.partial(reduction, axis=dims, dtype=computing.numpy, keepdims=keepdim)

    return prepare


def _infer_total(x: Aval, *, dims, keepdim) -> Aval:
    dtype = x.dtype if x.dtype.category == FLOATING else int64
    return Aval(reduced_shape(x.shape, dims, keepdim), dtype)


SUM = define(
    "sum",
    "reduce",
    infer=_infer_total,
    eager=_accumulated("sum"),
    prepare=_prepared("sum"),
    vjp=lambda ctx, g: (_restore(g, ctx),),
    nova=Reduction("add"),
    doc="Sum over dims; of integers and bools in int64.",
)


def sum(x, dim=None, keepdim: bool = False, *, dtype=None):
    """Sum over `dim` (an integer, several, or None: all), in `dtype` if given."""
    x = x if dtype is None else cast.cast(x, as_dtype(dtype, "sum"))
    return apply(SUM, x, dims=normalize_dims("sum", dim, x.ndim), keepdim=keepdim)


def _infer_mean(x: Aval, *, dims, keepdim) -> Aval:
    if not x.dtype.is_floating:
        raise TypeError(
            message("mean", "not defined for integers", expected="floats", got=str(x), help="cast with .float() first")
        )
    return Aval(reduced_shape(x.shape, dims, keepdim), x.dtype)


def _eager_mean(xp, x, *, dims, keepdim):
    dtype = from_numpy_dtype(x.dtype)
    count = _count(x.shape, dims)
    total = xp.sum(x, axis=dims, dtype=compute_dtype(dtype).numpy, keepdims=keepdim)
    mean = total / count if count else total * xp.nan
    return mean.astype(dtype.numpy)


MEAN = define(
    "mean",
    "reduce",
    infer=_infer_mean,
    eager=_eager_mean,
    vjp=lambda ctx, g: (
        _restore(arithmetic.div(g, builtins.max(_count(ctx.avals[0].shape, ctx.attrs["dims"]), 1)), ctx),
    ),
    nova=Reduction("add", scale="mean"),
    doc="Arithmetic mean over dims; NaN of no elements.",
)


def mean(x, dim=None, keepdim: bool = False, *, dtype=None):
    """Mean over `dim`. Errors: TypeError for integers."""
    x = x if dtype is None else cast.cast(x, as_dtype(dtype, "mean"))
    return apply(MEAN, x, dims=normalize_dims("mean", dim, x.ndim), keepdim=keepdim)


def _vjp_prod(ctx, g):
    """Each element gets the product of the others, by products up and down a binary tree: right with zeros,
    differentiable again.
    """
    x, dims = ctx.operands[0], ctx.attrs["dims"]
    kept = [d for d in range(x.ndim) if d not in dims]
    rows = movement.transpose_to(x, (*kept, *dims))
    shape, n = rows.shape, _count(x.shape, dims)
    flat = movement.reshape(rows, (*[x.shape[d] for d in kept], n))
    others = movement.reshape(_product_of_others(flat), shape)
    back = movement.transpose_to(others, tuple(sorted(range(x.ndim), key=lambda d: (*kept, *dims)[d])))
    return (arithmetic.mul(_restore(g, ctx), back),)


def _product_of_others(x):
    """Along the last dimension, for each element the product of all the others."""
    levels = [x]
    while levels[-1].shape[-1] > 1:
        level = levels[-1]
        if level.shape[-1] % 2:
            levels[-1] = level = movement.pad_dims(level, {level.ndim - 1: (0, 1)}, 1)
        pairs = movement.reshape(level, (*level.shape[:-1], level.shape[-1] // 2, 2))
        levels.append(arithmetic.mul(pairs[..., 0], pairs[..., 1]))
    others = levels.pop() * 0 + 1
    while levels:
        level = levels.pop()
        pairs = movement.reshape(level, (*level.shape[:-1], level.shape[-1] // 2, 2))
        siblings = movement.flip(pairs, -1)
        count = pairs.shape[-2]
        parents = others[..., :count].unsqueeze(-1)
        others = movement.reshape(arithmetic.mul(siblings, parents), level.shape)
    return others[..., : x.shape[-1]]


PROD = define(
    "prod",
    "reduce",
    infer=_infer_total,
    eager=_accumulated("prod"),
    prepare=_prepared("prod"),
    vjp=_vjp_prod,
    saves=Saves(operands=(0,)),
    nova=Reduction("mul"),
    doc="Product over dims; of integers and bools in int64.",
)


def prod(x, dim=None, keepdim: bool = False):
    """Product over `dim`."""
    return apply(PROD, x, dims=normalize_dims("prod", dim, x.ndim), keepdim=keepdim)


def _infer_extremum(name: str):
    def infer(x: Aval, *, dims, keepdim) -> Aval:
        shape = reduced_shape(x.shape, dims, keepdim)
        if not _count(x.shape, dims) and Aval(shape, x.dtype).size:
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
    chosen = cast.cast(compare.eq(x, _restore(ctx.results[0], ctx)), x._aval.dtype)
    share = arithmetic.div(chosen, sum(chosen, ctx.attrs["dims"], True))
    return (arithmetic.mul(share, _restore(g, ctx)),)


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


def _truth(name: str, combiner: str, doc: str):
    return define(
        name,
        "reduce",
        infer=lambda x, *, dims, keepdim: Aval(reduced_shape(x.shape, dims, keepdim), bool_),
        eager=lambda xp, x, *, dims, keepdim: getattr(xp, name)(x.astype(bool), axis=dims, keepdims=keepdim),
        vjp=NotDifferentiable("the result is bool"),
        nova=Reduction(combiner),
        doc=doc,
    )


ANY = _truth("any", "or", "Is any element over dims nonzero? False of none.")
ALL = _truth("all", "and", "Are all elements over dims nonzero? True of none.")


def any(x, dim=None, keepdim: bool = False):
    """Is any element nonzero, over `dim`."""
    return apply(ANY, x, dims=normalize_dims("any", dim, x.ndim), keepdim=keepdim)


def all(x, dim=None, keepdim: bool = False):
    """Are all elements nonzero, over `dim`."""
    return apply(ALL, x, dims=normalize_dims("all", dim, x.ndim), keepdim=keepdim)


def _eager_cumsum(xp, x, *, dim):
    dtype = from_numpy_dtype(x.dtype)
    computing = compute_dtype(dtype) if dtype.is_floating else int64
    return xp.cumsum(x, axis=dim, dtype=computing.numpy).astype(dtype.numpy if dtype.is_floating else int64.numpy)


CUMSUM = define(
    "cumsum",
    "reduce",
    infer=lambda x, *, dim: Aval(x.shape, x.dtype if x.dtype.is_floating else int64),
    eager=_eager_cumsum,
    vjp=lambda ctx, g: (movement.flip(cumsum(movement.flip(g, ctx.attrs["dim"]), ctx.attrs["dim"]), ctx.attrs["dim"]),),
    nova=Unsupported("cumsum has no generator: no kernel scans along a dimension"),
    doc="Running sum along dim, narrow floats carried in float32.",
)


def cumsum(x, dim: int):
    """Running sum along `dim`."""
    return apply(CUMSUM, x, dim=normalize_dim("cumsum", dim, x.ndim))


def var(x, dim=None, correction: int = 1, keepdim: bool = False):
    """Variance over `dim`, in two passes (mean first), divided by n - correction."""
    dims = normalize_dims("var", dim, x.ndim)
    wide = cast.cast(x, compute_dtype(x._aval.dtype))
    centred = arithmetic.sub(wide, mean(wide, dims, True))
    divisor = _count(x.shape, dims) - correction
    total = sum(unary.square(centred), dims, keepdim)
    return cast.cast(arithmetic.div(total, builtins.max(divisor, 0)), x._aval.dtype)


def std(x, dim=None, correction: int = 1, keepdim: bool = False):
    """Standard deviation over `dim`: the root of var."""
    return unary.sqrt(var(x, dim, correction, keepdim))


def logsumexp(x, dim, keepdim: bool = False):
    """log(sum(exp(x))) over `dim` without overflow; -inf where all elements are -inf."""
    dims = normalize_dims("logsumexp", dim, x.ndim)
    wide = cast.cast(x, compute_dtype(x._aval.dtype))
    largest = amax(wide.detach(), dims, True)
    shift = arithmetic.where(unary.isfinite(largest), largest, 0.0)
    total = unary.log(sum(unary.exp(arithmetic.sub(wide, shift)), dims, True))
    result = cast.cast(arithmetic.add(total, shift), x._aval.dtype)
    return result if keepdim else movement.reshape(result, reduced_shape(x.shape, dims, False))


def norm(x, p: float = 2.0, dim=None, keepdim: bool = False):
    """The p-norm of the elements over `dim`: p > 0 or inf."""
    if p == 2:
        return unary.sqrt(sum(unary.square(x), dim, keepdim))
    if p == float("inf"):
        return amax(unary.abs(x), dim, keepdim)
    return arithmetic.pow(sum(arithmetic.pow(unary.abs(x), p), dim, keepdim), 1 / p)


def count_nonzero(x, dim=None):
    """Number of nonzero elements over `dim`, int64."""
    return sum(cast.cast(x, bool_), dim)
