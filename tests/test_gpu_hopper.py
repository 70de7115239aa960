"""The sm_90a contraction family without a device: schedules, refusals, tensor maps, and what ptxas says."""

from __future__ import annotations

import dataclasses
import re

import pytest
from contract_harness import KernelText, context, parse_kernel
from hopper_kernels import (
    H200,
    LAYOUTS,
    accumulated,
    bias_gelu,
    configure,
    finished,
    gated,
    generate,
    multiply,
    plain,
    supports,
)
from mlir import ir

from blutrain.nova.gpu.assemble import AssembleJob, assemble
from blutrain.nova.gpu.builder import Builder
from blutrain.nova.gpu.hopper.configure import tiles_of
from blutrain.nova.gpu.hopper.place import locate
from blutrain.nova.gpu.hopper.problem import read_problem
from blutrain.nova.gpu.hopper.schedule import Schedule
from blutrain.nova.gpu.kernel import WORKSPACE
from blutrain.nova.kernel import Unsupported
from blutrain.nova.passes.configure import config_attribute
from blutrain.nova.target_gpu import gpu_facts

# --- what ptxas says: no spills and no C75xx (assemble raises for either), whatever the schedule

COOPERATIVE = {"pingpong": False, "consumers": 2, "split": 1, "multicast": "", "fetch": 2}
TURNS = {
    "pingpong": True,
    "consumers": 2,
    "split": 1,
    "multicast": "",
    "tile_m": 128,
    "tile_n": 128,
    "stages": 4,
    "chunk": 64,
}
PTXAS = [
    *((plain, lay, (1024, 768, 768), dt, {}) for lay in LAYOUTS for dt in ("bf16", "tf32")),
    *((bias_gelu, lay, (520, 264, 384), dt, {}) for lay in ("NT", "NN") for dt in ("bf16", "tf32")),
    *((gated, lay, (520, 264, 384), dt, {}) for lay in ("NN", "TN") for dt in ("bf16", "tf32")),
    (accumulated, "TN", (384, 1536, 8192), "tf32", {}),
    (plain, "NT", (129, 77, 160), "f16", {}),
    (plain, "NT", (1024, 1024, 512), "bf16", COOPERATIVE | {"tile_m": 256, "tile_n": 160, "stages": 3}),
    (plain, "NN", (1024, 1024, 512), "bf16", COOPERATIVE | {"tile_m": 128, "tile_n": 256, "stages": 4, "multicast": "n"}),
    (plain, "NN", (1024, 1024, 512), "tf32", COOPERATIVE | {"tile_m": 192, "tile_n": 192, "stages": 4, "consumers": 3}),
    (plain, "TT", (1024, 1024, 512), "tf32", COOPERATIVE | {"tile_m": 256, "tile_n": 128, "stages": 4}),
    (plain, "NT", (1024, 1024, 512), "bf16", {"pingpong": True, "consumers": 2, "tile_m": 128, "tile_n": 128, "stages": 6, "split": 1}),
    *((gated, "NT", (1024, 1536, 512), dt, TURNS | {"fetch": 4, "staging": 1}) for dt in ("bf16", "tf32")),
    *((bias_gelu, "NT", (1024, 1536, 512), dt, TURNS | {"tile_n": 192, "staging": 2}) for dt in ("bf16", "tf32")),
    (plain, "TN", (384, 512, 8192), "bf16", COOPERATIVE | {"tile_m": 128, "tile_n": 128, "stages": 4, "consumers": 2, "split": 4}),
    (plain, "TN", (384, 512, 8192), "bf16",
     COOPERATIVE | {"tile_m": 128, "tile_n": 128, "stages": 4, "consumers": 2, "split": 4, "split_in": "cluster"}),
]  # fmt: skip


@pytest.fixture(scope="module")
def assembled():
    kernels = [generate(make(lay, *shape, dt), **schedule) for make, lay, shape, dt, schedule in PTXAS]
    return kernels, assemble([AssembleJob(kernel.text, kernel.target) for kernel in kernels])


@pytest.mark.parametrize(
    "number", range(len(PTXAS)), ids=lambda i: f"{PTXAS[i][0].__name__}-{'-'.join(PTXAS[i][1:4:2])}-{i}"
)
def test_machine_code(assembled, number):
    kernel, code = assembled[0][number], assembled[1][number]
    assert set(code.functions) == {phase.symbol for phase in kernel.phases}
    for phase in kernel.phases:
        report = code.functions[phase.symbol]
        assert report.spill_store_bytes == report.spill_load_bytes == report.stack_bytes == 0
        assert phase.shared_bytes + report.shared_bytes <= H200.shared_bytes_per_block
        assert all(map_.problem() == "" for map_ in phase.tensor_maps)
    product = code.ptx
    assert "wgmma.mma_async" in product and "cp.async.bulk.tensor" in product
    assert "tensormap" in product


def test_operand_type_widens_the_instruction_and_the_tile():
    """bf16 halves the bytes of an element: 64 instead of 32 steps of k in a stage, 16 instead of 8 in an instruction."""
    for dtype, k, steps in (("tf32", 8, 32), ("bf16", 16, 64)):
        kernel = generate(plain("NT", 1024, 768, 768, dtype))
        assert f"k{k}.f32.{dtype}.{dtype}" in kernel.text
        assert kernel.phases[-1].tensor_maps[0].box[0] == steps


# --- which operand goes where


def product_phase(kernel):
    return next(phase for phase in kernel.phases if phase.symbol.endswith("_product"))


def test_tf32_layouts():
    """NT from shared memory; NN with the column factor in registers, TT with the row factor; TN repacks first."""
    assert "in registers" not in generate(plain("NT", 512, 512, 512, "tf32")).schedule
    nn, tt = (generate(plain(lay, 512, 512, 512, "tf32"), split=1) for lay in ("NN", "TT"))
    assert "n in registers" in nn.schedule and product_phase(nn).tensor_maps[0].operand == 1
    assert "m in registers" in tt.schedule and product_phase(tt).tensor_maps[0].operand == 0
    tn = generate(plain("TN", 512, 1024, 512, "tf32"))
    assert tn.phases[0].symbol.endswith("_repack")
    assert "m repacked" in tn.schedule and WORKSPACE in {m.operand for m in product_phase(tn).tensor_maps}
    assert tn.workspace_bytes >= 512 * 512 * 4


def test_tf32_rounds_on_load_and_f32_results_do_not():
    schedule = COOPERATIVE | {"tile_m": 128, "tile_n": 128, "stages": 4}
    maps = product_phase(generate(plain("NT", 1024, 1024, 512, "tf32"), **schedule)).tensor_maps
    assert [m.dtype for m in maps] == ["tf32", "tf32", "f32"]


def test_bf16_takes_every_layout_as_it_is():
    for layout in LAYOUTS:
        kernel = generate(plain(layout, 1024, 1024, 512, "bf16"), split=1)
        assert len(kernel.phases) == 1 and "repack" not in kernel.schedule
        assert sorted(m.operand for m in kernel.phases[0].tensor_maps) == [0, 1, 2]


def test_results_that_tma_cannot_write_leave_from_registers():
    """Rows of 77 f32 are not a multiple of 16 bytes; a transposed result is contiguous along m."""
    assert len(product_phase(generate(plain("NT", 129, 77, 160, "bf16", out="f32"))).tensor_maps) == 2
    kernel = generate(gated("NT", 520, 264, 384, "bf16"))
    assert [m.operand for m in product_phase(kernel).tensor_maps] == [0, 1, 2, 4], "2 is fetched for the epilogue"


def test_partial_column_sums_have_a_row_for_each_share_of_a_tile():
    kernel = generate(
        gated("NT", 520, 264, 384, "bf16"), tile_m=128, tile_n=128, pingpong=False, stages=4, multicast=""
    )
    assert [phase.symbol.split("_")[-1] for phase in kernel.phases] == ["product", "columns"]
    assert kernel.workspace_bytes == (5 * 2) * (3 * 128) * 4


def test_operands_of_the_epilogue_are_fetched_in_whole_rounds():
    """A matrix comes through 2 sets of blocks for each consumer, whose share of a tile is 2 chunks."""
    schedule = COOPERATIVE | {"tile_m": 128, "tile_n": 128, "stages": 3, "staging": 2, "chunk": 128}
    text = gated("NT", 520, 264, 384, "bf16")
    fetched = product_phase(generate(text, **schedule))
    assert [m.operand for m in fetched.tensor_maps] == [0, 1, 2, 4]
    assert fetched.tensor_maps[2].box == (64, 64)
    assert fetched.shared_bytes - product_phase(generate(text, **schedule | {"fetch": 0})).shared_bytes >= 2 * 2 * 8192
    with pytest.raises(Unsupported, match="2 chunks, not a multiple of 3"):
        generate(text, **schedule | {"fetch": 3})


@pytest.mark.parametrize("where", ["workspace", "cluster"])
def test_split_k(where):
    schedule = {"split": 4, "split_in": where, "pingpong": False, "tile_m": 128, "tile_n": 128, "stages": 4}
    kernel = generate(plain("TN", 384, 512, 8192, "bf16"), **schedule, multicast="")
    partial_bytes = 4 * 3 * 4 * 128 * 128 * 4
    if where == "workspace":
        assert len(kernel.phases) == 2 and kernel.workspace_bytes == partial_bytes
    else:
        assert len(kernel.phases) == 1 and kernel.workspace_bytes == 0 and kernel.phases[0].cluster == 4
        assert kernel.phases[0].grid == (48, 1, 1)


EXCHANGES = [  # result, schedule, chunks of a consumer's share, and most of them that one block of the cluster finishes
    ("bf16", {"split": 3, "chunk": 64}, 4, 2),
    ("bf16", {"split": 4, "chunk": 128}, 2, 1),
    ("f32", {"split": 3, "chunk": 128}, 4, 2),
    ("bf16", {"split": 3, "staging": 0}, 4, 2),
]


@pytest.mark.parametrize(("result", "schedule", "chunks", "owned"), EXCHANGES)
def test_blocks_of_a_cluster_exchange_chunks(result, schedule, chunks, owned):
    """Once for each other block and chunk its accumulators are sent; sums of a block's own chunks are finished, and leave
    by TMA through memory that takes nothing from the ring.
    """
    schedule = COOPERATIVE | {"tile_m": 128, "tile_n": 128, "stages": 6, "split_in": "cluster"} | schedule
    kernel = generate(plain("TN", 384, 512, 8192, "bf16", out=result), **schedule)
    (phase,), blocks, staged = kernel.phases, schedule["split"], schedule.get("staging", 2) > 0
    per_chunk = 128 * 64 // 128 // 4 // chunks  # vectors of four in a thread
    assert kernel.text.count("st.async.shared::cluster") == (blocks - 1) * chunks * per_chunk
    assert kernel.text.count("ld.shared.v4.f32") == blocks * chunks * per_chunk
    assert kernel.text.count("nvvm.cluster.arrive.relaxed") == 2  # in the code of producers and of consumers
    assert kernel.text.count("nvvm.cluster.arrive\n") == 0
    assert kernel.text.count("bulk.tensor.global.shared.cta") == chunks * staged == len(phase.tensor_maps[2:]) * chunks
    ring, barriers = 6 * 2 * 128 * 128, 16 * 6 + 8 * 2 * owned
    assert phase.shared_bytes == ring + barriers


def test_an_exchange_takes_more_than_the_ring_where_blocks_own_unequally():
    """2 shares x 2 chunks that one block may own x 4 ranges x 8 KiB, of a tile of 10 chunks."""
    schedule = COOPERATIVE | {"tile_m": 128, "tile_n": 160, "stages": 3, "split": 4, "split_in": "cluster", "chunk": 64}
    (phase,) = generate(plain("TN", 384, 480, 8192, "bf16"), **schedule).phases
    assert 3 * (128 + 160) * 128 < phase.shared_bytes == 2 * 2 * 4 * 8192 + 16 * 3 + 8 * 4


ORDERS = [  # group, first tiles (row, column) of 5 x 7
    ({"group_m": 2}, [(0, 0), (1, 0), (0, 1), (1, 1), (0, 2)]),
    ({"group_m": 8}, [(0, 0), (1, 0), (2, 0), (3, 0), (4, 0), (0, 1)]),
]


@pytest.mark.parametrize(("group", "first"), ORDERS)
def test_order_of_tiles(group, first):
    """Blocks walk groups of rows, column by column; each tile comes once."""
    with context(), ir.Location.unknown():
        kernel, _module = parse_kernel(plain("TN", 5 * 128, 7 * 192, 512, "bf16"))
        schedule = Schedule(tile_m=128, tile_n=192, stages=4, **group)
        tiles = tiles_of(read_problem(kernel), schedule, H200)
        places = [locate(Builder(), tiles, work) for work in range(tiles.total_work)]
    found = [(place.m // 128, place.n // 192) for place in places]
    assert found[: len(first)] == first
    assert sorted(found) == [(row, column) for row in range(5) for column in range(7)]


def test_batches_are_dimensions_of_the_maps():
    kernel = generate(plain("NT", 264, 200, 256, "bf16", batch=(2, 3)))
    assert product_phase(kernel).tensor_maps[0].extents == (256, 264, 6)


# --- what is refused, and why

REFUSED = [
    (plain("NT", 64, 64, 64, "fp32"), "precision fp32"),
    (plain("NT", 64, 64, 66, "bf16"), "multiples of 16 bytes"),
    (plain("TN", 65, 64, 64, "tf32"), "multiples of 16 bytes"),
    (plain("NT", 0, 64, 64, "bf16"), "empty product"),
    (plain("NT", 1 << 31, 8, 8, "bf16"), "an axis of 2147483648 elements"),
]


@pytest.mark.parametrize(("text", "reason"), REFUSED, ids=[r for _, r in REFUSED])
def test_refused(text, reason):
    assert reason in supports(text)


def test_refused_on_other_architectures():
    assert "sm_90a" in supports(plain("NT", 64, 64, 64, "bf16"), gpu_facts("sm_80"))


def test_refused_prologue():
    """A factor that is computed in the kernel: TMA copies operands as they are."""
    text = KernelText()
    a, b = text.operand(64, 64), text.operand(64, 64)
    doubled = text.map([(a, "(d0, d1)")], (64, 64), "f32", "%z = arith.addf %a, %a : f32\n%z")
    assert "computed here" in supports(finished(text, multiply(text, "NT", doubled, b), dtype="tf32"))


def test_widening_prologue_is_what_the_tensor_cores_do():
    text = KernelText()
    a, b = text.operand(64, 64, dtype="bf16"), text.operand(64, 64, dtype="bf16")
    widen = "%z = arith.extf %a : bf16 to f32\n%z"
    wide = [text.map([(x, "(d0, d1)")], (64, 64), "f32", widen) for x in (a, b)]
    kernel = generate(finished(text, multiply(text, "NT", *wide), dtype="tf32"))
    assert "k16.f32.bf16.bf16" in kernel.text


# --- the configurator


def test_deterministic_and_survives_the_ir():
    text = plain("TN", 384, 1536, 8192, "tf32")
    config = configure(text)
    assert config == configure(text)
    with context() as ctx, ir.Location.unknown():
        ctx.allow_unregistered_dialects = True
        inner = re.sub(r"^#nova.lowering_config<(.*)>$", r"\1", str(config_attribute(config)))
        kernel, _module = parse_kernel(text.replace("nova.anchor,", f"nova.anchor, lowering_config = {inner},"))
    assert Schedule.from_config(kernel.config) == Schedule.from_config(config)


@pytest.mark.parametrize("dtype", ["bf16", "tf32"])
def test_choices_fit_the_device(dtype):
    """Every tile of the bar's shapes fits shared memory; long-k weight gradients of few tiles split k."""
    for layout, m, n, k in (("NT", 8192, 1536, 384), ("NN", 8192, 384, 1536), ("NT", 5120, 5120, 5120)):
        schedule = Schedule.from_config(configure(plain(layout, m, n, k, dtype)))
        assert schedule.split == 1 and schedule.stages >= 3
    assert configure(plain("TN", 384, 1536, 8192, dtype))["split"] > 1


def test_fewer_multiprocessors_change_the_grid():
    half = dataclasses.replace(H200, sms=66, max_clusters=())
    text = plain("NT", 8192, 1536, 384, "bf16")
    assert generate(text, half).phases[0].grid[0] <= 66 < generate(text).phases[0].grid[0]
