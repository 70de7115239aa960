"""column and full kernels for GPUs: the cases of the CPU's generators, emulated."""

import gpu_kernels
import numpy as np
import pytest
import test_cpu_column
from cpu_kernels import random
from fire_cases import column_sums
from test_cpu_column import *  # noqa: F403


@pytest.fixture(autouse=True)
def on_gpu(monkeypatch):
    monkeypatch.setattr(test_cpu_column, "run", gpu_kernels.run)


@pytest.mark.parametrize(("rows", "splits"), [(9, 4), (12, 4), (13, 4), (3, 4)])
def test_shares_of_the_rows(rows, splits):
    """Of 9 rows three blocks take 3 each, and the fourth has none; of 13 the last has fewer."""
    body = column_sums(rows, 64)
    g, x = (random(np.random.default_rng(i), (rows, 64), "f32") for i in range(2))
    product, sums = gpu_kernels.run(body, g, x, form="rows", splits=splits, block=32)
    np.testing.assert_array_equal(product, g * x)
    np.testing.assert_allclose(sums, (g * x).sum(0), rtol=1e-5, atol=1e-5)
