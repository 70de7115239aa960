"""Scenarios about what forward reads that is neither argument nor attribute: globals, what lists hide, its own code."""

from __future__ import annotations

import itertools
import types

from loops import Net
from replay_attributes import Head
from replay_support import collector

import blutrain as bt
from blutrain import nn
from blutrain.nn import functional as F

VARIABLES, scenario = collector()
SCALE, OFFSET, SWITCH, SHAPES = 1.0, None, [True], {}


class Global(Head):
    def change(self, hidden):
        return self.shifted(hidden * SCALE)

    def shifted(self, hidden):
        return hidden + OFFSET


@scenario(cls=Global)
def globals_that_change(run):
    """Twice the same is no promise: a value that changes later is seen, too. A tensor there is an operand."""
    global SCALE, OFFSET
    for i, (x, y) in enumerate(run.batches(12)):
        SCALE, OFFSET = 1.0 + i // 4, bt.full((8,), float(i), dtype=bt.float64)
        loss = run.model(x, y)
        run.step(loss)
        run.see(loss)


class Hidden(Head):
    """Modules in a plain list are no sub-modules, but their mode counts."""

    def __init__(self):
        super().__init__()
        self.drops = [nn.Dropout(0.5)]

    def change(self, hidden):
        return self.drops[0](hidden)


@scenario(cls=Hidden)
def modes_of_modules_in_a_list(run):
    for i, (x, y) in enumerate(run.batches(12)):
        run.model.drops[0].train(i % 6 < 3)
        loss = run.model(x, y)
        run.step(loss)
        run.see(loss)


class Thrown(Head):
    def change(self, hidden):
        SWITCH[0] = not SWITCH[0]
        return hidden * (2.0 if SWITCH[0] else 3.0)


@scenario("effects", cls=Thrown)
def a_switch_that_forward_throws(run):
    SWITCH[0] = True
    for x, y in run.batches(12):
        loss = run.model(x, y)
        run.step(loss)
        run.see(loss)


class Cached(Head):
    def change(self, hidden):
        if hidden.shape not in SHAPES:
            SHAPES[hidden.shape] = 1.0 + len(SHAPES)
        return hidden * SHAPES[hidden.shape]


@scenario(cls=Cached)
def a_table_that_forward_fills(run):
    SHAPES.clear()
    for x, y in itertools.chain(run.batches(4), run.batches(4, rows=3), run.batches(2)):
        loss = run.model(x, y)
        run.step(loss)
        run.see(loss, len(SHAPES))


class Follower(Head):
    """Reads a gradient: that of the step before, kept by accumulation."""

    def change(self, hidden):
        grad = self.fc.weight.grad
        return hidden if grad is None else hidden * (1.0 + grad.sum())


@scenario("training", cls=Follower)
def gradients_read_in_forward(run):
    for i, (x, y) in enumerate(run.batches(8)):
        loss = run.model(x, y)
        loss.backward()
        run.see(loss)
        if i % 2:
            run.opt.step()
            run.opt.zero_grad()


@scenario()
def another_forward_on_the_instance(run):
    for i, (x, y) in enumerate(run.batches(10)):
        if i == 4:
            run.model.norm.forward = lambda hidden: hidden.tanh()
        if i == 7:
            del run.model.norm.forward
        loss = run.model(x, y)
        run.step(loss)
        run.see(loss)


@scenario()
def another_forward_on_the_class(run):
    original = nn.GELU.forward
    run.model.act = nn.GELU()
    Net_forward = Net.forward
    Net.forward = lambda self, x, y: F.cross_entropy(self.head(self.act(self.fc(x))), y)
    try:
        for i, (x, y) in enumerate(run.batches(10)):
            if i == 4:
                nn.GELU.forward = lambda self, hidden: hidden.tanh()
            if i == 7:
                nn.GELU.forward = original
            loss = run.model(x, y)
            run.step(loss)
            run.see(loss)
    finally:
        nn.GELU.forward, Net.forward = original, Net_forward


# -------------------------------------------------------------------- methods


class Helping(Head):
    def change(self, hidden):
        return self.help(hidden)

    def help(self, hidden):
        return hidden * 2.0


@scenario(cls=Helping)
def another_method_on_the_instance_and_on_the_class(run):
    original = Helping.help
    try:
        for i, (x, y) in enumerate(run.batches(14)):
            if i == 4:
                run.model.help = types.MethodType(lambda self, hidden: hidden.tanh(), run.model)
            if i == 7:
                del run.model.help
            if i == 10:
                Helping.help = lambda self, hidden: hidden.sigmoid()
            loss = run.model(x, y)
            run.step(loss)
            run.see(loss)
    finally:
        Helping.help = original


class Stateful(Head):
    """Carries what it made to the next call, as recurrent models do."""

    def __init__(self):
        super().__init__()
        self.last = None

    def change(self, hidden):
        hidden = hidden if self.last is None else hidden + self.last
        self.last = hidden.detach()
        return hidden


@scenario(cls=Stateful)
def a_tensor_in_an_attribute_that_was_none(run):
    for i, (x, y) in enumerate(run.batches(12)):
        if i % 5 == 4:
            run.model.last = None
        loss = run.model(x, y)
        run.step(loss)
        run.see(loss)
    if run.model._compiled is not None:
        assert len(run.model._compiled.programs) <= 3


class Averaging(Head):
    """Sets its buffers to other tensors rather than change them in place."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", bt.zeros(8, dtype=bt.float64))
        self.register_buffer("count", bt.tensor(0))

    def change(self, hidden):
        if not self.training:
            return hidden - self.mean
        self.count += 1
        mean = hidden.mean(0)
        self.mean = 0.9 * self.mean + 0.1 * mean.detach()
        return hidden - mean


@scenario(cls=Averaging)
def buffers_that_forward_sets(run):
    saved = None
    for i, (x, y) in enumerate(run.batches(16)):
        loss = run.model(x, y)
        run.step(loss)
        run.see(loss)
        if i % 5 == 4:
            with bt.no_grad():
                run.see(run.model.eval()(x, y), run.model.mean.sum(), run.model.count)
            run.model.train()
        if i == 6:
            saved = {k: v.clone() for k, v in run.model.state_dict().items()}
        if i == 9:
            run.model.load_state_dict(saved)
        if i == 12:
            run.model.mean = bt.ones(8, dtype=bt.float64)
    if run.model._compiled is not None:
        assert len(run.model._compiled.programs) <= 4


class Detaching(Averaging):
    """Reads what it carries by an alias only."""

    def __init__(self):
        super().__init__()
        self.offset = None

    def change(self, hidden):
        offset = 0.0 if self.offset is None else self.offset.detach()
        self.mean, self.offset = (hidden + self.mean.detach()).mean(0), hidden.tanh()
        return hidden * self.mean + offset


@scenario(cls=Detaching)
def tensors_that_forward_sets_and_detaches(run):
    for x, y in run.batches(10):
        loss = run.model(x, y)
        run.step(loss)
        run.see(loss, run.model.mean.detach().sum())


class TwiceCalled(Net):
    def __init__(self):
        super().__init__()
        self.register_buffer("last", bt.zeros(7, 8, dtype=bt.float64))

    def forward(self, x):
        hidden = self.fc(x) + self.last
        self.last = hidden.detach().tanh()
        return self.head(hidden).square().mean()


@scenario(cls=TwiceCalled)
def buffers_that_several_calls_of_a_step_set(run):
    for x, _ in run.batches(10):
        loss = run.model(x) + run.model(x * 0.5)
        run.step(loss)
        run.see(loss, run.model.last.sum())
