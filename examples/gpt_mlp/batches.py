"""Batches as a pure function of (seed, number): a run resumed at step n draws what an uninterrupted one would."""

from __future__ import annotations

import numpy as np

from blutrain.errors import message

TRAIN, VALIDATION = 0, 1


class Batches:
    """Random windows of a token array.

    batch(n) gives (inputs, targets), int64 of shape (batch_size, block_size); targets are the inputs' successors. rows:
    only these of each batch.
    """

    def __init__(
        self, tokens: np.ndarray, batch_size: int, block_size: int, seed: int, stream: int = TRAIN, rows=slice(None)
    ):
        if len(tokens) < block_size + 1:
            what = ("training", "validation")[stream]
            raise ValueError(
                message(
                    "--data",
                    f"too little {what} text for one window",
                    expected=f"at least {block_size + 1} tokens",
                    got=f"{len(tokens)}",
                    location=("", 0),
                    help="use a smaller --block-size or more text",
                )
            )
        self._tokens, self._shape, self._seed, self._stream = tokens, (batch_size, block_size), seed, stream
        self._rows = rows

    def batch(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        rng = np.random.Generator(np.random.Philox(key=self._seed, counter=[0, 0, self._stream, number]))
        batch_size, block_size = self._shape
        starts = rng.integers(0, len(self._tokens) - block_size, size=batch_size)[self._rows]
        windows = self._tokens[starts[:, None] + np.arange(block_size + 1)].astype(np.int64)
        return np.ascontiguousarray(windows[:, :-1]), np.ascontiguousarray(windows[:, 1:])
