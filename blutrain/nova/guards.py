"""Guards: what a call reads besides its arguments, and stand-ins for the values that can be compared at the next call.

A place is an attribute of a module or object, or a variable of a function (variables.py). Its guard is a hashable form of
what stands there: equal guards mean that the call would do the same. Tensors in it are operands of the call, as arguments
are, or are read by reference and guarded by their identity.
"""

from __future__ import annotations

import collections
import contextvars
import functools
import logging
import random
import types
import weakref
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from typing import Any

import numpy

from ..nn.module import Module
from ..tensor.tensor import Tensor
from .lifted import Lifting
from .trace import freeze

MISSING = object()
_NEVER = object()  # no value of anything
OPERAND = "operand"  # stands in a guard for a tensor that the call takes as it takes its arguments
MAX_EFFECTS = 3  # recordings that change what stands at a place; beyond, the body runs at every call
MAX_SETS = 5  # the same of an attribute that replays set, too (a switch that is thrown has two states, each of which is verified)
MAX_PARTS, MAX_BYTES = 1000, 1 << 20  # of a value and of an array: of what is beyond, identity and size are the guard
MAX_LEVELS = 12  # how far guards look into objects and containers
_FUNCTIONS = (types.FunctionType, types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType)


class Place:
    """Where a call reads something: attribute `name` of an object, which is not kept alive for it.

    is_shallow: only which object stands there matters. effects: how many recordings one after another changed what stands
    there. is_set: replays change it, too. floats: how often its floats did; may_lift: whether they are no part of the key
    when they do.
    """

    __slots__ = ("_guard", "_value", "effects", "floats", "is_set", "is_shallow", "may_lift", "name", "owner")

    def __init__(self, owner, name: str):
        self.owner, self.name = weak(owner), name
        self.is_shallow, self.is_set, self.effects = False, False, 0
        self.floats, self.may_lift = Lifting(), True
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
        if self.is_lasting:
            return None
        value = self.read()
        if value is self._value() and value is not None:  # (what is gone gives None)
            return self._guard
        result = Identity(value) if self.is_shallow else guard(value, take)
        if self.may_lift:
            result = self.floats.lifted(result)
        if self.is_shallow or not can_change(value):
            self._value, self._guard = weak(value), result
        return result

    @property
    def is_lasting(self) -> bool:
        """Whether calls keep changing what stands there: it is no guard any more."""
        return self.effects >= (MAX_SETS if self.is_set else MAX_EFFECTS)

    def keep_floats(self) -> None:
        """Make its floats a part of the key for ever."""
        self.may_lift, self._value = False, lambda: _NEVER

    def label(self, names: dict[int, str]) -> str:
        """The place in words; names: paths of modules by id."""
        return f"the attribute {'.'.join(filter(None, [names.get(id(self.owner()), ''), self.name]))!r}"


class Own(Place):
    """An attribute in an object itself, in front of what its class has by that name."""

    __slots__ = ()

    def read(self):
        return vars(self.owner()).get(self.name, MISSING)


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
    if value is None or isinstance(value, (bool, int, float, str, bytes, type, types.ModuleType, Module)):
        return False
    if isinstance(value, Tensor):
        return True
    if isinstance(value, (tuple, frozenset)):
        return any(can_change(v) for v in value)
    if isinstance(value, types.MethodType):  # what it reads of its object are places of their own
        return False
    if isinstance(value, _FUNCTIONS):
        return (owner := _owner(value)) is not None and can_change(owner)
    if is_dataclass(value) and value.__dataclass_params__.frozen:  # pyright: ignore[reportAttributeAccessIssue] (no stub has it)
        return any(can_change(getattr(value, f.name, None)) for f in fields(value))
    if isinstance(value, (list, dict, set, collections.deque, numpy.ndarray)):
        return True
    return _has_attributes(value) or _hidden(value) is not None


def guard(value, take: Callable[[Tensor], bool] = lambda tensor: False, called: list[Any] | None = None) -> Any:
    """A hashable stand-in for a value. take(tensor): whether a tensor in it, in containers but not in objects, is an operand.

    called: gets what code may call that has the value: modules, functions, methods, objects with __call__.
    """
    return _guard(value, _Look(take, called), 0, 0)


class _Look:
    """How guards look at one value. left: how many parts may still be looked at."""

    __slots__ = ("called", "left", "take")

    def __init__(self, take: Callable[[Tensor], bool], called: list[Any] | None):
        self.take, self.called, self.left = take, called, MAX_PARTS

    def may_go_on(self, parts: int) -> bool:
        self.left -= parts
        return self.left >= 0


def _guard(value, look: _Look, depth: int, level: int) -> Any:
    """depth: how many objects and sets it is inside of, level: and how many containers."""
    kind = type(value)
    if value is None or isinstance(value, (bool, int, float, str, bytes)):
        return kind, freeze(value)
    if isinstance(value, Tensor):
        if depth == 0 and look.take(value):
            return OPERAND
        return Identity(value), value.requires_grad, value._aval, value.device
    if isinstance(value, (numpy.ndarray, numpy.generic)):
        content = value.tobytes() if value.nbytes <= MAX_BYTES else Identity(value)
        return kind, value.shape, value.dtype.str, content
    if look.called is not None and callable(value):
        look.called.append(value)
    if isinstance(value, types.MethodType):  # another object each time it is read
        return Identity(value.__func__), Identity(value.__self__)
    if isinstance(value, _FUNCTIONS):
        owner = _owner(value)
        return Identity(value) if owner is None else (value.__name__, _guard(owner, look, depth + 1, level + 1))
    if isinstance(value, (list, tuple, set, frozenset, dict, collections.deque)):
        if not look.may_go_on(len(value)) or level == MAX_LEVELS:
            return Identity(value), len(value)
        own = getattr(value, "__dict__", None)  # of a subclass
        kind = kind if not own else (kind, _guard(own, look, depth + 1, level + 1))
        if isinstance(value, dict):
            keys = [_guard(k, look, depth + 1, level + 1) for k in value]
            return kind, tuple([(k, _guard(v, look, depth, level + 1)) for k, v in zip(keys, value.values())])
        is_set = isinstance(value, (set, frozenset))
        parts = [_guard(v, look, depth + is_set, level + 1) for v in value]
        return kind, frozenset(parts) if is_set else tuple(parts)
    if isinstance(value, (Module, type, types.ModuleType)) or is_ours(value) or level == MAX_LEVELS:
        return Identity(value)
    if (hidden := _hidden(value)) is not None:
        if hidden[0] is _UNKNOWN:
            return _Unknown() if depth == 0 else Identity(value)
        return kind, _guard(hidden[0], look, depth + 1, level + 1)
    attributes = _attributes_of(value) if _has_attributes(value) else {}
    if not look.may_go_on(len(attributes)):
        return Identity(value)
    return Identity(value), tuple([(k, _guard(v, look, depth + 1, level + 1)) for k, v in attributes.items()])


def _owner(function) -> Any:
    """The object that a method written in C is bound to, if it is one (and no module or class)."""
    owner = getattr(function, "__self__", None)
    return None if isinstance(owner, (types.ModuleType, type)) else owner


class _Unknown:
    """Stands for what nobody can look at without changing it: equal to nothing, so each call counts as changing it."""

    def __eq__(self, other) -> bool:
        return False

    __hash__ = object.__hash__


_UNKNOWN = object()
_HIDDEN: dict[type, Callable[[Any], Any]] = {
    logging.Logger: lambda value: value.getEffectiveLevel(),
    random.Random: lambda value: value.getstate(),
    numpy.random.Generator: lambda value: value.bit_generator.state,
    numpy.random.RandomState: lambda value: value.get_state(legacy=True),
    contextvars.ContextVar: lambda value: value.get(None),
    weakref.ref: lambda value: value(),
    functools.partial: lambda value: (value.func, value.args, value.keywords),
    types.MappingProxyType: dict,
    bytearray: bytes,
}


def _hidden(value) -> tuple[Any] | None:
    """What an object of a library holds that no attribute shows; None of all others. (_UNKNOWN,) for what cannot be seen."""
    for kind in type(value).__mro__:
        if kind in _HIDDEN:
            return (_HIDDEN[kind](value),)
    return (_UNKNOWN,) if hasattr(type(value), "__next__") else None


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
