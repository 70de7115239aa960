"""Generators of random numbers: a seed and a counter of draws, nothing else.

Numbers are a function of (seed, draw number, index of the element), so a generator holds no array state: two calls
never share a draw number, the same call gives the same numbers on every device, eager or compiled, and saving two
integers resumes a run exactly.
"""

from __future__ import annotations

import operator

from ..errors import message

_MASK = (1 << 64) - 1
_STREAM_BITS = 48  # of a draw number: below them the draws, above them the stream
_DRAWS = (1 << _STREAM_BITS) - 1


class Generator:
    """`Generator(seed)`. `seed`: 0 <= seed < 2**64; `counter`: number of the next draw.

    `stream`: which of 2**16 independent sequences of the seed it draws (one per rank of a distributed job); it is no
    part of the state. Errors: TypeError, ValueError for another seed.
    """

    __slots__ = ("_stream", "counter", "seed")
    seed: int
    counter: int

    def __init__(self, seed: int = 0):
        self._stream = 0
        self.manual_seed(seed)

    @property
    def stream(self) -> int:
        return self._stream

    @stream.setter
    def stream(self, number: int) -> None:
        draws = self.counter & _DRAWS
        self._stream = number
        self.counter = number << _STREAM_BITS | draws

    def manual_seed(self, seed: int) -> Generator:
        """Start over from `seed`; a negative one counts as seed + 2**64, as in PyTorch."""
        try:
            seed = operator.index(seed)
        except TypeError:
            raise TypeError(message("manual_seed", "a seed is an integer", got=repr(seed))) from None
        if not -(1 << 63) <= seed <= _MASK:
            raise ValueError(message("manual_seed", "the seed does not fit 64 bits", got=str(seed)))
        self.seed, self.counter = seed & _MASK, self._stream << _STREAM_BITS
        return self

    def draw(self) -> int:
        """The number of the next draw; the counter advances by one."""
        number = self.counter
        self.counter = (number + 1) & _MASK
        return number

    def get_state(self) -> dict[str, int]:
        """{"seed": ..., "counter": ...}, to be saved and handed to set_state."""
        return {"seed": self.seed, "counter": self.counter & _DRAWS}

    def set_state(self, state: dict[str, int]) -> None:
        """Continue where `state` (of get_state) was taken. Errors: ValueError for anything else."""
        if not isinstance(state, dict) or set(state) != {"seed", "counter"}:
            raise ValueError(
                message(
                    "set_state", "not a state of a generator", expected="a dict of seed and counter", got=repr(state)
                )
            )
        draws = operator.index(state["counter"]) & _DRAWS
        self.manual_seed(state["seed"])
        self.counter |= draws

    def __repr__(self) -> str:
        return f"Generator(seed={self.seed}, counter={self.counter})"


default_generator = Generator(0)


def manual_seed(seed: int) -> Generator:
    """Seed the default generator, which serves every device; returns it.

    >>> bt.manual_seed(3)
    Generator(seed=3, counter=0)
    >>> numbers, _ = bt.rand(2).tolist(), bt.manual_seed(3)
    >>> bt.rand(2).tolist() == numbers
    True
    """
    return default_generator.manual_seed(seed)


def get_state() -> dict[str, int]:
    """The default generator's state."""
    return default_generator.get_state()


def set_state(state: dict[str, int]) -> None:
    """Set the default generator's state."""
    default_generator.set_state(state)


get_rng_state, set_rng_state = get_state, set_state  # PyTorch's names for them
