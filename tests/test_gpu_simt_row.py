"""row kernels for GPUs: the cases of the CPU's generators, on the GPU or emulated; every way to share a row."""

from dataclasses import replace

import gpu
import gpu_kernels
import numpy as np
import pytest
import row_bodies as bodies
import test_cpu_row
from test_cpu_row import *  # noqa: F403

del test_narrower_vectors, test_exponentials_are_kept_between_passes, test_repeated_runs_are_bitwise_equal  # noqa: F821

EMULATED = 1500  # elements of a case that the emulator is asked for; its threads take milliseconds at every barrier


@pytest.fixture(autouse=True)
def on_gpu(monkeypatch, request):
    monkeypatch.setattr(test_cpu_row, "run", gpu_kernels.run)
    monkeypatch.setattr(test_cpu_row, "supports", gpu_kernels.supports)
    case = getattr(request.node, "callspec", None)
    if case and not gpu.is_there():
        if case.params.get("rows", 1) * case.params.get("cols", 1) > EMULATED:
            pytest.skip("too large for the emulator")
        if case.params.get("dtype") == "f64" and "softmax" not in request.node.name:
            pytest.skip("the same code in f32 and, for softmax, in f64 is emulated")


SHARES = [
    {"threads": 8, "block": 32, "form": "resident", "ahead": 1},
    {"threads": 32, "block": 64, "form": "resident", "ahead": 0},
    {"threads": 64, "block": 128, "form": "resident", "ahead": 1},
    {"threads": 96, "block": 96, "form": "resident", "ahead": 1},
    {"threads": 64, "block": 64, "form": "swept", "unroll": 2},
    {"threads": 64, "block": 64, "form": "staged", "unroll": 2},
]


@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize("shape", [(11, 96), (5, 130), (3, 521)])
def test_ways_to_share_a_row(shape, share):
    """Layer norm backward (sums along and over the rows) and softmax, by groups of any size."""
    rng = np.random.default_rng(0)
    rows, cols = shape
    dy, x, w = (np.float32(rng.standard_normal(s)) for s in (shape, shape, cols))
    mean, rstd = x.mean(1), 1 / np.sqrt(x.var(1) + 1e-5)
    body = bodies.layer_norm_backward(rows, cols)
    want = run_reference(dy, x, w, mean, rstd)
    for got, expected in zip(gpu_kernels.run(body, dy, x, w, mean, rstd, blocks=2, **share), want, strict=True):
        np.testing.assert_allclose(got, expected, rtol=3e-5, atol=3e-5)
    (y,) = gpu_kernels.run(bodies.softmax(rows, cols), x, **share)
    e = np.exp(x.astype(np.float64) - x.max(1, keepdims=True))
    np.testing.assert_allclose(y, e / e.sum(1, keepdims=True), rtol=1e-5)


def test_the_next_row_comes_ahead_where_there_is_room_and_one():
    """Copies are in the text where blocks loop over rows, and nowhere else."""
    for rows, facts, is_ahead in (
        (4096, gpu_kernels.FACTS, True),
        (64, gpu_kernels.FACTS, False),  # a row for each group
        (4096, replace(gpu_kernels.FACTS, shared_bytes_per_sm=32 << 10), False),
    ):
        generated = gpu_kernels.generate(bodies.layer_norm_backward(rows, 768), facts)
        assert ("cp.async.shared" in generated.text) == is_ahead == ("next row ahead" in generated.schedule)
        assert (generated.phases[0].shared_bytes > 0) == is_ahead
    assert "cp.async" not in gpu_kernels.generate(bodies.softmax(4096, 768), gpu_kernels.FACTS).text


@pytest.mark.parametrize("shape, threads", [((11, 96), 8), ((11, 130), 64), ((5, 521), 96)])
def test_rows_that_came_ahead_give_the_same_bits(shape, threads):
    rng = np.random.default_rng(1)
    dy, x, w = (np.float32(rng.standard_normal(s)) for s in (shape, shape, shape[1]))
    arrays = dy, x, w, x.mean(1), np.float32(1 / np.sqrt(x.var(1) + 1e-5))
    share = {"threads": threads, "block": max(32, threads), "form": "resident", "blocks": 1}
    body = bodies.layer_norm_backward(*shape)
    plain, ahead = (gpu_kernels.run(body, *arrays, **share, ahead=n) for n in (0, 1))
    assert [a.tobytes() for a in plain] == [a.tobytes() for a in ahead]


def run_reference(dy, x, w, mean, rstd):
    dy, x, w, mean, rstd = (a.astype(np.float64) for a in (dy, x, w, mean, rstd))
    xh = (x - mean[:, None]) * rstd[:, None]
    g = dy * w
    dx = (g - g.mean(1, keepdims=True) - xh * (g * xh).mean(1, keepdims=True)) * rstd[:, None]
    return dx, (dy * xh).sum(0), dy.sum(0)


def test_exponentials_of_long_rows():
    """They come from ex2.approx: within 3e-7, NaN and infinities as they should be."""
    edges = np.array(
        [0.0, -1.0, 1.0, -87.0, 88.0, 88.8, -104.0, -200.0, 1e30, -1e30, np.inf, -np.inf, np.nan], np.float32
    )
    x = np.concatenate([edges, np.linspace(-87, 88.7, 1500, dtype=np.float32)])[None]
    body = bodies.Body("row")
    a = body.operand(*x.shape)
    exp = body.map([(a, "d0, d1")], x.shape, bodies.op("f32", "%r = math.exp %i0 : T", "%r : T"))
    body.result(exp)
    body.result(bodies.sum_of(body, exp, *x.shape, "f32"))
    got, _ = gpu_kernels.run(body, x, form="swept", threads=64, block=64, unroll=2)
    with np.errstate(over="ignore"):
        want = np.exp(x.astype(np.float64)).astype(np.float32)
    np.testing.assert_allclose(got, np.where(want < 2.0**-126, 0, want), rtol=3e-7, atol=1.2e-38)


@pytest.mark.parametrize("target", [5, -1, (1 << 32) + 5, 1 << 31])
def test_an_index_is_compared_with_all_bits(target):
    body = bodies.Body("map")
    t = body.operand(dtype="i64")
    lines = ("%k = linalg.index 0 : index", "%i = arith.index_cast %k : index to i64")
    text = bodies.region(
        *lines, "%e = arith.cmpi eq, %i, %i0 : i64", "%n = arith.cmpi ne, %i0, %i : i64", "%e, %n : i1, i1"
    )
    outputs = [(body.empty((9,), "i1"), "d0") for _ in range(2)]
    for value in body.generic([(t, "")], outputs, "p", text):
        body.result(value)
    equal, unequal = gpu_kernels.run(body, np.array(target))
    np.testing.assert_array_equal(equal, np.arange(9) == target)
    np.testing.assert_array_equal(unequal, np.arange(9) != target)
