"""What ends a rank because of the others. The launcher shows such an error only where no rank has another one."""

from __future__ import annotations


class PeerLost(RuntimeError):
    """Another rank died or raised; nothing is wrong with this one."""


class CollectiveTimeout(RuntimeError):
    """A rank did not come to a collective in time; the message says which rank, which collective, where it is."""
