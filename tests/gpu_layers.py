"""A random training (`random_layers`) on the GPU: compiled from poisoned memory, replayed to equal bits, judged."""

from __future__ import annotations

import warnings

import pytest
from gpu_device import POISON
from gpu_replay import repeat
from random_layers import Recipe, train
from rounding_judge import judged
from small_gpus import variant

import blutrain as bt
from blutrain.nova import program
from blutrain.nova.explain import programs_of

REPLAYS = 4
POISONED_BYTES = 256 << 20


def faults(recipe: Recipe, precision: str, part: int) -> list[str]:
    """What is wrong with a training in that precision, compiled for a part of the GPU (`small_gpus`); nothing where it is
    right.
    """
    poison_pool()
    kept: list = []
    facts_of = program.facts_of
    with warnings.catch_warnings(), pytest.MonkeyPatch.context() as patch:
        warnings.filterwarnings("ignore", "(?s).*the kernel is right, and slower", RuntimeWarning)
        patch.setattr(program, "facts_of", lambda device: variant(facts_of(device), part))
        got = train(recipe, "cuda", bt.float32, precision, kept)
    found = []
    try:
        if recipe.micro == 1:  # else the last program reads gradients that nobody holds any more
            repeat(programs_of(kept[0])[-1], REPLAYS)
    except AssertionError as different:
        found.append(f"two replays differ: {different}")
    return found + judged(recipe, "cuda", precision, got)


def poison_pool() -> None:
    """Memory that CuPy gives out next holds NaN."""
    import cupy

    pieces = [cupy.empty(POISONED_BYTES >> shift, cupy.uint8) for shift in (0, 4, 8, 12, 16)]
    for piece in pieces:
        piece.fill(POISON)
