"""Contract kernels for sm_80 and newer against float64 NumPy, run by the simulator: layouts, odd shapes, every tile."""

from __future__ import annotations

import numpy as np
import pytest
from ampere_support import KINDS, LAYOUTS, check, check_product, generate, plain, poisoned, randoms, run
from gpu_simulator import simulate
from hypothesis import given, settings
from hypothesis import strategies as st

from blutrain.nova.gpu.ampere.configure import MAX_SUMS, TILES


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("kind", KINDS)
def test_layouts(kind, layout):
    accesses = check_product(layout, 64, 96, 48, kind)
    assert {wavefronts for _, wavefronts in accesses} == {1}, "bank conflicts"


ODD = [
    (1, 1, 1),
    (9, 9, 9),
    (15, 37, 7),
    (77, 4, 70),
    (64, 48, 60),
    (1, 70, 50),
    (70, 1, 50),
    (40, 30, 1),
    (13, 33, 130),
    (66, 34, 18),
    (40, 24, 0),
    (0, 5, 3),
    (5, 0, 3),
]


@pytest.mark.parametrize("shape", ODD, ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_odd_shapes(kind, shape):
    if kind == "f64" and shape[2] > 60:
        shape = (*shape[:2], 37)  # multiplied one step of k at a time: slow to simulate
    check_product(LAYOUTS[sum(shape) % 4], *shape, kind)


@pytest.mark.parametrize("tile", TILES, ids=str)
@pytest.mark.parametrize("kind", ["bf16", "tf32"])
def test_every_tile(kind, tile):
    block, warp = tile
    layout = LAYOUTS[TILES.index(tile) % 4]
    check_product(layout, block[0] + 5, block[1] - 3, 40, kind, workgroup=block, subgroup=warp, stages=3)


@pytest.mark.parametrize("tile", [t for t in TILES if t[1][0] * t[1][1] // 32 <= MAX_SUMS["f64"]], ids=str)
@pytest.mark.parametrize("kind", ["fp32", "f64"])
def test_tiles_of_wide_kinds(kind, tile):
    check_product("TN", tile[0][0] - 1, tile[0][1] + 2, 21, kind, workgroup=tile[0], subgroup=tile[1], stages=2)


@pytest.mark.parametrize("stages", [2, 3, 5, 8])
@pytest.mark.parametrize("depth", [16, 32, 48, 200])
def test_depths_of_the_ring(stages, depth):
    check_product("NT", 32, 32, depth, "bf16", stages=stages, reduction=16)


@pytest.mark.parametrize("kind", ["bf16", "tf32", "fp32", "f64"])
@pytest.mark.parametrize("split", [2, 3, 7])
def test_ranges_of_k(split, kind):
    check_product("TN", 34, 40, 7 * 16 - 5, kind, split=split, reduction=16)


@pytest.mark.parametrize("group", [1, 2, 3, 8])
def test_groups_of_tiles(group):
    check_product("NN", 5 * 32, 3 * 32, 16, "bf16", workgroup=(32, 32), subgroup=(16, 16), group=group)


@settings(max_examples=12, deadline=None, derandomize=True)
@given(
    m=st.integers(0, 50),
    n=st.integers(0, 50),
    depth=st.integers(0, 50),
    layout=st.sampled_from(LAYOUTS),
    kind=st.sampled_from(sorted(KINDS)),
)
def test_any_extents(m, n, depth, layout, kind):
    check_product(layout, m, n, depth, kind)


def test_tf32_rounds_evenly_and_keeps_its_own_numbers():
    """Times one: at most 0.72 of the last of TF32's 10 bits away, on average by nothing, and what TF32 holds unchanged."""
    n = 64
    rng = np.random.default_rng(0)
    a = (2.0 ** rng.uniform(-3, 3, (n, n)) * rng.choice([-1, 1], (n, n))).astype(np.float32)
    c = poisoned((n, n), "f32")
    run(plain("NN", n, n, n, "tf32"), [a, np.eye(n, dtype=np.float32)], [c])
    unit = 2.0 ** (np.floor(np.log2(np.abs(a))) - 10)
    assert not (c.view(np.uint32) & 0x1FFF).any()
    assert (np.abs(c - a.astype(np.float64)) / unit).max() < 0.722
    assert abs((c / a.astype(np.float64) - 1).mean()) < 0.02 * 2.0**-10
    again = poisoned((n, n), "f32")
    run(plain("NN", n, n, n, "tf32"), [c, np.eye(n, dtype=np.float32)], [again])
    assert (again == c).all()


def test_infinities_and_nans_survive():
    for kind in ("tf32", "fp32"):
        a, b = randoms(0, "f32", (16, 16), (16, 16))
        a[1, 3], a[2, 4], a[5, 0] = np.inf, np.nan, -np.inf
        a.view(np.uint32)[7, 2] = 0x7FFFFFFF  # the GPU's NaN: adding half a unit to its bits would make it -0
        a[3, 5] = 3.4028235e38
        b = np.abs(b)
        b[5] = 0.5
        c = poisoned((16, 16), "f32")
        run(plain("NN", 16, 16, 16, kind), [a, b], [c])
        assert (c[1] == np.inf).all() and (c[5] == -np.inf).all()
        assert kind == "tf32" or (np.abs(c[3] / 1.7014117e38 - 1) < 1e-3).all()
        assert np.isnan(c[[2, 7]]).all() and np.isfinite(np.delete(c, [1, 2, 3, 5, 7], axis=0)).all()


def test_f32_is_as_precise_as_f32():
    a, b = randoms(3, "f32", (32, 512), (512, 32))
    c = poisoned((32, 32), "f32")
    run(plain("NN", 32, 32, 512, "fp32"), [a, b], [c])
    want = a.astype(np.float64) @ b.astype(np.float64)
    check(c, want, 2 * np.abs(a @ b - want).max() / np.abs(want).max())


def test_predicate():
    a, b = randoms(0, "f32", (16, 16), (16, 16))
    for predicate in (1, 0):
        c = np.full((16, 16), 7, np.float32)
        simulate(generate(plain("NN", 16, 16, 16, "tf32")), [a, b], [c], predicate)
        assert (c == 7).all() == bool(predicate)
