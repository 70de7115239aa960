"""The recorder: fills dispatch's slot and turns what user code does into events of the log.

Each public method here and in record_calls, record_gradients and record_updates is one entry of the recorder's contract in
tensor/dispatch.py. An event is either replayed (its step is known: results become pending tensors, no user code runs) or
recorded (user code runs on pending tensors). execute.py executes what is pending.
"""

from __future__ import annotations

import threading
from threading import get_ident
from typing import Any

import numpy

from ..errors import message, user_location
from ..tensor import dispatch
from ..tensor.aval import NeedsValue, plain_number
from ..tensor.primitive import TABLE, Primitive
from ..tensor.tensor import Tensor
from .execute import flush_log
from .keys import operand_key
from .lifted import ARITHMETIC
from .log import Log
from .program import settle
from .record_calls import CallEvents
from .record_gradients import GradientEvents
from .record_updates import UpdateEvents
from .refuse import EAGERLY, IN_PARTS, refuse
from .slots import GradSlots
from .steps import FunctionCall, Leaf, RuntimeInt, Step, Writes, map_tree, memory
from .trace import Location, freeze

_EXACT = 1 << 53  # whole numbers below are floats, too
MAX_EVENTS = 1000  # a loop that neither reads nor steps must not pile up pending events for ever


class Recorder(CallEvents, GradientEvents, UpdateEvents):
    """One per process; installed by the first `Module.compile()`."""

    def __init__(self):
        self.log: Log | None = None
        self.head: Any = None  # the compiled module or function whose call is being recorded
        self.opened: Any = None  # the function that trains and is running
        self.root = Step(("root",), None)
        self.slots = GradSlots()
        self.location: tuple[str, int] | None = None
        self.replayed_steps = 0
        self.clock = 0  # counts flushes that wrote to states
        self._writes: list[Writes] = []
        self._in_body = _InBody()
        self._owner: int | None = None  # the thread whose step is pending
        self._optimizer_keys: dict[int, tuple[tuple, int]] = {}
        self._groupings: dict[tuple, int] = {}

    @property
    def recording(self) -> bool:
        """Whether this thread runs user code on pending tensors."""
        return self._in_body.value

    # ---------------------------------------------------------------- primitives and custom functions

    def primitive(self, prim: Primitive, operands: tuple, attrs: dict):
        """An operation inside a recorded body, or on a pending tensor outside of one."""
        tensors = [x for x in operands if isinstance(x, Tensor)]
        for x in tensors:
            self._realize(x)
        if self.recording:
            return self._record_primitive(prim, operands, attrs)
        log = self.log
        if log is None or all(x._pending is None for x in tensors):
            return dispatch.apply(prim, *operands, **attrs)
        self._check_thread()
        writes_memory = prim.name == "assign" and (memory(operands[0]) is not None or log.is_shared(*operands))
        if writes_memory or len(log.steps) >= MAX_EVENTS:
            self.flush()
            return dispatch.apply(prim, *operands, **attrs)
        log.fresh = {}
        if prim.name in ARITHMETIC and any(x._aval.dtype.is_floating for x in tensors):  # loss / tokens
            operands = tuple([float(x) if type(x) is int and abs(x) < _EXACT else x for x in operands])
        is_scalar = [_is_runtime_scalar(x, prim) for x in operands]
        scalars = [plain_number(x) for x, s in zip(operands, is_scalar) if s]
        refs = tuple(
            [log.ref(x) if isinstance(x, Tensor) else type(x) if s else freeze(x) for x, s in zip(operands, is_scalar)]
        )
        key = ("op", prim.name, refs, freeze(attrs), dispatch.tape.enabled())

        def body(numbers):
            numbers = iter(numbers)
            replaced = [next(numbers) if s else x for x, s in zip(operands, is_scalar)]
            map_tree(tuple(operands), Tensor, log.gate)
            with self._body():
                return self._record_primitive(prim, replaced, attrs)

        try:
            return self._event(log, key, scalars, body)
        except NeedsValue:
            self.flush()
            return dispatch.apply(prim, *operands, **attrs)

    def _realize(self, x) -> None:
        """A tensor that cannot be an operand of an event gets its array first: one that is pending in a log that was
        flushed, or, outside of a body, a pending one that a backward has to give a gradient; or a view of memory that an event
        writes.
        """
        pending = x._pending
        if pending is not None:
            is_leaf = x.requires_grad and x.grad_fn is None and not self.recording
            if is_leaf or self.log is None or pending.log is not self.log:
                x._buffer()
        elif x._version is not None and x._version.pending:
            self.await_write(x)

    def _record_primitive(self, prim: Primitive, operands, attrs):
        log = self.log
        assert log is not None
        location = Location(*(self.location or user_location()))
        if prim.name == "assign":
            target, value = operands
            return self._record_assign(log, target, value, location)
        device = dispatch.common_device(prim.name, operands, attrs)
        if device is not None and device is not log.device:
            self.refuse("devices", location=location, detail=f"{prim.name} on {device} in a call on {log.device}")
            return dispatch.apply(prim, *operands, **attrs)
        try:
            return log.primitive(prim, operands, attrs, location)
        except NeedsValue:
            if log.current.key[0] == "op":
                raise
            self.refuse("value_read", detail=f"the shape of {prim.name}'s result depends on it")
            return dispatch.apply(prim, *operands, **attrs)

    def _record_assign(self, log: Log, target: Tensor, value: Tensor, location: Location):
        prim = TABLE["assign"]
        prim.infer(target._aval, value._aval)
        # (a view shows what an optimizer's step writes: the flush comes next and makes views again from the memory)
        if log.current.key[0] != "step" and log.is_shared(target, value):
            self.refuse("shared_write")
            return dispatch.apply(prim, target, value)
        log.assign(target, value, location)
        return target

    def function_apply(self, apply, cls, args: tuple):
        """A custom Function on pending tensors outside a recorded body: one event, whose forward runs once."""
        log = self.log
        if self.recording or log is None:
            return NotImplemented
        if not any(isinstance(x, Tensor) and x._pending is not None and x._pending.log is log for x in args):
            return NotImplemented
        log.fresh = {}
        try:
            key = ("function", cls, operand_key(log, args), dispatch.tape.enabled())
        except TypeError:
            self.flush()
            return NotImplemented

        def body(_):
            map_tree(args, Tensor, log.gate)
            with self._body():
                return apply(cls, args)

        return self._event(log, key, [], body)

    def note_function(self, node, operands, results) -> None:
        """The tape got a custom Function's node while recording: kept for a later rebuild."""
        log = self.log
        if not self.recording or log is None or log.current is None:
            return
        numbers = tuple([log.operand(x) if isinstance(x, Tensor) else None for x in operands])
        for r in results:
            if (
                r._pending.value in numbers
            ):  # the function returned its argument: the result is another place on the tape
                r._pending = log.pending(log.copy(r, Location(*node.location)), False)._pending
        saved, attributes = (log.freeze_result(x) for x in node.contents())
        kept: list[int] = []
        map_tree(attributes, Leaf, lambda leaf: kept.append(leaf.value))
        linked = tuple([r.grad_fn is node for r in results])
        call = FunctionCall(node, numbers, tuple([r._pending.value for r in results]), linked, saved, attributes)
        log.note_taped(call, (), node, tuple(kept))

    def draw(self, generator) -> tuple[RuntimeInt, RuntimeInt, int]:
        """Seed, first draw number and site of a random operation in a recorded body; advances the generator."""
        step = self.log.current
        for i, (g, count) in enumerate(step.draws):
            if g is generator:
                step.draws[i] = (g, count + 1)
                generator.draw()
                seed, base = self.log.draw_scalars[id(generator)]
                return seed, base, count
        seed, base = self.log.scalar(generator.seed), self.log.scalar(generator.counter)
        assert isinstance(seed, RuntimeInt) and isinstance(base, RuntimeInt)
        self.log.draw_scalars[id(generator)] = seed, base
        step.draws.append((generator, 1))
        generator.draw()
        return seed, base, 0

    # ---------------------------------------------------------------- reads, writes, refusals

    def materialize(self, tensor: Tensor) -> None:
        """A pending tensor's value is wanted."""
        handle = tensor._pending
        if handle.log is not None:
            if self.recording and handle.log is self.log:
                self.refuse("value_read")
            else:
                self.flush()
        if handle.error is not None:
            raise handle.error
        assert handle.array is not None
        tensor._array, tensor._pending = handle.array, None

    def value_read(self) -> None:
        """User code reads the value of a real tensor: inside a recorded body what comes of it would be the same for ever."""
        if self.recording and self.log is not None and self.log.current is not None:
            self.refuse("value_read")

    def await_write(self, tensor: Tensor) -> None:
        """A real tensor is read, and the log will write its memory: a view of what a call changes in place, or its base."""
        log = self.log
        if log is None:
            tensor._versions().pending = False  # it is being written, by another thread
        elif not self.recording:
            self.flush()
        elif log.find(tensor) is None:
            self.refuse("shared_write")

    def write(self, tensor: Tensor) -> None:
        """A real tensor is about to be changed in place by eager code: what the log read of it is computed first."""
        if self.log is not None and not self.recording and self.log.reads(tensor):
            self.flush()

    def settle(self) -> None:
        """The host is about to read values of a GPU: hear first of the value checks of all steps that ran there."""
        settle()

    def host_data(self, what: str) -> None:
        """A tensor is made from host data: inside a recorded body that cannot be replayed."""
        if self.recording and self.log is not None and self.log.current is not None:
            self.refuse("host_data", detail=what)

    def note_updates(self, last: Step) -> None:
        """A sequence that writes to states ran: remember when, as every write does."""
        self.clock += 1
        if last.wrote is None:
            states = {v for step in last.path() for v in step.updates}
            written = [t for step in last.path() for v, t in step.captured if v in states]
            self._writes = [writes for writes in self._writes if any(ref() is not None for ref in writes.refs)]
            self._writes.append(Writes(written))
            last.wrote = self._writes[-1]
        last.wrote.note(self.clock)

    def written_since(self, clock: int) -> dict[int, Tensor]:
        """The tensors that compiled steps wrote after the moment `clock`, by id."""
        refs = [ref for writes in self._writes if writes.ran > clock for ref in writes.refs]
        return {id(t): t for ref in refs if (t := ref()) is not None}

    def holds_collectives(self) -> bool:
        """Whether what is pending has to meet other processes."""
        return self.log is not None and any(step.has_collectives for step in self.log.steps)

    def flush(self) -> None:
        """Execute what is pending."""
        log = self.log
        if log is not None:
            self._check_thread()
            self._run(log)

    def _run(self, log: Log) -> None:
        """Take a log out and execute it, or, where an exception comes in the way (Ctrl-C at any moment), abandon it."""
        try:
            self.log = None
            if log.steps:
                flush_log(self, log)
        except BaseException as error:
            log.abandon(error)
            raise

    def refuse(self, reason: str, *, location: Location | None = None, detail: str = "") -> None:
        """Stop recording: run what was recorded by the eager rules and let the rest of the step run eagerly."""
        log = self.log
        assert log is not None and log.current is not None  # an event is being recorded
        location = location or Location(*(self.location or user_location()))
        strict = log.owner is not None and log.owner.options.strict
        instead = IN_PARTS if self.head is not None and self.head.can_open() else EAGERLY
        refuse(reason, location, strict=strict, detail=detail, instead=instead)
        self._stop(log, reason, location)

    def _stop(self, log: Log, reason: str, location: Location) -> None:
        """Run what was recorded; the rest of the body that is being recorded runs as code outside of one."""
        assert log.current is not None
        log.refused = reason, location
        self._in_body.value = False
        log.steps.append(log.current)
        self._run(log)

    # ---------------------------------------------------------------- the event

    def _event(self, log: Log, key: tuple, scalars: list, body, floats: tuple = ()):
        """floats: those that the key lacks (lifted.py)."""
        try:
            known = log.replayable(key, floats)
            if known is None:
                return log.record(key, scalars, body, floats)
            return log.replay(known, known.numbers[floats] if floats else scalars)
        except Exception:
            self._drop_if_empty(log)
            raise
        except BaseException as error:
            self._abandon(log, error)
            raise

    def _abandon(self, log: Log, error: BaseException) -> None:
        """Ctrl-C came while an event was entered into the log: it may be there by half."""
        self._in_body.value = False
        if self.log is log:
            self.log = None
        log.abandon(error)

    def _drop_if_empty(self, log: Log) -> None:
        if self.log is log and not log.steps:
            self.log = None

    def _begin(self, device) -> Log:
        self.log = Log(device, self.root, self.slots)
        return self.log

    def _log_of(self, roots) -> Log | None:
        log = self.log
        if log is None or self.recording:
            return None
        for root in roots:
            if root._pending is not None and root._pending.log is log:
                break
        else:
            return None
        self._check_thread()
        return log

    def _body(self):
        return _Body(self)

    def _check_thread(self) -> None:
        """Errors: RuntimeError in a thread that is not the one whose step is pending."""
        me = get_ident()
        if me == self._owner:
            return
        owner = next((t for t in threading.enumerate() if t.ident == self._owner), None)
        if self.log is None or owner is None:
            self._owner = me
            return
        raise RuntimeError(
            message(
                "compile",
                "a second thread uses compiled modules while a step is pending in another",
                help="finish the step (or call blutrain.nova.flush()) first, or compile in one thread only",
            )
        )

    def forget(self, token: int) -> None:
        """A compiled module is gone: forget what began with a call of it. (The garbage collector calls this, in any thread.)"""
        gone = [key for key in list(self.root.children) if key[0] == "call" and key[1] == token]
        steps = [step for key in gone for variant in self.root.children[key] for step in variant.tree()]
        numbers = {step.number for step in steps}
        gone += [key for key in list(self.root.children) if key[0] == "backward" and key[1][0] in numbers]
        for key in gone:
            self.root.children.pop(key, None)


class _InBody(threading.local):
    value = False


class _Body:
    """Inside, user code runs on pending tensors; outside it is again as it was before, also after an exception."""

    __slots__ = ("before", "recorder")

    def __init__(self, recorder: Recorder):
        self.recorder, self.before = recorder, recorder.recording

    def __enter__(self) -> None:
        self.recorder._in_body.value = True
        self.recorder.location = None  # a backward sets it, an eager one too

    def __exit__(self, *exc) -> None:
        self.recorder._in_body.value = self.before
        self.recorder.location = None


def _is_runtime_scalar(x: Any, prim: Primitive) -> bool:
    """Whether a Python number outside of forward is read anew at each replay: floats, and numbers of random draws."""
    if isinstance(x, (float, numpy.floating)):
        return True
    return "random" in prim.tags and isinstance(x, int)
