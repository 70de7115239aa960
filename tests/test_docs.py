"""What the documentation shows runs: examples in docstrings, the script of the README."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import pytest

import blutrain as bt
from blutrain import nn

ROOT = Path(__file__).resolve().parents[1]
PARTS = ("tensor", "autograd", "nn", "optim", "distributed")


def with_examples() -> list[str]:
    names = [
        module.name
        for part in PARTS
        for module in pkgutil.walk_packages([str(ROOT / "blutrain" / part)], f"blutrain.{part}.")
    ]
    files = {name: ROOT / (name.replace(".", "/") + ".py") for name in names}
    return sorted(name for name, file in files.items() if file.is_file() and ">>> " in file.read_text())


@pytest.mark.parametrize("name", [*with_examples(), "blutrain.autograd"])
def test_examples_in_docstrings_run(name):
    before = bt.get_rng_state()
    result = doctest.testmod(importlib.import_module(name), extraglobs={"bt": bt, "nn": nn}, report=True)
    bt.set_rng_state(before)
    assert result.attempted and not result.failed


def test_the_script_of_the_readme_learns(tmp_path):
    (script,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert len(script.strip().splitlines()) <= 25
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", f"import sys; sys.path.insert(0, {str(ROOT)!r})\n{script}"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=180,
    )
    assert done.returncode == 0, done.stderr
    losses = [float(line.split()[1]) for line in done.stdout.splitlines()]
    assert losses[-1] < losses[0] / 2
    assert (tmp_path / "model.safetensors").is_file()
