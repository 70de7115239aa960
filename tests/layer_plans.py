"""The steps of random trainings compiled for GPUs that are not there: recorded on the CPU, planned, checked, evaluated.

for step in recorded(recipe):
    assemble(plan_jobs(planned(step, gpu_facts("sm_90a"), "tf32")))     # a plan whose memory is checked
    assert not judged_step(step, gpu_facts("sm_90a"), "bf16")           # and which computes the step
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
from linalg_reference import run_plan
from plan_checker import check_plan
from plan_simulator import SimulatedPlan
from random_layers import Recipe, train
from rounding_judge import FEW, MANY, complaints, shaken

import blutrain as bt
from blutrain.nova import execute
from blutrain.nova.compile import lower
from blutrain.nova.dialect import create_context
from blutrain.nova.interpret import interpret
from blutrain.nova.plan import ProgramPlan
from blutrain.nova.target_gpu import gpu_facts
from blutrain.nova.trace import Trace
from blutrain.tensor.device import Device, cpu

SMALL_SM_80 = dataclasses.replace(gpu_facts("sm_80"), sms=3)  # few blocks: loops run


class Step(NamedTuple):
    """A step as on a GPU, and the values of its inputs."""

    trace: Trace
    values: dict[int, Any]


def recorded(recipe: Recipe) -> list[Step]:
    """The different steps of a training: micro-steps that only make gradients, the one that updates."""
    seen: dict[str, Step] = {}
    run = execute.interpret

    def note(trace: Trace, bindings: dict[int, Any]) -> dict[int, Any]:
        values = {x.value: np.array(bindings[x.value]) for x in trace.inputs}
        seen.setdefault(str(trace), Step(dataclasses.replace(trace, device=Device("cuda")), values))
        return run(trace, bindings)

    def uncompiled(log, step, outputs, trace):
        return execute.StepProgram(trace, outputs, final=True)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(execute, "interpret", note)
        patch.setattr(execute, "_compiles_first", lambda *_: False)
        patch.setattr(execute, "_compile", uncompiled)
        train(dataclasses.replace(recipe, steps=1), "cpu", bt.float32, None)
    return list(seen.values())


def planned(step: Step, facts, precision: str) -> ProgramPlan:
    """The plan of a step; its memory is checked."""
    with create_context():
        module, plan, _ = lower(step.trace, facts, precision)
        plan.check()
        check_plan(module, plan)
    return plan


def evaluated(step: Step, facts, precision: str) -> dict[str, np.ndarray]:
    """The results of a step's plan, its kernels evaluated in NumPy from what they are made of."""

    def run(module, plan, inputs):
        outputs, flags = run_plan(module, inputs)
        assert not any(flags), flags
        return outputs

    return _results(step, facts, precision, run)


def simulated(step: Step, precision: str) -> dict[str, np.ndarray]:
    """The results of a step's plan for a small sm_80, its kernels' code run on the CPU."""
    return _results(step, SMALL_SM_80, precision, lambda module, plan, inputs: SimulatedPlan(module, plan).run(inputs))


def _results(step: Step, facts, precision: str, run: Callable) -> dict[str, np.ndarray]:
    with create_context():
        module, plan, _ = lower(step.trace, facts, precision)
        check_plan(module, plan)
        inputs = [np.array(step.values[x.value]) for x in step.trace.inputs]
        outputs = run(module, plan, inputs)
    values = {x.value: array for x, array in zip(step.trace.inputs, inputs, strict=True)}
    return _named(step.trace, dict(zip(step.trace.outputs, outputs, strict=True)), values)


def judged_step(step: Step, got: dict[str, np.ndarray], precision: str) -> list[str]:
    """Which results of a step lie farther from float64 than rounding carries them."""
    judge, beside = _interpreted(step), _shaken(step, precision, range(FEW))
    if complaints(got, judge, beside, precision):
        beside += _shaken(step, precision, range(FEW, MANY))
    return complaints(got, judge, beside, precision)


def _shaken(step: Step, precision: str, seeds: range) -> list[dict[str, np.ndarray]]:
    found = []
    for seed in seeds:
        with shaken(precision, seed):
            found.append(_interpreted(step))
    return found


def _interpreted(step: Step) -> dict[str, np.ndarray]:
    """The step by the eager rules in float64."""
    wide = lambda array: array.astype(np.float64) if array.dtype == np.float32 else array.copy()
    roles = {x.value: x.role for x in step.trace.inputs}
    values = {v: a.item() if roles[v] == "scalar" else wide(a) for v, a in step.values.items()}
    return _named(step.trace, interpret(dataclasses.replace(step.trace, device=cpu), values), values)


def _named(trace: Trace, outputs: dict[int, Any], values: dict[int, Any]) -> dict[str, np.ndarray]:
    found = {f"output {i} {trace.avals[v]}": outputs[v] for i, v in enumerate(trace.outputs)}
    return {**found, **{f"state {v} {trace.avals[v]}": values[v] for v in trace.updates}}
