"""scatter_add kernels against numpy.add.at in float64: repeats, ids out of range, narrow dtypes, order."""

import ml_dtypes
import numpy as np
import pytest
from cpu_kernels import NUMPY, Body, random, run


def scatter(rows, columns, count, dtype="f32", out=None, ids="i64", init=False) -> Body:
    body = Body("scatter")
    inputs = [body.operand(count, dtype=ids), body.operand(count, columns, dtype=dtype)]
    if init:
        inputs.append(body.operand(rows, columns, dtype=out or dtype))
    value = body.op("nova.scatter_add", inputs, (rows, columns), out or dtype)
    body.result(value, alias=2 if init else -1)
    return body


def reference(rows, ids, updates, init=None):
    table = np.zeros((rows, updates.shape[1])) if init is None else init.astype(np.float64)
    inside = (ids >= 0) & (ids < rows)
    np.add.at(table, ids[inside], updates[inside].astype(np.float64))
    return table


@pytest.mark.parametrize("dtype, ids", [("f32", "i64"), ("f64", "i32")])
@pytest.mark.parametrize(
    "rows, columns, count", [(1, 1, 1), (5, 3, 100), (256, 96, 700), (3000, 17, 50), (7, 130, 0), (2, 64, 1000)]
)
def test_sums_by_id(rows, columns, count, dtype, ids):
    rng = np.random.default_rng(0)
    numbers = rng.integers(-2, rows + 2, count).astype(NUMPY[ids])
    updates = random(rng, (count, columns), dtype)
    (got,) = run(scatter(rows, columns, count, dtype, ids=ids), numbers, updates)
    np.testing.assert_allclose(
        got, reference(rows, numbers, updates), rtol=1e-5, atol=2e-5 if dtype == "f32" else 1e-13
    )


def test_order_is_that_of_the_ids():
    """Sums in index order, bit for bit what a sequential loop gives."""
    rng = np.random.default_rng(0)
    numbers, updates = rng.integers(0, 3, 500), random(rng, (500, 40), "f32")
    want = np.zeros((3, 40), np.float32)
    for n, u in zip(numbers, updates, strict=True):
        want[n] += u
    np.testing.assert_array_equal(run(scatter(3, 40, 500), numbers, updates)[0], want)


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
def test_narrow_tables_accumulate_in_f32(dtype):
    updates = np.ones((1000, 33), NUMPY[dtype])
    (got,) = run(scatter(4, 33, 1000, dtype), np.full(1000, 2), updates)
    assert (got[2].astype(np.float32) == np.float32(ml_dtypes.bfloat16(1000) if dtype == "bf16" else 1000)).all()
    assert not got[[0, 1, 3]].astype(np.float32).any()


def test_accumulates_onto_the_init_in_place():
    rng = np.random.default_rng(0)
    numbers, updates, init = rng.integers(0, 20, 60), random(rng, (60, 50), "f32"), random(rng, (20, 50), "f32")
    (got,) = run(scatter(20, 50, 60, init=True), numbers, updates, init)
    np.testing.assert_allclose(got, reference(20, numbers, updates, init), rtol=1e-5, atol=1e-5)
