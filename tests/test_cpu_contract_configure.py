"""The analytic schedule of contract kernels: picks for several machines, and invariants over many shapes."""

from __future__ import annotations

import dataclasses
import itertools

import pytest

from blutrain.nova.cpu.configure_contract import ContractSchedule, k_block, register_tile, schedule
from blutrain.nova.target import CpuFacts

ZEN4 = CpuFacts(
    vector_bytes=64,
    num_vector_registers=32,
    l1_bytes=32 << 10,
    l2_bytes=1 << 20,
    l3_bytes=32 << 20,
    threads=2,
    cpu_name="znver4",
    cpu_features="",
    fma_per_cycle=1,
    ghz_estimate=3.0,
    mem_gb_s=24.0,
    triple="x86_64-unknown-linux-gnu",
)
HASWELL = dataclasses.replace(
    ZEN4, vector_bytes=32, num_vector_registers=16, l2_bytes=256 << 10, l3_bytes=8 << 20, threads=4, fma_per_cycle=2
)
NEOVERSE = dataclasses.replace(ZEN4, vector_bytes=16, num_vector_registers=32, threads=16, fma_per_cycle=2)
MACHINES = [ZEN4, HASWELL, NEOVERSE, dataclasses.replace(ZEN4, threads=64), dataclasses.replace(ZEN4, threads=1)]


def test_register_tiles():
    """Tall tiles of two vectors on x86, 13 x 32 (AVX-512) and 6 x 16 (AVX2); NEON's fill most registers."""
    assert register_tile(4096, 4096, 16, 4, ZEN4) == (13, 2)
    assert register_tile(4096, 4096, 8, 4, HASWELL) == (6, 2)
    mr, nv = register_tile(4096, 4096, 4, 4, NEOVERSE)
    assert 20 <= mr * nv <= 28


def test_tile_follows_the_rows():
    """Rows that 13 does not divide get the height with the least waste; one row gets a wide tile."""
    assert register_tile(24, 512, 16, 4, ZEN4) == (12, 2)
    assert register_tile(8, 4096, 16, 4, ZEN4)[0] == 8
    mr, nv = register_tile(1, 4096, 16, 4, ZEN4)
    assert mr == 1 and nv >= 4


def test_training_shapes_on_two_threads():
    """The smaller factor is shared, the longer axis is cut, every thread gets the same work."""
    forward = schedule(1, 2048, 1024, 256, "f32", ZEN4)
    assert (forward.m_tasks, forward.n_tasks, forward.split) == (16, 1, 1)
    assert forward.share_columns and not forward.share_rows
    weights = schedule(1, 256, 1024, 2048, "f32", ZEN4)
    assert (weights.m_tasks, weights.n_tasks, weights.split) == (1, 16, 1)
    assert weights.share_rows and not weights.share_columns


def test_small_products_stay_on_one_thread():
    tiny = schedule(1, 32, 32, 32, "f32", ZEN4)
    assert (tiny.m_tasks, tiny.n_tasks, tiny.split) == (1, 1, 1)
    assert not tiny.share_rows and not tiny.share_columns


def test_batches_feed_the_threads():
    attention = schedule(96, 256, 64, 256, "f32", ZEN4)
    assert (attention.m_tasks, attention.n_tasks) == (1, 1)


def test_long_reduction_of_a_small_result_is_split():
    gradient = schedule(1, 64, 64, 100_000, "f32", dataclasses.replace(ZEN4, threads=16))
    assert gradient.split >= 32 and gradient.m_tasks == gradient.n_tasks == 1


def test_rows_are_blocked_for_l2_on_one_thread():
    alone = schedule(1, 2048, 256, 1024, "f32", dataclasses.replace(ZEN4, threads=1))
    panels = -(-2048 // alone.mr)
    assert -(-panels // alone.m_tasks) * alone.row_pitch * alone.kc * 4 <= ZEN4.l2_bytes // 2
    assert alone.share_columns


def test_k_block_fits_a_small_l2():
    assert k_block(4096, 32, 16, 4, ZEN4) == 1024
    assert k_block(4096, 16, 8, 4, HASWELL) * 16 * 4 <= HASWELL.l2_bytes // 8


SIZES = (0, 1, 17, 512, 50304)


@pytest.mark.parametrize("facts", MACHINES, ids=lambda f: f"{f.vector_bytes}x{f.threads}")
@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_invariants(facts, dtype):
    for batch, m, n, k in itertools.product((1, 5, 96), SIZES, SIZES, SIZES):
        s = schedule(batch, m, n, k, dtype, facts)
        panels_m, panels_n = max(1, -(-m // s.mr)), max(1, -(-n // s.nr))
        assert s.mr * s.nv + s.nv < facts.num_vector_registers
        assert s.kc % s.lanes == 0 and s.kc % 4 == 0
        assert 1 <= s.m_tasks <= panels_m and 1 <= s.n_tasks <= panels_n
        assert 1 <= s.split <= max(1, -(-k // s.kc))
        assert s.pack_tasks >= 1
        if facts.threads == 1:
            assert s.n_tasks == s.split == 1
        assert ContractSchedule.from_config(s.to_config()) == s
