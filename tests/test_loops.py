"""Training loops of real users: eager against compiled, by both executors of a trace."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from loops import LOOPS
from replay_support import InterpretedProgram

from blutrain.nova import NovaWarning, flush, forget_warnings

# Loops that are refused: they run by the eager rules, with a warning, and are right all the same.
REFUSED = {"value_read_in_forward"}


@pytest.mark.parametrize("executor", ["interpreter", "program"])
@pytest.mark.parametrize("name", sorted(LOOPS))
def test_eager_and_compiled_agree(name, executor, monkeypatch):
    """Same losses, norms and parameters to 1e-9 in float64."""
    if executor == "interpreter":
        monkeypatch.setattr("blutrain.nova.execute.compile_trace", InterpretedProgram)
    forget_warnings()
    eager = LOOPS[name](False)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        compiled = LOOPS[name](True)
        flush()
    said = [str(w.message) for w in caught if issubclass(w.category, NovaWarning)]
    assert bool(said) == (name in REFUSED), said
    assert eager.keys() == compiled.keys()
    for key in eager:
        np.testing.assert_allclose(compiled[key], eager[key], rtol=1e-9, atol=1e-11, err_msg=key)
