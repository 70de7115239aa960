"""column and full kernels: sums over leading, middle and all dimensions, against NumPy in float64."""

import numpy as np
import pytest
from cpu_kernels import Body, random, region, run

ADD = region("%s = arith.addf %i0, %o0 : f32", "%s : f32")
TOLERANCE = {"f32": 2e-5, "f64": 1e-13}


@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize("shape", [(1, 1), (1, 40), (33, 1), (300, 17), (2000, 96), (7, 4099), (40, 0), (0, 9)])
def test_sum_over_rows(shape, dtype):
    body = Body("column")
    x = body.operand(*shape, dtype=dtype)
    add = region(f"%s = arith.addf %i0, %o0 : {dtype}", f"%s : {dtype}")
    total = body.reduce([(x, "d0, d1")], (shape[1],), "d1", "rp", add, dtype=dtype)
    half = region(f"%h = arith.constant 0.5 : {dtype}", f"%r = arith.mulf %i0, %h : {dtype}", f"%r : {dtype}")
    body.result(total)
    body.result(body.map([(total, "d0")], (shape[1],), half, dtype))
    a = random(np.random.default_rng(0), shape, dtype)
    got, halved = run(body, a)
    want = a.sum(0, dtype=np.float64)
    np.testing.assert_allclose(got, want, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype] * 30)
    np.testing.assert_array_equal(halved, got * 0.5)


@pytest.mark.parametrize("shape", [(3, 50, 20), (2, 300, 33), (20, 5, 6)])
def test_sum_over_the_middle(shape):
    body = Body("column")
    x = body.operand(*shape)
    body.result(body.reduce([(x, "d0, d1, d2")], (shape[0], shape[2]), "d0, d2", "prp", ADD))
    a = random(np.random.default_rng(0), shape, "f32")
    np.testing.assert_allclose(run(body, a)[0], a.sum(1, dtype=np.float64), rtol=2e-5, atol=1e-4)


@pytest.mark.parametrize("shape", [(4, 3000), (400, 40)])
def test_map_beside_its_column_sum(shape):
    """A backward pass and its bias gradient: one sweep writes one and sums it for the other."""
    body = Body("column")
    g, x = body.operand(*shape), body.operand(*shape)
    product = region("%r = arith.mulf %i0, %i1 : f32", "%r : f32")
    d = body.map([(g, "d0, d1"), (x, "d0, d1")], shape, product)
    body.result(d, alias=0)
    body.result(body.reduce([(d, "d0, d1")], (shape[1],), "d1", "rp", ADD))
    rng = np.random.default_rng(0)
    a, b = random(rng, shape, "f32"), random(rng, shape, "f32")
    got, total = run(body, a, b)
    np.testing.assert_array_equal(got, a * b)
    np.testing.assert_allclose(total, (a * b).sum(0, dtype=np.float64), rtol=2e-5, atol=1e-4)


def test_column_max_keeps_nan():
    body = Body("column")
    x = body.operand(70, 19)
    text = region("%r = arith.maximumf %i0, %o0 : f32", "%r : f32")
    body.result(body.reduce([(x, "d0, d1")], (19,), "d1", "rp", text, neutral="0xFF800000"))
    a = random(np.random.default_rng(0), (70, 19), "f32")
    a[5, 3], a[6, 4], a[:, 5] = np.nan, np.inf, -np.inf
    np.testing.assert_array_equal(run(body, a)[0], a.max(0))


# --- full


@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize("shape", [(), (1,), (7,), (100_003,), (70, 900), (0,), (3, 5, 7)])
def test_square_sum_and_root(shape, dtype):
    body = Body("full")
    x = body.operand(*shape, dtype=dtype)
    loops = ", ".join(f"d{d}" for d in range(len(shape)))
    square = region(f"%q = arith.mulf %i0, %i0 : {dtype}", f"%s = arith.addf %q, %o0 : {dtype}", f"%s : {dtype}")
    total = body.reduce([(x, loops)], (), "", "r" * len(shape), square, dtype=dtype)
    body.result(body.map([(total, "")], (), region(f"%r = math.sqrt %i0 : {dtype}", f"%r : {dtype}"), dtype))
    a = random(np.random.default_rng(0), shape, dtype)
    want = np.sqrt((a.astype(np.float64) ** 2).sum())
    np.testing.assert_allclose(run(body, a)[0], want, rtol=1e-6 if dtype == "f32" else 1e-14)


@pytest.mark.parametrize("shape", [(90_001,), (300, 301)])
def test_two_levels_and_a_map_behind_them(shape):
    """x minus its mean over its deviation: three phases."""
    count, loops = int(np.prod(shape)), ", ".join(f"d{d}" for d in range(len(shape)))
    kinds = "r" * len(shape)
    body = Body("full")
    x = body.operand(*shape)
    scale = region(f"%c = arith.constant {1 / count:.17f} : f32", "%r = arith.mulf %i0, %c : f32", "%r : f32")
    mean = body.map([(body.reduce([(x, loops)], (), "", kinds, ADD), "")], (), scale)
    square = region(
        "%d = arith.subf %i0, %i1 : f32",
        "%q = arith.mulf %d, %d : f32",
        "%s = arith.addf %q, %o0 : f32",
        "%s : f32",
    )
    variance = body.map([(body.reduce([(x, loops), (mean, "")], (), "", kinds, square), "")], (), scale)
    text = region(
        "%d = arith.subf %i0, %i1 : f32",
        "%s = math.rsqrt %i2 : f32",
        "%r = arith.mulf %d, %s : f32",
        "%r : f32",
    )
    body.result(body.map([(x, loops), (mean, ""), (variance, "")], shape, text))
    body.result(variance)
    a = random(np.random.default_rng(0), shape, "f32") + 100
    got, var = run(body, a)
    a64 = a.astype(np.float64)
    np.testing.assert_allclose(var, a64.var(), rtol=1e-4)
    np.testing.assert_allclose(got, (a64 - a64.mean()) / a64.std(), rtol=1e-3, atol=1e-3)


def test_flags_and_integer_sums():
    body = Body("full")
    ids = body.operand(1000, dtype="i64")
    bad = region(
        "%z = arith.constant 0 : i64",
        "%n = arith.constant 50 : i64",
        "%a = arith.cmpi slt, %i0, %z : i64",
        "%b = arith.cmpi sge, %i0, %n : i64",
        "%c = arith.ori %a, %b : i1",
        "%e = arith.extui %c : i1 to i32",
        "%r = arith.ori %e, %o0 : i32",
        "%r : i32",
    )
    body.result(body.reduce([(ids, "d0")], (), "", "r", bad, neutral="0", dtype="i32"))
    a = np.random.default_rng(0).integers(0, 50, 1000)
    assert run(body, a)[0] == 0
    a[999] = 50
    assert run(body, a)[0] == 1


def test_full_argmax_is_the_first():
    body = Body("full")
    x = body.operand(20, 50)
    value, index = body.fill((), "f32", "0xFF800000"), body.fill((), "i64", "0")
    text = region(
        "%k0 = linalg.index 0 : index",
        "%k1 = linalg.index 1 : index",
        "%w = arith.constant 50 : index",
        "%m = arith.muli %k0, %w : index",
        "%k = arith.addi %m, %k1 : index",
        "%ki = arith.index_cast %k : index to i64",
        "%take = arith.cmpf ogt, %i0, %o0 : f32",
        "%v = arith.select %take, %i0, %o0 : f32",
        "%n = arith.select %take, %ki, %o1 : i64",
        "%v, %n : f32, i64",
    )
    for result in body.generic([(x, "d0, d1")], [(value, ""), (index, "")], "rr", text):
        body.result(result)
    a = np.random.default_rng(0).integers(0, 9, (20, 50)).astype(np.float32)
    value, index = run(body, a)
    assert index == a.argmax() and value == a.max()


@pytest.mark.parametrize("shape", [(8, 20), (300, 33)])
def test_sums_of_sums_and_what_they_normalise(shape):
    """Batch norm: mean and variance over the rows, then every element; a factor by row as well."""
    rows, columns = shape
    body = Body("column")
    x, factor = body.operand(*shape), body.operand(rows)
    scale = region(f"%c = arith.constant {1 / rows:.9f} : f32", "%r = arith.mulf %i0, %c : f32", "%r : f32")
    mean = body.map([(body.reduce([(x, "d0, d1")], (columns,), "d1", "rp", ADD), "d0")], (columns,), scale)
    square = region(
        "%d = arith.subf %i0, %i1 : f32", "%q = arith.mulf %d, %d : f32", "%s = arith.addf %q, %o0 : f32", "%s : f32"
    )
    centred = [(x, "d0, d1"), (mean, "d1")]
    variance = body.map([(body.reduce(centred, (columns,), "d1", "rp", square), "d0")], (columns,), scale)
    text = region(
        "%d = arith.subf %i0, %i1 : f32",
        "%s = math.rsqrt %i2 : f32",
        "%n = arith.mulf %d, %s : f32",
        "%r = arith.mulf %n, %i3 : f32",
        "%r : f32",
    )
    inputs = [(x, "d0, d1"), (mean, "d1"), (variance, "d1"), (factor, "d0")]
    body.result(body.map(inputs, shape, text))
    body.result(mean)
    rng = np.random.default_rng(0)
    a, f = random(rng, shape, "f32") * 3 + 1, random(rng, rows, "f32")
    got, means = run(body, a, f)
    a64 = a.astype(np.float64)
    np.testing.assert_allclose(means, a64.mean(0), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(got, (a64 - a64.mean(0)) / a64.std(0) * f[:, None], rtol=1e-4, atol=1e-4)


def test_column_argmin_is_the_first():
    body = Body("column")
    x = body.operand(70, 21)
    value, index = body.fill((21,), "f32", "0x7F800000"), body.fill((21,), "i64", "0")
    text = region(
        "%k = linalg.index 0 : index",
        "%ki = arith.index_cast %k : index to i64",
        "%take = arith.cmpf olt, %i0, %o0 : f32",
        "%v = arith.select %take, %i0, %o0 : f32",
        "%n = arith.select %take, %ki, %o1 : i64",
        "%v, %n : f32, i64",
    )
    results = body.generic([(x, "d0, d1")], [(value, "d1"), (index, "d1")], "rp", text)
    body.result(results[1])
    a = np.random.default_rng(0).integers(0, 9, (70, 21)).astype(np.float32)
    np.testing.assert_array_equal(run(body, a)[0], a.argmin(0))
