"""group_maps: small element-wise kernels that need nothing of each other are one launch, each with blocks of its own.

Before: two parameters are updated, each where its gradient was made.

    %0 = "nova.kernel"(%p, %g) ({ %n = linalg.generic {...}  "nova.yield"(%n) }) {anchor = "map"}
    ...
    %1 = "nova.kernel"(%q, %h) ({ %n = linalg.generic {...}  "nova.yield"(%n) }) {anchor = "map"}

After:

    ...
    %1:2 = "nova.kernel"(%p, %g, %q, %h) ({
      %n = linalg.generic {...}
      %m = linalg.generic {...}
      "nova.yield"(%n, %m)
    }) {anchor = "map"}

Two kinds can move without waiting for anything new: what makes new state that nobody reads in this step (an optimizer's
updates) may run later, with the last of its group; what reads arguments alone (weights rounded to bf16) may run earlier,
with the first. A kernel is small where its bytes take less time than SMALL_US, a few times what a launch costs. The
memory that a group needs longer (gradients not yet consumed, copies made early) is at most HELD_BYTES. Updates behind
different buckets of an all-reduce stay apart: the first need not wait for the last.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from mlir import ir

from ..capabilities import generators
from ..kernel import kernel_text
from .form_kernels_skip import SKIP
from .join_kernels import join
from .step_launches import Launch, StepLaunches

NAME = "group_maps"
SMALL_US = 8.0
HELD_BYTES = 64 << 20
MAX_PARTS = 16  # of a kernel: its code grows with each, and so does the time to compile it


@dataclass
class _Group:
    members: list[Launch] = field(default_factory=list)
    held_bytes: int = 0
    parts: int = 0


def run(module: ir.Module, facts) -> None:
    """See the module."""
    step, target = StepLaunches(module), generators(facts)
    schedules: dict[str, dict] = {}  # equal layers have equal updates
    small_bytes = int(SMALL_US * facts.mem_gb_s * 1e3)
    open_groups: dict[tuple, _Group] = {}
    groups: list[tuple[tuple, _Group]] = []
    for launch in step.launches:
        kind = _kind(step, launch, small_bytes)
        if kind is None:
            continue
        text = kernel_text(launch.op)
        config = schedules.get(text) or schedules.setdefault(text, target.configure(launch.op))
        if config["form"] == "tiled":
            continue
        group, held = open_groups.get(kind), _held_bytes(step, launch, kind)
        parts = len(config["items"]) if config["form"] == "parts" else 1
        if group is None or group.parts + parts > MAX_PARTS or group.held_bytes + held > HELD_BYTES:
            group = open_groups[kind] = _Group()
            groups.append((kind, group))
        group.members.append(launch)
        group.held_bytes += held
        group.parts += parts
    for kind, group in groups:
        if len(group.members) > 1:
            _join(step, [launch.op for launch in group.members], is_late=kind[0] == "late", target=target)
    step.graph.sweep()


def _kind(step: StepLaunches, launch: Launch, small_bytes: int) -> tuple | None:
    """What a launch can be grouped with; None for one that stays as it is."""
    op = launch.op
    if op.name != "nova.kernel" or ir.StringAttr(op.attributes["anchor"]).value != "map" or SKIP in op.attributes:
        return None
    results, operands = ([step.buffers[n] for n in numbers] for numbers in (launch.results, launch.operands))
    if sum(b.bytes for b in (*results, *operands)) > small_bytes or any(b.outputs or b.is_flag for b in results):
        return None
    if all(b.state is not None and not b.readers for b in results):
        writers = {writer for b in operands for writer in step.writers(b.number)}
        return "late", frozenset(step.launches[n].bucket for n in writers if step.launches[n].is_wait)
    makers = [step.writers(b.number) for b in operands]
    return ("early",) if not any(makers) and all(b.state is None for b in results) else None


def _held_bytes(step: StepLaunches, launch: Launch, kind: tuple) -> int:
    """The memory that is alive longer once the launch is moved."""
    if kind[0] == "early":
        return sum(step.buffers[n].bytes for n in launch.results)
    return sum(step.buffers[n].bytes for n in launch.operands if step.writers(n))


def _join(step: StepLaunches, members: list[ir.Operation], *, is_late: bool, target) -> None:
    if is_late:
        _put_off(step, [v for member in members[:-1] for v in member.results], members[-1])
    else:
        _bring_forward(step, [v for member in members[1:] for v in member.operands], members[0])
    joined = join(members, members, place=members[-1 if is_late else 0])
    if target.supports(joined) is not None:
        joined.erase()
        return
    results = list(joined.results)
    for member in members:
        step.graph.replace(member, results[: len(member.results)])
        del results[: len(member.results)]


def _put_off(step: StepLaunches, values: list[ir.Value], place: ir.Operation) -> None:
    """Move views of new state that are made in front of `place` behind it."""
    number = {op: i for i, op in enumerate(step.graph.operations())}
    pending, found = list(values), set()
    while pending:
        for use in pending.pop().uses:
            user = use.owner.operation
            if number[user] < number[place] and user not in found:
                found.add(user)
                pending += user.results
    for op in sorted(found, key=number.__getitem__, reverse=True):
        op.move_after(place)


def _bring_forward(step: StepLaunches, values: list[ir.Value], place: ir.Operation) -> None:
    """Move views of arguments that are made behind `place` in front of it."""
    number = {op: i for i, op in enumerate(step.graph.operations())}
    pending, found = list(values), set()
    while pending:
        owner = pending.pop().owner
        if not isinstance(owner, ir.Block) and number[owner] > number[place]:
            found.add(owner)
            pending += owner.operands
    for op in sorted(found, key=number.__getitem__):
        op.move_before(place)
