"""exp, log, tanh, erf and their relatives as vector arithmetic, in f32 and f64.

One set of formulas serves both precisions; `_F32` and `_F64` hold the format's facts and the coefficients, which
are interpolations at Chebyshev nodes computed with 60 digits (the error bound stands beside each). Largest errors
measured against float64 / mpmath (tests/test_clone.py): exp and exp2 0.8, expm1 1.3, log 0.7, log1p 1.4, tanh
1.8, erf 2.1 ulp in f32, no more in f64 (within 4e-16 relative). NaN gives NaN, infinities and overflow give what
IEEE says. exp and exp2 flush: results below 2^-125 (f32) or 2^-1021 (f64) are 0; subnormal arguments are exact
everywhere. Integers are read off the mantissa of a shifted sum, never by fptosi, which is undefined for NaN.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from blutrain.nova.emitter import Emitter, float_literal, lane_type


@dataclass(frozen=True)
class _Format:
    """A floating-point format, and the coefficients that reach its precision."""

    mantissa_bits: int
    bias: int
    ln2_high: float  # few enough bits that n * ln2_high is exact for every exponent n
    ln2_low: float
    exp_range: tuple[float, float]  # outside, exp is 0 or inf
    expm1_low: float  # below, expm1 is -1
    expm1: tuple[float, ...]  # (expm1(r) - r) / r^2 on |r| <= ln2/2
    log: tuple[float, ...]  # (2 atanh(s)/s - 2) / z, z = s^2, s in the range of sqrt(2)
    tanh_one: float  # from here tanh rounds to 1
    erf_small: tuple[float, ...]  # erf(x)/x in z = x^2 on [0, 1]
    erf_large: tuple[float, ...]  # erfc(x) exp(x^2) in t = (x - c)/(x + c) on [1, erf_one]
    erf_center: float
    erf_one: float  # from here erf rounds to 1


_F32 = _Format(
    mantissa_bits=23,
    bias=127,
    ln2_high=0.693145751953125,
    ln2_low=1.4286068203094173e-06,
    exp_range=(-87.5, 89.0),
    expm1_low=-30.0,
    # 9.0e-9
    expm1=(0.5, 0.1666656963, 0.04166654542, 0.008364380693, 0.001392768462),
    # 3.6e-11
    log=(0.6666666654988318, 0.40000125594554364, 0.28550396959618013, 0.23341943388714562),
    tanh_one=10.0,
    # 1.2e-9
    erf_small=(
        1.1283791658483509,
        -0.37612626666720334,
        0.11283594715160218,
        -0.026854212010626412,
        0.005189087423433974,
        -0.000801686428716587,
        7.875875062685488e-05,
    ),
    # 1.3e-10
    erf_large=(
        0.25539567625190335,
        -0.42718584761434303,
        0.24165821109072444,
        -0.07897852327253349,
        0.0037321413513030097,
        0.006994855413599958,
        -0.0008365899736486057,
        -0.0009441596340872735,
    ),
    erf_center=2.0,
    erf_one=4.0,
)

_F64 = _Format(
    mantissa_bits=52,
    bias=1023,
    ln2_high=0.6931471805601177,
    ln2_low=-1.7239444525614835e-13,
    exp_range=(-708.5, 710.0),
    expm1_low=-50.0,
    # 2.2e-19
    expm1=(
        0.5,
        0.1666666666666667,
        0.04166666666666667,
        0.008333333333324906,
        0.001388888888888287,
        0.00019841269879033045,
        2.4801587328555858e-05,
        2.755725016302918e-06,
        2.7557269903215795e-07,
        2.5107353767261877e-08,
        2.0916212837493853e-09,
    ),
    # 6.7e-20
    log=(
        0.6666666666666666,
        0.4000000000000094,
        0.2857142857076445,
        0.2222222240054776,
        0.181817947008978,
        0.15386290534658992,
        0.13267418596474884,
        0.1310072138350349,
    ),
    tanh_one=20.0,
    # 1.3e-19
    erf_small=(
        1.1283791670955126,
        -0.3761263890318375,
        0.11283791670954879,
        -0.026866170645076792,
        0.0052239776248180145,
        -0.000854832698083379,
        0.0001205533111164271,
        -1.4925595266831182e-05,
        1.6461000484121368e-06,
        -1.6350312701054695e-07,
        1.4659775274047436e-08,
        -1.1372848856791674e-09,
        5.957176147748911e-11,
    ),
    # 2.0e-19
    erf_large=(
        0.17900115118138996,
        -0.3262335600430372,
        0.24560380171233093,
        -0.15011593650077582,
        0.07166583719797331,
        -0.024392499318790735,
        0.004269136333077869,
        0.0007077464435611972,
        -0.0005970619531815352,
        4.525520140579536e-05,
        6.405657794051666e-05,
        -1.2859347351455289e-05,
        -7.977696579644072e-06,
        2.1124428949403864e-06,
        1.2459620847174093e-06,
        -2.6915157592850126e-07,
        -2.0355575642200858e-07,
    ),
    erf_center=3.0,
    erf_one=6.0,
)


class FloatLanes:
    """Arithmetic on values of one float type (f32 or f64), scalar or vector, written to an Emitter."""

    def __init__(self, out: Emitter, dtype: str, lanes: int):
        self.out, self.dtype, self.lanes = out, dtype, lanes
        self.format = {"f32": _F32, "f64": _F64}[dtype]
        self.type = lane_type(dtype, lanes)
        self.int_type = lane_type("i32" if dtype == "f32" else "i64", lanes)
        self.bool_type = lane_type("i1", lanes)

    def constant(self, value: float) -> str:
        if math.isfinite(value):
            return self.out.constant(float_literal(value), self.type)
        packed = struct.pack(">f" if self.dtype == "f32" else ">d", value)
        return self.out.constant("0x" + packed.hex().upper(), self.type)

    def integer(self, value: int) -> str:
        return self.out.constant(str(value), self.int_type)

    def _binary(self, op: str, a: str, b: str, type_: str) -> str:
        return self.out.value(f"arith.{op} {a}, {b} : {type_}")

    def add(self, a: str, b: str) -> str:
        return self._binary("addf", a, b, self.type)

    def sub(self, a: str, b: str) -> str:
        return self._binary("subf", a, b, self.type)

    def mul(self, a: str, b: str) -> str:
        return self._binary("mulf", a, b, self.type)

    def div(self, a: str, b: str) -> str:
        return self._binary("divf", a, b, self.type)

    def fma(self, a: str, b: str, c: str) -> str:
        return self.out.value(f"math.fma {a}, {b}, {c} : {self.type}")

    def abs(self, x: str) -> str:
        return self.out.value(f"math.absf {x} : {self.type}")

    def neg(self, x: str) -> str:
        return self.out.value(f"arith.negf {x} : {self.type}")

    def copysign(self, magnitude: str, sign: str) -> str:
        return self.out.value(f"math.copysign {magnitude}, {sign} : {self.type}")

    def bit(self, op: str, a: str, b: str) -> str:
        return self._binary(op, a, b, self.int_type)

    def bits_of(self, x: str) -> str:
        return self.out.value(f"arith.bitcast {x} : {self.type} to {self.int_type}")

    def from_bits(self, i: str) -> str:
        return self.out.value(f"arith.bitcast {i} : {self.int_type} to {self.type}")

    def is_(self, predicate: str, a: str, b: str) -> str:
        return self.out.value(f"arith.cmpf {predicate}, {a}, {b} : {self.type}")

    def select(self, condition: str, yes: str, no: str) -> str:
        suffix = f"{self.bool_type}, {self.type}" if self.lanes else self.type
        return self.out.value(f"arith.select {condition}, {yes}, {no} : {suffix}")

    def at_most(self, x: str, bound: float) -> str:
        """min(x, bound), NaN kept (a compare and select in the order that one min instruction has)."""
        limit = self.constant(bound)
        return self.select(self.is_("olt", limit, x), limit, x)

    def at_least(self, x: str, bound: float) -> str:
        limit = self.constant(bound)
        return self.select(self.is_("ogt", limit, x), limit, x)

    def polynomial(self, x: str, coefficients: Sequence[float]) -> str:
        """sum of coefficients[i] * x^i by Horner's rule."""
        result = self.constant(coefficients[-1])
        for c in reversed(coefficients[:-1]):
            result = self.fma(result, x, self.constant(c))
        return result

    def reduce_exponent(self, x: str) -> tuple[str, str]:
        """(n, r): x = n ln2 + r, |r| <= ln2/2; n as the float n + SHIFT, whose lowest mantissa bits are n."""
        shift = self.constant(1.5 * 2.0**self.format.mantissa_bits)
        shifted = self.fma(x, self.constant(1 / math.log(2)), shift)
        n = self.sub(shifted, shift)
        r = self.fma(n, self.constant(-self.format.ln2_high), x)
        return shifted, self.fma(n, self.constant(-self.format.ln2_low), r)

    def power_of_two(self, shifted: str, less: int = 0) -> str:
        """2^(n - less) for n as `reduce_exponent` gives it; 0 and inf at the two ends of the exponent's range."""
        bits = self.format.mantissa_bits
        exponent = self.bit("shli", self.bits_of(shifted), self.integer(bits))  # the bits above n fall off
        return self.from_bits(self.bit("addi", exponent, self.integer((self.format.bias - less) << bits)))

    def expm1_of(self, r: str) -> str:
        """expm1 on |r| <= ln2/2."""
        return self.fma(self.mul(r, r), self.polynomial(r, self.format.expm1), r)

    def _pack(self, value: float) -> bytes:
        return struct.pack(">f" if self.dtype == "f32" else ">d", value)


def exp(f: FloatLanes, x: str) -> str:
    """2 e^r times 2^(n-1): the doubled polynomial lets the top of the range fit into one factor."""
    low, high = f.format.exp_range
    shifted, r = f.reduce_exponent(f.at_least(f.at_most(x, high), low))
    return _doubled_exp(f, shifted, r)


def _doubled_exp(f: FloatLanes, shifted: str, r: str) -> str:
    doubled = f.polynomial(r, [2.0, 2.0, *(2.0 * c for c in f.format.expm1)])
    return f.mul(doubled, f.power_of_two(shifted, less=1))


def exp2(f: FloatLanes, x: str) -> str:
    """The integer part goes to the exponent exactly, the rest is e^(rest ln2)."""
    limit = float(f.format.bias)
    x = f.at_least(f.at_most(x, limit + 1), 1 - limit)
    shift = f.constant(1.5 * 2.0**f.format.mantissa_bits)
    shifted = f.add(x, shift)
    return _doubled_exp(f, shifted, f.mul(f.sub(x, f.sub(shifted, shift)), f.constant(math.log(2))))


def expm1(f: FloatLanes, x: str) -> str:
    """2^n expm1(r) + (2^n - 1): for n = 0 the polynomial alone, so small x keep their relative precision."""
    inside = f.at_least(f.at_most(x, f.format.exp_range[1]), f.format.expm1_low)
    shifted, r = f.reduce_exponent(inside)
    tail, power = f.expm1_of(r), f.power_of_two(shifted, less=1)
    ordinary = f.fma(f.add(tail, tail), power, f.fma(power, f.constant(2.0), f.constant(-1.0)))
    # Near the top only (tail + 1) 2^n fits, and the -1 is lost in rounding.
    huge = f.mul(f.add(f.add(tail, f.constant(1.0)), f.add(tail, f.constant(1.0))), power)
    is_huge = f.is_("oge", inside, f.constant((f.format.bias - 1) * math.log(2)))
    result = f.select(is_huge, huge, ordinary)
    return f.select(f.is_("oeq", x, f.constant(0.0)), x, result)  # keeps the sign of -0


def log(f: FloatLanes, x: str) -> str:
    bits = f.format.mantissa_bits
    tiny = 2.0 ** (1 - f.format.bias)
    subnormal = f.is_("olt", x, f.constant(tiny))
    lift = bits + 2
    scaled = f.select(subnormal, f.mul(x, f.constant(2.0**lift)), x)
    # x = 2^k m with m in [sqrt(1/2), sqrt(2)): subtract sqrt(1/2)'s bits, the exponent of what is left is k.
    root = struct.unpack(">i" if f.dtype == "f32" else ">q", f._pack(math.sqrt(0.5)))[0]
    difference = f.bit("subi", f.bits_of(scaled), f.integer(root))
    k = f.bit("shrsi", difference, f.integer(bits))
    m = f.from_bits(f.bit("subi", f.bits_of(scaled), f.bit("shli", k, f.integer(bits))))
    k = f.out.value(f"arith.sitofp {k} : {f.int_type} to {f.type}")
    k = f.select(subnormal, f.sub(k, f.constant(float(lift))), k)
    result = _log_of_mantissa(f, f.sub(m, f.constant(1.0)), k)
    result = f.select(f.is_("olt", x, f.constant(math.inf)), result, x)
    result = f.select(f.is_("oeq", x, f.constant(0.0)), f.constant(-math.inf), result)
    return f.select(f.is_("olt", x, f.constant(0.0)), f.constant(math.nan), result)


def _log_of_mantissa(f: FloatLanes, m1: str, k: str) -> str:
    """k ln2 + log(1 + m1) = k ln2 + m1 - (m1^2/2 - s (m1^2/2 + z R(z))), s = m1/(2 + m1), z = s^2."""
    s = f.div(m1, f.add(m1, f.constant(2.0)))
    z = f.mul(s, s)
    half_square = f.mul(f.mul(m1, m1), f.constant(0.5))
    correction = f.mul(s, f.fma(z, f.polynomial(z, f.format.log), half_square))
    low = f.fma(k, f.constant(f.format.ln2_low), correction)
    return f.fma(k, f.constant(f.format.ln2_high), f.sub(m1, f.sub(half_square, low)))


def log1p(f: FloatLanes, x: str) -> str:
    """log(u) + (x - (u - 1))/u with u = 1 + x rounded; x itself where u = 1 or x is inf."""
    u = f.add(x, f.constant(1.0))
    correction = f.div(f.sub(x, f.sub(u, f.constant(1.0))), u)
    result = f.add(log(f, u), correction)
    result = f.select(f.is_("ogt", u, f.constant(0.0)), result, log(f, u))
    keep = f.is_("oeq", u, f.constant(1.0))
    result = f.select(keep, x, result)
    return f.select(f.is_("oeq", x, f.constant(math.inf)), x, result)


def tanh(f: FloatLanes, x: str) -> str:
    """t / (t + 2), t = expm1(2|x|), with the sign of x; 2^n neither overflows nor vanishes."""
    shifted, r = f.reduce_exponent(f.mul(f.at_most(f.abs(x), f.format.tanh_one), f.constant(2.0)))
    power = f.power_of_two(shifted)
    t = f.fma(f.expm1_of(r), power, f.sub(power, f.constant(1.0)))
    return f.copysign(f.div(t, f.add(t, f.constant(2.0))), x)


def erf(f: FloatLanes, x: str) -> str:
    """x P(x^2) up to 1, 1 - exp(-x^2) Q((x - c)/(x + c)) beyond."""
    size = f.abs(x)
    inner = f.at_most(size, 1.0)
    small = f.mul(inner, f.polynomial(f.mul(inner, inner), f.format.erf_small))
    outer = f.at_least(f.at_most(size, f.format.erf_one), 1.0)
    center = f.constant(f.format.erf_center)
    t = f.div(f.sub(outer, center), f.add(outer, center))
    shifted, r = f.reduce_exponent(f.neg(f.mul(outer, outer)))
    decay = f.mul(f.add(f.expm1_of(r), f.constant(1.0)), f.power_of_two(shifted))
    large = f.sub(f.constant(1.0), f.mul(decay, f.polynomial(t, f.format.erf_large)))
    return f.copysign(f.select(f.is_("ogt", size, f.constant(1.0)), large, small), x)


POLYNOMIALS: dict[str, Callable[[FloatLanes, str], str]] = {
    "math.exp": exp,
    "math.expm1": expm1,
    "math.exp2": exp2,
    "math.log": log,
    "math.log1p": log1p,
    "math.tanh": tanh,
    "math.erf": erf,
}
