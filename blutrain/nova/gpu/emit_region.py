"""The cloner for plain device code: scalar regions with the GPU's conversions.

Everything else is what the CPU computes, to the bit: the same polynomials, no contraction, IEEE division and square roots.
What a CPU takes from libm comes from f64 arithmetic here: sin, cos and tan for |x| < 2^50, atan, log2, powf within 1e-13
(f32: half an ulp and a little), remf exact for quotients below 2^28 (f32) and 2^52 (f64).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

from mlir import ir

from blutrain.nova.clone import _LIBM, NARROW, _Cloner
from blutrain.nova.emitter import Emitter
from blutrain.nova.kernel import BodyOp, Generic, Unsupported
from blutrain.nova.philox import emit_random_bits
from blutrain.nova.polynomials import FloatLanes, exp, log

_EQUAL, _UNEQUAL = 0, 1  # predicates of arith.cmpi
# pi/2 in three parts of f64, each the rounded rest of the ones before.
_HALF_PI = (1.5707963267948966, 6.123233995736766e-17, -1.4973849048591833e-33)
_SIN = tuple((-1.0) ** k / math.factorial(2 * k + 1) for k in range(9))  # in z = r^2, times r; 3e-18 on |r| <= pi/4
_COS = tuple((-1.0) ** k / math.factorial(2 * k) for k in range(10))  # in z = r^2; 1e-19
_ATAN = tuple((-1.0) ** k / (2 * k + 1) for k in range(14))  # in z = t^2, times t; 1e-17 on |t| <= tan(pi/12)
_SHIFT = 1.5 * 2.0**52


class SimtCloner(_Cloner):
    """`clone._Cloner` for scalars of a GPU thread (lanes 0). fast_exp: `approximate_exp` for f32; has_small_indices: those of
    all loops are below 2^31.
    """

    fast_exp, has_small_indices = False, True

    def op(self, op: ir.Operation, operands: list[str]) -> list[str]:
        if op.name == "math.exp" and self.fast_exp and str(op.results[0].type) == "f32":
            return [approximate_exp(FloatLanes(self.out, "f32", 0), operands[0])]
        if op.name == "arith.cmpi" and self.has_small_indices and _compares_an_index(op):
            return [self._compare_words(op, operands)]
        if op.name in ("arith.extf", "arith.truncf"):
            return [self._convert(operands[0], str(op.operands[0].type), str(op.results[0].type))]
        if op.name == "nova.random_bits":
            return [emit_random_bits(self.out, *operands, lanes=0, narrow=True)]
        if op.name in _FROM_F64:
            return [self._from_f64(op, operands)]
        if op.name in _LIBM:
            raise Unsupported(f"{op.name}, for which there is no GPU code")
        return super().op(op, operands)

    def _compare_words(self, op: ir.Operation, operands: list[str]) -> str:
        """A small index equal to an i64, or not: by low words, where the i64 has no high one."""
        low = [self.out.value(f"arith.trunci {x} : i64 to i32") for x in operands]
        same = self.out.value(f"arith.cmpi eq, {low[0]}, {low[1]} : i32")
        other = operands[1 if _is_index(op.operands[0]) else 0]
        high = self.out.value(f"arith.shrui {other}, {self.out.integer(31)} : i64")
        small = self.out.value(f"arith.cmpi eq, {high}, {self.out.integer(0)} : i64")
        equal = self.out.value(f"arith.andi {same}, {small} : i1")
        if ir.IntegerAttr(op.attributes["predicate"]).value == _EQUAL:
            return equal
        return self.out.value(f"arith.xori {equal}, {self.out.constant('true', 'i1')} : i1")

    def extend(self, x: str, dtype: str) -> str:
        return self._convert(x, dtype, "f32")

    def truncate(self, x: str, dtype: str) -> str:
        return self._convert(x, "f32", dtype)

    def _convert(self, x: str, source: str, target: str) -> str:
        return convert(self.out, x, source, target)

    def _from_f64(self, op: ir.Operation, operands: list[str]) -> str:
        dtype = str(op.results[0].type)
        wide = [self._convert(x, dtype, "f64") for x in operands]
        return self._convert(_FROM_F64[op.name](FloatLanes(self.out, "f64", 0), *wide), "f64", dtype)


def convert(out: Emitter, x: str, source: str, target: str) -> str:
    """A scalar float in another float dtype, by the GPU's conversions, to nearest even; 16 bits and f64 by way of f32."""
    if source == target:
        return x
    if ({source, target} & set(NARROW) and {source, target} != {source, target} & {"f32", *NARROW}) or (
        source in NARROW and target in NARROW
    ):
        return convert(out, convert(out, x, source, "f32"), "f32", target)
    order = ("bf16", "f16", "f32", "f64")
    op = "extf" if order.index(target) > order.index(source) else "truncf"
    return out.value(f"arith.{op} {x} : {source} to {target}")


def approximate_exp(f: FloatLanes, x: str) -> str:
    """2^(x log2 e) by ex2.approx (2 ulp), the rounding of the product put right: 2.5e-7, half the instructions of `exp`.

    Results below 2^-126 are 0.
    """
    limited = f.out.value(f"arith.minimumf {x}, {f.constant(89.0)} : f32")  # keeps NaN, as maximumf does
    limited = f.out.value(f"arith.maximumf {limited}, {f.constant(-104.0)} : f32")
    high, low = 1.44269502162933349609375, 1.925963033500011079e-8  # log2 e in two parts of f32
    y = f.mul(limited, f.constant(high))
    rest = f.fma(limited, f.constant(low), f.fma(limited, f.constant(high), f.neg(y)))
    power = f.out.value(f'llvm.inline_asm asm_dialect = att "ex2.approx.ftz.f32 $0, $1;", "=f,f" {y} : (f32) -> f32')
    return f.mul(power, f.fma(rest, f.constant(math.log(2)), f.constant(1.0)))


def _is_index(value: ir.Value) -> bool:
    """Is it a loop's index as i64?"""
    cast = getattr(value.owner, "operation", value.owner)
    if isinstance(cast, ir.Block) or cast.name != "arith.index_cast":
        return False
    index = getattr(cast.operands[0].owner, "operation", cast.operands[0].owner)
    return not isinstance(index, ir.Block) and index.name == "linalg.index"


def _compares_an_index(op: ir.Operation) -> bool:
    predicate = ir.IntegerAttr(op.attributes["predicate"]).value
    a, b = op.operands
    return predicate in (_EQUAL, _UNEQUAL) and str(a.type) == "i64" and _is_index(a) != _is_index(b)


def check_regions(ops: Iterable[BodyOp]) -> None:
    """Raise `Unsupported` for an operation of a region that has no GPU code."""
    for op in (o for body_op in ops if isinstance(body_op, Generic) for o in body_op.block.operations):
        name = op.operation.name
        if name in _LIBM and name not in _FROM_F64:
            raise Unsupported(f"{name}, for which there is no GPU code")


def _quarters(f: FloatLanes, x: str) -> tuple[str, str]:
    """(r, n): x = n pi/2 + r with |r| <= pi/4; n as an integer."""
    shift = f.constant(_SHIFT)
    shifted = f.fma(x, f.constant(2 / math.pi), shift)
    n, r = f.sub(shifted, shift), x
    for part in _HALF_PI:
        r = f.fma(n, f.constant(-part), r)
    return r, f.bits_of(shifted)


def _sine(f: FloatLanes, x: str, quarter: int) -> str:
    """sin(x + quarter pi/2)."""
    r, n = _quarters(f, x)
    n = f.bit("addi", n, f.integer(quarter))
    z = f.mul(r, r)
    sine, cosine = f.mul(r, f.polynomial(z, _SIN)), f.polynomial(z, _COS)
    value = f.select(_is_set(f, n, 1), cosine, sine)
    return f.select(_is_set(f, n, 2), f.neg(value), value)


def _tangent(f: FloatLanes, x: str) -> str:
    r, n = _quarters(f, x)
    z = f.mul(r, r)
    sine, cosine = f.mul(r, f.polynomial(z, _SIN)), f.polynomial(z, _COS)
    is_odd = _is_set(f, n, 1)
    return f.div(f.select(is_odd, f.neg(cosine), sine), f.select(is_odd, sine, cosine))


def _arctangent(f: FloatLanes, x: str) -> str:
    """atan of 1/|x| beyond 1, and of what is left after pi/6 beyond tan(pi/12)."""
    size, root = f.abs(x), math.sqrt(3.0)
    is_large = f.is_("ogt", size, f.constant(1.0))
    t = f.select(is_large, f.div(f.constant(1.0), size), size)
    is_turned = f.is_("ogt", t, f.constant(math.tan(math.pi / 12)))
    turned = f.div(f.sub(f.mul(t, f.constant(root)), f.constant(1.0)), f.add(t, f.constant(root)))
    t = f.select(is_turned, turned, t)
    angle = f.mul(t, f.polynomial(f.mul(t, t), _ATAN))
    angle = f.select(is_turned, f.add(angle, f.constant(math.pi / 6)), angle)
    return f.copysign(f.select(is_large, f.sub(f.constant(math.pi / 2), angle), angle), x)


def _is_set(f: FloatLanes, n: str, bit: int) -> str:
    found = f.bit("andi", n, f.integer(bit))
    return f.out.value(f"arith.cmpi ne, {found}, {f.integer(0)} : {f.int_type}")


def _power(f: FloatLanes, x: str, y: str) -> str:
    """exp(y log|x|), the sign of x for odd y; NaN for a negative x and a fraction; 1 for x = 1 or y = 0."""
    zero, one = f.constant(0.0), f.constant(1.0)
    size = f.abs(x)
    value = exp(f, f.mul(y, log(f, size)))
    floor = f.out.value(f"math.floor {y} : f64")
    half = f.mul(y, f.constant(0.5))
    is_integer = f.is_("oeq", floor, y)
    is_odd = f.out.value(f"arith.cmpf une, {half}, {f.out.value(f'math.floor {half} : f64')} : f64")
    is_odd = f.out.value(f"arith.andi {is_odd}, {is_integer} : i1")
    signed = f.select(is_odd, f.copysign(value, x), value)
    invalid = f.out.value(f"arith.andi {f.is_('olt', x, zero)}, {f.is_('one', floor, y)} : i1")
    # An infinite x or y is no fraction of anything: -inf to any power has a size, and so has x to +-inf.
    finite = f.is_("olt", size, f.constant(math.inf))
    invalid = f.out.value(f"arith.andi {invalid}, {finite} : i1")
    result = f.select(invalid, f.constant(math.nan), signed)
    # 1^y = x^0 = (-1)^(+-inf) = 1, whatever else is NaN; log 1 = 0 times inf would be NaN.
    is_one = f.out.value(f"arith.ori {f.is_('oeq', x, one)}, {f.is_('oeq', y, zero)} : i1")
    infinite_y = f.is_("oeq", f.abs(y), f.constant(math.inf))
    minus_one = f.out.value(f"arith.andi {f.is_('oeq', size, one)}, {infinite_y} : i1")
    return f.select(f.out.value(f"arith.ori {is_one}, {minus_one} : i1"), one, result)


def _remainder(f: FloatLanes, x: str, y: str) -> str:
    """x - trunc(x/y) y with the sign of x, the quotient put right where its rounding crossed an integer."""
    size, step = f.abs(x), f.abs(y)
    quotient = f.out.value(f"math.trunc {f.div(size, step)} : f64")
    rest = f.fma(f.neg(quotient), step, size)
    rest = f.select(f.is_("olt", rest, f.constant(0.0)), f.add(rest, step), rest)
    rest = f.select(f.is_("oge", rest, step), f.sub(rest, step), rest)
    inf = f.constant(math.inf)
    unchanged = f.out.value(f"arith.andi {f.is_('oeq', step, inf)}, {f.is_('olt', size, inf)} : i1")
    return f.copysign(f.select(unchanged, size, rest), x)


_FROM_F64: dict[str, Callable[..., str]] = {
    "math.sin": lambda f, x: _sine(f, x, 0),
    "math.cos": lambda f, x: _sine(f, x, 1),
    "math.tan": _tangent,
    "math.atan": _arctangent,
    "math.log2": lambda f, x: f.mul(log(f, x), f.constant(1 / math.log(2))),
    "math.powf": _power,
    "arith.remf": _remainder,
}
