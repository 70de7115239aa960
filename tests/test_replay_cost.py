"""What a replayed step costs in Python: under 100 us for eight events, at any number of parameters.

The program does nothing here, so only the recorder is measured. Times are the least of many: other processes can only
add to them. The bar is for a machine on which `reference()` takes REFERENCE_US; slower ones get as much more time.
"""

from __future__ import annotations

import time

import numpy as np
import pytest

import blutrain as bt
from blutrain import nn, nova
from blutrain.optim import AdamW

BAR_US = 100.0
PER_PARAMETER_US = 0.15  # lists of parameters that the user hands over (clipping, zero_grad) are looked at
UNSEEN_US = 0.02  # a parameter that nothing in the step looks at: noise, a loop over its tensors would be twice that
REFERENCE_US = 55.0
ROUNDS = 400


class NoProgram:
    """Stands for a program: its results are there already."""

    def __init__(self, trace, options=None):
        self.trace = trace
        self.results = {v: np.zeros(trace.avals[v].shape, trace.avals[v].dtype.numpy) for v in trace.outputs}

    def run(self, log):
        return dict(self.results)


class Chain(nn.Module):
    def __init__(self, parameters: int):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(2, 2) for _ in range(parameters // 2))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x.sum()


def reference() -> None:
    """Python work of the recorder's kind: attributes, tuples, dictionaries."""
    table: dict = {}
    for i in range(300):
        table[(i, "key")] = [i]
        table.get((i, "key"), table)[0] += 1


def best_us(step) -> float:
    times = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        step()
        times.append(time.perf_counter() - start)
    return min(times) * 1e6


def replay_us(parameters: int, monkeypatch, *, clips: bool = True) -> float:
    """Microseconds of a step of eight events: call, two operations, backward, clip, step, zero_grad, read."""
    monkeypatch.setattr("blutrain.nova.execute.compile_trace", NoProgram)
    bt.manual_seed(0)
    model = Chain(parameters).compile()
    trained = list(model.parameters())
    optimizer = AdamW(trained, lr=1e-3)
    x = bt.ones(1, 2)

    def step():
        loss = model(x) * 0.5 + 1.0
        loss.backward()
        if clips:
            nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        loss.item()

    for _ in range(3):
        step()
    replayed = nova.recorder().replayed_steps
    best = best_us(step)
    assert nova.recorder().replayed_steps == replayed + ROUNDS
    return best


@pytest.fixture
def speed() -> float:
    """How many times slower than the reference machine this one is (at least 1)."""
    return max(1.0, best_us(reference) / REFERENCE_US)


def test_a_replayed_step_costs_under_100_us(monkeypatch, speed):
    assert replay_us(10, monkeypatch) < BAR_US * speed


def test_the_cost_does_not_grow_with_the_parameters(monkeypatch, speed):
    few, many = replay_us(10, monkeypatch), replay_us(200, monkeypatch)
    assert many - few < 190 * PER_PARAMETER_US * speed


def test_a_step_without_clipping_looks_at_no_parameter(monkeypatch, speed):
    few, many = (replay_us(count, monkeypatch, clips=False) for count in (10, 400))
    assert many - few < 390 * UNSEEN_US * speed


def test_zeroing_by_the_module_does_not_make_the_next_step_dearer(monkeypatch, speed):
    """model.zero_grad() walks the tree, but leaves the group of slots whole."""
    monkeypatch.setattr("blutrain.nova.execute.compile_trace", NoProgram)
    model = Chain(200).compile()
    optimizer, x = AdamW(model.parameters(), lr=1e-3), bt.ones(1, 2)

    def step():
        model(x).backward()
        optimizer.step()
        model.zero_grad()

    step()
    walk = best_us(lambda: list(model.parameters()))
    assert best_us(step) < (BAR_US + 190 * PER_PARAMETER_US) * speed + 2 * walk
