"""Random stacks of layers on a GPU, a few steps each, in every precision: as right as rounding lets them be.

Whole trainings of odd extents, through tensor cores, with the schedules of larger ones, too (`small_gpus`): some seeds of
what tests/long_run_layers.py runs for longer.
"""

from __future__ import annotations

import pytest
from draw_layers import Limits, draw
from gpu import needs_gpu
from gpu_layers import faults

pytestmark = needs_gpu
LIMITS = Limits(products=6e7, blocks=3)
SEEDS = {"tf32": range(1000, 1015), "bf16": range(1015, 1030), "fp32": range(1030, 1036)}


@pytest.mark.parametrize("precision, seed", [(precision, seed) for precision, seeds in SEEDS.items() for seed in seeds])
def test_a_training_is_as_right_as_its_precision(precision, seed):
    recipe = draw(seed, LIMITS)
    found = faults(recipe, precision, seed)
    assert not found, "\n".join([recipe.text(), *found[:5]])
