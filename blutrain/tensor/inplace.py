"""Operations in place: x.add_(y), x += y, x.copy_(y), x.zero_(), ...

They compute the result like the operation itself, then x takes over its value and its history. Under autograd three
things are refused
because their gradients would be wrong or dear: writing a leaf that requires a gradient, writing through a view, and
using a view of something that was written with history since (see tape.py).
"""

from __future__ import annotations

from ..errors import message
from . import dispatch
from .ops import cast, effect, movement
from .tensor import Tensor


def needs_history(x: Tensor, *others) -> bool:
    """Would autograd have to know of a write of x made from x and others?"""
    if not dispatch.tape.enabled():
        return False
    return x.requires_grad or any(isinstance(y, Tensor) and y.requires_grad for y in others)


def take_over(op: str, x: Tensor, value: Tensor) -> Tensor:
    """Write `value` (x's shape and dtype) into x's memory; x continues with its history. Returns x."""
    if not (value.requires_grad and dispatch.tape.enabled()):
        return effect.assign(x, value)
    if x.grad_fn is None and x.requires_grad:
        rule = "a leaf that requires a gradient cannot be written in place"
        raise RuntimeError(
            message(
                op, rule, got=str(x._aval), help="write it under blutrain.no_grad(), or use the operation without _"
            )
        )
    if x._base is not None:
        rule = "a view cannot be written in place where autograd records"
        raise RuntimeError(
            message(op, rule, got=str(x._aval), help="write the tensor it is a view of, or use the operation without _")
        )
    effect.assign(x, value.detach())
    version = x._versions()
    version.history += 1
    x._history = version.history
    x.requires_grad, x.grad_fn, x._index = True, value.grad_fn, value._index
    return x


def in_place(op: str, function):
    """The method `op` (with its underscore) that writes function(x, ...) into x."""

    def method(x: Tensor, *args, **kwargs) -> Tensor:
        value = function(x, *args, **kwargs)
        if value._aval.shape != x._aval.shape:
            raise ValueError(
                message(op, "the result does not fit in place", expected=str(x._aval), got=str(value._aval))
            )
        if value._aval.dtype is not x._aval.dtype:
            if value._aval.dtype.category > x._aval.dtype.category:
                got = f"{value._aval} into {x._aval}"
                raise TypeError(message(op, "the result's dtype cannot be held in place", got=got, help="cast first"))
            value = cast.cast(value, x._aval.dtype)
        return take_over(op, x, value)

    method.__name__ = method.__qualname__ = op
    method.__doc__ = f"{function.__name__} in place; returns x."
    return method


def copied(x: Tensor, source: Tensor) -> Tensor:
    """The value x has after x.copy_(source): source in x's shape, dtype and device."""
    source = source.to(x.device) if source.device is not x.device else source
    return movement.expand(cast.cast(source, x.dtype), x._aval.shape)


def copy_(x: Tensor, source: Tensor) -> Tensor:
    """Copy source (broadcast, cast, from any device) into x; returns x."""
    return take_over("copy_", x, copied(x, source))
