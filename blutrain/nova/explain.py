"""nova.explain(model): what the compiled step of a module is made of, as text."""

from __future__ import annotations

import sys
from typing import Any

from .. import config


def explain(module) -> str:
    """The launches of the module's latest program: user lines, schedule, bytes, FLOPs, intensity, predicted and measured
    time against the roofline; memory; seconds of compiling.

    Measuring runs the program again on what is bound and puts the state back. Errors: ValueError without a program.
    """
    from .explain_table import render

    programs = programs_of(module)
    if not programs:
        raise ValueError(
            "nova.explain: this module has no compiled program yet\n"
            "  help: call model.compile() and run two training steps (or set NOVA_EXPLAIN=1)"
        )
    return render(programs[-1])


def programs_of(module) -> list[Any]:
    """The module's programs, least recently used first."""
    compiled = getattr(module, "_compiled", None)
    if compiled is None:
        return []
    from . import flush

    flush()
    return [entry.program for entry in compiled.programs if entry.program is not None]


def announce(program, owner) -> None:
    """After a compile: one line at NOVA_DEBUG=1, the whole table (without measured times) at NOVA_EXPLAIN=1."""
    name = owner.name if owner is not None else "step"
    if config.get("NOVA_DEBUG") >= 1:
        stages = ", ".join(f"{stage} {seconds:.2f} s" for stage, seconds in program.seconds.items())
        print(f"nova: compiled {name}: {stages}", file=sys.stderr)
    if config.get("NOVA_DEBUG") >= 3:
        print(program.trace, file=sys.stderr)
    if config.get("NOVA_EXPLAIN"):
        from .explain_table import render

        print(render(program, measure=False), file=sys.stderr)


def announce_times(program) -> None:
    """After a program's first run, at NOVA_DEBUG=2: its launches with measured times."""
    from .explain_table import render

    print(render(program), file=sys.stderr)
