"""The trace of a step: what was recorded, in static single assignment form.

Values (inputs and results of nodes) are numbered in order of appearance. Everything that happens to state (parameters,
buffers, optimizer moments) is an entry of `updates`: a node that reads a state input always reads the value from before
the step. Two executors run a trace: the interpreter (interpret.py, the table's eager rules) and the compiled program.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields, is_dataclass
from types import SimpleNamespace
from typing import Any, NamedTuple

from ..tensor.aval import Aval
from ..tensor.primitive import Primitive
from ..tensor.tensor import Tensor


class Location(NamedTuple):
    """The user's line that caused a node."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


class Constant(NamedTuple):
    """A Python scalar operand that belongs to the program's text (weak: it takes the dtype of what it meets)."""

    value: bool | int | float


class Input(NamedTuple):
    """Value number `value`, which comes from outside.

    `role` is "state" (bound by reference, may be updated), "input" (an array bound at each run) or "scalar" (a run-time
    Python number: aval is 0-d float64 or int64, weak).
    """

    value: int
    role: str
    aval: Aval


@dataclass(slots=True)
class Node:
    """One recorded primitive. `operands`: value numbers or Constants; `results`: value numbers."""

    prim: Primitive
    operands: tuple[int | Constant, ...]
    attrs: dict[str, Any]
    results: tuple[int, ...]
    location: Location

    def key(self) -> tuple:
        """What decides the code of this node, for comparing two recordings; the location is no part of it."""
        operands = tuple([freeze(x.value) if isinstance(x, Constant) else (x,) for x in self.operands])
        return self.prim.name, operands, tuple([(k, freeze(v)) for k, v in sorted(self.attrs.items())]), self.results


@dataclass(slots=True)
class Trace:
    """A recorded sequence. `avals[v]` describes value v; `outputs` are handed out; `updates` maps the value
    number of a state input to the number of its new value.

    A node of the primitive `check` has no results; its message stands in its attrs.
    """

    device: Any
    inputs: list[Input] = field(default_factory=list)
    avals: list[Aval] = field(default_factory=list)
    nodes: list[Node] = field(default_factory=list)
    outputs: list[int] = field(default_factory=list)
    updates: dict[int, int] = field(default_factory=dict)

    def __str__(self) -> str:
        """Readable text, one line a node, with the user's line behind it."""
        lines = [f"inputs: {', '.join(f'%{x.value}: {x.aval} {x.role}' for x in self.inputs)}"]
        for n in self.nodes:
            left = ", ".join(f"%{r}: {self.avals[r]}" for r in n.results)
            operands = [f"%{x}" if isinstance(x, int) else repr(x.value) for x in n.operands]
            attrs = [f"{k}={v!r}" for k, v in n.attrs.items()]
            lines.append(f"{left or '_'} = {n.prim.name}({', '.join(operands + attrs)})  # {n.location}")
        lines += [f"%{state} <- %{value}" for state, value in self.updates.items()]
        return "\n".join([*lines, f"outputs: {', '.join(f'%{v}' for v in self.outputs)}"])


def freeze(value, leaf: Callable[[Any, type], Any] | None = None):
    """A hashable form of plain data that is equal only for data of equal types and bits.

    1, True and 1.0 differ, so do 0.0 and -0.0, a list and a tuple, two orders of a dict; NaN equals itself.
    leaf(value, type): the form of what is no plain data (by default the pair of both).
    """
    kind = type(value)
    if kind is int or kind is str or value is None:
        return value
    if isinstance(value, Tensor):  # early: what most leaves are, and what the tests below take long to find out
        return (kind, value) if leaf is None else leaf(value, kind)
    if isinstance(value, float):
        return kind, value.hex()
    if isinstance(value, (list, tuple)):
        frozen = tuple([freeze(v, leaf) for v in value])
        return frozen if kind is tuple else (kind, frozen, _attributes(value, leaf))
    if isinstance(value, dict):
        return kind, tuple([(freeze(k, leaf), freeze(v, leaf)) for k, v in value.items()]), _attributes(value, leaf)
    if isinstance(value, SimpleNamespace):
        return kind, _attributes(value, leaf)
    if is_dataclass(value) and not isinstance(value, type):
        return kind, tuple([(f.name, freeze(getattr(value, f.name), leaf)) for f in fields(value)])
    return (kind, value) if leaf is None else leaf(value, kind)


def _attributes(value, leaf: Callable[[Any, type], Any] | None):
    """A form of what a container has in attributes, as those of a subclass may."""
    own = getattr(value, "__dict__", None)
    return tuple([(k, freeze(v, leaf)) for k, v in own.items()]) if own else None
