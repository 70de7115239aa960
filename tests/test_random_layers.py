"""Random stacks of layers, a few steps each: compiled on the CPU, and compiled for GPUs that are not there.

Longer runs: tests/long_run_layers.py.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from draw_layers import Limits, draw, smallest
from layer_plans import evaluated, judged_step, recorded, simulated
from plan_checker import PlanFault, check_plan, map_faults
from plan_simulator import Guarded
from random_layers import EAGER, Loss, Part, Recipe, train
from rounding_judge import complaints, judged, samples

import blutrain as bt
from blutrain.nova.compile import lower
from blutrain.nova.dialect import create_context
from blutrain.nova.gpu.kernel import GpuKernel, GpuPhase, TensorMap
from blutrain.nova.plan import BufferRef, Launch
from blutrain.nova.target_gpu import gpu_facts

SMALL = Limits(rows=30, width=30, classes=50, products=1e5, blocks=2, kinks=0)
PLANNED = Limits(rows=40, width=40, classes=60, products=2e5, blocks=3)


@pytest.mark.parametrize("seed", (0, 2))
def test_float32(seed):
    assert not judged(draw(seed, SMALL), "cpu", None)


@pytest.mark.parametrize("seed", (3, 5))
def test_float64(seed):
    recipe = draw(seed, SMALL)
    got, want = (train(recipe, "cpu", bt.float64, precision) for precision in (None, EAGER))
    for name in want:
        np.testing.assert_allclose(got[name], want[name], rtol=1e-9, atol=1e-11, err_msg=f"{name} of {recipe.text()}")


@pytest.mark.parametrize("seed, arch, precision", [(5, "sm_90a", "tf32"), (11, "sm_90a", "bf16")])
def test_plans_for_gpus_compute_the_step(seed, arch, precision):
    """Kernels evaluated in NumPy, from what they are made of."""
    for step in recorded(draw(seed, PLANNED)):
        assert not judged_step(step, evaluated(step, gpu_facts(arch), precision), precision)


@pytest.mark.parametrize("seed, precision", [(2, "fp32"), (3, "tf32")])
def test_the_code_for_sm_80_computes_the_step(seed, precision):
    for step in recorded(draw(seed, PLANNED)):
        assert not judged_step(step, simulated(step, precision), precision)


# -------------------------------------------------------------------- what judges is judged

TWO_LAYERS = Recipe(
    7, ("ids", 90, True, False), (4, 33, 40), (Part("Dense", (56, True, "gelu", 0.1)), Part("Norm", ("layer",))),
    (Loss("cross entropy", 77, ignored=0.2, smoothing=0.1),), clip=0.1, steps=1,
)  # fmt: skip


@pytest.mark.parametrize("precision", ["bf16", "tf32", "fp32"])
def test_one_wrong_element_is_seen_and_rounding_is_not(precision):
    judge = train(TWO_LAYERS, "cpu", bt.float64)
    *beside, got = samples(TWO_LAYERS, "cpu", precision, range(4))
    assert not complaints(got, judge, beside, precision)
    for name in judge:
        if name.endswith(("weight grad 0", "weight behind 0")):
            wrong = {**got, name: got[name].copy()}
            wrong[name].flat[np.abs(judge[name]).argmax()] *= 0.8 if "grad" in name else 0.98
            (complaint, *_) = complaints(wrong, judge, beside, precision)
            assert complaint.startswith(name)


def test_the_smallest_recipe_that_fails():
    recipe = dataclasses.replace(TWO_LAYERS, optimizer="adamw", micro=2)
    least = smallest(recipe, lambda r: any(part.kind == "Norm" for part in r.parts) and r.micro == 2)
    assert least.parts == (Part("Norm", ("layer",)),) and least.micro == 2 and least.optimizer == "sgd"
    assert least.shape == (1, 1, 1) and "Norm" in least.text()


@pytest.fixture(scope="module")
def planned_step():
    (step,) = recorded(TWO_LAYERS)
    with create_context():
        module, plan, _ = lower(step.trace, gpu_facts("sm_90a"), "bf16")
        check_plan(module, plan)
        yield module, plan


def test_a_value_that_is_overwritten_too_early_is_found(planned_step):
    """Any result that several later launches read, written over a neighbour's memory."""
    module, plan = planned_step
    tried = 0
    for number, launch in enumerate(plan.launches):
        assert isinstance(launch, Launch)
        later = {place for other in plan.launches[number + 1 :] for place in other.operands}
        free = [p for p in launch.operands if p.space == "arena" and p in later]
        for place in free[:1]:
            moved = tuple(p if p != place else BufferRef("arena", 0, (p.offset + 64) % 4096) for p in launch.operands)
            launches = (
                *plan.launches[:number],
                dataclasses.replace(launch, operands=moved),
                *plan.launches[number + 1 :],
            )
            with pytest.raises(PlanFault):
                check_plan(module, dataclasses.replace(plan, launches=launches))
            tried += 1
    assert tried > 5


def test_a_result_over_an_operand_is_found(planned_step):
    module, plan = planned_step
    launch, places = next((n, x.operands) for n, x in enumerate(plan.launches) if len({*x.operands}) == len(x.operands))
    moved = dataclasses.replace(plan.launches[launch], operands=(*places[:-1], places[0]))
    launches = (*plan.launches[:launch], moved, *plan.launches[launch + 1 :])
    with pytest.raises(PlanFault, match="lies over 0 of its places"):
        check_plan(module, dataclasses.replace(plan, launches=launches))


def test_launches_in_another_order_are_found(planned_step):
    module, plan = planned_step
    with pytest.raises(PlanFault):
        check_plan(module, dataclasses.replace(plan, launches=(plan.launches[1], plan.launches[0], *plan.launches[2:])))
    with pytest.raises((PlanFault, StopIteration)):
        check_plan(module, dataclasses.replace(plan, launches=plan.launches[:-1]))


def test_a_tensor_map_that_leaves_its_operand_is_found():
    inside = TensorMap(0, 0, "bf16", (64, 8), (128,), (64, 8))
    places = (BufferRef("arena", 0, 64),)
    fault = lambda spec: list(map_faults(GpuKernel("", "sm_90a", (GpuPhase("f", (1, 1, 1), 128, tensor_maps=(spec,)),),
                                                   0, 0, 0, 1.0, ""), places, [1024]))  # fmt: skip
    assert not fault(inside)
    assert "ends at byte 1152" in fault(dataclasses.replace(inside, extents=(64, 9)))[0]
    assert "ends at byte 1040" in fault(dataclasses.replace(inside, offset=16))[0]


def test_guarded_memory_ends_where_a_page_begins():
    made = Guarded(100)
    assert len(made.bytes) == 100 and made.start % 16 == 0 and (made.bytes == 0xFF).all()
    assert -(made.start + 112) % 4096 == 0
