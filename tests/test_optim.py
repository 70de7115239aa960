"""Optimizers against their formulas in NumPy, their state, what they refuse; schedules; clipping."""

from __future__ import annotations

import copy
import math

import loops
import numpy as np
import pytest

import blutrain as bt
from blutrain import nn
from blutrain.nn.utils.clip_grad import _clip
from blutrain.optim import SGD, Adam, AdamW, LambdaLR, Optimizer, StepLR, WarmupCosineLR


def parameter(values, grad=None):
    p = nn.Parameter(bt.tensor(np.array(values, np.float64)))
    if grad is not None:
        p.grad = bt.tensor(np.array(grad, np.float64))
    return p


def run(optimizer_class, options, steps=5, seed=0):
    """(ours, gradients): the parameter after each step, and what it was stepped with."""
    rng = np.random.default_rng(seed)
    p = parameter(rng.standard_normal(7))
    optimizer = optimizer_class([p], **options)
    seen, grads, start = [], [], p.detach().numpy().copy()
    for _ in range(steps):
        g = rng.standard_normal(7)
        p.grad = bt.tensor(g)
        optimizer.step()
        grads.append(g)
        seen.append(p.detach().numpy().copy())
    return start, grads, seen


@pytest.mark.parametrize(
    "options",
    [
        {"lr": 0.1},
        {"lr": 0.1, "weight_decay": 0.3},
        {"lr": 0.1, "momentum": 0.9},
        {"lr": 0.1, "momentum": 0.9, "dampening": 0.5, "weight_decay": 0.1},
        {"lr": 0.1, "momentum": 0.9, "nesterov": True},
    ],
)
def test_sgd_is_its_formula(options):
    p, grads, seen = run(SGD, options)
    momentum, buffer = options.get("momentum", 0), None
    for g, ours in zip(grads, seen):
        d = g + options.get("weight_decay", 0) * p
        if momentum:
            buffer = d if buffer is None else momentum * buffer + (1 - options.get("dampening", 0)) * d
            d = d + momentum * buffer if options.get("nesterov") else buffer
        p = p - options["lr"] * d
        np.testing.assert_allclose(ours, p, rtol=1e-12)


@pytest.mark.parametrize("cls", [Adam, AdamW])
def test_adam_is_its_formula(cls):
    lr, (b1, b2), eps, wd = 0.05, (0.8, 0.95), 1e-3, 0.1
    p, grads, seen = run(cls, {"lr": lr, "betas": (b1, b2), "eps": eps, "weight_decay": wd})
    m = v = 0
    for t, (g, ours) in enumerate(zip(grads, seen), 1):
        if cls is AdamW:
            p = p * (1 - lr * wd)
        else:
            g = g + wd * p
        m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g * g
        p = p - lr * (m / (1 - b1**t)) / (np.sqrt(v / (1 - b2**t)) + eps)
        np.testing.assert_allclose(ours, p, rtol=1e-12)


@pytest.mark.parametrize(
    ("ours", "theirs", "options"),
    [
        (SGD, "SGD", {"lr": 0.1, "momentum": 0.9, "dampening": 0.3, "weight_decay": 0.1}),
        (Adam, "Adam", {"lr": 0.1, "weight_decay": 0.1}),
        (AdamW, "AdamW", {"lr": 0.1, "weight_decay": 0.1}),
    ],
)
def test_as_pytorch(ours, theirs, options):
    torch = pytest.importorskip("torch")
    start, grads, seen = run(ours, options, steps=8)
    p = torch.tensor(start, requires_grad=True)
    optimizer = getattr(torch.optim, theirs)([p], **options)
    for g, expected in zip(grads, seen):
        p.grad = torch.tensor(g)
        optimizer.step()
        np.testing.assert_allclose(p.detach().numpy(), expected, rtol=1e-12)


@pytest.mark.parametrize(("cls", "options"), [(SGD, {}), (SGD, {"momentum": 0.9}), (Adam, {}), (AdamW, {})])
def test_the_recorded_form_gives_the_same_bits(cls, options):
    rng = np.random.default_rng(1)
    a, b = (nn.Parameter(bt.tensor(np.linspace(-1, 1, 9, dtype=np.float32))) for _ in range(2))
    eager, pure = cls([a], lr=0.1, weight_decay=0.01, **options), cls([b], lr=0.1, weight_decay=0.01, **options)
    for _ in range(4):
        a.grad = b.grad = bt.tensor(rng.standard_normal(9).astype(np.float32))
        eager.step()
        with bt.no_grad():
            for bucket in pure._buckets():
                bucket.count.value += 1
                pure._update(bucket, bucket.params, [b.grad], pure._scalars(bucket))
        np.testing.assert_array_equal(a.detach().numpy(), b.detach().numpy())


def test_narrow_parameters_have_wide_moments():
    p = nn.Parameter(bt.ones(4, dtype=bt.bfloat16))
    p.grad = bt.ones(4, dtype=bt.bfloat16)
    optimizer = AdamW([p])
    optimizer.step()
    assert optimizer.state[p]["exp_avg"].dtype is bt.float32 and p.dtype is bt.bfloat16


def test_groups_have_their_own_numbers():
    a, b = parameter([1.0], [1.0]), parameter([1.0], [1.0])
    optimizer = SGD([{"params": [a], "lr": 0.5}, {"params": b}], lr=0.25)
    optimizer.step()
    assert (a.item(), b.item()) == (0.5, 0.75)
    optimizer.param_groups[0]["lr"] = 0.0
    optimizer.step()
    assert (a.item(), b.item()) == (0.5, 0.5)
    assert "group 1: 1 parameters  lr: 0.25" in repr(optimizer)


def test_numbers_of_numpy_become_pythons():
    """So that a state goes through JSON."""
    optimizer = AdamW([{"params": [parameter([1.0])], "weight_decay": np.float32(0.5)}], lr=np.float64(0.1))
    assert [type(optimizer.param_groups[0][name]) for name in ("lr", "weight_decay")] == [float, float]


def test_parameters_that_step_together_share_a_count():
    a, b, c = (parameter([1.0], [1.0]) for _ in range(3))
    optimizer = AdamW([a, b, c])
    optimizer.step()
    counts = [optimizer.state[p]["step"] for p in (a, b, c)]
    assert counts[0] is counts[1] is counts[2] and counts[0].value == 1
    b.grad = c.grad = None
    optimizer.step()
    assert optimizer.state[a]["step"] is counts[0] and counts[0].value == 2
    assert optimizer.state[b]["step"] is optimizer.state[c]["step"] is not counts[0]
    assert optimizer.state[b]["step"].value == 1
    b.grad = bt.ones(1, dtype=bt.float64)
    optimizer.step()
    assert [optimizer.state[p]["step"].value for p in (a, b, c)] == [3, 2, 1]


def test_a_parameter_that_joins_late_starts_at_one():
    a, b = parameter([1.0], [1.0]), parameter([1.0])
    optimizer = AdamW([a, b])
    optimizer.step()
    b.grad = bt.ones(1, dtype=bt.float64)
    optimizer.step()
    assert [optimizer.state[p]["step"].value for p in (a, b)] == [2, 1]


def test_zero_grad_and_closure():
    p = parameter([1.0], [1.0])
    optimizer = SGD([p], lr=1.0)
    optimizer.zero_grad(set_to_none=False)
    assert p.grad.item() == 0
    optimizer.zero_grad()
    assert p.grad is None

    def closure():
        loss = (p * 3).sum()
        loss.backward()
        return loss

    with bt.no_grad():
        assert optimizer.step(closure).item() == 3
    assert p.item() == -2


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda p: AdamW([]), "there is nothing to optimize"),
        (lambda p: AdamW(p), "params must be a list"),
        (lambda p: AdamW([3]), "parameter 0 is no tensor"),
        (lambda p: AdamW([p * 2]), "parameter 0 is the result of an operation"),
        (lambda p: AdamW([p, p]), "parameter 1 is given twice"),
        (lambda p: AdamW([{"params": [p]}, {"params": [p]}]), "parameter 0 is given twice"),
        (lambda p: AdamW([{"params": [p], "rate": 1}]), "unknown option 'rate'"),
        (lambda p: AdamW([p], lr=-1), r"lr is out of range(.|\n)*got: -1"),
        (lambda p: AdamW([p], lr=math.nan), "lr is out of range"),
        (lambda p: AdamW([p], betas=(0.9, 1.0)), r"betas\[1\] is out of range"),
        (lambda p: AdamW([p], betas=0.9), "betas is not a pair"),
        (lambda p: SGD([p], nesterov=True), "nesterov needs momentum"),
        (lambda p: SGD([{"lr": 0.1}]), "a group is a dict"),
        (lambda p: SGD([p]).add_param_group([p]), "a group is a dict"),
        (lambda p: SGD([p]).load_state_dict({}), "not a state of an optimizer"),
        (lambda p: SGD([p]).load_state_dict(None), "not a state of an optimizer"),
        (lambda p: StepLR(SGD([p]), 2).load_state_dict({"last_epoch": 1}), "not a state"),
    ],
)
def test_what_makes_no_sense_is_refused(make, text):
    with pytest.raises(ValueError, match=text):
        make(parameter([1.0]))


def steps(optimizer, params, count, seed):
    rng = np.random.default_rng(seed)
    for _ in range(count):
        for p in params:
            p.grad = bt.tensor(rng.standard_normal(p.shape))
        optimizer.step()


@pytest.mark.parametrize(("cls", "options"), [(SGD, {"momentum": 0.9}), (Adam, {}), (AdamW, {"betas": (0.8, 0.9)})])
def test_a_saved_state_continues_bit_for_bit(cls, options):
    def make():
        params = [parameter([1.0, 2.0]), parameter([[3.0]])]
        return params, cls([{"params": params[:1], "lr": 0.3}, {"params": params[1:]}], lr=0.1, **options)

    params, optimizer = make()
    steps(optimizer, params, 3, 0)
    saved, weights = copy.deepcopy(optimizer.state_dict()), [p.detach().numpy().copy() for p in params]
    steps(optimizer, params, 2, 1)
    other_params, other = make()
    for p, w in zip(other_params, weights):
        with bt.no_grad():
            p.copy_(bt.tensor(w))
    other.load_state_dict(saved)
    assert other.state[other_params[0]]["step"].value == 3
    steps(other, other_params, 2, 1)
    for p, q in zip(params, other_params):
        np.testing.assert_array_equal(p.detach().numpy(), q.detach().numpy())


def test_a_state_is_loaded_into_the_tensors_and_counts_that_exist():
    p, q = parameter([1.0]), parameter([2.0])
    optimizer = AdamW([p, q])
    steps(optimizer, [p, q], 2, 0)
    saved = copy.deepcopy(optimizer.state_dict())
    moment, count = optimizer.state[p]["exp_avg"], optimizer.state[p]["step"]
    value = moment.item()
    steps(optimizer, [p, q], 1, 1)
    optimizer.load_state_dict(saved)
    assert optimizer.state[p]["exp_avg"] is moment and moment.item() == value
    assert optimizer.state[q]["step"] is count and count.value == 2


def test_loading_splits_counts_that_differ():
    p, q = parameter([1.0]), parameter([2.0])
    optimizer = AdamW([p, q])
    steps(optimizer, [p, q], 2, 0)
    saved = copy.deepcopy(optimizer.state_dict())
    saved["state"][1]["step"] = 1
    optimizer.load_state_dict(saved)
    assert [optimizer.state[x]["step"].value for x in (p, q)] == [2, 1]


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda s: s["param_groups"][0].update(params=[0]), "other parameter groups"),
        (lambda s: s["param_groups"][0].pop("eps"), "of another optimizer"),
        (lambda s: s["param_groups"][0].update(lr=-1), "lr is out of range"),
        (lambda s: s["state"][1].pop("exp_avg"), "state of parameter 1 is of another optimizer"),
        (lambda s: s["state"][1].pop("step"), "state of parameter 1 is of another optimizer"),
        (lambda s: s["state"][1].update(exp_avg=bt.zeros(3)), "exp_avg of parameter 1 does not fit"),
    ],
)
def test_a_state_that_does_not_fit_changes_nothing(change, text):
    p, q = parameter([1.0]), parameter([2.0])
    optimizer = AdamW([p, q])
    steps(optimizer, [p, q], 2, 0)
    saved = copy.deepcopy(optimizer.state_dict())
    steps(optimizer, [p, q], 1, 1)
    change(saved)
    before = copy.deepcopy(optimizer.state_dict())
    with pytest.raises(ValueError, match=text):
        optimizer.load_state_dict(saved)
    after = optimizer.state_dict()
    assert after["param_groups"] == before["param_groups"]
    for index, entries in before["state"].items():
        assert after["state"][index]["step"] == entries["step"]
        assert after["state"][index]["exp_avg"].item() == entries["exp_avg"].item()


def test_schedules():
    def rates(make, count):
        optimizer = SGD([parameter([1.0])], lr=2.0)
        scheduler = make(optimizer)
        seen = []
        for _ in range(count):
            seen.append(optimizer.param_groups[0]["lr"])
            scheduler.step()
        return seen

    assert rates(lambda o: LambdaLR(o, lambda n: 0.5**n), 3) == [2.0, 1.0, 0.5]
    assert rates(lambda o: StepLR(o, 2, 0.1), 5) == pytest.approx([2, 2, 0.2, 0.2, 0.02])
    seen = rates(lambda o: WarmupCosineLR(o, 4, 10, min_ratio=0.1), 12)
    assert (
        seen[:5] == [0.5, 1.0, 1.5, 2.0, 2.0]
        and seen[7] == pytest.approx(1.1)
        and seen[10:] == pytest.approx([0.2, 0.2])
    )
    optimizer = SGD([parameter([1.0])], lr=2.0)
    scheduler = StepLR(optimizer, 2)
    for _ in range(3):
        scheduler.step()
    other = StepLR(SGD([parameter([1.0])], lr=2.0), 2)
    other.load_state_dict(scheduler.state_dict())
    assert other.get_last_lr() == scheduler.get_last_lr() and other.last_epoch == 3
    with pytest.raises(ValueError, match="warm-up must fit"):
        WarmupCosineLR(optimizer, 11, 10)
    with pytest.raises(ValueError, match="one function a group"):
        LambdaLR(optimizer, [abs, abs])
    with pytest.raises(TypeError, match="not an optimizer"):
        StepLR(3, 1)


@pytest.mark.parametrize("norm_type", [1.0, 2.0, 3.0, math.inf])
def test_clipping_scales_to_the_norm(norm_type):
    grads = [np.array([3.0, -4.0]), np.array([[12.0]])]
    params = [parameter(np.zeros_like(g), g) for g in grads]
    total = np.linalg.norm(np.concatenate([g.ravel() for g in grads]), norm_type)
    norm = nn.utils.clip_grad_norm_(params, 1.0, norm_type)
    assert norm.item() == pytest.approx(total)
    after = np.linalg.norm(np.concatenate([p.grad.numpy().ravel() for p in params]), norm_type)
    assert after == pytest.approx(1.0, rel=1e-5)
    norm = nn.utils.clip_grad_norm_(params, 10.0, norm_type)
    assert norm.item() == pytest.approx(1.0, rel=1e-5)
    assert np.linalg.norm(np.concatenate([p.grad.numpy().ravel() for p in params]), norm_type) == after


def test_clipping_and_its_recorded_form_give_the_same_bits():
    rng = np.random.default_rng(0)
    params = [nn.Parameter(bt.zeros(5)) for _ in range(3)]
    for p in params:
        p.grad = bt.tensor(rng.standard_normal(5).astype(np.float32))
    norm, clipped = _clip(params, [p.grad for p in params], 0.3, 2.0, None, True)
    assert nn.utils.clip_grad_norm_(params, 0.3).item() == norm.item()
    for p, g in zip(params, clipped):
        np.testing.assert_array_equal(p.grad.numpy(), g.numpy())


def test_a_norm_that_is_not_finite_names_the_parameter_and_changes_nothing():
    net = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    for p in net.parameters():
        p.grad = bt.ones(*p.shape)
    net[1].weight.grad = bt.tensor([[1.0, math.inf], [0.0, 0.0]])
    with pytest.raises(RuntimeError, match=r"the gradient of 1\.weight f32\[2,2\] is not finite"):
        nn.utils.clip_grad_norm_(net.named_parameters(), 1.0, error_if_nonfinite=True)
    np.testing.assert_array_equal(net[0].weight.grad.numpy(), np.ones((2, 2)))
    with pytest.raises(RuntimeError, match="the gradient of parameter 2"):
        nn.utils.clip_grad_norm_(net.parameters(), 1.0, error_if_nonfinite=True)
    assert nn.utils.clip_grad_norm_(net.parameters(), 1.0).item() == math.inf


def test_clipping_of_nothing_and_bad_norms():
    assert nn.utils.clip_grad_norm_([parameter([1.0])], 1.0).item() == 0
    assert nn.utils.clip_grad_norm_([parameter([3.0], [4.0])], np.float32(1)).item() == 4
    for bad in (-1.0, math.nan, "1", True):
        with pytest.raises(ValueError, match="max_norm must be a number"):
            nn.utils.clip_grad_norm_([], bad)
    with pytest.raises(TypeError, match="parameter 0 is no tensor"):
        nn.utils.clip_grad_norm_([3], 1.0)


class Momentum(Optimizer):
    """As users write one with PyTorch."""

    def __init__(self, params, lr=0.1, beta=0.9):
        super().__init__(params, {"lr": lr, "beta": beta})

    @bt.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if len(state) == 0:
                    state["step"], state["average"] = 0, bt.zeros_like(p)
                state["step"] += 1
                state["average"].mul_(group["beta"]).add_(p.grad)
                p.add_(state["average"], alpha=-group["lr"] / state["step"] ** 0.5)


@pytest.mark.parametrize("compiled", [False, True])
def test_an_optimizer_of_the_users(compiled):
    """Steps, schedules, and goes on from a saved state; its entries are copies."""

    def make():
        model, _ = loops.make(compiled)
        optimizer = Momentum(model.parameters())
        return model, optimizer, bt.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)

    def train(model, optimizer, schedule, data):
        for x, y in data:
            loops.train(model, optimizer, [(x, y)])
            schedule.step()

    data = list(loops.batches(8))
    model, optimizer, schedule = make()
    train(model, optimizer, schedule, data[:4])
    saved = copy.deepcopy([x.state_dict() for x in (model, optimizer, schedule)])
    shared = optimizer.state_dict()
    train(model, optimizer, schedule, data[4:])
    other = make()
    for x, state in zip(other, saved):
        x.load_state_dict(state)
    assert other[1].state_dict()["state"][0]["step"] == 4
    train(*other, data[4:])
    for p, q in zip(model.parameters(), other[0].parameters()):
        np.testing.assert_allclose(p.detach().numpy(), q.detach().numpy(), rtol=1e-12 if compiled else 0.0)
    other[1].load_state_dict(shared)
    optimizer.state[next(iter(model.parameters()))]["average"].zero_()
    assert other[1].state_dict()["state"][0]["average"].abs().sum().item() > 0
