"""Random training scripts see the same eager and compiled."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from random_scripts import random_script, run

from blutrain.nova import NovaWarning

SCRIPTS = 80


def check(seed: int) -> None:
    script = random_script(seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NovaWarning)
        eager, compiled = run(script, seed, False), run(script, seed, True)
    assert len(eager) == len(compiled), (script, eager[-2:], compiled[-2:])
    for number, (expected, got) in enumerate(zip(eager, compiled)):
        if isinstance(expected, np.ndarray | float):
            np.testing.assert_allclose(got, expected, rtol=1e-7, atol=1e-9, err_msg=f"number {number} of {script}")
        else:
            assert got == expected, (number, script)


@pytest.mark.parametrize("first", range(0, SCRIPTS, 10))
def test_recorder(first, interpreted):
    for seed in range(first, first + 10):
        check(seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1000, 1008))
def test_programs(seed):
    check(seed)
