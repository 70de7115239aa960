"""Steps that run out of memory, and kernels that fail: what the user is told, what is left, and that training goes on."""

from __future__ import annotations

import gc
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from gpu import needs_gpu
from gpu_fake import FakeDriver, FakeKernel, FakeMemory, build, gpu_kernel, phase
from loops import batches, make, state

import blutrain as bt
from blutrain import nova, optim
from blutrain.errors import NovaError
from blutrain.nn import functional as F
from blutrain.nova import program as program_file
from blutrain.nova.gpu.driver import driver
from blutrain.nova.plan import OutputSpec, ProgramPlan
from examples.gpt_mlp.model import MLPGPT, Config


def step(model, optimizer, inputs):
    loss = model(*inputs)
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
                step(model, optimizer, (x, y))
            assert caught.value.stage == "memory"
            optimizer.zero_grad()
            assert all(np.array_equal(value, before[key]) for key, value in state(model).items())
        step(model, optimizer, (x, y))
        step(wanted_model, wanted, (x, y))
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
        step(model, optimizer, (x, y))
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


# -------------------------------------------------------------------- on a device


def tokens_of(batch: int, seed: int):
    rng = np.random.default_rng(seed)
    return [bt.from_numpy(rng.integers(0, 5000, (batch, 256))).to("cuda") for _ in range(2)]


def gpt():
    bt.manual_seed(0)
    model = MLPGPT(Config(5000, 256, 256, 2)).to("cuda")
    model.compile(first_step="compiled", precision="tf32")
    return model, optim.AdamW(model.parameters(), lr=1e-3)


@pytest.mark.parametrize("is_launched", [pytest.param(x, marks=needs_gpu) for x in (False, True)])
def test_ctrl_c_in_a_launch(is_launched, monkeypatch):
    """Whether it came before or behind the launch of a step: later steps have their own inputs, numbers and losses, with
    the device behind by several steps.
    """
    tokens = [tokens_of(4, seed) for seed in range(8)]

    def interrupted(*arguments):
        if is_launched:
            launch(*arguments)
        raise KeyboardInterrupt

    def train(is_interrupted: bool):
        model, optimizer = gpt()
        losses = []
        for number, inputs in enumerate(tokens):
            optimizer.param_groups[0]["lr"] = 1e-3 / (number + 1)
            if number != 4:
                losses.append(step(model, optimizer, inputs))
            elif is_interrupted:
                with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
                    patch.setattr(driver(), "launch_graph", interrupted)
                    step(model, optimizer, inputs)
                optimizer.zero_grad()
            elif is_launched:
                step(model, optimizer, inputs)
            else:  # it counts all the same
                next(iter(optimizer.state.values()))["step"].value += 1
        return [loss.item() for loss in losses], {k: v.cpu().numpy() for k, v in model.state_dict().items()}

    launch = driver().launch_graph
    (wanted, weights), (found, found_weights) = train(False), train(True)
    assert found == wanted
    assert all(np.array_equal(found_weights[key], value) for key, value in weights.items())


@pytest.mark.parametrize("what", [pytest.param(what, marks=needs_gpu) for what in ("arena", "output")])
def test_a_step_that_runs_out_of_device_memory(what):
    """Clear, harmless, and over when there is memory: from then on the bits of a run that never lacked any.

    In pools of their own: one with a past has free parts of blocks in use, which its limit does not touch.
    """
    import cupy

    steps = [tokens_of(2, 0), tokens_of(32, 1), tokens_of(32, 2), tokens_of(32, 3)]

    def in_new_pool(has_to_wait: bool):
        pool = cupy.cuda.MemoryPool()
        with cupy.cuda.using_allocator(pool.malloc):
            return train(pool, has_to_wait)

    def train(pool, has_to_wait: bool):
        model, optimizer = gpt()
        limited = 1 if what == "arena" else 2  # the program of the large batch is new, or ran once without an output
        for number, tokens in enumerate(steps):
            if has_to_wait and number == limited:
                runs_out(pool, model, optimizer, tokens)
            loss = step(model, optimizer, tokens) if what == "arena" else held(model, optimizer, tokens, number)[0]
        return loss.item(), {k: v.cpu().numpy() for k, v in model.state_dict().items()}

    def held(model, optimizer, tokens, number):
        """From the third step on the logits are held."""
        logits = model(tokens[0])
        loss = F.cross_entropy(logits.reshape(-1, 5000), tokens[1].reshape(-1))
        kept = logits if number >= 2 else None
        del logits
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss, kept

    def runs_out(pool, model, optimizer, tokens):
        nova.flush()
        before = [p.detach().cpu().numpy() for p in model.parameters()]
        gc.collect()  # nothing is to become free in the middle
        pool.free_all_blocks()
        pool.set_limit(size=pool.used_bytes() + (4 << 20))
        try:
            for _ in range(2):
                with pytest.raises(NovaError, match=r"out of device memory.*\n.*largest buffers: \w+") as caught:
                    step(model, optimizer, tokens) if what == "arena" else held(model, optimizer, tokens, 2)
                assert caught.value.stage == "memory"
                del caught
                optimizer.zero_grad()
        finally:
            pool.set_limit(size=0)
        for parameter, value in zip(model.parameters(), before, strict=True):
            assert np.array_equal(parameter.detach().cpu().numpy(), value)

    wanted_loss, wanted = in_new_pool(False)
    got_loss, got = in_new_pool(True)
    assert got_loss == wanted_loss
    assert all(np.array_equal(got[key], value) for key, value in wanted.items())


FAULTY = """
import dataclasses, re, sys
sys.path[:0] = {paths!r}
from blutrain.nova import program
from blutrain.nova.plan import Launch

compiled = program.cached_plan

def with_a_trap(*arguments):
    plan, seconds = compiled(*arguments)
    launch = next(x for x in plan.launches if isinstance(x, Launch) and x.label.startswith({anchor!r}))
    text, count = re.subn(r"((?:llvm|gpu)[.]return)", r'"llvm.intr.trap"() : () -> ()\\n\\1', plan.kernels[launch.kernel].text)
    assert count
    kernels = list(plan.kernels)
    kernels[launch.kernel] = dataclasses.replace(kernels[launch.kernel], text=text)
    print("trap in", launch.label, launch.locations, flush=True)
    return dataclasses.replace(plan, kernels=tuple(kernels)), seconds

program.cached_plan = with_a_trap
from test_gpu_fire_faults import gpt, step, tokens_of
print("loss", step(*gpt(), tokens_of(2, 0)).item())
"""


@pytest.mark.parametrize("anchor", [pytest.param(anchor, marks=needs_gpu) for anchor in ("row", "contract")])
@pytest.mark.parametrize("is_checked", ["0", "1"])
def test_a_kernel_that_fails_is_named_with_the_users_line(anchor, is_checked):
    """In a process of its own: nothing works in one whose device failed."""
    tests = Path(__file__).resolve().parent
    script = FAULTY.format(paths=[str(tests), str(tests.parent)], anchor=anchor)
    environment = {**os.environ, "NOVA_CHECK": is_checked}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, timeout=120)
    planted = re.search(r"trap in (\w+ \d+) \('([^']+)'", done.stdout)
    assert planted, done.stdout + done.stderr
    label, line = planted.groups()
    last = done.stderr[done.stderr.rindex("NovaError") :]
    assert "failed on the device" in last and label in last and line in last, done.stderr[-3000:]
