"""NOVA_CHECK=1: every program runs beside the interpreter, from the same state.

Where an output or an updated state differs, the launches run again one by one, each compared with an evaluation of its
own kernel in NumPy (reference.py). The first that differs is named with its user lines. If all agree, a pass changed the
meaning of the step.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from mlir import ir

from ..errors import NovaError
from .compile import lower
from .dialect import create_context
from .interpret import interpret
from .kernel_reader import tensor_type
from .log import Log
from .passes.step_launches import StepLaunches
from .plan import Callback
from .program import Program, precision_of
from .reference import run_kernel

# Difference over magnitude (2-norms) that two right computations of a step in this dtype may show.
TOLERANCE = {"float64": 1e-9, "float32": 1e-4, "float16": 2e-2, "bfloat16": 5e-2}


def run_checked(program: Program, log: Log, precision: str | None = None) -> dict[int, Any]:
    """What `program.run(log)` gives. Errors: NovaError naming the first kernel that is wrong."""
    start = log.bindings()
    copies = {v: a.copy() if hasattr(a, "copy") else a for v, a in start.items()}
    saved = {v: start[v].copy() for v in program.trace.updates}
    expected = interpret(program.trace, copies)
    results = program.run(log)
    wrong = [v for v in program.trace.outputs if differs(results[v], expected[v])]
    wrong += [s for s in program.trace.updates if differs(start[s], copies[s])]
    if wrong:
        for state, before in saved.items():
            start[state][...] = before
        _locate(program, wrong, precision_of(program.trace.device, precision))
    return results


def differs(found, expected) -> bool:
    """Whether two arrays differ by more than rounding: NaN and infinities must stand at the same places."""
    found, expected = (x.get() if hasattr(x, "get") else np.asarray(x) for x in (found, expected))
    tolerance = TOLERANCE.get(found.dtype.name)
    if tolerance is None:
        return not np.array_equal(found, expected)
    found, expected = found.astype(np.float64), expected.astype(np.float64)
    finite = np.isfinite(expected)
    if not np.array_equal(found[~finite], expected[~finite], equal_nan=True) or not np.isfinite(found[finite]).all():
        return True
    scale = np.linalg.norm(expected[finite]) + 1e-6
    return bool(np.linalg.norm(found[finite] - expected[finite]) > tolerance * scale)


def _locate(program: Program, wrong: list[int], precision: str | None) -> None:
    """Raise NovaError for the first launch whose results are not what its kernel says, else for the passes."""
    executable, plan = program.executable, program.executable.plan
    with create_context(), ir.Location.unknown():
        module, *_ = lower(program.trace, program.facts, precision)
        for index, (launch, step) in enumerate(zip(plan.launches, StepLaunches(module).launches, strict=True)):
            if isinstance(launch, Callback):  # other processes take no part in this
                continue
            types = [tensor_type(v.type) for v in (*step.op.operands, *step.op.results)]
            views = [executable.view(ref, t.shape, t.dtype) for ref, t in zip(launch.operands, types, strict=True)]
            count = len(step.op.operands)
            before = [np.array(_host(v)) for v in views[:count]]
            executable.run_launch(index)
            if launch.predicate is not None and _host(executable.view(launch.predicate, (), "i32"))[()]:
                continue
            for number, reference in enumerate(run_kernel(step.op, before)):
                if differs(views[count + number], reference):
                    _fail(launch.label, launch.locations, f"result {number} of launch {index} ({launch.label}) differs")
    nodes = {r: n for n in program.trace.nodes for r in n.results}
    origin = [nodes[v] for v in wrong if v in nodes]
    where = tuple(str(n.location) for n in origin[:3])
    _fail(
        "the passes",
        where,
        f"values {wrong[:5]} differ from the eager rules, though every kernel does what its IR says",
    )


def _host(array) -> np.ndarray:
    return array.get() if hasattr(array, "get") else array


def _fail(op: str, locations: tuple[str, ...], what: str) -> None:
    help = "NOVA_DUMP=dir keeps the trace, the IR after each pass and the text of each kernel"
    raise NovaError(f"{what}\n  help: {help}", stage="check", op=op, location=", ".join(locations))
