"""The switches that show or replace what nova makes: NOVA_DUMP, NOVA_OVERRIDE, NOVA_DEBUG, NOVA_EXPLAIN, and explain itself."""

from __future__ import annotations

import os
import re

import pytest

import blutrain as bt
from blutrain import config, nn, nova
from blutrain.optim import SGD


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(5, 3)

    def forward(self, x):
        return (self.fc(x) * 2.0).sum()


def train(steps: int = 3):
    bt.manual_seed(0)
    model = Net()
    model.compile()
    optimizer = SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        loss = model(bt.ones(4, 5))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return model, loss.item()


def test_dump_and_override(tmp_path):
    """A kernel whose dumped text is edited is used from the override folder, and only then."""
    with config.scope(NOVA_DUMP=str(tmp_path)):
        _, expected = train()
    (program,) = [d for d in tmp_path.iterdir() if d.name.startswith("program-")]
    names = {p.name for p in program.iterdir()}
    assert "trace.txt" in names and any("form_kernels" in n for n in names)
    number = int(program.name.removeprefix("program-"))
    override = tmp_path / "override" / f"program-{number + 1:03d}"
    override.mkdir(parents=True)
    edited = 0
    for kernel in program.glob("kernel-*.mlir"):
        text = kernel.read_text()
        changed = re.sub(r"dense<2\.0[0e+]*>", "dense<3.0>", text)
        changed = re.sub(r"constant 2\.0[0e+]* : f32", "constant 3.0 : f32", changed)
        edited += changed != text
        (override / kernel.name).write_text(changed)
    assert edited
    with config.scope(NOVA_OVERRIDE=str(tmp_path / "override")):
        _, found = train()
    assert found != pytest.approx(expected, rel=1e-3)
    assert train()[1] == expected  # what was overridden is not in the cache


@pytest.mark.parametrize(
    ("level", "said"),
    [
        (1, "nova: compiled Net"),
        (2, "measured us"),
        (3, "inputs: %"),
        (4, "-form_kernels.mlir"),
        (5, "kernel-000.mlir"),
    ],
)
def test_debug_levels(level, said, capfd):
    """Each level adds a layer."""
    with config.scope(NOVA_DEBUG=level):
        train()
    assert said in capfd.readouterr().err
    with config.scope(NOVA_DEBUG=level - 1):
        train()
    assert said not in capfd.readouterr().err


def test_explain_measures_in_memory_of_its_own():
    """Neither results nor inputs that somebody else holds, or that are gone, are touched."""
    model = bt.nn.Linear(64, 2048)
    model.compile()
    for _ in range(3):
        with bt.no_grad():
            out = model(bt.ones(128, 64))
    mine = out.numpy()
    mine[...] = 7
    text = nova.explain(model)
    assert "measured us" in text and (mine == 7).all()
    with bt.no_grad():
        assert (model(bt.ones(128, 64)).numpy() != 7).any() and (mine == 7).all()


def test_explain(capfd):
    model, _ = train()
    text = nova.explain(model)
    assert os.path.basename(__file__) in text and "of roofline" in text and "arena" in text
    with config.scope(NOVA_EXPLAIN=True):
        train()
    assert "predicted us" in capfd.readouterr().err
    with pytest.raises(ValueError, match="no compiled program"):
        nova.explain(Net())
