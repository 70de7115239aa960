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

from ..capabilities import generators
from ..dialect.graph import Graph
from ..kernel import kernel_text
from .driver import PassFault
from .kernel_jobs import ask

NAME = "configure"
_SCHEDULED = ("linalg.generic", "nova.gather", "nova.scatter_add", "nova.cumsum")


def run(module: ir.Module, facts) -> None:
    """See the module. Errors: PassFault for a kernel that no generator takes, with the generator's reason."""
    kernels = [op for op in Graph(module).operations() if op.name == "nova.kernel"]
    texts = [kernel_text(op) for op in kernels]
    distinct = dict(zip(texts, kernels, strict=True))
    schedules = ask(schedule_of, list(distinct.values()), facts)
    known = {text: config_attribute(schedule) for text, schedule in zip(distinct, schedules, strict=True)}
    for op, text in zip(kernels, texts, strict=True):
        scheduled = _scheduled(op)
        if scheduled is not None:
            scheduled.attributes["lowering_config"] = known[text]


def schedule_of(op: ir.Operation, facts) -> dict[str, Any]:
    """The schedule of one kernel. Errors: PassFault with the reason why no generator takes it."""
    target = generators(facts)
    reason = target.supports(op)
    if reason is not None:
        raise PassFault(op, f"no generator takes this kernel: {reason}")
    return target.configure(op)


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


def _scheduled(op: ir.Operation) -> ir.Operation | None:
    """The operation of the body that carries the schedule."""
    candidates = [o.operation for o in op.regions[0].blocks[0].operations if o.operation.name in _SCHEDULED]
    anchored = [o for o in candidates if "nova.anchor" in o.attributes]
    return (anchored or candidates or [None])[0]
