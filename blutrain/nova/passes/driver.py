"""Runs passes over a module: timing, verification, numbered dumps, and errors that name the pass, the operation and
the user's line.
"""

from __future__ import annotations

import importlib
import os
import tempfile
import time
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from mlir import ir
from mlir.ir import MLIRError  # pyright: ignore[reportAttributeAccessIssue]  (the stubs lack it)

from ...errors import NovaError
from ..dialect import VerifyError, verify
from ..dialect.convert import user_lines
from ..dialect.verify import first_line


class PassFault(Exception):
    """Raised by a pass that meets IR it cannot deal with: `op` is the operation, the message says what is wrong with
    it.
    """

    def __init__(self, op: ir.Operation, message: str):
        self.op_text = first_line(op)
        self.lines = user_lines(op.location)
        super().__init__(message)


@dataclass(frozen=True)
class Settings:
    """How the passes run. dump: a directory for the IR after each pass that changed it, or None; verify: check the IR
    after every pass by the rules of dialect/verify.py (MLIR's own verifier always runs); target: goes into the command
    of a reproducer."""

    dump: str | None = None
    verify: bool = False
    target: str = "cpu"


@dataclass
class Report:
    """What a run took: milliseconds per pass in order, and the files written; plan: what host_program, last, returned."""

    milliseconds: dict[str, float] = field(default_factory=dict)
    dumps: list[str] = field(default_factory=list)
    plan: Any = None


def find_pass(name: str) -> ModuleType:
    """The module of pass `name`. Errors: ValueError for a name without one."""
    try:
        return importlib.import_module(f"{__package__}.{name}")
    except ModuleNotFoundError as fault:
        if fault.name != f"{__package__}.{name}":
            raise
        raise ValueError(f"no pass is called {name!r}: blutrain/nova/passes/{name}.py does not exist") from None


def run_passes(module: ir.Module, names: tuple[str, ...], facts, settings: Settings = Settings()) -> Report:
    """Run the passes `names` over `module` in place. Errors: NovaError with the pass, operation, user's line and a
    reproducer.

    Copies of the module and MLIR's verifier cost as much as several passes: they are left to a second run, from the
    start, where the first one failed.
    """
    passes = [(name, find_pass(name)) for name in names]
    with module.context, ir.Location.unknown():
        if settings.dump or settings.verify:
            return _run_checked(module, passes, facts, settings)
        start, report = module.operation.clone(), Report()
        try:
            for entry in enumerate(passes, start=1):
                _run_one(module, *entry, facts, report)
            module.operation.verify()
            return report
        except Exception as fault:
            _run_checked(ir.Module.parse(_text(start)), passes, facts, settings)
            raise _as_nova_error(fault, ",".join(names), start, settings) from fault  # no single pass failed again


def _run_checked(module: ir.Module, passes: list[tuple[str, ModuleType]], facts, settings: Settings) -> Report:
    """The same, pass by pass: its input is kept, its result verified, what it changed dumped."""
    report = Report()
    text = _text(module.operation) if settings.dump else ""
    if settings.dump:
        report.dumps.append(_write(settings.dump, 0, "import", text))
    for number, (name, found) in enumerate(passes, start=1):
        before = module.operation.clone()
        try:
            _run_one(module, number, (name, found), facts, report)
            module.operation.verify()
            if settings.verify:
                verify(module)
        except Exception as fault:
            raise _as_nova_error(fault, name, before, settings) from fault
        if settings.dump and (after := _text(module.operation)) != text:
            text = after
            report.dumps.append(_write(settings.dump, number, name, text))
    return report


def _run_one(module: ir.Module, number: int, entry: tuple[str, ModuleType], facts, report: Report) -> None:
    name, found = entry
    start = time.perf_counter()
    report.plan = found.run(module, facts)
    report.milliseconds[f"{number:02d}-{name}"] = (time.perf_counter() - start) * 1e3


def _text(op: ir.Operation) -> str:
    return str(op.get_asm(enable_debug_info=True, assume_verified=True))


def _write(directory: str, number: int, name: str, text: str) -> str:
    os.makedirs(directory, exist_ok=True)
    path = os.path.join(directory, f"{number:02d}-{name}.mlir")
    with open(path, "w") as file:
        file.write(text)
    return path


def _as_nova_error(fault: Exception, name: str, before: ir.Operation, settings: Settings) -> NovaError:
    """The fault with all that is known about it, and a file that replays the failing pass alone."""
    op, lines = "", ()
    if isinstance(fault, (PassFault, VerifyError)):
        op, lines = fault.op_text, fault.lines
    elif diagnostics := getattr(fault, "error_diagnostics", None):
        lines = user_lines(diagnostics[0].location)
    directory = settings.dump or tempfile.mkdtemp(prefix="nova-")
    path = _write(directory, 0, f"reproduce-{name}", _text(before))
    replay = f"{path}\n  replay with: python -m blutrain.nova.opt {path} --passes={name} --target={settings.target}"
    message = str(fault) if str(fault) else type(fault).__name__
    if not isinstance(fault, (PassFault, VerifyError, MLIRError)):
        message = f"{type(fault).__name__}: {message}"
    return NovaError(message, stage=name, op=op, location=", ".join(lines), dump=replay)
