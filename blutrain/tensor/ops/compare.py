"""Comparisons (results are bool), logic, and operations on bits."""

from __future__ import annotations

from ..dispatch import apply
from ..dtype import INTEGER
from ..primitive import NotDifferentiable, Scalar
from .pointwise import BITS, elementwise

_STEP = NotDifferentiable("the result is bool")
_BITS = NotDifferentiable("the operands are integers or bools")


def _comparison(name: str, function: str, predicate: str, doc: str):
    signed = predicate if predicate in ("eq", "ne") else "s" + predicate
    unsigned = predicate if predicate in ("eq", "ne") else "u" + predicate
    floating = "une" if predicate == "ne" else "o" + predicate
    return elementwise(
        name,
        function,
        result="bool",
        vjp=_STEP,
        nova=Scalar(
            f'arith.cmpf("{floating}", a, b)', f'arith.cmpi("{signed}", a, b)', f'arith.cmpi("{unsigned}", a, b)'
        ),
        doc=doc,
    )


EQ = _comparison("eq", "equal", "eq", "x == y; NaN equals nothing.")
NE = _comparison("ne", "not_equal", "ne", "x != y; NaN differs from everything.")
LT = _comparison("lt", "less", "lt", "x < y.")
LE = _comparison("le", "less_equal", "le", "x <= y.")
GT = _comparison("gt", "greater", "gt", "x > y.")
GE = _comparison("ge", "greater_equal", "ge", "x >= y.")


def eq(x, other):
    """x == other, elementwise."""
    return apply(EQ, x, other)


def ne(x, other):
    """x != other, elementwise."""
    return apply(NE, x, other)


def lt(x, other):
    """x < other, elementwise."""
    return apply(LT, x, other)


def le(x, other):
    """x <= other, elementwise."""
    return apply(LE, x, other)


def gt(x, other):
    """x > other, elementwise."""
    return apply(GT, x, other)


def ge(x, other):
    """x >= other, elementwise."""
    return apply(GE, x, other)


def _logical(name: str, op: str, doc: str):
    def truth(operand):
        return f'arith.cmpf("une", {operand}, 0.0)', f'arith.cmpi("ne", {operand}, 0)', operand

    expressions = [f"{op}({a}, {b})" for a, b in zip(truth("a"), truth("b"))]
    return elementwise(
        name,
        name,
        result="bool",
        vjp=_STEP,
        nova=Scalar(*expressions),
        doc=doc,
    )


LOGICAL_AND = _logical("logical_and", "arith.andi", "Are x and y both nonzero?")
LOGICAL_OR = _logical("logical_or", "arith.ori", "Is x or y nonzero?")
LOGICAL_XOR = _logical("logical_xor", "arith.xori", "Is exactly one of x and y nonzero?")
LOGICAL_NOT = elementwise(
    "logical_not",
    "logical_not",
    result="bool",
    vjp=_STEP,
    nova=Scalar('arith.cmpf("oeq", a, 0.0)', 'arith.cmpi("eq", a, 0)', "arith.xori(a, True)"),
    doc="Is x zero?",
)


def logical_and(x, other):
    """Both nonzero, elementwise, as bool."""
    return apply(LOGICAL_AND, x, other)


def logical_or(x, other):
    """Either nonzero, elementwise, as bool."""
    return apply(LOGICAL_OR, x, other)


def logical_xor(x, other):
    """Exactly one nonzero, elementwise, as bool."""
    return apply(LOGICAL_XOR, x, other)


def logical_not(x):
    """Zero, elementwise, as bool."""
    return apply(LOGICAL_NOT, x)


def _bits(name: str, op: str, doc: str):
    return elementwise(
        name,
        name,
        accepts=BITS,
        vjp=_BITS,
        nova=Scalar(None, op, op),
        doc=doc,
    )


BITWISE_AND = _bits("bitwise_and", "arith.andi", "Bits set in x and y.")
BITWISE_OR = _bits("bitwise_or", "arith.ori", "Bits set in x or y.")
BITWISE_XOR = _bits("bitwise_xor", "arith.xori", "Bits set in exactly one of x and y.")
BITWISE_NOT = elementwise(
    "bitwise_not",
    "invert",
    accepts=BITS,
    vjp=_BITS,
    nova=Scalar(None, "arith.xori(a, -1)", "arith.xori(a, True)"),
    doc="The bits of x inverted.",
)


def bitwise_and(x, other):
    """x & other, of integers or bools."""
    return apply(BITWISE_AND, x, other)


def bitwise_or(x, other):
    """x | other, of integers or bools."""
    return apply(BITWISE_OR, x, other)


def bitwise_xor(x, other):
    """x ^ other, of integers or bools."""
    return apply(BITWISE_XOR, x, other)


def bitwise_not(x):
    """~x, of integers or bools."""
    return apply(BITWISE_NOT, x)


def _shift(name: str, function: str, nova: str, doc: str):
    return elementwise(
        name,
        function,
        accepts=(INTEGER,),
        vjp=_BITS,
        nova=Scalar(None, nova),
        doc=doc,
    )


SHIFT_LEFT = _shift(
    "shift_left", "left_shift", "arith.shli", "x with its bits moved up by y, 0 <= y < the number of bits."
)
SHIFT_RIGHT = _shift(
    "shift_right",
    "right_shift",
    "arith.shrsi",
    "x with its bits moved down by y, the sign kept, 0 <= y < the number of bits.",
)


def bitwise_left_shift(x, other):
    """x << other, of integers; `other` below the number of bits."""
    return apply(SHIFT_LEFT, x, other)


def bitwise_right_shift(x, other):
    """x >> other (the sign is kept), of integers; `other` below the number of bits."""
    return apply(SHIFT_RIGHT, x, other)
