"""Primitives that move elements: reshape, transpose, expand, slice, flip, concat, pad, and writing a slice.

In eager mode reshape (where strides allow), transpose, expand, slice and flip share the operand's memory, as in
PyTorch. The functions users call for them (`permute`, `squeeze`, `stack`, `split`, ...) are in arrange.py.
"""

from __future__ import annotations

import operator

from ...errors import message
from ..aval import Aval
from ..dispatch import apply
from ..primitive import Indexing, define, number_attribute
from ..shapes import normalize_dim, normalize_dims
from . import create, pointwise

_VIEW = frozenset(["view"])


def _infer_reshape(x: Aval, *, shape) -> Aval:
    result = Aval(shape, x.dtype)
    if result.size != x.size:
        raise ValueError(
            message(
                "reshape",
                "the number of elements changes",
                expected=f"{x.size} elements",
                got=f"{x} to shape {list(shape)}",
            )
        )
    return result


RESHAPE = define(
    "reshape",
    "movement",
    infer=_infer_reshape,
    eager=lambda xp, x, *, shape: x.reshape(shape),
    vjp=lambda ctx, g: (reshape(g, ctx.avals[0].shape),),
    nova=Indexing("reshape"),
    tags=_VIEW,
    doc="The elements in row-major order in another shape.",
)


def reshape(x, *shape):
    """x in another shape, the elements in row-major order; one extent may be -1. Shares memory where strides allow."""
    if len(shape) == 1 and isinstance(shape[0], tuple | list):
        shape = shape[0]
    shape = tuple([operator.index(n) for n in shape])
    if -1 in shape:
        shape = _resolve(x._aval, shape)
    return apply(RESHAPE, x, shape=shape)


def _resolve(aval: Aval, shape) -> tuple[int, ...]:
    known = 1
    for n in shape:
        known *= 1 if n == -1 else n
    if shape.count(-1) > 1 or not known or aval.size % known:
        raise ValueError(message("reshape", "the extent for -1 cannot be found", got=f"{aval} to shape {list(shape)}"))
    return tuple([aval.size // known if n == -1 else n for n in shape])


TRANSPOSE = define(
    "transpose",
    "movement",
    infer=lambda x, *, perm: Aval(tuple([x.shape[p] for p in perm]), x.dtype),
    eager=lambda xp, x, *, perm: x.transpose(perm),
    vjp=lambda ctx, g: (transpose_to(g, _inverse(ctx.attrs["perm"])),),
    nova=Indexing("transpose"),
    tags=_VIEW,
    doc="Dimensions in another order: result dimension d is operand dimension perm[d].",
)


def _inverse(perm):
    return tuple(sorted(range(len(perm)), key=perm.__getitem__))


def transpose_to(x, perm: tuple[int, ...]):
    """x with dimensions in the order `perm` (not checked)."""
    return x if perm == tuple(range(len(perm))) else apply(TRANSPOSE, x, perm=perm)


def _infer_expand(x: Aval, *, shape) -> Aval:
    new = len(shape) - len(x.shape)
    if new < 0 or any(n != 1 and n != m for n, m in zip(x.shape, shape[new:])):
        raise ValueError(
            message(
                "expand",
                "only extents of 1 can be repeated, and new ones added in front",
                got=f"{x} to shape {list(shape)}",
            )
        )
    return Aval(shape, x.dtype)


EXPAND = define(
    "expand",
    "movement",
    infer=_infer_expand,
    eager=lambda xp, x, *, shape: xp.broadcast_to(x, shape),
    vjp=lambda ctx, g: (pointwise.sum_to_shape(g, ctx.avals[0].shape),),
    nova=Indexing("expand"),
    tags=_VIEW,
    doc="Dimensions of extent 1 repeated and new ones added in front, without copying.",
)


def expand(x, *shape):
    """x repeated along dimensions of extent 1, and new ones in front, without copying; -1 keeps an extent."""
    if len(shape) == 1 and isinstance(shape[0], tuple | list):
        shape = shape[0]
    new = len(shape) - x.ndim
    if new < 0 or -1 in shape[:new]:
        raise ValueError(message("expand", "an extent is missing", got=f"{x._aval} to shape {list(shape)}"))
    shape = tuple([x._aval.shape[d - new] if n == -1 else operator.index(n) for d, n in enumerate(shape)])
    return x if shape == x._aval.shape else apply(EXPAND, x, shape=shape)


def as_slices(starts, sizes, steps) -> tuple[slice, ...]:
    """Python slices for (start, size, step) per dimension; steps may be negative."""
    result = []
    for start, size, step in zip(starts, sizes, steps):
        stop = start + size * step
        result.append(slice(start, None if stop < 0 else stop, step) if size else slice(0, 0))
    return tuple(result)


def _check_slice(name: str, shape, starts, sizes, steps) -> None:
    if not len(shape) == len(starts) == len(sizes) == len(steps):
        raise ValueError(
            message(name, "one start, size and step per dimension", got=f"{starts}, {sizes}, {steps} of {shape}")
        )
    for n, start, size, step in zip(shape, starts, sizes, steps):
        last = start + (size - 1) * step
        if size and not (0 <= start < n and 0 <= last < n and step):
            raise ValueError(
                message(name, "the slice leaves the tensor", got=f"{starts}, {sizes}, {steps} of {list(shape)}")
            )


def _infer_slice(x: Aval, *, starts, sizes, steps) -> Aval:
    _check_slice("slice", x.shape, starts, sizes, steps)
    return Aval(sizes, x.dtype)


SLICE = define(
    "slice",
    "movement",
    infer=_infer_slice,
    eager=lambda xp, x, *, starts, sizes, steps: x[as_slices(starts, sizes, steps)] if starts else x[...],
    vjp=lambda ctx, g: (apply(SLICE_SCATTER, g, shape=ctx.avals[0].shape, **ctx.attrs),),
    nova=Indexing("slice"),
    tags=_VIEW,
    doc="Element i of dimension d is element starts[d] + i * steps[d] of the operand, 0 <= i < sizes[d].",
)


def slice_dims(x, starts, sizes, steps):
    """The primitive slice; x itself where it would take everything in order."""
    if sizes == x._aval.shape and not any(starts) and all(s == 1 for s in steps):
        return x
    return apply(SLICE, x, starts=starts, sizes=sizes, steps=steps)


def narrow(x, dim: int, start: int, length: int):
    """`length` elements of dimension `dim` from `start` on (negative: counted from the end)."""
    dim, start, length = normalize_dim("narrow", dim, x.ndim), operator.index(start), operator.index(length)
    start = start + x._aval.shape[dim] if start < 0 else start
    sizes = tuple([length if d == dim else n for d, n in enumerate(x._aval.shape)])
    return slice_dims(x, tuple([start if d == dim else 0 for d in range(x.ndim)]), sizes, (1,) * x.ndim)


def _infer_slice_scatter(g: Aval, *, shape, starts, sizes, steps) -> Aval:
    _check_slice("slice_scatter", shape, starts, sizes, steps)
    return Aval(shape, g.dtype)


def _eager_slice_scatter(xp, g, *, shape, starts, sizes, steps):
    result = xp.zeros(shape, g.dtype)
    result[as_slices(starts, sizes, steps)] = g
    return result


SLICE_SCATTER = define(
    "slice_scatter",
    "movement",
    infer=_infer_slice_scatter,
    eager=_eager_slice_scatter,
    vjp=lambda ctx, g: (slice_dims(g, ctx.attrs["starts"], ctx.attrs["sizes"], ctx.attrs["steps"]),),
    nova=Indexing("slice_scatter"),
    doc="Zeros of `shape` with the slice (starts, sizes, steps) set to the operand: the derivative of slice.",
)


def _infer_slice_update(x: Aval, value: Aval, *, starts, sizes, steps) -> Aval:
    _check_slice("slice_update", x.shape, starts, sizes, steps)
    if value.shape != sizes or value.dtype is not x.dtype:
        raise ValueError(
            message("slice_update", "the value does not fit", expected=str(Aval(sizes, x.dtype)), got=str(value))
        )
    return Aval(x.shape, x.dtype)


def _eager_slice_update(xp, x, value, *, starts, sizes, steps):
    result = xp.array(x, order="C")
    result[as_slices(starts, sizes, steps)] = value
    return result


def _vjp_slice_update(ctx, g):
    inside = slice_dims(g, **ctx.attrs) if ctx.needs[1] else None
    if not ctx.needs[0]:
        return None, inside
    return apply(SLICE_UPDATE, g, create.zeros_of(ctx.avals[1], g.device), **ctx.attrs), inside


SLICE_UPDATE = define(
    "slice_update",
    "movement",
    infer=_infer_slice_update,
    eager=_eager_slice_update,
    vjp=_vjp_slice_update,
    nova=Indexing("slice_update"),
    doc="x with the slice (starts, sizes, steps) replaced by value.",
)


def replace_all(x, value):
    """`value`, of the shape and dtype of x, with a history in which x gets zeros for its gradient."""
    n = x.ndim
    return apply(SLICE_UPDATE, x, value, starts=(0,) * n, sizes=x._aval.shape, steps=(1,) * n)


FLIP = define(
    "flip",
    "movement",
    infer=lambda x, *, dims: x,
    eager=lambda xp, x, *, dims: xp.flip(x, dims),
    vjp=lambda ctx, g: (flip(g, ctx.attrs["dims"]),),
    nova=Indexing("flip"),
    tags=_VIEW,
    doc="The order of elements reversed along dims.",
)


def flip(x, *axes, dims=None):
    """x reversed along dimensions: `flip(0, 1)`, `flip((0, 1))` or `flip(dims=(0, 1))`. Shares memory."""
    axes = axes if dims is None else (dims,)
    return apply(FLIP, x, dims=normalize_dims("flip", axes[0] if len(axes) == 1 else axes, x.ndim))


def _infer_concat(*avals: Aval, dim: int) -> Aval:
    first = avals[0]
    for a in avals:
        if (
            a.dtype is not first.dtype
            or a.shape[:dim] + a.shape[dim + 1 :] != first.shape[:dim] + first.shape[dim + 1 :]
        ):
            got = ", ".join(map(str, avals))
            raise ValueError(message("concat", f"dtypes and shapes may differ only in dim {dim}", got=got))
    extent = sum(a.shape[dim] for a in avals)
    return Aval((*first.shape[:dim], extent, *first.shape[dim + 1 :]), first.dtype)


def _vjp_concat(ctx, g):
    dim, start, parts = ctx.attrs["dim"], 0, []
    for aval, need in zip(ctx.avals, ctx.needs):
        parts.append(narrow(g, dim, start, aval.shape[dim]) if need else None)
        start += aval.shape[dim]
    return tuple(parts)


CONCAT = define(
    "concat",
    "movement",
    infer=_infer_concat,
    eager=lambda xp, *arrays, dim: xp.concatenate(arrays, axis=dim),
    vjp=_vjp_concat,
    nova=Indexing("concat"),
    doc="Operands one behind the other along dim.",
)


def _infer_pad(x: Aval, *, low, high, value) -> Aval:
    if any(n < 0 for n in (*low, *high)) or not len(low) == len(high) == len(x.shape):
        raise ValueError(message("pad", "one amount >= 0 per dimension and side", got=f"{low} and {high} of {x}"))
    return Aval(tuple([n + a + b for n, a, b in zip(x.shape, low, high)]), x.dtype)


def _vjp_pad(ctx, g):
    shape = ctx.avals[0].shape
    return (slice_dims(g, ctx.attrs["low"], shape, (1,) * len(shape)),)


PAD = define(
    "pad",
    "movement",
    infer=_infer_pad,
    eager=lambda xp, x, *, low, high, value: (
        xp.pad(x, list(zip(low, high)), constant_values=value) if low else x.copy()
    ),
    vjp=_vjp_pad,
    nova=Indexing("pad"),
    doc="x between low[d] and high[d] elements of `value` along each dimension d.",
)


def pad_dims(x, amounts: dict[int, tuple[int, int]], value=0):
    """x padded by {dimension: (low, high)} with a constant; negative amounts cut off."""
    low = [amounts.get(d, (0, 0))[0] for d in range(x.ndim)]
    high = [amounts.get(d, (0, 0))[1] for d in range(x.ndim)]
    if min([0, *low, *high]) < 0:
        starts = tuple([max(-a, 0) for a in low])
        sizes = tuple([n - s - max(-b, 0) for n, s, b in zip(x._aval.shape, starts, high)])
        if any(n < 0 for n in sizes):
            raise ValueError(message("pad", "more is cut off than there is", got=f"{amounts} of {x._aval}"))
        x = slice_dims(x, starts, sizes, (1,) * x.ndim)
    low, high = tuple([max(a, 0) for a in low]), tuple([max(a, 0) for a in high])
    return apply(PAD, x, low=low, high=high, value=number_attribute(value)) if any(low) or any(high) else x
