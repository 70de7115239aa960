"""A program bound to a trace on a fake GPU: binding, results, checks that are told of late."""

from __future__ import annotations

import weakref
from types import SimpleNamespace

import numpy as np
import pytest
from gpu_fake import Arguments, FakeDriver, FakeKernel, FakeMemory, array_at, build, gpu_kernel, phase

from blutrain.nova import program
from blutrain.nova.plan import BufferRef, Check, InputSpec, Launch, OutputSpec, ProgramPlan
from blutrain.nova.program import Program
from blutrain.nova.trace import Input, Trace
from blutrain.tensor.aval import Aval
from blutrain.tensor.device import Device
from blutrain.tensor.dtype import float32, float64
from blutrain.tensor.tensor import Tensor, storage_epoch

SIZE, CUDA = 8, Device("cuda")
VECTOR = Aval((SIZE,), float32)


def step(arguments: Arguments) -> None:
    """flag = x has a negative element; else w -= lr * x, and loss = sum of x."""
    w, x, rate, loss, flag, *_ = arguments.pointers
    values = array_at(x, SIZE)
    array_at(loss, 1)[0] = values.sum()
    array_at(flag, 1, np.int32)[0] = failed = 3 if (values < 0).any() else 0
    if not failed:
        array_at(w, SIZE)[:] -= np.float32(array_at(rate, 1, np.float64)[0]) * values


class Count:
    value = 0


class Fixture:
    """The program, its state tensor `w`, and what a log of it holds."""

    def __init__(self, **settings):
        self.driver = FakeDriver({"step": FakeKernel(step, 0, 7)}, **settings)
        flag = BufferRef("arena", 0)
        operands = *(BufferRef("input", i) for i in range(3)), BufferRef("output", 0), flag
        inputs = InputSpec((SIZE,), "f32", "state"), InputSpec((SIZE,), "f32"), InputSpec((), "f64", "scalar")
        plan = ProgramPlan(
            (gpu_kernel(phase("step")),),
            (Launch(0, operands),),
            256,
            inputs,
            (OutputSpec((), "f32"),),
            checks=(Check(flag, "bad value: {flag}", "train.py:12"),),
        )
        trace = Trace(CUDA, outputs=[3], updates={0: 4})
        trace.avals = [VECTOR, VECTOR, Aval((), float64), Aval((), float32), VECTOR]
        trace.inputs = [Input(i, role, trace.avals[i]) for i, role in enumerate(("state", "input", "scalar"))]
        self.executable = build(plan, self.driver, FakeMemory())
        self.executable.report = None  # type: ignore[assignment]
        self.program = Program(trace, self.executable, {}, None)  # type: ignore[arg-type]
        self.w = Tensor._wrap(np.zeros(SIZE, np.float32), CUDA, VECTOR)
        self.count = Count()

    def run(self, x: np.ndarray, rate: float = 1.0) -> np.ndarray:
        self.count.value += 1
        known = SimpleNamespace(captured=[(0, self.w)], scalars=[2])
        tensor = Tensor._wrap(x, CUDA, VECTOR)
        log = SimpleNamespace(steps=[known], externals={1: tensor}, arrays={}, scalars=[rate], counts=[self.count])
        return self.program.run(log)[3]  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def _alone(monkeypatch):
    monkeypatch.setattr(program, "_unsettled", weakref.WeakSet())


def test_state_is_updated_in_place_and_results_are_fresh():
    it = Fixture()
    x = np.arange(SIZE, dtype=np.float32)
    first = it.run(x, 0.5)
    second = it.run(2 * x, 0.25)
    assert np.array_equal(it.w._array, -x)
    assert (first, second) == (x.sum(), 2 * x.sum())
    assert it.executable.bindings.captures == 1 and it.executable.bindings.updates == 0


def test_a_state_with_other_memory_is_bound_again():
    it = Fixture()
    x = np.ones(SIZE, np.float32)
    it.run(x)
    before, it.w._array = it.w._array, np.full(SIZE, 5, np.float32)
    storage_epoch.bump()
    it.run(x)
    assert (before == -1).all() and (it.w._array == 4).all()
    assert it.executable.bindings.captures == 2  # the one node is all of the graph


def test_a_misaligned_state_gets_memory_of_its_own():
    it = Fixture()
    memory = np.zeros(SIZE + 4, np.float32)
    shift = (20 - memory.ctypes.data % 16) % 16 // 4
    it.w._array = memory[shift : shift + SIZE]
    assert it.w._array.ctypes.data % 16 == 4
    it.run(np.ones(SIZE, np.float32))
    assert (it.w._buffer() == -1).all() and not memory.any()


def test_a_failed_check_is_raised_by_the_next_step_and_the_failed_one_does_not_count():
    it = Fixture()
    good, bad = np.ones(SIZE, np.float32), -np.ones(SIZE, np.float32)
    it.run(good)
    it.run(bad)
    with pytest.raises(ValueError, match=r"bad value: 3\n  at train.py:12\n  note: .* updated nothing"):
        it.run(good)
    it.count.value -= 1  # what the flush does for a step that raised
    assert it.count.value == 1 and (it.w._array == -1).all()
    it.run(good)
    assert it.count.value == 2 and (it.w._array == -2).all()


def test_settle_waits_for_checks():
    it = Fixture(is_held=True)
    it.run(-np.ones(SIZE, np.float32))
    assert it.executable.failed_check() is None
    with pytest.raises(ValueError, match="bad value: 3"):
        program.settle()
    program.settle()
