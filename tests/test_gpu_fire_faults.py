"""Steps that run out of memory, and kernels that fail: what the user is told, what is left, and that training goes on."""

from __future__ import annotations

import numpy as np
import pytest
from gpu_fake import FakeDriver, FakeKernel, FakeMemory, build, gpu_kernel, phase
from loops import batches, make, state

from blutrain import nova, optim
from blutrain.errors import NovaError
from blutrain.nova import program as program_file
from blutrain.nova.plan import OutputSpec, ProgramPlan


def train_step(model, optimizer, x, y):
    loss = model(x, y)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss


@pytest.mark.parametrize("first_step", ["eager", "compiled"])
def test_a_program_without_memory_is_an_error_and_the_step_can_be_repeated(first_step, monkeypatch):
    """Not a refusal, after which the model would stay interpreted: with memory freed, the same step compiles."""
    build, failures = program_file._build, [1, 1]

    def fails_twice(*arguments):
        if failures:
            failures.pop()
            raise NovaError(
                "out of device memory: 8 GiB\n  the program's largest buffers: arena 8192.0 MiB", stage="memory"
            )
        return build(*arguments)

    monkeypatch.setattr(program_file, "_build", fails_twice)
    model, optimizer = make(False)
    wanted_model, wanted = make(False)
    model.compile(first_step=first_step)
    for number, (x, y) in enumerate(batches(4)):
        before = state(model)
        for _ in range(2 if number == 0 else 0):
            with pytest.raises(NovaError, match="largest buffers: arena") as caught:
                train_step(model, optimizer, x, y)
            assert caught.value.stage == "memory"
            optimizer.zero_grad()
            assert all(np.array_equal(value, before[key]) for key, value in state(model).items())
        train_step(model, optimizer, x, y)
        train_step(wanted_model, wanted, x, y)
    nova.flush()
    assert len(model._compiled.programs) == 1
    for key, value in state(wanted_model).items():
        np.testing.assert_allclose(state(model)[key], value, rtol=1e-9, atol=1e-11, err_msg=key)


def test_optimizers_count_no_step_that_ran_out_of_memory(monkeypatch):
    monkeypatch.setattr(program_file, "_build", lambda *a: (_ for _ in ()).throw(NovaError("none", stage="memory")))
    model, _ = make(True)
    optimizer = optim.AdamW(model.parameters(), lr=0.1)
    x, y = next(iter(batches(1)))
    with pytest.raises(NovaError, match="none"):
        train_step(model, optimizer, x, y)
    steps = [s["step"] for s in optimizer.state_dict()["state"].values() if "step" in s]
    assert not any(steps)


def test_an_output_without_memory_names_the_largest_buffers():
    """Before the launch: nothing ran, and the program works once there is memory."""
    plan = ProgramPlan((gpu_kernel(phase("double")),), (), 1 << 10, (), (OutputSpec((1 << 16,), "f32"),))
    memory = FakeMemory()
    executable = build(plan, FakeDriver({"double": FakeKernel(lambda arguments: None, 0, 2)}), memory)
    memory.limit = 1 << 12
    with pytest.raises(NovaError, match=r"out of device memory.*\n.*output 0 0\.2 MiB") as caught:
        executable.new_output(0)
    assert caught.value.stage == "memory" and "repeat the step" in str(caught.value)
    memory.limit = 1 << 30
    assert executable.new_output(0).shape == (1 << 16,)
