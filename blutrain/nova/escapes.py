"""Finds tensors of a recorded call that outlive it unseen.

At replay the body of forward does not run, so a tensor that it left in a global list (say) would not be made again. A pending tensor that
is still alive after the call is held by the result, by a module attribute, by the tape (whose references are counted), or it escapes.
"""

from __future__ import annotations

import sys
from collections import Counter

from ..tensor.tensor import Tensor
from .log import Log, map_tree
from .trace import Node


def find_escape(log: Log, result) -> Node | None:
    """The node that made a tensor which something holds that a replay would not serve; None if there is none."""
    step = log.current
    known: set[int] = set()
    map_tree(result, Tensor, lambda t: known.add(id(t)))
    known.update(id(m.__dict__[name]) for m, name, _ in step.attributes)
    made = {v: node for node in step.nodes for v in node.results}
    values, tensors = [], []
    for value, refs in log.live.items():
        for ref in refs if value in made else ():
            tensor = ref()
            if tensor is not None and id(tensor) not in known:
                values.append(value)
                tensors.append(tensor)
    tensor = None
    saved = _saved_on_tape(tensors, result)
    tensors.append(object())
    unheld = sys.getrefcount(tensors[-1])
    for i, value in enumerate(values):
        if sys.getrefcount(tensors[i]) - saved[id(tensors[i])] > unheld:
            return made[value]
    return None


def _saved_on_tape(tensors: list[Tensor], result) -> Counter:
    """How often each tensor is held by nodes of the tape."""
    roots = list(tensors)
    map_tree(result, Tensor, roots.append)
    todo = [t.grad_fn for t in roots if t.grad_fn is not None]
    seen, count = set(), Counter()
    while todo:
        node = todo.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        count.update(id(t) for t in node.kept())
        for edge in node.edges:
            if isinstance(edge, Tensor):
                count[id(edge)] += 1
            elif edge is not None:
                todo.append(edge[0])
    return count
