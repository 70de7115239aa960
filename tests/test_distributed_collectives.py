"""Collectives between calls and inside of forward, eager and compiled."""

from __future__ import annotations

import pytest
from distributed_support import ROOT, launch, program

pytest.importorskip("mpi4py", reason="needs blutrain[distributed]")

PROGRAM = str(ROOT / "tests" / "distributed_collectives.py")


@pytest.mark.parametrize("ranks", [2, 3])
def test_collectives(ranks):
    status, _, err = program(ranks, "collectives")
    assert status == 0, err


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_inside_of_a_compiled_forward(ranks):
    status, out, err = launch(ranks, PROGRAM, "training")
    assert status == 0 and out.count("equal") == ranks, err


def test_messages_and_barriers_are_refused_there():
    status, out, err = launch(2, PROGRAM, "refused")
    assert status == 0 and out.count("refused") == 2, err
