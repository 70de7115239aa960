"""The record of one operation, and the table of all of them.

Everything the framework knows of an operation stands in its record: shape rule, eager rule, derivative, what the derivative keeps, and
how nova lowers it. The records of a family stand in one file of `ops/`; no other list of operations exists.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

TABLE: dict[str, "Primitive"] = {}

KINDS = ("elementwise", "reduce", "movement", "contract", "gather", "scatter", "random", "create", "effect", "composite")


@dataclass(frozen=True, slots=True)
class NotDifferentiable:
    """Stands for a vjp where there is none; `reason` ends up in the error of a backward that needs it."""

    reason: str


@dataclass(frozen=True, slots=True)
class Saves:
    """What backward keeps: indices of operands and of results."""

    operands: tuple[int, ...] = ()
    results: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Scalar:
    """Nova lowering of an elementwise primitive: one scalar op per element.

    `floating`, `integer`, `boolean`: name of the arith/math op for that kind of computation dtype (None: not supported), or a
    short expression understood by nova's emitter (see nova/passes/lower_to_linalg.py); `compute`: dtype rule of the operands,
    "promoted" (all operands cast to the common dtype first) or "as_is".
    """

    floating: str | None = None
    integer: str | None = None
    boolean: str | None = None
    compute: str = "promoted"


@dataclass(frozen=True, slots=True)
class Reduction:
    """Nova lowering of a reduction: the combiner (`add`, `mul`, `max`, `min`, `and`, `or`, `argmax`, `argmin`)."""

    combiner: str


@dataclass(frozen=True, slots=True)
class Indexing:
    """Nova lowering of a movement primitive: the name of its indexing rule (`transpose`, `expand`, `slice`, `reshape`, ...)."""

    rule: str


@dataclass(frozen=True, slots=True)
class Special:
    """Nova lowering by a rule of its own (`contract`, `gather`, `scatter_add`, `random_bits`, `assign`, ...)."""

    rule: str


@dataclass(frozen=True, slots=True)
class Composed:
    """Nova lowers it through `compose`, its meaning in simple primitives."""


@dataclass(frozen=True, slots=True)
class Unsupported:
    """Nova cannot compile it; `reason` is shown when a step that uses it is refused."""

    reason: str


@dataclass(frozen=True, slots=True, eq=False)
class Primitive:
    """One operation.

    infer(*avals, **attrs) -> Aval | tuple[Aval, ...]: result shapes and dtypes; raises ValueError/TypeError for bad input.
    eager(xp, *arrays, **attrs) -> array | tuple: computes with numpy or cupy. Weak scalars arrive as Python numbers.
    vjp(ctx, *grads) -> tuple of Tensor | None, one per operand: written with differentiable operations. `ctx` has `operands` and
        `results` (None where `saves` does not keep them), `avals` (of the operands), `result_avals`, `attrs` (a dict), `needs` (a bool per operand).
        A grad is None where that result got no gradient.
    compose(*tensors, **attrs): the meaning in simple primitives (composites only).
    in_place: index of the operand whose storage the single result may take over without a copy, documentation only.
    """

    name: str
    kind: str
    infer: Callable[..., Any]
    eager: Callable[..., Any]
    vjp: Callable[..., Any] | NotDifferentiable
    nova: Any
    doc: str
    saves: Saves = Saves()
    compose: Callable[..., Any] | None = None
    num_results: int = 1
    tags: frozenset[str] = field(default=frozenset())


def define(name: str, kind: str, *, infer, eager, vjp, nova, doc: str, **rest) -> Primitive:
    """Create a record and enter it in the table. Errors: a name defined twice, an unknown kind, a composite without `compose`."""
    if name in TABLE:
        raise ValueError(f"primitive {name} is defined twice")
    if kind not in KINDS:
        raise ValueError(f"primitive {name}: unknown kind {kind!r}, expected one of {KINDS}")
    if kind == "composite" and rest.get("compose") is None:
        raise ValueError(f"primitive {name}: a composite needs `compose`")
    record = Primitive(name, kind, infer, eager, vjp, nova, doc, **rest)
    TABLE[name] = record
    return record
