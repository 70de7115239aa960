"""Scenarios of training code: each runs eagerly and compiled and must see the same.

    @scenario(cls=MyModel)
    def something_users_do(run):
        for x, y in run.batches():
            run.step(run.model(x, y))
            run.see(run.model.something)

A scenario runs at least four steps, so that a sequence is recorded, verified and then replayed.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import loops
import numpy as np
from loops import Net

import blutrain as bt
from blutrain import nova
from blutrain.nova.interpret import interpret
from blutrain.optim import AdamW


class InterpretedProgram:
    """A program that runs its trace by the eager rules: recording and replay without the compiler."""

    def __init__(self, trace, options=None):
        self.trace = trace

    def run(self, log):
        return interpret(self.trace, log.bindings())


class Run:
    """One run of a scenario: a model, its optimizer, and what was seen."""

    def __init__(self, compiled: bool, cls: type = Net, optimizer: type = AdamW, lr: float = 0.05, **options):
        self.compiled = compiled
        self.model, self.opt = loops.make(compiled, cls=cls, optimizer=optimizer, lr=lr, **options)
        self.seen: list = []

    def batches(self, n: int = 6, **options) -> Iterator[tuple[bt.Tensor, bt.Tensor]]:
        return loops.batches(n, **options)

    def step(self, loss: bt.Tensor) -> None:
        loss.backward()
        self.opt.step()
        self.opt.zero_grad()

    def see(self, *values) -> None:
        self.seen += [v.item() if isinstance(v, bt.Tensor) else v for v in values]

    def result(self) -> dict[str, Any]:
        return {"seen": self.seen, **loops.state(self.model)}


class Scenario(NamedTuple):
    """function(run); options of Run; reasons: for which it may be refused (the results are right all the same)."""

    function: Callable[[Run], None]
    options: dict[str, Any]
    reasons: tuple[str, ...]

    def result(self, compiled: bool) -> dict[str, Any]:
        run = Run(compiled, **self.options)
        self.function(run)
        nova.flush()
        return run.result()


def collector() -> tuple[dict[str, Scenario], Callable]:
    """A table of scenarios and the decorator that enters functions into it."""
    table: dict[str, Scenario] = {}

    def scenario(*reasons: str, **options):
        def enter(function):
            table[function.__name__] = Scenario(function, options, reasons)
            return function

        return enter

    return table, scenario


def check(scenario: Scenario, in_parts: bool = False) -> None:
    """Eager and compiled agree to 1e-9, and exactly the expected refusals are announced.

    in_parts: a function is refused, and then the model that it calls.
    """
    nova.forget_warnings()
    eager = scenario.result(False)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        compiled = scenario.result(True)
    said = [str(w.message) for w in caught if issubclass(w.category, nova.NovaWarning)]
    expected = [nova.refuse.REASONS[reason] for reason in scenario.reasons]
    most = len(expected) * (2 if in_parts else 1)
    assert len(said) <= most and all(any(e in s for s in said) for e in expected), said
    assert len(eager["seen"]) == len(compiled["seen"])
    for number, (e, c) in enumerate(zip(eager.pop("seen"), compiled.pop("seen"))):
        same(c, e, f"number {number} of what was seen")
    assert eager.keys() == compiled.keys()
    for key in eager:
        same(compiled[key], eager[key], key)


def same(got, expected, what: str) -> None:
    if isinstance(expected, float | np.ndarray | np.floating):
        np.testing.assert_allclose(got, expected, rtol=1e-9, atol=1e-11, err_msg=what)
    else:
        assert got == expected and type(got) is type(expected), f"{what}: {got!r} instead of {expected!r}"


def programs(model) -> int:
    """How many programs a compiled model holds."""
    nova.flush()
    return len(model._compiled.programs)
