"""Scenarios about values that objects of all kinds hold, and that forward reads: in an attribute, a class, a global, a variable
of a function that is an argument.
"""

from __future__ import annotations

import contextvars
import functools
import itertools
import os
import random
import types
import weakref
from collections import deque
from dataclasses import dataclass, field

import numpy as np
from loops import Net
from replay_attributes import Head
from replay_support import collector

from blutrain.nn import functional as F

HELD, scenario = collector()
SCALE = 1.0

# -------------------------------------------------------------------- numbers that objects of all kinds hold


class Scaling:
    """An object that code calls, or whose method it calls."""

    def __init__(self, scale=1.0):
        self.scale = scale

    def __call__(self, x):
        return x * self.scale

    def apply(self, x):
        return x * self.scale


class Table(dict):
    pass


@dataclass(frozen=True, slots=True)
class Frozen:
    scales: list = field(default_factory=lambda: [1.0])


def nested(depth: int):
    """An object of an object of an object ... that has `scale`."""
    return types.SimpleNamespace(scale=1.0) if depth == 0 else types.SimpleNamespace(below=nested(depth - 1))


def innermost(held):
    while hasattr(held, "below"):
        held = held.below
    return held


def deep_read(x, held):
    below = held.below.below
    return x * below.below.below.below.scale


KEPT, VARIABLE = Scaling(), contextvars.ContextVar("VARIABLE", default=1.0)
HOLDERS = {  # what is held, how code uses it, how it is changed
    "deque": (lambda: deque([1.0], maxlen=2), lambda x, h: x * (sum(h) / len(h)), lambda h, v: h.append(v)),
    "callable in a list": (lambda: [Scaling()], lambda x, h: h[0](x), lambda h, v: setattr(h[0], "scale", v)),
    "method in a dict": (
        lambda: {"f": Scaling().apply},
        lambda x, h: h["f"](x),
        lambda h, v: setattr(h["f"].__self__, "scale", v),
    ),
    "callable in a dict": (
        lambda: {"f": Scaling()},
        lambda x, h: h["f"].scale * x,
        lambda h, v: setattr(h["f"], "scale", v),
    ),
    "function in a list": (lambda: [lambda x: x * SCALE], lambda x, h: h[0](x), lambda h, v: globals().update(SCALE=v)),
    "method of C": (lambda: {"scale": 1.0}.get, lambda x, h: x * h("scale"), lambda h, v: h.__self__.update(scale=v)),
    "read-only dict": (
        lambda: types.MappingProxyType(KEPT.__dict__),
        lambda x, h: x * h["scale"],
        lambda h, v: setattr(KEPT, "scale", v),
    ),
    "partial": (
        lambda: functools.partial(Scaling.apply, KEPT),
        lambda x, h: h(x),
        lambda h, v: setattr(KEPT, "scale", v),
    ),
    "weak reference": (lambda: weakref.ref(KEPT), lambda x, h: x * h().scale, lambda h, v: setattr(KEPT, "scale", v)),
    "attribute by its name": (
        lambda: Scaling(),
        lambda x, h: x * getattr(h, "scale"),  # noqa: B009 (code that is hard to read by machines)
        lambda h, v: setattr(h, "scale", v),
    ),
    "deep object": (lambda: nested(5), deep_read, lambda h, v: setattr(innermost(h), "scale", v)),
    "attribute of a dict": (
        lambda: Table(),
        lambda x, h: x * vars(h).get("scale", 1.0),
        lambda h, v: setattr(h, "scale", v),
    ),
    "frozen dataclass": (lambda: Frozen(), lambda x, h: x * h.scales[0], lambda h, v: h.scales.__setitem__(0, v)),
    "context variable": (lambda: VARIABLE, lambda x, h: x * h.get(), lambda h, v: h.set(v)),
    "environment": (
        lambda: None,
        lambda x, h: x * float(os.environ.get("SCENARIO_SCALE", "1.0")),
        lambda h, v: os.environ.__setitem__("SCENARIO_SCALE", str(v)),
    ),
}
PLACES = ("instance", "class", "global", "argument")
STANDS = None


def _enter(name: str, place: str) -> None:
    make, use, change = HOLDERS[name]

    class Holding(Head):
        def change(self, hidden):
            return use(hidden, STANDS if place == "global" else self.held)

    class Taking(Net):
        def forward(self, x, y, function):
            return F.cross_entropy(self.head(function(self.fc(x))), y)

    @scenario(cls=Taking if place == "argument" else Holding)
    def function(run):
        global STANDS, SCALE
        KEPT.scale = SCALE = 1.0
        held = make()
        change(held, 1.0)
        if place == "global":
            STANDS = held
        (run.model if place == "instance" else Holding).held = held
        extra = [lambda x: use(x, held)] if place == "argument" else []
        for i, (x, y) in enumerate(run.batches(8)):
            if i % 4 == 3:
                change(held, 1.0 + i)
            loss = run.model(x, y, *extra)
            run.step(loss)
            run.see(loss)
        change(held, 1.0)

    HELD[f"{name}_at_{place}".replace(" ", "_")] = HELD.pop("function")


for _name in HOLDERS:
    for _place in PLACES:
        if (_name, _place) != ("method of C", "class"):
            _enter(_name, _place)


# -------------------------------------------------------------------- what a look at it would use up, or cannot show

SOURCES = {
    "generator of NumPy": (lambda: np.random.default_rng(0), lambda r: r.random()),
    "old generator of NumPy": (lambda: np.random.RandomState(0), lambda r: r.rand()),
    "generator of Python": (lambda: random.Random(0), lambda r: r.random()),
    "iterator": (lambda: itertools.cycle([1.0, 1.0, 1.0, 2.0]), next),
}


def _enter_source(name: str) -> None:
    make, draw = SOURCES[name]

    class Drawing(Head):
        """Leaves a layer out now and then: twice the same is no promise."""

        def change(self, hidden):
            return hidden.tanh() if draw(self.source) < 0.3 else hidden

    @scenario("effects", cls=Drawing)
    def function(run):
        run.model.source = make()
        for x, y in run.batches(14):
            loss = run.model(x, y)
            run.step(loss)
            run.see(loss)

    HELD[f"own_{name}".replace(" ", "_")] = HELD.pop("function")


for _name in SOURCES:
    _enter_source(_name)
