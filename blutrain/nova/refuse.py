"""What cannot be replayed: one path for all of it.

A refused step runs by the eager rules, with one warning that names the line; under `compile(strict=True)` it raises.
Each reason here has a test in tests/test_refusals.py that a later change can lift.
"""

from __future__ import annotations

import warnings

from ..errors import CompileRefused
from .trace import Location

REASONS = {
    "value_read": "a value is read inside forward",
    "host_data": "host data becomes a tensor inside forward",
    "escapes": "a tensor made in forward outlives the call without being returned or set as a module attribute",
    "python_random": "forward moves Python's or NumPy's random state",
    "hooks": "a module or tensor in the call has hooks",
    "shared_write": "forward changes a tensor in place that another one shares memory with",
    "unstable": "forward records something different each time it is called, so its body runs at every step",
    "programs": "more kinds of steps than max_programs",
    "unsupported": "nova cannot compile an operation of the step",
    "device": "nova generates no code for this device",
    "devices": "the call's tensors are on several devices",
    "undeclared": "forward uses what is found neither in its arguments, attributes nor variables; a function has `state` for it",
    "iterator": "forward gives an iterator, which can be used up only once",
    "effects": "forward keeps changing a Python object, so its body runs at every step",
    "training": "gradients are computed into p.grad, or used by an optimizer, inside of what is compiled; do that after the call",
    "argument": "an argument of the call is neither a tensor nor a hashable Python value",
}


class NovaWarning(UserWarning):
    """A step runs by the eager rules although compile is on; the text says why and where."""


EAGERLY = "this step runs by the eager rules"
COMPILED = "what it computes is compiled all the same"
IN_PARTS = "the function's Python runs at every call, and the modules that it calls are compiled"
_warned: set[tuple[str, str]] = set()


def refuse(
    reason: str, location: Location | str, *, strict: bool, detail: str = "", help: str = "", instead: str = EAGERLY
) -> None:
    """Say once per line that a step is not replayed, and what is done instead. Errors: CompileRefused under `strict`."""
    text = f"compile: {REASONS[reason]}{': ' + detail if detail else ''}\n  at {location}"
    if help:
        text += f"\n  help: {help}"
    if strict:
        raise CompileRefused(text)
    if (reason, str(location)) not in _warned:
        _warned.add((reason, str(location)))
        warnings.warn(NovaWarning(f"{text}\n  {instead}"), stacklevel=3)


def forget_warnings() -> None:
    """Warn again about what was warned of before (used by tests)."""
    _warned.clear()
