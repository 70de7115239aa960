"""Error classes, the message builder and the search for the user's line.

Every message says which operation, which rule was broken, what was expected and what came, where in the user's code,
and what to do. Imports nothing of blutrain: every part may use it.
"""

from __future__ import annotations

import os
import sys

_PACKAGE = os.path.dirname(os.path.abspath(__file__)) + os.sep


class NovaError(RuntimeError):
    """A fault of the compiler itself (not of the user's program).

    stage: the pass or runtime stage; op: the operation or kernel; location: the user's "file:line"; dump: path of a
    reproducer.
    """

    def __init__(self, message: str, *, stage: str, op: str = "", location: str = "", dump: str = ""):
        self.stage, self.op, self.location, self.dump = stage, op, location, dump
        lines = [f"nova/{stage}: {message}"]
        if op:
            lines.append(f"  operation: {op}")
        if location:
            lines.append(f"  at {location}")
        if dump:
            lines.append(f"  reproducer: {dump}")
        super().__init__("\n".join(lines))


class CompileRefused(RuntimeError):
    """Raised under `compile(strict=True)` where a step cannot be replayed; it names the reason and the line."""


class CheckError(ValueError, RuntimeError):
    """A value that only a run can know is not allowed: a target out of range, a norm that is not finite.

    Eager mode raises it at once (on a GPU: before a value is read or anything is written), a compiled step after it ran,
    with nothing updated. text: without the user's line.
    """

    def __init__(self, text: str, location: tuple[str, int] | None = None):
        self.text = text
        super().__init__(f"{text}\n  at {location[0]}:{location[1]}" if location is not None else text)


class GradientConsumed(RuntimeError):
    """`p.grad` is asked for after a compiled step whose update consumed it, before zero_grad."""


def user_location() -> tuple[str, int]:
    """(file, line) of the innermost frame outside blutrain; ("<unknown>", 0) where there is none."""
    frame = sys._getframe(1)
    while frame is not None:
        if not frame.f_code.co_filename.startswith((_PACKAGE, "<frozen ")):  # an import is frozen code
            return frame.f_code.co_filename, frame.f_lineno
        frame = frame.f_back
    return "<unknown>", 0


def message(op: str, rule: str, *, expected: str = "", got: str = "", location=None, help: str = "") -> str:
    """The text of an error: `<op>: <rule broken>`, expected, got, the user's line, help."""
    file, line = location if location is not None else user_location()
    lines = [f"{op}: {rule}"]
    if expected:
        lines.append(f"  expected: {expected}")
    if got:
        lines.append(f"  got: {got}")
    if line:
        lines.append(f"  at {file}:{line}")
    if help:
        lines.append(f"  help: {help}")
    return "\n".join(lines)
