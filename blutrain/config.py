"""Every switch: typed, documented, scoped.

A switch is set by its environment variable (read when blutrain is imported), by `config.set(...)`, or for a while:

    with blutrain.config.scope(NOVA_DEBUG=2, matmul_precision="tf32"):
        ...

A setting holds for all threads. An environment variable NOVA_* or BLUTRAIN_* that is no switch is an error that names
the nearest ones.
"""

from __future__ import annotations

import contextlib
import difflib
import os
from dataclasses import dataclass
from typing import Any

from .errors import message


@dataclass(frozen=True)
class Switch:
    """name as given to get, set and scope; environment variable; default; its type: bool, int, str or a tuple of
    choices; range of an int.
    """

    name: str
    environment: str
    default: Any
    kind: Any
    doc: str
    low: int | None = None
    high: int | None = None

    def parse(self, value, source: str):
        """`value` (a string from the environment, or a Python value) in the switch's type.

        Errors: ValueError naming the switch.
        """
        try:
            result = self._convert(value)
        except (TypeError, ValueError):
            raise ValueError(
                message("config", f"{source} has no such value", expected=self.expected(), got=repr(value))
            ) from None
        return result

    def _convert(self, value):
        if isinstance(self.kind, tuple):
            if value in self.kind:
                return value
            raise ValueError
        if self.kind is bool:
            if isinstance(value, bool | int) and value in (0, 1):
                return bool(value)
            return {"0": False, "": False, "1": True}[value] if value in ("0", "", "1") else _no_bool()
        if self.kind is int:
            number = int(value) if value != "" else self.default
            if (self.low is not None and number < self.low) or (self.high is not None and number > self.high):
                raise ValueError
            return number
        return os.fspath(value)

    def expected(self) -> str:
        if isinstance(self.kind, tuple):
            return " or ".join(self.kind)
        if self.kind is bool:
            return "0 or 1"
        if self.kind is int:
            return f"an integer from {self.low}" + ("" if self.high is None else f" to {self.high}")
        return "a text"


def _no_bool():
    raise ValueError


SWITCHES = {
    s.name: s
    for s in (
        Switch(
            "NOVA_DEBUG",
            "NOVA_DEBUG",
            0,
            int,
            "What nova prints: 1 compiles and cache hits, 2 kernel times and rates, 3 the recorded trace, "
            "4 the IR after each changing pass, 5 PTX or LLVM.",
            0,
            5,
        ),
        Switch("NOVA_DUMP", "NOVA_DUMP", "", str, "Directory for the IR of every pass and the text of every kernel."),
        Switch("NOVA_EXPLAIN", "NOVA_EXPLAIN", False, bool, "Print nova.explain(model) once a program was compiled."),
        Switch(
            "NOVA_CHECK",
            "NOVA_CHECK",
            False,
            bool,
            "Run the interpreter beside every program and name the first kernel whose output differs.",
        ),
        Switch("NOVA_DISABLE", "NOVA_DISABLE", False, bool, "compile() changes nothing: every module runs eagerly."),
        Switch(
            "NOVA_OVERRIDE",
            "NOVA_OVERRIDE",
            "",
            str,
            "Directory with edited IR or kernel text (from NOVA_DUMP) to use instead.",
        ),
        Switch(
            "NOVA_CACHE",
            "NOVA_CACHE",
            "",
            str,
            "Directory of the compile cache; 0 turns it off; empty means ~/.cache/blutrain/nova.",
        ),
        Switch(
            "num_threads", "BLUTRAIN_NUM_THREADS", 0, int, "Threads of compiled CPU programs; 0 means all cores.", 0
        ),
        Switch(
            "matmul_precision",
            "BLUTRAIN_MATMUL_PRECISION",
            "f32",
            ("f32", "tf32"),
            "How float32 matrix products on GPUs are computed: f32 in full precision, tf32 with 10 bits of mantissa.",
        ),
        Switch(
            "detect_anomaly",
            "BLUTRAIN_DETECT_ANOMALY",
            False,
            bool,
            "backward raises where a gradient becomes NaN, and names the forward line.",
        ),
        Switch(
            "update_golden",
            "BLUTRAIN_UPDATE_GOLDEN",
            False,
            bool,
            "Tests only: golden files are rewritten instead of compared.",
        ),
    )
}


def _from_environment(environment) -> dict[str, Any]:
    """The values of all switches. Errors: ValueError for an unknown NOVA_* or BLUTRAIN_* variable, or a bad value."""
    known = {s.environment: s for s in SWITCHES.values()}
    for name in environment:
        if name.startswith(("NOVA_", "BLUTRAIN_")) and name not in known:
            raise ValueError(_unknown("environment variable", name, known))
    return {
        s.name: s.parse(environment[s.environment], s.environment) if s.environment in environment else s.default
        for s in known.values()
    }


def _unknown(what: str, name: str, known) -> str:
    near = difflib.get_close_matches(name, known, 3, 0.5) or difflib.get_close_matches(name.upper(), known, 3, 0.5)
    return message(
        "config",
        f"unknown {what} {name}",
        help=f"did you mean {' or '.join(near)}?" if near else f"known are {', '.join(known)}",
    )


_values = _from_environment(os.environ)


def get(name: str):
    """The value of a switch now. Errors: KeyError for an unknown name."""
    return _values[name]


def set(**settings) -> None:
    """Set switches: `config.set(NOVA_DEBUG=1)`.

    Errors: ValueError for unknown names (naming near ones) and bad values; then none is set.
    """
    parsed = {}
    for name, value in settings.items():
        if name not in SWITCHES:
            raise ValueError(_unknown("switch", name, SWITCHES))
        parsed[name] = SWITCHES[name].parse(value, name)
    _values.update(parsed)


@contextlib.contextmanager
def scope(**settings):
    """Set switches inside a `with` block, and put back what they were."""
    before = {name: _values[name] for name in settings if name in _values}
    set(**settings)
    try:
        yield
    finally:
        _values.update(before)


def describe() -> str:
    """A line for each switch: what the page of documentation is made from."""
    return "\n".join(f"{s.environment} ({s.expected()}, default {s.default!r}): {s.doc}" for s in SWITCHES.values())
