"""What user code can do around a compiled module: eager and compiled see the same.

All scenarios run with programs that are interpreted (the recorder alone) and, marked slow, with compiled ones; and with a
compiled function that calls the model.
"""

from __future__ import annotations

import functools

import pytest
from replay_attributes import ATTRIBUTES
from replay_floats import FLOATS
from replay_gradients import GRADIENTS
from replay_held import HELD
from replay_memory import MEMORY
from replay_optimizers import OPTIMIZERS
from replay_support import check
from replay_tapes import TAPES
from replay_variables import VARIABLES

from blutrain import nova
from blutrain.nn import Module
from blutrain.nova.jit import Function

SCENARIOS = {**GRADIENTS, **ATTRIBUTES, **MEMORY, **OPTIMIZERS, **TAPES, **VARIABLES, **FLOATS}


@pytest.mark.parametrize("name", sorted(SCENARIOS) + sorted(HELD))
def test_recorder(name, interpreted):
    check({**SCENARIOS, **HELD}[name])


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(SCENARIOS))
def test_program(name):
    check(SCENARIOS[name])


@pytest.mark.parametrize("name", sorted(SCENARIOS))
def test_function(name, interpreted, monkeypatch):
    call, compile_module = Module.__call__, Module.compile

    def compile(self, **options):
        if isinstance(self, Function):
            return compile_module(self, **options)
        self.__dict__["jitted"] = nova.jit(lambda *args, **kwargs: call(self, *args, **kwargs), **options)
        return self

    def __call__(self, *args, **kwargs):
        jitted = None if nova.recorder() is None or nova.recorder().recording else self.__dict__.get("jitted")
        return (jitted or functools.partial(call, self))(*args, **kwargs)

    monkeypatch.setattr(Module, "compile", compile)
    monkeypatch.setattr(Module, "__call__", __call__)
    check(SCENARIOS[name], in_parts=True)
