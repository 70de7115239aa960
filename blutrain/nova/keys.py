"""The key of an event: what decides whether a recorded step serves again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..errors import message
from ..nn.module import Module
from ..tensor.device import Device
from ..tensor.dtype import DType
from ..tensor.tensor import Tensor
from .trace import freeze

if TYPE_CHECKING:
    from .log import Log


def operand_key(log: Log, tree, modules: bool = False):
    """A hashable description of an event's arguments, with tensors as references into the log.

    modules: whether modules may be among them, of which the rest of the event's key tells the state.

    Errors: TypeError for a leaf whose value could not be compared at the next call.
    """

    def leaf(value, kind):
        if isinstance(value, Tensor):
            return log.ref(value)
        if modules and isinstance(value, Module):
            return kind, id(value)
        if not _is_value(value, kind):
            raise TypeError(
                message(
                    "compile",
                    "an argument of a compiled call is neither a tensor nor a value that can be compared",
                    got=kind.__name__,
                    help="pass tensors, plain Python values, and lists, dicts or dataclasses of them",
                )
            )
        return kind, value

    return freeze(tree, leaf)


def form_of(tree):
    """What nested arguments are made of, to see whether a call changed them: all but plain values by identity."""
    return freeze(tree, lambda value, kind: (kind, id(value)))


def plain_operands(arguments: tuple) -> tuple[dict[int, Tensor], tuple] | None:
    """The arguments of a log's first event by id, and a short form of what `operand_key` would say of them, where all are
    plain tensors: different ones, with values, no views, without history or hooks. None for any others.
    """
    fresh, key = {}, []
    for x in arguments:
        if not isinstance(x, Tensor) or x._pending is not None or x._base is not None:
            return None
        if x.grad_fn is not None or x._hooks is not None or id(x) in fresh:
            return None
        fresh[id(x)] = x
        key += (x._aval, x._requires_grad)
    return fresh, tuple(key)


def tensors_key(log: Log, tensors: list) -> tuple:
    """`operand_key` of a list of tensors and None."""
    return tuple([None if x is None else log.ref(x) for x in tensors])


def _is_value(value, kind: type) -> bool:
    """Whether two equal objects of this type mean the same, and equality is more than identity of something mutable."""
    if isinstance(value, (DType, Device)):
        return True
    if isinstance(value, Module):
        return False
    try:
        hash(value)
    except TypeError:
        return False
    return callable(value) or kind.__hash__ is not object.__hash__
