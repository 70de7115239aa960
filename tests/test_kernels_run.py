"""Whole steps through passes, generators and runtime: the numbers are the interpreter's, state is updated in place."""

from __future__ import annotations

import numpy as np
import pytest
from kernels_support import Step, assert_close
from test_kernels_passes import training_step
from test_kernels_random import random_step

import blutrain as bt
from blutrain import nn
from blutrain.nova.cpu.executable import build_executable
from blutrain.nova.dialect import create_context
from blutrain.nova.import_trace import import_trace
from blutrain.nova.interpret import interpret
from blutrain.nova.passes.driver import run_passes
from blutrain.nova.passes.host_program import run as build_plan
from blutrain.nova.pipeline import PIPELINES
from blutrain.nova.target import host_cpu


def run_compiled(step: Step) -> None:
    """Compile and run the step once; compare outputs and state with the interpreter."""
    facts = host_cpu()
    context = create_context()
    module = import_trace(step.trace, context)
    run_passes(module, PIPELINES["cpu"], facts)
    with context:
        executable = build_executable(build_plan(module, facts), facts)
    arrays, bindings = [], {}
    for x in step.trace.inputs:
        value = step.bindings[x.value]
        bindings[x.value] = value if x.role == "scalar" else np.array(value)
        wide = np.float64 if x.aval.dtype.is_floating else np.int64
        arrays.append(np.array(value, wide) if x.role == "scalar" else np.array(value))
    expected = interpret(step.trace, bindings)
    outputs = executable.run([array.__array_interface__["data"][0] for array in arrays])
    for value, output in zip(step.trace.outputs, outputs, strict=True):
        assert_close(np.asarray(output), expected[value])
    for x, array in zip(step.trace.inputs, arrays, strict=True):
        if x.role == "state":
            assert_close(array, bindings[x.value])


def test_training_step():
    run_compiled(training_step(2, (2, 5), 20))


@pytest.mark.parametrize("seed", [9, 43, 57])
def test_random_program(seed):
    run_compiled(random_step(seed))


LEAVING = {
    "running sum": lambda x, ids: x.cumsum(0),
    "sum of rows by index": lambda x, ids: bt.zeros(7, 6).index_add(0, ids, x),
    "sum of elements by index": lambda x, ids: bt.zeros(7, 6).scatter_add(0, ids.reshape(7, 1).expand(7, 6), x),
    "rows by index": lambda x, ids: x[ids],
    "product": lambda x, ids: x @ x[:6],
    "rows": lambda x, ids: nn.functional.softmax(x, -1),
    "map": lambda x, ids: x * 2.0,
}


class LeavesOften(nn.Module):
    """A value becomes a buffer, an attribute and two results."""

    def __init__(self, make):
        super().__init__()
        self.register_buffer("kept", bt.zeros(7, 6))
        self.make = make

    def forward(self, x, ids):
        made = self.make(x, ids)
        self.kept.copy_(made)
        self.last = made
        return made, made.reshape(-1)


@pytest.mark.parametrize("what", LEAVING)
def test_values_that_leave_a_step_more_than_once(what):
    model, rng = LeavesOften(LEAVING[what]), np.random.default_rng(0)
    model.compile(strict=True, first_step="compiled")
    for _ in range(3):
        x, ids = bt.tensor(rng.standard_normal((7, 6)).astype(np.float32)), bt.tensor(rng.permutation(7))
        expected = LEAVING[what](x, ids).numpy()
        made, flat = model(x, ids)
        for found in (made, flat.reshape(7, 6), model.kept, model.last):
            np.testing.assert_allclose(found.numpy(), expected, rtol=1e-5, atol=1e-6)
        model.kept.zero_()
        np.testing.assert_allclose(made.numpy(), expected, rtol=1e-5, atol=1e-6)
