"""What ends a rank because of the others. The launcher shows such an error only where no rank has another one.

They are no RuntimeErrors: a program that deals with its own errors should not take these for one of them.
"""

from __future__ import annotations


class PeerLost(Exception):
    """Another rank died or raised; nothing is wrong with this one."""


class CollectiveMismatch(Exception):
    """Ranks have entered different collectives at the same place; the message says which."""


class CollectiveTimeout(Exception):
    """A rank did not come to a collective in time; the message says which rank, which collective, where it is."""
