"""Gradients of several backwards, averaged over ranks or not, in every order: the same as one process, or a clear error."""

from __future__ import annotations

from importlib.util import find_spec

import distributed_accumulation
import pytest
from distributed_support import ROOT, launch

PROGRAM = str(ROOT / "tests" / "distributed_accumulation.py")


@pytest.mark.parametrize("scenario", distributed_accumulation.RIGHT)
def test_recorded_as_eager_in_one_process(scenario, interpreted):
    eager, compiled = distributed_accumulation.Trainer(False), distributed_accumulation.Trainer(True)
    for _ in range(4):
        compiled.compare(eager.round(scenario), compiled.round(scenario), scenario)


@pytest.mark.skipif(find_spec("mpi4py") is None, reason="needs blutrain[distributed]")
@pytest.mark.parametrize("ranks, mode, sharded", [
    (2, "eager", "whole"), (2, "eager", "sharded"), (3, "eager", "sharded"),
    (2, "compiled", "whole"), (2, "compiled", "sharded"),
])  # fmt: skip
def test_as_one_process(ranks, mode, sharded):
    status, _, err = launch(ranks, PROGRAM, "right", mode, sharded)
    assert status == 0, err
