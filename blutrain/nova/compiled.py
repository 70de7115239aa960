"""A compiled module: its options, and the part of a call's key that depends on the module rather than on the arguments.

While a call is recorded, the plain attributes that `forward` reads are noted; afterwards they are guards. Anything that could change them
or the tree bumps `structure_epoch`, so an unchanged epoch means an unchanged key and costs one comparison.
"""

from __future__ import annotations

import contextlib
import itertools
import random
import weakref
from typing import Any

import numpy

from ..nn.compile_options import CompileOptions
from ..nn.module import Module
from ..tensor.tensor import Tensor, structure_epoch
from .trace import freeze

_tokens = itertools.count(1)
_MISSING = object()
# Attributes of every Module that the key covers by itself, or that are no business of forward.
_OWN = frozenset(Module().__dict__) | {"__dict__", "__class__"}


class CompiledModule:
    """What `Module.compile()` leaves on the module as `_compiled`."""

    def __init__(self, module: Module, options: CompileOptions):
        self._module = weakref.ref(module)
        self.name = type(module).__name__
        self.token = next(_tokens)
        self.options = options
        self.noted: dict[tuple[int, str], tuple[Module, str]] = {}
        self.refused: dict[Any, str] = {}
        self.programs: list[Any] = []  # steps that hold a program, least recently used first
        self._keys: dict[Any, int] = {}
        self._key = self._epoch = -1
        self._mutable = False

    def key(self) -> int:
        """A small number for the state of the module: tree, modes, requires_grad, hooks and noted attributes."""
        if self._epoch != structure_epoch.value or self._mutable:
            self._epoch = structure_epoch.value
            self._key = self._keys.setdefault(self._state(), len(self._keys))
        return self._key

    def _state(self) -> tuple:
        module = self._module()
        tree = []
        for m in module.modules():
            tensors = [
                (k, id(v), v.requires_grad)
                for k, v in m.__dict__.items()
                if isinstance(v, Tensor) and self._is_state(m, k, v)
            ]
            tree.append((id(m), m.training, tuple(tensors), _hook_count(m)))
        noted = [(key, _guard(m.__dict__.get(name, _MISSING))) for key, (m, name) in self.noted.items()]
        return tuple(tree), tuple(noted)

    @staticmethod
    def _is_state(module: Module, name: str, value: Tensor) -> bool:
        """Parameters, buffers and constant tensors; a pending side output of a step is none."""
        return value.is_leaf and value._pending is None and (value.requires_grad or name in module._buffers)

    def has_hooks(self) -> bool:
        """Whether any module of the tree has hooks."""
        return any(_hook_count(m) for m in self._module().modules())

    @contextlib.contextmanager
    def noting(self):
        """While it is open, reads of plain attributes of the tree's modules are noted as guards."""
        modules = list(self._module().modules())
        classes = [type(m) for m in modules]
        before = len(self.noted)
        by_id = {id(m): m for m in modules}
        for m, cls in zip(modules, classes, strict=True):
            object.__setattr__(m, "__class__", _noting_class(cls, self, by_id))
        try:
            yield
        finally:
            for m, cls in zip(modules, classes, strict=True):
                object.__setattr__(m, "__class__", cls)
            if len(self.noted) != before:
                self._epoch = -1
                self._mutable = any(isinstance(m.__dict__.get(n), (list, dict, set)) for m, n in self.noted.values())

    def note(self, module: Module, name: str) -> None:
        """Remember that forward read a plain attribute."""
        self.noted[(id(module), name)] = (module, name)


def _noting_class(cls: type, compiled: CompiledModule, modules: dict[int, Module]) -> type:
    """A subclass whose instances report the reads of their plain attributes."""

    def __getattribute__(self, name):
        value = super(noting, self).__getattribute__(name)
        if name not in _OWN and not isinstance(value, (Tensor, Module)) and id(self) in modules:
            if name in object.__getattribute__(self, "__dict__"):
                compiled.note(self, name)
        return value

    noting = type(cls.__name__, (cls,), {"__getattribute__": __getattribute__, "__module__": cls.__module__})
    return noting


def _hook_count(module: Module) -> int:
    d = module.__dict__
    return (
        len(d["_forward_hooks"])
        + len(d["_forward_pre_hooks"])
        + len(d["_backward_hooks"])
        + len(d["_backward_pre_hooks"])
    )


def _guard(value) -> Any:
    """A hashable stand-in for an attribute's value: equal stand-ins mean that forward would do the same."""
    if isinstance(value, (bool, int, float, str, bytes, type(None))):
        return type(value).__name__, value
    if isinstance(value, (list, tuple, set, frozenset)):
        return type(value).__name__, tuple(_guard(v) for v in value)
    if isinstance(value, dict):
        return "dict", tuple((freeze(k), _guard(v)) for k, v in value.items())
    return _Identity(value)


class _Identity:
    """Equal only to itself; keeps its object alive, so that no other can take its place."""

    __slots__ = ("value",)

    def __init__(self, value):
        self.value = value

    def __eq__(self, other) -> bool:
        return isinstance(other, _Identity) and self.value is other.value

    def __hash__(self) -> int:
        return id(self.value)


def random_state() -> tuple:
    """Python's and NumPy's global random states, to see whether forward moved them."""
    name, keys, *rest = numpy.random.get_state(legacy=True)
    return random.getstate(), name, keys.tobytes(), tuple(rest)
