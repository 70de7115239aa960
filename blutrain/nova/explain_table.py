"""The text of nova.explain: a table of launches, and where the memory is."""

from __future__ import annotations

import os
from typing import Any

from .plan import Callback


def render(program: Any, *, measure: bool = True) -> str:
    """A program as text. `measure`: run it once more, launch by launch, on saved and restored state."""
    plan = program.executable.plan
    microseconds = program.profile() if measure else [None] * len(plan.launches)
    facts = program.facts
    rows = [
        _row(plan, launch, us, facts)
        for launch, us in zip(plan.launches, microseconds, strict=True)
        if not isinstance(launch, Callback)
    ]
    header = ("launch", "at", "schedule", "MB", "MFLOP", "FLOP/B", "predicted us", "measured us", "of roofline")
    total = sum(us for us in microseconds if us is not None)
    predicted = sum(map(plan.predicted_us, plan.launches))
    lines = [f"nova: {len(plan.launches)} launches of {len(plan.kernels)} kernels on {facts.description}"]
    lines += _table([header, *rows])
    if measure:
        took = f"total {total / 1e3:.2f} ms, predicted {predicted / 1e3:.2f}, in {len(rows)} launches"
        lines.append(f"{took}; bindings: {program.executable.bindings}")
    workspace = max((k.workspace_bytes for k in plan.kernels), default=0)
    lines.append(f"memory: arena {plan.arena_bytes / 2**20:.2f} MiB, workspace {workspace / 2**20:.2f} MiB")
    lines.append("compile: " + ", ".join(f"{k} {v:.2f} s" for k, v in program.seconds.items()))
    return "\n".join(lines)


def _row(plan, launch, us: float | None, facts) -> tuple[str, ...]:
    kernel = plan.kernels[launch.kernel]
    roofline = facts.roofline_us(kernel)
    places = sorted({_short(place) for place in launch.locations})
    return (
        launch.label,
        ", ".join(places[:2]) + (f" +{len(places) - 2}" if len(places) > 2 else ""),
        (f"skipped: {kernel.schedule}" if plan.is_fallback(launch) else kernel.schedule)[:60],
        f"{kernel.bytes / 1e6:.2f}",
        f"{kernel.flops / 1e6:.1f}",
        f"{kernel.flops / max(1, kernel.bytes):.1f}",
        f"{plan.predicted_us(launch):.0f}",
        "" if us is None else f"{us:.0f}",
        "" if not us or plan.is_fallback(launch) else f"{100 * roofline / us:.0f} %",
    )


def _short(place: str) -> str:
    path, _, line = place.rpartition(":")
    return f"{os.path.basename(path)}:{line}"


def _table(rows: list[tuple[str, ...]]) -> list[str]:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return [
        "  ".join(
            cell.ljust(w) if i < 3 else cell.rjust(w) for i, (cell, w) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
