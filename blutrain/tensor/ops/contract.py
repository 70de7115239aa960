"""Matrix products."""

from __future__ import annotations

import numpy

from ...errors import message
from ..aval import Aval
from ..dispatch import apply
from ..dtype import BOOL, compute_dtype, from_numpy_dtype, promote
from ..primitive import Saves, Special, define
from ..shapes import broadcast_shapes
from . import cast, movement, pointwise


def _infer_matmul(x: Aval, y: Aval) -> Aval:
    if len(x.shape) < 2 or len(y.shape) < 2:
        raise ValueError(message("matmul", "operands are matrices or batches of them", got=f"{x} @ {y}"))
    if x.shape[-1] != y.shape[-2]:
        raise ValueError(message("matmul", f"inner dimensions differ: {x} @ {y} ({x.shape[-1]} vs {y.shape[-2]})"))
    if x.dtype is not y.dtype:
        raise TypeError(message("matmul", "dtypes differ", got=f"{x} @ {y}", help="cast one with .to(dtype)"))
    if x.dtype.category == BOOL:
        raise TypeError(
            message("matmul", "not defined for bool", got=f"{x} @ {y}", help="cast to an integer or float dtype")
        )
    batch = broadcast_shapes("matmul", [x.shape[:-2], y.shape[:-2]])
    return Aval((*batch, x.shape[-2], y.shape[-1]), x.dtype)


def _eager_matmul(xp, x, y):
    dtype = from_numpy_dtype(x.dtype)
    if xp is not numpy:
        from ..cuda.matmul import matmul

        return matmul(x, y)
    if not dtype.is_narrow:
        return numpy.matmul(x, y)
    wide = compute_dtype(dtype).numpy
    return numpy.matmul(x.astype(wide), y.astype(wide)).astype(dtype.numpy)


def _vjp_matmul(ctx, g):
    x, y = ctx.operands  # each kept only where the other's gradient is wanted
    return (
        pointwise.sum_to_shape(apply(MATMUL, g, mT(y)), ctx.avals[0].shape) if ctx.needs[0] else None,
        pointwise.sum_to_shape(apply(MATMUL, mT(x), g), ctx.avals[1].shape) if ctx.needs[1] else None,
    )


MATMUL = define(
    "matmul",
    "contract",
    infer=_infer_matmul,
    eager=_eager_matmul,
    vjp=_vjp_matmul,
    saves=Saves(operands=(0, 1), needed_for=((1,), (0,))),
    nova=Special("matmul"),
    doc="[..., m, k] @ [..., k, n] -> [..., m, n], leading dimensions broadcast; narrow floats accumulate in float32.",
)


def mT(x):
    """The last two dimensions exchanged."""
    n = x.ndim
    return movement.transpose_to(x, (*range(n - 2), n - 1, n - 2))


def matmul(x, other):
    """x @ other as torch.matmul: vectors are rows or columns, leading dimensions broadcast, dtypes promoted."""
    if not x.ndim or not other.ndim:
        raise ValueError(message("matmul", "operands have at least one dimension", got=f"{x._aval} @ {other._aval}"))
    dtype = promote([x._aval, other._aval])
    a, b = cast.cast(x, dtype), cast.cast(other, dtype)
    a = movement.reshape(a, (1, x.shape[0])) if x.ndim == 1 else a
    b = movement.reshape(b, (other.shape[0], 1)) if other.ndim == 1 else b
    result = apply(MATMUL, a, b)
    if x.ndim > 1 and other.ndim > 1:
        return result
    shape = (
        result.shape[:-2]
        + (() if x.ndim == 1 else result.shape[-2:-1])
        + (() if other.ndim == 1 else result.shape[-1:])
    )
    return movement.reshape(result, shape)


def dot(x, other):
    """Inner product of two vectors."""
    if x.ndim != 1 or other.ndim != 1:
        raise ValueError(message("dot", "operands are vectors", got=f"{x._aval}, {other._aval}"))
    return matmul(x, other)


def mm(x, other):
    """Product of two matrices."""
    if x.ndim != 2 or other.ndim != 2:
        raise ValueError(message("mm", "operands are matrices", got=f"{x._aval}, {other._aval}", help="use matmul"))
    return matmul(x, other)


def bmm(x, other):
    """Products of two batches of matrices, of shapes (b, n, k) and (b, k, m)."""
    if x.ndim != 3 or other.ndim != 3 or x.shape[0] != other.shape[0]:
        got = f"{x._aval}, {other._aval}"
        raise ValueError(message("bmm", "operands are equally many matrices", got=got, help="use matmul"))
    return matmul(x, other)


def outer(x, other):
    """Outer product of two vectors."""
    if x.ndim != 1 or other.ndim != 1:
        raise ValueError(message("outer", "operands are vectors", got=f"{x._aval}, {other._aval}"))
    return movement.reshape(x, (-1, 1)) * other
