"""Reading and writing by index tensors: take and index_add along one dimension, gather and scatter_add element by
element, index_copy.

Indices are int32 or int64 and may count from the end (-1 is the last). One out of range raises IndexError with its
value. Where an index is repeated, the adding operations add in the order of the index (float16 and bfloat16 in float32,
rounded once: the same bits each run), and index_copy keeps the last value.
"""

from __future__ import annotations

import math

import numpy

from ...errors import message
from ..aval import Aval
from ..dispatch import apply
from ..dtype import INTEGER, compute_dtype, from_numpy_dtype, int64
from ..primitive import NotDifferentiable, Saves, Special, define
from ..shapes import normalize_dim
from . import compare, create, movement

_INDEX = Saves(operands=(1,))


def _check_index_type(name: str, index: Aval) -> None:
    if index.dtype.category != INTEGER or index.dtype.itemsize < 4:
        raise TypeError(message(name, "an index is int64 or int32", got=str(index), help="cast it with .long()"))


def checked(name: str, xp, index, size: int):
    """The index array with negative entries counted from the end.

    Errors: IndexError with the first entry out of range.
    """
    if not index.size:
        return index
    low, high = int(index.min()), int(index.max())
    if low < -size or high >= size:
        bad = high if high >= size else low
        raise IndexError(
            message(name, "the index is out of range", expected=f"{-size} <= index < {size}", got=str(bad))
        )
    return xp.where(index < 0, index + size, index) if low < 0 else index


def _infer_wrap(index: Aval, *, size: int) -> Aval:
    _check_index_type("index", index)
    return index


WRAP_INDEX = define(
    "wrap_index",
    "gather",
    infer=_infer_wrap,
    eager=lambda xp, index, *, size: xp.array(checked("index", xp, index, size)),
    vjp=NotDifferentiable("the operand is an index"),
    nova=Special("wrap_index"),
    doc="index with `size` added where negative; a value check fails where it is outside of [-size, size).",
)


def wrap_index(index, size: int):
    """Non-negative indices into a dimension of extent `size`. Errors: IndexError out of range."""
    return apply(WRAP_INDEX, index, size=size)


def _taken_shape(x: Aval, index: Aval, dim: int) -> tuple[int, ...]:
    return (*x.shape[:dim], *index.shape, *x.shape[dim + 1 :])


def _infer_take(x: Aval, index: Aval, *, dim: int) -> Aval:
    _check_index_type("take", index)
    return Aval(_taken_shape(x, index, dim), x.dtype)


TAKE = define(
    "take",
    "gather",
    infer=_infer_take,
    eager=lambda xp, x, index, *, dim: xp.take(x, checked("take", xp, index, x.shape[dim]), axis=dim),
    vjp=lambda ctx, g: (
        apply(INDEX_ADD, create.zeros_of(ctx.avals[0], g.device), ctx.operands[1], g, dim=ctx.attrs["dim"]),
        None,
    ),
    saves=_INDEX,
    nova=Special("take"),
    doc="x[..., index, ...]: the dimension dim replaced by the dimensions of index.",
)


def take(x, index, dim: int = 0):
    """Dimension `dim` of x replaced by the shape of `index` (any number of dimensions): rows of x for dim 0.

    As numpy.take with an axis; PyTorch's take reads the flattened tensor.
    """
    return apply(TAKE, x, index, dim=normalize_dim("take", dim, x.ndim))


def index_select(x, dim: int, index):
    """The entries `index` (a vector) of dimension `dim`, as torch.index_select."""
    if index.ndim != 1:
        raise ValueError(message("index_select", "the index is a vector", got=str(index._aval)))
    return take(x, index, dim)


def _infer_index_write(name: str):
    def infer(x: Aval, index: Aval, src: Aval, *, dim: int) -> Aval:
        _check_index_type(name, index)
        expected = Aval(_taken_shape(x, index, dim), x.dtype)
        if (src.shape, src.dtype) != (expected.shape, expected.dtype):
            raise ValueError(message(name, "the source does not fit", expected=str(expected), got=str(src)))
        return Aval(x.shape, x.dtype)

    return infer


def _rows_first(src, dim: int, index_ndim: int):
    """src [before, index, behind] as [rows of the index, before, behind]."""
    order = (*range(dim, dim + index_ndim), *range(dim), *range(dim + index_ndim, src.ndim))
    moved = src.transpose(order)
    return moved.reshape(math.prod(moved.shape[:index_ndim]), *moved.shape[index_ndim:])


def _eager_index_add(xp, x, index, src, *, dim):
    index = checked("index_add", xp, index, x.shape[dim]).reshape(-1)
    dtype = from_numpy_dtype(x.dtype)
    result = xp.array(xp.moveaxis(x, dim, 0), dtype=compute_dtype(dtype).numpy, order="C")
    rows = _rows_first(src, dim, src.ndim - x.ndim + 1).astype(result.dtype, copy=False)
    if index.size:
        add_rows(xp, result, index, rows)
    return xp.ascontiguousarray(xp.moveaxis(result.astype(dtype.numpy, copy=False), 0, dim))


def add_rows(xp, result, index, rows) -> None:
    """result[index[i]] += rows[i] for all i, in place, in an order that does not change from run to run."""
    if xp is numpy and result.ndim == 1:
        numpy.add.at(result, index, rows)
        return
    order = xp.argsort(index, kind="stable")
    ids, rows = index[order], rows[order]
    starts = xp.flatnonzero(xp.concatenate((xp.ones(1, bool), ids[1:] != ids[:-1])))
    if xp is numpy:
        result[ids[starts]] += numpy.add.reduceat(rows, starts, axis=0, dtype=result.dtype)
    else:
        result[ids[starts]] += _add_in_pairs(xp, rows, starts)


def _add_in_pairs(xp, rows, starts):
    """The sum of each run of rows that begins at `starts`, by adding neighbours until one is left (no atomics)."""
    numbers = xp.arange(len(rows))
    rank = numbers - starts[xp.searchsorted(starts, numbers, side="right") - 1]
    while len(rows) > len(starts):
        odd = xp.flatnonzero(rank & 1)
        rows[odd - 1] += rows[odd]
        even = xp.flatnonzero((rank & 1) == 0)
        rows, rank = rows[even], rank[even] >> 1
    return rows


INDEX_ADD = define(
    "index_add",
    "scatter",
    infer=_infer_index_write("index_add"),
    eager=_eager_index_add,
    vjp=lambda ctx, g: (
        g if ctx.needs[0] else None,
        None,
        take(g, ctx.operands[1], ctx.attrs["dim"]) if ctx.needs[2] else None,
    ),
    saves=_INDEX,
    nova=Special("index_add"),
    doc="x with src added at the entries index of dimension dim; repeated entries add up.",
)


def index_add(x, dim: int, index, src, *, alpha=1):
    """x plus alpha times `src` at entries `index` of `dim`: the adjoint of take."""
    src = src if alpha == 1 else src * alpha
    return apply(INDEX_ADD, x, index, src, dim=normalize_dim("index_add", dim, x.ndim))


def _eager_index_copy(xp, x, index, src, *, dim):
    index = checked("index_copy", xp, index, x.shape[dim]).reshape(-1)
    result = xp.array(xp.moveaxis(x, dim, 0), order="C")
    rows = _rows_first(src, dim, src.ndim - x.ndim + 1)
    if xp is not numpy and index.size:  # NumPy keeps the last of repeated entries by itself
        order = xp.argsort(index, kind="stable")
        ids = index[order]
        last = order[xp.concatenate((ids[1:] != ids[:-1], xp.ones(1, bool)))]
        index, rows = index[last], rows[last]
    result[index] = rows
    return xp.ascontiguousarray(xp.moveaxis(result, 0, dim))


def _vjp_index_copy(ctx, g):
    index, dim = ctx.operands[1], ctx.attrs["dim"]
    base = source = None
    if ctx.needs[0]:
        base = apply(INDEX_COPY, g, index, create.zeros_of(ctx.avals[2], g.device), dim=dim)
    if ctx.needs[2]:
        source = take(g, index, dim) * movement.reshape(_is_last(index, g.shape[dim]), _beside(index, g, dim)).to(
            g.dtype
        )
    return base, None, source


def _is_last(index, size: int):
    """Is this the last occurrence of its index? Only that one's value was kept."""
    flat = movement.reshape(wrap_index(index, size), (-1,))
    positions = create.iota(flat.numel(), index.device, int64)
    written = apply(INDEX_COPY, create.iota(size, index.device, int64), flat, positions, dim=0)
    return compare.eq(take(written, flat), positions)


def _beside(index, g, dim: int) -> tuple[int, ...]:
    return (1,) * dim + index.shape + (1,) * (g.ndim - dim - 1)


INDEX_COPY = define(
    "index_copy",
    "scatter",
    infer=_infer_index_write("index_copy"),
    eager=_eager_index_copy,
    vjp=_vjp_index_copy,
    saves=_INDEX,
    nova=Special("index_copy"),
    doc="x with the entries index of dimension dim replaced by src; of repeated entries the last is kept.",
)


def index_copy(x, dim: int, index, src):
    """x with entries `index` of `dim` replaced by `src`."""
    return apply(INDEX_COPY, x, index, src, dim=normalize_dim("index_copy", dim, x.ndim))


def _check_pointwise(name: str, x: Aval, index: Aval, dim: int) -> None:
    _check_index_type(name, index)
    small = len(index.shape) == len(x.shape) and all(
        i <= n or d == dim for d, (i, n) in enumerate(zip(index.shape, x.shape))
    )
    if not small:
        rule = f"the index has the dimensions of x, nowhere larger except in dim {dim}"
        raise ValueError(message(name, rule, got=f"{index} into {x}"))


def _infer_gather(x: Aval, index: Aval, *, dim: int) -> Aval:
    _check_pointwise("gather", x, index, dim)
    return Aval(index.shape, x.dtype)


def _within(x, index, dim: int):
    """The part of x that an index of that shape can reach."""
    return x[tuple([slice(None) if d == dim else slice(0, n) for d, n in enumerate(index.shape)])]


def _eager_gather(xp, x, index, *, dim):
    index = checked("gather", xp, index, x.shape[dim])
    return xp.take_along_axis(_within(x, index, dim), index, axis=dim)


GATHER = define(
    "gather",
    "gather",
    infer=_infer_gather,
    eager=_eager_gather,
    vjp=lambda ctx, g: (
        apply(SCATTER_ADD, create.zeros_of(ctx.avals[0], g.device), ctx.operands[1], g, dim=ctx.attrs["dim"]),
        None,
    ),
    saves=_INDEX,
    nova=Special("gather"),
    doc="out[i, j, k] = x[i, index[i, j, k], k] for dim 1.",
)


def gather(x, dim: int, index):
    """out[i, j, k] = x[i, index[i, j, k], k] for dim 1, as torch.gather.

    >>> bt.tensor([[1, 2], [3, 4]]).gather(1, bt.tensor([[0, 0], [1, 0]]))
    tensor([[1, 1],
            [4, 3]])
    """
    return apply(GATHER, x, index, dim=normalize_dim("gather", dim, x.ndim))


def _infer_scatter_add(x: Aval, index: Aval, src: Aval, *, dim: int) -> Aval:
    _check_pointwise("scatter_add", x, index, dim)
    if src.shape != index.shape or src.dtype is not x.dtype:
        raise ValueError(
            message("scatter_add", "the source does not fit", expected=str(Aval(index.shape, x.dtype)), got=str(src))
        )
    return Aval(x.shape, x.dtype)


def _eager_scatter_add(xp, x, index, src, *, dim):
    index = checked("scatter_add", xp, index, x.shape[dim])
    dtype = from_numpy_dtype(x.dtype)
    result = xp.array(x, dtype=compute_dtype(dtype).numpy, order="C")
    linear = xp.zeros(index.shape, xp.int64)
    for d, n in enumerate(index.shape):
        stride = math.prod(x.shape[d + 1 :])
        along = index if d == dim else xp.arange(n).reshape((-1,) + (1,) * (index.ndim - d - 1))
        linear = linear + along * stride
    add_rows(xp, result.reshape(-1), linear.reshape(-1), src.astype(result.dtype, copy=False).reshape(-1))
    return result.astype(dtype.numpy, copy=False)


SCATTER_ADD = define(
    "scatter_add",
    "scatter",
    infer=_infer_scatter_add,
    eager=_eager_scatter_add,
    vjp=lambda ctx, g: (
        g if ctx.needs[0] else None,
        None,
        gather(g, ctx.attrs["dim"], ctx.operands[1]) if ctx.needs[2] else None,
    ),
    saves=_INDEX,
    nova=Special("scatter_add"),
    doc="x with out[i, index[i, j, k], k] += src[i, j, k] for dim 1: the adjoint of gather.",
)


def scatter_add(x, dim: int, index, src):
    """x with out[i, index[i, j, k], k] += src[i, j, k] for dim 1, as torch.scatter_add with a source of the index's
    shape.
    """
    return apply(SCATTER_ADD, x, index, src, dim=normalize_dim("scatter_add", dim, x.ndim))
