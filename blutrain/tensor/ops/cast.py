"""Change of dtype."""

from __future__ import annotations

from ..aval import Aval
from ..dispatch import apply
from ..dtype import DType, as_dtype
from ..primitive import Special, define


def _eager(xp, x, *, dtype: DType):
    if not dtype.is_floating and dtype.itemsize < 8 and dtype.category and x.dtype.kind not in "biu":
        x = x.astype(
            xp.int64
        )  # float to a narrow integer is not defined where it does not fit: wrap like the integer cast does
    return x.astype(dtype.numpy)


def _vjp(ctx, g):
    return (cast(g, ctx.avals[0].dtype) if ctx.avals[0].dtype.is_floating else None,)


CAST = define(
    "cast",
    "elementwise",
    infer=lambda x, *, dtype: Aval(x.shape, dtype),
    eager=_eager,
    vjp=_vjp,
    nova=Special("cast"),
    doc="x in another dtype: floats round to nearest even, floats to integers truncate, to bool is `!= 0`.",
)


def cast(x, dtype):
    """`x` in `dtype`; x itself if it has it. The gradient is cast back."""
    dtype = as_dtype(dtype, "cast")
    return x if x._aval.dtype is dtype else apply(CAST, x, dtype=dtype)
