"""The record of one operation, and the table of all of them.

Everything the framework knows of an operation stands in its record: shape rule, eager rule, derivative, what the
derivative keeps, and how nova lowers it. The records of a family stand in one file of `ops/`; no other list of
operations exists.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy

from .dtype import on_default_change

if TYPE_CHECKING:
    from .aval import Aval

TABLE: dict[str, Primitive] = {}

KINDS = (
    "elementwise",
    "reduce",
    "movement",
    "contract",
    "gather",
    "scatter",
    "random",
    "create",
    "effect",
    "composite",
)


@dataclass(frozen=True, slots=True)
class NotDifferentiable:
    """Stands for a vjp where there is none; `reason` ends up in the error of a backward that needs it."""

    reason: str


@dataclass(frozen=True, slots=True)
class Saves:
    """What backward keeps: indices of operands and of results.

    needed_for, where given, stands beside `operands`: the operands whose gradients need that one; if none of them is
    wanted it is not kept.
    """

    operands: tuple[int, ...] = ()
    results: tuple[int, ...] = ()
    needed_for: tuple[tuple[int, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class Scalar:
    """Nova lowering of an elementwise primitive: one scalar expression per element.

    `floating`, `integer`, `boolean`: the expression for operands of that category of dtype (None: cannot happen,
    `compute` casts first). It is a Python call expression: functions are full MLIR op names, `a`, `b`, `c` the operands
    in order, numbers constants of the computing dtype (also inf, nan, True, False), strings predicates. Examples:
    "arith.mulf(a, a)", "arith.divf(1.0, arith.addf(1.0, math.exp(arith.negf(a))))", 'arith.cmpf("olt", a, b)'.
    A bare op name applies to all operands in order: "arith.addf".

    `compute`: in what dtype the operands are before the expression:
      "promoted": all cast to their common dtype (weak scalars join it); comparisons, so the result may be i1;
      "result":   all cast to the result's dtype (exp of integers, true division);
      "select":   the first stays i1, the others are cast to the result's dtype (where);
    f16 and bf16 are extended to f32 (a scalar is rounded to the narrow dtype first), computed, and rounded once.
    """

    floating: str | None = None
    integer: str | None = None
    boolean: str | None = None
    compute: str = "promoted"


@dataclass(frozen=True, slots=True)
class Reduction:
    """Nova lowering of a reduction over `dims` (sorted non-negative tuple) with `keepdim`.

    combiner: `add`, `mul`, `max`, `min`, `and`, `or`, `argmax`, `argmin`. The operand is cast to the result's dtype
        first (and, or: to i1; max, min, argmax, argmin: as it is); f16 and bf16 accumulate in f32. max and min give NaN
        if there is one; argmax and argmin give the lowest index, the first NaN wins, and their `dim` is an int.
    scale: "mean" divides the result by the number of elements reduced.
    """

    combiner: str
    scale: str | None = None


@dataclass(frozen=True, slots=True)
class Indexing:
    """Nova lowering of a movement primitive, by its rule (`out[i] = in[f(i)]`). Attributes by rule:

    "reshape": shape (row-major order kept);
    "transpose": perm (result dim d is operand dim perm[d]);
    "expand": shape (size-1 and new leading dims repeat);
    "slice": starts, sizes, steps per dim (element i of dim d is starts[d] + i * steps[d]; steps may be negative);
    "flip": dims;
    "concat": dim, any number of operands of one dtype;
    "pad": low, high per dim (>= 0), value (a Python number);
    "slice_update": operands (x, value), starts, sizes, steps: x with that slice replaced by value;
    "slice_scatter": operand g, shape, starts, sizes, steps: zeros of `shape` with that slice set to g.
    """

    rule: str


@dataclass(frozen=True, slots=True)
class Special:
    """Nova lowering by a rule of its own: `cast`, `matmul`, `take`, `gather`, `index_add`, `full`, `iota`, `assign`,
    `random_bits`, ...
    """

    rule: str


@dataclass(frozen=True, slots=True)
class Composed:
    """Nova lowers it through `compose`, its meaning in simple primitives."""


class Parts(NamedTuple):
    """Where in a vector of `size` elements each operand lies before a collective, and each result after it."""

    offsets: tuple[int, ...]
    size: int
    results: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Collective:
    """Nova runs it between kernels, in place on a vector (`flat`) that its operands and results are `parts(avals, attrs)`
    of: `start(flat, **attrs)`, called by the host program where the last operand exists, returns at once; `wait(what start
    gave)` stands before the first use of a result. `replayed`, behind each launch of a program that was captured into a
    graph, is handed what `start` gave while it was. Attributes that only say where parts lie (PLACES) stay behind.
    """

    parts: Callable[[Sequence[Aval], Mapping[str, Any]], Parts]
    start: Callable[..., Any]
    wait: Callable[[Any], None]
    replayed: Callable[[list[Any]], None]

    PLACES: ClassVar[tuple[str, ...]] = ("offsets", "size", "results", "shapes")


@dataclass(frozen=True, slots=True)
class Unsupported:
    """Nova cannot compile it; `reason` is shown when a step that uses it is refused."""

    reason: str


@dataclass(frozen=True, slots=True, eq=False)
class Primitive:
    """One operation.

    infer(*avals, **attrs) -> Aval | tuple[Aval, ...]: result shapes and dtypes; raises ValueError/TypeError for bad
        input. It is remembered by (avals, attrs): attributes are hashable, the rule a pure function of them.
    eager(xp, *arrays, **attrs) -> array | tuple: computes with numpy or cupy. Weak scalars arrive as Python numbers.
    vjp(ctx, *grads) -> tuple of Tensor | None, one per operand: written with differentiable operations. `ctx` has
        `operands` and `results` (None where `saves` does not keep them), `avals` (of the operands), `result_avals`,
        `attrs` (a dict), `needs` (a bool per operand). A grad is None where that result got no gradient.
    compose(*tensors, **attrs): the meaning in simple primitives (composites only).
    tags: "view": the eager result may share the operand's memory (then it is a view of it, as in PyTorch).
        "collective": other processes take part; they run in the order in which the program calls them.
    num_results: how many results; -1: as many as `infer` gives (always a tuple).
    prepare(*avals, **attrs) -> function(*arrays): for speed, the eager rule with NumPy specialised to these avals
        (optional; the same result).
    plan(*avals, **attrs) -> (result avals, function(*arrays)): infer and the eager rule with NumPy, remembered.
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
    prepare: Callable[..., Any] | None = None
    plan: Callable[..., Any] = field(init=False)
    num_results: int = 1
    tags: frozenset[str] = field(default=frozenset())

    def __post_init__(self):
        cache = functools.lru_cache(maxsize=4096, typed=True)  # 1, 1.0 and True are different attributes
        object.__setattr__(self, "plan", cache(functools.partial(_plan, self)))


class _NegativeZero(float):
    """-0.0 equals 0.0; as a type of its own it does not share what is remembered for 0.0."""


def number_attribute(x):
    """A Python number as the value of an attribute."""
    return _NegativeZero(x) if isinstance(x, float) and x == 0 and math.copysign(1, x) < 0 else x


def define(name: str, kind: str, *, infer, eager, vjp, nova, doc: str, **rest) -> Primitive:
    """Create a record and enter it in the table.

    Errors: a name defined twice, an unknown kind, a composite without `compose`.
    """
    if name in TABLE:
        raise ValueError(f"primitive {name} is defined twice")
    if kind not in KINDS:
        raise ValueError(f"primitive {name}: unknown kind {kind!r}, expected one of {KINDS}")
    if kind == "composite" and rest.get("compose") is None:
        raise ValueError(f"primitive {name}: a composite needs `compose`")
    record = Primitive(name, kind, functools.lru_cache(maxsize=4096)(infer), eager, vjp, nova, doc, **rest)
    TABLE[name] = record
    return record


def _plan(prim: Primitive, *avals, **attrs):
    result = prim.infer(*avals, **attrs)
    if prim.prepare is not None:
        return result, prim.prepare(*avals, **attrs)
    return result, functools.partial(prim.eager, numpy, **attrs)


@on_default_change.append
def _forget_inferred() -> None:
    for record in TABLE.values():
        record.infer.cache_clear()
        record.plan.cache_clear()
