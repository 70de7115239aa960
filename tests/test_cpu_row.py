"""row kernels against NumPy in float64: layer norm, softmax, cross-entropy; narrow, odd and empty rows; non-finite
values."""

from dataclasses import replace

import numpy as np
import pytest
import row_bodies as bodies
from cpu_kernels import NUMPY, TWO_THREADS, Body, Compiled, generate, random, region, run, supports

SHAPES = [(1, 1), (3, 5), (1, 1000), (33, 16), (50, 17), (9, 768), (130, 65), (64, 1), (2, 4099)]
TOLERANCE = {"f32": {"rtol": 3e-5, "atol": 3e-5}, "f64": {"rtol": 1e-12, "atol": 1e-12}}


@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize("rows, cols", SHAPES)
def test_layer_norm(rows, cols, dtype):
    rng = np.random.default_rng(0)
    x, w, b = random(rng, (rows, cols), dtype), random(rng, cols, dtype), random(rng, cols, dtype)
    y, mean, rstd = run(bodies.layer_norm(rows, cols, dtype), x, w, b)
    x64 = x.astype(np.float64)
    m, v = x64.mean(1), x64.var(1)
    r = 1 / np.sqrt(v + 1e-5)
    np.testing.assert_allclose(mean, m, **TOLERANCE[dtype])
    np.testing.assert_allclose(rstd, r, rtol=TOLERANCE[dtype]["rtol"])
    np.testing.assert_allclose(y, (x64 - m[:, None]) * r[:, None] * w + b, **TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize("rows, cols", SHAPES)
def test_rows_of_a_table(rows, cols, dtype):
    """Ids out of range are clamped, as in a kernel that only gathers."""
    rng = np.random.default_rng(0)
    table, x = random(rng, (7, cols), dtype), random(rng, (rows, cols), dtype)
    ids = rng.integers(-1, 8, rows)
    found, total, scaled = run(bodies.gathered(7, rows, cols, dtype), table, ids, x)
    wanted = table[ids.clip(0, 6)].astype(np.float64)
    np.testing.assert_array_equal(found, wanted.astype(found.dtype))
    np.testing.assert_allclose(total, (wanted * x).sum(1), rtol=1e-4, atol=3e-5 * cols**0.5)
    np.testing.assert_allclose(scaled, wanted * total[:, None], rtol=1e-6)


@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize("rows, cols", SHAPES)
def test_layer_norm_backward(rows, cols, dtype):
    rng = np.random.default_rng(0)
    dy, x, w = random(rng, (rows, cols), dtype), random(rng, (rows, cols), dtype), random(rng, cols, dtype)
    x64 = x.astype(np.float64)
    m, r = x64.mean(1).astype(x.dtype), (1 / np.sqrt(x64.var(1) + 1e-5)).astype(x.dtype)
    dx, dw, db = run(bodies.layer_norm_backward(rows, cols, dtype), dy, x, w, m, r)
    xh = (x64 - m[:, None]) * r[:, None].astype(np.float64)
    g = dy * w.astype(np.float64)
    want = (g - g.mean(1, keepdims=True) - xh * (g * xh).mean(1, keepdims=True)) * r[:, None]
    scale = max(1.0, float(np.abs(want).max()))
    np.testing.assert_allclose(dx / scale, want / scale, **TOLERANCE[dtype])
    np.testing.assert_allclose(dw, (dy * xh).sum(0), **TOLERANCE[dtype])
    np.testing.assert_allclose(db, dy.sum(0, dtype=np.float64), **TOLERANCE[dtype])


def softmax_reference(x: np.ndarray) -> np.ndarray:
    x = x.astype(np.float64)
    e = np.exp(x - x.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize("rows, cols", [*SHAPES, *[(7, n) for n in range(1, 18)]])
def test_softmax(rows, cols, dtype):
    x = random(np.random.default_rng(0), (rows, cols), dtype) * 5
    (y,) = run(bodies.softmax(rows, cols, dtype), x)
    np.testing.assert_allclose(y, softmax_reference(x), rtol=10 * TOLERANCE[dtype]["rtol"], atol=1e-300)


def test_log_softmax_of_large_values():
    x = random(np.random.default_rng(0), (5, 100), "f32") * 1e14
    (y,) = run(bodies.softmax(5, 100, "f32", log=True), x)
    x64 = x.astype(np.float64)
    shifted = x64 - x64.max(1, keepdims=True)
    np.testing.assert_allclose(y, shifted - np.log(np.exp(shifted).sum(1, keepdims=True)), rtol=1e-5)


@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_softmax_of_non_finite_rows(dtype):
    """As NumPy's formula gives: -inf entries are 0; a row with NaN, +inf or nothing but -inf is NaN."""
    x = np.zeros((4, 37), NUMPY[dtype])
    x[0, 3] = -np.inf
    x[1, 36] = np.nan
    x[2, 0] = np.inf
    x[3] = -np.inf
    (y,) = run(bodies.softmax(4, 37, dtype), x)
    assert y[0, 3] == 0 and np.isfinite(y[0]).all()
    assert np.isnan(y[1]).all() and np.isnan(y[2, 0]) and np.isnan(y[3]).all()


@pytest.mark.parametrize("ids", ["i64", "i32"])
@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("rows, cols", [(1, 1), (5, 3), (64, 257), (100, 16), (3, 5000)])
def test_cross_entropy(rows, cols, dtype, smoothing, ids):
    rng = np.random.default_rng(0)
    x = random(rng, (rows, cols), dtype) * 3
    t = rng.integers(0, cols, rows).astype(NUMPY[ids])
    t[1::4] = -100
    mean, count, lse, dx = run(bodies.cross_entropy(rows, cols, dtype, smoothing, ids=ids), x, t)
    kept = t != -100
    p = softmax_reference(x)
    target = np.full((rows, cols), smoothing / cols)
    target[np.arange(rows), np.where(kept, t, 0)] += 1 - smoothing
    x64 = x.astype(np.float64)
    want_lse = np.log(np.exp(x64 - x64.max(1, keepdims=True)).sum(1)) + x64.max(1)
    losses = np.where(kept, want_lse - (target * x64).sum(1), 0)
    tolerance = TOLERANCE[dtype]
    np.testing.assert_allclose(lse, want_lse, **tolerance)
    assert count == kept.sum()
    np.testing.assert_allclose(mean, losses.sum() / kept.sum(), **tolerance)
    np.testing.assert_allclose(dx, np.where(kept[:, None], p - target, 0), **tolerance)


def test_cross_entropy_of_ignored_rows_only():
    x, t = random(np.random.default_rng(0), (6, 40), "f32"), np.full(6, -100)
    mean, count, _, dx = run(bodies.cross_entropy(6, 40), x, t)
    assert count == 0 and np.isnan(mean) and not dx.any()


@pytest.mark.parametrize("rows, cols", [(0, 5), (4, 0), (0, 0)])
def test_empty_rows_give_neutral_sums(rows, cols):
    body = Body("row")
    x = body.operand(rows, cols)
    add = region("%s = arith.addf %i0, %o0 : f32", "%s : f32")
    body.result(body.reduce([(x, "d0, d1")], (rows,), "d0", "pr", add))
    body.result(bodies.row_max(body, x, rows, cols, "f32"))
    total, largest = run(body, np.zeros((rows, cols), np.float32))
    assert (total == 0).all() and (largest == -np.inf).all()


@pytest.mark.parametrize("rows, cols", [(5, 7), (16, 64)])
def test_rows_of_a_transposed_value(rows, cols):
    """t = clip((x s)^T), t less its rows' sums, and of that, times x, the sums over the rows of t, which lie along x's."""
    body = Body("row")
    x, s = body.operand(cols, rows), body.operand(cols)
    y = body.map([(x, "d0, d1"), (s, "d0")], (cols, rows), region("%y = arith.mulf %i0, %i1 : f32", "%y : f32"))
    one = "%one = arith.constant 1.0 : f32"
    t = body.map([(y, "d1, d0")], (rows, cols), region(one, "%t = arith.minimumf %i0, %one : f32", "%t : f32"))
    total = bodies.sum_of(body, t, rows, cols, "f32")
    less = region("%l = arith.subf %i0, %i1 : f32", "%l : f32")
    left = body.map([(t, "d0, d1"), (total, "d0")], (rows, cols), less)
    multiply = region("%p = arith.mulf %i0, %i1 : f32", "%s = arith.addf %p, %o0 : f32", "%s : f32")
    ds = body.reduce([(left, "d1, d0"), (x, "d0, d1")], (cols,), "d0", "pr", multiply)
    for value in (left, total, ds):
        body.result(value)
    a, b = random(np.random.default_rng(0), (cols, rows), "f32"), random(np.random.default_rng(1), (cols,), "f32")
    want = np.minimum((a * b[:, None]).T, 1).astype(np.float64)
    sums = want.sum(1)
    got = run(body, a, b)
    np.testing.assert_allclose(got[0], want - sums[:, None], rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(got[1], sums, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(got[2], ((want - sums[:, None]) * a.T).sum(0), rtol=1e-4, atol=1e-4)


def test_a_transposed_result_that_reads_but_the_total():
    body = Body("row")
    x = body.operand(2, 16, 12)
    add = region("%s = arith.addf %i0, %o0 : f32", "%s : f32")
    total = body.reduce([(x, "d0, d1, d2")], (), "", "rrr", add)
    multiply = region("%r = arith.mulf %i0, %i1 : f32", "%r : f32")
    body.result(body.map([(x, "d0, d2, d1"), (total, "")], (2, 12, 16), multiply))
    body.result(total)
    a = random(np.random.default_rng(0), (2, 16, 12), "f32")
    turned, whole = run(body, a)
    np.testing.assert_allclose(whole, a.sum(dtype=np.float64), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(turned, a.transpose(0, 2, 1) * whole, rtol=1e-6)


def argmax(rows: int, cols: int) -> Body:
    body = Body("row")
    x = body.operand(rows, cols)
    value, index = body.fill((rows,), "f32", "0xFF800000"), body.fill((rows,), "i64", "0")
    text = region(
        "%k = linalg.index 1 : index",
        "%ki = arith.index_cast %k : index to i64",
        "%gt = arith.cmpf ogt, %i0, %o0 : f32",
        "%xn = arith.cmpf uno, %i0, %i0 : f32",
        "%an = arith.cmpf ord, %o0, %o0 : f32",
        "%nan = arith.andi %xn, %an : i1",
        "%take = arith.ori %gt, %nan : i1",
        "%v = arith.select %take, %i0, %o0 : f32",
        "%n = arith.select %take, %ki, %o1 : i64",
        "%v, %n : f32, i64",
    )
    for result in body.generic([(x, "d0, d1")], [(value, "d0"), (index, "d0")], "pr", text):
        body.result(result)
    return body


def test_argmax_takes_the_first_and_nan():
    x = np.random.default_rng(0).integers(0, 4, (9, 33)).astype(np.float32)
    x[3, 20:22] = np.nan
    value, index = run(argmax(9, 33), x)
    np.testing.assert_array_equal(index, np.argmax(x, 1))
    np.testing.assert_array_equal(value, x[np.arange(9), np.argmax(x, 1)])


def test_in_place_result_waits_for_the_last_read():
    """softmax into its own input: pass 1 may write, pass 0 has read; a plain copy of the first pass must not."""
    body = bodies.softmax(20, 70)
    body.aliases[0] = 0
    x = random(np.random.default_rng(0), (20, 70), "f32")
    np.testing.assert_allclose(run(body, x)[0], softmax_reference(x), rtol=1e-4)
    body = Body("row")
    x_ = body.operand(20, 70)
    doubled = body.map([(x_, "d0, d1")], (20, 70), region("%r = arith.addf %i0, %i0 : f32", "%r : f32"))
    square = region("%q = arith.mulf %i0, %i1 : f32", "%s = arith.addf %q, %o0 : f32", "%s : f32")
    total = bodies.sum_of(body, x_, 20, 70, "f32")
    body.result(doubled, alias=0)
    body.result(body.reduce([(x_, "d0, d1"), (total, "d0")], (20,), "d0", "pr", square))
    got, sums = run(body, x)
    np.testing.assert_array_equal(got, 2 * x)
    np.testing.assert_allclose(sums, x.sum(1, dtype=np.float64) ** 2, rtol=1e-3, atol=1e-4)


def test_in_place_result_waits_for_another_result():
    """x + x into x's memory and x * sum(x): the second reads x in a pass of its own."""
    body = Body("row")
    x = body.operand(20, 70)
    total = bodies.sum_of(body, x, 20, 70, "f32")
    body.result(body.map([(x, "d0, d1")], (20, 70), region("%r = arith.addf %i0, %i0 : f32", "%r : f32")), alias=0)
    product = region("%r = arith.mulf %i0, %i1 : f32", "%r : f32")
    body.result(body.map([(x, "d0, d1"), (total, "d0")], (20, 70), product))
    a = random(np.random.default_rng(0), (20, 70), "f32")
    doubled, scaled = run(body, a)
    np.testing.assert_array_equal(doubled, 2 * a)
    np.testing.assert_allclose(scaled, a * a.sum(1, keepdims=True, dtype=np.float64), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("vector_bytes", [16, 32])
def test_narrower_vectors(vector_bytes):
    """Four and eight lanes, as on NEON and AVX2."""
    facts = replace(TWO_THREADS, vector_bytes=vector_bytes)
    rng = np.random.default_rng(0)
    x, t = random(rng, (30, 77), "f32"), rng.integers(0, 77, 30)
    mean, _, _, dx = run(bodies.cross_entropy(30, 77), x, t, facts=facts)
    p = softmax_reference(x)
    np.testing.assert_allclose(mean, -np.log(p[np.arange(30), t]).mean(), rtol=1e-5)
    p[np.arange(30), t] -= 1
    np.testing.assert_allclose(dx, p, rtol=1e-4, atol=1e-6)


def test_columns_of_two_dimensions():
    """Group norm's statistics: columns (channels, pixels) that a weight by channel keeps apart."""
    body = Body("row")
    x, w = body.operand(6, 3, 37), body.operand(3)
    text = region("%q = arith.mulf %i0, %i1 : f32", "%s = arith.addf %q, %o0 : f32", "%s : f32")
    total = body.reduce([(x, "d0, d1, d2"), (w, "d1")], (6,), "d0", "prr", text)
    scaled = region("%r = arith.mulf %i0, %i1 : f32", "%r : f32")
    body.result(body.map([(x, "d0, d1, d2"), (total, "d0")], (6, 3, 37), scaled))
    rng = np.random.default_rng(0)
    a, b = random(rng, (6, 3, 37), "f32"), random(rng, 3, "f32")
    sums = (a * b[None, :, None].astype(np.float64)).sum((1, 2))
    np.testing.assert_allclose(run(body, a, b)[0], a * sums[:, None, None], rtol=1e-4, atol=1e-4)


def test_accumulate_onto_an_operand():
    body = Body("row")
    x, init = body.operand(50, 20), body.operand(20)
    add = region("%s = arith.addf %i0, %o0 : f32", "%s : f32")
    body.result(body.reduce([(x, "d0, d1")], (20,), "d1", "rp", add, init=init), alias=1)
    body.result(body.reduce([(x, "d0, d1")], (50,), "d0", "pr", add))
    rng = np.random.default_rng(0)
    a, b = random(rng, (50, 20), "f32"), random(rng, 20, "f32")
    columns, rows = run(body, a, b)
    np.testing.assert_allclose(columns, b + a.sum(0, dtype=np.float64), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(rows, a.sum(1, dtype=np.float64), rtol=1e-5, atol=1e-5)


def test_what_needs_two_kernels_is_refused():
    body = Body("row")
    x = body.operand(8, 20)
    add = region("%s = arith.addf %i0, %o0 : f32", "%s : f32")
    total = body.reduce([(x, "d0, d1")], (20,), "d1", "rp", add)
    rows = bodies.sum_of(body, x, 8, 20, "f32")
    parts = [(x, "d0, d1"), (total, "d1"), (rows, "d0")]
    text = region("%a = arith.addf %i0, %i1 : f32", "%b = arith.addf %a, %i2 : f32", "%b : f32")
    body.result(body.map(parts, (8, 20), text))
    assert "two kernels" in supports(body)


def test_exponentials_are_kept_between_passes():
    generated = generate(bodies.softmax(64, 1000))
    assert generated.workspace_bytes == 2 * 4032  # one row of f32 for each of two workers
    assert generated.text.count("math.roundeven") == 0 and len(generated.phases) == 1
    assert generated.predicted_us > 0 and generated.bytes == 2 * 64 * 1000 * 4


def test_repeated_runs_are_bitwise_equal():
    compiled = Compiled(bodies.layer_norm_backward(200, 96))
    rng = np.random.default_rng(0)
    arrays = [random(rng, s, "f32") for s in ((200, 96), (200, 96), (96,), (200,), (200,))]
    first = [r.copy() for r in compiled.run(*arrays)]
    for _ in range(100):
        assert all(a.tobytes() == b.tobytes() for a, b in zip(first, compiled.run(*arrays), strict=True))
