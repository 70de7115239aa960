"""Memory: many launches and many programs leave none behind."""

from __future__ import annotations

import gc
import mmap
import sys
import weakref
from pathlib import Path

import numpy as np
import pytest
from fresh import run_in_fresh_process
from runtime_support import build, chain_plan, ramp

from blutrain import config
from blutrain.nova.cpu import executable as executable_module
from blutrain.nova.plan import BufferRef

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


@pytest.fixture(autouse=True)
def _cache(tmp_path):
    with config.scope(NOVA_CACHE=str(tmp_path / "nova")):
        yield


def resident_bytes() -> int:
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE


def test_a_thousand_launches():
    x, executable = ramp(), build(chain_plan(20))
    for _ in range(50):
        executable.run([x.ctypes.data])
    before = resident_bytes()
    for _ in range(1000):
        executable.run([x.ctypes.data])
        executable.profile()
    assert resident_bytes() - before < 1 << 20


def test_a_hundred_programs():
    for _ in range(20):
        build(chain_plan(20))
    before = resident_bytes()
    for _ in range(100):
        x = ramp()
        build(chain_plan(20)).run([x.ctypes.data])
    assert resident_bytes() - before < 4 << 20


def test_code_lives_as_long_as_its_programs():
    gc.collect()
    loaded = executable_module._loaded_kernels
    count = len(loaded)
    first, second = build(chain_plan(4, (1.5, 2.5))), build(chain_plan(4, (1.5, 3.5)))
    assert len(loaded) == count + 3  # the kernel with 1.5 is shared
    code = weakref.ref(first._code)
    del first
    gc.collect()
    assert code() is None and len(loaded) == count + 2
    x = ramp()
    assert np.array_equal(second.run([x.ctypes.data])[0], x * np.float32(1.5 * 3.5) ** 2)
    del second
    gc.collect()
    assert len(loaded) == count


def test_a_large_arena_goes_with_its_program():
    run_in_fresh_process("test_runtime_memory", "build_large_arenas")


def build_large_arenas() -> None:
    plan = chain_plan(2)
    build(plan)  # what the first build of a process loads stays
    before = resident_bytes()
    for _ in range(5):
        executable = build(type(plan)(plan.kernels, plan.launches, 64 << 20, plan.inputs, plan.outputs))
        executable.view(BufferRef("arena", 0), (64 << 20,), "i8")[:] = 1
        del executable
    assert resident_bytes() - before < 32 << 20
