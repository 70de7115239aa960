"""Random programs, forward and backward: eager against compiled.

Chains and graphs of elementwise operations, reductions, movement, products, softmax, normalization and gathers, of odd
shapes, broadcast, 0-d and empty. The examples are the same in every run.
"""

from __future__ import annotations

import dataclasses

import linalg_reference
import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from random_programs import Instruction, Program, programs

import blutrain as bt
from blutrain import nova
from blutrain.nova import execute, pipeline
from blutrain.nova.aot import compile_for
from blutrain.nova.dialect import create_context
from blutrain.nova.import_trace import import_trace
from blutrain.nova.interpret import interpret
from blutrain.nova.passes.driver import Settings, run_passes
from blutrain.nova.target_gpu import gpu_facts
from blutrain.nova.trace import Trace
from blutrain.tensor.device import Device

FEW = settings(
    max_examples=12,
    derandomize=True,
    database=None,
    deadline=None,
    phases=[Phase.explicit, Phase.generate],  # (each try compiles: shrinking takes minutes; add Phase.shrink by hand)
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
)


def run(program: Program, dtype, compiled: bool) -> list[np.ndarray]:
    """What two steps return, all gradients, the parameters and the buffers behind them."""
    module, inputs = program.module(dtype), program.tensors(dtype)
    optimizer = bt.optim.SGD(module.parameters(), lr=0.01, momentum=0.5) if program.parameters else None
    if compiled:
        module.compile(first_step="compiled", strict=True, keep_grads=True)
    found = []
    for _ in range(2):
        loss, *results = module(*inputs)
        outer = loss + sum(r.square().mean() for r in results if r.requires_grad and r.numel())
        if isinstance(outer, bt.Tensor) and outer.requires_grad:
            outer.backward()
        grads = [t.grad for t in (*module.parameters(), *inputs)]
        if optimizer is not None:
            optimizer.step()
        nova.flush()
        found += [loss if isinstance(loss, bt.Tensor) else bt.zeros(()), *results, *(g for g in grads if g is not None)]
        found = [x if isinstance(x, np.ndarray) else x.detach().numpy().copy() for x in found]
        for t in (*module.parameters(), *inputs):
            t.grad = None
    return [*found, *(p.detach().numpy() for p in (*module.parameters(), *module.buffers()))]


def agree(program: Program, dtype, tolerance: float) -> None:
    """Each result equal in shape and dtype, and to `tolerance` of its largest element; integers to the last bit."""
    expected, got = run(program, dtype, False), run(program, dtype, True)
    assert len(expected) == len(got)
    for number, (e, g) in enumerate(zip(expected, got)):
        assert e.shape == g.shape and e.dtype == g.dtype, number
        scale = max(1.0, np.abs(e).max(initial=0.0)) if e.dtype.kind == "f" else 1
        bound = tolerance if e.dtype.kind == "f" else 0
        np.testing.assert_allclose(g / scale, e / scale, rtol=0, atol=bound, err_msg=f"result {number}")


class Recorded(Exception):
    """Raised in place of the eager first step, once the trace is there."""


def recorded(program: Program, dtype) -> tuple[Trace, dict]:
    """The trace of a step with its gradients, and the values of its inputs."""
    seen = []

    def note(trace, bindings):
        seen.append((trace, {x.value: bindings[x.value] for x in trace.inputs}))
        raise Recorded

    module, inputs = program.module(dtype), program.tensors(dtype)
    module.compile()
    with pytest.MonkeyPatch.context() as patch, pytest.raises(Recorded):
        patch.setattr(execute, "interpret", note)
        loss = module(*inputs)[0]
        if isinstance(loss, bt.Tensor) and loss.requires_grad:
            loss.backward()
        nova.flush()
    return seen[0]


def agree_on_a_gpu(program: Program, dtype, tolerance: float) -> None:
    """The kernels that the step is for GPUs compute what the interpreter does, and each of them has code."""
    trace, values = recorded(program, dtype)
    trace = dataclasses.replace(trace, device=Device("cuda"))
    wanted = interpret(dataclasses.replace(trace, device=Device("cpu")), dict(values))
    for arch in ("sm_80", "sm_90a"):
        compile_for(trace, gpu_facts(arch), "fp32")
        names = pipeline.passes("cuda", precision="fp32")
        names = [n for n in names[: names.index("dedupe_kernels") + 1] if n != "configure"]
        with create_context() as context:
            step = import_trace(trace, context)
            run_passes(step, tuple(names), gpu_facts(arch), Settings(verify=True))
            got, _ = linalg_reference.run_plan(step, [np.array(values[x.value]) for x in trace.inputs])
        for number, (g, output) in enumerate(zip(got, trace.outputs, strict=True)):
            scale = max(1.0, np.abs(wanted[output]).max(initial=0.0))
            np.testing.assert_allclose(g / scale, wanted[output] / scale, rtol=0, atol=tolerance, err_msg=str(number))


@FEW
@given(programs(kinked=True))
def test_float64(program):
    agree(program, bt.float64, 1e-10)


@FEW
@given(programs(kinked=False))
def test_float32(program):
    agree(program, bt.float32, 1e-4)


@settings(FEW, max_examples=3)
@given(programs(kinked=True, length=25))
def test_longer_programs(program):
    agree(program, bt.float64, 1e-9)


# -------------------------------------------------------------------- found before


def small(shapes: list[tuple], parameters: list[tuple], *instructions: Instruction) -> Program:
    rng = np.random.default_rng(0)
    inputs = [np.arange(5), *(rng.uniform(-1, 1, s) for s in shapes)]
    return Program(inputs, [rng.uniform(-1, 1, s) for s in parameters], list(instructions))


def test_result_in_the_memory_of_an_operand_that_a_later_pass_over_the_row_reads():
    agree(small([(2,)], [], Instruction("exp", (1,)), Instruction("layer_norm", (1,))), bt.float64, 1e-12)


EXPANDED_SQUARE = small([(33, 1)], [], Instruction("expand", (1,), (0, 2)), Instruction("gram", (2,)))
TAKEN_BEHIND_LINEAR = small(
    [(2, 7, 2)], [(3, 2), (3,)], Instruction("linear", (1,), (0, 1)), Instruction("take", (2, 0), (1,))
)
JOINED_BEHIND_LINEAR = small(
    [(2, 7, 2)], [(3, 2), (3,)], Instruction("linear", (1,), (0, 1)), Instruction("concat", (2, 2), (1,))
)


@pytest.mark.parametrize("program", [EXPANDED_SQUARE, TAKEN_BEHIND_LINEAR, JOINED_BEHIND_LINEAR])
def test_factors_that_do_not_vary_along_a_batch_and_places_behind_a_reshape(program):
    agree(program, bt.float64, 1e-12)
    agree_on_a_gpu(program, bt.float32, 1e-5)


# Programs of long runs that once were refused.
FOUND = {
    "a lookup of the only element that its own kernel would make": small(
        [(3, 1)], [], Instruction("prod", (1,), ((0,), False)), Instruction("index_add", (2, 2, 0), (0,))
    ),
    "a table of one row, beside its gather": small(
        [(1, 2)], [], Instruction("index_copy", (1, 0)), Instruction("standard", (2,), (1,))
    ),
    "nothing joined to nothing": small([(0, 7)], [], Instruction("concat", (1, 1), (1,))),
    "a part of nothing": small(
        [(0, 7)], [], Instruction("flip", (1,), (1, 2)), Instruction("sum", (2,), ((0,), False))
    ),
    "a sum along which neither factor varies": small(
        [(2,)], [], Instruction("expand", (1,), (1, 5)), Instruction("gram", (2,))
    ),
    "computed once, read in parts only": small(
        [(2, 2, 2)],
        [],
        Instruction("softmax", (1,), (2,)),
        Instruction("concat", (2, 1), (2,)),
        Instruction("stack", (2, 1), (1,)),
    ),
    "a factor that the step keeps, in a product of one number": small(
        [(3, 1)], [(1, 1)], Instruction("plain linear", (1,), (0,)), Instruction("select", (2,), (0, 1))
    ),
    "no rows added": small([(0, 1)], [], Instruction("index_add", (1, 1, 0), (1,))),
}


@pytest.mark.parametrize("program", FOUND.values(), ids=FOUND)
def test_found_by_long_runs(program):
    agree(program, bt.float64, 1e-9)
    agree_on_a_gpu(program, bt.float32, 1e-5)
