"""Scenarios of floats that change at each call: cooled, annealed, ramped up. Those that only scale are one program."""

from __future__ import annotations

import math
import queue
from types import SimpleNamespace

from loops import Net
from replay_attributes import Head
from replay_support import collector, programs

import blutrain as bt
from blutrain import nn
from blutrain.nn import functional as F

FLOATS, scenario = collector()
CALLS = queue.SimpleQueue()  # guards do not see what it holds


class Cooling(Head):
    """All ways to read one number; `bodies` counts how often this ran."""

    temperature, config, table = 1.0, None, None

    def change(self, hidden):
        CALLS.put(None)
        if self.table is not None:
            hidden = hidden * self.table["scales"][0]
        if self.config is not None:
            hidden = hidden / self.config.temperature
        return hidden.tanh() / self.temperature + hidden * math.exp(-self.temperature) - (1 - self.temperature)


def bodies() -> int:
    """How often forward ran since the last look."""
    number = CALLS.qsize()
    for _ in range(number):
        CALLS.get()
    return number


def _enter(what: str, change) -> None:
    @scenario(cls=Cooling)
    def function(run):
        bodies()
        run.model.config, run.model.table = SimpleNamespace(temperature=1.0), {"scales": [1.0]}
        for i, (x, y) in enumerate(run.batches(24)):
            change(run.model, 0.95 ** min(i, 8))
            loss = run.model(x, y)
            run.step(loss)
            run.see(loss)
        if run.model._compiled is not None:
            assert programs(run.model) == 2
            assert bodies() <= 13  # nine values, those that are verified, and what the last value needs

    FLOATS[f"{what}_that_cools"] = FLOATS.pop("function")


_enter("attribute", lambda model, v: setattr(model, "temperature", v))
_enter("attribute_of_the_class", lambda model, v: setattr(Cooling, "temperature", v))
_enter("part_of_a_dictionary", lambda model, v: model.table.update(scales=[v]))
_enter("attribute_of_an_object", lambda model, v: setattr(model.config, "temperature", v))


class Weighted(Net):
    def forward(self, x, y, weight=1.0, factors=()):
        CALLS.put(None)
        loss = super().forward(x, y) * weight
        for factor in factors:
            loss = loss + factor * self.head.weight.square().sum()
        return loss


@scenario(cls=Weighted, dropout=0.5)
def argument_that_is_annealed(run):
    """With dropout: the numbers of random draws are scalars of the same call."""
    bodies()
    for i, (x, y) in enumerate(run.batches(20)):
        loss = run.model(x, y, weight=0.9 ** min(i, 6), factors=[0.1 * min(i, 6), 0.5])
        run.step(loss)
        run.see(loss)
    if run.model._compiled is not None:
        assert programs(run.model) == 2 and bodies() <= 12


class Branching(Head):
    """The number decides what is done, too."""

    progress = 0.0

    def change(self, hidden):
        hidden = hidden * (1.0 + self.progress)
        if self.progress < 0.45:
            hidden = hidden.tanh()
        return hidden.detach() if self.progress > 0.75 else hidden


@scenario(cls=Branching)
def float_that_decides(run):
    for i, (x, y) in enumerate(run.batches(24)):
        run.model.progress = min(i, 12) / 12 if i < 18 else 0.25 * (i % 4)
        loss = run.model(x, y)
        run.step(loss)
        run.see(loss)


class Clamping(Head):
    """A float that is part of an operation, one in the result, and one that is set."""

    bound = 1.0

    def change(self, hidden):
        self.half = self.bound / 2
        return hidden.clamp(max=self.bound)

    def forward(self, x, y):
        return super().forward(x, y), self.bound * 2


@scenario(cls=Clamping)
def floats_that_cannot_be_scalars(run):
    """A program each, as for other values."""
    for i, (x, y) in enumerate(run.batches(12)):
        run.model.bound = 0.9 ** min(i, 5)
        loss, double = run.model(x, y)
        run.step(loss)
        run.see(loss, double, run.model.half)


class Reversal(bt.autograd.Function):
    @staticmethod
    def forward(ctx, x, strength):
        ctx.strength = strength
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return -ctx.strength * grad, None


class Adversarial(Head):
    strength = 0.0

    def change(self, hidden):
        return Reversal.apply(hidden, self.strength) + hidden * 0.5


@scenario(cls=Adversarial)
def strength_of_a_gradient_reversal_that_grows(run):
    """Only backward uses the number."""
    for i, (x, y) in enumerate(run.batches(24)):
        run.model.strength = 2.0 / (1.0 + math.exp(-0.3 * (i % 5))) - 1.0
        loss = run.model(x, y)
        run.see(loss)
        run.step(loss)


class Forgetting(Head):
    """Changes its own number."""

    scale = 1.0

    def change(self, hidden):
        self.scale *= 0.9
        return hidden * self.scale


@scenario("effects", cls=Forgetting)
def float_that_forward_changes(run):
    for x, y in run.batches(16):
        loss = run.model(x, y)
        run.step(loss)
        run.see(loss, run.model.scale)
    if run.model._compiled is not None:
        assert programs(run.model) <= 6


class Annealed(nn.Module):
    def __init__(self):
        super().__init__()
        self.mean, self.deviation = nn.Linear(6, 4), nn.Linear(6, 4)

    def forward(self, x, beta):
        mean, log = self.mean(x), self.deviation(x)
        noise = bt.randn(mean.shape, dtype=bt.float64)
        return (mean + noise * (log * 0.5).exp()).square().mean() - beta * (1 + log - mean.square() - log.exp()).mean()


@scenario(cls=Annealed)
def weights_of_a_divergence_with_evaluation_and_accumulation(run):
    beta = 0.0
    for i, (x, _) in enumerate(run.batches(24)):
        loss = run.model(x, beta)
        loss.backward()
        if i % 2:
            run.opt.step()
            run.opt.zero_grad()
            beta = min(0.5, beta + 0.1)
        if i % 5 == 4:
            with bt.no_grad():
                run.see(F.relu(run.model(x, beta)))
        run.see(loss)
