"""row kernels for GPUs: the cases of the CPU's generators, emulated."""

import gpu_kernels
import pytest
import test_cpu_row
from test_cpu_row import *  # noqa: F403

del test_narrower_vectors, test_exponentials_are_kept_between_passes, test_repeated_runs_are_bitwise_equal  # noqa: F821


@pytest.fixture(autouse=True)
def on_gpu(monkeypatch):
    monkeypatch.setattr(test_cpu_row, "run", gpu_kernels.run)
    monkeypatch.setattr(test_cpu_row, "supports", gpu_kernels.supports)
