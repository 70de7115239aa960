"""The flush: executes a log by one of the two executors and hands out what it computed.

The interpreter runs a sequence the first time; then the sequence is compiled, and its program runs from the next time on. With
`first_step="compiled"`, or where the interpreter would need more than `memory_limit`, it is compiled first.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from .. import config
from ..errors import NovaError
from ..tensor.tensor import Tensor
from .interpret import interpret, peak_bytes
from .log import Log, Step
from .open_graph import OpenGraph
from .explain import announce
from .program import Program, compile_trace
from .refuse import refuse
from .trace import Input, Trace

if TYPE_CHECKING:
    from .record import Recorder


@dataclass(slots=True)
class StepProgram:
    """The program of the sequence that ends at a step. `program` None: seen, but not compiled (yet, or ever: `final`)."""

    trace: Trace
    outputs: list[int]
    program: Program | None = None
    final: bool = False
    owner: Any = None
    residuals: list[int] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)


def flush_log(recorder: Recorder, log: Log) -> None:
    """Execute `log` (already taken out of the recorder). On an exception nothing is updated and the error goes to the caller."""
    step = log.steps[-1]
    log.grad_tensors.clear()
    wanted = log.wanted()
    try:
        results = _execute(recorder, log, step, wanted)
    except BaseException as error:
        log.fail(error)
        for count in log.counts:
            count.value -= 1
        raise
    entry = step.executable
    if entry is not None and entry.residuals and not log.taped:
        OpenGraph(log, results, entry.residuals)
    log.ungate()
    log.resolve(results)
    _deliver_gradients(recorder, log, results)
    if step.consumed is not None:
        recorder.slots.consume(step.consumed)


def _execute(recorder: Recorder, log: Log, step: Step, wanted: set[int]) -> dict[int, Any]:
    if log.refused is not None:
        return _interpret(trace_of(log, sorted(wanted)), log)
    entry: StepProgram | None = step.executable
    if entry is not None and entry.program is not None:
        if not wanted <= set(entry.outputs):
            entry = _compile(recorder, log, step, sorted(wanted | set(entry.outputs)))
        if entry.program is not None:
            recorder.replayed_steps += 1
            _touch(entry)
            return _run(entry.program, log)
    outputs = sorted(wanted | set(entry.outputs)) if entry is not None else sorted(wanted)
    trace = trace_of(log, outputs)
    final = entry is not None and entry.final
    if (
        not final
        and not step.is_unstable
        and (_compiles_first(log, trace) or (entry is not None and not step.has_gradients))
    ):
        entry = _compile(recorder, log, step, outputs, trace)
        if entry.program is not None:
            return _run(entry.program, log)
    results = _interpret(trace, log)
    if entry is None:
        step.executable = StepProgram(trace, outputs, owner=log.owner, residuals=log.residuals())
        if step.has_gradients and not step.is_unstable:
            _compile(recorder, log, step, outputs, trace)
    return results


def _compiles_first(log: Log, trace: Trace) -> bool:
    options = log.owner.options if log.owner is not None else None
    if options is None:
        return False
    if options.first_step == "compiled":
        return True
    return options.memory_limit is not None and peak_bytes(trace) > options.memory_limit


def _run(program: Program, log: Log) -> dict[int, Any]:
    if config.get("NOVA_CHECK"):
        from .check import run_checked

        return run_checked(program, log)
    return program.run(log)


def _interpret(trace: Trace, log: Log) -> dict[int, Any]:
    return interpret(trace, log.bindings())


def _compile(recorder: Recorder, log: Log, step: Step, outputs: list[int], trace: Trace | None = None) -> StepProgram:
    """Compile the sequence that ends at `step`; where that is not possible, say so once and leave it to the interpreter."""
    trace = trace or trace_of(log, outputs)
    residuals = step.executable.residuals if step.executable is not None else log.residuals()
    entry = step.executable = StepProgram(trace, outputs, owner=log.owner, residuals=residuals)
    options = log.owner.options if log.owner is not None else None
    if not log.device.is_cpu:
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
            reason, detail = "unsupported", str(error)
    entry.final = True
    location = trace.nodes[0].location if trace.nodes else "<empty>"
    refuse(reason, location, strict=options is not None and options.strict, detail=detail)
    return entry


def _touch(entry: StepProgram) -> None:
    """Note the use of a program (the owner keeps them least recently used first)."""
    if entry.owner is None:
        return
    programs = entry.owner.programs
    if not programs or programs[-1] is not entry:
        if entry in programs:
            programs.remove(entry)
        programs.append(entry)


def _room_for(entry: StepProgram) -> bool:
    """Make room among the owner's programs: drop the one not used longest, unless programs keep replacing each other."""
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
    return f"{owner.options.max_programs} programs of {owner.name} are in use; what keeps changing: {owner.changing_guard()}"


def trace_of(log: Log, outputs: list[int]) -> Trace:
    """The trace of all steps of a log."""
    trace = Trace(log.device, outputs=list(outputs))
    for step in log.steps:
        trace.avals += step.avals
        trace.nodes += step.nodes
        trace.updates.update(step.updates)
    consumed = log.steps[-1].consumed
    grads = {v: p for s in log.steps for p, v in s.grad_operands}
    if consumed is not None:
        for value, parameter in grads.items():
            if id(parameter) in consumed.members:
                trace.updates.pop(value, None)
    roles = {}
    for step in log.steps:
        roles.update({v: "input" for v in step.operands})
        roles.update({v: "state" for v, _ in step.captured})
        roles.update({v: "state" for _, v in step.grad_operands})
        roles.update({v: "scalar" for v in step.scalars})
    roles.update({v: "state" for v in trace.updates})
    trace.inputs = [Input(v, roles[v], trace.avals[v]) for v in sorted(roles)]
    return trace


def _deliver_gradients(recorder: Recorder, log: Log, results: dict[int, Any]) -> None:
    """Gradients that no step consumed become `p.grad`."""
    updated = {v: t for s in log.steps for t, v in s.grad_operands}
    into = {id(p): log.externals[v] for v, p in updated.items()}
    for key, (parameter, value) in log.grads.items():
        old = into.get(key)
        if old is not None:  # added to in place
            old._bump_version()
            continue
        tensor = log.resolved(value)
        if tensor is None or tensor._grad is not None or tensor is parameter:
            tensor = Tensor._wrap(results[value], log.device, parameter._aval)
        recorder.slots.set(parameter, tensor)
