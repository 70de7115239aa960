"""Scenarios about what forward reads and writes besides its tensors: arguments, attributes, state of the process."""

from __future__ import annotations

import random
from collections import OrderedDict, namedtuple
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
from loops import Net
from replay_support import collector, programs

import blutrain as bt
from blutrain import nn
from blutrain.nn import functional as F

ATTRIBUTES, scenario = collector()


class Head(Net):
    """A model that changes its hidden values before the head; `change` is what the scenarios vary."""

    def change(self, hidden):
        return hidden

    def forward(self, x, y):
        return F.cross_entropy(self.head(self.change(F.gelu(self.fc(x)))), y)


# -------------------------------------------------------------------- arguments


class Arguments(Net):
    def forward(self, *inputs, flag=1, scales=(), batch=None):
        x, y = (batch.x, batch.y) if batch is not None else inputs
        hidden = F.gelu(self.fc(x))
        hidden = hidden * (2.0 if flag is True else 3.0 if isinstance(flag, float) else 1.0)
        for scale in scales:
            hidden = hidden * scale
        return F.cross_entropy(self.head(hidden), y)


@scenario(cls=Arguments)
def one_true_and_one_point_zero_differ(run):
    for i, (x, y) in enumerate(run.batches(9)):
        run.step(run.model(x, y, flag=[1, True, 1.0][i % 3]))


@scenario(cls=Arguments)
def list_of_other_length(run):
    for i, (x, y) in enumerate(run.batches(9)):
        run.step(run.model(x, y, scales=[0.5] * (i % 3)))


@dataclass
class Batch:
    x: bt.Tensor
    y: bt.Tensor


@scenario(cls=Arguments)
def dataclass_of_tensors(run):
    for x, y in run.batches():
        run.step(run.model(batch=Batch(x, y)))


@scenario(cls=Arguments)
def namespace_of_tensors(run):
    batch = SimpleNamespace()
    for batch.x, batch.y in run.batches():
        run.step(run.model(batch=batch))


class Record:
    pass


@scenario("argument", cls=Arguments)
def object_of_tensors(run):
    batch = Record()
    for batch.x, batch.y in run.batches():
        run.step(run.model(batch=batch))


class FromArray(Head):
    def forward(self, x, y):
        return super().forward(bt.tensor(x), y)


@scenario("argument", cls=FromArray)
def array_as_argument(run):
    for x, y in run.batches():
        run.step(run.model(x.numpy(), y))


class Pair(Net):
    def forward(self, a, b):
        return (self.head(F.gelu(self.fc(a))) * self.head(self.fc(b))).mean()


@scenario(cls=Pair)
def one_tensor_twice_or_two(run):
    for i, (x, _) in enumerate(run.batches(8)):
        run.step(run.model(x, x if i % 2 else x * 2.0))


@scenario()
def keywords_in_another_order(run):
    for i, (x, y) in enumerate(run.batches(8)):
        run.step(run.model(x=x, targets=y) if i % 2 else run.model(targets=y, x=x))


Named = namedtuple("Named", "loss extra")


class Structured(Net):
    def forward(self, x):
        out = self.fc(x)
        return OrderedDict(out=out), Named(out.square().mean(), 3), Batch(out.mean(), [out]), out, x, None


@scenario(cls=Structured)
def structure_of_the_result(run):
    for x, _ in run.batches():
        ordered, named, batch, out, same, nothing = run.model(x)
        run.see(type(ordered).__name__, type(named).__name__, type(batch).__name__, named.extra, nothing)
        run.see(ordered["out"] is out, batch.y[0] is out, same is x)
        run.step(ordered["out"].mean() + named.loss + batch.x)


class Output(OrderedDict):
    """What libraries of models return: entries are attributes, too. It does not like to be asked for what is not there."""

    def __init__(self, **entries):
        super().__init__(**entries)
        for name, value in entries.items():
            super().__setattr__(name, value)

    def __getattr__(self, name):
        return self[name]


class Libraries(Net):
    def forward(self, batch):
        logits = super().forward(batch["x"] * batch.scale)
        loss = F.cross_entropy(logits, batch["y"])
        return Output(loss=loss, logits=logits), SimpleNamespace(logits=logits, parts={"loss": [loss]})


@scenario(cls=Libraries)
def entries_that_are_attributes(run):
    seen = []
    for i, (x, y) in enumerate(run.batches(8)):
        batch = Output(x=x, y=y)
        batch.scale = 1.0 + i // 4
        output, namespace = run.model(batch)
        run.see(output.loss is output["loss"], namespace.parts["loss"][0] is output.loss, list(output))
        run.step(output.loss)
        seen.append(output.logits.sum() + namespace.logits.mean())
    run.see(*seen)


# -------------------------------------------------------------------- attributes that forward reads


class Scaled(Head):
    scale = 1.0

    def change(self, hidden):
        return hidden * self.scale * self.config.scale * getattr(self, "late", 1.0) * self.scales[-1]

    def __init__(self):
        super().__init__()
        self.config, self.scales = SimpleNamespace(scale=1.0), [1.0]


@scenario(cls=Scaled)
def values_that_forward_reads_change(run):
    for i, (x, y) in enumerate(run.batches(16)):
        if i == 3:
            run.model.scale = 2.0
        if i == 6:
            run.model.config.scale = 0.5
        if i == 9:
            run.model.late = 1.5
        if i == 12:
            run.model.scales.append(0.7)
        run.step(run.model(x, y))


class ByClass(Scaled):
    scale = 1.0


@scenario(cls=ByClass)
def attribute_of_the_class_changes(run):
    for i, (x, y) in enumerate(run.batches(8)):
        ByClass.scale = 1.0 if i < 4 else 2.0
        run.step(run.model(x, y))


class Zero(Head):
    def __init__(self):
        super().__init__()
        self.zero = 0.0

    def forward(self, x, y):
        hidden = F.gelu(self.fc(x))
        return F.cross_entropy(self.head(hidden), y), (1.0 / bt.where(hidden > 1e9, hidden, self.zero)).sum()


@scenario(cls=Zero)
def zero_and_minus_zero_differ(run):
    for i, (x, y) in enumerate(run.batches(8)):
        run.model.zero = 0.0 if i % 2 else -0.0
        loss, infinite = run.model(x, y)
        run.see(infinite.item() > 0)
        run.step(loss)


class Masked(Head):
    def __init__(self):
        super().__init__()
        self.mask = bt.ones(8, dtype=bt.float64)

    def change(self, hidden):
        return hidden * self.mask


@scenario(cls=Masked)
def tensor_in_an_attribute_replaced(run):
    for i, (x, y) in enumerate(run.batches(9)):
        if i % 3 == 2:
            run.model.mask = run.model.mask * 0.5
        run.step(run.model(x, y))


class Shared(Head):
    """One layer under three names, called three times."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(6, 6)
        self.chain = nn.Sequential(self.first, nn.GELU(), self.first)

    def forward(self, x, y):
        return super().forward(self.chain(self.first(x)), y)


@scenario(cls=Shared)
def layer_shared_under_several_names(run):
    for x, y in run.batches():
        run.step(run.model(x, y))


@scenario()
def compiled_layers_inside_a_compiled_model(run):
    if run.compiled:
        run.model.fc.compile()
        run.model.head.compile()
    for x, y in run.batches():
        run.step(run.model(x, y))


@scenario()
def layer_shared_by_two_compiled_models(run):
    other = nn.Sequential(run.model.fc, nn.ReLU())
    if run.compiled:
        other.compile()
    for x, y in run.batches():
        run.step(run.model(x, y) + other(x).mean())


@scenario()
def bias_taken_away(run):
    for i, (x, y) in enumerate(run.batches()):
        if i == 3:
            run.model.head.bias = None
        run.step(run.model(x, y))


@scenario()
def layer_replaced(run):
    for i, (x, y) in enumerate(run.batches(8)):
        if i == 4:
            run.model.head = nn.Linear(8, 5).to(bt.float64)
            run.opt.add_param_group({"params": list(run.model.head.parameters())})
        run.step(run.model(x, y))


@scenario()
def layer_frozen_and_thawed(run):
    for i, (x, y) in enumerate(run.batches(12)):
        run.model.fc.requires_grad_(i % 4 < 2)
        run.step(run.model(x, y))


@scenario()
def parameter_frozen_and_thawed_by_its_attribute(run):
    for i, (x, y) in enumerate(run.batches(12)):
        run.model.fc.weight.requires_grad = i % 4 < 2
        run.step(run.model(x, y))


# -------------------------------------------------------------------- attributes that forward writes


class Counting(Head):
    def __init__(self):
        super().__init__()
        self.calls, self.odd, self.shape, self.features = 0, False, None, []

    def change(self, hidden):
        self.calls += 1
        return hidden


@scenario("effects", cls=Counting)
def calls_counted_by_forward(run):
    """Not a program for each number."""
    for x, y in run.batches(14):
        run.step(run.model(x, y))
    run.see(run.model.calls)
    if run.model._compiled is not None:
        assert programs(run.model) <= 6


class Toggling(Counting):
    def change(self, hidden):
        self.odd = not self.odd
        return hidden * (2.0 if self.odd else 1.0)


@scenario(cls=Toggling)
def flag_toggled_by_forward(run):
    for x, y in run.batches(9):
        run.step(run.model(x, y))
    run.see(run.model.odd)


class Noting(Counting):
    def change(self, hidden):
        self.shape, self.features = tuple(hidden.shape), [hidden, hidden.tanh()]
        return hidden


@scenario(cls=Noting)
def values_and_lists_of_tensors_set_by_forward(run):
    for x, y in run.batches():
        run.model.shape = None
        loss = run.model(x, y)
        run.see(run.model.shape)
        run.step(loss + 0.1 * run.model.features[0].square().mean())
        run.see(run.model.features[1].detach().sum())


class Recurrent(Head):
    def __init__(self):
        super().__init__()
        self.state = bt.zeros(7, 8, dtype=bt.float64)

    def change(self, hidden):
        hidden = hidden + 0.5 * self.state
        self.state = hidden.detach()
        return hidden


@scenario(cls=Recurrent)
def state_carried_in_an_attribute(run):
    for x, y in run.batches(8):
        loss = run.model(x, y)
        run.step(loss)
        run.see(loss)


# -------------------------------------------------------------------- what cannot be replayed


class Global(Head):
    kept: list = []

    def change(self, hidden):
        Global.kept.append(hidden.detach())
        return hidden


@scenario("escapes", cls=Global)
def alias_left_in_a_global(run):
    Global.kept = []
    for x, y in run.batches():
        run.step(run.model(x, y))
    run.see(*(k.sum() for k in Global.kept))


class Kept(Head):
    def forward(self, x, y):
        Global.kept.append(super().forward(x, y))
        return Global.kept[-1]


@scenario("escapes", cls=Kept)
def result_left_in_a_global(run):
    Global.kept = []
    for x, y in run.batches():
        run.step(run.model(x, y))
    run.see(*Global.kept)


class Randomized(Head):
    def change(self, hidden):
        return hidden * random.random() * float(np.random.rand())


@scenario("python_random", cls=Randomized)
def random_numbers_of_python(run):
    random.seed(0)
    np.random.seed(0)
    for x, y in run.batches():
        run.step(run.model(x, y))


class Constants(Head):
    def change(self, hidden):
        hidden = hidden.clone() * bt.tensor(2.0)
        hidden[:, 1] = 3.0
        return hidden


@scenario(cls=Constants)
def numbers_become_tensors(run):
    for x, y in run.batches():
        run.step(run.model(x, y))


class Picking(Head):
    places = (0, -1, 3)

    def change(self, hidden):
        hidden = hidden + hidden[:, [-1]] + hidden[:, list(self.places)].sum(1, keepdim=True)
        hidden[[0, 2]] = 0.5
        return hidden * hidden[[0, 1], [2, 3]].sum()


@scenario(cls=Picking)
def lists_of_numbers_as_indices(run):
    for i, (x, y) in enumerate(run.batches(9)):
        run.model.places = (0, -1, 3) if i < 4 else (2, 5)
        run.step(run.model(x, y))


class Lists(Head):
    def change(self, hidden):
        return hidden * bt.tensor([0.5] * 8)


@scenario("host_data", cls=Lists)
def lists_become_tensors(run):
    for x, y in run.batches():
        run.step(run.model(x, y))


class Selecting(Head):
    def change(self, hidden):
        return hidden + hidden[hidden > 0.5].sum()


@scenario("value_read", cls=Selecting)
def shape_depends_on_data(run):
    for x, y in run.batches():
        run.step(run.model(x, y))


# What user code reads of tensors that are there already: a buffer, a parameter, an argument.
READS = {
    "item_of_a_buffer": lambda m, x: m.factor.item(),
    "truth_of_a_parameter": lambda m, x: 2.0 if m.fc.bias.detach().tolist()[0] > 0.1 else 1.0,
    "array_of_an_argument": lambda m, x: float(x.numpy().sum()),
    "numpy_asarray_of_a_buffer": lambda m, x: float(np.asarray(m.factor)),
    "dlpack_of_a_buffer": lambda m, x: float(np.from_dlpack(m.factor)),
    "text_of_an_argument": lambda m, x: len(str(x)),
    "places_of_an_argument": lambda m, x: len((x > m.factor).nonzero()) + len(x.nonzero()),
    "elements_of_an_argument_by_a_mask": lambda m, x: x[m.mask].sum(),
}


class Reading(Head):
    read: str

    def __init__(self):
        super().__init__()
        self.register_buffer("factor", bt.tensor(1.0))
        self.mask = bt.tensor([True] * 7)

    def forward(self, x, y):
        return F.cross_entropy(self.head(F.gelu(self.fc(x)) * READS[self.read](self, x)), y)


def _enter(read: str) -> None:
    @scenario("value_read", cls=Reading)
    def values_read(run):
        """The same in the first steps, so that recording it again finds no difference."""
        run.model.read = read
        (x, y), *_ = run.batches()
        for i in range(8):
            if i == 4:
                run.model.factor.fill_(0.25)
                run.model.mask[2:] = False
                run.model.fc.bias.data.fill_(0.5)
                x = x * 0.5
            run.model.zero_grad()
            run.model(x, y).backward()
            run.see(run.model.head.weight.grad.sum())

    ATTRIBUTES[read] = ATTRIBUTES.pop("values_read")


for _read in READS:
    _enter(_read)
