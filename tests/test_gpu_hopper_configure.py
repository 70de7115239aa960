"""What the configurator of sm_90a picks, and why: the model's terms one by one, and that nothing cheaper is left out."""

from __future__ import annotations

import dataclasses

import pytest
from contract_harness import context, parse_kernel
from hopper_kernels import H200, bias_gelu, factors, finished, gated, multiply, plain
from mlir import ir

from blutrain.nova.gpu.hopper.configure import configure, fitting, tiles_of
from blutrain.nova.gpu.hopper.cost import predict_us, product_us
from blutrain.nova.gpu.hopper.pieces import chunk_columns
from blutrain.nova.gpu.hopper.problem import read_problem
from blutrain.nova.gpu.hopper.schedule import Schedule


def with_problem(text, function):
    with context(), ir.Location.unknown():
        kernel, _module = parse_kernel(text)
        return function(read_problem(kernel))


def pick(text):
    return with_problem(text, lambda problem: configure(problem, H200))


def price(text, *schedules):
    """Predicted microseconds of schedules that fit."""

    def each(problem):
        found = [tiles_of(problem, schedule, H200) for schedule in schedules]
        assert not any(tiles.problem_with_schedule() for tiles in found)
        return [predict_us(tiles, H200) for tiles in found]

    return with_problem(text, each)


@pytest.mark.parametrize(
    "text",
    [
        plain("NT", 1000, 1000, 1000, "bf16"),
        plain("TN", 640, 640, 4096, "tf32"),
        plain("NN", 16384, 640, 2560, "bf16"),
        bias_gelu("NT", 520, 264, 384, "bf16"),
        gated("TN", 520, 264, 384, "tf32"),
    ],
    ids=["ragged", "split", "tall", "gelu", "gated"],
)
def test_nothing_cheaper_is_left_out(text):
    """Cuts are left unpriced where the tensor cores alone would need longer than the pick in all."""

    def check(problem):
        prices = {}
        for tiles in fitting(problem, H200):
            prices[tiles.schedule] = predict_us(tiles, H200)
            assert product_us(problem, tiles.schedule, H200) <= prices[tiles.schedule]
        assert prices[configure(problem, H200)] == min(prices.values())

    with_problem(text, check)


def test_full_waves():
    """144 tiles of 128 x 128 are 12 more than an H200 has multiprocessors: a second wave for them would be nearly empty."""
    schedule = pick(plain("NN", 1536, 1536, 1536, "bf16"))
    assert 66 < -(-1536 // schedule.tile_m) * -(-1536 // schedule.tile_n) <= 132


def test_rows_that_cross_lines_are_shared():
    """Rows 2000 bytes apart start in the middle of a sector: TMA needs longer than wgmma, unless two blocks share."""
    assert pick(plain("NT", 1000, 1000, 1000, "bf16")).multicast
    assert not pick(plain("NT", 1024, 1024, 1024, "bf16")).multicast


def test_either_factor_is_shared_where_rows_cross_lines():
    """Rows of n are 6864 bytes apart, those of m 12736: the n tile takes longer, though it is smaller (61.1 us against 72.4)."""
    schedule = pick(plain("TN", 6368, 3432, 832, "bf16"))
    assert (schedule.tile_m, schedule.tile_n, schedule.multicast) == (192, 128, "n")


def test_results_from_registers_delay_the_other_consumer():
    """64 x 192 in turns were predicted as fast as 128 x 192 together: 147 us and 129."""
    assert not pick(plain("TN", 6368, 3432, 832, "tf32")).pingpong


@pytest.mark.parametrize(
    ("size", "schedule", "least", "most"),
    [(1792, Schedule(64, 128, 8, pingpong=True), 1.15, 1.25), (4096, Schedule(128, 256, 4), 1.0, 1.02)],
    ids=["short", "long"],
)
def test_blocks_that_share_tell_each_other(size, schedule, least, most):
    """A short step takes longer for it (18.0 us alone, 22.5 shared on an H200); a long one hides it."""
    shared = dataclasses.replace(schedule, multicast="n")
    alone_us, shared_us = price(plain("NT", size, size, size, "bf16"), schedule, shared)
    assert least < shared_us / alone_us < most


def test_an_epilogue_behind_few_steps_is_hidden():
    """Of 8 steps a tile, an epilogue takes as long as the product; consumers that take turns hide it."""
    assert pick(plain("NT", 12288, 512, 512, "bf16")).pingpong


def test_results_leave_by_tma():
    """Even where a ring without their buffers would have a stage more."""
    assert pick(plain("TN", 1280, 5120, 2048, "tf32")).staging


def test_a_ring_covers_the_latency():
    text = plain("NN", 4096, 1024, 2048, "bf16")
    shallow, deep = price(text, *(Schedule(128, 128, stages, pingpong=True) for stages in (3, 6)))
    assert shallow > deep


def test_half_rows_cost_like_whole_ones():
    """bf16 blocks of 160 columns come in rows of 64 bytes where memory runs along them, in rows of 128 along k."""
    schedule = Schedule(64, 160, 5, pingpong=True)
    (along_k,), (along_n,) = (price(plain(layout, 6144, 6240, 3072, "bf16"), schedule) for layout in ("NT", "NN"))
    assert along_n > 1.2 * along_k


@pytest.mark.parametrize("dtype", ["tf32", "bf16"])
def test_column_sums_alone(dtype):
    """A product that stores nothing but sums of its columns has a price."""
    text, a, b = factors("NT", 512, 256, 512, dtype)
    region = "%e = math.exp %a : f32\n%q = arith.addf %o, %e : f32\n%q"
    sums = text.generic([(multiply(text, "NT", a, b), "(d0, d1)")], text.fill((256,), "f32"), "(d1)", "rp", region)
    assert pick(finished(text, sums, dtype=dtype)).split == 1


@pytest.mark.parametrize(
    ("layout", "dtype", "shapes", "schedule", "least", "most"),
    [
        ("NT", "tf32", [(768, 2112, 4096), (768, 1984, 4096)], Schedule(64, 192, 6, pingpong=True), 1.1, 1.5),
        ("NT", "tf32", [(2816, 768, 4096), (2624, 768, 4096)], Schedule(256, 64, 4, pingpong=True), 1.1, 1.5),
        ("NT", "tf32", [(1536, 2112, 4096), (1536, 1984, 4096)], Schedule(128, 192, 4, pingpong=True), 0.97, 1.0),
        ("NN", "bf16", [(768, 2816, 8192), (768, 2624, 8192)], Schedule(64, 256, 4, pingpong=True), 0.97, 1.0),
    ],
    ids=["columns", "rows", "hidden behind wgmma", "along n"],
)
def test_rows_beyond_a_factor_cost(layout, dtype, shapes, schedule, least, most):
    """TMA brings them like others, but not as fast (37.9 and 53.7, 61.2 and 78.2, 73.6 and 73.8, 52.5 and 52.6 us on an H200)."""
    whole, ragged = (price(plain(layout, *shape, dtype), schedule)[0] for shape in shapes)
    assert least < ragged / whole < most


def test_narrow_tiles_end_with_the_product():
    """64 x 224 are three full waves here, but 160 columns of each last tile lie beyond (24.1 us; 64 x 128: 17.5)."""
    assert pick(plain("NT", 2304, 2304, 512, "tf32")).tile_n != 224


def test_each_last_tile_of_a_block_counts():
    """Blocks that walk rows two at a time get three last tiles or none, 36 at a time two or one (24.5 and 21.2 us)."""
    schedules = [Schedule(64, 224, 5, pingpong=True, group_m=group) for group in (2, 36)]
    often, seldom = price(plain("NT", 2304, 2304, 512, "tf32"), *schedules)
    assert 1.05 < often / seldom < 1.3


def test_a_gpc_brings_in_so_much():
    """Neighbours that share no columns need more lines than reach their GPC (40.7 us against 29.6)."""
    schedules = [Schedule(64, 128, 8, pingpong=True, group_m=group) for group in (1, 4)]
    lines, square = price(plain("NT", 768, 1408, 4096, "tf32"), *schedules)
    assert lines > 1.05 * square
    assert pick(plain("NT", 768, 1408, 2944, "tf32")) == schedules[1]


def test_neighbours_share_the_line_in_which_their_tiles_end():
    """bf16 tiles of 192 x 96 where memory runs along n: 26.9 us row by row, 29.9 in groups of eight rows."""
    schedule = pick(plain("NN", 4608, 1536, 1280, "bf16"))
    assert (schedule.tile_n, schedule.group_m) == (96, 1)


def test_neighbours_share_the_longer_factor():
    assert pick(plain("NN", 16384, 640, 2560, "bf16")).group_m == 1
    assert pick(plain("NT", 6144, 6144, 3072, "bf16")).group_m == 8


@pytest.mark.parametrize("shape", [(8192, 4096, 1024), (3968, 2560, 128)], ids=str)
@pytest.mark.parametrize("layout", ["NT", "NN"])
def test_a_bias_of_two_wide_chunks_needs_registers(layout, shape):
    """That of the next chunk is loaded while this one is computed: 64 columns of it beside 192 accumulators spilled with
    ptxas 13.0 (100 bytes a thread), and only there.
    """

    def check(problem):
        for tiles in fitting(problem, H200):
            assert tiles.num_accumulators < 192 or chunk_columns(tiles) <= 32, tiles.schedule

    with_problem(bias_gelu(layout, *shape, "bf16"), check)


@pytest.mark.parametrize(
    ("layout", "dtype"), [("NT", "bf16"), ("NN", "bf16"), ("NN", "tf32"), ("TN", "tf32")], ids=lambda word: word
)
def test_three_results_leave_room_for_their_addresses(layout, dtype):
    """ptxas 13.0 and 13.5 spilled beside 192 accumulators of bf16 in three or four blocks of 64 rows (two are fine), and
    beside 96 of the register form.
    """

    def check(problem):
        found = list(fitting(problem, H200))
        assert found
        for tiles in found:
            assert dtype == "tf32" or tiles.num_accumulators < 192 or tiles.blocks_p <= 2, tiles.schedule
            assert not tiles.in_registers or tiles.num_accumulators < 96, tiles.schedule

    with_problem(gated(layout, 4000, 2600, 712, dtype), check)


def of_the_head(layout, m, n, k, dtype):
    """a b * scale + factor * rows, scale and factor of a row: the gradient of the head's input."""
    text, a, b = factors(layout, m, n, k, dtype)
    scale, factor, rows = text.operand(m), text.operand(m), text.operand(m, n)
    inputs = [(multiply(text, layout, a, b), "(d0, d1)"), (scale, "(d0)"), (factor, "(d0)"), (rows, "(d0, d1)")]
    region = "%u = arith.mulf %a, %b : f32\n%v = arith.mulf %c, %d : f32\n%w = arith.addf %u, %v : f32\n%w"
    return finished(text, text.map(inputs, (m, n), "f32", region), dtype=dtype)


def test_vectors_of_a_tile_need_registers():
    """Of 192 rows, beside 96 accumulators and fragments, two spilled with ptxas 13.0 and 13.5; 128 rows were fine."""

    def check(problem):
        assert max(tiles.q_tile for tiles in fitting(problem, H200) if tiles.in_registers) == 160

    with_problem(of_the_head("NN", 4096, 768, 50304, "tf32"), check)


def test_every_cut_that_registers_hold_is_priced():
    """Three warpgroups have 128 registers each at launch: no wgmma of more than 192 columns, for which ptxas asks 154."""

    def check(problem):
        cuts = {(t.schedule.consumers, t.schedule.pingpong, t.p_tile, t.q_tile) for t in fitting(problem, H200)}
        assert {(2, False, 256, 192), (2, True, 128, 160), (2, True, 256, 96), (3, False, 192, 192)} <= cuts
        assert max(q for consumers, _, _, q in cuts if consumers == 3) == 192
        wide = Schedule(192, 256, 3, consumers=3)
        assert "256 columns for 3 consumers" in tiles_of(problem, wide, H200).problem_with_schedule()

    with_problem(plain("NT", 4096, 4096, 1024, "bf16"), check)
