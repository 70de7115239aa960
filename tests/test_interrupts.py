"""Ctrl-C at any moment of a compiled step: the step happened or did not, and training goes on after zero_grad."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from interrupts import Interrupt
from loops import Net, batches, make

import blutrain as bt
from blutrain import nn


def values(model) -> list[np.ndarray]:
    return [p.detach().numpy().copy() for p in model.parameters()]


def same(got, expected) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(got, expected, strict=True))


def run_step(model, opt, x, y, read: bool):
    loss = model(x, y)
    if read:
        loss.item()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    opt.step()
    opt.zero_grad()
    return loss


class Counted(Net):
    """With dropout and a buffer that forward writes."""

    def __init__(self):
        super().__init__(dropout=0.3)
        self.register_buffer("calls", bt.zeros(1))

    def forward(self, x, targets=None):
        self.calls += 1
        return super().forward(x, targets)


@pytest.mark.slow
@pytest.mark.parametrize("read", [False, True])
def test_ctrl_c_at_any_line_of_a_replayed_step(read):
    model, opt = make(True, cls=Counted)
    data = itertools.cycle(list(batches(8)))
    for _ in range(4):
        run_step(model, opt, *next(data), read)
    for n in itertools.count(1, 5):
        x, y = next(data)
        before = values(model)
        with Interrupt(n) as interrupt:
            try:
                loss = run_step(model, opt, x, y, read)
            except KeyboardInterrupt:
                loss = None
        if not interrupt.fired:
            break
        opt.zero_grad()
        after = values(model)
        moved = [not np.array_equal(a, b) for a, b in zip(before, after, strict=True)]
        assert all(moved) or not any(moved), (n, moved)
        assert loss is None or np.isfinite(loss.item())
        assert np.isfinite(run_step(model, opt, *next(data), read).item()), n
        assert not same(values(model), after)
    assert n > 100 and model.calls._pending is None
