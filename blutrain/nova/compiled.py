"""A compiled module: its options, and the part of a call's key that depends on the module rather than on the arguments.

While a call is recorded, the attributes that `forward` reads are noted. Plain ones are guards afterwards; tensors that
are neither parameters nor buffers become operands of the call, like arguments. What could change the tree or a plain
attribute bumps `structure_epoch`, so an unchanged epoch means an unchanged key and costs one comparison; attributes that
can change without a bump (lists, objects, what a class holds) are compared at every call.
"""

from __future__ import annotations

import contextlib
import inspect
import itertools
import random
import types
import weakref
from dataclasses import is_dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy

from .. import config
from ..nn.compile_options import CompileOptions
from ..nn.module import Module
from ..nn.parameter import Parameter
from ..tensor.device import Device
from ..tensor.dtype import get_default_dtype
from ..tensor.tensor import Tensor, storage_epoch, structure_epoch
from .steps import has_hooks, memory
from .trace import freeze

if TYPE_CHECKING:
    from .log import Log

MAX_STATES = 256  # states of a module remembered

_tokens = itertools.count(1)
_MISSING = object()
# Attributes of every Module that the key covers by itself, or that are no business of forward.
_OWN = frozenset(Module().__dict__) | {"__dict__", "__class__"}
_DEPTH = 3  # how far guards look into objects that attributes hold


class State(NamedTuple):
    """What a call's key holds of a module: the tree, the guards of both kinds, the settings of the process."""

    tree: tuple = ()
    stable: tuple = ()
    changeable: tuple = ()
    settings: tuple = ()


class CompiledModule:
    """What `Module.compile()` leaves on the module as `_compiled`.

    programs: the sequences that hold a program, least recently used first; refused: state -> reason it runs eagerly.
    """

    def __init__(self, module: Module, options: CompileOptions):
        self._module = weakref.ref(module)
        self.name = type(module).__name__
        self.token = next(_tokens)
        self.options = options
        self.refused: dict[Any, str] = {}
        self.programs: list[Any] = []
        self.evictions = 0
        self.has_hooks = False
        self._places: dict[str, dict[tuple[int, str], weakref.ref]] = {"stable": {}, "changeable": {}, "inputs": {}}
        self._found: dict[str, list] = {}
        self._numbers: dict[tuple, int] = {}
        self._state = self._before = State()
        self._structure = self._number = -1
        self._epoch = self._device_epoch = None
        self._device: Any = None

    # ---------------------------------------------------------------- the key

    def key(self) -> int:
        """A small number for the state of the module: tree, modes, requires_grad, noted attributes, settings."""
        epoch, settings = (structure_epoch.value, storage_epoch.value), _settings()
        if epoch == self._epoch and settings == self._state.settings and not self._places["changeable"]:
            return self._number
        state = self._state._replace(changeable=self._guards("changeable"), settings=settings)
        if epoch != self._epoch:
            self._epoch = epoch
            state = state._replace(tree=self._tree(), stable=self._guards("stable"))
            self._structure = self._intern(state[:2])
        return self._enter(state)

    def _enter(self, state: State) -> int:
        """The number of a state with the structure `_structure`."""
        number = self._intern((self._structure, *state[2:]))
        if number != self._number:
            self._before, self._number = self._state, number
        self._state = state
        return number

    def _intern(self, key: tuple) -> int:
        """A number for a key, the same for equal keys."""
        number = self._numbers.get(key)
        if number is None:
            if len(self._numbers) > MAX_STATES:
                self._numbers.clear()
            number = self._numbers[key] = next(_tokens)
        return number

    def _guards(self, kind: str) -> tuple:
        return tuple([_guard(_read(ref(), key[1])) for key, ref in self._places[kind].items()])

    def _tree(self) -> tuple:
        """What decides the structure of the trace; as a side effect, whether there are hooks."""
        tree, self.has_hooks = [], False
        for m in self._modules():
            tensors = [(k, t) for k, t in m.__dict__.items() if isinstance(t, Tensor) and _is_state(m, k, t)]
            known = [(k, id(t), t.requires_grad, t._aval, t.device) for k, t in tensors]
            tree.append((id(m), m.training, tuple(known)))
            self.has_hooks |= _hook_count(m) > 0 or any(has_hooks(t) for _, t in tensors)
        return tuple(tree)

    def _modules(self) -> list[Module]:
        return list(self._module().modules())

    @property
    def device(self) -> Device | None:
        """The device of the module's parameters and buffers; None where it has none."""
        epoch = storage_epoch.value, structure_epoch.value
        if self._device_epoch != epoch:
            tensor = next(itertools.chain(self._module().parameters(), self._module().buffers()), None)
            self._device, self._device_epoch = None if tensor is None else tensor.device, epoch
        return self._device

    def tensor_inputs(self) -> list[Tensor | None]:
        """The tensors in attributes that forward reads as it reads its arguments."""
        if not self._places["inputs"]:
            return []
        values = [_read(ref(), key[1]) for key, ref in self._places["inputs"].items()]
        return [v if isinstance(v, Tensor) else None for v in values]

    def changing_guard(self) -> str:
        """Names what differed between the last two states of the module, for a warning."""
        old, new = self._before, self._state
        for kind, before, after in (("stable", old.stable, new.stable), ("changeable", old.changeable, new.changeable)):
            for key, x, y in zip(self._places[kind], before, after):
                if x != y:
                    return self._name_of(key)
        if old.tree and old.tree != new.tree:
            return "train/eval mode, requires_grad or the parameters"
        return "shapes or values of the arguments, or what follows the call"

    def _name_of(self, key: tuple[int, str]) -> str:
        names = {id(m): path for path, m in self._module().named_modules()}
        return f"the attribute {'.'.join(filter(None, [names.get(key[0], ''), key[1]]))!r}"

    # ---------------------------------------------------------------- while a call is recorded

    @contextlib.contextmanager
    def noting(self, log: Log):
        """While it is open, reads of attributes of the tree's modules are noted."""
        modules = self._modules()
        classes = [type(m) for m in modules]
        by_id = {id(m): m for m in modules}
        self._found = {"stable": [], "changeable": [], "inputs": []}
        for m, cls in zip(modules, classes, strict=True):
            object.__setattr__(m, "__class__", _noting_class(cls, self, by_id, log))
        try:
            yield
        finally:
            for m, cls in zip(modules, classes, strict=True):
                object.__setattr__(m, "__class__", cls)

    def note(self, module: Module, name: str, value, log: Log) -> None:
        """Forward read an attribute that is neither parameter, buffer nor sub-module."""
        key, kind = (id(module), name), "stable"
        if isinstance(value, Tensor):
            if _is_made_in(value, log) or _is_state(module, name, value):
                return
            kind = "inputs"
        elif name not in module.__dict__ and value is not _MISSING:
            if not _is_plain(value) or hasattr(inspect.getattr_static(type(module), name, None), "__get__"):
                return
            kind = "changeable"
        elif _can_change(value):
            kind = "changeable"
        if not any(key in places for places in self._places.values()):
            self._places[kind][key] = weakref.ref(module)
            self._found[kind].append(_guard(value))

    def recorded_key(self) -> int:
        """The key that the call just recorded would have had, had all it reads been known before."""
        state, found = self._state, self._found
        if found["stable"] or found["changeable"]:
            self._epoch = None
            state = state._replace(
                stable=state.stable + tuple(found["stable"]), changeable=state.changeable + tuple(found["changeable"])
            )
            self._structure = self._intern(state[:2])
        return self._enter(state)

    @property
    def has_new_inputs(self) -> bool:
        """Whether the call just recorded read tensors in attributes that the next one will bring in as operands."""
        return bool(self._found["inputs"])

    def attributes(self) -> dict[int, dict[str, Any]]:
        """What the modules hold, to be compared later."""
        return {id(m): dict(m.__dict__) for m in self._modules()}

    def changed_attributes(self, before: dict[int, dict[str, Any]]) -> list[tuple[Module, str, Any]]:
        """The attributes that were set since `before` (not modules and parameters)."""
        changed = []
        for m in self._modules():
            old = before.get(id(m), {})
            for name, value in m.__dict__.items():
                if name not in _OWN and old.get(name, _MISSING) is not value and not isinstance(value, Module):
                    changed.append((m, name, value))
        return changed


def _noting_class(cls: type, compiled: CompiledModule, modules: dict[int, Module], log: Log) -> type:
    """A subclass whose instances report the reads of their attributes."""

    def __getattribute__(self, name):
        if name in _OWN or id(self) not in modules:
            return super(noting, self).__getattribute__(name)
        try:
            value = super(noting, self).__getattribute__(name)
        except AttributeError:
            compiled.note(self, name, _MISSING, log)
            raise
        if not isinstance(value, Module) and not isinstance(value, types.MethodType):
            compiled.note(self, name, value, log)
        return value

    noting = type(cls.__name__, (cls,), {"__getattribute__": __getattribute__, "__module__": cls.__module__})
    return noting


def _read(module: Module | None, name: str):
    """An attribute as forward would read it."""
    return _MISSING if module is None else getattr(module, name, _MISSING)


def _is_state(module: Module, name: str, value: Tensor) -> bool:
    """Whether an attribute is a parameter or a buffer: read by reference, and part of the tree's key."""
    return isinstance(value, Parameter) or (name in module._buffers and memory(value) is not None)


def _is_made_in(value: Tensor, log: Log) -> bool:
    """Whether a tensor was made by the event that is being recorded."""
    handle = value._pending
    return handle is not None and handle.log is log and log.current is not None and handle.value >= log.current.first


def _hook_count(module: Module) -> int:
    return sum(
        len(module.__dict__[table])
        for table in ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    )


def _is_plain(value) -> bool:
    return value is None or isinstance(value, (bool, int, float, str, bytes, list, tuple, dict, set, frozenset))


def _can_change(value) -> bool:
    """Whether what a value means for forward can change without the attribute being set again."""
    if value is None or isinstance(value, (bool, int, float, str, bytes, type)) or callable(value):
        return False
    if isinstance(value, (tuple, frozenset)):
        return any(_can_change(v) for v in value)
    if is_dataclass(value) and value.__dataclass_params__.frozen:  # pyright: ignore[reportAttributeAccessIssue] (no stub has it)
        return any(_can_change(v) for v in vars(value).values()) if hasattr(value, "__dict__") else False
    return isinstance(value, (list, dict, set, numpy.ndarray)) or hasattr(value, "__dict__")


def _guard(value, depth: int = 0) -> Any:
    """A hashable stand-in for an attribute's value: equal stand-ins mean that forward would do the same."""
    kind = type(value)
    if value is None or isinstance(value, (bool, int, float, str, bytes)):
        return kind, freeze(value)
    if isinstance(value, (list, tuple)):
        return kind, tuple([_guard(v, depth) for v in value])
    if isinstance(value, (set, frozenset)):
        return kind, frozenset([_guard(v, depth) for v in value])
    if isinstance(value, dict):
        return kind, tuple([(_guard(k, depth), _guard(v, depth)) for k, v in value.items()])
    if isinstance(value, numpy.ndarray):
        return kind, value.shape, value.dtype.str, value.tobytes()
    if (
        isinstance(value, (Module, Tensor, type))
        or callable(value)
        or depth == _DEPTH
        or not hasattr(value, "__dict__")
    ):
        return _Identity(value)
    return _Identity(value), tuple([(k, _guard(v, depth + 1)) for k, v in vars(value).items()])


class _Identity:
    """Equal only to itself; keeps its object alive, so that no other can take its place."""

    __slots__ = ("value",)

    def __init__(self, value):
        self.value = value

    def __eq__(self, other) -> bool:
        return isinstance(other, _Identity) and self.value is other.value

    def __hash__(self) -> int:
        return id(self.value)


def _settings() -> tuple:
    """What forward may depend on besides the module and its arguments."""
    return config.get("matmul_precision"), get_default_dtype()


def random_state() -> tuple:
    """Python's and NumPy's global random states, to see whether forward moved them."""
    name, keys, *rest = cast(tuple[Any, ...], numpy.random.get_state(legacy=True))
    return random.getstate(), name, keys.tobytes(), tuple(rest)
