"""Element types: promotion as PyTorch's, weak Python scalars, the default dtype, conversions."""

from __future__ import annotations

import copy
import itertools
import pickle

import ml_dtypes
import numpy as np
import pytest

import blutrain as bt
from blutrain.tensor import dtype as dtypes
from blutrain.tensor.dtype import ALL, as_dtype, from_numpy_dtype

WITHOUT_UINT16 = [d for d in ALL if d is not bt.uint16]


def test_promotion_is_pytorchs():
    torch = pytest.importorskip("torch")
    for a, b in itertools.product(WITHOUT_UINT16, repeat=2):
        expected = torch.promote_types(getattr(torch, a.name), getattr(torch, b.name))
        assert f"torch.{bt.promote_types(a, b).name}" == str(expected), (a, b)


def test_scalar_promotion_is_pytorchs():
    torch = pytest.importorskip("torch")
    for d, number in itertools.product(WITHOUT_UINT16, (True, 2, 2.5)):
        expected = (torch.ones(2, dtype=getattr(torch, d.name)) * number).dtype
        for result in (bt.ones(2, dtype=d) * number, number * bt.ones(2, dtype=d)):
            assert f"torch.{result.dtype.name}" == str(expected), (d, number)
            assert result.numpy().dtype == result.dtype.numpy


def test_uint16_promotes_to_what_holds_both():
    for other, expected in (
        (bt.uint8, bt.uint16),
        (bt.int8, bt.int32),
        (bt.int16, bt.int32),
        (bt.int32, bt.int32),
        (bt.float16, bt.float16),
    ):
        assert bt.promote_types(bt.uint16, other) is expected and bt.promote_types(other, bt.uint16) is expected


def test_promotion_is_commutative_and_associative_within_a_category():
    for a, b in itertools.product(ALL, repeat=2):
        assert bt.promote_types(a, b) is bt.promote_types(b, a)
        assert bt.promote_types(a, a) is a


def test_a_0d_tensor_is_an_ordinary_tensor():
    assert (bt.ones(2, dtype=bt.float16) * bt.tensor(2.0)).dtype is bt.float32


def test_numpy_scalars_are_weak():
    x = bt.ones(2)
    for number in (np.float64(2), np.float32(2), np.int64(2)):
        assert (x * number).dtype is bt.float32 and (number * x).dtype is bt.float32
        assert (x * number).numpy().dtype == np.float32


def test_subclasses_of_float_are_weak():
    class Rate(float):
        pass

    assert (bt.ones(2) * Rate(2)).numpy().dtype == np.float32


def test_default_dtype():
    assert bt.get_default_dtype() is bt.float32
    try:
        bt.set_default_dtype(bt.float64)
        assert bt.tensor(1.0).dtype is bt.float64 and bt.zeros(2).dtype is bt.float64
        assert (bt.arange(3) / 2).dtype is bt.float64 and bt.arange(3).exp().numpy().dtype == np.float64
        assert (bt.arange(3) * 2.5).numpy().dtype == np.float64
    finally:
        bt.set_default_dtype(bt.float32)
    assert (bt.arange(3) / 2).numpy().dtype == np.float32
    with pytest.raises(TypeError, match="not floating"):
        bt.set_default_dtype(bt.int64)


def test_as_dtype():
    assert as_dtype("bfloat16") is bt.bfloat16 and as_dtype(np.float32) is bt.float32
    assert as_dtype(float) is bt.float32 and as_dtype(int) is bt.int64 and as_dtype(bool) is bt.bool
    assert from_numpy_dtype(np.dtype(ml_dtypes.bfloat16)) is bt.bfloat16
    for wrong in ("float31", np.complex64, object, 3.5):
        with pytest.raises(TypeError):
            as_dtype(wrong)


def test_dtypes_are_single_objects():
    for d in ALL:
        assert pickle.loads(pickle.dumps(d)) is d and copy.deepcopy(d) is d and dtypes.NAMES[d.name] is d
        assert repr(d) == f"blutrain.{d.name}" and d.numpy.itemsize == d.itemsize


def test_finfo_and_iinfo():
    assert bt.finfo(bt.float32).eps == np.finfo(np.float32).eps and bt.finfo(bt.bfloat16).eps == 2**-7
    assert bt.finfo(bt.float16).max == 65504 and bt.iinfo(bt.int8).min == -128
    with pytest.raises(TypeError):
        bt.finfo(bt.int8)
    with pytest.raises(TypeError):
        bt.iinfo(bt.float32)


@pytest.mark.parametrize("source, target", list(itertools.product(ALL, repeat=2)))
def test_casts(source, target):
    values = [0, 1, 2, 100]
    x = bt.tensor(values, dtype=source)
    expected = [bool(v) for v in values] if bt.bool in (source, target) else values
    assert x.to(target).tolist() == expected and x.to(target).numpy().dtype == target.numpy


def test_rounding_of_casts():
    x = bt.tensor([2.5, -2.5, 1.9, -1.9])
    assert x.long().tolist() == [2, -2, 1, -1]
    assert bt.tensor([1 + 2**-8, 1 + 3 * 2**-8]).bfloat16().tolist() == [1.0, 1 + 2**-6]  # halves to even
    assert bt.tensor([70000.0]).half().item() == float("inf")
    assert bt.tensor([300.0]).to(bt.uint8).item() == 44
