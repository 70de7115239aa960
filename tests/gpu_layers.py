"""A random training (`random_layers`) on the GPU: compiled from poisoned memory, replayed to equal bits, judged."""

from __future__ import annotations

import warnings

from gpu_device import POISON
from gpu_replay import repeat
from random_layers import Recipe, train
from rounding_judge import judged

import blutrain as bt
from blutrain.nova.explain import programs_of

REPLAYS = 4
POISONED_BYTES = 256 << 20


def faults(recipe: Recipe, precision: str) -> list[str]:
    """What is wrong with a training in that precision; nothing where it is right."""
    poison_pool()
    kept: list = []
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "(?s).*the kernel is right, and slower", RuntimeWarning)
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
