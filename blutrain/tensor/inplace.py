"""Operations in place: x.add_(y), x += y, x.copy_(y), x.zero_(), ...

They compute the result like the operation itself, then x takes over its value and its history; where x is a view, so
does the tensor that it is a view of, and other views of that one at their next use. Under autograd a leaf that requires
a gradient cannot be written: its gradient would be that of a value it no longer has.
"""

from __future__ import annotations

from ..errors import message
from . import dispatch
from .ops import cast, effect, gather, movement
from .ops.pointwise import fused
from .ops.unary import clone
from .tensor import Tensor


def needs_history(x: Tensor, *others) -> bool:
    """Would autograd have to know of a write of x made from x and others?"""
    if not dispatch.tape.enabled():
        return False
    return x.requires_grad or any(isinstance(y, Tensor) and y.requires_grad for y in others)


def take_over(op: str, x: Tensor, value: Tensor) -> Tensor:
    """Write `value` (x's shape and dtype) into x's memory; x continues with its history. Returns x."""
    if not needs_history(x, value):
        return effect.assign(x, value)
    _refuse_leaf(op, x)
    if value.grad_fn is None:  # a leaf, or without history: x gets zeros
        value = movement.replace_all(x, value)
    effect.assign(x, value.detach())
    _refuse_leaf(op, x)  # a pending view knows its base only now
    version, base = x._versions(), x._base
    version.history += 1
    if base is not None:
        flat = gather.index_copy(movement.reshape(base, (-1,)), 0, _places(x, base), value)
        _continue(base, movement.reshape(flat, base._aval.shape))
    _continue(x, value)
    return x


def _refuse_leaf(op: str, x: Tensor) -> None:
    root = x if x._base is None else x._base
    if root.requires_grad and root.grad_fn is None:
        rule = f"a {'leaf' if root is x else 'view of a leaf'} that requires a gradient cannot be written in place"
        help = "write it under blutrain.no_grad(), or use the operation without _"
        raise RuntimeError(message(op, rule, got=str(x._aval), help=help))


def seen_again(view: Tensor) -> None:
    """Give a view, whose base was written with history since, the history that this one has now."""
    base = view._base
    assert base is not None
    view._history = base._versions().history
    with dispatch.tape.enable_grad():
        _continue(view, gather.take(movement.reshape(base, (-1,)), _places(view, base)))


def _continue(x: Tensor, value: Tensor) -> None:
    """x, whose memory has the values of `value`, goes on with its history."""
    node = value.grad_fn if x._pending is not None else dispatch.tape.node_of(value)
    x._requires_grad, x.grad_fn, x._index = value.requires_grad, node, value._index
    x._history = x._versions().history


def _places(view: Tensor, base: Tensor) -> Tensor:
    """int64 of the view's shape: the number, in row-major order, of the element of `base` that each of its elements is."""
    xp, distance = base.device.xp, (view.data_ptr() - base.data_ptr()) // base.itemsize
    with base.device.activate():
        places = _offsets(xp, view) + distance
        if not base.is_contiguous():
            offsets = _offsets(xp, base).reshape(-1)
            order = xp.argsort(offsets)
            places = order[xp.searchsorted(offsets[order], places)]
    return Tensor._wrap(places, base.device)


def _offsets(xp, x: Tensor):
    """How many elements behind the first each one stands in memory; of the shape of x."""
    total = xp.zeros(x.shape, "int64")
    for d, stride in enumerate(x.stride()):
        total += (xp.arange(x.shape[d]) * stride).reshape((-1,) + (1,) * (x.ndim - d - 1))
    return total


def in_place(op: str, function):
    """The method `op` (with its underscore) that writes function(x, ...) into x."""

    kernel = _KERNELS.get(op)

    def method(x: Tensor, *args, **kwargs) -> Tensor:
        if kernel is not None and not x.device.is_cpu and not kwargs and _written(op, kernel, x, *args):
            return x
        value = _of_old_value(function, x, args, kwargs)
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


# What cuda/pointwise.py calls the operation of a method.
_KERNELS = {
    "add_": "add", "sub_": "subtract", "mul_": "multiply",
    "__iadd__": "add", "__isub__": "subtract", "__imul__": "multiply",
}  # fmt: skip


def _written(op: str, kernel: str, x: Tensor, *operands) -> bool:
    """Compute straight into x's memory on a GPU. False, and nothing is done, where autograd would have to know of it, and
    for operands that the kernel is not for.
    """
    y = operands[0] if len(operands) == 1 else None
    if not isinstance(y, Tensor) or y.device is not x.device:
        return False
    if dispatch.is_recorded((x, y)) or needs_history(x, y):
        return False
    if dispatch.recorder is not None:
        dispatch.recorder.write(x)
    effect.check_writable(op, x)
    with x.device.activate():
        if fused()(kernel, x._buffer(), y._buffer(), x._buffer()) is None:
            return False
    x._bump_version()
    return True


def _of_old_value(function, x: Tensor, args, kwargs) -> Tensor:
    """function(x, ...), whose derivative keeps no x that changes."""
    if dispatch.is_recorded((x, *args)):
        return function(clone(x) if needs_history(x, *args) else x, *args, **kwargs)
    value = function(x, *args, **kwargs)
    if value.requires_grad:
        dispatch.tape.keep_copy(value, x)
    return value


def copied(x: Tensor, source: Tensor) -> Tensor:
    """The value x has after x.copy_(source): source in x's shape, dtype and device."""
    source = source.to(x.device) if source.device is not x.device else source
    return movement.expand(cast.cast(source, x.dtype), x._aval.shape)


def copy_(x: Tensor, source: Tensor) -> Tensor:
    """Copy source (broadcast, cast, from any device) into x; returns x."""
    return take_over("copy_", x, copied(x, source))
