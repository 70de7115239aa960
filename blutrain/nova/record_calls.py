"""The recorder's event of a module call: replayed where the module and its arguments are as before, else recorded."""

from __future__ import annotations

import random
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy

from .. import config
from ..errors import user_location
from ..tensor import dispatch
from ..tensor.device import Device, cpu
from ..tensor.tensor import Tensor
from .compiled import Compiled
from .escapes import find_escape
from .keys import form_of, operand_key, plain_operands
from .lifted import Floats
from .log import Log
from .refuse import COMPILED, refuse
from .steps import has_hooks, map_tree
from .trace import Location

MAX_CALLS = 32  # a loop that neither reads nor steps must not make a program of all its calls


class CallEvents:
    """The part of the Recorder that this file holds; the other parts are in record.py."""

    if TYPE_CHECKING:
        log: Log | None
        recording: bool
        head: Compiled | None
        opened: Compiled | None

        def flush(self) -> None: ...
        def refuse(self, reason: str, *, location: Location | None = None, detail: str = "") -> None: ...
        def _begin(self, device) -> Log: ...
        def _body(self) -> Any: ...
        def _check_thread(self) -> None: ...
        def _drop_if_empty(self, log: Log) -> None: ...
        def _event(
            self, log: Log, key: tuple, scalars: list, body: Callable[[list], Any], floats: tuple = ()
        ) -> Any: ...
        def _realize(self, x) -> None: ...
        def _stop(self, log: Log, reason: str, location: Location) -> None: ...
        def forget(self, token: int) -> None: ...

    def module_call(self, module, args: tuple, kwargs: dict):
        """A call of a module: NotImplemented where it is not compiled (or cannot be replayed), else its result."""
        if self.recording:
            if self.head is not None:
                self.head.met(module)
            return NotImplemented
        compiled: Compiled | None = module._compiled
        if compiled is None and self.opened is not None:
            compiled = self.opened.part(module, self.forget)
        if compiled is None or _wants_eager():
            return NotImplemented
        self._check_thread()
        if self.log is not None and (self.log.has_backward or self.log.calls >= MAX_CALLS):
            self.flush()
        grad = dispatch.tape.enabled()
        if kwargs or not all(isinstance(x, Tensor) for x in args):
            map_tree((args, kwargs), (Callable,), compiled.join)
        state = compiled.key(), grad
        if compiled.opened is not None:
            return self._call_opened(compiled, module, args, kwargs)
        reason = compiled.refused.get(state)
        if reason is None and compiled.has_hooks:
            reason = self._refuse_call(compiled, state, "hooks")
        if reason is not None:
            opens = reason != "hooks" and compiled.can_open()
            return self._call_opened(compiled, module, args, kwargs) if opens else NotImplemented
        inputs, floats = (args, kwargs, compiled.operands), compiled.floats
        is_first = self.log is None or not self.log.steps
        plain = plain_operands(args) if is_first and not kwargs and not inputs[2] else None
        if plain is None:
            map_tree(inputs, Tensor, self._realize)
        device = self._device_of_call(compiled, args if plain is not None else _tensors_of(inputs))
        if device is None:
            return NotImplemented
        log = self.log or self._begin(device)
        log.owner = log.owner or compiled
        if plain is None:
            key, more = self._call_key(log, compiled, state, inputs)
            floats = (*floats, more) if more else floats
        else:
            log.fresh, key = plain[0], ("call", compiled.token, state, plain[1])
        if key is None:
            return NotImplemented if compiled.opened is None else self._call_opened(compiled, module, args, kwargs)
        result = self._event(log, key, [], lambda _: self._record_call(log, compiled, module, inputs, state), floats)
        if floats and self.log is log and log.position.is_unstable:
            compiled.unlift()
        if not grad and self.log is log:
            self.flush()
        return result

    def _device_of_call(self, compiled: Compiled, tensors: Sequence[Tensor]) -> Device | None:
        """The device of a module's state and arguments; None, and the call runs eagerly, where they are on several."""
        device = compiled.device or (tensors[0].device if tensors else cpu)
        for tensor in tensors:
            if tensor.device is not device:
                detail = f"{tensor.device} and {device}"
                refuse("devices", Location(*user_location()), strict=compiled.options.strict, detail=detail)
                return None
        if self.log is not None and self.log.device is not device:
            self.flush()
        return device

    def _call_key(self, log: Log, compiled: Compiled, state, inputs: tuple) -> tuple[tuple | None, Floats]:
        """The key of a call, None for one that has to run eagerly; and the floats among its arguments that are no part of it."""
        log.fresh, reason, detail = {}, "hooks", ""
        try:
            arguments, floats = compiled.arguments.lift(operand_key(log, inputs, modules=True))
            if not any(has_hooks(t) for t in log.fresh.values()):
                return ("call", compiled.token, state, arguments), floats
        except TypeError as error:
            reason, detail = "argument", str(error).splitlines()[1].strip()
        self._drop_if_empty(log)
        if reason == "argument" and compiled.can_open():
            compiled.opened = reason, Location(*user_location())
        else:
            self._refuse_call(compiled, state, reason, detail)
        return None, ()

    def _call_opened(self, compiled: Compiled, module, args: tuple, kwargs: dict):
        """Run a function's Python: the modules that it calls are compiled, and what it does with their results."""
        before, self.opened = self.opened, compiled
        try:
            result = module._call_eager(*args, **kwargs)
        finally:
            self.opened = before
        if compiled.opened is not None and not compiled.parts:
            refuse(*compiled.opened, strict=compiled.options.strict)
        return result

    def _record_call(self, log: Log, compiled: Compiled, module, inputs: tuple, state):
        before, attributes, form = _random_state(), compiled.attributes(), form_of(inputs[:2])
        map_tree(inputs, Tensor, log.gate)
        self.head, log.states, opened = compiled, compiled.states(), self.opened
        try:
            with compiled.noting(log), self._body():
                # in a list, so that references to it can be counted
                boxed = [module._call_eager(*inputs[0], **inputs[1])]
        finally:
            self.head, log.states, self.opened = None, {}, opened
        changed = compiled.changed_attributes(attributes)
        if log.refused is None and _random_state() != before:
            self.refuse("python_random")
        if log.refused is None:
            # what forward set as module attributes is set again at replay; tensors among it are outputs of the call
            for m, name in changed:
                log.current.attributes.append((weakref.ref(m), name, log.freeze_result(m.__dict__[name])))
            node = find_escape(log, boxed)
            if node is not None:
                self.refuse("escapes", location=node.location, detail=f"a result of {node.prim.name}")
            elif hasattr(type(boxed[0]), "__next__") or hasattr(type(boxed[0]), "__await__"):
                self.refuse("iterator")
        state = compiled.recorded_key({(id(m), name) for m, name in changed}), state[1]
        if log.refused is None:
            self._refuse_undeclared(log, compiled)
        if log.refused is not None:
            compiled.refused[state] = log.refused[0]
        else:
            log.current.key = (*log.current.key[:2], state, *log.current.key[3:])
            log.current.is_provisional = compiled.sets_buffers(changed) or compiled.has_new_inputs
            log.current.has_effects = compiled.has_effects or form_of(inputs[:2]) != form
            if compiled.has_lasting_effects:  # the body sets its attributes itself
                log.current.attributes = []
            if effect := compiled.lasting_effect():
                location, strict = Location(*user_location()), compiled.options.strict
                refuse("effects", location, strict=strict, detail=effect, instead=COMPILED)
        return boxed[0]

    def _refuse_undeclared(self, log: Log, compiled: Compiled) -> None:
        """Refuse a call that used a tensor or module of which no key knows which it is."""
        found = compiled.undeclared(log.current.captured)
        if found is not None:
            value, detail = found
            node = next((node for node in log.current.nodes if value in node.operands), None)
            self.refuse("undeclared", location=node.location if node is not None else None, detail=detail)

    def refuse_training(self) -> None:
        """Refuse a call whose body has to do with gradient slots: a replay would not touch them. A function that calls
        modules goes on, from now on without being an event itself.
        """
        if not self.recording or self.head is None:
            return
        if not self.head.can_open():
            self.refuse("training")
            return
        assert self.log is not None
        self.opened, self.head.opened = self.head, ("training", Location(*user_location()))
        self._stop(self.log, *self.head.opened)

    def _refuse_call(self, compiled: Compiled, state, reason: str, detail: str = "") -> str:
        refuse(reason, Location(*user_location()), strict=compiled.options.strict, detail=detail)
        compiled.refused[state] = reason
        return reason


def _tensors_of(tree) -> list[Tensor]:
    """All tensors in nested arguments."""
    found: list[Tensor] = []
    map_tree(tree, Tensor, found.append)
    return found


def _wants_eager() -> bool:
    """Whether the user watches what happens: nova is switched off, NaNs are searched, saved tensors are packed."""
    return config.get("NOVA_DISABLE") or config.get("detect_anomaly") or dispatch.tape.packs()


def _random_state() -> tuple:
    """Python's and NumPy's global random states, to see whether forward moved them."""
    name, keys, *rest = cast(tuple[Any, ...], numpy.random.get_state(legacy=True))
    return random.getstate(), name, keys.tobytes(), tuple(rest)
