"""map and gather kernels for GPUs: the cases of the CPU's generators, emulated; tiles; schedules."""

import gpu_kernels
import pytest
import test_cpu_gather
import test_cpu_map
from test_cpu_gather import *  # noqa: F403
from test_cpu_map import *  # noqa: F403


@pytest.fixture(autouse=True)
def on_gpu(monkeypatch):
    for module in (test_cpu_map, test_cpu_gather):
        monkeypatch.setattr(module, "run", gpu_kernels.run)
        monkeypatch.setattr(module, "supports", gpu_kernels.supports, raising=False)
