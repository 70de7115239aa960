"""configure: every kernel gets its schedule, derived from its shapes and the device's facts.

Before:

    %2 = linalg.generic {...} ins(%x, %w) outs(%1) attrs = {nova.anchor} {...}

After:

    %2 = linalg.generic {...} ins(%x, %w) outs(%1)
           attrs = {nova.anchor, lowering_config = #nova.lowering_config<{kc = 256 : i64, mr = 14 : i64, ...}>} {...}

The attribute stands on the anchor, or on the first operation of a kernel without one. No search: see the generators'
`configure`.
"""

from __future__ import annotations

from typing import Any

from mlir import ir

from ...errors import NovaError
from ..capabilities import generators
from ..cpu.compile_workers import Further
from ..dialect.graph import Graph
from ..target_gpu import GpuFacts
from .dedupe_kernels import first_launches, kernel_numbers, kernels_of
from .driver import PassFault
from .generate import code_key, code_of, remember
from .kernel_jobs import ask

NAME = "configure"
AHEAD = "nova.ahead"  # attribute of a module whose kernels will be assembled
_SCHEDULED = ("linalg.generic", "nova.gather", "nova.scatter_add", "nova.cumsum")


def run(module: ir.Module, facts) -> None:
    """See the module. Errors: PassFault for a kernel that no generator takes, with the generator's reason."""
    step = Graph(module)
    kernels = kernels_of(step)
    numbers = kernel_numbers(step, kernels)
    is_ahead = AHEAD in module.operation.attributes and isinstance(facts, GpuFacts)
    then, also = (_machine_code, _code_of_the_runtime(facts)) if is_ahead else (None, [])
    made = ask(schedule_and_code, first_launches(kernels, numbers), facts, then, also)
    schedules = [config_attribute(schedule) for schedule, _ in made]
    for op, number in zip(kernels, numbers, strict=True):
        _attach(op, schedules[number])
    for _, code in made:
        if code is not None:
            remember(*code)


def schedule_and_code(op: ir.Operation, facts) -> tuple[dict[str, Any], tuple | None]:
    """The schedule of one kernel, and what `generate.remember` takes: its code is made on the way, where its text is
    read anyway; None where that fails, which is generate's to say. Errors: those of `schedule_of`.
    """
    schedule = schedule_of(op, facts)
    _attach(op, config_attribute(schedule))
    try:
        return schedule, (code_key(op, facts), code_of(op, facts))
    except NovaError:
        return schedule, None


def _machine_code(made: tuple[dict[str, Any], tuple | None]) -> Further | None:
    """What takes longest: workers make it of the code of one kernel while others still have none."""
    from ..gpu.assemble import assemble_ahead

    _, code = made
    return None if code is None else assemble_ahead(code[1].text, code[1].target)


def _code_of_the_runtime(facts: GpuFacts) -> list[Further]:
    """What every program on a GPU brings along."""
    from ..gpu import launch_courier
    from ..gpu.assemble import assemble_ahead

    further = assemble_ahead(launch_courier.TEXT, facts.arch)
    return [] if further is None else [further]


def schedule_of(op: ir.Operation, facts) -> dict[str, Any]:
    """The schedule of one kernel. Errors: PassFault with the reason why no generator takes it."""
    target = generators(facts)
    try:
        return target.configure(op)
    except NovaError:
        reason = target.supports(op)
        if reason is None:
            raise
        raise PassFault(op, f"no generator takes this kernel: {reason}") from None


def config_attribute(schedule: dict[str, Any]) -> ir.Attribute:
    """`#nova.lowering_config<{...}>`: ints as i64, bools, strings and tuples of them."""
    entries = ", ".join(f"{name} = {_text(value)}" for name, value in sorted(schedule.items()))
    return ir.Attribute.parse(f"#nova.lowering_config<{{{entries}}}>")


def _text(value) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        return f"{value} : i64"
    if isinstance(value, float):
        return f"{value!r} : f64"
    if isinstance(value, str):
        return f'"{value}"'
    return f"[{', '.join(_text(v) for v in value)}]"


def _attach(op: ir.Operation, schedule: ir.Attribute) -> None:
    """Puts a schedule on the operation of the body that carries it."""
    candidates = [o.operation for o in op.regions[0].blocks[0].operations if o.operation.name in _SCHEDULED]
    anchored = [o for o in candidates if "nova.anchor" in o.attributes]
    for scheduled in (anchored or candidates)[:1]:
        scheduled.attributes["lowering_config"] = schedule
