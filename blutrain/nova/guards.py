"""Guards: what a call reads besides its arguments, and stand-ins for the values that can be compared at the next call.

A place is an attribute of a module or object, or a variable of a function (variables.py). Its guard is a hashable form of
what stands there: equal guards mean that the call would do the same. Tensors in it are operands of the call, as arguments
are, or are read by reference and guarded by their identity.
"""

from __future__ import annotations

import types
import weakref
from collections.abc import Callable, Iterator
from dataclasses import is_dataclass
from typing import Any

import numpy

from ..nn.module import Module
from ..tensor.tensor import Tensor
from .trace import freeze

MISSING = object()
_NEVER = object()  # no value of anything
OPERAND = "operand"  # stands in a guard for a tensor that the call takes as it takes its arguments
MAX_EFFECTS = 3  # recordings that change what stands at a place; beyond, the body runs at every call
MAX_PARTS, MAX_BYTES = 1000, 1 << 20  # of a value and of an array: of what is beyond, identity and size are the guard
_DEPTH, _LEVELS = 3, 12  # how far guards look into objects, and into containers


class Place:
    """Where a call reads something: attribute `name` of an object, which is not kept alive for it.

    is_shallow: only which object stands there matters. effects: how many recordings one after another changed what stands
    there.
    """

    __slots__ = ("_guard", "_value", "effects", "is_shallow", "name", "owner")

    def __init__(self, owner, name: str):
        self.owner, self.name = weak(owner), name
        self.is_shallow, self.effects = False, 0
        self._value: Callable[[], Any] = lambda: _NEVER
        self._guard: Any = None

    def read(self):
        """What stands there now, as code would read it; MISSING also where reading fails (code that reads it says why)."""
        try:
            return getattr(self.owner(), self.name)
        except Exception:
            return MISSING

    def guard(self, take: Callable[[Tensor], bool]) -> Any:
        """The guard of what stands there. take(tensor): whether it becomes an operand."""
        if self.effects >= MAX_EFFECTS:
            return None
        value = self.read()
        if value is self._value() and value is not None:  # (what is gone gives None)
            return self._guard
        result = Identity(value) if self.is_shallow else guard(value, take)
        if self.is_shallow or not can_change(value):
            self._value, self._guard = weak(value), result
        return result

    def label(self, names: dict[int, str]) -> str:
        """The place in words; names: paths of modules by id."""
        return f"the attribute {'.'.join(filter(None, [names.get(id(self.owner()), ''), self.name]))!r}"


def weak(value) -> Callable[[], Any]:
    """A reference that does not keep the value alive, where that is possible."""
    try:
        return weakref.ref(value)
    except TypeError:
        return lambda: value


def is_plain(value) -> bool:
    return value is None or isinstance(value, (bool, int, float, str, bytes, list, tuple, dict, set, frozenset))


def is_ours(value) -> bool:
    """Whether a value is an object of this package (an optimizer, say), which holds more than a call reads."""
    return type(value).__module__.startswith("blutrain.")


def can_change(value) -> bool:
    """Whether what a value means for a call can change without another one being put in its place."""
    if value is None or isinstance(value, (bool, int, float, str, bytes, type, types.ModuleType)):
        return False
    if isinstance(value, Tensor):
        return True
    if isinstance(value, (tuple, frozenset)):
        return any(can_change(v) for v in value)
    if callable(value):
        return False
    if is_dataclass(value) and value.__dataclass_params__.frozen:  # pyright: ignore[reportAttributeAccessIssue] (no stub has it)
        return any(can_change(v) for v in vars(value).values()) if hasattr(value, "__dict__") else False
    return isinstance(value, (list, dict, set, numpy.ndarray)) or _has_attributes(value)


def guard(value, take: Callable[[Tensor], bool] = lambda tensor: False) -> Any:
    """A hashable stand-in for a value. take(tensor): whether a tensor in it, in containers but not in objects, is an operand."""
    return _guard(value, take, 0, 0, [MAX_PARTS])


def _guard(value, take: Callable[[Tensor], bool], depth: int, level: int, left: list[int]) -> Any:
    """depth: of objects, level: of containers too; left: how many parts may still be looked at."""
    kind = type(value)
    if value is None or isinstance(value, (bool, int, float, str, bytes)):
        return kind, freeze(value)
    if isinstance(value, Tensor):
        if depth == 0 and take(value):
            return OPERAND
        return Identity(value), value.requires_grad, value._aval, value.device
    if isinstance(value, (numpy.ndarray, numpy.generic)):
        content = value.tobytes() if value.nbytes <= MAX_BYTES else Identity(value)
        return kind, value.shape, value.dtype.str, content
    if isinstance(value, types.MethodType):  # another object each time it is read
        return Identity(value.__func__), Identity(value.__self__)
    if isinstance(value, (list, tuple, set, frozenset, dict)):
        left[0] -= len(value)
        if left[0] < 0 or level == _LEVELS:
            return Identity(value), len(value)
        if isinstance(value, dict):
            keys = [_guard(k, take, 1, level + 1, left) for k in value]
            return kind, tuple([(k, _guard(v, take, depth, level + 1, left)) for k, v in zip(keys, value.values())])
        parts = [_guard(v, take, depth if isinstance(value, (list, tuple)) else 1, level + 1, left) for v in value]
        return kind, tuple(parts) if isinstance(value, (list, tuple)) else frozenset(parts)
    is_one = isinstance(value, (Module, type, types.ModuleType)) or callable(value) or is_ours(value)
    if is_one or depth == _DEPTH or level == _LEVELS or not _has_attributes(value):
        return Identity(value)
    attributes = _attributes_of(value)
    left[0] -= len(attributes)
    if left[0] < 0:
        return Identity(value)
    return Identity(value), tuple([(k, _guard(v, take, depth + 1, level + 1, left)) for k, v in attributes.items()])


def _has_attributes(value) -> bool:
    return hasattr(value, "__dict__") or hasattr(type(value), "__slots__")


def _attributes_of(value) -> dict[str, Any]:
    """The attributes that an object has itself, those in slots too."""
    slots = [cls.__dict__.get("__slots__", ()) for cls in type(value).__mro__]
    names = [name for names in slots for name in ([names] if isinstance(names, str) else names)]
    return {**getattr(value, "__dict__", {}), **{k: getattr(value, k) for k in names if hasattr(value, k)}}


def identities(guarded) -> Iterator[Any]:
    """The objects that a guard knows by identity."""
    if isinstance(guarded, Identity):
        yield guarded.value()
    elif isinstance(guarded, (tuple, frozenset)):
        for part in guarded:
            yield from identities(part)


class Identity:
    """Equal only to itself while its object lives, to nothing after that (another object may have the id then)."""

    __slots__ = ("_hash", "value")

    def __init__(self, value):
        self.value, self._hash = weak(value), id(value)

    def __eq__(self, other) -> bool:
        if self is other:
            return True
        mine = self.value()
        return isinstance(other, Identity) and mine is not None and mine is other.value()

    def __hash__(self) -> int:
        return self._hash
