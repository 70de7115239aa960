"""map kernels against NumPy: layouts, dtypes, tails, in-place updates, constants."""

import numpy as np
import pytest
from cpu_kernels import NUMPY, Body, random, region, run, supports
from map_bodies import adamw

ADD = region("%a = arith.addf %i0, %i1 : f32", "%a : f32")


def rng():
    return np.random.default_rng(0)


@pytest.mark.parametrize("shape", [(), (1,), (5,), (16,), (17,), (1000,), (3, 4), (7, 65), (2, 3, 33), (0,), (3, 0)])
def test_add_of_any_shape(shape):
    body = Body("map")
    x, y = body.operand(*shape), body.operand(*shape)
    loops = ", ".join(f"d{d}" for d in range(len(shape)))
    body.result(body.map([(x, loops), (y, loops)], shape, ADD))
    a, b = random(rng(), shape, "f32"), random(rng(), shape, "f32")
    np.testing.assert_array_equal(run(body, a, b)[0], a + b)


def layout_case(name: str):
    """(operand shape, map over (6, 35), NumPy's view of the operand)."""
    return {
        "plain": ((6, 35), "d0, d1", lambda x: x),
        "row": ((35,), "d1", lambda x: x),
        "column": ((6,), "d0", lambda x: x[:, None]),
        "scalar": ((), "", lambda x: x),
        "transposed": ((35, 6), "d1, d0", lambda x: x.T),
        "slice": ((9, 80), "d0 + 2, d1 * 2 + 3", lambda x: x[2:8, 3:73:2]),
        "flipped": ((6, 35), "d0, 34 - d1", lambda x: x[:, ::-1]),
        "flipped rows": ((6, 35), "5 - d0, d1", lambda x: x[::-1]),
        "one element": ((3, 35), "1, d1", lambda x: x[1]),
        "keepdim": ((6, 1), "d0, 0", lambda x: x),
    }[name]


@pytest.mark.parametrize(
    "name",
    ["plain", "row", "column", "scalar", "transposed", "slice", "flipped", "flipped rows", "one element", "keepdim"],
)
@pytest.mark.parametrize("dtype", ["f32", "f64", "i1"])
def test_layouts_of_an_operand(name, dtype):
    shape, loops, view = layout_case(name)
    body = Body("map")
    x, y = body.operand(*shape, dtype=dtype), body.operand(6, 35, dtype=dtype)
    combine = "ori" if dtype == "i1" else "addf"
    text = region(f"%a = arith.{combine} %i0, %i1 : {dtype}", f"%a : {dtype}")
    body.result(body.map([(x, loops), (y, "d0, d1")], (6, 35), text, dtype))
    a, b = random(rng(), shape, dtype), random(rng(), (6, 35), dtype)
    want = view(a) | b if dtype == "i1" else view(a) + b
    np.testing.assert_array_equal(run(body, a, b)[0], want)


@pytest.mark.parametrize("shape", [(40, 3), (3, 40), (100, 130), (17, 1000)])
def test_transposed_result(shape):
    body = Body("map")
    x = body.operand(*shape)
    empty = body.empty(shape[::-1], "f32")
    negate = region("%a = arith.negf %i0 : f32", "%a : f32")
    (y,) = body.generic([(x, "d0, d1")], [(empty, "d1, d0")], "pp", negate)
    body.result(y)
    a = random(rng(), shape, "f32")
    np.testing.assert_array_equal(run(body, a)[0], -a.T)


def test_heads_are_split_and_permuted():
    """[B, T, H, D] to [B, H, T, D]."""
    body = Body("map")
    x = body.operand(2, 5, 3, 16)
    copy = region("%z = arith.negf %i0 : f32", "%z : f32")
    body.result(body.map([(x, "d0, d2, d1, d3")], (2, 3, 5, 16), copy))
    a = random(rng(), (2, 5, 3, 16), "f32")
    np.testing.assert_array_equal(run(body, a)[0], -a.transpose(0, 2, 1, 3))


@pytest.mark.parametrize("source", ["f64", "f32", "f16", "bf16", "i64", "i32", "i16", "i8", "i1"])
@pytest.mark.parametrize("target", ["f64", "f32", "bf16", "f16", "i64", "i32", "i1"])
def test_conversions(source, target):
    if source == target:
        return
    is_float = lambda t: t[0] != "i"
    width = lambda t: int(t.lstrip("bfi"))
    lines, value, dtype = [], "%i0", source
    if target == "i1":
        zero = "0.0" if is_float(source) else "false" if source == "i1" else "0"
        compare = "cmpf une" if is_float(source) else "cmpi ne"
        lines = [f"%z = arith.constant {zero} : {source}", f"%r = arith.{compare}, %i0, %z : {source}"]
    else:
        if source in ("bf16", "f16") and width(target) <= 16 and is_float(target):
            lines, value, dtype = [f"%w = arith.extf %i0 : {source} to f32"], "%w", "f32"
        if is_float(source) and is_float(target):
            op = "extf" if width(target) > width(dtype) else "truncf"
        elif is_float(source):
            op = "fptosi"
        elif is_float(target):
            op = "uitofp" if source == "i1" else "sitofp"
        else:
            op = "trunci" if width(target) < width(source) else "extui" if source == "i1" else "extsi"
        lines.append(f"%r = arith.{op} {value} : {dtype} to {target}")
    body = Body("map")
    x = body.operand(3, 21, dtype=source)
    body.result(body.map([(x, "d0, d1")], (3, 21), region(*lines, f"%r : {target}"), target))
    a = random(rng(), (3, 21), source)
    middle = a.astype(np.float32) if source in ("bf16", "f16") else a
    np.testing.assert_array_equal(run(body, a)[0], middle.astype(NUMPY[target]))


@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize("size", [1, 1000, 70_001])
def test_adamw_in_place(size, dtype):
    r = rng()
    p, g, m = (random(r, size, dtype) for _ in range(3))
    v = np.abs(random(r, size, dtype))
    lr, c1, c2 = np.array(1e-3), np.array(0.19), np.array(0.002)
    got = run(adamw(size, dtype), p, g, m, v, lr, c1, c2)
    p64, g64, m64, v64 = (a.astype(np.float64) for a in (p, g, m, v))
    m64, v64 = 0.9 * m64 + 0.1 * g64, 0.999 * v64 + 0.001 * g64**2
    p64 = p64 - lr * (m64 / c1 / (np.sqrt(v64 / c2) + 1e-8) + 0.01 * p64)
    for a, b in zip(got, (p64, m64, v64), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-5 if dtype == "f32" else 1e-13, atol=1e-6)


def test_a_value_is_read_before_its_memory_is_written():
    """Two results, each in the other's operand: both are computed before either is stored."""
    body = Body("map")
    x, y = body.operand(1000), body.operand(1000)
    add = region("%s = arith.addf %i0, %i1 : f32", "%d = arith.subf %i0, %i1 : f32", "%s, %d : f32, f32")
    outputs = [(body.empty((1000,), "f32"), "d0") for _ in range(2)]
    for value, alias in zip(body.generic([(x, "d0"), (y, "d0")], outputs, "p", add), (1, 0), strict=True):
        body.result(value, alias)
    a, b = random(rng(), 1000, "f32"), random(rng(), 1000, "f32")
    total, difference = run(body, a, b)
    np.testing.assert_array_equal(total, a + b)
    np.testing.assert_array_equal(difference, a - b)


def test_concatenation_by_extract():
    body = Body("map")
    x, y = body.operand(4, 10), body.operand(4, 27)
    text = region(
        "%r = linalg.index 0 : index",
        "%c = linalg.index 1 : index",
        "%n = arith.constant 10 : index",
        "%left = arith.cmpi ult, %c, %n : index",
        "%k = arith.subi %c, %n : index",
        f"%a = tensor.extract {x.name}[%r, %c] : {x.type}",
        f"%b = tensor.extract {y.name}[%r, %k] : {y.type}",
        "%v = arith.select %left, %a, %b : f32",
        "%v : f32",
    )
    body.result(body.map([], (4, 37), text))
    a, b = random(rng(), (4, 10), "f32"), random(rng(), (4, 27), "f32")
    np.testing.assert_array_equal(run(body, a, b)[0], np.concatenate([a, b], 1))


def test_chain_of_ops_and_several_results():
    body = Body("map")
    x = body.operand(5, 40)
    square = region("%a = arith.mulf %i0, %i0 : f32", "%a : f32")
    y = body.map([(x, "d0, d1")], (5, 40), square)
    z = body.map([(y, "d1, d0"), (x, "d1, d0")], (40, 5), ADD)
    body.result(y)
    body.result(z)
    a = random(rng(), (5, 40), "f32")
    got = run(body, a)
    np.testing.assert_array_equal(got[0], a * a)
    np.testing.assert_array_equal(got[1], (a * a + a).T)


@pytest.mark.parametrize("dtype, literal, want", [("f32", "2.5", 2.5), ("i64", "-3", -3), ("i1", "true", True)])
def test_constant_result(dtype, literal, want):
    body = Body("map")
    body.result(body.fill((7, 33), dtype, literal))
    assert (run(body)[0] == want).all()


def test_index_across_merged_dimensions():
    body = Body("map")
    x = body.operand(6, 7)
    text = region("%r = linalg.index 0 : index", "%c = arith.index_cast %r : index to i64", "%c : i64")
    body.result(body.map([(x, "d0, d1")], (6, 7), text, "i64"))
    a = random(rng(), (6, 7), "f32")
    np.testing.assert_array_equal(run(body, a)[0], np.broadcast_to(np.arange(6)[:, None], (6, 7)))


def test_non_finite_values_pass_through():
    body = Body("map")
    x = body.operand(21)
    text = region("%z = arith.constant 0.0 : f32", "%r = arith.maximumf %i0, %z : f32", "%r : f32")
    body.result(body.map([(x, "d0")], (21,), text))
    a = random(rng(), 21, "f32")
    a[[0, 5, 20]] = np.nan, np.inf, -np.inf
    np.testing.assert_array_equal(run(body, a)[0], np.maximum(a, 0))


def test_transpose_of_itself_is_refused():
    body = Body("map")
    x = body.operand(5, 5)
    y = body.map([(x, "d0, d1")], (5, 5), region("%a = arith.negf %i0 : f32", "%a : f32"))
    body.result(body.map([(y, "d0, d1"), (y, "d1, d0")], (5, 5), ADD))
    assert "two positions" in supports(body)
