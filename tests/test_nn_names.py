"""Modules, initializers, schedules and utilities under PyTorch's names: what PyTorch gives."""

from __future__ import annotations

import numpy as np
import pytest

import blutrain as bt
from blutrain import nn, nova
from blutrain.nn import functional as F
from blutrain.optim import SGD, lr_scheduler

X = np.random.default_rng(0).standard_normal((3, 4))
Y = np.random.default_rng(1).standard_normal((3, 4))
MODULES = {
    "nn.Softmax(dim=1)": "x",
    "nn.LogSoftmax(dim=1)": "x",
    "nn.LeakyReLU(0.2)": "x",
    "nn.ELU(0.5)": "x",
    "nn.Softplus(2, 3)": "x",
    "nn.LogSigmoid()": "x",
    "nn.Hardtanh(-0.5, 0.5)": "x",
    "nn.ReLU6()": "x",
    "nn.Mish()": "x",
    "nn.GLU(dim=1)": "x",
    "nn.Flatten()": "x.reshape(3, 2, 2)",
    "nn.L1Loss()": "x, y",
    "nn.SmoothL1Loss(beta=0.5)": "x, y",
    "nn.HuberLoss(reduction='sum', delta=0.5)": "x, y",
    "nn.NLLLoss(m.ones(4, dtype=m.float64), ignore_index=1)": "x.log_softmax(1), k",
    "nn.BCELoss()": "x.sigmoid(), y.sigmoid()",
    "nn.BCEWithLogitsLoss(pos_weight=m.ones(4, dtype=m.float64) * 2)": "x, y.sigmoid()",
    "nn.KLDivLoss(reduction='batchmean')": "x.log_softmax(1), y.softmax(1)",
    "nn.CrossEntropyLoss(m.arange(1, 5, dtype=m.float64), label_smoothing=0.1)": "x, k",
}


@pytest.mark.parametrize(("module", "arguments"), MODULES.items())
def test_modules(module, arguments):
    torch = pytest.importorskip("torch")
    results = []
    for m in (torch, bt):
        names = {"m": m, "nn": m.nn, "x": m.tensor(X), "y": m.tensor(Y), "k": m.tensor([0, 3, 1])}
        made = eval(module, names)
        results.append((made(*eval(f"({arguments},)", names)).numpy(), repr(made)))
    np.testing.assert_allclose(results[1][0], results[0][0], rtol=1e-9)
    if "Loss" not in module:
        assert results[1][1] == results[0][1]


def test_weights_of_losses_move_with_them():
    loss = nn.CrossEntropyLoss(bt.ones(4)).double()
    assert loss.weight is not None and loss.weight.dtype is bt.float64
    assert nn.CrossEntropyLoss().state_dict() == {}


def test_parameter_list():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.weights = nn.ParameterList([nn.Parameter(bt.ones(2)), nn.Parameter(bt.zeros(3))])

    model = Model()
    model.weights.append(nn.Parameter(bt.ones(1)))
    assert [name for name, _ in model.named_parameters()] == ["weights.0", "weights.1", "weights.2"]
    assert len(model.weights) == 3 and model.weights[-1].numel() == 1 and len(list(model.weights)) == 3
    with pytest.raises(IndexError, match="no such parameter"):
        model.weights[3]
    with pytest.raises(TypeError, match="members must be parameters"):
        model.weights.append(bt.ones(1))


def test_parameter_dict():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.weights = nn.ParameterDict({"a": nn.Parameter(bt.ones(2)), "b": nn.Parameter(bt.zeros(3))})

    model = Model()
    model.weights["c"] = nn.Parameter(bt.ones(1))
    del model.weights["a"]
    assert [name for name, _ in model.named_parameters()] == ["weights.b", "weights.c"]
    assert list(model.weights) == ["b", "c"] and "a" not in model.weights and model.weights["c"].numel() == 1
    assert [p.numel() for p in model.weights.values()] == [3, 1]
    with pytest.raises(KeyError, match="no parameter 'a'"):
        model.weights["a"]
    with pytest.raises(TypeError, match="members must be parameters"):
        model.weights["d"] = bt.ones(1)
    with pytest.raises(ValueError, match="no attribute"):
        model.weights["forward"] = nn.Parameter(bt.ones(1))


@pytest.mark.parametrize("compiled", [False, True])
def test_gumbel_softmax(compiled):
    """Categories come up as often as softmax says; what is rounded has the gradient of what it was."""
    logits = bt.tensor([0.3, -1.0, 1.2, 0.0], dtype=bt.float64)

    def draw(logits, tau, hard):
        return F.gumbel_softmax(logits.expand(20000, 4), tau, hard)

    draw = nova.jit(draw, strict=True) if compiled else draw
    bt.manual_seed(0)
    for tau in (1.0, 0.5, 0.1):
        hard = draw(logits, tau, True).numpy()
        assert set(np.unique(hard.round(12))) == {0.0, 1.0} and np.allclose(hard.sum(1), 1.0)
        np.testing.assert_allclose(hard.mean(0), F.softmax(logits, 0).numpy(), atol=0.02)
    leaf, weights = logits.clone().requires_grad_(), bt.arange(4.0, dtype=bt.float64)
    gradients = []
    for hard in (False, True):
        bt.manual_seed(1)
        (draw(leaf, 0.7, hard) * weights).sum().backward()
        gradients.append(leaf.grad.numpy().copy())
        leaf.grad = None
    np.testing.assert_allclose(gradients[1], gradients[0], rtol=1e-9)
    with pytest.raises(ValueError, match="tau must be positive"):
        F.gumbel_softmax(logits, 0.0)


def test_parameters_as_a_vector():
    model = nn.Linear(3, 2)
    vector = nn.utils.parameters_to_vector(model.parameters())
    nn.utils.vector_to_parameters(vector.detach() * 2, model.parameters())
    assert bt.equal(nn.utils.parameters_to_vector(model.parameters()).detach(), vector.detach() * 2)
    with pytest.raises(ValueError, match="the vector does not fit"):
        nn.utils.vector_to_parameters(bt.zeros(7), model.parameters())


def test_gradients_bounded_by_value():
    model = nn.Linear(3, 2)
    model(bt.tensor([[3.0, -3.0, 0.1]])).sum().backward()
    nn.utils.clip_grad_value_(model.parameters(), 0.5)
    np.testing.assert_allclose(model.weight.grad.numpy(), [[0.5, -0.5, 0.1]] * 2)


@pytest.mark.parametrize("shape", [(4, 6), (6, 4), (6, 2, 2)])
def test_orthogonal(shape):
    w = nn.init.orthogonal_(bt.empty(shape, dtype=bt.float64), 2.0).reshape(shape[0], -1).numpy()
    product = w @ w.T if w.shape[0] <= w.shape[1] else w.T @ w
    np.testing.assert_allclose(product, 4 * np.eye(len(product)), atol=1e-12)


def test_truncated_normal():
    x = nn.init.trunc_normal_(bt.empty(10000), 1.0, 2.0, a=-1.0, b=2.0).numpy()
    assert x.min() >= -1 and x.max() <= 2 and len(np.unique(x)) > 9900
    with pytest.raises(ValueError, match="hardly a number"):
        nn.init.trunc_normal_(bt.empty(3), 0.0, 0.01, a=1.0, b=2.0)


def test_identity_matrix():
    np.testing.assert_array_equal(nn.init.eye_(bt.empty(2, 3)).numpy(), np.eye(2, 3))


SCHEDULES = [
    "ExponentialLR(o, 0.9)",
    "MultiStepLR(o, [3, 5], 0.5)",
    "LinearLR(o, total_iters=4)",
    "ConstantLR(o, 0.5, 3)",
    "CosineAnnealingLR(o, 5, 1e-3)",
    "OneCycleLR(o, max_lr=0.4, total_steps=12)",
    "OneCycleLR(o, max_lr=0.4, total_steps=12, anneal_strategy='linear', pct_start=0.5)",
    "StepLR(o, 2)",
]


@pytest.mark.parametrize("text", SCHEDULES)
def test_schedules(text):
    torch = pytest.importorskip("torch")
    rates = []
    for m in (torch, bt):
        parameters = [m.ones(1, requires_grad=True) for _ in range(2)]
        o = m.optim.SGD([{"params": parameters[:1]}, {"params": parameters[1:], "lr": 0.3}], lr=0.1)
        schedule = eval(f"m.optim.lr_scheduler.{text}", {"m": m, "o": o})
        rates.append([])
        for n in range(12):
            rates[-1].append([group["lr"] for group in o.param_groups])
            o.step()
            if n < 11:
                schedule.step()
    np.testing.assert_allclose(rates[1], rates[0], rtol=1e-9)


def test_a_schedule_resumes():
    optimizer = SGD([nn.Parameter(bt.ones(1))], lr=0.1)
    schedule = lr_scheduler.CosineAnnealingLR(optimizer, 7)
    for _ in range(3):
        schedule.step()
    other = SGD([nn.Parameter(bt.ones(1))], lr=0.1)
    again = lr_scheduler.CosineAnnealingLR(other, 7)
    again.load_state_dict(schedule.state_dict())
    assert again.get_last_lr() == schedule.get_last_lr()


def test_no_loss_is_read_in_a_compiled_step():
    """The losses' own value checks are flags of the step, not reads."""
    model = nn.Linear(4, 3)
    model.compile(strict=True)
    optimizer = SGD(model.parameters(), lr=0.1)
    for _ in range(4):
        loss = F.nll_loss(model(bt.ones(2, 4)).log_softmax(1), bt.tensor([0, 2]))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    assert np.isfinite(loss.item())
