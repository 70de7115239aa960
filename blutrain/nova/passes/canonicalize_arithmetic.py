"""Rules of canonicalize about elementwise operations: casts, neutral elements, cheaper equals, constants."""

from __future__ import annotations

import math

import numpy
from mlir import ir

from ...tensor.aval import Aval
from ...tensor.device import cpu
from ...tensor.dispatch import execute
from ...tensor.dtype import FLOATING, DType
from ...tensor.primitive import TABLE, Primitive, Scalar
from ..dialect.graph import Graph, attributes, constant_value, producer

# Results of these are never -0.0: their sums start from +0.0.
_SUMS = frozenset(("nova.matmul", "nova.sum", "nova.mean"))
# How many significant bits and how wide an exponent a float dtype has.
_PRECISION = {"f16": (11, 5), "bf16": (8, 8), "f32": (24, 8), "f64": (53, 11)}


def rules_for(name: str) -> tuple:
    """The rules for operations called `name` (with the prefix nova.)."""
    prim = TABLE.get(name.removeprefix("nova."))
    if prim is None:
        return ()
    if isinstance(prim.nova, Scalar):
        identity = (_first_operand,) if prim.nova.floating == "a" else ()
        return (*identity, *_RULES.get(prim.name, ()), _fold)
    return (*_RULES.get(prim.name, ()), _fold) if prim.name in ("cast", "full") else ()


def _first_operand(graph: Graph, op: ir.Operation) -> ir.Value | None:
    return _if_same_type(op, op.operands[0])


def _if_same_type(op: ir.Operation, value: ir.Value) -> ir.Value | None:
    return value if value.type == op.result.type else None


def _drop_cast(graph: Graph, op: ir.Operation) -> ir.Value | None:
    """A cast to the dtype that is there, or there and back through a dtype that holds every value of it."""
    x = op.operands[0]
    if x.type == op.result.type and not graph.is_weak(x):
        return x
    inner = producer(x, "nova.cast")
    if inner is None or graph.is_weak(inner.operands[0]):
        return None
    narrow = graph.aval(inner.operands[0]).dtype
    if inner.operands[0].type == op.result.type and _holds(graph.aval(x).dtype, narrow):
        return inner.operands[0]
    return None


def _holds(wide: DType, narrow: DType) -> bool:
    """Whether `wide` has every value of `narrow`."""
    if wide.is_floating and narrow.is_floating:
        return all(w >= n for w, n in zip(_PRECISION[wide.short], _PRECISION[narrow.short], strict=True))
    if wide.is_floating:
        return narrow.itemsize * 8 <= _PRECISION[wide.short][0] or narrow.category == 0
    if narrow.is_floating or wide.category == 0:
        return False
    return narrow.category == 0 or (wide.itemsize > narrow.itemsize and wide.is_signed >= narrow.is_signed)


def _add_zero(graph: Graph, op: ir.Operation) -> ir.Value | None:
    """x + 0. Of floats +0.0 turns -0.0 into +0.0, so only -0.0 is neutral, or +0.0 where x is a sum, which is never
    -0.0.
    """
    for x, other in (op.operands, reversed(op.operands)):
        zero = constant_value(other)
        if zero is None or zero != 0:
            continue
        neutral = not isinstance(zero, float) or math.copysign(1, zero) < 0 or _is_sum(x)
        if neutral and x.type == op.result.type:
            return x
    return None


def _is_sum(value: ir.Value) -> bool:
    """Whether `value` is a sum, possibly moved or added to another."""
    owner = value.owner
    while not isinstance(owner, ir.Block) and owner.name in ("nova.reshape", "nova.transpose", "nova.expand"):
        owner = owner.operands[0].owner
    return not isinstance(owner, ir.Block) and owner.name in _SUMS


def _sub_zero(graph: Graph, op: ir.Operation) -> ir.Value | None:
    """x - 0: of floats only +0.0 is neutral (-0.0 - -0.0 is +0.0)."""
    x, other = op.operands
    zero = constant_value(other)
    if zero is None or zero != 0 or math.copysign(1, zero) < 0:
        return None
    return _if_same_type(op, x)


def _mul_one(graph: Graph, op: ir.Operation) -> ir.Value | None:
    for x, other in (op.operands, reversed(op.operands)):
        if constant_value(other) == 1 and x.type == op.result.type:
            return x
    return None


def _div(graph: Graph, op: ir.Operation) -> ir.Value | None:
    """x / 1 is x; x divided by a power of two is x times its inverse, exactly."""
    x, other = op.operands
    number = constant_value(other)
    if number == 1:
        return _if_same_type(op, x)
    if not isinstance(number, float) or constant_value(x) is not None or not _is_power_of_two(number):
        return None
    dtype = graph.aval(other).dtype
    inverse = graph.constant(1 / number, dtype, weak=graph.is_weak(other))
    return graph.create("mul", [x, inverse], [graph.aval(op.result)]).result


def _is_power_of_two(number: float) -> bool:
    """Of a size whose inverse is a normal number in every float dtype."""
    return math.isfinite(number) and abs(math.frexp(number)[0]) == 0.5 and 2.0**-10 <= abs(number) <= 2.0**10


def _pow(graph: Graph, op: ir.Operation) -> ir.Value | None:
    """x ** 2 is x * x, as in the eager rule; x ** 1 is x."""
    x, exponent = op.operands[0], constant_value(op.operands[1])
    if exponent == 1:
        return _if_same_type(op, x)
    return (
        graph.create("mul", [x, x], [graph.aval(op.result)]).result
        if exponent == 2 and x.type == op.result.type
        else None
    )


def _neg_neg(graph: Graph, op: ir.Operation) -> ir.Value | None:
    inner = producer(op.operands[0], op.name)
    return _if_same_type(op, inner.operands[0]) if inner is not None else None


def _where(graph: Graph, op: ir.Operation) -> ir.Value | None:
    """A choice whose outcome is known, or between a value and itself."""
    condition, x, y = op.operands
    known = constant_value(condition)
    if known is not None:
        return _if_same_type(op, x if known else y)
    return _if_same_type(op, x) if x == y else None


def _full(graph: Graph, op: ir.Operation) -> ir.Value | None:
    attrs = attributes(op)
    aval = graph.aval(op.result)
    return graph.constant(attrs["value"], aval.dtype, aval.shape) if "value" in attrs else None


def _fold(graph: Graph, op: ir.Operation) -> ir.Value | None:
    """An elementwise operation on constants alone, computed by the record's eager rule."""
    numbers = [constant_value(v) for v in op.operands]
    if not numbers or any(n is None for n in numbers):
        return None
    prim = TABLE[op.name.removeprefix("nova.")]
    result = graph.aval(op.result)
    avals = [graph.aval(v) for v in op.operands]
    value = _evaluate(prim, numbers, avals, attributes(op))
    if result.dtype.category == FLOATING or math.isfinite(value):
        return graph.constant(value, result.dtype, result.shape, weak=result.weak)
    return None


def _evaluate(prim: Primitive, numbers, avals: list[Aval], attrs: dict) -> bool | int | float:
    arrays = [numpy.asarray(n).astype(a.dtype.numpy) for n, a in zip(numbers, avals, strict=True)]
    return numpy.asarray(execute(prim, cpu, arrays, attrs)).item()


_RULES = {
    "cast": (_drop_cast,),
    "full": (_full,),
    "add": (_add_zero,),
    "sub": (_sub_zero,),
    "mul": (_mul_one,),
    "div": (_div,),
    "pow": (_pow,),
    "neg": (_neg_neg,),
    "where": (_where,),
}
