"""A compiled module or function: its options, and the part of a call's key that depends on it rather than on the arguments.

While a call is recorded, the places that it reads are noted: attributes of modules as they are read, variables of
functions from their code (variables.py). Plain values there are guards afterwards; tensors that are neither parameters nor
buffers become operands of the call, like arguments. What could change the tree or a plain attribute bumps
`structure_epoch`, so an unchanged epoch means an unchanged key and costs one comparison; places that can change without a
bump (lists, objects, variables, what a class holds) are compared at every call.
"""

from __future__ import annotations

import contextlib
import inspect
import itertools
import operator
import types
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from .. import config
from ..nn.compile_options import CompileOptions
from ..nn.module import Module
from ..nn.parameter import Parameter
from ..tensor.device import Device
from ..tensor.dtype import get_default_dtype
from ..tensor.tensor import Tensor, storage_epoch, structure_epoch
from .guards import MISSING, Identity, Own, Place, can_change, guard, identities, weak
from .jit import Function
from .lifted import Arguments, Floats, Lifted, is_same
from .noting import OWN, noting_class
from .steps import alive, has_hooks, memory
from .variables import callables_in, variables_of

if TYPE_CHECKING:
    from .log import Log
    from .trace import Location

MAX_STATES = 256  # states of a module remembered

_tokens = itertools.count(1)
_forward_of = operator.attrgetter("forward")


class State(NamedTuple):
    """What a call's key holds of a module: the tree, the guards of both kinds, the settings of the process."""

    tree: tuple = ()
    stable: tuple = ()
    changeable: tuple = ()
    settings: tuple = ()


class Compiled:
    """What `Module.compile()` leaves on the module as `_compiled`; a function has a module that stands for it (jit.py).

    programs: the sequences that hold a program, least recently used first; refused: state -> reason it runs eagerly;
    device: that of the parameters and buffers, None where there are none; operands: the tensors at places that the call
    takes as it takes its arguments; changed: places that the last recorded call changed; opened: why and where
    a function is not recorded as a whole, so that its Python runs at every call; parts: the modules that it calls, and what
    compiles them then; floats: those at places that are lifted, arguments: which of those are (lifted.py).
    """

    def __init__(self, module: Module, options: CompileOptions):
        self._module = weakref.ref(module)
        self.name = getattr(module, "__name__", type(module).__name__)
        self.token = next(_tokens)
        self.options = options
        self.refused: dict[Any, str] = {}
        self.programs: list[Any] = []
        self.evictions = 0
        self.has_hooks = False
        self.device: Device | None = None
        self.operands: list[Tensor] = []
        self.changed: list[Place] = []
        self.opened: tuple[str, Location] | None = None
        self.parts: dict[int, tuple[weakref.ref[Module], Compiled]] = {}
        self._places: dict[str, dict[tuple[int, str], Place]] = {"stable": {}, "changeable": {}}
        self._found: dict[str, list] = {}
        self._joined: dict[Any, Callable[[], Any]] = {}  # modules and functions among arguments, modules at places
        self._noted: dict[int, Module] = {}
        self._met: list[weakref.ref[Module]] = []
        self._read: list[Any] = []  # what the call being recorded read of modules
        self._tensors: dict[int, weakref.ref[Tensor]] = {}  # those of the tree
        self._was_state = self._tensors  # before the call that is being recorded
        self._members: set[int] = set()  # ids of the modules of the tree
        self._classes: list[type] = []
        self._forwards: tuple = ()
        self._numbers: dict[tuple, int] = {}
        self._state = self._before = State()
        self._structure = self._number = -1
        self._epoch: Any = None
        self.floats: tuple[Floats, ...] = ()
        self.arguments = Arguments()
        self.has_lasting_effects = False
        self._set_buffers: set[tuple[int, str]] = set()

    # ---------------------------------------------------------------- the key

    def key(self) -> int:
        """A small number for the state of the module: tree, modes, requires_grad, places, settings."""
        epoch, settings = (structure_epoch.value, storage_epoch.value), _settings()
        before, forwards = self._state, tuple(map(_forward_of, self._classes))
        is_same = epoch == self._epoch and forwards == self._forwards and settings == before.settings
        if is_same and not self._places["changeable"]:
            return self._number
        if self._epoch is None:
            self._prune()
            self._scan()
        if epoch != self._epoch or forwards != self._forwards:
            self._sort()
            self._set_structure(tuple([place.guard(_never) for place in self._places["stable"].values()]))
            self._epoch = epoch
        self.operands = []
        changeable = tuple([place.guard(self._take) for place in self._places["changeable"].values()])
        known, self.floats = self.floats, self._lifted(changeable)
        if changeable != before.changeable:
            if self._join(changeable):
                self._set_structure(self._state.stable)
        elif is_same and known == self.floats:
            return self._number
        self._state = self._state._replace(changeable=changeable, settings=settings)
        return self._enter(before)

    def _lifted(self, changeable: tuple) -> tuple[Floats, ...]:
        """The floats that the key lacks. What each call changes may be a number: then it lacks those of all operations."""
        floats = tuple([x.floats for x in (*self._state.stable, *changeable) if type(x) is Lifted])
        return (*floats, ("effects",)) if self.has_lasting_effects else floats

    def _set_structure(self, stable: tuple) -> None:
        self._state = self._state._replace(tree=self._tree(), stable=stable)
        self._structure = self._intern(self._state[:2])

    def _enter(self, before: State) -> int:
        """The number of the state, which was another one before."""
        number = self._intern((self._structure, *self._state[2:]))
        if number != self._number:
            self._before, self._number = before, number
        return number

    def _intern(self, key: tuple) -> int:
        """A number for a key, the same for equal keys."""
        number = self._numbers.get(key)
        if number is None:
            if len(self._numbers) > MAX_STATES:
                self._numbers.clear()
                self.refused.clear()
            number = self._numbers[key] = next(_tokens)
        return number

    def unlift(self) -> None:
        """What the call does with its floats is more than run-time scalars can be: they are part of its key from now on."""
        self.arguments.may_lift, self._epoch = False, self._epoch and ()
        for place in (*self._places["stable"].values(), *self._places["changeable"].values()):
            place.keep_floats()

    def _take(self, tensor: Tensor) -> bool:
        """Whether a tensor at a place is an operand; it is entered then."""
        if not self._is_operand(tensor):
            return False
        self.operands.append(tensor)
        return True

    def _is_operand(self, tensor: Tensor) -> bool:
        """Whether a tensor at a place is an operand: parameters and the tree's tensors are read by reference."""
        known = self._tensors.get(id(tensor))
        return not isinstance(tensor, Parameter) and (known is None or known() is not tensor)

    def _tree(self) -> tuple:
        """What decides the structure of the trace; as a side effect, its tensors, and whether there are hooks."""
        tree, self.has_hooks, self.device = [], False, None
        self._tensors = {}
        modules = self._modules()
        self._members = {id(m) for m in modules}
        self._classes = list({type(m): None for m in modules})
        self._forwards = tuple(map(_forward_of, self._classes))
        for m in modules:
            tensors = [(k, t) for k, t in m.__dict__.items() if isinstance(t, Tensor) and self._is_state(m, k, t)]
            known = [(k, id(t), t.requires_grad, t._aval, t.device) for k, t in tensors]
            tree.append((id(m), m.training, Identity(m.__dict__.get("forward", type(m).forward)), tuple(known)))
            self.has_hooks |= _hook_count(m) > 0 or any(has_hooks(t) for _, t in tensors)
            for _, t in tensors:
                self.device = self.device or t.device
                self._tensors[id(t)] = weakref.ref(t)
        return tuple(tree)

    def _is_state(self, module: Module, name: str, value: Tensor) -> bool:
        """Whether an attribute is a parameter or a buffer: read by reference, and part of the tree's key. A buffer that forward
        sets to another tensor is an attribute as any other.
        """
        if isinstance(value, Parameter):
            return True
        return name in module._buffers and memory(value) is not None and (id(module), name) not in self._set_buffers

    def sets_buffers(self, changed: list[tuple[Module, str]]) -> bool:
        """Whether forward set buffers among these attributes of which that was not known: the next key has another form."""
        buffers = {(id(m), name) for m, name in changed if name in m._buffers} - self._set_buffers
        self._set_buffers |= buffers
        if buffers:
            self._epoch = self._epoch and ()
        return bool(buffers)

    def _modules(self) -> list[Module]:
        """The modules of the tree, and those below what stands at places and came as arguments."""
        roots = [self._module(), *(x for x in alive(list(self._joined.values())) if isinstance(x, Module))]
        return list({id(m): m for root in roots for m in root.modules()}.values())

    def _join(self, guards: tuple) -> bool:
        """Take modules that guards know into the tree; whether there were new ones."""
        return sum(self.join(x) for x in identities(guards) if isinstance(x, Module)) > 0

    def join(self, joined: Callable) -> bool:
        """Take a module into the tree: its state is part of the key; or note that a call may call a function that it got.
        False where it was there.
        """
        is_method = isinstance(joined, types.MethodType)
        key = (id(joined.__func__), id(joined.__self__)) if is_method else id(joined)
        known = self._joined.get(key)
        if isinstance(joined, type) or (known is not None and known() == joined):
            return False
        self._joined[key] = weakref.WeakMethod(joined) if is_method else weak(joined)
        self._epoch = self._epoch and ()
        if not isinstance(joined, Module):
            self._join((guard(joined),))
        return True

    def changing_guard(self) -> str:
        """Names what differed between the last two states of the module, for a warning."""
        old, new = self._before, self._state
        for kind, before, after in (("stable", old.stable, new.stable), ("changeable", old.changeable, new.changeable)):
            for place, x, y in zip(self._places[kind].values(), before, after):
                if x != y:
                    return self._label(place)
        if old.tree and old.tree != new.tree:
            return "train/eval mode, requires_grad or the parameters"
        return "shapes or values of the arguments, or what follows the call"

    def _label(self, place: Place) -> str:
        return place.label({id(m): path for path, m in self._module().named_modules()})

    # ---------------------------------------------------------------- a function that is not recorded as a whole

    def can_open(self) -> bool:
        """Whether this is a function with modules in its tree."""
        return isinstance(self._module(), Function) and len(self._members) > 1

    def part(self, module: Module, forget: Callable[[int], None]) -> Compiled | None:
        """What compiles a module of the tree while the function runs. forget(token): called when either is gone."""
        known = self.parts.get(id(module))
        if known is not None and known[0]() is module:
            return known[1]
        if id(module) not in self._members:
            return None
        part = Compiled(module, self.options)
        part.programs = self.programs
        for owner in (self, module):
            weakref.finalize(owner, forget, part.token).atexit = False
        self.parts[id(module)] = weakref.ref(module), part
        return part

    # ---------------------------------------------------------------- while a call is recorded

    def _scan(self) -> None:
        """Enter the variables that the functions of the tree read."""
        self._found = {"stable": [], "changeable": []}
        joined = [x for x in alive(list(self._joined.values())) if not isinstance(x, Module)]
        self._enter_variables([*(m.forward for m in self._modules()), *joined])

    def _enter_variables(self, functions: list[Any]) -> None:
        for key, place in variables_of(functions).items():
            self._add("changeable", key, place)

    def _prune(self) -> None:
        """Forget the places of objects that are gone, and modules."""
        self._joined = {key: ref for key, ref in self._joined.items() if ref() is not None}
        for places in self._places.values():
            for key in [key for key, place in places.items() if place.owner() is None]:
                del places[key]

    def _sort(self) -> None:
        """Places where something stands now that can change by itself are looked at before every call."""
        stable = self._places["stable"]
        for key in [key for key, place in stable.items() if can_change(place.read())]:
            self._places["changeable"][key] = stable.pop(key)

    def _add(self, kind: str, key: tuple[int, str], place: Place) -> None:
        if not any(key in places for places in self._places.values()):
            place.may_lift = self.arguments.may_lift
            self._places[kind][key] = place
            self._found[kind].append(place.guard(self._take))

    @contextlib.contextmanager
    def noting(self, log: Log):
        """While it is open, reads of attributes of the tree's modules are noted."""
        modules = self._modules()
        classes = [type(m) for m in modules]
        by_id = self._noted = {id(m): m for m in modules}
        self.operands, self._met, self._read, self._was_state = [], [], [], self._tensors
        self._scan()
        for m, cls in zip(modules, classes, strict=True):
            object.__setattr__(m, "__class__", noting_class(cls, self, by_id, log))
        try:
            yield
        finally:
            for m, cls in zip(modules, classes, strict=True):
                object.__setattr__(m, "__class__", cls)
            self._noted = {}
        self._enter_variables([x for value in self._read for x in callables_in(value)])

    def note(self, module: Module, cls: type, name: str, value, log: Log) -> None:
        """Forward read an attribute that is neither parameter, buffer nor sub-module."""
        kind, on_class = "changeable", name not in module.__dict__ and value is not MISSING
        if isinstance(value, Tensor):
            if _is_made_in(value, log) or self._is_state(module, name, value):
                return
        elif isinstance(value, types.MethodType):
            if not value.__func__.__module__.startswith("blutrain.") and name != "forward":
                self._add("changeable", (id(cls), name), Place(cls, name))
                self._add("stable", (id(module), name), Own(module, name))
                self._read.append(value)
            return
        elif on_class:
            if hasattr(inspect.getattr_static(cls, name, None), "__get__"):
                return
        elif not can_change(value):
            kind = "stable"
        self._add(kind, (id(module), name), Place(module, name))
        self._read.append(value)

    def states(self) -> dict[int, Tensor]:
        """The tensors that are read by reference, by their arrays."""
        known = identities((*self._state.stable, *self._state.changeable))
        tensors = [*(x for x in known if isinstance(x, Tensor)), *alive(list(self._tensors.values()))]
        return {id(memory(t)): t for t in tensors}

    def met(self, module: Module) -> None:
        """A module is called while this is recorded."""
        if id(module) not in self._noted:
            self._met.append(weakref.ref(module))

    def recorded_key(self, replayed: set[tuple[int, str]]) -> int:
        """The key that the call just recorded would have had, had all it reads been known before.

        replayed: the attributes that a replay sets as this call did.
        """
        before, found = self._state, self._found
        if found["stable"] or found["changeable"]:
            self._epoch = None
            self._join((*found["stable"], *found["changeable"]))
            self._state = before._replace(changeable=before.changeable + tuple(found["changeable"]))
            self._set_structure(before.stable + tuple(found["stable"]))
        self.changed = self._effects(replayed)
        return self._enter(before)

    def undeclared(self, captured: list[tuple[int, Tensor]]) -> tuple[int | None, str] | None:
        """What the call just recorded used, though no key knows which it is: a captured value, or what is at no place."""
        found = list(identities((*self._state.stable, *self._state.changeable)))
        known = {id(x) for x in (*found, *self.operands)} | self._tensors.keys()
        aliased = {id(memory(x)) for x in (*found, *self.operands) if isinstance(x, Tensor)}
        for value, tensor in captured:
            was = self._was_state.get(id(tensor))  # a buffer that forward set to another tensor
            is_known = id(tensor) in known or id(memory(tensor)) in aliased or (was is not None and was() is tensor)
            if not is_known:
                return value, f"a tensor {tensor._aval}"
        tree = {id(m) for m in self._modules()}
        strays = [m for m in alive(self._met) if id(m) not in tree]
        return (None, type(strays[0]).__name__) if strays else None

    def _effects(self, replayed: set[tuple[int, str]]) -> list[Place]:
        """The places that the call just recorded changed. One that each of the last recordings changed is no guard from
        now on: the body has to run at every call.
        """
        changed = []
        for kind, take in (("stable", _never), ("changeable", self._is_operand)):
            guards = list(getattr(self._state, kind))
            for i, (key, place) in enumerate(self._places[kind].items()):
                if place.is_lasting:
                    continue
                if is_same(place.guard(take), guards[i]):
                    place.effects = 0
                    continue
                place.effects, place.is_set = place.effects + 1, key in replayed
                changed.append(place)
                if place.is_lasting:
                    guards[i], self.has_lasting_effects = None, True
            self._state = self._state._replace(**{kind: tuple(guards)})
        self._structure = self._intern(self._state[:2])
        return changed

    @property
    def has_effects(self) -> bool:
        """Whether a replay would lack what the call just recorded changed, or what calls keep changing."""
        places = (*self._places["stable"].values(), *self._places["changeable"].values())
        return any(place.effects and (place.is_lasting or not place.is_set) for place in places)

    def lasting_effect(self) -> str:
        """The place that is no guard any more since the call just recorded, in words."""
        return next((self._label(place) for place in self.changed if place.is_lasting), "")

    @property
    def has_new_inputs(self) -> bool:
        """Whether the call just recorded read tensors at places that the next one will bring in as operands."""
        return bool(self.operands)

    def attributes(self) -> dict[int, dict[str, Any]]:
        """What the modules hold, to be compared later."""
        return {id(m): dict(m.__dict__) for m in self._modules()}

    def changed_attributes(self, before: dict[int, dict[str, Any]]) -> list[tuple[Module, str]]:
        """The attributes that were set since `before` (not modules and parameters)."""
        changed = []
        for m in self._modules():
            old = before.get(id(m), {})
            for name, value in m.__dict__.items():
                if name not in OWN and old.get(name, MISSING) is not value and not isinstance(value, Module):
                    changed.append((m, name))
        return changed


def _never(tensor: Tensor) -> bool:
    return False


def _is_made_in(value: Tensor, log: Log) -> bool:
    """Whether a tensor was made by the event that is being recorded."""
    handle = value._pending
    return handle is not None and handle.log is log and log.current is not None and handle.value >= log.current.first


def _hook_count(module: Module) -> int:
    return sum(
        len(module.__dict__[table])
        for table in ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    )


def _settings() -> tuple:
    """What forward may depend on besides the module and its arguments."""
    return config.get("matmul_precision"), get_default_dtype()
