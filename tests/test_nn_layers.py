"""Layers, losses, initialization: values against NumPy, arguments that make no sense."""

from __future__ import annotations

import math

import numpy as np
import pytest

import blutrain as bt
from blutrain import nn
from blutrain.nn import functional as F


@pytest.fixture
def rng():
    return np.random.default_rng(0)


def close(tensor, expected, tolerance=1e-6):
    np.testing.assert_allclose(tensor.detach().numpy(), expected, rtol=tolerance, atol=tolerance)


def test_linear(rng):
    layer, x = nn.Linear(3, 4), rng.standard_normal((2, 5, 3)).astype(np.float32)
    close(layer(bt.tensor(x)), x @ layer.weight.detach().numpy().T + layer.bias.detach().numpy())
    assert nn.Linear(3, 4, bias=False).bias is None
    assert np.abs(layer.weight.detach().numpy()).max() <= 1 / math.sqrt(3)
    with pytest.raises(ValueError, match="linear"):
        layer(bt.zeros(2, 4))
    with pytest.raises(ValueError, match="in_features must be an integer"):
        nn.Linear(2.5, 3)


def test_embedding_and_padding(rng):
    layer = nn.Embedding(6, 3, padding_idx=-1)
    ids = np.array([[0, 5], [5, 2]])
    out = layer(bt.tensor(ids))
    close(out, layer.weight.detach().numpy()[ids])
    assert layer.padding_idx == 5 and not layer.weight.detach().numpy()[5].any()
    out.sum().backward()
    np.testing.assert_array_equal(layer.weight.grad.numpy()[:, 0], [1, 0, 1, 0, 0, 0])
    with pytest.raises(ValueError, match="padding_idx is out of range"):
        nn.Embedding(3, 2, padding_idx=3)
    with pytest.raises(ValueError, match="7"):
        layer(bt.tensor([7]))


def test_norms(rng):
    x = rng.standard_normal((4, 2, 3)).astype(np.float32)
    layer = nn.LayerNorm((2, 3))
    flat = x.reshape(4, 6)
    normal = (flat - flat.mean(1, keepdims=True)) / np.sqrt(flat.var(1, keepdims=True) + 1e-5)
    close(layer(bt.tensor(x)), normal.reshape(x.shape), 1e-5)
    assert [n for n, _ in nn.LayerNorm(3, bias=False).named_parameters()] == ["weight"]
    assert not list(nn.LayerNorm(3, elementwise_affine=False).parameters())
    rms = nn.RMSNorm(3)
    close(rms(bt.tensor(x)), x / np.sqrt((x * x).mean(-1, keepdims=True) + np.finfo(np.float32).eps), 1e-5)
    with pytest.raises(ValueError, match="normalized_shape"):
        nn.LayerNorm(())


def test_activations(rng):
    x = np.linspace(-4, 4, 33, dtype=np.float32)
    t = bt.tensor(x)
    close(nn.ReLU()(t), np.maximum(x, 0))
    close(nn.SiLU()(t), x / (1 + np.exp(-x)), 1e-5)
    close(nn.Tanh()(t), np.tanh(x))
    close(nn.Sigmoid()(t), 1 / (1 + np.exp(-x)), 1e-5)
    exact = np.array([0.5 * v * (1 + math.erf(v / math.sqrt(2))) for v in x])
    close(nn.GELU()(t), exact, 1e-5)
    close(nn.GELU("tanh")(t), 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))), 1e-5)
    assert nn.Identity(3)(t) is t
    with pytest.raises(ValueError, match="unknown approximate"):
        nn.GELU("erf")


def test_dropout_scales_and_stops():
    layer, x = nn.Dropout(0.25), bt.ones(100, 100)
    bt.manual_seed(1)
    first, second = layer(x).numpy(), layer(x).numpy()
    assert set(np.unique(first)) == {np.float32(0), np.float32(1 / 0.75)}
    assert abs((first == 0).mean() - 0.25) < 0.02 and not np.array_equal(first, second)
    bt.manual_seed(1)
    np.testing.assert_array_equal(layer(x).numpy(), first)
    assert layer.eval()(x) is x and nn.Dropout(0.0)(x) is x
    assert not nn.Dropout(1.0)(x).numpy().any()
    with pytest.raises(ValueError, match="p must be a probability"):
        nn.Dropout(1.5)


def test_losses(rng):
    logits, target = rng.standard_normal((5, 4)).astype(np.float32), np.array([0, 3, -100, 1, 2])
    log_p = logits - np.log(np.exp(logits).sum(1, keepdims=True))
    kept = target >= 0
    per_row = np.where(kept, -log_p[np.arange(5), np.where(kept, target, 0)], 0)
    close(nn.CrossEntropyLoss()(bt.tensor(logits), bt.tensor(target)), per_row.sum() / 4, 1e-5)
    close(nn.CrossEntropyLoss(reduction="none")(bt.tensor(logits), bt.tensor(target)), per_row, 1e-5)
    smooth = 0.9 * per_row[kept] - 0.1 * log_p[kept].mean(1)
    close(nn.CrossEntropyLoss(label_smoothing=0.1)(bt.tensor(logits), bt.tensor(target)), smooth.mean(), 1e-5)
    with pytest.raises(ValueError, match="4"):
        F.cross_entropy(bt.tensor(logits), bt.tensor([0, 1, 2, 3, 4]))
    with pytest.raises(ValueError, match="unknown reduction"):
        nn.CrossEntropyLoss(reduction="avg")
    a, b = rng.standard_normal((2, 6)).astype(np.float32)
    close(nn.MSELoss()(bt.tensor(a), bt.tensor(b)), ((a - b) ** 2).mean(), 1e-5)
    close(nn.MSELoss(reduction="sum")(bt.tensor(a), bt.tensor(b)), ((a - b) ** 2).sum(), 1e-5)


def test_init_fills_as_named():
    bt.manual_seed(0)
    w = bt.empty(200, 300)
    assert nn.init.zeros_(w) is w and not w.numpy().any()
    assert (nn.init.constant_(w, 3.0).numpy() == 3).all() and (nn.init.ones_(w).numpy() == 1).all()
    n = nn.init.normal_(w, 1.0, 0.5).numpy()
    assert abs(n.mean() - 1) < 0.01 and abs(n.std() - 0.5) < 0.01
    u = nn.init.uniform_(w, -2, 2).numpy()
    assert -2 <= u.min() < -1.9 and 1.9 < u.max() < 2
    assert np.abs(nn.init.xavier_uniform_(w).numpy()).max() <= math.sqrt(6 / 500)
    assert abs(nn.init.xavier_normal_(w).numpy().std() - math.sqrt(2 / 500)) < 0.002
    assert np.abs(nn.init.kaiming_uniform_(w, a=math.sqrt(5)).numpy()).max() <= 1 / math.sqrt(300)
    assert abs(nn.init.kaiming_normal_(w, nonlinearity="relu").numpy().std() - math.sqrt(2 / 300)) < 0.002
    before = nn.init.normal_(w).numpy().copy()
    bt.manual_seed(5)
    first = nn.init.normal_(w).numpy().copy()
    bt.manual_seed(5)
    np.testing.assert_array_equal(nn.init.normal_(w).numpy(), first)
    assert not np.array_equal(before, first)
    with pytest.raises(ValueError, match="two or more dimensions"):
        nn.init.xavier_uniform_(bt.empty(3))
    with pytest.raises(ValueError, match="unknown nonlinearity"):
        nn.init.calculate_gain("step")


def test_init_writes_parameters_without_history():
    layer = nn.Linear(2, 2)
    nn.init.normal_(layer.weight)
    assert layer.weight.is_leaf and layer.weight.requires_grad and layer.weight.grad_fn is None


def test_a_new_layer_has_the_default_dtype_or_the_one_asked_for():
    assert nn.Linear(2, 2, dtype=bt.float64).weight.dtype is bt.float64
    assert nn.LayerNorm(2, dtype=bt.bfloat16).weight.dtype is bt.bfloat16
