"""Exchange with NumPy, PyTorch and whoever speaks DLPack, and what importing blutrain loads."""

from __future__ import annotations

import subprocess
import sys
import time

import ml_dtypes
import numpy as np
import pytest

import blutrain as bt


def test_numpy_shares_memory_both_ways():
    array = np.arange(3, dtype=np.float32)
    x = bt.from_numpy(array)
    x[0] = 9
    array[1] = 8
    assert array[0] == 9 and x[1].item() == 8 and x.numpy().base is array and x._foreign and x[1:]._foreign
    assert np.asarray(x).sum() == x.sum().item() and np.asarray(x, dtype=np.float64).dtype == np.float64
    assert np.array(x, copy=True) is not x.numpy()


def test_numpy_of_a_tensor_with_gradient():
    x = bt.ones(2, requires_grad=True)
    with pytest.raises(RuntimeError, match=r"use .detach\(\).numpy\(\)"):
        x.numpy()
    assert x.numpy(force=True).tolist() == [1, 1] and x.detach().numpy().tolist() == [1, 1]


def test_bfloat16_stays_bfloat16():
    array = bt.ones(2, dtype=bt.bfloat16).numpy()
    assert array.dtype == ml_dtypes.bfloat16
    assert bt.from_numpy(array).dtype is bt.bfloat16
    with pytest.raises(BufferError, match="cannot export bfloat16"):
        bt.ones(2, dtype=bt.bfloat16).__dlpack__()


def test_from_numpy_errors():
    for bad, error in (
        ([1], TypeError),
        (np.ones(2, ">f4"), ValueError),
        (np.ones(2, np.complex64), TypeError),
        (np.array(["a"]), TypeError),
    ):
        with pytest.raises(error, match=r"test_interop\.py"):
            bt.from_numpy(bad)


def test_dlpack_with_numpy():
    x = bt.arange(3, dtype=bt.float32)
    array = np.from_dlpack(x)
    array = array if array.flags.writeable else x.numpy()
    array[0] = 5
    assert x[0].item() == 5
    y = bt.from_dlpack(np.arange(4.0))
    assert y.dtype is bt.float64 and y.tolist() == [0, 1, 2, 3] and y._foreign
    with pytest.raises(TypeError, match="no __dlpack__"):
        bt.from_dlpack([1])
    with pytest.raises(BufferError, match="detach"):
        np.from_dlpack(bt.ones(1, requires_grad=True))
    assert x.__dlpack_device__() == (1, 0) and np.from_dlpack(bt.ones(1).expand(3)).tolist() == [1, 1, 1]


def test_dlpack_with_torch():
    torch = pytest.importorskip("torch")
    theirs = torch.arange(6, dtype=torch.float32).reshape(2, 3).t()
    x = bt.from_dlpack(theirs)
    theirs[0, 0] = 7
    assert x.tolist() == theirs.tolist() and x.stride() == theirs.stride()
    y = bt.ones(2, 3)
    back = torch.from_dlpack(y)
    back[0, 0] = 5
    assert y[0, 0].item() == 5
    for dtype in ("bool", "uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64"):
        assert bt.from_dlpack(torch.ones(2, dtype=getattr(torch, dtype))).dtype is getattr(bt, dtype)


def test_no_cuda_interface_on_the_cpu():
    assert not hasattr(bt.ones(2), "__cuda_array_interface__")


def test_to():
    x = bt.ones(2)
    assert (
        x.to("cpu") is x
        and x.to(bt.device("cpu")) is x
        and x.to(bt.float16).dtype is bt.float16
        and x.to("float64").dtype is bt.float64
    )
    assert x.to(bt.ones(1, dtype=bt.int8)).dtype is bt.int8 and x.to("cpu", bt.float64).dtype is bt.float64
    assert x.to(bt.float32, copy=True) is not x and x.cpu() is x and x.type_as(bt.arange(1)).dtype is bt.int64
    y = bt.ones(2, requires_grad=True)
    (y.to(bt.float64) * 2).sum().backward()
    assert y.grad.dtype is bt.float32


def run(code: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    ).stdout.strip()


def test_import_loads_no_compiler_and_no_gpu_library():
    unwanted = ("mlir", "cupy", "torch", "blutrain.nova", "blutrain.distributed")
    loaded = run(f"import sys, blutrain; print(*[m for m in {unwanted} if m in sys.modules])")
    assert loaded == ""


def test_import_is_quick():
    """Under 150 ms beyond NumPy (docs/contracts); the limit here allows for a busy machine, the best of a few runs
    counts.
    """
    code = "import time, numpy; start = time.perf_counter(); import blutrain; print(time.perf_counter() - start)"
    start, best = time.perf_counter(), 1.0
    while best > 0.15 and time.perf_counter() - start < 20:
        best = min(best, float(run(code)))
    assert best < 0.15


def test_lazy_attributes():
    assert run("import blutrain; print(blutrain.nn.__name__, blutrain.optim.__name__)") == "blutrain.nn blutrain.optim"
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        bt.nothing  # noqa: B018
