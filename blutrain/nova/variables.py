"""What functions read besides their arguments: closure cells, globals, and attributes of the objects these hold.

Found in their bytecode, and in that of the functions and methods which they call by such names. What installed packages do
inside is no matter of the user's values and not looked at.
"""

from __future__ import annotations

import builtins
import dis
import functools
import inspect
import itertools
import os
import sys
import types
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy

from ..nn.module import Module
from ..tensor.tensor import Tensor
from .guards import MISSING, Place, can_change, guard, is_ours, is_plain

_LIBRARIES = {"blutrain", "numpy", *sys.stdlib_module_names}
_FOLDERS = tuple([os.path.dirname(os.path.abspath(x)) + os.sep for x in (os.path.dirname(__file__), numpy.__file__)])
_STANDARD = os.path.dirname(os.path.abspath(os.__file__)) + os.sep
_ATTRIBUTES = ("LOAD_ATTR", "LOAD_METHOD", "STORE_ATTR")
_SLOTS = (types.MemberDescriptorType, types.GetSetDescriptorType)
Found = dict[tuple[int, str], Place]  # id of what has the name, and the name


class Read(NamedTuple):
    """A name that code reads or sets, and the attributes of it that it goes on to. kind: global, cell, or first (argument)."""

    kind: str
    name: str
    attributes: tuple[str, ...] = ()


class Global(Place):
    """A global variable of a function: the owner is the dictionary of its module."""

    __slots__ = ()

    def read(self):
        return self.owner().get(self.name, MISSING)

    def label(self, names: dict[int, str]) -> str:
        return f"the global variable {self.name!r}"


class Cell(Place):
    """A variable of a surrounding function."""

    __slots__ = ("_index",)

    def __init__(self, function: types.FunctionType, name: str):
        super().__init__(function, name)
        self._index = function.__code__.co_freevars.index(name)

    def read(self):
        function = self.owner()
        try:
            return MISSING if function is None else function.__closure__[self._index].cell_contents
        except ValueError:  # it is not bound yet
            return MISSING

    def label(self, names: dict[int, str]) -> str:
        return f"the variable {self.name!r} of a surrounding function"


class Whole(Place):
    """An object that a method uses as a whole."""

    __slots__ = ()

    def read(self):
        owner = self.owner()
        return MISSING if owner is None else owner


def variables_of(functions: Iterable[Any]) -> Found:
    """The places that these callables read, and those that they call."""
    found: Found = {}
    todo, seen = list(functions), set()
    while todo:
        function, owner = _python_function(todo.pop(), found)
        if function is None or (id(function), id(owner)) in seen:
            continue
        seen.add((id(function), id(owner)))
        if _is_library(function.__code__.co_filename):
            if hasattr(function, "__wrapped__"):  # the user's function is inside (of no_grad() or jit(), say)
                held = [Cell(function, name) for name in function.__code__.co_freevars]
                todo += [function.__wrapped__, *(called for place in held for called in _enter(place, found))]
            continue
        for name in ("__defaults__", "__kwdefaults__"):
            if can_change(getattr(function, name)):
                todo += _enter(Place(function, name), found)
        for read in _reads(function.__code__):
            todo += _follow(read, function, owner, found)
    return found


def _is_library(file: str) -> bool:
    return file.startswith((*_FOLDERS, _STANDARD)) or "site-packages" in file or "dist-packages" in file


def _python_function(called, found: Found) -> tuple[Any, Any]:
    """The Python function behind a callable and what its first argument is bound to; (None, None) for other callables."""
    if isinstance(called, functools.partial):
        for name in ("args", "keywords"):
            found.setdefault((id(called), name), Place(called, name))
        return _python_function(called.func, found)
    if isinstance(called, types.MethodType):
        return _python_function(called.__func__, found)[0], called.__self__
    if isinstance(called, types.FunctionType):
        return called, None
    if hasattr(called, "__wrapped__"):  # a staticmethod, lru_cache and the like
        return _python_function(called.__wrapped__, found)
    method = inspect.getattr_static(type(called), "__call__", None)
    return (method, called) if isinstance(method, types.FunctionType) else (None, None)


def _follow(read: Read, function: types.FunctionType, owner, found: Found) -> list[Any]:
    """Enter the places that a read leads to; returns what may be called there."""
    value = owner
    if read.kind == "first":
        if not read.attributes and _has_places(owner):
            return _enter(Whole(owner, ""), found)
    else:
        place = Cell(function, read.name) if read.kind == "cell" else Global(function.__globals__, read.name)
        value = place.read()
        if value is MISSING and hasattr(builtins, read.name):
            return []
        called = _enter(place, found, passed=bool(read.attributes))
        if not read.attributes:
            return called
    return _follow_attributes(value, read.attributes, found)


def _follow_attributes(value, attributes: tuple[str, ...], found: Found) -> list[Any]:
    """`_follow` from an object on."""
    called = []
    for i, name in enumerate(attributes):
        static = inspect.getattr_static(value, name, MISSING)
        if name not in getattr(value, "__dict__", ()):  # the class has it
            if isinstance(static, property):
                return [types.MethodType(static.fget, value)] if static.fget is not None else []
            if isinstance(static, (staticmethod, classmethod)):
                return [static.__func__]
            if isinstance(static, types.FunctionType):
                return [types.MethodType(static, value)]
            if hasattr(static, "__get__") and not isinstance(static, _SLOTS):  # reading it may do anything
                return []
        if isinstance(value, Module):  # it notes itself what is read of it
            if not isinstance(static, Module) and (i + 1 == len(attributes) or not _has_places(static)):
                return callables_in(static)
            value = static
            continue
        if not _has_places(value) and not (value is os and name == "environ"):
            return []
        place = Place(value, name)
        value, called = place.read(), _enter(place, found, passed=i + 1 < len(attributes))
    return called


def _enter(place: Place, found: Found, passed: bool = False) -> list[Any]:
    """Enter a place; returns what may be called there: a function, or modules.

    passed: code only reads attributes of the object that stands there, which are places of their own.
    """
    value = place.read()
    if isinstance(value, types.ModuleType) or _is_imported(place, value):
        return []
    place.is_shallow = passed and _has_places(value)
    found.setdefault((id(place.owner()), place.name + "." * place.is_shallow), place)
    return callables_in(value)


def callables_in(value) -> list[Any]:
    """What code that has a value may call: it, or what it holds, down to the modules below modules."""
    called: list[Any] = []
    guard(value, called=called)
    modules = [m for x in called if isinstance(x, Module) for m in x.modules()]
    return [m.forward for m in modules] + [x for x in called if not isinstance(x, (type, Module))]


def _is_imported(place: Place, value) -> bool:
    """Whether a global is a library's function or class under its own name: `from blutrain.nn.functional import gelu`."""
    if not isinstance(place, Global) or not isinstance(value, (types.FunctionType, types.BuiltinFunctionType, type)):
        return False
    return value.__name__ == place.name and (value.__module__ or "").partition(".")[0] in _LIBRARIES


def _has_places(value) -> bool:
    """Whether attributes of a value are places of their own, rather than parts of its guard."""
    if value is None or value is MISSING or isinstance(value, (Module, Tensor)) or is_plain(value):
        return False
    name = value.__name__ if isinstance(value, types.ModuleType) else _class_of(value).__module__
    return name.partition(".")[0] not in _LIBRARIES or is_ours(value)


def _class_of(value) -> type:
    return value if isinstance(value, type) else type(value)


@functools.lru_cache(maxsize=1024)
def _reads(code: types.CodeType) -> tuple[Read, ...]:
    """What code reads or sets by names that are not its own, or of its first argument."""
    first = code.co_varnames[0] if code.co_argcount else ""
    return tuple(dict.fromkeys(_reads_in(code, frozenset(code.co_freevars), first)))


def _reads_in(code: types.CodeType, free: frozenset[str], first: str) -> Iterator[Read]:
    instructions = list(dis.get_instructions(code))
    aliases: dict[str, list[Read]] = {}  # local variables that were set to what was read
    for i, instruction in enumerate(instructions):
        read = _read_of(instruction, free, first)
        known = [read] if read is not None else aliases.get(_loaded(instruction), ())
        if not known:
            continue
        chain = itertools.takewhile(lambda x: x.opname in _ATTRIBUTES, instructions[i + 1 :])
        attributes = [x.argval for x in chain]
        reads = [x._replace(attributes=(*x.attributes, *attributes)) for x in known]
        yield from reads
        end = instructions[i + 1 + len(attributes)]
        if end.opname.startswith("STORE_FAST"):
            aliases.setdefault(end.argval[0] if isinstance(end.argval, tuple) else end.argval, []).extend(reads)
        if read == ("global", "super", ()) and first:
            yield from (Read("first", first, (name,)) for name in code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _reads_in(constant, free, first if first in constant.co_freevars else "")


def _loaded(instruction: dis.Instruction) -> str:
    """The local variable that an instruction leaves on top of the stack, "" for other instructions."""
    if "LOAD_FAST" not in instruction.opname:
        return ""
    name = instruction.argval  # of two names the second is on top
    return name[-1] if isinstance(name, tuple) else name


def _read_of(instruction: dis.Instruction, free: frozenset[str], first: str) -> Read | None:
    kind, name = instruction.opname, instruction.argval
    if kind in ("LOAD_GLOBAL", "STORE_GLOBAL"):
        return Read("global", name)
    if kind in ("LOAD_DEREF", "STORE_DEREF") and name in free:
        return Read("cell", name)
    loaded = name if kind == "LOAD_DEREF" else _loaded(instruction)
    return Read("first", first) if loaded == first != "" else None
