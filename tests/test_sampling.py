"""Drawing by given probabilities and filling in place: frequencies, seeds, errors, the same eager and compiled."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import blutrain as bt
from blutrain import nn
from blutrain.errors import CheckError
from blutrain.tensor.generator import Generator

WEIGHTS = np.array([[1.0, 0.0, 6.0, 3.0], [5.0, 1.0, 0.0, 4.0]])
DRAWS = 4000


def frequencies(drawn: np.ndarray) -> np.ndarray:
    """How often each index was drawn, for each row of weights."""
    return np.stack([np.bincount(row, minlength=4) for row in drawn]) / drawn.shape[1]


@pytest.mark.parametrize("replacement", [False, True])
def test_one_draw_has_the_given_frequencies(replacement):
    weights = bt.tensor(np.repeat(WEIGHTS, DRAWS, 0))
    drawn = bt.multinomial(weights, 1, replacement, generator=Generator(1)).numpy()
    assert drawn.shape == (2 * DRAWS, 1) and drawn.dtype == np.int64
    share = WEIGHTS / WEIGHTS.sum(1, keepdims=True)
    got = frequencies(drawn.reshape(2, DRAWS))
    np.testing.assert_allclose(got, share, atol=4 * 0.5 / DRAWS**0.5)
    assert not got[share == 0].any()


def test_many_draws_with_replacement():
    drawn = bt.multinomial(bt.tensor(WEIGHTS, dtype=bt.float32), DRAWS, True, generator=Generator(2)).numpy()
    share = WEIGHTS / WEIGHTS.sum(1, keepdims=True)
    np.testing.assert_allclose(frequencies(drawn), share, atol=4 * 0.5 / DRAWS**0.5)
    assert bt.multinomial(bt.tensor([0.0, 2.0, 0.0]), 50, True).unique().tolist() == [1]


def test_pairs_without_replacement():
    """The second is drawn from what the first left."""
    weights = bt.tensor(np.repeat(WEIGHTS[1:], DRAWS, 0))
    drawn = bt.multinomial(weights, 2, generator=Generator(3)).numpy()
    assert (drawn[:, 0] != drawn[:, 1]).all()
    share = WEIGHTS[1] / WEIGHTS[1].sum()
    for a, b in itertools.permutations((0, 1, 3), 2):
        expected = share[a] * share[b] / (1 - share[a])
        assert abs(np.mean((drawn == (a, b)).all(1)) - expected) < 4 * 0.5 / DRAWS**0.5
    assert bt.multinomial(bt.tensor([0.0, 1.0, 0.0]), 3).tolist() == [1, 0, 2]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_a_seed_decides(dtype):
    weights = bt.tensor(WEIGHTS, dtype=getattr(bt, dtype))
    for n, replacement in ((1, False), (3, False), (9, True)):
        first, again = [bt.multinomial(weights, n, replacement, generator=Generator(4)).tolist() for _ in range(2)]
        assert first == again


@pytest.mark.parametrize("row", [[-1.0, 2.0], [np.nan, 1.0], [np.inf, 1.0], [0.0, 0.0]], ids=str)
def test_weights_that_are_none(row):
    with pytest.raises(CheckError, match="multinomial: a weight is negative, infinite or NaN, or all are 0"):
        bt.multinomial(bt.tensor([[1.0, 1.0], row]), 1)


def test_errors():
    weights = bt.tensor(WEIGHTS)
    with pytest.raises(ValueError, match="num_samples is out of range"):
        bt.multinomial(weights, 5)
    with pytest.raises(ValueError, match="num_samples is out of range"):
        bt.multinomial(weights, 0, True)
    with pytest.raises(ValueError, match="one or two dimensions"):
        bt.multinomial(bt.ones(2, 2, 2), 1)
    with pytest.raises(ValueError, match="one or two dimensions"):
        bt.multinomial(bt.tensor([1, 2]), 1)


@pytest.mark.parametrize(
    ("fill", "mean", "std"),
    [
        (lambda x: x.normal_(2.0, 3.0), 2.0, 3.0),
        (lambda x: x.uniform_(-1.0, 3.0), 1.0, 4 / 12**0.5),
        (lambda x: x.exponential_(2.0), 0.5, 0.5),
        (lambda x: x.bernoulli_(0.25), 0.25, 0.75**0.5 / 2),
        (lambda x: x.bernoulli_(bt.full((10000,), 0.25)), 0.25, 0.75**0.5 / 2),
        (lambda x: x.copy_(bt.bernoulli(bt.full((10000,), 0.25))), 0.25, 0.75**0.5 / 2),
    ],
)
def test_filled_in_place(fill, mean, std):
    bt.manual_seed(5)
    x = bt.empty(10000)
    y = fill(x)
    assert y is x
    assert abs(x.mean().item() - mean) < 4 * std / 100 and abs(x.std().item() / std - 1) < 0.1


def test_a_leaf_is_filled_through_its_data():
    p = nn.Parameter(bt.zeros(3))
    with pytest.raises(RuntimeError, match="cannot be written in place"):
        p.normal_()
    p.data.normal_()
    assert p.detach().abs().min().item() > 0


class Sampler(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(4, 6)

    def forward(self, x):
        return bt.multinomial(self.head(x).softmax(-1), 1)


def test_compiled_draws_are_eager_ones():
    seen = []
    for compiled in (False, True):
        bt.manual_seed(6)
        model = Sampler()
        if compiled:
            model.compile(strict=True)
        with bt.no_grad():
            seen.append([model(bt.ones(5, 4)).tolist() for _ in range(5)])
    assert seen[0] == seen[1] and seen[0][0] != seen[0][1]
