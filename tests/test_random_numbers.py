"""Counter-based random numbers: known answers, independence of how they are computed, distributions, generators."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

import blutrain as bt
from blutrain.tensor import dispatch
from blutrain.tensor.generator import Generator, get_state, set_state
from blutrain.tensor.ops import composite, random
from blutrain.tensor.ops import philox as words
from blutrain.tensor.primitive import TABLE

cpu = bt.device("cpu")
# From kat_vectors of the Random123 distribution (philox4x32, 10 rounds): counter, key, words.
KNOWN = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


@pytest.mark.parametrize("counter, key, wanted", KNOWN)
def test_known_answers(counter, key, wanted):
    lanes = words.philox(*[np.array([c], np.uint64) for c in counter], key)
    assert tuple(int(lane[0]) for lane in lanes) == wanted


def bits(seed, draw, *shape, site=0):
    return dispatch.apply(random.RANDOM_BITS, seed, draw, shape=shape, site=site, device=cpu)


def test_layout_of_the_counter():
    seed, draw = 0x1122334455667788, 0x99AABBCCDDEEFF00
    found = bits(seed, draw, 11).numpy().view(np.uint32)
    for index in range(11):
        counter = (index // 4, 0, draw & 0xFFFFFFFF, draw >> 32)
        lanes = words.philox(*[np.array([c], np.uint64) for c in counter], (seed & 0xFFFFFFFF, seed >> 32))
        assert found[index] == lanes[index % 4][0]


def test_an_index_beyond_32_bits_has_its_own_words():
    low, high = (words.philox(*[np.array([c], np.uint64) for c in (5, h, 0, 0)], (1, 2)) for h in (0, 1))
    assert [int(a[0]) for a in low] != [int(a[0]) for a in high]


def test_bits_depend_on_the_logical_index_alone(monkeypatch):
    whole = bits(3, 4, 1000).numpy()
    np.testing.assert_array_equal(bits(3, 4, 10, 100).numpy().reshape(-1), whole)
    np.testing.assert_array_equal(bits(3, 4, 777).numpy(), whole[:777])
    monkeypatch.setattr(words, "BLOCK", 8)
    np.testing.assert_array_equal(bits(3, 4, 1000).numpy(), whole)


def test_site_adds_to_the_draw():
    np.testing.assert_array_equal(bits(3, 4, 9, site=2).numpy(), bits(3, 6, 9).numpy())
    np.testing.assert_array_equal(bits(3, 2**64 - 1, 9, site=1).numpy(), bits(3, 0, 9).numpy())
    assert (bits(3, 4, 9).numpy() != bits(3, 5, 9).numpy()).any()
    assert (bits(3, 4, 9).numpy() != bits(4, 4, 9).numpy()).any()


DRAWS = [
    ("uniform", {"low": 0.0, "high": 1.0, "dtype": bt.float32}),
    ("uniform", {"low": -2.0, "high": 3.0, "dtype": bt.float64}),
    ("uniform", {"low": 0.0, "high": 1.0, "dtype": bt.bfloat16}),
    ("normal", {"mean": 0.0, "std": 1.0, "dtype": bt.float32}),
    ("normal", {"mean": 1.0, "std": 0.5, "dtype": bt.float64}),
    ("normal", {"mean": 0.0, "std": 1.0, "dtype": bt.float16}),
    ("bernoulli", {"p": 0.3}),
    ("bernoulli", {"p": 1.0}),
    ("bernoulli", {"p": 0.0}),
    ("randint", {"low": -5, "high": 1000, "dtype": bt.int64}),
    ("randint", {"low": 0, "high": 2**31, "dtype": bt.int64}),
]


@pytest.mark.parametrize("name, attrs", DRAWS)
def test_eager_equals_compose(name, attrs):
    prim, attrs = TABLE[name], {**attrs, "shape": (3, 50), "site": 1, "device": cpu}
    eager, composed = dispatch.apply(prim, 8, 9, **attrs), prim.compose(8, 9, **attrs)
    assert eager._aval == composed._aval == prim.infer(dispatch.aval_of(8), dispatch.aval_of(9), **attrs)
    if name in ("bernoulli", "randint"):
        np.testing.assert_array_equal(eager.numpy(), composed.numpy())
    else:
        a, b = (x.to(bt.float64).numpy() for x in (eager, composed))
        np.testing.assert_allclose(a, b, rtol=2e-2 if attrs["dtype"].itemsize == 2 else 2e-6)


@pytest.mark.parametrize("dtype", [bt.float16, bt.bfloat16, bt.float32, bt.float64])
def test_uniform(dtype):
    x = bt.rand(40_000, dtype=dtype, generator=Generator(1))
    values = x.to(bt.float64).numpy()
    assert x.dtype is dtype and values.min() >= 0 and values.max() < 1
    assert abs(values.mean() - 0.5) < 0.01 and abs(values.std() - math.sqrt(1 / 12)) < 0.01


@pytest.mark.parametrize("dtype", [bt.float16, bt.float32, bt.float64])
def test_normal(dtype):
    values = bt.randn(40_000, dtype=dtype, generator=Generator(2)).to(bt.float64).numpy()
    assert abs(values.mean()) < 0.02 and abs(values.std() - 1) < 0.02
    assert abs((values**3).mean()) < 0.1 and abs((values**4).mean() - 3) < 0.2
    assert abs(np.corrcoef(values[:-1], values[1:])[0, 1]) < 0.02


def test_one_number_is_a_0d_tensor():
    for draw in (bt.randn, bt.rand, bt.uniform, bt.normal, lambda shape: bt.bernoulli(shape, 0.5)):
        assert draw(()).shape == () and draw((0,)).shape == (0,)


def test_integers():
    x = bt.randint(-3, 4, (30_000,), generator=Generator(3)).numpy()
    counts = np.bincount(x + 3, minlength=7)
    assert x.min() == -3 and x.max() == 3 and abs(counts / 30_000 - 1 / 7).max() < 0.01
    assert bt.randint(5, (4,)).numpy().max() < 5
    np.testing.assert_array_equal(np.sort(bt.randperm(100, generator=Generator(4)).numpy()), np.arange(100))
    with pytest.raises(ValueError, match="randint: the range is empty"):
        bt.randint(3, 3, (1,))


@pytest.mark.parametrize("p", [0.1, 0.5])
def test_dropout_keeps_by_the_bits(p):
    x = np.arange(1, 1001, dtype=np.float32)
    y = composite.dropout(bt.tensor(x), p, 5, 6, site=3).numpy()
    kept = bits(5, 9, 1000).numpy().view(np.uint32) < round((1 - p) * 2**32)
    np.testing.assert_allclose(y, np.where(kept, x / (1 - p), 0), rtol=1e-6)
    assert abs(kept.mean() - (1 - p)) < 0.05


def test_dropout_drops_infinities():
    y = composite.dropout(bt.full((100,), math.inf), 0.5, 1, 1).numpy()
    assert set(np.unique(y)) == {0, math.inf}


def test_dropout_of_a_strided_tensor_has_the_mask_of_its_copy():
    x = bt.ones(30, 20)
    np.testing.assert_array_equal(
        composite.dropout(x.t(), 0.5, 1, 2).numpy(), composite.dropout(x.t().contiguous(), 0.5, 1, 2).numpy()
    )


def test_two_calls_never_share_a_mask():
    bt.manual_seed(0)
    x = bt.ones(100)
    first, second = composite.dropout(x, 0.5), composite.dropout(x, 0.5)
    assert (first.numpy() != second.numpy()).any()
    bt.manual_seed(0)
    np.testing.assert_array_equal(composite.dropout(x, 0.5).numpy(), first.numpy())


def test_state_resumes():
    bt.manual_seed(7)
    bt.rand(3)
    state = json.loads(json.dumps(get_state()))
    wanted = bt.rand(5).numpy()
    bt.rand(9)
    set_state(state)
    np.testing.assert_array_equal(bt.rand(5).numpy(), wanted)


def test_a_generator_counts_draws():
    generator = Generator(3)
    assert (generator.draw(), generator.draw(), generator.counter) == (0, 1, 2)
    bt.rand(2, generator=generator)
    assert generator.counter == 3
    assert Generator(-1).seed == 2**64 - 1


@pytest.mark.parametrize(
    "call, error, text",
    [
        (lambda: Generator("a"), TypeError, "manual_seed: a seed is an integer"),
        (lambda: Generator(2**64), ValueError, "manual_seed: the seed does not fit"),
        (lambda: Generator().set_state({"seed": 1}), ValueError, "set_state: not a state"),
        (lambda: bt.normal((2,), std=-1.0), ValueError, "normal: std is negative"),
        (lambda: bt.bernoulli((2,), 1.5), ValueError, "bernoulli: p is out of range"),
        (lambda: bt.rand(2, dtype=bt.int64), TypeError, "random: uniform and normal numbers are floating"),
    ],
)
def test_errors(call, error, text):
    with pytest.raises(error, match=text):
        call()
