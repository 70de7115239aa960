"""Edges of the composites: infinities, NaN, large offsets, ignored rows, bad operands.

Each is one that some framework got wrong.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from composite_cases import DTYPES

import blutrain as bt
from blutrain.nn import functional as F
from blutrain.tensor import dispatch
from blutrain.tensor.ops import composite
from blutrain.tensor.primitive import TABLE

INF = math.inf


def eager_and_composed(name: str, *operands, **attrs):
    """The first result of both forms of a composite, as arrays."""
    prim = TABLE[name]
    both = [dispatch.apply(prim, *operands, **attrs), prim.compose(*operands, **attrs)]
    return [(r[0] if isinstance(r, tuple) else r).numpy() for r in both]


@pytest.mark.parametrize("approximate", ["none", "tanh"])
@pytest.mark.parametrize("short", ["f32", "f64"])
def test_gelu_far_out(approximate, short):
    x = bt.tensor(np.array([-INF, -1e30, -1e4, -50, -10, 0, 10, 50, 1e4, 1e30, INF], DTYPES[short]))
    for y in eager_and_composed("gelu", x, approximate=approximate):
        np.testing.assert_allclose(y, [0, 0, 0, 0, 0, 0, 10, 50, 1e4, 1e30, INF], atol=1e-18, rtol=1e-6)
    for slope in eager_and_composed("gelu_backward", bt.ones_like(x), x, approximate=approximate):
        np.testing.assert_allclose(slope, [0] * 5 + [0.5] + [1] * 5, atol=1e-18, rtol=1e-6)


def test_silu_far_out():
    x = bt.tensor([-INF, -1e30, -1e4, -50.0, 0.0, 50.0, 1e4, INF])
    for y in eager_and_composed("silu", x):
        np.testing.assert_allclose(y, [0, 0, 0, 0, 0, 50, 1e4, INF], atol=1e-19)
    for slope in eager_and_composed("silu_backward", bt.ones_like(x), x):
        np.testing.assert_allclose(slope, [0, 0, 0, 0, 0.5, 1, 1, 1], atol=1e-19)


@pytest.mark.parametrize("name", ["gelu", "relu", "silu"])
def test_nan_stays_nan(name):
    attrs = {"approximate": "none"} if name == "gelu" else {}
    for y in eager_and_composed(name, bt.tensor([math.nan, 1.0]), **attrs):
        assert math.isnan(y[0]) and not math.isnan(y[1])


def test_softmax_of_infinities():
    x = bt.tensor([[-INF, 0.0, 0.0], [-INF, -INF, -INF], [INF, 0.0, 1.0], [1e14, 1e14, 0.0]])
    for y in eager_and_composed("softmax", x, dim=1):
        np.testing.assert_array_equal(y[0], [0, 0.5, 0.5])
        assert np.isnan(y[1]).all() and np.isnan(y[2]).all()
        np.testing.assert_array_equal(y[3], [0.5, 0.5, 0])
    for y in eager_and_composed("log_softmax", x, dim=1):
        np.testing.assert_allclose(y[0], [-INF, math.log(0.5), math.log(0.5)], rtol=1e-6)
        assert np.isnan(y[1]).all() and np.isnan(y[2]).all()


def test_layer_norm_with_an_offset():
    # pytorch#51102: mean 1e4, deviation 1
    x = np.random.default_rng(0).standard_normal((4, 512)) + 1e4
    x = x.astype(np.float32)
    wide = x.astype(np.float64)
    wanted = (wide - wide.mean(-1, keepdims=True)) / np.sqrt(wide.var(-1, keepdims=True) + 1e-5)
    for y in eager_and_composed("layer_norm", bt.tensor(x), num_dims=1, eps=1e-5):
        np.testing.assert_allclose(y, wanted, atol=2e-6)


@pytest.mark.parametrize("value", [0.0, 1e4, 8.5e37])
def test_layer_norm_of_a_constant_row(value):
    for y in eager_and_composed("layer_norm", bt.full((2, 300), value), num_dims=1, eps=1e-5):
        np.testing.assert_allclose(y, 0, atol=1e-3)


def test_layer_norm_near_the_largest_float():
    # pytorch#173793: sums and squares overflow; the result must still be finite
    x = np.full((2, 300), 8.5e37, np.float32)
    x[:, ::3] = np.nextafter(x[0, 0], np.float32(np.inf))
    for y in eager_and_composed("layer_norm", bt.tensor(x), num_dims=1, eps=1e-5):
        assert np.isfinite(y).all()


def test_norms_of_narrow_floats_are_computed_in_float32():
    x = bt.ones(1, 4096, dtype=bt.bfloat16)
    for run in (
        lambda: dispatch.apply(TABLE["layer_norm"], x, num_dims=1, eps=1.0),
        lambda: TABLE["layer_norm"].compose(x, num_dims=1, eps=1.0),
    ):
        y, mean, rstd = run()
        assert (y.dtype, mean.dtype, mean.item(), rstd.item()) == (bt.bfloat16, bt.float32, 1.0, 1.0)


def test_ignored_rows():
    logits = np.random.default_rng(0).standard_normal((4, 3)).astype(np.float32)
    logits[1] = np.nan
    x = bt.tensor(logits, requires_grad=True)
    target = bt.tensor([0, -100, 2, 1])
    for smoothing in (0.0, 0.2):
        # pytorch#73205: smoothing has to skip ignored rows too, and the mean is over rows that are kept
        loss = F.cross_entropy(x, target, label_smoothing=smoothing)
        kept = F.cross_entropy(bt.tensor(logits[[0, 2, 3]]), bt.tensor([0, 2, 1]), label_smoothing=smoothing)
        assert loss.item() == pytest.approx(kept.item(), rel=1e-6)
    loss.backward()
    np.testing.assert_array_equal(x.grad.numpy()[1], 0)


def test_all_rows_ignored():
    x = bt.ones(2, 3, requires_grad=True)
    target = bt.tensor([-100, -100])
    assert F.cross_entropy(x, target, reduction="sum").item() == 0
    loss = F.cross_entropy(x, target)
    assert math.isnan(loss.item())
    loss.backward()
    np.testing.assert_array_equal(x.grad.numpy(), np.zeros((2, 3)))
    for dx in eager_and_composed(
        "cross_entropy_backward",
        bt.ones(()),
        x.detach(),
        target,
        bt.zeros(2),
        ignore_index=-100,
        label_smoothing=0.0,
        reduction="mean",
    ):
        np.testing.assert_array_equal(dx, np.zeros((2, 3)))


@pytest.mark.parametrize("dtype", [bt.int16, bt.int32, bt.int64])
@pytest.mark.parametrize("bad", [7, -1, 3])
def test_target_out_of_range(dtype, bad):
    target = bt.tensor([0, bad, 2], dtype=dtype)
    attrs = {"ignore_index": -100, "label_smoothing": 0.0, "reduction": "mean"}
    for form in (
        lambda: F.cross_entropy(bt.zeros(3, 3), target),
        lambda: TABLE["cross_entropy"].compose(bt.zeros(3, 3), target, **attrs),
    ):
        with pytest.raises(ValueError, match="cross_entropy: a target is out of range") as caught:
            form()
        text = str(caught.value)
        assert "0 <= target < 3" in text and f"got: {bad}\n" in text and "test_composite_limits.py" in text


def test_classes_beyond_the_range_of_targets():
    loss = F.cross_entropy(bt.zeros(2, 50304), bt.tensor([1, -100], dtype=bt.int16))
    assert loss.item() == pytest.approx(math.log(50304))
    attrs = {"ignore_index": -100, "label_smoothing": 0.0, "reduction": "mean"}
    composed = TABLE["cross_entropy"].compose(bt.zeros(2, 50304), bt.tensor([1, -100], dtype=bt.int16), **attrs)
    assert composed[0].item() == pytest.approx(math.log(50304))


def test_a_value_outside_int32_is_not_missed():
    # 2**32 is 0 in its low 32 bits
    attrs = {"ignore_index": -100, "label_smoothing": 0.0, "reduction": "mean"}
    with pytest.raises(ValueError, match="out of range"):
        TABLE["cross_entropy"].compose(bt.zeros(1, 3), bt.tensor([2**32]), **attrs)


@pytest.mark.parametrize("bad", [-1, 4])
def test_id_out_of_range(bad):
    ids = bt.tensor([[0, 1], [bad, 3]])
    for form in (
        lambda: F.embedding(ids, bt.zeros(4, 2)),
        lambda: TABLE["embedding"].compose(bt.zeros(4, 2), ids, padding_idx=None),
    ):
        with pytest.raises(ValueError, match=f"embedding: an id is out of range\n.*0 <= id < 4\n  got: {bad}\n"):
            form()


def test_attention_rows_without_keys():
    q, k, v = (bt.ones(3, 2, requires_grad=True) for _ in range(3))
    mask = bt.tensor([[True, True, False], [False, False, False], [True, False, False]])
    y = composite.scaled_dot_product_attention(q, k, v, mask)
    np.testing.assert_allclose(y.detach().numpy(), [[1, 1], [0, 0], [1, 1]])
    y.sum().backward()
    for x in (q, k, v):
        assert np.isfinite(x.grad.numpy()).all()
    np.testing.assert_array_equal(q.grad.numpy()[1], 0)
    np.testing.assert_allclose(v.grad.numpy()[:, 0], [1.5, 0.5, 0])


def test_causal_attention_with_more_queries_than_keys():
    y = composite.scaled_dot_product_attention(bt.ones(4, 2), bt.ones(2, 2), bt.tensor([[1.0], [3.0]]), is_causal=True)
    np.testing.assert_allclose(y.numpy()[:, 0], [1, 2, 2, 2])


def test_attention_without_keys():
    for y in eager_and_composed(
        "scaled_dot_product_attention", bt.ones(2, 3), bt.zeros(0, 3), bt.zeros(0, 4), is_causal=False, scale=1.0
    ):
        np.testing.assert_array_equal(y, np.zeros((2, 4)))


def test_empty_batches():
    assert F.linear(bt.zeros(0, 3), bt.zeros(2, 3)).shape == (0, 2)
    assert F.layer_norm(bt.zeros(0, 3), (3,)).shape == (0, 3)
    assert F.gelu(bt.zeros(0)).shape == (0,)
    assert F.cross_entropy(bt.zeros(0, 3), bt.zeros(0, dtype=bt.int64), reduction="sum").item() == 0
    assert math.isnan(F.cross_entropy(bt.zeros(0, 3), bt.zeros(0, dtype=bt.int64)).item())
    x = bt.zeros(0, 3, requires_grad=True)
    weight = bt.zeros(2, 3, requires_grad=True)
    F.linear(x, weight).sum().backward()
    np.testing.assert_array_equal(weight.grad.numpy(), np.zeros((2, 3)))


ERRORS = [
    (lambda: F.linear(bt.zeros(2, 3), bt.zeros(4, 5)), ValueError, r"linear: .*\n.*\n  got: f32\[2,3\], f32\[4,5\]"),
    (lambda: F.linear(bt.zeros(2, 3), bt.zeros(4, 3, dtype=bt.float64)), TypeError, "linear: operands differ in dtype"),
    (lambda: F.linear(bt.zeros(2, 3), bt.zeros(4, 3), bt.zeros(3)), ValueError, "linear: the bias"),
    (lambda: F.gelu(bt.zeros(2), approximate="fast"), ValueError, "gelu: unknown approximate"),
    (lambda: F.gelu(bt.zeros(2, dtype=bt.int64)), TypeError, "gelu: floating operands"),
    (lambda: F.softmax(bt.zeros(2), 1), IndexError, "softmax: the dimension is out of range"),
    (lambda: F.layer_norm(bt.zeros(2, 3), (4,)), ValueError, "layer_norm: x must end in normalized_shape"),
    (lambda: F.layer_norm(bt.zeros(2, 3), (3,), bt.zeros(2)), ValueError, "layer_norm: weight and bias"),
    (lambda: F.cross_entropy(bt.zeros(2, 3), bt.zeros(2)), TypeError, "cross_entropy: targets are class indices"),
    (
        lambda: F.cross_entropy(bt.zeros(2, 3), bt.zeros(3, dtype=bt.int64)),
        ValueError,
        "cross_entropy: one target per row",
    ),
    (
        lambda: F.cross_entropy(bt.zeros(2, 3), bt.zeros(2, dtype=bt.int64), reduction="max"),
        ValueError,
        "unknown reduction",
    ),
    (lambda: F.embedding(bt.zeros(2), bt.zeros(3, 4)), TypeError, "embedding: ids are integers"),
    (lambda: F.embedding(bt.zeros(2, dtype=bt.int64), bt.zeros(3, 4), padding_idx=3), ValueError, "padding_idx"),
    (lambda: composite.dropout(bt.zeros(2), 1.5), ValueError, "dropout: p is out of range"),
    (lambda: F.mse_loss(bt.zeros(2), bt.zeros(3)), ValueError, "mse_loss: operands differ in shape"),
    (lambda: composite.sgd(bt.zeros(2), bt.zeros(3), 0.1), ValueError, "sgd: gradient and state"),
]


@pytest.mark.parametrize("call, error, text", ERRORS)
def test_errors(call, error, text):
    with pytest.raises(error, match=text) as caught:
        call()
    assert "test_composite_limits.py" in str(caught.value)
