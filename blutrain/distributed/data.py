"""Data for several ranks: every sample on exactly one of them, none lost, none twice, and resumable.

    for indices in Sampler(len(dataset), batch_size=64, seed=0):     # this rank's part of each batch of 64
        ...

A batch is that of a single process, cut into parts; so the ranks together compute what one process would.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ..errors import message
from .current import get_rank, get_world_size, is_initialized, require_equal

_FIXED = ("length", "batch_size", "seed", "shuffle")  # with others, a position means other samples


def shard(count: int, rank: int | None = None, size: int | None = None) -> slice:
    """Which of `count` things belong to a rank (default: this one): consecutive ones, sizes differing by one at most.

    >>> [shard(10, rank, 4) for rank in range(4)]
    [slice(0, 2, None), slice(2, 5, None), slice(5, 7, None), slice(7, 10, None)]
    """
    rank, size = get_rank() if rank is None else rank, get_world_size() if size is None else size
    return slice(count * rank // size, count * (rank + 1) // size)


class Sampler:
    """Batches of indices below `length`, each epoch in another order (a function of seed and epoch), this rank's part.

    batch_size: of all ranks together; the last batch of an epoch may be smaller, and then a rank may have fewer
    indices than others, or none. Iterating gives what is left of the epoch and goes on to the next one. Errors:
    ValueError where the ranks' arguments differ, naming them.
    """

    def __init__(self, length: int, batch_size: int, seed: int = 0, shuffle: bool = True):
        for name, value in (("length", length), ("batch_size", batch_size)):
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ValueError(message("Sampler", f"{name} must be a positive integer", got=repr(value)))
        self.length, self.batch_size, self.seed, self.shuffle = length, batch_size, seed, shuffle
        self.epoch = self.step = 0  # the next batch is number `step` of `epoch`
        if is_initialized():
            for name in _FIXED:
                require_equal(f"the {name} of Sampler", getattr(self, name))

    def __len__(self) -> int:
        """Batches of an epoch."""
        return -(-self.length // self.batch_size)

    def batch(self, epoch: int, step: int) -> np.ndarray:
        """All indices of a batch, those of the other ranks too."""
        order = np.arange(self.length)
        if self.shuffle:
            order = np.random.Generator(np.random.Philox(key=self.seed, counter=[0, 0, 0, epoch])).permutation(order)
        return order[step * self.batch_size : (step + 1) * self.batch_size]

    def __iter__(self) -> Iterator[np.ndarray]:
        epoch = self.epoch
        while self.epoch == epoch:
            indices = self.batch(epoch, self.step)
            self.step += 1
            if self.step == len(self):
                self.epoch, self.step = epoch + 1, 0
            yield indices[shard(len(indices))]

    def state_dict(self) -> dict[str, Any]:
        """Where it stands: the same on all ranks, and for any number of them."""
        return {name: getattr(self, name) for name in ("epoch", "step", *_FIXED)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue there. Errors: ValueError for the state of other data."""
        for name in _FIXED:
            if state.get(name) != getattr(self, name):
                expected, got = f"{name} {getattr(self, name)}", str(state.get(name))
                raise ValueError(message("Sampler", "the state is of other data", expected=expected, got=got))
        self.epoch, self.step = int(state["epoch"]), int(state["step"])
