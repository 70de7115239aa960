"""NOVA_CHECK: a wrong kernel is found and named, a right step passes."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

import blutrain as bt
from blutrain import config, nn
from blutrain.errors import NovaError
from blutrain.nova import check
from blutrain.nova.cpu import generate as generators
from blutrain.nova.passes import generate as generate_pass
from blutrain.optim import SGD


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(5, 3)

    def forward(self, x):
        return (self.fc(x).tanh() ** 2).mean()


def train(steps: int = 3) -> list[float]:
    bt.manual_seed(0)
    model = Net()
    model.compile()
    optimizer = SGD(model.parameters(), lr=0.1)
    losses = []
    for _ in range(steps):
        loss = model(bt.ones(4, 5))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def test_a_right_step_passes():
    with config.scope(NOVA_CHECK=True):
        checked = train()
    assert checked == train()


def test_a_wrong_kernel_is_named_with_the_users_line(monkeypatch):
    """One generator stores tanh + 1: the check names its launch and this file."""
    real = generators.generate

    def broken(op, facts):
        kernel = real(op, facts)
        return dataclasses.replace(kernel, text=kernel.text.replace("arith.subf", "arith.addf"))

    monkeypatch.setattr(generators, "generate", broken)
    generate_pass._known.clear()
    with config.scope(NOVA_CHECK=True, NOVA_CACHE="0"), pytest.raises(NovaError, match="differs") as raised:
        train()
    generate_pass._known.clear()
    assert "test_check.py" in str(raised.value)


@pytest.mark.parametrize(
    ("found", "expected", "wrong"),
    [
        (np.float32([1, 2]), np.float32([1, 2.00001]), False),
        (np.float32([1, 2]), np.float32([1, 2.1]), True),
        (np.float32([1, np.nan]), np.float32([1, np.nan]), False),
        (np.float32([1, np.nan]), np.float32([1, 2]), True),
        (np.float32([1, np.inf]), np.float32([1, -np.inf]), True),
        (np.int64([1, 2]), np.int64([1, 3]), True),
    ],
)
def test_what_counts_as_different(found, expected, wrong):
    assert check.differs(found, expected) is wrong
