"""What users do, on a GPU: random programs, training loops and scenarios, compiled, eager, and against the CPU.

The programs, loops and scenarios are those of the CPU's tests; here their tensors are made on the GPU.
"""

from __future__ import annotations

import hypothesis
import numpy as np
import pytest
from gpu import needs_gpu
from hypothesis import given, settings
from loops import LOOPS
from random_programs import Program, programs
from replay_support import check
from test_loops import test_eager_and_compiled_agree as loop_agrees
from test_random_programs import FEW, run
from test_replay_scenarios import SCENARIOS

import blutrain as bt
from blutrain.tensor.interop import to_numpy

pytestmark = needs_gpu
BATCHES, EXAMPLES = 12, 4
# They are about memory that tensors share with NumPy.
OF_THE_HOST = {
    "memory_of_numpy_written_in_forward", "numpy_buffer_used_again", "read_in_every_way",
    "numpy_asarray_of_a_buffer", "dlpack_of_a_buffer",
}  # fmt: skip


@pytest.fixture
def on_gpu(monkeypatch):
    """New tensors are on the GPU, and numpy() brings them back."""

    def numpy(x, *, force=False):
        return to_numpy(x if x.requires_grad and not force else x.detach().cpu())

    monkeypatch.setattr(bt.Tensor, "numpy", numpy)
    bt.set_default_device("cuda")
    yield
    bt.set_default_device("cpu")


def on(device: str, program: Program, dtype, compiled: bool) -> list[np.ndarray]:
    bt.set_default_device(device)
    try:
        return run(program, dtype, compiled)
    finally:
        bt.set_default_device("cpu")


def agree(program: Program, dtype, tolerance: float, *, on_cpu: bool) -> None:
    """Compiled on the GPU as eagerly there, and as compiled (or eagerly) on the CPU."""
    got = on("cuda", program, dtype, True)
    for want in (on("cuda", program, dtype, False), on("cpu", program, dtype, on_cpu)):
        assert len(want) == len(got)
        for number, (w, g) in enumerate(zip(want, got, strict=True)):
            assert w.shape == g.shape and w.dtype == g.dtype, number
            scale = max(1.0, np.abs(w).max(initial=0.0))
            np.testing.assert_allclose(g / scale, w / scale, rtol=0, atol=tolerance, err_msg=f"result {number}")


@pytest.mark.parametrize("dtype, kinked, length, tolerance", [("float64", True, 10, 1e-10), ("float32", False, 10, 1e-4),
                                                              ("float64", True, 25, 1e-9)])  # fmt: skip
@pytest.mark.parametrize("batch", range(BATCHES))
def test_random_programs(batch, dtype, kinked, length, tolerance, on_gpu):
    bt.set_default_device("cpu")  # programs are drawn on the CPU

    @hypothesis.seed(batch)
    @settings(FEW, max_examples=EXAMPLES, derandomize=False)
    @given(programs(kinked=kinked, length=length))
    def every(program):
        agree(program, getattr(bt, dtype), tolerance, on_cpu=length == 10 and batch % 4 == 0)

    every()


@pytest.mark.parametrize("name", sorted(SCENARIOS.keys() - OF_THE_HOST))
def test_scenarios(name, on_gpu):
    check(SCENARIOS[name])


@pytest.mark.parametrize("name", sorted(LOOPS))
def test_loops(name, on_gpu, monkeypatch):
    """Gradient accumulation, short last batches, clipping, dropout, schedules, exceptions, ..."""
    loop_agrees(name, "program", monkeypatch)


def test_loops_on_both_devices_agree(on_gpu):
    """Accumulation, a short last batch, and the same dropout masks. (Models without normal numbers at their start:
    logarithms and cosines round otherwise on a GPU.)
    """
    names = ("gradient_accumulation", "short_last_batch", "dropout", "clipping_with_the_norm_logged")
    got = {name: LOOPS[name](True) for name in names}
    bt.set_default_device("cpu")
    for name in names:
        for key, value in LOOPS[name](False).items():
            np.testing.assert_allclose(got[name][key], value, rtol=1e-9, atol=1e-11, err_msg=f"{name} {key}")
