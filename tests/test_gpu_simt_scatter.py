"""scatter kernels for GPUs: the cases of the CPU's generator, emulated; rows that a block shares."""

import gpu
import gpu_kernels
import ml_dtypes
import numpy as np
import pytest
import test_cpu_scatter
from cpu_kernels import Body, random
from test_cpu_scatter import *  # noqa: F403
from test_cpu_scatter import reference, scatter

from blutrain.nova.gpu.scatter_sort import SHARED_FINDS
from blutrain.nova.gpu.scatter_sums import HOT

del test_order_is_that_of_the_ids  # noqa: F821  a row with more than HOT ids is summed in runs


@pytest.fixture(autouse=True)
def on_gpu(monkeypatch, request):
    monkeypatch.setattr(test_cpu_scatter, "run", gpu_kernels.run)
    case = getattr(request.node, "callspec", None)
    if case and not gpu.is_there() and case.params.get("rows") == 3000:
        pytest.skip("too many blocks for the emulator")


def test_order_is_that_of_the_ids_in_rows_of_few():
    rng = np.random.default_rng(0)
    numbers, updates = rng.permutation(np.repeat(np.arange(5), HOT)), random(rng, (5 * HOT, 40), "f32")
    want = np.zeros((5, 40), np.float32)
    for n, u in zip(numbers, updates, strict=True):
        want[n] += u
    np.testing.assert_array_equal(gpu_kernels.run(scatter(5, 40, 5 * HOT), numbers, updates)[0], want)


@pytest.mark.parametrize("columns", [36, 300])
def test_a_row_with_most_of_the_ids(columns):
    rng = np.random.default_rng(0)
    numbers = np.where(rng.random(700) < 0.8, 11, rng.integers(0, 40, 700))
    updates, init = random(rng, (700, columns), "f32"), random(rng, (40, columns), "f32")
    (got,) = gpu_kernels.run(scatter(40, columns, 700, init=True), numbers, updates, init)
    np.testing.assert_allclose(got, reference(40, numbers, updates, init), rtol=1e-5, atol=5e-5)


def test_more_ids_in_a_range_than_shared_memory_holds():
    rng = np.random.default_rng(0)
    count = SHARED_FINDS + 100
    numbers, updates = np.full(count, 1), random(rng, (count, 4), "f32")
    (got,) = gpu_kernels.run(scatter(2, 4, count), numbers, updates)
    np.testing.assert_allclose(got, reference(2, numbers, updates), rtol=1e-5, atol=1e-3)


def test_in_place_rows_without_ids_are_left_alone():
    rng = np.random.default_rng(0)
    numbers = np.array([3, 700, 3, -1, 999, 2000])
    updates, init = random(rng, (6, 44), "f32"), random(rng, (1000, 44), "f32")
    init[5] = np.nan
    (got,) = gpu_kernels.run(scatter(1000, 44, 6, init=True), numbers, updates, init)
    np.testing.assert_allclose(got, reference(1000, numbers, updates, init), rtol=1e-6, atol=1e-6)


def updated(rows, columns, count, *, init=False, dtype="f32") -> Body:
    """m = m * b + sums, p = p - lr[column] * m: both in place, from one kernel."""
    body = Body("scatter")
    ids, updates = body.operand(count, dtype="i64"), body.operand(count, columns, dtype=dtype)
    table = [body.operand(rows, columns, dtype=dtype)] if init else []
    p, m = body.operand(rows, columns), body.operand(rows, columns)
    rate, decay = body.operand(columns), body.operand(dtype="f64")
    sums = body.op("nova.scatter_add", [ids, updates, *table], (rows, columns), dtype)
    small = body.map([(decay, "")], (), "%s = arith.truncf %i0 : f64 to f32\nlinalg.yield %s : f32")
    widen = "%w = arith.extf %i1 : bf16 to f32\n" if dtype == "bf16" else ""
    moment = body.map(
        [(m, "d0, d1"), (sums, "d0, d1"), (small, "")],
        (rows, columns),
        f"{widen}%a = arith.mulf %i0, %i2 : f32\n%b = arith.addf %a, {'%w' if widen else '%i1'} : f32\n"
        "linalg.yield %b : f32",
    )
    new = body.map(
        [(p, "d0, d1"), (moment, "d0, d1"), (rate, "d1")],
        (rows, columns),
        "%a = arith.mulf %i1, %i2 : f32\n%b = arith.subf %i0, %a : f32\nlinalg.yield %b : f32",
    )
    body.result(moment, alias=3 + init)
    body.result(new, alias=2 + init)
    return body


@pytest.mark.parametrize("init", [False, True])
@pytest.mark.parametrize(
    "rows, columns, count", [(1, 1, 3), (1, 8, 70), (40, 1, 50), (40, 36, 700), (9, 300, 30), (6, 4, 0), (3, 7, 200)]
)
def test_an_update_behind_the_sums(rows, columns, count, init):
    rng = np.random.default_rng(0)
    numbers = np.where(rng.random(count) < 0.5, rows // 2, rng.integers(-1, rows + 1, count))
    updates, p, m = (random(rng, s, "f32") for s in ((count, columns), (rows, columns), (rows, columns)))
    table = [random(rng, (rows, columns), "f32")] if init else []
    rate, decay = random(rng, (columns,), "f32"), np.array(0.9)
    body = updated(rows, columns, count, init=init)
    assert gpu_kernels.supports(body) is None
    got = gpu_kernels.run(body, numbers, updates, *table, p, m, rate, decay)
    moment = m * 0.9 + reference(rows, numbers, updates, *table)
    for ours, want in zip(got, (moment, p - rate * moment), strict=True):
        np.testing.assert_allclose(ours, want, rtol=1e-5, atol=1e-4)


def test_an_update_sees_sums_rounded_as_the_table_is():
    numbers, updates = np.zeros(300, np.int64), np.ones((300, 24), ml_dtypes.bfloat16)
    p, m, rate = (np.zeros(shape, np.float32) for shape in ((2, 24), (2, 24), (24,)))
    moment, _ = gpu_kernels.run(updated(2, 24, 300, dtype="bf16"), numbers, updates, p, m, rate, np.array(0.0))
    assert (moment[0] == np.float32(ml_dtypes.bfloat16(300))).all() and not moment[1].any()


def test_what_a_scatter_kernel_refuses():
    body = Body("scatter")
    sums = body.op("nova.scatter_add", [body.operand(8, dtype="i64"), body.operand(8, 4)], (9, 4), "f32")
    add = "%b = arith.addf %o0, %i0 : f32\nlinalg.yield %b : f32"
    body.result(body.reduce([(sums, "d0, d1")], (9,), "d0", "pr", add))
    assert "reduction" in gpu_kernels.supports(body) or "loops" in gpu_kernels.supports(body)
