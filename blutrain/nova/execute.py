"""The flush: executes a log by one of the two executors and hands out what it computed.

The interpreter runs a sequence the first time; then the sequence is compiled, and its program runs from the next time
on. With `first_step="compiled"`, or where the interpreter needs more than `memory_limit` or than there is, it is compiled
first.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from .. import config
from ..errors import NovaError
from ..tensor import dispatch, late_checks
from ..tensor.tensor import Tensor
from .explain import announce, announce_times
from .guards import weak
from .interpret import OutOfMemory, interpret, peak_bytes
from .log import Log, root_of
from .open_graph import OpenGraph
from .pipeline import PIPELINES
from .program import Program, compile_trace
from .refuse import refuse
from .retape import OpenValues, open_values
from .slots import consumed_error
from .steps import Handle, Step, alive
from .trace import Input, Trace

if TYPE_CHECKING:
    from .record import Recorder


@dataclass(slots=True, eq=False)
class StepProgram:
    """The program of the sequence that ends at a step; None: seen, but not compiled (yet, or ever: `final`).

    owned: gives what was compiled, the module or function, which has its programs; steps do not keep it alive.
    """

    trace: Trace
    outputs: list[int]
    program: Program | None = None
    final: bool = False
    owned: Callable[[], Any] = lambda: None
    seconds: dict[str, float] = field(default_factory=dict)
    served: frozenset[int] = frozenset()

    def __post_init__(self):
        self.served = frozenset(self.outputs)

    @property
    def owner(self) -> Any:
        return self.owned()


def flush_log(recorder: Recorder, log: Log) -> None:
    """Execute `log` (already taken out of the recorder). On an exception nothing is updated, and the caller abandons
    the log.
    """
    late_checks.settle()
    step = log.steps[-1]
    slots: dict[int, weakref.ref] = {}
    if log.grad_tensors:
        slots = {key: weakref.ref(tensor) for key, tensor in log.grad_tensors.items()}
        log.grad_tensors.clear()
    held, handles = log.held(), alive(log.handles)
    graph, wanted, views = _outcome(log, held, handles)
    if log.has_input_views:
        _separate_inputs(log)
    results = _execute(recorder, log, step, wanted)
    if step.writes_inputs:
        log.write_back()
    if log.marked:
        log.unmark()
    if step.writes:
        recorder.note_updates(step)
    if views:
        _view(log, results, views)
    if graph is not None and not log.taped:
        OpenGraph(recorder, log, results, graph)
    if log.taped and log.proxies:
        log.ungate()
    _resolve(log, held, handles, results, views)
    if log.grads:
        _deliver_gradients(recorder, log, handles, results, slots)
    if step.consumed is not None:
        recorder.slots.consume(step.consumed)
        if step.adds_to_grads:
            _close_consumed(log, step)


# -------------------------------------------------------------------- what is wanted


def wanted_trace(log: Log) -> Trace:
    """The trace of a log that is about to be flushed, with what is wanted of it as outputs."""
    return trace_of(log, sorted(_outcome(log, log.held(), alive(log.handles)).wanted))


class Outcome(NamedTuple):
    """What a flush has to give for what is held.

    graph: what a later backward on tensors still held will read, None where no gradient can flow; wanted: values that
    somebody holds or that backward reads, without those that are views; views: these, as `_views` gives them.
    """

    graph: OpenValues | None
    wanted: frozenset[int]
    views: dict[int, int]


def _outcome(log: Log, held: dict[int, list[Tensor]], handles: list[Handle]) -> Outcome:
    """Remembered: a sequence and the values that are held decide it."""
    roots = []
    for value, tensors in held.items():
        for tensor in tensors:
            if tensor._requires_grad:
                roots.append(value)
    known, key = log.steps[-1].outcomes, (tuple([h.value for h in handles]), tuple(roots))
    found = known.get(key)
    if found is None:
        graph = open_values(log.steps, frozenset(roots)) if roots else None
        wanted = {h.value for h in handles} | (graph.made if graph is not None else set())
        grads = {value for _, value in log.grads.values()}
        views = _views(log, wanted, grads) if log.steps[-1].has_views else {}
        found = known[key] = Outcome(graph, frozenset((wanted | grads) - views.keys()), views)
    return found


def _views(log: Log, wanted: set[int], grads: set[int]) -> dict[int, int]:
    """The wanted values that share memory with another wanted or an outside tensor: value -> that one's value.

    They are made again as views, so that what is written to one shows in the other, as in eager mode.
    """
    views = {}
    for value in wanted - grads:
        root = log.root_value(value)
        if root != value and (root in wanted or root in log.externals or not log.is_made(root)):
            views[value] = root
    return views


def _separate_inputs(log: Log) -> None:
    """Inputs that are views of memory which this log updates are copied: they are read as they are now."""
    for value, tensor in log.externals.items():
        if tensor._base is None or value in log.arrays or any(value in step.updates for step in log.steps):
            continue
        root = root_of(tensor)
        updated = [v for step in log.steps for v in step.updates]
        states = [log.externals[v] if v in log.externals else log.captured(v) for v in updated]
        if any(root_of(state) is root for state in states):
            log.arrays[value] = tensor._buffer().copy()


# -------------------------------------------------------------------- the two executors


def _execute(recorder: Recorder, log: Log, step: Step, wanted: frozenset[int]) -> dict[int, Any]:
    if log.refused is not None:
        return interpret(trace_of(log, sorted(wanted)), log.bindings())
    entry: StepProgram | None = step.executable
    if entry is not None and entry.program is not None:
        if not wanted <= entry.served:
            entry = _compile(log, step, sorted(wanted | set(entry.outputs)))
        if entry.program is not None:
            recorder.replayed_steps += 1
            _touch(entry)
            return _run(entry.program, log)
    outputs = sorted(wanted | set(entry.outputs)) if entry is not None else sorted(wanted)
    trace = entry.trace if entry is not None and entry.outputs == outputs else trace_of(log, outputs)
    may_compile = not step.is_unstable and not (entry is not None and entry.final)
    compiles_first = may_compile and (_compiles_first(log, trace) or (entry is not None and not step.has_gradients))
    if compiles_first or (may_compile and step.has_gradients):
        entry = _compile(log, step, outputs, trace)
        if compiles_first and entry.program is not None:
            return _run(entry.program, log)
    elif entry is None:
        step.executable = StepProgram(trace, outputs, owned=weak(log.owner))
    try:
        return interpret(trace, log.bindings())
    except OutOfMemory as error:  # a model whose eager step does not fit trains all the same
        if not error.is_whole or not may_compile:
            raise
        entry = step.executable if step.executable.program is not None else _compile(log, step, outputs, trace)
        if entry.program is None:
            raise
        return _run(entry.program, log)


def _run(program: Program, log: Log) -> dict[int, Any]:
    if config.get("NOVA_CHECK"):
        from .check import run_checked

        return run_checked(program, log)
    results = program.run(log)
    if config.get("NOVA_DEBUG") >= 2 and program.runs == 1:
        announce_times(program)
    return results


def _compiles_first(log: Log, trace: Trace) -> bool:
    options = log.owner.options if log.owner is not None else None
    if options is None:
        return False
    if options.first_step == "compiled":
        return True
    return options.memory_limit is not None and peak_bytes(trace) > options.memory_limit


def _compile(log: Log, step: Step, outputs: list[int], trace: Trace | None = None) -> StepProgram:
    """Compile the sequence that ends at `step`; where that is not possible, say so once and leave it to the
    interpreter.

    Errors: NovaError with the program's largest buffers where the device has no memory for it.
    """
    trace = trace or trace_of(log, outputs)
    entry = StepProgram(trace, outputs, owned=weak(log.owner))
    _forget(step.executable)
    step.executable = entry
    options = log.owner.options if log.owner is not None else None
    location = ""
    if log.device.type not in PIPELINES:
        reason, detail = "device", str(log.device)
    elif not _room_for(entry):
        reason, detail = "programs", _changing_guard(log.owner)
    else:
        try:
            entry.program = compile_trace(trace, options)
            _touch(entry)
            announce(entry.program, log.owner)
            return entry
        except NovaError as error:
            if error.stage == "memory":  # nothing ran yet: with memory freed the same step can be repeated
                raise
            reason, detail, location = "unsupported", str(error), error.location
    entry.final = True
    location = location or (str(trace.nodes[0].location) if trace.nodes else "<empty>")
    refuse(reason, location, strict=options is not None and options.strict, detail=detail)
    return entry


def _touch(entry: StepProgram) -> None:
    """Note the use of a program (the owner keeps them least recently used first)."""
    owner = entry.owner
    if owner is None:
        return
    programs = owner.programs
    if not programs or programs[-1] is not entry:
        _forget(entry)
        programs.append(entry)


def _forget(entry: StepProgram | None) -> None:
    owner = entry.owner if entry is not None else None
    if owner is not None and entry in owner.programs:
        owner.programs.remove(entry)


def _room_for(entry: StepProgram) -> bool:
    """Make room among the owner's programs: drop the one unused longest, unless programs keep replacing each other."""
    owner = entry.owner
    if owner is None or len(owner.programs) < owner.options.max_programs:
        return True
    owner.evictions += 1
    if owner.evictions > owner.options.max_programs:
        return False
    owner.programs.pop(0).program = None
    return True


def _changing_guard(owner) -> str:
    """Names what differs between the calls, for the warning about too many programs."""
    in_use = f"{owner.options.max_programs} programs of {owner.name} are in use"
    return f"{in_use}; what keeps changing: {owner.changing_guard()}"


def trace_of(log: Log, outputs: list[int]) -> Trace:
    """The trace of all steps of a log."""
    trace = Trace(log.device, outputs=list(outputs))
    roles: dict[int, str] = {}
    for step in log.steps:
        trace.avals += step.avals
        trace.nodes += step.nodes
        trace.updates.update(step.updates)
        roles.update(dict.fromkeys(step.operands, "input"))
        roles.update(dict.fromkeys((v for v, _ in step.captured), "state"))
        roles.update(dict.fromkeys((v for _, v in step.grad_operands), "state"))
        roles.update(dict.fromkeys(step.scalars, "scalar"))
    consumed = log.steps[-1].consumed
    for step in log.steps if consumed is not None else ():
        for parameter, value in step.grad_operands:
            if id(log.leaf(parameter)) in consumed.members:
                trace.updates.pop(value, None)
    roles.update(dict.fromkeys(trace.updates, "state"))
    trace.inputs = [Input(v, roles[v], trace.avals[v]) for v in sorted(roles)]
    return trace


# -------------------------------------------------------------------- handing out


def _view(log: Log, results: dict[int, Any], views: dict[int, int]) -> None:
    """Make the values that are views of others from the arrays of those."""

    def array(value: int):
        if value in results and value not in views:
            return results[value]
        node = next((step.views[value] for step in log.steps if value in step.views), None)
        if node is None:
            tensor = log.externals.get(value)
            return (tensor if tensor is not None else log.captured(value))._array
        base = node.operands[0]
        assert isinstance(base, int)  # there is no view of a constant
        return dispatch.execute(node.prim, log.device, [array(base)], node.attrs)

    for value in views:
        results[value] = array(value)


def _resolve(
    log: Log, held: dict[int, list[Tensor]], handles: list[Handle], results: dict[int, Any], views: dict[int, int]
) -> None:
    """Give every pending tensor its array: one for each handle."""
    given: set[int] = set()
    for handle in handles:
        array = results[handle.value]
        handle.array, handle.log = array.copy() if handle.value in given else array, None
        given.add(handle.value)
    for tensors in held.values():
        for tensor in tensors:
            if tensor._pending is not None:
                tensor._array, tensor._pending = tensor._pending.array, None
    unchanged, written = [], {v for step in log.steps for v in step.updates} if views else ()
    for value, root in views.items():
        base = log.externals.get(root)
        if base is None:
            base = next(iter(held.get(root, ())), None) if log.is_made(root) else log.captured(root)
        if base is None:
            continue
        for tensor in held.get(value, ()):
            dispatch.link_view(tensor, base)
            if root not in written:
                unchanged.append(tensor)
    if unchanged and log.taped:
        dispatch.tape.renew(log.live_nodes(), unchanged)


def _close_consumed(log: Log, step: Step) -> None:
    """Gradients that were added up only inside of the step were never written: nobody may read one."""
    for known in log.steps:
        for parameter, value in known.grad_operands:
            if id(log.leaf(parameter)) in step.consumed.members:
                handle = log.externals[value]._pending = Handle(None, value)
                handle.error = consumed_error()


def _deliver_gradients(
    recorder: Recorder, log: Log, handles: list[Handle], results: dict[int, Any], slots: dict[int, weakref.ref]
) -> None:
    """Gradients that no step consumed become `p.grad`. slots: id of the parameter -> the tensor that p.grad gave."""
    added_to = {id(log.leaf(leaf)) for step in log.steps for leaf, _ in step.grad_operands}
    taken = {h.value for h in handles}
    for key, (parameter, value) in log.grads.items():
        if key in added_to:
            continue
        tensor = slots[key]() if key in slots else None
        if tensor is None:
            array = results[value].copy() if value in taken else results[value]
            tensor = Tensor._wrap(array, log.device, parameter._aval)
        taken.add(value)
        recorder.slots.set(parameter, tensor)
