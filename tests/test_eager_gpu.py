"""The simple primitives on a GPU: every case of the table against NumPy, gradcheck, indexing, exchange of memory."""

from __future__ import annotations

import numpy as np
import pytest
from cases import CASES, TOLERANCE, Case
from gpu import needs_gpu

import blutrain as bt
from blutrain.autograd import gradcheck

pytestmark = needs_gpu
RUNS = [
    pytest.param(c, d, id=f"{c.name}-{d}")
    for c in CASES
    if c.inputs
    for d in c.dtypes
    if d == "float32" or any(x.kind == "float" for x in c.inputs)
]


def on_gpu(case: Case, dtype: str, requires_grad: bool = False):
    tensors = [x.to("cuda") for x in case.tensors(dtype)]
    wanted = [requires_grad and x.kind == "float" and x.grad for x in case.inputs]
    return [x.requires_grad_() if w else x for x, w in zip(tensors, wanted, strict=True)]


def wide(x) -> np.ndarray:
    array = x.detach().cpu().numpy()
    return array.astype(np.float64) if x.dtype.is_floating else array


@pytest.mark.parametrize("case, dtype", RUNS)
def test_values(case: Case, dtype: str):
    tensors = on_gpu(case, dtype)
    result = case.call(*tensors)
    assert result.device.type == "cuda" or case.primitive == "transfer"
    expected = np.asarray(case.reference(*[wide(x) for x in tensors]))
    if not result.dtype.is_floating:
        np.testing.assert_array_equal(wide(result).astype(np.int64), expected.astype(np.int64))
        return
    relative, absolute = TOLERANCE[result.dtype.name]
    np.testing.assert_allclose(wide(result), expected, relative * case.scale, absolute * case.scale)


@pytest.mark.parametrize("case", [c for c in CASES if c.order and c.inputs], ids=lambda c: c.name)
def test_derivatives(case: Case):
    gradcheck(case.call, on_gpu(case, "float64", requires_grad=True), order=1)


def test_moving_and_exchanging():
    import cupy

    x = bt.arange(6, dtype=bt.float32).reshape(2, 3).to("cuda")
    assert x.is_cuda and str(x.device) == "cuda:0" and x.cpu().tolist() == [[0, 1, 2], [3, 4, 5]]
    array = cupy.asarray(x)
    array[0, 0] = 9
    assert x[0, 0].item() == 9 and cupy.from_dlpack(x)[0, 0] == 9 and x.__dlpack_device__() == (2, 0)
    y = bt.from_dlpack(cupy.ones((2, 2)))
    assert y.device is x.device and y._foreign and bt.tensor(cupy.ones(2)).device.is_cpu
    with pytest.raises(TypeError, match=r"use .cpu\(\).numpy\(\)"):
        x.numpy()
    with pytest.raises(ValueError, match="different devices"):
        x + bt.ones(2, 3)
    w = bt.ones(2, 3, requires_grad=True)
    (w.to("cuda") * x).sum().backward()
    assert w.grad.device.is_cpu and w.grad.tolist() == x.cpu().tolist()
    assert "cuda:0" in repr(x) and x.tolist()[1] == [3, 4, 5]


def test_views_and_writes():
    x = bt.zeros(3, 4, device="cuda")
    x.t()[0] = 7
    x[1:, ::2][0, 1] = 5
    x[bt.tensor([2], device="cuda")] += 1
    x[x == 0] = -1.0
    assert x.tolist() == [[7, -1, -1, -1], [7, -1, 5, -1], [8, 1, 1, 1]]
    assert x.t()._base is x and x.t().reshape(12)._base is None
    with pytest.raises(IndexError, match="got: 3"):
        x[bt.tensor([3], device="cuda")]
    assert x.nonzero().shape == (12, 2) and x.masked_select(x > 6).tolist() == [7, 7, 8]


@pytest.mark.parametrize("view", [lambda y: y[0, 1], lambda y: y.t()[1:], lambda y: y.flip(1)[:, ::2]])
def test_parts_are_written_with_history_as_on_the_cpu(view):
    results = []
    for device in ("cpu", "cuda"):
        x = bt.arange(12, dtype=bt.float64).reshape(3, 4).to(device).requires_grad_()
        w = bt.tensor(2.0, dtype=bt.float64, device=device, requires_grad=True)
        for y in (x * 1, (x * 1).t().contiguous().t()):  # memory by rows, and by columns
            part = view(y)
            part *= w
            y[0] += 1
            (y * y).sum().backward()
        results.append([t.detach().cpu().tolist() for t in (y, x.grad, w.grad)])
        with pytest.raises(RuntimeError, match="are one in memory"):
            bt.ones(2, device=device).expand(3, 2).add_(1)
    assert results[0] == results[1]


def test_a_random_number_may_be_0d():
    assert bt.randn((), device="cuda").shape == () == bt.rand((), device="cuda").shape


@pytest.mark.parametrize("count", [1, 769, 100_000])
def test_repeated_rows_add_up_the_same_each_run(count):
    bt.manual_seed(0)
    index = bt.randint(0, 50, (count,), device="cuda")
    rows = bt.randn(count, 3, device="cuda")
    results = [bt.zeros(50, 3, device="cuda").index_add(0, index, rows).cpu().numpy() for _ in range(3)]
    assert results[0].tobytes() == results[1].tobytes() == results[2].tobytes()
    expected = np.zeros((50, 3))
    np.add.at(expected, index.cpu().numpy(), rows.cpu().numpy())
    np.testing.assert_allclose(results[0], expected, rtol=1e-4, atol=1e-3)
    ones = bt.ones(1000, dtype=bt.bfloat16, device="cuda")
    same = bt.zeros(1000, dtype=bt.int64, device="cuda")
    total = bt.zeros(2, dtype=bt.bfloat16, device="cuda").index_add(0, same, ones)
    assert total.tolist() == [1000, 0]


@pytest.mark.parametrize("dtype", [bt.float32, bt.bfloat16])
def test_gradients_add_up_in_their_memory(dtype):
    w = bt.ones(3, 700, dtype=dtype, device="cuda", requires_grad=True)
    x = bt.arange(2100, device="cuda").reshape(3, 700).to(dtype)
    (w * x).sum().backward()
    grad = w.grad
    assert grad is not None
    memory, alias, product = grad.data_ptr(), grad[1:], grad * w
    for turns in (2, 3):
        (w * x).sum().backward()
        assert w.grad is grad and grad.data_ptr() == memory
        expected = x.cpu() * turns
        assert bt.equal(grad.cpu(), expected) and bt.equal(alias.cpu(), expected[1:])
    with pytest.raises(RuntimeError, match="was changed in place"):
        product.sum().backward()  # it keeps the gradient that has changed


def test_writes_in_place_read_first():
    for dtype in (bt.float32, bt.float16):
        x = bt.arange(1, 1001, device="cuda").to(dtype)
        memory, start = x.data_ptr(), x.cpu()
        scale = bt.tensor(0.5, dtype=dtype, device="cuda")
        x *= scale
        x.sub_(x * 0.5).add_(x)
        assert x.data_ptr() == memory and bt.equal(x.cpu(), start * 0.5)
        x.mul_(x[1])  # a view of what is written
        assert bt.equal(x.cpu(), start * 0.5)
        x[:500] += x[500:]
        x[1:] -= x[:-1]  # shifted by one
        expected = start * 0.5
        expected[:500] += expected[500:].clone()
        expected[1:] -= expected[:-1].clone()
        assert bt.equal(x.cpu(), expected)
        leaf = bt.ones(3, dtype=dtype, device="cuda", requires_grad=True)
        with pytest.raises(RuntimeError, match="cannot be written in place"):
            leaf.add_(leaf.detach())
        y = leaf * 1
        y.mul_(y.detach() + 1)  # with history
        y.sum().backward()
        assert leaf.grad.tolist() == [2.0, 2.0, 2.0]
