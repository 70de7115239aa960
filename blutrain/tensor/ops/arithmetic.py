"""Elementwise arithmetic on two operands, and selection."""

from __future__ import annotations

import math

from ...errors import message
from ..aval import Aval
from ..dispatch import apply
from ..dtype import bool_, promote
from ..primitive import NotDifferentiable, Saves, Scalar, define
from ..shapes import broadcast_shapes
from ..tensor import Tensor, aval_of
from .compare import eq, gt, logical_and, lt, ne
from .pointwise import NUMBER, _aval_of_kind, caster, elementwise, grads
from .unary import sqrt

BOTH = Saves(operands=(0, 1))
EACH_OTHER = Saves(operands=(0, 1), needed_for=((1,), (0,)))


def _vjp_add(ctx, g):
    return grads(ctx, lambda: g, lambda: g)


ADD = elementwise(
    "add",
    "add",
    vjp=_vjp_add,
    nova=Scalar("arith.addf", "arith.addi", "arith.ori"),
    doc="x + y (or, of bools).",
)


def add(x, other, *, alpha=1):
    """x + alpha * other, broadcast."""
    return apply(ADD, x, other if alpha == 1 else other * alpha)


SUB = elementwise(
    "sub",
    "subtract",
    accepts=NUMBER,
    vjp=lambda ctx, g: grads(ctx, lambda: g, lambda: -g),
    nova=Scalar("arith.subf", "arith.subi"),
    doc="x - y.",
)


def sub(x, other, *, alpha=1):
    """x - alpha * other, broadcast. Errors: TypeError for two bools (use logical_xor)."""
    return apply(SUB, x, other if alpha == 1 else other * alpha)


MUL = elementwise(
    "mul",
    "multiply",
    vjp=lambda ctx, g: grads(ctx, lambda: g * ctx.operands[1], lambda: g * ctx.operands[0]),
    saves=EACH_OTHER,
    nova=Scalar("arith.mulf", "arith.muli", "arith.andi"),
    doc="x * y (and, of bools).",
)


def mul(x, other):
    """x * other, broadcast."""
    return apply(MUL, x, other)


def _vjp_div(ctx, g):
    x, y = ctx.operands
    return grads(ctx, lambda: g / y, lambda: -(g * (x / y) / y))


DIV = elementwise(
    "div",
    "true_divide",
    result="floating",
    vjp=_vjp_div,
    saves=Saves(operands=(0, 1), needed_for=((1,), (0, 1))),
    nova=Scalar("arith.divf", compute="result"),
    doc="x / y, floating even of integers.",
)


def div(x, other, *, rounding_mode: str | None = None):
    """x / other, broadcast. rounding_mode: None (true division), "floor" or "trunc", as torch.div."""
    if rounding_mode is None:
        return apply(DIV, x, other)
    if rounding_mode == "floor":
        return floor_divide(x, other)
    if rounding_mode != "trunc":
        raise ValueError(
            message("div", "unknown rounding_mode", expected='None, "floor" or "trunc"', got=repr(rounding_mode))
        )
    promoted = promote([aval_of(x), aval_of(other)])
    return apply(DIV, x, other).trunc() if promoted.is_floating else _truncated_quotient(x, other)


def _truncated_quotient(x, y):
    """x / y of integers, rounded towards zero."""
    floor = floor_divide(x, y)
    inexact = ne(mul(floor, y), x)
    return where(logical_and(inexact, lt(floor, 0)), add(floor, 1), floor)


# nova: the exact remainder, of the sign of a, is moved to the sign of b; integers by zero give 0, and by -1 are negated
# (the smallest one wraps: processors trap)
_SIGNS_DIFFER = 'arith.cmpf("olt", arith.mulf(arith.remf(a, b), b), 0.0)'
_MOVED = f'arith.andi(arith.cmpf("une", arith.remf(a, b), 0.0), {_SIGNS_DIFFER})'
_REMAINDER = f"arith.select({_MOVED}, arith.addf(arith.remf(a, b), b), arith.remf(a, b))"
_QUOTIENT = f"math.roundeven(arith.divf(arith.subf(a, {_REMAINDER}), b))"
_BY_ZERO, _BY_MINUS_ONE = 'arith.cmpi("eq", b, 0)', 'arith.cmpi("eq", b, -1)'
_HAS_RULE = f"arith.ori({_BY_ZERO}, {_BY_MINUS_ONE})"
_FLOORDIV = f"arith.floordivsi(a, arith.select({_HAS_RULE}, 1, b))"

FLOOR_DIVIDE = elementwise(
    "floor_divide",
    "floor_divide",
    accepts=NUMBER,
    vjp=NotDifferentiable("floor_divide is constant between its steps"),
    nova=Scalar(
        f'arith.select(arith.cmpf("oeq", b, 0.0), arith.divf(a, b), {_QUOTIENT})',
        f"arith.select({_BY_ZERO}, 0, arith.select({_BY_MINUS_ONE}, arith.subi(0, a), {_FLOORDIV}))",
    ),
    doc="floor(x / y) in the promoted dtype; integers by zero give 0.",
)


def floor_divide(x, other):
    """x // other, rounded towards minus infinity."""
    return apply(FLOOR_DIVIDE, x, other)


def _vjp_remainder(ctx, g):
    x, y = ctx.operands
    return grads(ctx, lambda: g, lambda: -(g * (x // y)))


REMAINDER = elementwise(
    "remainder",
    "remainder",
    accepts=NUMBER,
    vjp=_vjp_remainder,
    saves=Saves(operands=(0, 1), needed_for=((1,), (1,))),
    nova=Scalar(_REMAINDER, f"arith.select({_HAS_RULE}, 0, arith.subi(a, arith.muli(b, {_FLOORDIV})))"),
    doc="x - y * floor(x / y): the sign of y; integers by zero give 0.",
)


def remainder(x, other):
    """x % other with the sign of `other`."""
    return apply(REMAINDER, x, other)


def _pow(xp, x, y):
    # NumPy computes float32 ** 2.0 in place of a square only for exact Python scalars it knows
    if isinstance(y, (int, float)) and y == 2:
        return xp.multiply(x, x)
    if getattr(getattr(y, "dtype", None), "kind", "") == "i" and xp.any(xp.less(y, 0)):
        return _integer_power(xp, x, y)
    return xp.power(x, y)


def _integer_power(xp, x, y):
    """x ** y of integers, which NumPy refuses where y is negative: 1 / x**-y, rounded towards 0."""
    power = xp.power(x, xp.where(y < 0, y & 1, y))
    return xp.where((y < 0) & (xp.abs(x) != 1), 0, power).astype(power.dtype)


def _vjp_pow(ctx, g):
    x, y = ctx.operands

    def wrt_base():
        if isinstance(y, (int, float)):
            return g * 0 if y == 0 else g * (pow(x, y - 1) * y)
        return g * where(eq(y, 0), 0, y * pow(x, where(eq(y, 0), 1, y - 1)))

    def wrt_exponent():
        # x ** y log x, which is 0 at x = 0 for y >= 0; the power is taken again, so that the result may be changed in place
        z = pow(x, y)
        if isinstance(x, (int, float)):
            return g * (z * (math.log(x) if x > 0 else 0.0 if x == 0 else math.nan))
        return g * (z * where(eq(x, 0), 1, x).log())

    return grads(ctx, wrt_base, wrt_exponent)


_NEGATIVE = 'arith.cmpi("slt", b, 0)'
_VANISHES = 'arith.andi(arith.cmpi("ne", a, 1), arith.cmpi("ne", a, -1))'
_INTEGER_POWER = (
    f"arith.select(arith.andi({_NEGATIVE}, {_VANISHES}), 0, "
    f"math.ipowi(a, arith.select({_NEGATIVE}, arith.andi(b, 1), b)))"
)

POW = elementwise(
    "pow",
    _pow,
    accepts=NUMBER,
    vjp=_vjp_pow,
    saves=BOTH,
    nova=Scalar("math.powf", _INTEGER_POWER),
    doc="x ** y in the promoted dtype; integers with negative powers give 0, unless x is 1 or -1.",
)


def pow(x, exponent):
    """x ** exponent, broadcast; the number 0.5 takes square roots: NaN for -inf, which as a tensor of exponents gives inf.

    Errors: ValueError for integers with a negative exponent.
    """
    if isinstance(exponent, float) and exponent == 0.5 and isinstance(x, Tensor) and x._aval.dtype.is_floating:
        return sqrt(x)
    if isinstance(exponent, int) and exponent < 0 and isinstance(x, Tensor) and not x._aval.dtype.is_floating:
        raise ValueError(
            message(
                "pow", "integers have no negative powers", got=f"{x._aval} ** {exponent}", help="cast to a float dtype"
            )
        )
    return apply(POW, x, exponent)


def _vjp_extremum(ctx, g, first):
    """The larger (smaller) operand gets the gradient; equal ones half each."""
    x, y = ctx.operands
    half = where(eq(x, y), 0.5, 0.0)
    return grads(
        ctx,
        lambda: g * where(first(x, y), 1.0, half),
        lambda: g * where(first(y, x), 1.0, half),
    )


MAXIMUM = elementwise(
    "maximum",
    "maximum",
    vjp=lambda ctx, g: _vjp_extremum(ctx, g, gt),
    saves=BOTH,
    nova=Scalar("arith.maximumf", "arith.maxsi", "arith.ori"),
    doc="The larger of x and y, NaN if one is; equal operands get half the gradient each.",
)


def maximum(x, other):
    """Elementwise larger of two, broadcast."""
    return apply(MAXIMUM, x, other)


MINIMUM = elementwise(
    "minimum",
    "minimum",
    vjp=lambda ctx, g: _vjp_extremum(ctx, g, lt),
    saves=BOTH,
    nova=Scalar("arith.minimumf", "arith.minsi", "arith.andi"),
    doc="The smaller of x and y, NaN if one is; equal operands get half the gradient each.",
)


def minimum(x, other):
    """Elementwise smaller of two, broadcast."""
    return apply(MINIMUM, x, other)


def _infer_where(condition: Aval, x: Aval, y: Aval) -> Aval:
    if condition.dtype is not bool_:
        raise TypeError(message("where", "the condition is not bool", got=str(condition), help="compare it with 0"))
    return Aval(broadcast_shapes("where", [condition.shape, x.shape, y.shape]), promote([x, y]))


def _eager_where(xp, condition, x, y):
    kinds = [v.dtype if hasattr(v, "dtype") else type(v) for v in (x, y)]
    avals = [_aval_of_kind(k) for k in kinds]
    dtype = promote(avals)
    casts = [caster("where", a.weak, k, dtype, dtype) for a, k in zip(avals, kinds)]
    x, y = (v if c is None else c(v) for v, c in zip((x, y), casts))
    if avals[0].weak and avals[1].weak:
        x = xp.asarray(x, dtype=dtype.numpy)
    return xp.where(condition, x, y)


def _vjp_where(ctx, g):
    condition = ctx.operands[0]
    first, second = grads(_Tail(ctx), lambda: where(condition, g, 0), lambda: where(condition, 0, g))
    return None, first, second


class _Tail:
    """A context without its first operand."""

    def __init__(self, ctx):
        self.avals, self.needs = ctx.avals[1:], ctx.needs[1:]


WHERE = define(
    "where",
    "elementwise",
    infer=_infer_where,
    eager=_eager_where,
    vjp=_vjp_where,
    saves=Saves(operands=(0,)),
    nova=Scalar("arith.select", "arith.select", "arith.select", compute="select"),
    doc="x where the condition holds, else y, in the common dtype of x and y.",
)


def where(condition, x, y):
    """Elementwise choice: `x` where `condition` (bool) holds, else `y`; all broadcast.

    >>> x = bt.tensor([-1.0, 4.0])
    >>> bt.where(x > 0, x.sqrt(), 0.0)
    tensor([0., 2.])
    """
    return apply(WHERE, condition, x, y)


def clamp(x, min=None, max=None):
    """x limited to [min, max]; either may be a number, a tensor or None.

    The gradient is 0 outside, 1 inside and at the limits.
    """
    if min is None and max is None:
        raise ValueError(message("clamp", "neither min nor max is given"))
    for bound, beyond in ((min, lt), (max, gt)):
        if bound is not None:
            outside = beyond(x, bound)
            x = where(outside, bound, x)
    return x
