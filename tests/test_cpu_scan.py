"""scan kernels, for CPUs and (emulated where there is none) GPUs, against running sums in NumPy."""

import dataclasses

import cpu_kernels
import gpu_kernels
import ml_dtypes
import numpy as np
import pytest
from cpu_kernels import NUMPY, TWO_THREADS, Body, random

from blutrain.nova.cpu import scan

SHAPES = [(1, 1, 1), (3, 5, 1), (1, 33, 7), (2, 70, 40), (1, 200, 1), (40, 3, 1), (0, 4, 2), (2, 0, 3), (5, 100, 16)]


def body(shape, dtype) -> Body:
    made = Body("scan")
    x = made.operand(*shape, dtype=dtype)
    (name,) = (made.name(),)
    made.lines.append(f'{name} = "nova.cumsum"({x.name}) {{dim = 1 : i64}} : ({x.type}) -> {x.type}')
    made.result(dataclasses.replace(x, name=name))
    return made


def reference(x: np.ndarray) -> np.ndarray:
    wide = np.int64 if x.dtype.kind == "i" else np.float64
    return np.cumsum(x.astype(wide), axis=1)


def compare(got: np.ndarray, x: np.ndarray) -> None:
    want = reference(x)
    if x.dtype.kind == "i":
        np.testing.assert_array_equal(got, want)
        return
    rounding = {8: 1e-15, 4: 1e-6, 2: 1e-2}[x.dtype.itemsize]
    bound = rounding * (np.cumsum(np.abs(x.astype(np.float64)), axis=1) + 1)
    assert (np.abs(got.astype(np.float64) - want) <= bound).all()


@pytest.mark.parametrize("dtype", ["f32", "f64", "i64", "bf16"])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("piece", [scan.MIN_PIECE, 16])
def test_running_sums(shape, dtype, piece, monkeypatch):
    monkeypatch.setattr(scan, "MIN_PIECE", piece)
    monkeypatch.setattr(scan, "num_tasks", lambda kernel, facts: 5)
    x = random(np.random.default_rng(0), shape, dtype)
    facts = dataclasses.replace(TWO_THREADS, threads=3)
    compare(cpu_kernels.run(body(shape, dtype), x, facts=facts)[0], x)


@pytest.mark.parametrize("dtype", ["f32", "i64", "bf16"])
@pytest.mark.parametrize("shape", [(3, 5, 1), (1, 200, 3), (2, 0, 3), (1, 300, 1)])
def test_running_sums_on_a_gpu(shape, dtype):
    x = random(np.random.default_rng(0), shape, dtype)
    compare(gpu_kernels.run(body(shape, dtype), x)[0], x)


def test_narrow_floats_are_carried_in_f32():
    x = np.ones((1, 4096, 1), ml_dtypes.bfloat16)
    (got,) = cpu_kernels.run(body(x.shape, "bf16"), x)
    assert got[0, -1, 0] == 4096


@pytest.mark.parametrize("special", [[-0.0, -0.0], [1.0, np.inf, -1.0, -np.inf, 2.0], [np.nan, 1.0]])
def test_signed_zeros_infinities_and_nan(special):
    x = np.array(special, np.float32).reshape(1, -1, 1)
    (got,) = cpu_kernels.run(body(x.shape, "f32"), x)
    with np.errstate(all="ignore"):
        want = np.cumsum(x, axis=1)
    np.testing.assert_array_equal(got, want)
    np.testing.assert_array_equal(np.signbit(got), np.signbit(want))


def test_a_kernel_with_more_than_a_scan_is_refused():
    made = body((2, 3, 4), "f32")
    made.result(made.results[0])
    assert "more than its scan" in (cpu_kernels.supports(made) or "")


def test_no_dtype_but_i64_among_integers():
    assert "a scan of i32" in (cpu_kernels.supports(body((2, 3, 4), "i32")) or "")
    assert NUMPY["i64"] is np.int64
