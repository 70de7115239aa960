"""Tensors: properties, creation, methods, operators, in-place operations, copies, printing."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest

import blutrain as bt
from blutrain import nn
from blutrain.tensor.tensor import Tensor, storage_epoch, structure_epoch, write_epoch


def test_properties():
    x = bt.zeros(2, 3, 4, dtype=bt.float16)
    assert (x.shape, x.ndim, x.dim(), x.numel(), x.itemsize, x.nbytes, len(x)) == ((2, 3, 4), 3, 3, 24, 2, 48, 2)
    assert x.size() == (2, 3, 4) and x.size(-1) == 4 and x.device is bt.device("cpu") and x.is_leaf and not x.is_cuda
    assert x.stride() == (12, 4, 1) and x.stride(0) == 12 and x.is_contiguous() and not x.mT.is_contiguous()
    assert x.data_ptr() == x.numpy().ctypes.data and x.is_floating_point()
    assert not hasattr(x, "__dict__")
    with pytest.raises(TypeError, match="not made by calling"):
        Tensor([1])
    for call in (x.size, x.stride):
        with pytest.raises(IndexError, match=r"the dimension is out of range(.|\n)*test_tensor"):
            call(3)


def test_tensor_takes_dtypes_from_data():
    assert bt.tensor(1.5).dtype is bt.float32 and bt.tensor(1).dtype is bt.int64 and bt.tensor(True).dtype is bt.bool
    assert (
        bt.tensor([[1, 2], [3, 4.5]]).dtype is bt.float32
        and bt.tensor([]).dtype is bt.float32
        and bt.tensor([]).shape == (0,)
    )
    assert bt.tensor(np.ones(2)).dtype is bt.float64 and bt.tensor(np.int8(3)).dtype is bt.int8
    assert bt.tensor([bt.tensor(1.0), 2]).tolist() == [1, 2]
    array = np.ones(2)
    x = bt.tensor(array)
    array[0] = 5
    assert x.tolist() == [1, 1]
    y = bt.tensor(x, dtype=bt.int32)
    assert y.dtype is bt.int32 and bt.tensor(x)._array is not x._array
    assert bt.tensor([1, 2], dtype=bt.bfloat16, requires_grad=True).requires_grad
    for bad, error in (
        ([[1], [1, 2]], ValueError),
        ("text", TypeError),
        ([None], TypeError),
        ([2**70], TypeError),
        (1j, TypeError),
    ):
        with pytest.raises(error, match=r"test_tensor\.py"):
            bt.tensor(bad)
    with pytest.raises(ValueError, match="do not fit int8"):
        bt.tensor([300], dtype=bt.int8)


def test_creation():
    assert bt.zeros(2, 3).tolist() == [[0] * 3] * 2 and bt.ones((2,)).tolist() == [1, 1] and bt.zeros([]).shape == ()
    assert (
        bt.full((2,), 7).dtype is bt.int64
        and bt.full((2,), 7.0).dtype is bt.float32
        and bt.full(3, True).tolist() == [True] * 3
    )
    assert np.signbit(bt.full((1,), -0.0).numpy()).all()
    x = bt.ones(2, 3, dtype=bt.float64)
    for made in (bt.zeros_like(x), bt.ones_like(x), bt.full_like(x, 2), bt.empty_like(x)):
        assert made.shape == x.shape and made.dtype is bt.float64
    assert bt.zeros_like(x, dtype=bt.int8).dtype is bt.int8 and bt.empty(2, 3, requires_grad=True).requires_grad
    assert bt.arange(3).tolist() == [0, 1, 2] and bt.arange(1, 2, 0.25).tolist() == [1, 1.25, 1.5, 1.75]
    assert (
        bt.arange(5, 0, -2).tolist() == [5, 3, 1]
        and bt.arange(3, 0).numel() == 0
        and bt.arange(3, dtype=bt.float16).dtype is bt.float16
    )
    assert bt.linspace(0, 1, 3).tolist() == [0, 0.5, 1] and bt.linspace(2, 3, 1).tolist() == [2]
    np.testing.assert_array_equal(bt.eye(2, 3).numpy(), np.eye(2, 3))
    assert bt.is_tensor(x) and not bt.is_tensor(1)
    array = np.zeros(2, np.float32)
    assert (
        bt.as_tensor(array).numpy() is not array
        and np.shares_memory(bt.as_tensor(array).numpy(), array)
        and bt.as_tensor(x) is x
    )


def test_attributes_that_are_equal_but_not_the_same():
    """What is remembered for 0.0 must not serve -0.0, nor that for 1 True or 1.0."""
    for value in (0.0, -0.0, 0.0):
        assert np.signbit(bt.full((1,), value).numpy()).item() is (np.signbit(value).item())
        padded = nn.functional.pad(bt.ones(1), (1, 0), value=value).numpy()
        assert np.signbit(padded[0]).item() is np.signbit(value).item()
    assert [bt.full((1,), v).dtype for v in (1, True, 1.0)] == [bt.int64, bt.bool, bt.float32]


def test_large_integers_stay_exact():
    big = 2**53 + 1
    assert bt.arange(big, big + 2).tolist() == [big, big + 1] and bt.tensor([big]).sum().item() == big


def test_item_and_truth():
    assert bt.tensor([[3]]).item() == 3 and isinstance(bt.tensor(3.0, dtype=bt.bfloat16).item(), float)
    assert bool(bt.tensor(1)) and not bt.tensor(0.0) and int(bt.tensor(3.7)) == 3 and float(bt.tensor(2)) == 2.0
    assert [10, 20, 30][bt.tensor(1)] == 20 and f"{bt.tensor(1.234):.1f}" == "1.2"
    assert f"{bt.tensor(3)} {bt.tensor([2.5])}" == "3 tensor([2.5])"
    for call in (lambda: bt.ones(2).item(), lambda: bool(bt.ones(2)), lambda: [1][bt.tensor(0.0)]):
        with pytest.raises((ValueError, TypeError)):
            call()


def test_operators_against_numpy():
    a, b = np.array([5.0, -3.5]), np.array([2.0, 1.5])
    x, y = bt.tensor(a), bt.tensor(b)
    for mine, theirs in (
        (x + y, a + b), (x - y, a - b), (x * y, a * b), (x / y, a / b), (x // y, a // b), (x % y, a % b), (-x, -a),
        (y**x, b**a), (2 - x, 2 - a), (2 / x, 2 / a), (7 // x, 7 // a), (7 % x, 7 % a), (2**x, 2**a), (+x, a),
        (abs(x), abs(a)), (x @ y, a @ b),
        (x > y, a > b), (x == y, a == b), (x != y, a != b), (x <= 5, a <= 5), (~(x > y), ~(a > b)), (3 < x, 3 < a),
    ):  # fmt: skip
        np.testing.assert_allclose(mine.numpy(), theirs)
    assert (bt.tensor([6]) & 3).item() == 2 and (bt.tensor([6]) | 1).item() == 7 and (bt.tensor([6]) ^ 3).item() == 5
    assert (1 << bt.tensor([3])).item() == 8 and (bt.tensor([-8]) >> 1).item() == -4
    with pytest.raises(TypeError):
        x + "a"
    for call in (lambda: np.ones(2) + x, lambda: x + np.ones(2), lambda: x == np.ones(2), lambda: np.ones(2) != x):
        with pytest.raises(
            TypeError, match=r"(?s)an operand is no tensor.*numpy\.ndarray float64\[2\].*blutrain\.from_numpy"
        ):
            call()
    assert (x == None) is False and (x != None) is True  # noqa: E711
    assert x is not y and len({x, y, x}) == 2


def test_in_place_operations_write_the_memory():
    x = bt.tensor([1.0, 4.0])
    array, writes = x.numpy(), write_epoch.value
    x.add_(1).mul_(2).sub_(2).div_(2).sqrt_().neg_()
    x += 1
    x[0] = 8
    assert x.numpy() is array and array.tolist() == [8, -1] and x._version.value == writes + 8
    x.clamp_(0, 5).fill_(2).zero_().copy_(bt.tensor([7]))
    assert x.tolist() == [7, 7]
    n = bt.arange(3)
    with pytest.raises(TypeError, match="cannot be held in place"):
        n += 0.5
    with pytest.raises(ValueError, match="does not fit in place"):
        n += bt.ones(2, 3, dtype=bt.int64)
    n += bt.tensor([1], dtype=bt.int8)
    assert n.tolist() == [1, 2, 3]


def test_max_and_min():
    x = bt.tensor([[1.0, 5.0, 5.0], [7.0, 2.0, 7.0]])
    values, indices = x.max(1)
    assert (
        values.tolist() == [5, 7]
        and indices.tolist() == [1, 0]
        and x.max().item() == 7
        and x.min(0).values.tolist() == [1, 2, 5]
    )
    assert bt.max(x, bt.tensor(3.0)).tolist() == [[3, 5, 5], [7, 3, 7]] and x.max(0, keepdim=True).indices.shape == (
        1,
        3,
    )


def test_rearranging_functions():
    x = bt.arange(6).reshape(2, 3)
    assert x.T.shape == (3, 2) and x.view(-1).shape == (6,) and x.unflatten(1, (3, -1)).shape == (2, 3, 1)
    assert x.movedim(0, 1).shape == (3, 2) and x.repeat_interleave(2, 1)[0].tolist() == [0, 0, 1, 1, 2, 2]
    assert [p.tolist() for p in x.split(2, 1)] == [[[0, 1], [3, 4]], [[2], [5]]] and [
        p.shape for p in x.split([1, 2], 1)
    ] == [(2, 1), (2, 2)]
    assert [p.shape for p in bt.chunk(x, 2, 1)] == [(2, 2), (2, 1)] and [p.tolist() for p in x.unbind(1)] == [
        [0, 3],
        [1, 4],
        [2, 5],
    ]
    assert (
        x.expand_as(bt.ones(4, 2, 3)).shape == (4, 2, 3)
        and x.select(1, -1).tolist() == [2, 5]
        and x.narrow(1, 1, 2).shape == (2, 2)
    )
    assert bt.broadcast_tensors(x, bt.ones(4, 1, 1))[0].shape == (4, 2, 3) and x.squeeze(0).shape == (2, 3)
    assert bt.outer(bt.ones(2), bt.ones(3)).shape == (2, 3) and x.roll(1, 1)[0].tolist() == [2, 0, 1]
    assert x.div(2, rounding_mode="floor").tolist() == [[0, 0, 1], [1, 2, 2]]
    assert (-x).div(2, rounding_mode="trunc").tolist() == [[0, 0, -1], [-1, -2, -2]]
    assert x.roll(1).tolist() == [[5, 0, 1], [2, 3, 4]] and x.repeat_interleave(2).tolist() == sorted(
        2 * list(range(6))
    )
    assert x.flip(0, 1).tolist() == x.flip((0, 1)).tolist() == [[5, 4, 3], [2, 1, 0]]
    assert x.flip(dims=(0, 1)).tolist() == x.flip(0, 1).tolist() and x.roll((1, 1), (0, 1)).tolist() == [
        [5, 3, 4],
        [2, 0, 1],
    ]
    assert x.narrow(1, -1, 1).tolist() == x.narrow(1, bt.tensor(2), 1).tolist() == [[2], [5]]
    wide = bt.zeros(2, 3, 4, 5)
    assert wide.movedim((0, 1), (2, 0)).shape == (3, 4, 2, 5) and wide.movedim(0, -1).shape == (3, 4, 5, 2)
    assert (x > 2).tril().dtype is bt.bool and (x > 2).triu().tolist() == [[False] * 3, [False, True, True]]
    assert x.prod(1, dtype=bt.float32).dtype is x.cumsum(1, dtype=bt.float32).dtype is bt.float32
    assert bt.zeros(2).index_add(0, bt.tensor([0, 0]), bt.ones(2), alpha=3).tolist() == [6, 0]
    for wrong in (lambda: x.sum(True), lambda: x.float().std(False), lambda: x.repeat_interleave(bt.tensor([1, 2]), 0)):
        with pytest.raises(TypeError, match=r"a dimension is an integer|one number of repeats"):
            wrong()
    for wrong in (lambda: x.movedim((0, 0), (0, 1)), lambda: x.movedim((0, 1), (0,))):
        with pytest.raises(ValueError, match="each dimension and each place once"):
            wrong()
    assert x.add(x, alpha=2).tolist() == (3 * x).tolist() and x.clone().sub_(1, alpha=3).tolist() == (x - 3).tolist()
    assert bt.zeros(2).lerp_(bt.ones(2), 0.25).tolist() == [0.25, 0.25]


def test_views_share_memory_and_know_it():
    x = bt.zeros(2, 3)
    for view in (
        x.t(),
        x[1],
        x[:, ::2],
        x.view(6),
        x.expand(4, 2, 3),
        x.flip(0),
        x.reshape(3, 2),
        x.squeeze(),
        x.t().t(),
    ):
        assert view._base is x and view._version is x._version and np.shares_memory(view.numpy(), x.numpy())
    for other in (x.t().reshape(6), x.clone(), x[[0]], x + 0, x.to(bt.float64), x.t().contiguous()):
        assert other._base is None and not np.shares_memory(other.numpy(), x.numpy())
    assert x.contiguous() is x and x.to(bt.float32) is x


def test_data_and_epochs():
    x = bt.ones(2, requires_grad=True)
    x.data.mul_(3)
    assert x.tolist() == [3, 3]
    before = storage_epoch.value
    y = x * x
    x.data = bt.zeros(3)
    assert x.shape == (3,) and storage_epoch.value == before + 1
    with pytest.raises(RuntimeError, match="changed in place"):
        y.sum().backward()
    before = structure_epoch.value
    x.requires_grad_(False)
    assert structure_epoch.value == before + 1


def test_copies():
    x = bt.ones(2, requires_grad=True)
    (x * 3).sum().backward()
    y = copy.deepcopy({"a": x, "b": x})
    assert y["a"] is y["b"] and y["a"] is not x and y["a"].requires_grad and y["a"].grad.tolist() == [3, 3]
    y["a"].grad.zero_()
    assert x.grad.tolist() == [3, 3]
    with pytest.raises(RuntimeError, match="only leaves"):
        copy.deepcopy(x * 2)


@pytest.mark.parametrize("dtype", [bt.float32, bt.bfloat16, bt.int8, bt.bool])
def test_pickle(dtype):
    x = bt.tensor([[1, 0], [1, 1]], dtype=dtype).t()
    y = pickle.loads(pickle.dumps(x))
    assert y.tolist() == x.tolist() and y.dtype is dtype and not y.requires_grad
    p = pickle.loads(pickle.dumps(bt.nn.Parameter(bt.ones(2))))
    assert type(p) is bt.nn.Parameter and p.requires_grad and pickle.loads(pickle.dumps(bt.tensor(3))).item() == 3
    with pytest.raises(RuntimeError, match="only leaves can be stored"):
        pickle.dumps(p * 2)


def test_printing():
    assert repr(bt.tensor([1.0, 2.5])) == "tensor([1. , 2.5])"
    assert repr(bt.tensor([1], dtype=bt.int8)) == "tensor([1], dtype=blutrain.int8)"
    assert repr(bt.ones(1, requires_grad=True)) == "tensor([1.], requires_grad=True)"
    assert repr(bt.ones(1, requires_grad=True) * 2) == "tensor([2.], grad_fn=<mul>)"
    assert repr(bt.zeros(0, 3)) == "tensor([], shape=(0, 3))" and "bfloat16" in repr(bt.ones(1, dtype=bt.bfloat16))
    assert len(repr(bt.zeros(1000, 1000))) < 1000


def test_devices():
    cpu = bt.device("cpu")
    assert (
        bt.device("cpu") is cpu
        and bt.device(cpu) is cpu
        and str(bt.device("cuda")) == "cuda:0"
        and bt.device("cuda", 1) is bt.device("cuda:1")
    )
    for wrong in ("gpu", "cuda:x", "cpu:1", 3.5, None):
        with pytest.raises(ValueError, match="not a device"):
            bt.device(wrong)
    try:
        bt.set_default_device("cpu")
        assert bt.get_default_device() is cpu
    finally:
        bt.set_default_device("cpu")


def test_a_missing_gpu_is_a_clear_error():
    try:
        import cupy

        if cupy.cuda.runtime.getDeviceCount():
            pytest.skip("there is a GPU")
    except Exception:
        pass
    with pytest.raises(RuntimeError, match=r"(?s)cuda: .*expected: an NVIDIA GPU.*at .*test_tensor.py"):
        bt.ones(2).to("cuda")
    with pytest.raises(RuntimeError, match="cuda"):
        bt.zeros(2, device="cuda")


def test_the_stub_for_type_checkers_is_up_to_date():
    from blutrain.tensor import write_stub

    assert write_stub.FILE.read_text() == write_stub.stub(), "run python -m blutrain.tensor.write_stub"


class Foreign:
    """An array of another library."""

    def __dlpack__(self):
        raise NotImplementedError


def test_tensors_of_other_libraries_are_named_with_what_to_do():
    x, text = bt.ones(2), r"(?s)no.* tensor.*test_tensor\.Foreign.*blutrain\.from_dlpack"
    for call in (lambda: x + Foreign(), lambda: Foreign() * x, lambda: x == Foreign(), lambda: nn.ReLU()(Foreign())):
        with pytest.raises(TypeError, match=text):
            call()
    with pytest.raises(TypeError, match=r"(?s)neither a device nor a dtype.*'cuda0'"):
        x.to("cuda0")
    with pytest.raises(ValueError, match="linspace: the number of steps is negative"):
        bt.linspace(0, 1, -1)


def test_names_that_are_compositions():
    x = bt.tensor([[1.0, -2.0, 3.0], [0.5, 0.0, -1.0]])
    assert bt.allclose(x.softmax(-1), bt.softmax(x, 1)) and bt.allclose(x.log_softmax(0).exp(), x.softmax(0))
    assert x.relu().tolist() == bt.relu(x).tolist() == [[1, 0, 3], [0.5, 0, 0]]
    assert x.mm(x.t()).tolist() == (x @ x.t()).tolist() and bt.bmm(x.unsqueeze(0), x.t().unsqueeze(0)).shape == (
        1,
        2,
        2,
    )
    for call in (lambda: bt.mm(x, x[0]), lambda: bt.bmm(x, x)):
        with pytest.raises(ValueError, match="help: use matmul"):
            call()
    a, b = x.var(1, unbiased=False), x.var(1, correction=0)
    assert a.tolist() == b.tolist() and x.std(unbiased=True).item() == x.std().item()
    assert x.sort(1, stable=True).indices.tolist() == x.argsort(1, stable=True).tolist()
    like = bt.randn_like(x.double())
    assert like.shape == bt.rand_like(x).shape == x.shape and like.dtype is bt.float64


def test_closeness():
    nan, inf = float("nan"), float("inf")
    x, y = bt.tensor([1.0, inf, nan, 0.0, inf]), bt.tensor([1.000001, inf, nan, 1e-9, 5.0])
    assert bt.isclose(x, y).tolist() == [True, True, False, True, False]
    assert bt.isclose(x, y, equal_nan=True).tolist() == [True, True, True, True, False]
    assert x[:2].allclose(y[:2]) and not bt.allclose(x, y) and not bt.allclose(x[:1], y[:1], rtol=0.0, atol=1e-9)
    assert bt.equal(x[:2], x[:2].clone()) and not bt.equal(x, x) and not bt.equal(x[:2], x[:1])
    assert bt.allclose(bt.tensor([1, 2]), bt.tensor([1, 2]))
