"""Numbers where programs go wrong, eager against compiled, forward and backward: infinities, NaN, ties, large offsets,
narrow floats, empty tensors, ends of tiles.
"""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest

import blutrain as bt
from blutrain import nn, nova
from blutrain.errors import CheckError
from blutrain.nn import functional as F
from blutrain.tensor.ops.composite.attention import scaled_dot_product_attention

INF, NAN = math.inf, math.nan
EXTREMES = np.array([0.0, -0.0, 1e-30, -1e-30, 10, -10, 50, -50, 88.5, -88.5, 1e4, -1e4, 3e38, -3e38, INF, -INF, NAN])


class Call(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *operands):
        return self.function(*operands)


def results(function, arrays, compiled: bool) -> list[np.ndarray]:
    """The results, and the gradients of the floats among `arrays` where results have any."""
    module = Call(function)
    if compiled:
        module.compile(first_step="compiled", strict=True)
    tensors = [bt.tensor(a) for a in arrays]
    tensors = [t.requires_grad_() if t.dtype.is_floating else t for t in tensors]
    found = module(*tensors)
    found = found if isinstance(found, tuple) else (found,)
    differentiable = [r for r in found if r.requires_grad and r.numel()]
    if differentiable:
        sum((r * 1.5).sum() for r in differentiable).backward()
    nova.flush()
    grads = [t.grad for t in tensors if t.dtype.is_floating and t.grad is not None]
    return [x.detach().numpy() for x in (*found, *grads)]


def agree(function, *arrays, tolerance: float | None = None) -> list[np.ndarray]:
    """Eager and compiled give NaN and infinities at the same places, and the same numbers; returns the compiled ones.

    (Compiled, narrow floats are rounded where they are stored; eager mode rounds after every operation.)
    """
    with np.errstate(all="ignore"):
        expected, got = results(function, arrays, False), results(function, arrays, True)
    assert len(expected) == len(got)
    for e, g in zip(expected, got):
        assert (e.shape, e.dtype) == (g.shape, g.dtype)
        if e.dtype.kind in "iub":
            np.testing.assert_array_equal(g, e)
            continue
        bound = tolerance or {8: 1e-12, 4: 2e-6, 2: 1e-2}[e.dtype.itemsize]
        np.testing.assert_allclose(g.astype(np.float64), e.astype(np.float64), rtol=bound, atol=bound / 10)
    return got


# -------------------------------------------------------------------- elementwise functions far out

FAR_OUT = {
    "gelu": F.gelu,
    "gelu tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu,
    "relu": F.relu,
    "sigmoid": bt.sigmoid,
    "tanh": bt.tanh,
    "softplus": lambda x: bt.log1p((-x.abs()).exp()) + F.relu(x),
    "exp": bt.exp,
    "expm1": bt.expm1,
    "log": bt.log,
    "log1p": bt.log1p,
    "sqrt": bt.sqrt,
    "rsqrt": bt.rsqrt,
    "reciprocal": bt.reciprocal,
    "erf": bt.erf,
    "atan": bt.atan,
    "abs": bt.abs,
    "sign": bt.sign,
    "clamp": lambda x: x.clamp(-1.0, 1.0),
    "square": bt.square,
    "pow": lambda x: x**3,
    "maximum": lambda x: bt.maximum(x, x.flip(0)),
    "minimum": lambda x: bt.minimum(x, x.flip(0)),
    "where": lambda x: bt.where(x > 0, x, x * 0.5),
    "floor_divide": lambda x: x.detach() // 0.75,
    "isfinite": lambda x: bt.isfinite(x),
}


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", FAR_OUT)
def test_far_out(name, dtype):
    with np.errstate(over="ignore"):
        agree(FAR_OUT[name], EXTREMES.astype(dtype))


@pytest.mark.parametrize("name", ["gelu", "silu", "tanh", "sigmoid", "exp"])
def test_narrow_floats_far_out(name):
    x = EXTREMES.astype(ml_dtypes.bfloat16)
    agree(FAR_OUT[name], x)


# -------------------------------------------------------------------- rows

ROWS = {
    "all -inf": [-INF] * 5,
    "one inf": [1.0, INF, 2.0, -INF, 0.0],
    "two inf": [INF, INF, 0.0, 1.0, 2.0],
    "some -inf": [-INF, 1.0, -INF, 2.0, 3.0],
    "nan": [1.0, NAN, 2.0, 3.0, 4.0],
    "large": [1e14, -1e14, 1e14, 0.0, 9e13],
    "ordinary": [0.1, -2.0, 3.0, 0.5, 0.0],
}
ROW_FUNCTIONS = {
    "softmax": lambda x: F.softmax(x, -1),
    "log_softmax": lambda x: F.log_softmax(x, -1),
    "logsumexp": lambda x: bt.logsumexp(x, -1),
    "layer_norm": lambda x: F.layer_norm(x, x.shape[-1:]),
    "rms_norm": lambda x: F.rms_norm(x, x.shape[-1:]),
    "max": lambda x: x.max(-1).values,
    "amax": lambda x: x.amax(-1),
    "argmax": lambda x: x.argmax(-1),
    "argmin": lambda x: x.argmin(-1),
    "cumsum": lambda x: x.cumsum(-1),
    "mean": lambda x: x.mean(-1),
    "any, all": lambda x: ((x > 0).any(-1), (x > 0).all(-1)),
}


@pytest.mark.parametrize("name", ROW_FUNCTIONS)
def test_rows_with_infinities_and_nan(name):
    agree(ROW_FUNCTIONS[name], np.array(list(ROWS.values()), np.float32))


@pytest.mark.parametrize("width", [1, 2, 3, 15, 16, 17, 31, 33, 63, 64, 65, 129])
def test_softmax_of_any_width(width):
    x = np.random.default_rng(width).standard_normal((3, width)).astype(np.float32) * 30
    p, *_ = agree(lambda x: (F.softmax(x, -1), F.log_softmax(x, -1)), x, tolerance=1e-5)
    np.testing.assert_allclose(p.sum(-1), 1, rtol=1e-6)


def test_ties_take_the_lowest_index_and_the_first_nan_wins():
    x = np.array([[1, 5, 2, 5], [NAN, 7, NAN, 1], [3, 3, 3, 3], [-INF, INF, INF, 0]], np.float32)
    largest, smallest = agree(lambda x: (x.argmax(-1), x.argmin(-1)), x)[:2]
    np.testing.assert_array_equal(largest, [1, 0, 0, 1])
    np.testing.assert_array_equal(smallest, [0, 0, 0, 0])


@pytest.mark.parametrize("offset, scale", [(0.0, 1e37), (1e4, 1.0), (0.0, 1e-20), (8.5e37, 0.0)])
def test_layer_norm_of_large_and_offset_rows(offset, scale):
    x = (np.random.default_rng(0).standard_normal((4, 200)) * scale + offset).astype(np.float32)
    got = agree(lambda x: F.layer_norm(x, (200,)), x, tolerance=2e-3 if offset else 1e-5)[0]
    if scale == 1e37:
        return  # its variance has no f32; every framework gives 0
    wide = x.astype(np.float64)
    want = (wide - wide.mean(-1, keepdims=True)) / np.sqrt(wide.var(-1, keepdims=True) + 1e-5)
    np.testing.assert_allclose(got, want, atol=2e-3 if offset else 1e-4)


# -------------------------------------------------------------------- narrow floats

BF16 = ml_dtypes.bfloat16


def test_bfloat16_accumulates_in_float32():
    ones = np.ones(4096, BF16)
    total, mean, running = agree(lambda x: (x.sum(), x.mean(), x.cumsum(0)), ones)[:3]
    assert total == 4096 and mean == 1 and running[-1] == 4096
    a, b = np.ones((2, 4096), BF16), np.ones((4096, 3), BF16)
    assert (agree(lambda a, b: a @ b, a, b)[0] == 4096).all()
    assert (agree(lambda a, b: a @ b, a[:1], b)[0] == 4096).all()


def test_a_thousand_gradients_of_one_row_in_bfloat16():
    table, ids = np.zeros((3, 5), BF16), np.full(1000, 1)
    gradient = agree(lambda w, i: F.embedding(i, w), table, ids)[-1]
    assert (gradient[1] == BF16(1500)).all() and not gradient[[0, 2]].any()


def test_scalars_are_rounded_to_the_dtype_of_the_tensor():
    x = np.array([1.0, 3.0, 1000.0], BF16)
    agree(lambda x: (x * 0.1, x + 0.1, x / 3, x > 0.1, x**2, bt.where(x > 1, x, 0.1)), x)
    agree(lambda i: (i * 3, i // 3, i + 0.5, i > 0.5), np.array([-4, 3, 7], np.int8))


# -------------------------------------------------------------------- losses

LOGITS = np.random.default_rng(0).standard_normal((6, 7)).astype(np.float32) * 3


@pytest.mark.parametrize("dtype", [np.int16, np.int32, np.int64])
@pytest.mark.parametrize("ignored", [[], [1, 4], [0, 1, 2, 3, 4, 5]])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_label_smoothing_with_ignored_rows(reduction, smoothing, ignored, dtype):
    target = np.array([0, 6, 3, 2, 1, 5], dtype)
    target[ignored] = -100

    def loss(x, t):
        return F.cross_entropy(x, t, label_smoothing=smoothing, reduction=reduction)

    _, gradient = agree(loss, LOGITS, target, tolerance=1e-5)
    assert np.isfinite(gradient).all() and not gradient[ignored].any()


@pytest.mark.parametrize("bad", [7, -1, 2**40])
def test_a_target_out_of_range_raises_with_its_value(bad):
    target = np.array([0, bad, 3, 2, 1, 5])
    for compiled in (False, True):
        with pytest.raises((CheckError, IndexError, ValueError), match=str(bad)):
            results(F.cross_entropy, (LOGITS, target), compiled)


def test_logits_that_overflow_float32():
    x = LOGITS * np.float32(1e14)
    agree(lambda x, t: F.cross_entropy(x, t), x, np.arange(6), tolerance=1e-5)


def test_attention_rows_without_keys_are_zero():
    q, k, v = np.random.default_rng(1).standard_normal((3, 2, 5, 4)).astype(np.float32)
    mask = np.tril(np.ones((5, 5), bool))
    mask[2] = False

    out = agree(scaled_dot_product_attention, q, k, v, mask, tolerance=1e-5)
    assert not out[0][:, 2].any() and not out[1][:, 2].any()


# -------------------------------------------------------------------- sizes


@pytest.mark.parametrize(
    "m, k, n",
    [
        (514, 500, 130),
        (15, 37, 7),
        (438, 331, 513),
        (1000, 4, 512),
        (9, 2044, 9),
        (1, 2044, 33),
        (33, 2044, 1),
        (1, 1, 1),
        (7, 0, 5),
        (0, 5, 3),
        (5, 1, 9),
    ],
)
def test_linear_layers_of_any_size(m, k, n):
    rng = np.random.default_rng(m + k + n)
    x, w, b = rng.standard_normal((m, k)), rng.standard_normal((n, k)), rng.standard_normal(n)
    got = agree(lambda x, w, b: F.gelu(F.linear(x, w, b)), x, w, b, tolerance=1e-9)[0]
    z = x @ w.T + b
    want = z * 0.5 * (1 + np.vectorize(math.erf, otypes=[float])(z / math.sqrt(2)))
    np.testing.assert_allclose(got, want, rtol=1e-9, atol=1e-9)


EMPTY = {
    "sum": lambda x: (x.sum(), x.sum(0), x.sum(1)),
    "mean": lambda x: x.mean(1, keepdim=True),
    "softmax": lambda x: F.softmax(x, -1),
    "layer_norm": lambda x: F.layer_norm(x, (3,)),
    "linear": lambda x: x @ bt.ones(3, 4),
    "concat": lambda x: bt.cat([x, x], 1),
    "cumsum": lambda x: x.cumsum(0),
    "take": lambda x: x[:, bt.arange(2)],
    "logsumexp": lambda x: x.logsumexp(1),
    "norm": lambda x: (x * x).sum().sqrt(),
    "argmax": lambda x: x.argmax(1),
    "elementwise": lambda x: F.gelu(x * 2 + 1),
    "reshape": lambda x: x.reshape(3, 0, 2).permute(2, 0, 1),
}


@pytest.mark.parametrize("name", EMPTY)
def test_empty(name):
    agree(EMPTY[name], np.zeros((0, 3), np.float32))


def test_repeated_indices():
    """x[[0, 0]] += v keeps the last, as NumPy's."""

    def add(x, v, i):
        y = x.clone()
        y[i] += v
        return y

    x, v = np.arange(6.0).reshape(3, 2), np.array([[1.0, 2.0], [10.0, 20.0]])
    want = x.copy()
    want[[0, 0]] += v
    np.testing.assert_array_equal(agree(add, x, v, np.zeros(2, np.int64))[0], want)


@pytest.mark.parametrize("call", [lambda x, i: F.linear(x, i), lambda x, i: F.softmax(i, -1)])
def test_the_same_error_for_mixed_dtypes(call):
    x, i = np.ones((2, 2), np.float32), np.ones((2, 2), np.int64)
    errors = []
    for compiled in (False, True):
        with pytest.raises((TypeError, ValueError)) as caught:
            results(call, (x, i), compiled)
        errors.append((type(caught.value), str(caught.value).split("\n")[0]))
    assert errors[0] == errors[1]


# -------------------------------------------------------------------- integers

ENDS = {
    "shifts": lambda x, y: (x << y, x >> y, x << 3, x >> 2),
    "division": lambda x, y: (x // y, x % y, x // 3, x % -2 if x.dtype.is_signed else x % 2),
    "arithmetic": lambda x, y: (x + y, x - y, x * y, -x, abs(x), x * x, bt.sign(x), ~x),
    "comparison": lambda x, y: (x < y, x >= y, x == 3, bt.maximum(x, y), x.clamp(2, 100), bt.where(x > 2, x, 5)),
    "reductions": lambda x, y: (x.amax(), x.amin(), x.argmax(), x.argmin(), x.sum(), x.prod(), x.any(), x.cumsum(0)),
    "casts": lambda x, y: tuple(
        x.to(t) for t in (bt.uint8, bt.int8, bt.uint16, bt.int16, bt.int64, bt.bool, bt.double)
    ),
    "products": lambda x, y: x.reshape(2, 3) @ y.reshape(3, 2),
}


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16, np.uint16, np.int32, np.int64])
@pytest.mark.parametrize("name", ENDS)
def test_integers_at_their_ends(name, dtype):
    """They wrap; by zero is 0; the smallest by -1 does not trap; shifts by too much leave the sign."""
    info = np.iinfo(dtype)
    x = np.array([1, 3, info.max, info.min, 0, 7], dtype)
    y = np.array([0, 1, info.bits - 1, info.bits, 3, 120] if name == "shifts" else [0, 3, 2, 0, 5, 1], dtype)
    if info.min < 0 and name == "division":
        y[3] = -1
    agree(ENDS[name], x, y)


def test_floats_to_integers():
    x = np.array([-1.5, 2.7, 100.0, -128.9, 255.0, 0.0])
    agree(lambda x: tuple(x.detach().to(t) for t in (bt.int8, bt.int16, bt.int32, bt.int64, bt.bool)), x)
