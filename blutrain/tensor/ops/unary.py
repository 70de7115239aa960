"""Elementwise functions of one operand."""

from __future__ import annotations

import math

from ..dispatch import apply
from ..primitive import NotDifferentiable, Saves, Scalar
from .erf import erf_array
from .pointwise import NUMBER, elementwise, grads

X = Saves(operands=(0,))
Z = Saves(results=(0,))


def _float(name: str, compute, derivative, nova: str, saves: Saves, doc: str):
    """A function with floating results; derivative(g, saved) is g times its derivative, by the saved x or result."""

    def vjp(ctx, g):
        saved = ctx.operands[0] if saves.operands else ctx.results[0]
        return grads(ctx, lambda: derivative(g, saved))

    return elementwise(
        name, compute, result="floating", vjp=vjp, saves=saves, nova=Scalar(nova, compute="result"), doc=doc
    )


def _sigmoid(xp, x):
    small = xp.exp(-xp.abs(x))  # never overflows, and keeps relative precision at large negative x
    return xp.where(x >= 0, 1, small) / (1 + small)


EXP = _float("exp", "exp", lambda g, z: g * z, "math.exp", Z, "e to the power x.")
EXPM1 = _float("expm1", "expm1", lambda g, z: g * (z + 1), "math.expm1", Z, "exp(x) - 1, precise near 0.")
LOG = _float("log", "log", lambda g, x: g / x, "math.log", X, "Natural logarithm.")
LOG1P = _float("log1p", "log1p", lambda g, x: g / (x + 1), "math.log1p", X, "log(1 + x), precise near 0.")
LOG2 = _float("log2", "log2", lambda g, x: g / (x * math.log(2)), "math.log2", X, "Logarithm to base 2.")
SQRT = _float("sqrt", "sqrt", lambda g, z: g / (z * 2), "math.sqrt", Z, "Square root.")
RSQRT = _float(
    "rsqrt",
    lambda xp, x: 1 / xp.sqrt(x),
    lambda g, z: g * (z * z * z * -0.5),
    "arith.divf(1.0, math.sqrt(a))",
    Z,
    "1 / sqrt(x).",
)
RECIPROCAL = _float("reciprocal", lambda xp, x: 1 / x, lambda g, z: -(g * (z * z)), "arith.divf(1.0, a)", Z, "1 / x.")
SIN = _float("sin", "sin", lambda g, x: g * cos(x), "math.sin", X, "Sine of radians.")
COS = _float("cos", "cos", lambda g, x: -(g * sin(x)), "math.cos", X, "Cosine of radians.")
TAN = _float("tan", "tan", lambda g, z: g * (z * z + 1), "math.tan", Z, "Tangent of radians.")
TANH = _float("tanh", "tanh", lambda g, z: g * (1 - z * z), "math.tanh", Z, "Hyperbolic tangent.")
SIGMOID = _float(
    "sigmoid",
    _sigmoid,
    lambda g, z: g * (z * (1 - z)),
    "arith.divf(1.0, arith.addf(1.0, math.exp(arith.negf(a))))",
    Z,
    "1 / (1 + exp(-x)).",
)
ERF = _float(
    "erf",
    erf_array,
    lambda g, x: g * (exp(-(x * x)) * (2 / math.sqrt(math.pi))),
    "math.erf",
    X,
    "The error function.",
)
ATAN = _float("atan", "arctan", lambda g, x: g / (x * x + 1), "math.atan", X, "Inverse tangent.")

NEG = elementwise(
    "neg",
    "negative",
    accepts=NUMBER,
    vjp=lambda ctx, g: (-g,),
    nova=Scalar("arith.negf", "arith.subi(0, a)"),
    doc="-x.",
)
ABS = elementwise(
    "abs",
    "abs",
    accepts=NUMBER,
    vjp=lambda ctx, g: (g * sign(ctx.operands[0]),),
    saves=X,
    nova=Scalar("math.absf", "math.absi"),
    doc="Absolute value; the gradient at 0 is 0.",
)
SQUARE = elementwise(
    "square",
    lambda xp, x: xp.multiply(x, x),
    accepts=NUMBER,
    vjp=lambda ctx, g: (g * (ctx.operands[0] * 2),),
    saves=X,
    nova=Scalar("arith.mulf(a, a)", "arith.muli(a, a)"),
    doc="x * x.",
)
COPY = elementwise(
    "copy",
    lambda xp, x: xp.array(x, order="C"),
    vjp=lambda ctx, g: (g,),
    nova=Scalar("a", "a", "a"),
    doc="x in new, contiguous memory.",
)


def _step(name: str, function: str, nova: Scalar, doc: str):
    """A function constant between its steps: the gradient is 0, as in PyTorch."""
    return elementwise(
        name,
        function,
        accepts=NUMBER,
        vjp=lambda ctx, g: (g * 0,),
        nova=nova,
        doc=doc,
    )


FLOOR = _step("floor", "floor", Scalar("math.floor", "a"), "The largest integer not above x; gradient 0.")
CEIL = _step("ceil", "ceil", Scalar("math.ceil", "a"), "The smallest integer not below x; gradient 0.")
ROUND = _step("round", "round", Scalar("math.roundeven", "a"), "The nearest integer, halves to even; gradient 0.")
TRUNC = _step("trunc", "trunc", Scalar("math.trunc", "a"), "x without its fraction; gradient 0.")
SIGN = _step(
    "sign",
    "sign",
    Scalar(
        'arith.select(arith.cmpf("ogt", a, 0.0), 1.0, arith.select(arith.cmpf("olt", a, 0.0), -1.0, a))',
        'arith.select(arith.cmpi("sgt", a, 0), 1, arith.select(arith.cmpi("slt", a, 0), -1, 0))',
    ),
    "-1, 0 or 1 (NaN of NaN); gradient 0.",
)


def _test(name: str, floating: str, otherwise: str, doc: str):
    return elementwise(
        name,
        name,
        result="bool",
        vjp=NotDifferentiable("the result is bool"),
        nova=Scalar(floating, otherwise, otherwise),
        doc=doc,
    )


ISFINITE = _test("isfinite", 'arith.cmpf("olt", math.absf(a), inf)', "True", "Is x neither infinite nor NaN?")
ISNAN = _test("isnan", 'arith.cmpf("uno", a, a)', "False", "Is x NaN?")
ISINF = _test("isinf", 'arith.cmpf("oeq", math.absf(a), inf)', "False", "Is x plus or minus infinity?")


def exp(x):
    """e to the power x."""
    return apply(EXP, x)


def expm1(x):
    """exp(x) - 1, precise near 0."""
    return apply(EXPM1, x)


def log(x):
    """Natural logarithm; -inf at 0, NaN below."""
    return apply(LOG, x)


def log1p(x):
    """log(1 + x), precise near 0."""
    return apply(LOG1P, x)


def log2(x):
    """Logarithm to base 2."""
    return apply(LOG2, x)


def sqrt(x):
    """Square root; NaN below 0."""
    return apply(SQRT, x)


def rsqrt(x):
    """1 / sqrt(x)."""
    return apply(RSQRT, x)


def reciprocal(x):
    """1 / x."""
    return apply(RECIPROCAL, x)


def sin(x):
    """Sine of radians."""
    return apply(SIN, x)


def cos(x):
    """Cosine of radians."""
    return apply(COS, x)


def tan(x):
    """Tangent of radians."""
    return apply(TAN, x)


def atan(x):
    """Inverse tangent, in radians."""
    return apply(ATAN, x)


def tanh(x):
    """Hyperbolic tangent."""
    return apply(TANH, x)


def sigmoid(x):
    """1 / (1 + exp(-x))."""
    return apply(SIGMOID, x)


def erf(x):
    """The error function."""
    return apply(ERF, x)


def neg(x):
    """-x. Errors: TypeError for bool (use logical_not)."""
    return apply(NEG, x)


def abs(x):
    """Absolute value."""
    return apply(ABS, x)


def square(x):
    """x * x."""
    return apply(SQUARE, x)


def clone(x):
    """A copy of x in new memory, differentiable."""
    return apply(COPY, x)


def contiguous(x):
    """x itself if its memory is row-major without gaps, else a copy that is."""
    return x if x.is_contiguous() else apply(COPY, x)


def floor(x):
    """The largest integer not above x."""
    return apply(FLOOR, x)


def ceil(x):
    """The smallest integer not below x."""
    return apply(CEIL, x)


def round(x):
    """The nearest integer, halves to even."""
    return apply(ROUND, x)


def trunc(x):
    """x without its fraction."""
    return apply(TRUNC, x)


def sign(x):
    """-1, 0 or 1 by the sign of x."""
    return apply(SIGN, x)


def isfinite(x):
    """Neither infinite nor NaN, as bool."""
    return apply(ISFINITE, x)


def isnan(x):
    """NaN, as bool."""
    return apply(ISNAN, x)


def isinf(x):
    """Plus or minus infinity, as bool."""
    return apply(ISINF, x)
