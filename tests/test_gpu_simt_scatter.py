"""scatter kernels for GPUs: the cases of the CPU's generator, emulated; rows that a block shares."""

import gpu
import gpu_kernels
import numpy as np
import pytest
import test_cpu_scatter
from cpu_kernels import random
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
