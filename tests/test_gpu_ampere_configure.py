"""The configurator for sm_80 and newer: what it expects against what an H200 took, and what follows from the facts."""

from __future__ import annotations

import pytest
from ampere_support import plain
from contract_harness import context, parse_kernel
from mlir import ir

from blutrain.nova.gpu.ampere.configure import Candidate, best, candidates
from blutrain.nova.gpu.ampere.problem import read_problem
from blutrain.nova.target_gpu import gpu_facts

# Precision, layout, extents, microseconds of the pick: medians of five interleaved rounds on one H200, 2026-11-30.
MEASURED = [
    ("tf32", "NT", (8192, 1536, 384), 53.2),
    ("tf32", "NN", (8192, 1536, 384), 52.7),
    ("tf32", "TN", (1536, 384, 8192), 50.9),
    ("tf32", "NN", (8192, 384, 50304), 1404.3),
    ("tf32", "NT", (8192, 768, 3072), 181.1),
    ("tf32", "NN", (5120, 5120, 5120), 1241.6),
    ("bf16", "NT", (8192, 1536, 384), 24.7),
    ("bf16", "NN", (8192, 3072, 768), 93.4),
    ("bf16", "TN", (3072, 768, 8192), 109.5),
    ("bf16", "NT", (8192, 50304, 384), 817.1),
    ("bf16", "TN", (5120, 5120, 5120), 628.2),
    ("fp32", "NN", (8192, 3072, 768), 651.3),
    ("fp32", "TN", (3072, 768, 8192), 831.2),
]


def problem_of(function, kind: str, layout: str, shape: tuple[int, int, int]):
    """What `function` makes of the problem, whose IR lives as long as the call; 16-bit results of 16-bit factors."""
    with context(), ir.Location.unknown():
        kernel, _module = parse_kernel(plain(layout, *shape, kind, "bf16" if kind == "bf16" else ""))
        return function(read_problem(kernel))


@pytest.mark.parametrize("kind, layout, shape, us", MEASURED, ids=str)
def test_predictions_are_near_what_was_measured(kind, layout, shape, us):
    pick: Candidate = problem_of(lambda problem: best(problem, gpu_facts("sm_90a")), kind, layout, shape)
    assert 0.87 < pick.predicted_us / us < 1.13


def test_what_is_no_product_takes_issue_slots():
    """Two tiles with the same products: the one that reads and rounds more for each is expected to take longer."""
    found = problem_of(lambda p: candidates(p, gpu_facts("sm_90a")), "tf32", "NT", (4096, 4096, 4096))
    times = {
        warp: min(c.predicted_us for c in found if (c.schedule.workgroup, c.schedule.subgroup) == ((128, 128), warp))
        for warp in ((64, 64), (64, 32))
    }
    assert 1.2 * times[64, 64] < times[64, 32]  # H200: 633 and 825 us of 3072 x 2816 x 8192


def test_few_tiles_are_cut_along_k():
    pick = problem_of(lambda p: best(p, gpu_facts("sm_90a")), "bf16", "NN", (8192, 384, 50304))
    assert pick.schedule.split > 1


@pytest.mark.parametrize("kind, step", [("bf16", 64), ("tf32", 32), ("fp32", 16)])
def test_stages_hold_128_bytes_of_k(kind, step):
    """But for f32 in three parts, whose fragments fill the registers."""
    pick = problem_of(lambda p: best(p, gpu_facts("sm_90a")), kind, "NT", (4096, 4096, 4096))
    assert pick.schedule.reduction == step
