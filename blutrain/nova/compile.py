"""From a trace to its plan, through MLIR: import, the passes of the target, the plan.

Loaded only where a plan is not in the cache.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
import sys
import tempfile
import time

from mlir import ir

from .. import config
from . import pipeline
from .dialect import create_context
from .import_trace import import_trace
from .passes.choose_saved import MEMORY_LIMIT
from .passes.configure import AHEAD
from .passes.driver import Settings, run_passes
from .plan import ProgramPlan
from .trace import Trace
from .uncollected import uncollected

PRECISION = "nova.precision"  # attribute of the module: "fp32", "tf32" or "bf16", where one was chosen
_numbers = itertools.count(1)


def compile_plan(
    trace: Trace, facts, precision: str | None, memory_limit: int | None
) -> tuple[ProgramPlan, dict[str, float]]:
    """The plan of `trace` and the seconds of import and passes.

    Errors: NovaError for an operation that nova does not support (naming it and the user's line), and for a fault.
    """
    debug, name = config.get("NOVA_DEBUG"), f"program-{next(_numbers):03d}"
    dump = config.get("NOVA_DUMP") or (tempfile.mkdtemp(prefix="nova-") if debug >= 4 else "")
    directory = os.path.join(dump, name) if dump else None
    if directory:
        os.makedirs(directory, exist_ok=True)
        _write(os.path.join(directory, "trace.txt"), str(trace))
    # passes make many objects and no garbage in cycles to speak of
    with uncollected(), create_context(), ir.Location.unknown():
        _, plan, seconds = lower(trace, facts, precision, memory_limit, directory)
    if directory:
        for number, kernel in enumerate(plan.kernels):
            _write(os.path.join(directory, _kernel_file(number)), kernel.text)
        _print_dump(directory, debug)
    override = config.get("NOVA_OVERRIDE")
    return (_overridden(plan, os.path.join(override, name)) if override else plan), seconds


def _kernel_file(number: int) -> str:
    return f"kernel-{number:03d}.mlir"


def _write(path: str, text: str) -> None:
    with open(path, "w") as file:
        file.write(text)


def _print_dump(directory: str, debug: int) -> None:
    """NOVA_DEBUG: at 4 the IR after each pass that changed it, at 5 the text of the kernels too."""
    for name in sorted(os.listdir(directory)):
        if debug >= (5 if name.startswith("kernel-") else 4):
            with open(os.path.join(directory, name)) as file:
                print(f"// {name}\n{file.read()}", file=sys.stderr)


def _overridden(plan: ProgramPlan, directory: str) -> ProgramPlan:
    """NOVA_OVERRIDE: the plan with the kernel texts that stand, edited, in the folder of this program (as NOVA_DUMP names it)."""
    kernels = list(plan.kernels)
    for number, kernel in enumerate(kernels):
        path = os.path.join(directory, _kernel_file(number))
        if os.path.exists(path):
            with open(path) as file:
                kernels[number] = dataclasses.replace(kernel, text=file.read())
    return dataclasses.replace(plan, kernels=tuple(kernels))


def lower(
    trace: Trace, facts, precision: str | None, memory_limit: int | None = None, dump: str | None = None
) -> tuple[ir.Module, ProgramPlan, dict[str, float]]:
    """The step after all passes, in the current context, its plan, and the seconds of import and passes."""
    start = time.perf_counter()
    module = import_trace(trace, ir.Context.current)
    if memory_limit is not None:
        limit = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), memory_limit)
        module.operation.attributes[MEMORY_LIMIT] = limit
    module.operation.attributes[AHEAD] = ir.UnitAttr.get()
    if precision is not None:
        module.operation.attributes[PRECISION] = ir.StringAttr.get(precision)
    seconds = {"import": time.perf_counter() - start}
    target = trace.device.type
    names = pipeline.passes(target, precision=precision if precision == "bf16" else None)
    report = run_passes(module, names, facts, Settings(dump, dump is not None, target))
    seconds["passes"] = sum(report.milliseconds.values()) / 1e3
    return module, report.plan, seconds
