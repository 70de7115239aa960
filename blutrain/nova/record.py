"""The recorder: fills dispatch's slot and turns what user code does into events of the log.

Each public method here is one entry of the recorder's contract in tensor/dispatch.py. An event is either replayed (its step is known:
results become pending tensors, no user code runs) or recorded (user code runs on pending tensors). execute.py executes what is pending.
"""

from __future__ import annotations

import threading
from typing import Any

from .. import config
from ..errors import message, user_location
from ..tensor import dispatch
from ..tensor.aval import NeedsValue
from ..tensor.primitive import Primitive
from ..tensor.tensor import Tensor, structure_epoch
from .compiled import CompiledModule, random_state
from .execute import flush_log
from .log import FunctionCall, Log, RuntimeInt, Step, operand_key
from .open_graph import OpenGraph, graph_of
from .refuse import refuse
from .slots import GradSlots, Group, zeros_like
from .trace import Location, freeze


class Recorder:
    """One per process; installed by the first `Module.compile()`."""

    def __init__(self):
        self.recording = False
        self.log: Log | None = None
        self.root = Step(("root",), None)
        self.slots = GradSlots()
        self.location: Location | None = None
        self.replayed_steps = 0
        self._thread: int | None = None
        self._optimizer_keys: dict[int, tuple[int, int]] = {}
        self._groupings: dict[tuple, int] = {}

    # ---------------------------------------------------------------- module calls

    def module_call(self, module, args: tuple, kwargs: dict):
        """A call of a module: NotImplemented where it is not compiled (or cannot be replayed), else its result."""
        compiled: CompiledModule | None = module._compiled
        if compiled is None or self.recording or config.get("NOVA_DISABLE"):
            return NotImplemented
        self._check_thread()
        if self.log is not None and self.log.has_backward:
            self.flush()
        grad = dispatch.tape.enabled()
        state = compiled.key(), grad
        reason = compiled.refused.get(state)
        if reason is None and compiled.has_hooks():
            reason = self._refuse_call(compiled, state, "hooks")
        if reason is not None:
            return NotImplemented
        log = self.log or self._begin(_device_of(module, args, kwargs))
        log.owner = log.owner or compiled
        log.fresh = {}
        try:
            key = ("call", compiled.token, state, operand_key(log, (args, kwargs)))
        except TypeError as error:
            self._refuse_call(compiled, state, "argument", str(error))
            self._drop_if_empty(log)
            return NotImplemented
        result = self._event(log, key, [], lambda _: self._record_call(log, module, args, kwargs, state))
        if not grad and self.log is log:
            self.flush()
        return result

    def _record_call(self, log: Log, module, args, kwargs, state):
        compiled: CompiledModule = module._compiled
        before = random_state()
        known = {id(m): set(m.__dict__) for m in module.modules()}
        args, kwargs = self._proxied(log, args), self._proxied(log, kwargs)
        with compiled.noting(), self._recording(log):
            result = module._call_eager(*args, **kwargs)
        if self.log is not log:  # refused inside
            compiled.refused[state] = log.refused[0]
            return result
        if random_state() != before:
            self.refuse("python_random")
        self._note_attributes(log, module, known)
        if self.log is log:
            self._look_for_escapes(log, result)
        if self.log is not log:
            compiled.refused[state] = log.refused[0]
        return result

    def _proxied(self, log: Log, tree):
        """Arguments with a proxy leaf for each tensor that comes with an eager tape of its own: backward stops there."""
        from .log import map_tree

        def proxy(t: Tensor) -> Tensor:
            if t._pending is not None or t.grad_fn is None:
                return t
            if id(t) not in log.proxies:
                log.proxies[id(t)] = dispatch.tape.gate(t)
            return t

        return map_tree(tree, Tensor, proxy)

    def _note_attributes(self, log: Log, module, known: dict[int, set]) -> None:
        """Tensors that forward set as module attributes are outputs of the call, set again at replay."""
        for m in module.modules():
            for name, value in m.__dict__.items():
                if isinstance(value, Tensor) and value._pending is not None and value._pending.log is log:
                    log.current.attributes.append((m, name, log.freeze_result(value)))

    def _look_for_escapes(self, log: Log, result) -> None:
        """Refuse where a pending tensor of this call is held by something other than the result, the tape or a module attribute."""
        from .escapes import find_escape

        node = find_escape(log, result)
        if node is not None:
            self.refuse("escapes", location=node.location, detail=f"a result of {node.prim.name}")

    def _refuse_call(self, compiled: CompiledModule, state, reason: str, detail: str = "") -> str:
        refuse(reason, Location(*user_location()), strict=compiled.options.strict, detail=detail)
        compiled.refused[state] = reason
        return reason

    # ---------------------------------------------------------------- primitives and custom functions

    def primitive(self, prim: Primitive, operands: tuple, attrs: dict):
        """An operation inside a recorded body, or on a pending tensor outside of one."""
        if self.recording:
            return self._record_primitive(prim, operands, attrs)
        log = self.log
        for x in operands:
            if isinstance(x, Tensor) and x._pending is not None and (log is None or x._pending.log is not log):
                x._buffer()
        if log is None or not any(isinstance(x, Tensor) and x._pending is not None for x in operands):
            return dispatch.apply(prim, *operands, **attrs)
        self._check_thread()
        scalars = [x for x in operands if isinstance(x, float)]
        log.fresh = {}
        refs = tuple(
            log.ref(x) if isinstance(x, Tensor) else "float" if isinstance(x, float) else ("const", x) for x in operands
        )
        key = ("op", prim.name, refs, freeze(attrs), dispatch.tape.enabled())

        def body(numbers):
            numbers = iter(numbers)
            replaced = [next(numbers) if isinstance(x, float) else x for x in operands]
            self._proxied(log, tuple(operands))
            with self._recording(log):
                return self._record_primitive(prim, replaced, attrs)

        return self._event(log, key, scalars, body)

    def _record_primitive(self, prim: Primitive, operands, attrs):
        log = self.log
        for x in operands:
            if isinstance(x, Tensor) and x._pending is not None and (log is None or x._pending.log is not log):
                x._buffer()
        if prim.name == "assign":
            return self._record_assign(log, *operands)
        try:
            return log.primitive(prim, operands, attrs, Location(*(self.location or user_location())))
        except NeedsValue:
            self.refuse("data_dependent", detail=prim.name)
            return dispatch.apply(prim, *operands, **attrs)

    def _record_assign(self, log: Log, target: Tensor, value: Tensor):
        if target._pending is not None and target._pending.viewed:
            self.refuse("view_write")
            return dispatch.apply(_table("assign"), target, value)
        log.assign(target, value)
        return target

    def function_apply(self, apply, cls, args: tuple):
        """A custom Function on pending tensors outside a recorded body: one event, whose forward runs once (`apply(cls, args)`)."""
        log = self.log
        if self.recording or log is None:
            return NotImplemented
        log.fresh = {}
        key = ("function", cls, operand_key(log, args), dispatch.tape.enabled())

        def body(_):
            self._proxied(log, args)
            with self._recording(log):
                return apply(cls, args)

        return self._event(log, key, [], body)

    def note_function(self, node, operands, results) -> None:
        """The tape got a custom Function's node while recording: kept for a later hydrate."""
        log = self.log
        if not self.recording or log is None or log.current is None:
            return
        numbers = tuple(log.operand(x) if isinstance(x, Tensor) else None for x in operands)
        results = tuple(r._pending.value for r in results)
        log.current.items.append(FunctionCall(node, numbers, results))
        log.current.taped.append(True)

    def draw(self, generator) -> tuple[RuntimeInt, RuntimeInt, int]:
        """Seed, first draw number and site of a random operation in a recorded body; advances the generator."""
        step = self.log.current
        for i, (g, count) in enumerate(step.draws):
            if g is generator:
                step.draws[i] = (g, count + 1)
                generator.counter += 1
                seed, base = self.log.draw_scalars[id(generator)]
                return seed, base, count
        seed, base = self.log.scalar(generator.seed), self.log.scalar(generator.counter)
        self.log.draw_scalars[id(generator)] = seed, base
        step.draws.append((generator, 1))
        generator.counter += 1
        return seed, base, 0

    # ---------------------------------------------------------------- backward

    def backward(self, roots: list[Tensor], grads: list[Tensor | None], retain_graph: bool, create_graph: bool):
        """loss.backward() on pending roots: NotImplemented where none is pending."""
        log, graph = self._log_of(roots), None
        if log is None:
            graph = None if self.recording or retain_graph or create_graph else graph_of(roots)
            if graph is None or graph.freed or graph.has_boundary:
                return NotImplemented
            log = self._reopen(graph)
            origin = id(graph.steps[-1]), tuple(graph.value_of(r) for r in roots)
        else:
            log.fresh = {}
            origin = operand_key(log, tuple(roots))
        base = ("backward", origin, operand_key(log, tuple(grads)), retain_graph, create_graph)
        leaves = log.position.leaves.get(base)
        slots = self.slots.states(leaves)
        parent = log.position

        def body(_):
            if graph is not None:
                graph.open()
            found: list[Tensor] = []
            step = log.current
            step.grads = dict(log.grads)
            step.freed = [] if retain_graph else [r._pending.value for r in roots if r._pending is not None]
            with self._recording(log, keep_location=True):
                dispatch.tape.run_backward(
                    roots,
                    grads,
                    retain_graph=retain_graph,
                    create_graph=create_graph,
                    accumulate=lambda t, g: self._accumulate(log, found, t, g),
                )
            parent.leaves.setdefault(base, found)
            step.key = (*base, self.slots.states(parent.leaves[base]))

        self._event(log, (*base, slots), [], body)
        if graph is not None:
            graph.free()
        if log.position.boundary:
            self._hand_out_boundary(log)
        return None

    def _reopen(self, graph: OpenGraph) -> Log:
        """A new log whose first event reads what a flushed graph kept."""
        self.flush()
        log = self._begin(graph.device)
        log.owner = graph.owner
        log.fresh = {id(t): t for _, t in sorted(graph.residuals.items())}
        return log

    def _accumulate(self, log: Log, found: list, leaf: Tensor, grad: Tensor) -> None:
        """Add a gradient to a leaf's pending slot."""
        step = log.current
        gate = next((k for k, p in log.proxies.items() if p is leaf), None)
        if gate is not None:
            value = log.find(next(t for t in log.externals.values() if id(t) == gate))
            step.boundary.append((value, log.operand(grad)))
            return
        found.append(leaf)
        if id(leaf) in step.grads:
            grad = log.grad_tensor(leaf) + grad
        elif self.slots.state(leaf) == "value":
            old = leaf._grad
            value = log.grad_operand(leaf)
            total = old + grad
            step.updates[value] = log.operand(total)
            grad = total
        elif self.slots.state(leaf) == "consumed":
            self.slots.raise_consumed()
        log.grad_tensors[id(leaf)] = grad.detach() if grad.requires_grad else grad
        step.grads[id(leaf)] = leaf, log.operand(grad)

    def _hand_out_boundary(self, log: Log) -> None:
        """Backward reached eager tapes: flush, then go on there with the gradients of the boundary."""
        boundary = [(log.externals[v], log.pending(g, False)) for v, g in log.position.boundary]
        self.flush()
        dispatch.tape.run_backward(
            [t for t, _ in boundary], [g for _, g in boundary], retain_graph=False, create_graph=False
        )

    def grad(self, roots, inputs, grads, retain_graph: bool, create_graph: bool, allow_unused: bool):
        """autograd.grad on pending tensors: NotImplemented where no root is pending."""
        log = self._log_of(roots)
        if log is None:
            return NotImplemented
        log.fresh = {}
        key = (
            "grad",
            *(operand_key(log, tuple(x)) for x in (roots, inputs, grads)),
            retain_graph,
            create_graph,
            allow_unused,
        )

        def body(_):
            with self._recording(log, keep_location=True):
                return dispatch.tape.run_grad(
                    roots,
                    inputs,
                    grads,
                    retain_graph=retain_graph,
                    create_graph=create_graph,
                    allow_unused=allow_unused,
                )

        return self._event(log, key, [], body)

    def get_grad(self, parameter: Tensor) -> Tensor | None:
        """`p.grad`."""
        if self.log is not None:
            pending = self.log.grad_tensor(parameter)
            if pending is not None:
                return pending
        return self.slots.get(parameter)

    def set_grad(self, parameter: Tensor, value: Tensor | None) -> None:
        """`p.grad = value`."""
        if self.log is not None and id(parameter) in self.log.grads:
            self.flush()
        if value is not None and value._pending is not None:
            value._buffer()
        self.slots.set(parameter, value)

    # ---------------------------------------------------------------- optimizer

    def clip_grad_norm(self, clip, parameters: list[Tensor], max_norm: float, **options):
        """clip_grad_norm_ on pending gradients: `clip(grads, max_norm, **options) -> (norm, new gradients)` is its math in primitives."""
        log = self.log
        if log is None or self.recording:
            return NotImplemented
        grads = log.grads
        mine = [p for p in parameters if id(p) in grads]
        if not mine:
            return NotImplemented
        if len(mine) < len(parameters) and any(
            self.slots.state(p) == "value" for p in parameters if id(p) not in grads
        ):
            self.flush()
            return NotImplemented
        log.fresh = {}
        key = ("clip", tuple(map(id, mine)), freeze(options))

        def body(numbers):
            step = log.current
            step.grads = dict(log.grads)
            with self._recording(log), dispatch.tape.no_grad():
                norm, clipped = clip([log.grad_tensor(p) for p in mine], numbers[0], **options)
            for p, g in zip(mine, clipped, strict=True):
                log.grad_tensors[id(p)] = g
                step.grads[id(p)] = p, log.operand(g)
            return norm

        result = self._event(log, key, [float(max_norm)], body)
        if not log.taped:
            log.grad_tensors.clear()
        return result

    def optimizer_step(self, optimizer) -> bool:
        """optimizer.step(): true where it was taken into the program, which runs now."""
        log = self.log
        if log is None or self.recording:
            return False
        if not log.grads:
            self.flush()
            return False
        key = ("step", self._optimizer_key(optimizer))
        log.fresh = {}
        known = log.replayable(key)
        scalars: list[float] = []
        if known is not None:
            for bucket in known.buckets:
                bucket.count.value += 1
                scalars += optimizer._scalars(bucket)
            log.counts = [b.count for b in known.buckets]
            log.replay(known, scalars)
        else:
            log.record(key, [], lambda _: self._record_step(log, optimizer))
            log.position.buckets = log.position.buckets or log.recorded_buckets
        self.flush()
        return True

    def _record_step(self, log: Log, optimizer) -> None:
        step = log.current
        with dispatch.tape.no_grad():
            buckets = optimizer._buckets()
            pending = log.grads
            if not any(id(p) in pending for b in buckets for p in b.params):
                return
            log.counts = [b.count for b in buckets]
            log.recorded_buckets = step.buckets = buckets
            with self._recording(log):
                for bucket in buckets:
                    bucket.count.value += 1
                    grads = [self._step_gradient(log, p) for p in bucket.params]
                    numbers = [log.scalar(x) for x in optimizer._scalars(bucket)]
                    optimizer._update(bucket, bucket.params, grads, numbers)
        taken = [p for b in buckets for p in b.params if id(p) in pending]
        keep = log.owner is not None and log.owner.options.keep_grads
        if not keep:
            step.grads = {k: v for k, v in pending.items() if all(k != id(p) for p in taken)}
            step.consumed = Group(optimizer, taken)
        step.optimizer = optimizer
        step.key = ("step", self._optimizer_key(optimizer))

    def _step_gradient(self, log: Log, parameter: Tensor) -> Tensor:
        pending = log.grad_tensor(parameter)
        if pending is not None:
            return pending
        log.grad_operand(parameter)
        return parameter._grad

    def _optimizer_key(self, optimizer) -> tuple:
        """A small key for which parameters and state tensors an optimizer updates, and how."""
        cached = self._optimizer_keys.get(id(optimizer))
        if cached is None or cached[0] != structure_epoch.value:
            groups = tuple((tuple(map(id, g["params"])), freeze(_static_options(g))) for g in optimizer.param_groups)
            states = tuple((k, id(v)) for s in optimizer.state.values() for k, v in s.items())
            cached = (
                structure_epoch.value,
                self._groupings.setdefault((id(optimizer), groups, states), len(self._groupings)),
            )
            if states:
                self._optimizer_keys[id(optimizer)] = cached
        return id(optimizer), cached[1]

    def zero_grad(self, parameters: list[Tensor], set_to_none: bool, optimizer=None) -> bool:
        """zero_grad: true, all is done."""
        if self.log is not None and self.log.grads:
            self.flush()
        self.slots.zero(parameters, set_to_none, optimizer)
        return True

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
            raise RuntimeError(
                "this tensor was never computed: the step that would have made it raised"
            ) from handle.error
        tensor._array, tensor._pending = handle.array, None

    def write(self, tensor: Tensor) -> None:
        """A real tensor is about to be changed in place by eager code: what the log read of it is computed first."""
        if self.log is not None and not self.recording and self.log.reads(tensor):
            self.flush()

    def host_data(self, what: str) -> None:
        """A tensor is made from host data: inside a recorded body that cannot be replayed."""
        if self.recording and self.log is not None and self.log.current is not None:
            self.refuse("host_data", detail=what)

    def flush(self) -> None:
        """Execute what is pending."""
        log, self.log = self.log, None
        if log is not None and log.steps:
            flush_log(self, log)

    def refuse(self, reason: str, *, location: Location | None = None, detail: str = "") -> None:
        """Stop recording: run what was recorded by the eager rules and let the rest of the step run eagerly."""
        log = self.log
        location = location or Location(*(self.location or user_location()))
        strict = log.owner is not None and log.owner.options.strict
        refuse(reason, location, strict=strict, detail=detail)
        log.refused = reason, location
        self.recording, self.log = False, None
        log.steps.append(log.current)
        flush_log(self, log)

    # ---------------------------------------------------------------- the event

    def _event(self, log: Log, key: tuple, scalars: list, body):
        known = log.replayable(key)
        if known is not None:
            return log.replay(known, scalars)
        try:
            return log.record(key, scalars, body)
        except BaseException:
            self._drop_if_empty(log)
            raise

    def _drop_if_empty(self, log: Log) -> None:
        if self.log is log and not log.steps:
            self.log = None

    def _begin(self, device) -> Log:
        self.log = Log(device, self.root)
        return self.log

    def _log_of(self, roots) -> Log | None:
        log = self.log
        if log is None or self.recording or not any(r._pending is not None and r._pending.log is log for r in roots):
            return None
        self._check_thread()
        return log

    def _recording(self, log: Log, keep_location: bool = False):
        return _Recording(self, log)

    def _check_thread(self) -> None:
        me = threading.get_ident()
        if self.log is None or self._thread is None:
            self._thread = me
        elif self._thread != me:
            raise RuntimeError(
                message(
                    "compile",
                    "a second thread uses compiled modules while a step is pending in another",
                    help="finish the step (or call blutrain.nova.flush()) first, or compile in one thread only",
                )  # fmt: skip
            )


class _Recording:
    """`recorder.recording` is true inside, and false again outside, also after an exception."""

    __slots__ = ("before", "recorder")

    def __init__(self, recorder: Recorder, log: Log):
        self.recorder, self.before = recorder, recorder.recording

    def __enter__(self):
        self.recorder.recording = True

    def __exit__(self, *exc):
        self.recorder.recording = self.before
        self.recorder.location = None


def _device_of(module, args, kwargs):
    for tensor in (*module.parameters(), *args, *kwargs.values()):
        if isinstance(tensor, Tensor):
            return tensor.device
    from ..tensor.device import cpu

    return cpu


def _static_options(group: dict) -> dict:
    """The options of a parameter group that are part of the program (bools, strings), not run-time scalars."""
    return {k: v for k, v in group.items() if k != "params" and isinstance(v, (bool, str, type(None)))}


def _table(name: str) -> Primitive:
    from ..tensor.primitive import TABLE

    return TABLE[name]


__all__ = ["Any", "Recorder", "zeros_like"]
