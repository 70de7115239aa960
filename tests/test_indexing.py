"""Indexing as NumPy has it: every kind of index, reading and writing, with and without history."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import blutrain as bt
from blutrain.autograd import gradcheck

X = np.arange(2 * 3 * 4, dtype=np.float32).reshape(2, 3, 4)
MASK = np.array([[True, False, True], [False, False, True]])
INDICES = [
    0,
    -1,
    (1, 2),
    (1, 2, 3),
    slice(None),
    slice(1, None),
    slice(None, None, -1),
    (slice(None), slice(2, 0, -1)),
    (slice(10, 20),),
    (0, slice(None), -1),
    ...,
    (..., 0),
    (0, ...),
    (0, ..., 1),
    None,
    (None, 0, None),
    (slice(None), None, slice(0, 2)),
    (..., None),
    (),
    [0, 1, 1],
    [True, False],
    ([0, 1], [2, 0]),
    ([0, 1], slice(None), [3, 0]),
    (slice(None), [2, 0], [3, 3]),
    (0, [2, 0]),
    ([1, 0], 2),
    (slice(None), [[0, 1], [2, 2]]),
    ([[0], [1]], [0, 2]),
    (None, [1, 0]),
    ([1, 0], None, [0, 1]),
    (..., [0, -1]),
    (slice(None, None, -1), [0, 2], slice(1, 3)),
    MASK,
    (slice(None), np.array([True, False, True])),
    (MASK, 0),
    (..., np.array([True, True, False, False])),
    np.zeros((2, 3), bool),
    np.array([], np.int64),
    (np.int64(1), np.array([0, 1], np.int32)),
    range(2),
    (slice(None), (0, 2)),
    ((0, 1), (1, 2)),
    np.array(1),
]


def as_ours(index):
    """The same index with tensors in place of arrays."""
    if isinstance(index, tuple):
        return tuple(as_ours(i) for i in index)
    return bt.tensor(index) if isinstance(index, np.ndarray) else index


@pytest.mark.parametrize("index", INDICES, ids=repr)
def test_reading(index):
    expected = X[index]
    for key in (index, as_ours(index)):
        result = bt.tensor(X)[key]
        assert result.shape == expected.shape
        np.testing.assert_array_equal(result.numpy(), expected)


@pytest.mark.parametrize("index", INDICES, ids=repr)
def test_writing(index):
    for value in (7.0, X[index] + 100):
        expected = X.copy()
        expected[index] = value
        x = bt.tensor(X)
        version = x._versions().value
        x[as_ours(index)] = bt.tensor(value) if isinstance(value, np.ndarray) else value
        np.testing.assert_array_equal(x.numpy(), expected)
        assert x._version.value > version


@pytest.mark.parametrize("index", INDICES, ids=repr)
def test_derivatives(index):
    x = bt.tensor(X, dtype=bt.float64).requires_grad_()
    index = as_ours(index)
    gradcheck(lambda x: x[index] * 2, (x,), order=2)
    value = (bt.tensor(X, dtype=bt.float64)[index] + 1).detach().requires_grad_()

    def write(x, value):
        y = x * 1
        y[index] = value * value
        return y * y

    gradcheck(write, (x, value), order=2)


def test_repeated_indices_keep_the_last_value_and_its_gradient():
    x, v = bt.zeros(3), bt.tensor([1.0, 2.0, 3.0], requires_grad=True)
    x[[0, 0, 1]] = v
    assert x.tolist() == [2, 3, 0]
    (x * bt.tensor([10.0, 100.0, 1000.0])).sum().backward()
    assert v.grad.tolist() == [0, 10, 100]
    y = bt.zeros(2)
    y[[0, 0]] += 1
    assert y.tolist() == [1, 0]


def test_writing_broadcasts_and_casts():
    x = bt.zeros(2, 3, dtype=bt.int64)
    x[:, 1] = 2.9
    x[1] = bt.tensor([1.0, 2.0, 3.0])
    assert x.tolist() == [[0, 2, 0], [1, 2, 3]]
    x[0, 0] = True
    assert x[0, 0].item() == 1
    with pytest.raises(ValueError, match="does not fit"):
        x[0] = bt.zeros(2)
    with pytest.raises(IndexError):
        x[bt.tensor([2])] = 0
    with pytest.raises(TypeError, match="not a tensor"):
        x[0] = "a"


def test_basic_indexing_gives_views_and_the_rest_copies():
    x = bt.zeros(2, 3)
    x[0, 1:][0] = 5
    assert x[0, 1].item() == 5
    x[[0]].fill_(9)
    x[bt.tensor([True, False])].fill_(9)
    assert x.tolist() == [[0, 5, 0], [0, 0, 0]]
    assert x[...] is not x and x[:]._base is x


def test_a_mask_with_a_number_is_differentiable_without_reading():
    x = bt.ones(3, requires_grad=True)
    y = x * 1
    y[bt.tensor([True, False, True])] = 0.5
    y.sum().backward()
    assert y.tolist() == [0.5, 1, 0.5] and x.grad.tolist() == [0, 1, 0]


def test_iteration_and_length():
    x = bt.tensor(X)
    assert len(x) == 2 and [y.tolist() for y in x] == X.tolist()
    with pytest.raises(TypeError):
        len(x[0, 0, 0])
    with pytest.raises(TypeError):
        iter(x[0, 0, 0])


def test_errors():
    x = bt.tensor(X)
    for index, error in (
        (2, IndexError),
        (-3, IndexError),
        ((0, 0, 0, 0), IndexError),
        (1.5, TypeError),
        ("a", TypeError),
        (True, TypeError),
        (slice(0, 1.5), TypeError),
        (slice(None, None, 0), ValueError),
        (bt.tensor([1.5]), TypeError),
        (bt.tensor([2]), IndexError),
        (([0], [3]), IndexError),
        (([0, 1], [0, 1, 2]), ValueError),
        (bt.ones(3, dtype=bt.bool), IndexError),
        ((0, bt.ones(2, dtype=bt.bool)), IndexError),
        ((..., bt.ones(2, dtype=bt.bool)), IndexError),
        (bt.tensor(True), TypeError),
    ):
        with pytest.raises(error, match=r"test_indexing\.py"):
            x[index]


slices = st.builds(
    slice, st.none() | st.integers(-5, 5), st.none() | st.integers(-5, 5), st.none() | st.integers(-3, 3).filter(bool)
)


@settings(max_examples=200, deadline=None)
@given(st.lists(slices | st.integers(-2, 1) | st.none(), max_size=4))
def test_random_basic_indices(items):
    items = tuple(items)
    if sum(item is not None for item in items) > 3:
        return
    expected, x = X[:, :2, :2][items], bt.tensor(X[:, :2, :2])
    np.testing.assert_array_equal(x[items].numpy(), expected)
    y = X[:, :2, :2].copy()
    y[items] = -1
    x[items] = -1
    np.testing.assert_array_equal(x.numpy(), y)


@pytest.mark.parametrize("count", [1, 768, 769, 20_000])
def test_many_repeated_rows_accumulate(count):
    table = bt.zeros(3, 2, requires_grad=True)
    index = bt.zeros(count, dtype=bt.int64) + 1
    table[index].sum().backward()
    assert table.grad.tolist() == [[0, 0], [count, count], [0, 0]]


def test_narrow_tables_accumulate_in_float32():
    table = bt.zeros(2, 2, dtype=bt.bfloat16, requires_grad=True)
    table[bt.zeros(1000, dtype=bt.int64)].sum().backward()
    assert table.grad.tolist() == [[1000, 1000], [0, 0]]
