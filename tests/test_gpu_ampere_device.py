"""The sm_80 contraction family on a device, with the schedules of sm_80, sm_86 and sm_89: against float64."""

from __future__ import annotations

import fire_cases
import numpy as np
import pytest
from ampere_support import KINDS, LAYOUTS, TOLERANCE, plain
from gpu import needs_gpu
from gpu_device import OnDevice
from test_gpu_hopper_device import product

from blutrain.nova.gpu.ampere.configure import MAX_SUMS, TILES

pytestmark = needs_gpu
ARCHITECTURES = ("sm_80", "sm_86", "sm_89")
SHAPES = [(438, 331, 513), (1000, 512, 4), (15, 37, 7), (1, 300, 64), (264, 520, 776)]
FUSED = {"bf16": 4e-3, "tf32": 2e-3, "fp32": 3e-6}  # of the largest value; GELU and tanh are approximate but in f32


def run(build, tolerance: float, want) -> None:
    """A kernel's results against `want(operands)`, each to `tolerance` of its largest value."""
    case = build()
    arrays = case.arrays(1)
    got = OnDevice(case.plan()).run_on(arrays)
    for result, value in zip(got, want(arrays), strict=True):
        value = np.asarray(value)
        assert np.isfinite(result.astype(np.float64)).all()
        assert np.abs(result.astype(np.float64) - value).max() <= tolerance * max(np.abs(value).max(), 1e-30)


@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("kind", KINDS)
def test_products(kind, layout, arch):
    for shape in SHAPES:
        build = fire_cases.ampere(plain, layout, *shape, kind, arch=arch)
        run(build, TOLERANCE[kind], lambda arrays: [product(layout, arrays)])


@pytest.mark.parametrize("kind", ["bf16", "tf32", "fp32"])
@pytest.mark.parametrize("tile", TILES, ids=str)
def test_every_tile(tile, kind):
    block, warp = tile
    if warp[0] * warp[1] // 32 > MAX_SUMS.get(kind, 128):
        pytest.skip("more sums than registers")
    layout = LAYOUTS[TILES.index(tile) % 4]
    build = fire_cases.ampere(
        plain, layout, 2 * block[0] + 8, 2 * block[1] - 8, 264, kind, workgroup=block, subgroup=warp, stages=2
    )
    run(build, TOLERANCE[kind], lambda arrays: [product(layout, arrays)])


@pytest.mark.parametrize("kind", FUSED)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_fused(layout, kind):
    """Bias and GELU; a gate with a transposed copy and column sums; accumulation; batches."""

    def gelu(arrays):
        x = product(layout, arrays) + arrays[2].astype(np.float64)
        return [0.5 * x * (1 + np.tanh(0.7978845608 * x + 0.0356774081 * x**3))]

    def gated(arrays):
        a, b, h, s = (x.astype(np.float64) for x in arrays)
        y = product(layout, [a, b]) * np.tanh(h) + s[:, None]
        return [y, y.T, y.sum(0)]

    def added(arrays):
        return [product(layout, arrays) + arrays[2].astype(np.float64)]

    tolerance, shape = FUSED[kind], (260, 264, 392)
    run(fire_cases.ampere(fire_cases.GELU, layout, *shape, kind), tolerance, gelu)
    run(fire_cases.ampere(fire_cases.GATED, layout, *shape, kind, arch="sm_86"), tolerance, gated)
    run(fire_cases.ampere(fire_cases.ADDED, layout, *shape, kind), min(tolerance, 2e-3), added)
    run(fire_cases.ampere(fire_cases.batched, layout, (2, 3), 72, 100, 96, kind, arch="sm_89"), tolerance,
        lambda arrays: [product(layout, arrays)])  # fmt: skip


@pytest.mark.parametrize("kind", ["bf16", "tf32", "fp32", "f64"])
@pytest.mark.parametrize("split", [2, 3, 7])
def test_ranges_of_k(split, kind):
    build = fire_cases.ampere(plain, "TN", 130, 100, 2011, kind, split=split)
    run(build, TOLERANCE[kind], lambda arrays: [product("TN", arrays)])
