"""Fixtures of all tests."""

from __future__ import annotations

import sys

import pytest


@pytest.fixture(autouse=True)
def _nothing_pending():
    """A test that fails in the middle of a compiled step must not leave it to the next one."""
    yield
    nova = sys.modules.get("blutrain.nova")
    if nova is None or nova.recorder() is None:
        return
    nova.recorder().log = None
    nova.forget_warnings()


@pytest.fixture
def interpreted(monkeypatch):
    """Programs run their traces by the eager rules: the recorder alone is tested, without the compiler."""
    from replay_support import InterpretedProgram

    monkeypatch.setattr("blutrain.nova.execute.compile_trace", InterpretedProgram)
