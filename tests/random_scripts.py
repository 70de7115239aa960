"""Random training scripts: cycles of what user code does to two models and their optimizers, run eagerly and compiled.

A script is data: a list of (names of actions, how often they are repeated). What actions see is compared, and the state at
the end. An action that raises ends the script, in both ways of running it.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

import blutrain as bt
from blutrain import nn, nova
from blutrain.nn import functional as F
from blutrain.optim import SGD, AdamW

ACTIONS: dict[str, Callable[[World], None]] = {}
OPTIMIZERS = {
    "sgd": lambda p: SGD(p, lr=0.05),
    "momentum": lambda p: SGD(p, lr=0.05, momentum=0.9),
    "adamw": lambda p: AdamW(p, lr=0.02),
}


class Script(NamedTuple):
    """parts: (actions, repetitions); the rest: what is trained, and how much of it is compiled."""

    parts: list[tuple[list[str], int]]
    optimizer: str
    dropout: float
    running_mean: bool
    one_optimizer: bool
    compiled: tuple[bool, bool]


class Model(nn.Module):
    """Two linear layers with a norm, a dropout, a buffer that forward writes, an attribute that it sets and one it reads."""

    def __init__(self, width: int, dropout: float, running_mean: bool):
        super().__init__()
        self.fc, self.norm, self.head = nn.Linear(4, width), nn.LayerNorm(width), nn.Linear(width, 3)
        self.drop, self.running_mean = nn.Dropout(dropout), running_mean
        self.register_buffer("mean", bt.zeros(4))
        self.scale, self.hidden_mean = 1.0, None

    def forward(self, x, y=None):
        if self.running_mean and self.training:
            with bt.no_grad():
                self.mean.mul_(0.9).add_(x.mean(0) * 0.1)
        hidden = self.drop(F.gelu(self.norm(self.fc(x - self.mean))))
        self.hidden_mean = hidden.mean()
        logits = (hidden @ self.head.weight.t() + self.head.bias) * self.scale  # backward keeps a view of the weight
        return logits if y is None else F.cross_entropy(logits, y)


class World:
    """What a script works on: two models, an eager layer, optimizers, a loss that adds up, what was held and seen."""

    def __init__(self, script: Script, seed: int, compiled: bool):
        bt.manual_seed(seed)
        self.rng = np.random.default_rng(seed)
        self.a, self.b = Model(5, script.dropout, script.running_mean).double(), Model(6, 0.0, False).double()
        self.layer = nn.Linear(4, 4).double()
        self.average = copy.deepcopy(self.a).requires_grad_(False)
        for model, wanted in zip((self.a, self.b), script.compiled):
            if compiled and wanted:
                model.compile(keep_grads=True)
        make = OPTIMIZERS[script.optimizer]
        first = [*self.a.parameters(), *self.layer.parameters()]
        if script.one_optimizer:
            self.optimizers = [make([*first, *self.b.parameters()])]
        else:
            self.optimizers = [make(first), make(self.b.parameters())]
        self.loss, self.held, self.losses, self.saved, self.seen = None, None, [], None, []

    def batch(self, n: int = 5):
        return bt.tensor(self.rng.standard_normal((n, 4))), bt.tensor(self.rng.integers(0, 3, n))

    def add(self, loss) -> None:
        self.loss = loss if self.loss is None else self.loss + loss

    def see(self, *values) -> None:
        self.seen += [v.detach().numpy().copy() if isinstance(v, bt.Tensor) else v for v in values]


def action(function):
    """Register an action under its name."""
    ACTIONS[function.__name__] = function
    return function


def _forward(name: str, loss: Callable) -> None:
    """An action that adds loss(world, x, y) to the loss."""

    def act(w: World) -> None:
        w.add(loss(w, *w.batch()))

    ACTIONS[name] = act


def _held(w: World, x, y):
    w.held = w.a(x)
    return F.cross_entropy(w.held, y)


def _written(w: World, x, y):
    logits = w.a(x) * 1.0
    logits.add_(1.0)
    logits[:, 0] = logits[:, 1]
    return F.cross_entropy(logits, y)


def _selected(w: World, x, y):
    logits, rows = w.a(x), bt.tensor([0, 2, 2])
    return F.cross_entropy(logits[rows], y[rows]) + (logits * (y > 0).unsqueeze(1)).mean()


def _distilled(w: World, x, y):
    with bt.no_grad():
        target = F.softmax(w.average(x), -1)
    return F.kl_div(F.log_softmax(w.a(x), -1), target, reduction="batchmean")


def _pseudo_labels(w: World, x, y):
    with bt.no_grad():
        labels = w.a(x).argmax(1)
    return w.a(x * 1.1, labels)


def _input_penalty(w: World, x, y):
    x.requires_grad_()
    (grad,) = bt.autograd.grad(w.a(x, y), x, create_graph=True)
    return grad.square().sum()


def _retained(w: World, x, y):
    w.held = w.a(x)
    w.held.retain_grad()
    return F.cross_entropy(w.held, y)


def _hooked(w: World, x, y):
    logits = w.a(x)
    logits.register_hook(lambda grad: grad * 2.0)
    return F.cross_entropy(logits, y)


FORWARD = {
    "forward_a": lambda w, x, y: w.a(x, y),
    "forward_b": lambda w, x, y: w.b(x, y) * 0.5,
    "forward_short": lambda w, x, y: w.a(x[:3], y[:3]),
    "forward_behind_eager": lambda w, x, y: w.a(w.layer(x).tanh(), y),
    "forward_chain": lambda w, x, y: w.a(bt.cat([w.b(x), x[:, :1]], 1), y),
    "forward_chain_detached": lambda w, x, y: w.a(bt.cat([w.b(x).detach(), x[:, :1]], 1), y) + w.b(x).mean(),
    "forward_best": lambda w, x, y: w.a(x).max(1).values.mean(),
    "weights_in_loss": lambda w, x, y: sum(p.abs().sum() for p in w.a.parameters()) * 1e-3,
    "attribute_in_loss": lambda w, x, y: 0.0 if w.a.hidden_mean is None else w.a.hidden_mean * 0.1,
    "forward_held": _held,
    "forward_written": _written,
    "forward_selected": _selected,
    "forward_distilled": _distilled,
    "forward_pseudo_labels": _pseudo_labels,
    "forward_input_penalty": _input_penalty,
    "forward_retained": _retained,
    "forward_hooked": _hooked,
}
for _name, _loss in FORWARD.items():
    _forward(_name, _loss)


@action
def backward(w):
    if isinstance(w.loss, bt.Tensor):
        w.loss.backward()
        w.losses.append(w.loss)
    w.loss = None


@action
def backward_twice(w):
    if isinstance(w.loss, bt.Tensor):
        w.loss.backward(retain_graph=True)
        w.loss.backward()
    w.loss = None


@action
def backward_and_keep(w):
    if isinstance(w.loss, bt.Tensor):
        w.loss.backward(retain_graph=True)


@action
def backward_of_logits(w):
    logits = w.a(w.batch()[0])
    logits.backward(bt.full(logits.shape, 0.1, dtype=bt.float64))


@action
def grad_of_loss(w):
    if isinstance(w.loss, bt.Tensor):
        w.see(*bt.autograd.grad(w.loss, [w.a.head.weight], retain_graph=True, allow_unused=True))


@action
def step(w):
    for optimizer in w.optimizers:
        optimizer.step()


@action
def step_of_the_last(w):
    w.optimizers[-1].step()


@action
def zero_grad(w):
    for optimizer in w.optimizers:
        optimizer.zero_grad()


@action
def zero_grad_to_zeros(w):
    w.optimizers[0].zero_grad(set_to_none=False)


@action
def zero_grad_of_module(w):
    w.a.zero_grad()


@action
def zero_grads_by_hand(w):
    for p in w.a.parameters():
        if p.grad is not None:
            p.grad.zero_()


@action
def clip_norm(w):
    w.see(nn.utils.clip_grad_norm_(w.a.parameters(), 0.1))


@action
def clip_norm_of_both(w):
    nn.utils.clip_grad_norm_([*w.a.parameters(), *w.b.parameters()], 0.2)


@action
def clip_value(w):
    nn.utils.clip_grad_value_(w.a.parameters(), 0.01)


@action
def change_grads(w):
    if w.a.head.weight.grad is not None:
        w.a.head.weight.grad.mul_(0.5)
        w.a.head.weight.grad = w.a.head.weight.grad + w.a.head.weight.detach() * 0.1
    w.a.fc.bias.grad = None


@action
def set_grad(w):
    w.a.head.bias.grad = bt.ones(3, dtype=bt.float64)


@action
def update_by_hand(w):
    with bt.no_grad():
        for p in w.a.parameters():
            if p.grad is not None:
                p -= 0.01 * p.grad
                p.grad = None


@action
def write_weight(w):
    with bt.no_grad():
        w.a.head.weight.mul_(0.9)


@action
def replace_data(w):
    w.a.head.bias.data = w.a.head.bias.data * 0.9


@action
def average_weights(w):
    with bt.no_grad():
        for p, q in zip(w.average.parameters(), w.a.parameters()):
            p.lerp_(q, 0.1)


@action
def change_rates(w):
    for optimizer in w.optimizers:
        for group in optimizer.param_groups:
            group["lr"] *= 0.97


@action
def freeze(w):
    w.a.fc.requires_grad_(False)


@action
def thaw(w):
    w.a.fc.requires_grad_(True)


@action
def toggle_scale(w):
    w.a.scale = 1.5 if w.a.scale == 1.0 else 1.0


@action
def cool(w):
    w.a.scale *= 0.9


@action
def cool_for_a_call(w):
    before, w.a.scale = w.a.scale, [0.3, 0.6, 0.9][len(w.seen) % 3]
    w.add(w.a(*w.batch()) * w.a.scale)
    w.a.scale = before


@action
def toggle_mode(w):
    w.a.train(not w.a.training)


@action
def evaluate(w):
    with bt.no_grad():
        w.see(w.a(w.batch(4)[0]).sum())


@action
def save_state(w):
    w.saved = {k: v.clone() for k, v in w.a.state_dict().items()}, copy.deepcopy(w.optimizers[0].state_dict())


@action
def load_state(w):
    if w.saved is not None:
        w.a.load_state_dict(w.saved[0])
        w.optimizers[0].load_state_dict(w.saved[1])


@action
def new_optimizer(w):
    w.optimizers[0] = SGD(w.a.parameters(), lr=0.05)


@action
def tie(w):
    w.b.head.bias = w.a.head.bias


@action
def copy_model(w):
    w.see(copy.deepcopy(w.a)(*w.batch()))


@action
def flush(w):
    nova.flush()


@action
def see_loss(w):
    if isinstance(w.loss, bt.Tensor):
        w.see(w.loss.item())


@action
def see_losses(w):
    w.see(*w.losses)
    w.losses = []


@action
def see_grads(w):
    w.see(w.a.fc.weight.grad, w.b.head.bias.grad)


@action
def see_weight(w):
    w.see(w.a.head.weight)


@action
def see_held(w):
    if w.held is not None:
        w.see(w.held, w.held.grad)


@action
def write_held(w):
    if w.held is not None:
        w.held.detach()[1:].mul_(0.5)
        w.see(w.held.sum())


CORES = (
    "zero_grad forward_a backward step",
    "forward_a backward step zero_grad",
    "forward_held zero_grad backward clip_norm step",
    "forward_a forward_b backward step zero_grad",
    "zero_grad forward_behind_eager backward step",
    "forward_chain backward step zero_grad",
    "forward_a backward forward_short backward step zero_grad",
    "forward_distilled backward step zero_grad average_weights",
    "zero_grad forward_input_penalty backward step",
)


def random_script(seed: int) -> Script:
    """A training loop or two, with a few other actions somewhere in it."""
    rng = random.Random(seed)
    parts = []
    for _ in range(rng.randint(1, 3)):
        actions = rng.choice(CORES).split()
        for _ in range(rng.randint(0, 5)):
            actions.insert(rng.randint(0, len(actions)), rng.choice(list(ACTIONS)))
        parts.append((actions, rng.randint(3, 5)))
    if rng.random() < 0.5:
        parts.append((parts[0][0], 2))
    return Script(
        parts,
        rng.choice(list(OPTIMIZERS)),
        rng.choice([0.0, 0.0, 0.3]),
        rng.random() < 0.4,
        rng.random() < 0.5,
        (True, rng.random() < 0.6),
    )


def run(script: Script, seed: int, compiled: bool) -> list:
    """What the actions saw, an error if there was one, and all state at the end."""
    world = World(script, seed, compiled)
    try:
        for actions, repetitions in script.parts:
            for name in actions * repetitions:
                ACTIONS[name](world)
    except (RuntimeError, ValueError) as error:
        return [
            *world.seen,
            type(error),
            "changed in place" in str(error),
        ]  # which of several is found first may differ
    nova.flush()
    state = [*world.a.state_dict().values(), *world.b.state_dict().values(), *world.layer.state_dict().values()]
    return world.seen + [t.numpy().copy() for t in state]
