"""Floats that keep changing: a temperature that cools, a weight that is annealed.

A call's key holds the floats that it reads, so each value would make a program. A place, or arguments, of which a second value
is seen are lifted: their floats are no part of the key any more, and every float that an elementwise operation of the call takes
is a run-time scalar of the program. Which scalars some floats give is known from running the body with them: new floats run the
body again and compile nothing, known ones do not even do that. Where floats decide more than scalars (an attribute of an operation,
a result, what is on the tape), they become a part of the key again.
"""

from __future__ import annotations

from typing import Any, NamedTuple

ARITHMETIC = frozenset(("add", "sub", "mul", "div"))  # the operations whose floats may be run-time scalars
MAX_FLOATS = 64  # sets of floats whose scalars are remembered

Floats = tuple[str, ...]


class Lifted(NamedTuple):
    """A guard without its floats, and these: guards with other floats are equal."""

    guard: Any
    floats: Floats

    def __eq__(self, other) -> bool:
        return type(other) is Lifted and self.guard == other.guard

    def __ne__(self, other) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash(self.guard)


def lift(key) -> Lifted:
    """A key or guard (`freeze`, `guard`) parted into what is left of it without its floats, and these."""
    floats: list[str] = []
    return Lifted(_without(key, floats), tuple(floats))


def _without(key, floats: list[str]):
    if type(key) is not tuple:
        return key
    if len(key) == 2 and isinstance(key[0], type) and issubclass(key[0], float) and type(key[1]) is str:
        floats.append(key[1])
        return key[0]
    return tuple([_without(part, floats) for part in key])


def is_same(one, other) -> bool:
    """Whether two guards are equal, and their floats too."""
    return one == other and (type(one) is not Lifted or one.floats == other.floats)


class Lifting:
    """Keys of one place, one after another; they are lifted from the first on that differs by its floats from the one before."""

    __slots__ = ("is_on", "key")

    def __init__(self):
        self.key: Any = None
        self.is_on = False

    def lifted(self, key):
        """The next key, lifted or as it is."""
        if not self.is_on and key != self.key:
            self.is_on = self.key is not None and lift(self.key) == lift(key)
            self.key = key
        return lift(key) if self.is_on else key


class Arguments:
    """Lifts the arguments of calls; those that are alike but for their floats are one place."""

    def __init__(self):
        self.may_lift = True
        self._places: dict[Any, Lifting] = {}

    def lift(self, key) -> tuple[Any, Floats]:
        """The key of a call's arguments and the floats that it lacks."""
        parted = lift(key)
        if not parted.floats or not self.may_lift:
            return key, ()
        if len(self._places) > MAX_FLOATS:
            self._places.clear()
        lifted = self._places.setdefault(parted.guard, Lifting()).lifted(key)
        return (parted.guard, parted.floats) if type(lifted) is Lifted else (key, ())
