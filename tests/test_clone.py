"""The cloner and its polynomials: every function against high precision, at the edges of the format, at every lane
count."""

import math

import ml_dtypes
import mpmath
import numpy as np
import pytest
from cpu_kernels import NUMPY, Body, in_dtype, random, region, run, supports

from blutrain.nova.emitter import Emitter

mpmath.mp.prec = 120


def elementwise(op: str, dtype: str, *arrays: np.ndarray, attributes: str = "", out: str | None = None) -> np.ndarray:
    """`op` on arrays through a map kernel."""
    body = Body("map")
    operands = [body.operand(*a.shape, dtype=dtype) for a in arrays]
    names = ", ".join(f"%i{k}" for k in range(len(arrays)))
    text = region(in_dtype(f"%r = {op} {names}{attributes} : T", dtype), f"%r : {out or dtype}")
    body.result(body.map([(v, "d0") for v in operands], arrays[0].shape, text, dtype=out or dtype))
    return run(body, *arrays)[0]


def exact(function, x: np.ndarray) -> list[mpmath.mpf]:
    return [function(mpmath.mpf(float(v))) for v in x]


def worst_error(got: np.ndarray, want: list[mpmath.mpf], dtype: str) -> float:
    """Largest error in units of the last place of the exact value (subnormal results: of the smallest number)."""
    finfo = np.finfo(NUMPY[dtype])
    worst = 0.0
    for g, w in zip(got, want, strict=True):
        exponent = max(mpmath.frexp(w)[1] if w else -99999, finfo.minexp + 1)
        ulp = mpmath.ldexp(1, int(exponent) - finfo.nmant - 1)
        worst = max(worst, float(abs(mpmath.mpf(float(g)) - w) / ulp))
    return worst


def spread(low: float, high: float, dtype: str, count: int = 3001) -> np.ndarray:
    rng = np.random.default_rng(1)
    line = np.linspace(low, high, count)
    tiny = np.sign(rng.standard_normal(200)) * 10.0 ** rng.uniform(-12, 0, 200)
    return np.concatenate([line, tiny[(tiny >= low) & (tiny <= high)]]).astype(NUMPY[dtype])


FUNCTIONS = {
    # name: (exact function, domain in f32, domain in f64, bound in f32 ulp, in f64 ulp)
    "math.exp": (mpmath.exp, (-86.5, 88.7), (-707.5, 709.7), 1.5, 1.5),
    "math.expm1": (mpmath.expm1, (-20, 88.7), (-50, 709.7), 2.5, 2.5),
    "math.exp2": (lambda x: mpmath.power(2, x), (-125, 127.9), (-1021, 1023.9), 1.5, 1.5),
    "math.log": (mpmath.log, (1e-6, 1e3), (1e-6, 1e3), 1.5, 1.5),
    "math.log1p": (mpmath.log1p, (-0.999, 100), (-0.999, 100), 3, 3),
    "math.tanh": (mpmath.tanh, (-12, 12), (-25, 25), 3.5, 3.5),
    "math.erf": (mpmath.erf, (-5, 5), (-7, 7), 2.5, 2.5),
}


@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize("op", FUNCTIONS)
def test_polynomial_is_accurate(op, dtype):
    function, f32, f64, bound32, bound64 = FUNCTIONS[op]
    x = spread(*(f32 if dtype == "f32" else f64), dtype)
    if op == "math.log":
        x = np.abs(np.concatenate([x, [np.finfo(NUMPY[dtype]).max, np.finfo(NUMPY[dtype]).tiny / 8]])).astype(x.dtype)
    error = worst_error(elementwise(op, dtype, x), exact(function, x), dtype)
    assert error <= (bound32 if dtype == "f32" else bound64), f"{error:.2f} ulp"


EDGES = [0.0, -0.0, np.inf, -np.inf, np.nan, 1e30, -1e30, 1.0, -1.0, 1e-42, -1e-42, 200.0, -200.0, 800.0, -800.0]
REFERENCES = {
    "math.exp": np.exp, "math.expm1": np.expm1, "math.exp2": np.exp2, "math.log": np.log, "math.log1p": np.log1p,
    "math.tanh": np.tanh, "math.erf": np.vectorize(math.erf),
}  # fmt: skip


@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize("op", REFERENCES)
def test_polynomial_at_the_edges(op, dtype):
    x = np.array(EDGES, NUMPY[dtype])
    with np.errstate(all="ignore"):
        want = REFERENCES[op](x).astype(x.dtype)
    got = elementwise(op, dtype, x)
    tolerance = 4 * np.finfo(x.dtype).eps
    np.testing.assert_allclose(got, want, rtol=tolerance, atol=np.finfo(x.dtype).smallest_subnormal)
    zeros = want == 0
    np.testing.assert_array_equal(np.signbit(got[zeros]), np.signbit(want[zeros]))


@pytest.mark.parametrize("dtype", ["f32", "f64", "bf16", "f16"])
@pytest.mark.parametrize("op, function", [("sin", np.sin), ("atan", np.arctan), ("log2", np.log2), ("tanh", np.tanh)])
def test_other_functions_and_narrow_types(op, function, dtype):
    x = np.linspace(0.1, 3, 37).astype(NUMPY[dtype])
    want = function(x.astype(np.float64))
    got = elementwise(f"math.{op}", dtype, x).astype(np.float64)
    eps = float(ml_dtypes.finfo(NUMPY[dtype]).eps)
    np.testing.assert_allclose(got, want, rtol=2 * eps)


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
def test_narrow_arithmetic_rounds_once(dtype):
    rng = np.random.default_rng(2)
    a, b = random(rng, 300, dtype), random(rng, 300, dtype)
    want = (a.astype(np.float32) * b.astype(np.float32)).astype(NUMPY[dtype])
    np.testing.assert_array_equal(elementwise("arith.mulf", dtype, a, b), want)


def test_bf16_conversion_keeps_nan_inf_and_ties():
    bits = np.array([0x7FC00000, 0x7F800001, 0xFF800000, 0x7F7FFFFF, 0x3F808000, 0x3F818000, 0x00000001], np.uint32)
    x = bits.view(np.float32)
    body = Body("map")
    v = body.operand(7)
    body.result(body.map([(v, "d0")], (7,), region("%t = arith.truncf %i0 : f32 to bf16", "%t : bf16"), dtype="bf16"))
    got = run(body, x)[0]
    with np.errstate(all="ignore"):
        want = x.astype(ml_dtypes.bfloat16)
    np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
    np.testing.assert_array_equal(got[2:].view(np.uint16), want[2:].view(np.uint16))


@pytest.mark.parametrize("op, function", [("floordivsi", np.floor_divide), ("ceildivsi", lambda a, b: -(-a // b))])
def test_integer_division_with_masked_lanes(op, function):
    a, b = np.arange(-20, 17, dtype=np.int64), np.full(37, 7, np.int64)
    b[::2] = -7
    np.testing.assert_array_equal(elementwise(f"arith.{op}", "i64", a, b), function(a, b))


@pytest.mark.parametrize("dtype", ["i64", "i8"])
def test_integer_powers_wrap_as_products_do(dtype):
    a = np.arange(-20, 17).astype(NUMPY[dtype])
    b = (np.arange(37) % 9).astype(NUMPY[dtype])
    b[:2] = [100, 127]
    np.testing.assert_array_equal(elementwise("math.ipowi", dtype, a, b), np.power(a, b))


def philox(seed: int, draw: int, index: np.ndarray) -> np.ndarray:
    """Philox4x32-10 in plain Python integers."""
    words = []
    for i in index.tolist():
        block = i >> 2
        c = [block & 0xFFFFFFFF, block >> 32, draw & 0xFFFFFFFF, draw >> 32]
        k = [seed & 0xFFFFFFFF, seed >> 32]
        for _ in range(10):
            a, b = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
            c = [(b >> 32) ^ c[1] ^ k[0], b & 0xFFFFFFFF, (a >> 32) ^ c[3] ^ k[1], a & 0xFFFFFFFF]
            k = [(k[0] + 0x9E3779B9) & 0xFFFFFFFF, (k[1] + 0xBB67AE85) & 0xFFFFFFFF]
        words.append(c[i & 3])
    return np.array(words, np.uint32)


def test_philox_known_answer():
    # The published vector of Random123 for counter and key all ones.
    seed = draw = (1 << 64) - 1
    index = np.array([((1 << 64) - 1) << 2], object)
    block = [philox(seed, draw, index + i)[0] for i in range(4)]
    assert [hex(w) for w in block] == ["0x408f276d", "0x41c83b0e", "0xa20bc7c6", "0x6d5451fd"]


def test_random_bits_are_philox():
    body = Body("map")
    seed, draw = body.operand(dtype="i64"), body.operand(dtype="i64")
    text = region(
        "%d0 = linalg.index 0 : index",
        "%d1 = linalg.index 1 : index",
        "%w = arith.constant 21 : index",
        "%m = arith.muli %d0, %w : index",
        "%s = arith.addi %m, %d1 : index",
        "%i = arith.index_cast %s : index to i64",
        '%r = "nova.random_bits"(%i0, %i1, %i) : (i64, i64, i64) -> i32',
        "%r : i32",
    )
    body.result(body.map([(seed, ""), (draw, "")], (3, 21), text, dtype="i32"))
    s, d = 0x1234567_89ABCDEF, 77
    got = run(body, np.array(s, np.int64), np.array(d, np.int64))[0]
    np.testing.assert_array_equal(got.reshape(-1).view(np.uint32), philox(s, d, np.arange(63)))


def test_unknown_op_is_refused():
    body = Body("map")
    v = body.operand(4)
    body.result(body.map([(v, "d0")], (4,), region('%r = "other.thing"(%i0) : (f32) -> f32', "%r : f32")))
    assert supports(body) == "other.thing in a region"


def test_a_loop_in_an_outer_block_stands_before_those_that_are_open():
    out = Emitter()

    def outer(index: str, _: list[str]) -> list[str]:
        def inner(index: str, _: list[str]) -> list[str]:
            out.line("inner")
            return []

        out.line("before")
        with out.scope(0):
            out.loop("%a", "%b", "%c", inner)
        out.line("behind")
        return []

    out.loop("%d", "%e", "%f", outer)
    lines = [line.strip() for line in out.function_body().splitlines()]
    assert lines == [
        "scf.for %v2 = %a to %b step %c : i64 {", "inner", "}", "scf.for %v1 = %d to %e step %f : i64 {", "before",
        "behind", "}",
    ]  # fmt: skip
