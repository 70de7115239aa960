"""What user code can do around a compiled module: eager and compiled see the same.

All scenarios run with programs that are interpreted (the recorder alone) and, marked slow, with compiled ones.
"""

from __future__ import annotations

import pytest
from replay_attributes import ATTRIBUTES
from replay_gradients import GRADIENTS
from replay_memory import MEMORY
from replay_optimizers import OPTIMIZERS
from replay_support import check
from replay_tapes import TAPES
from replay_variables import VARIABLES

SCENARIOS = {**GRADIENTS, **ATTRIBUTES, **MEMORY, **OPTIMIZERS, **TAPES, **VARIABLES}


@pytest.mark.parametrize("name", sorted(SCENARIOS))
def test_recorder(name, interpreted):
    check(SCENARIOS[name])


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(SCENARIOS))
def test_program(name):
    check(SCENARIOS[name])
