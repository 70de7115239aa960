"""Finds tensors of a recorded call that outlive it unseen.

At replay the body of forward does not run, so a tensor that it left in a global list (say) would not be made again. A
pending tensor that is still alive after the call is held by the result, by a module attribute, by the tape, or it
escapes. The first three are counted and compared with the count of all references.
"""

from __future__ import annotations

import sys
from collections import Counter

from ..tensor.tensor import Tensor
from .log import Log
from .steps import alive, map_tree
from .trace import Node


def find_escape(log: Log, boxed: list) -> Node | None:
    """The node that made a tensor which something holds that a replay would not serve; None if there is none.

    boxed: the result of the call, in a list that holds the only reference to it.
    """
    made = {v: node for node in log.current.nodes for v in node.results}
    tensors = [t for v, refs in log.live.items() if v in made for t in alive(refs)]
    handles = list({id(t._pending): t._pending for t in tensors}.values())
    known, aliases = Counter(), {}
    _count(boxed, known, aliases)
    for module, name, _ in log.current.attributes:
        _count(module().__dict__[name], known, aliases)
    _count_tape([*tensors, *aliases.values()], known, aliases)
    own = {id(t) for t in tensors}
    holders = Counter(id(t._pending) for t in tensors)
    holders.update(id(t._pending) for key, t in aliases.items() if key not in own)
    aliases.clear()
    tensors.append(object())
    handles.append(object())
    spare, spare_handle = sys.getrefcount(tensors[-1]), sys.getrefcount(handles[-1])
    for i in range(len(tensors) - 1):
        if sys.getrefcount(tensors[i]) - known[id(tensors[i])] > spare:
            return made[tensors[i]._pending.value]
    for i in range(len(handles) - 1):
        if sys.getrefcount(handles[i]) - holders[id(handles[i])] > spare_handle:
            return made[handles[i].value]
    return None


def _count(tree, known: Counter, aliases: dict) -> None:
    """Count the references to tensors in a tree."""

    def count(t: Tensor) -> None:
        known[id(t)] += 1
        if t._pending is not None:
            aliases[id(t)] = t

    map_tree(tree, Tensor, count)


def _count_tape(roots: list[Tensor], known: Counter, aliases: dict) -> None:
    """Count the references that nodes of the tape hold."""
    todo = [t.grad_fn for t in roots if t.grad_fn is not None]
    seen = set()
    while todo:
        node = todo.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        _count(node.kept(), known, aliases)
        if hasattr(node, "contents"):
            _count(node.contents()[1], known, aliases)
        for edge in node.edges:
            if isinstance(edge, Tensor):
                known[id(edge)] += 1
            elif edge is not None:
                todo.append(edge[0])
