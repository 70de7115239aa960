"""Finds tensors of a recorded call that outlive it unseen.

At replay the body of forward does not run, so a tensor that it left in a global list (say) would not be made again. What autograd saves
are aliases, so a pending tensor itself that is still alive after the call is held by user code.
"""

from __future__ import annotations

from ..tensor.tensor import Tensor
from .log import Log, map_tree
from .trace import Node


def find_escape(log: Log, result) -> Node | None:
    """The node that made a tensor which is alive but neither in `result` nor a noted module attribute; None if there is none."""
    step = log.current
    known: set[int] = set()
    map_tree(result, Tensor, lambda t: known.add(id(t)))
    known.update(id(m.__dict__[name]) for m, name, _ in step.attributes)
    made = {v: node for node in step.nodes for v in node.results}
    for value, refs in log.live.items():
        if value in made:
            for tensor in filter(None, [r() for r in refs]):
                if id(tensor) not in known:
                    return made[value]
    return None
