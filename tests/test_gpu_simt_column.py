"""column and full kernels for GPUs: the cases of the CPU's generators, emulated."""

import gpu_kernels
import pytest
import test_cpu_column
from test_cpu_column import *  # noqa: F403


@pytest.fixture(autouse=True)
def on_gpu(monkeypatch):
    monkeypatch.setattr(test_cpu_column, "run", gpu_kernels.run)
