"""A data-parallel step for a GPU that is not there: what its kernels leave to the collectives beside them."""

from __future__ import annotations

import pytest

from blutrain import optim
from blutrain.autograd.hooks import set_reducer
from blutrain.distributed import init_process_group
from blutrain.distributed.local import LocalBackend
from blutrain.distributed.reducer import Reducer
from blutrain.nova.aot import compile_for
from blutrain.nova.aot_record import record_step, shapes_only
from blutrain.nova.plan import READY, Callback
from blutrain.nova.target_gpu import gpu_facts
from blutrain.tensor.aval import Aval
from blutrain.tensor.device import Device
from blutrain.tensor.dtype import int64
from examples.gpt_mlp.model import MLPGPT, Config

FACTS = gpu_facts("sm_90a")


def step(monkeypatch, few_blocks):
    """The plan of a step whose buckets may take that many multiprocessors."""
    monkeypatch.setattr(LocalBackend, "few_blocks", few_blocks)
    with shapes_only():
        model = MLPGPT(Config(2048, 1024, 768, 4))
        optimizer = optim.AdamW(model.parameters(), lr=3e-4)
    reducer = Reducer(list(model.named_parameters()), init_process_group(), 25 << 20)
    assert {bucket.blocks for bucket in reducer.buckets} == {few_blocks}
    for parameter in model.parameters():
        set_reducer(parameter, reducer)
    tokens = Aval((8, 1024), int64)
    trace = record_step(model, optimizer, [tokens, tokens], device=Device("cuda"), precision="bf16")
    return compile_for(trace, FACTS, "bf16")


@pytest.fixture(scope="module")
def plans():
    with pytest.MonkeyPatch.context() as patch:
        yield {few: step(patch, few) for few in (0, 16)}


def products(plan):
    """For each product, in order: how many behind the last start of a bucket it is (None before the first), and its blocks."""
    place, found = None, []
    for launch in plan.launches:
        if isinstance(launch, Callback):
            place = 0 if launch.symbol == READY else place
        elif plan.kernels[launch.kernel].unit == "bf16":
            found.append((place, max(phase.grid[0] for phase in plan.kernels[launch.kernel].phases)))
            place = None if place is None else place + 1
    return found


def test_products_beside_a_collective_leave_it_its_multiprocessors(plans):
    found = products(plans[16])
    first = {blocks for place, blocks in found if place == 0}
    assert first == {FACTS.sms - 16} and FACTS.sms in {blocks for place, blocks in found if place is None}, found
    later = {blocks for place, blocks in found if place is not None and place >= 3}
    assert max(later) > FACTS.sms - 16, found  # it is over by then


def test_nothing_is_left_where_collectives_take_nothing(plans):
    assert {blocks for place, blocks in products(plans[0]) if place == 0} == {FACTS.sms}


def test_a_gpu_of_which_a_part_is_held():
    left = FACTS.without(4)
    assert (left.sms, left.clusters(1), left.clusters(2)) == (128, 128, 64)
    assert all(left.clusters(size) <= FACTS.clusters(size) for size in range(1, 9))
    assert FACTS.without(0) == FACTS and FACTS.without(500).sms == 66
