"""Scenarios about several tapes: a compiled model on what eager layers made, inputs that want gradients, and values that
are changed between forward and backward.
"""

from __future__ import annotations

from loops import Net
from replay_support import collector

import blutrain as bt
from blutrain import nn, nova
from blutrain.nn import functional as F

TAPES, scenario = collector()


class Shifted(Net):
    """Adds a parameter to its input: no derivative reads the input."""

    def __init__(self, **options):
        super().__init__(**options)
        self.shift = nn.Parameter(bt.ones(6))

    def forward(self, x, targets=None):
        return x + self.shift


def generator(run):
    """Eager layers whose result the model gets; `see` their gradients, and drop all."""
    bt.manual_seed(7)
    made = nn.Sequential(nn.Linear(6, 6), nn.Tanh()).to(bt.float64)

    def see():
        run.see(
            *[None if p.grad is None else p.grad.abs().sum() for p in (*made.parameters(), *run.model.parameters())]
        )
        made.zero_grad()
        run.opt.zero_grad()

    return made, see


# -------------------------------------------------------------------- inputs that want gradients


@scenario()
def gradient_of_the_input_after_a_read(run):
    for x, y in run.batches(7):
        x.requires_grad_()
        loss = run.model(x, y)
        run.see(loss)
        run.step(loss)
        run.see(x.grad.sum())


@scenario(cls=Shifted)
def gradient_of_an_input_that_is_not_kept_after_a_read(run):
    before = None
    for x, _ in run.batches(7):
        x.requires_grad_()
        shifted = run.model(x)
        run.see(shifted.detach().sum())
        run.step((shifted * 2.0).sum())
        run.see(x.grad.sum(), before is None or before.grad.sum())
        before = x


@scenario()
def gradient_of_one_input_adds_up_after_reads(run):
    x, y = next(run.batches())
    x.requires_grad_()
    for _ in range(7):
        loss = run.model(x, y)
        run.see(loss)
        loss.backward()
        run.opt.zero_grad()
        run.see(x.grad.sum())


@scenario()
def gradients_that_can_be_differentiated(run):
    for x, y in run.batches(7):
        loss = run.model(x, y)
        loss.backward(create_graph=True)
        penalty = sum((p.grad**2).sum() for p in run.model.parameters())
        run.opt.zero_grad()
        run.step(run.model(x, y) + penalty)


# -------------------------------------------------------------------- what eager layers made


@scenario()
def two_losses_through_eager_layers(run):
    made, see = generator(run)
    for x, y in run.batches(7):
        logits = run.model(made(x))
        second = (logits**2).mean()
        F.cross_entropy(logits, y).backward(retain_graph=True)
        second.backward()
        see()


@scenario()
def gradients_taken_through_eager_layers(run):
    made, see = generator(run)
    for x, y in run.batches(7):
        x.requires_grad_()
        fake = made(x)
        for of in (fake, x):
            (slope,) = bt.autograd.grad(run.model(fake, y), of, retain_graph=True)
            run.see(slope.abs().sum())
        see()


@scenario()
def gradient_penalty_on_what_eager_layers_made(run):
    made, see = generator(run)
    for x, y in run.batches(7):
        fake = made(x)
        loss = run.model(fake, y)
        (slope,) = bt.autograd.grad(loss, fake, create_graph=True)
        run.step(loss + ((slope**2).sum(1) - 1).square().mean())
        see()


@scenario()
def gradients_that_can_be_differentiated_through_eager_layers(run):
    made, see = generator(run)
    for x, y in run.batches(7):
        run.model(made(x), y).backward(create_graph=True)
        penalty = (made[0].weight.grad ** 2).sum()
        see()
        penalty.backward()
        see()


@scenario()
def backward_is_new_behind_known_calls_with_eager_layers(run):
    made, see = generator(run)
    for i, (x, y) in enumerate(run.batches(9)):
        loss = run.model(made(x), y)
        if i < 4:
            nova.flush()
        else:
            loss.backward()
            see()


# -------------------------------------------------------------------- changed between forward and backward


def refuses(call) -> bool:
    """Whether `call` says that something its gradient needs was changed."""
    try:
        call()
    except RuntimeError as error:
        assert "changed in place" in str(error), error
        return True
    return False


CHANGES = {
    "input": lambda run, x, y, logits: x.zero_(),
    "part of the input": lambda run, x, y, logits: x[0].zero_(),
    "targets": lambda run, x, y, logits: y.zero_(),
    "weight": lambda run, x, y, logits: run.model.head.weight.mul_(0.5),
    "alias of a weight": lambda run, x, y, logits: run.model.head.weight.detach().mul_(0.5),
    "state": lambda run, x, y, logits: run.model.load_state_dict(run.model.state_dict()),
    "logits": lambda run, x, y, logits: logits.mul_(0.5),
    "bias": lambda run, x, y, logits: run.model.head.bias.mul_(0.5),
    "weight without history": lambda run, x, y, logits: run.model.head.weight.data.mul_(0.5),
}


def change_between(run, what: str, read: bool) -> None:
    for x, y in run.batches(7):
        logits = run.model(x)
        loss = F.cross_entropy(logits, y)
        if read:
            run.see(loss)
        with bt.no_grad():
            CHANGES[what](run, x, y, logits)
        run.see(refuses(loss.backward), logits.detach().sum())
        run.opt.step()
        run.opt.zero_grad()


def _enter(what: str, read: bool) -> None:
    def function(run):
        change_between(run, what, read)

    function.__name__ = f"{what.replace(' ', '_')}_changed_before_backward" + "_after_a_read" * read
    scenario()(function)


for _what in CHANGES:
    for _read in (False, True):
        _enter(_what, _read)


@scenario()
def alias_of_the_logits_changed_before_backward(run):
    for x, y in run.batches(7):
        logits = run.model(x)
        alias, loss = logits.detach(), F.cross_entropy(logits, y)
        run.see(loss)
        alias.mul_(0.5)
        run.see(refuses(loss.backward), logits.detach().sum())


@scenario()
def frozen_between_forward_and_backward(run):
    for i, (x, y) in enumerate(run.batches(8)):
        loss = run.model(x, y)
        if i in (3, 5):
            run.see(loss)
        if i > 2:
            run.model.fc.requires_grad_(False)
        loss.backward()
        run.see(run.model.fc.weight.grad.sum())
        run.opt.step()
        run.opt.zero_grad()
        run.model.fc.requires_grad_(True)


@scenario()
def frozen_for_forward_only(run):
    for i, (x, y) in enumerate(run.batches(8)):
        run.model.fc.requires_grad_(i < 2)
        loss = run.model(x.requires_grad_(), y)
        if i % 3 == 0:
            run.see(loss)
        run.model.fc.requires_grad_(True)
        loss.backward()
        run.see(i < 2 or run.model.fc.weight.grad is None, x.grad.sum())
        run.opt.step()
        run.opt.zero_grad()


@scenario()
def losses_added_up_over_reads_and_eager_layers(run):
    """What is recorded behind a known call leads on to a loss whose tape is not built yet."""
    before = nn.Linear(6, 6).double()
    data = run.batches(12)
    for (x, y), (other, labels) in zip(data, data):
        loss = run.model(before(x), y)
        run.see(loss)
        loss = loss + run.model(before(other), labels)
        run.see(loss)
        run.step(loss)
        run.see(before.weight.grad.sum())
        before.zero_grad()


@scenario()
def stale_graph_is_built_beside_a_fresh_one(run):
    """Only what was computed before a parameter changed says so."""
    for x, y in run.batches(8):
        stale = run.model(x, y)
        run.see(stale)
        with bt.no_grad():
            run.model.head.weight.mul_(0.9)
        hidden = bt.ones(3, 8, dtype=bt.float64, requires_grad=True)
        fresh = F.linear(hidden, run.model.head.weight).square().mean()
        later = stale * 2.0
        run.step(fresh)
        run.see(hidden.grad.sum(), refuses(later.backward))


class Transposed(Net):
    """Products with views of a parameter and of an argument, which matmul keeps for its derivative."""

    def forward(self, x, targets=None):
        weight = self.fc.weight.t()
        hidden = (x @ weight).tanh() + x.t()[:1].t()
        return F.cross_entropy((hidden @ weight.t() @ weight) @ self.head.weight.t(), targets)


@scenario(cls=Transposed)
def loss_of_views_read_before_backward(run):
    """The parameters, and the argument, were written before: by their initialization, and batch by batch."""
    batch = bt.zeros(7, 6, dtype=bt.float64)
    for i, (x, y) in enumerate(run.batches(9)):
        batch.copy_(x)
        loss = run.model(batch, y)
        run.see(loss)
        if i % 4 == 3:
            with bt.no_grad():
                run.model.head.weight.mul_(0.9)
            run.see(refuses(loss.backward))
            run.opt.zero_grad()
        else:
            run.step(loss)
