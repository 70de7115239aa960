"""host_program: the step as a ProgramPlan, the data that the runtime builds its host program from.

Before: a function of kernels with places in memory (plan_memory), numbers (dedupe_kernels) and code (generate).

After: unchanged; what the pass returns is the plan. Its launches stand in the order of the kernels and carry the user's
lines; a kernel's text holds none of them.
"""

from __future__ import annotations

from mlir import ir

from ..dialect.convert import user_lines
from ..dialect.graph import attributes
from ..plan import READY, WAIT, Bucket, BufferRef, Callback, Check, InputSpec, Launch, OutputSpec, ProgramPlan
from .generate import generated
from .plan_memory import place_of
from .step_launches import StepLaunches

NAME = "host_program"


def run(module: ir.Module, facts) -> ProgramPlan:
    """The plan of a step that went through all passes. Errors: NovaError for one that cannot run."""
    step = StepLaunches(module)
    held = step.graph.func.attributes
    guard = place_of(ir.StringAttr(held["nova.guard"]).value) if "nova.guard" in held else None
    plan = ProgramPlan(
        kernels=generated(module, facts),
        launches=tuple(_launches(step, held, guard)),
        arena_bytes=ir.IntegerAttr(held["nova.arena_bytes"]).value,
        inputs=tuple(InputSpec(b.shape, b.dtype, role) for b, role in zip(step.buffers, step.roles, strict=False)),
        outputs=tuple(_outputs(step)),
        checks=tuple(_checks(step, held)),
        buckets=tuple(_buckets(step, held)),
        guard=guard,
    )
    plan.check()
    return plan


def _launches(step: StepLaunches, held, guard: BufferRef | None) -> list[Launch | Callback]:
    numbers = tuple(ir.DenseI64ArrayAttr(held["nova.kernels"]))
    predicated = tuple(ir.DenseI64ArrayAttr(held["nova.predicated"]))
    memory = [tuple(place_of(ir.StringAttr(p).value) for p in row) for row in held["nova.memory"]]
    skips = [ir.StringAttr(p).value for p in held["nova.skips"]] if "nova.skips" in held else [""] * len(memory)
    launches, kernels = [], iter(numbers)
    for launch, places, is_predicated, skip in zip(step.launches, memory, predicated, skips, strict=True):
        if launch.bucket is not None:
            launches.append(Callback(READY if launch.is_start else WAIT, launch.bucket))
            continue
        number = next(kernels)
        anchor = ir.StringAttr(launch.op.attributes["anchor"]).value
        predicate = guard if is_predicated else place_of(skip) if skip else None
        launches.append(Launch(number, places, predicate, user_lines(launch.op.location), f"{anchor} {number}"))
    return launches


def _buckets(step: StepLaunches, held) -> list[Bucket]:
    """The vectors of the collectives, by number."""
    found = []
    for launch, row in zip(step.launches, held["nova.memory"], strict=False):
        if launch.is_start:
            attrs, vector = attributes(launch.op), step.buffers[launch.operands[0]]
            primitive, _ = attrs.pop("primitive"), attrs.pop("offsets")
            place = place_of(ir.StringAttr(row[0]).value)
            found.append(Bucket(place, vector.shape[0], vector.dtype, primitive, attrs))
    return found


def _outputs(step: StepLaunches) -> list[OutputSpec]:
    types = ir.FunctionType(ir.TypeAttr(step.graph.func.attributes["function_type"]).value).results
    return [OutputSpec(tuple(type_.shape), str(type_.element_type)) for type_ in types]


def _checks(step: StepLaunches, held) -> list[Check]:
    if not step.checks:
        return []
    flags = [ir.StringAttr(f).value for f in held["nova.flags"]]
    return [
        Check(place_of(flag), check.message, ", ".join(user_lines(check.op.location)))
        for flag, check in zip(flags, step.checks, strict=True)
    ]
