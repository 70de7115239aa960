"""gather kernels: embedding rows and what follows them."""

import numpy as np
import pytest
from cpu_kernels import NUMPY, Body, random, region, run


@pytest.mark.parametrize("ids", ["i64", "i32"])
@pytest.mark.parametrize("dtype", ["f32", "f64", "bf16"])
@pytest.mark.parametrize("shape", [(1,), (7,), (4, 33), (0,)])
@pytest.mark.parametrize("rows, columns", [(5, 1), (300, 40), (3, 129)])
def test_rows_by_id(shape, rows, columns, dtype, ids):
    body = Body("gather")
    table, numbers = body.operand(rows, columns, dtype=dtype), body.operand(*shape, dtype=ids)
    body.result(body.op("nova.gather", [table, numbers], (*shape, columns), dtype))
    rng = np.random.default_rng(0)
    t, n = random(rng, (rows, columns), dtype), rng.integers(0, rows, shape).astype(NUMPY[ids])
    np.testing.assert_array_equal(run(body, t, n)[0], t[n])


def test_ids_out_of_range_are_clamped():
    body = Body("gather")
    table, numbers = body.operand(6, 20), body.operand(4, dtype="i64")
    body.result(body.op("nova.gather", [table, numbers], (4, 20), "f32"))
    t = random(np.random.default_rng(0), (6, 20), "f32")
    n = np.array([-1, 6, 2**62, 3])
    np.testing.assert_array_equal(run(body, t, n)[0], t[[0, 5, 5, 3]])


def test_token_and_position_embedding():
    """wte[ids] + wpe[t]: the epilogue reads another operand along the sequence."""
    batch, length, width = 3, 17, 50
    body = Body("gather")
    wte, ids, wpe = body.operand(100, width), body.operand(batch, length, dtype="i64"), body.operand(length, width)
    rows = body.op("nova.gather", [wte, ids], (batch, length, width), "f32")
    add = region("%r = arith.addf %i0, %i1 : f32", "%r : f32")
    body.result(body.map([(rows, "d0, d1, d2"), (wpe, "d1, d2")], (batch, length, width), add))
    rng = np.random.default_rng(0)
    t, n, p = (
        random(rng, (100, width), "f32"),
        rng.integers(0, 100, (batch, length)),
        random(rng, (length, width), "f32"),
    )
    np.testing.assert_array_equal(run(body, t, n, p)[0], t[n] + p)
