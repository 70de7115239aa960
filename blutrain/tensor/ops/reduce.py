"""Reductions over dimensions: sum, mean, prod, any, all, and the running sum. (What is largest: extremum.py.)

float16 and bfloat16 accumulate in float32 and are rounded once. Of no elements the sum is 0, the product 1, the mean
NaN.
"""

from __future__ import annotations

import builtins
import functools

import numpy

from ...errors import message
from ..aval import Aval
from ..dispatch import apply
from ..dtype import FLOATING, as_dtype, bool_, compute_dtype, from_numpy_dtype, int64
from ..primitive import NotDifferentiable, Reduction, Saves, Special, define
from ..shapes import normalize_dim, normalize_dims, reduced_shape
from . import arithmetic, cast, movement


def restore(x, ctx):
    """A reduced tensor broadcast back over the operand's shape."""
    shape = ctx.avals[0].shape
    kept = reduced_shape(shape, ctx.attrs["dims"], True)
    return movement.expand(movement.reshape(x, kept), shape)


def count(shape, dims) -> int:
    """Number of elements that a reduction over `dims` takes together."""
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
    vjp=lambda ctx, g: (restore(g, ctx),),
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
    n = count(x.shape, dims)
    total = xp.sum(x, axis=dims, dtype=compute_dtype(dtype).numpy, keepdims=keepdim)
    mean = total / n if n else total * xp.nan
    return mean.astype(dtype.numpy)


MEAN = define(
    "mean",
    "reduce",
    infer=_infer_mean,
    eager=_eager_mean,
    vjp=lambda ctx, g: (
        restore(arithmetic.div(g, builtins.max(count(ctx.avals[0].shape, ctx.attrs["dims"]), 1)), ctx),
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
    shape, n = rows.shape, count(x.shape, dims)
    flat = movement.reshape(rows, (*[x.shape[d] for d in kept], n))
    others = movement.reshape(_product_of_others(flat), shape)
    back = movement.transpose_to(others, tuple(sorted(range(x.ndim), key=lambda d: (*kept, *dims)[d])))
    return (arithmetic.mul(restore(g, ctx), back),)


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


def prod(x, dim=None, keepdim: bool = False, *, dtype=None):
    """Product over `dim`, in `dtype` if given."""
    x = x if dtype is None else cast.cast(x, as_dtype(dtype, "prod"))
    return apply(PROD, x, dims=normalize_dims("prod", dim, x.ndim), keepdim=keepdim)


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
    nova=Special("cumsum"),
    doc="Running sum along dim, narrow floats carried in float32.",
)


def cumsum(x, dim: int, *, dtype=None):
    """Running sum along `dim`, in `dtype` if given."""
    x = x if dtype is None else cast.cast(x, as_dtype(dtype, "cumsum"))
    return apply(CUMSUM, x, dim=normalize_dim("cumsum", dim, x.ndim))
