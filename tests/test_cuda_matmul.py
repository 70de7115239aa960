"""Matrix products on a GPU: every memory layout and batch, and the precision that was asked for."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from gpu import needs_gpu

import blutrain as bt
from blutrain import config
from blutrain.nn import functional as F

pytestmark = needs_gpu
GPU = "cuda:0"
SHAPES = [(2, 3, 4), (1, 3, 4), (2, 1, 4), (2, 3, 1), (1, 1, 1), (5, 0, 2), (0, 3, 2), (15, 37, 7)]
BATCHES = [((), ()), ((3,), (3,)), ((3,), ()), ((), (3,)), ((2, 3), (3,)), ((2, 1), (1, 3)), ((0,), ())]


def layouts(array):
    """The same matrix in different memory: as it is, transposed, with gaps in the rows, inside a larger one."""
    x = bt.tensor(array, device=GPU)
    yield x
    yield x.transpose(-1, -2).contiguous().transpose(-1, -2)
    wide = np.zeros((*array.shape[:-1], 2 * array.shape[-1]), array.dtype)
    wide[..., ::2] = array
    yield bt.tensor(wide, device=GPU)[..., ::2]
    large = np.zeros((*array.shape[:-2], array.shape[-2] + 1, array.shape[-1] + 3), array.dtype)
    large[..., 1:, 3:] = array
    yield bt.tensor(large, device=GPU)[..., 1:, 3:]


@pytest.mark.parametrize("batch", BATCHES, ids=str)
def test_layouts(batch):
    rng = np.random.default_rng(0)
    for m, k, n in SHAPES:
        a, b = rng.standard_normal((*batch[0], m, k)), rng.standard_normal((*batch[1], k, n))
        for x, y in itertools.product(layouts(a), layouts(b)):
            np.testing.assert_allclose((x @ y).cpu().numpy(), a @ b, rtol=1e-12, atol=1e-12)


def test_broadcast_memory():
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((1, 2, 3)), rng.standard_normal((4, 3, 2))
    x = bt.tensor(a, device=GPU).expand(4, 2, 3)
    np.testing.assert_allclose((x @ bt.tensor(b, device=GPU)).cpu().numpy(), a @ b, rtol=1e-12)


def relative_error(dtype, **settings) -> float:
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((2, 512, 512))
    with config.scope(**settings):
        x, y = (bt.tensor(v, dtype=dtype, device=GPU) for v in (a, b))
        found = (x @ y).cpu().to(bt.float64).numpy()
    wanted = x.cpu().to(bt.float64).numpy() @ y.cpu().to(bt.float64).numpy()
    return float(np.linalg.norm(found - wanted) / np.linalg.norm(wanted))


def test_float32_is_float32_until_tf32_is_asked_for():
    assert relative_error(bt.float32) < 2e-6
    assert 5e-5 < relative_error(bt.float32, matmul_precision="tf32") < 2e-3
    assert relative_error(bt.float64, matmul_precision="tf32") < 1e-14


@pytest.mark.parametrize("dtype", [bt.float16, bt.bfloat16])
def test_narrow_products_accumulate_in_float32(dtype):
    ones = bt.ones(1, 4096, dtype=dtype, device=GPU)
    assert (ones @ ones.t()).item() == 4096
    assert relative_error(dtype) < (5e-3 if dtype is bt.bfloat16 else 5e-4)


@pytest.mark.parametrize("dtype", [bt.float32, bt.bfloat16])
def test_linear_adds_the_bias_before_rounding(dtype):
    rng = np.random.default_rng(0)
    x, w, b = (bt.tensor(rng.standard_normal(s), dtype=dtype, device=GPU) for s in ((64, 96), (32, 96), (32,)))
    wanted = F.linear(*[t.cpu().to(bt.float64) for t in (x, w, b)]).numpy()
    found = F.linear(x, w, b).cpu().to(bt.float64).numpy()
    assert np.linalg.norm(found - wanted) / np.linalg.norm(wanted) < (1e-6 if dtype is bt.float32 else 3e-3)


def test_the_same_bits_each_time():
    rng = np.random.default_rng(0)
    x, y = (bt.tensor(rng.standard_normal((300, 2000)), dtype=bt.float32, device=GPU) for _ in range(2))
    first = (x @ y.t()).cpu().numpy().tobytes()
    for _ in range(10):
        assert (x @ y.t()).cpu().numpy().tobytes() == first
