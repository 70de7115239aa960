"""Primitives without tensor operands: constants and counters. Their device is the attribute `device`."""

from __future__ import annotations

import math

from ..aval import Aval
from ..device import Device
from ..dispatch import apply
from ..dtype import DType
from ..primitive import NotDifferentiable, Special, define, number_attribute


def _eager_full(xp, *, shape, value, dtype, device=None):
    return (
        xp.zeros(shape, dtype.numpy)
        if value == 0 and math.copysign(1, value) > 0
        else xp.full(shape, value, dtype.numpy)
    )


FULL = define(
    "full",
    "create",
    infer=lambda *, shape, value, dtype, device=None: Aval(shape, dtype),
    eager=_eager_full,
    vjp=NotDifferentiable("there are no operands"),
    nova=Special("full"),
    doc="A tensor of `shape` and `dtype` with every element `value`.",
)


def full_of(aval: Aval, value, device: Device):
    """Every element `value`."""
    return apply(FULL, shape=aval.shape, value=number_attribute(value), dtype=aval.dtype, device=device)


def zeros_of(aval: Aval, device: Device):
    """Zeros of the shape and dtype of `aval`."""
    return full_of(aval, 0, device)


IOTA = define(
    "iota",
    "create",
    infer=lambda *, size, start, step, dtype, device=None: Aval((size,), dtype),
    eager=lambda xp, *, size, start, step, dtype, device=None: (xp.arange(size) * step + start).astype(dtype.numpy),
    vjp=NotDifferentiable("there are no operands"),
    nova=Special("iota"),
    doc="The vector start + i * step, 0 <= i < size, computed in int64 or float64 and rounded to `dtype`.",
)


def iota(size: int, device: Device, dtype: DType, start: float = 0, step: float = 1):
    """The vector start + i * step."""
    return apply(IOTA, size=size, start=start, step=step, dtype=dtype, device=device)
