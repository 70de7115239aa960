"""The tape: links the results of operations to their operands while gradients are on. Fills the slot `dispatch.tape`.

A node holds its primitive, what the derivative keeps, and an edge per operand: None (no gradient wanted), a leaf
tensor, or (node, number of its result). Nodes are numbered in the order they are made, which is an order backward can
walk in reverse.
"""

from __future__ import annotations

import itertools
from typing import Any

from ..errors import message, user_location
from ..tensor import dispatch
from ..tensor.ops.unary import clone
from ..tensor.primitive import NotDifferentiable
from ..tensor.tensor import Tensor
from .mode import state
from .saved import _Packed, outdated, renewed, restore, save

_numbers = itertools.count()
_KEPT = frozenset((tuple, _Packed))
FREED = "freed"


class Deferred:
    """Stands in `grad_fn` for a node that is made when it is needed: `make()` puts real nodes in its place on every
    tensor that has it.
    """

    __slots__ = ("make",)
    name = "deferred"

    def __init__(self, make):
        self.make = make


def node_of(x) -> Any:
    """The node that made tensor x, None for a leaf."""
    if x._base is not None and x._version.history != x._history:
        dispatch.refresh_view(x)
    if type(x.grad_fn) is Deferred:
        x.grad_fn.make()
    return x.grad_fn


def edge_of(x):
    """Where the gradient of a tensor goes: None, the tensor itself (a leaf), or (node, number of its result)."""
    if not isinstance(x, Tensor) or not x._requires_grad:
        return None
    node = x.grad_fn
    if x._base is not None or type(node) is Deferred:
        node = node_of(x)
    return x if node is None else (node, x._index)


class Node:
    """One recorded operation. `operands` and `results` hold what is kept of them (see saved.py), Python numbers as they
    are, else None.
    """

    __slots__ = (
        "attrs",
        "avals",
        "edges",
        "hooks",
        "location",
        "number",
        "operands",
        "prim",
        "result_avals",
        "results",
    )

    def __init__(self, prim, operands, results, attrs, location):
        self.prim, self.attrs, self.location, self.hooks = prim, attrs, location, None
        edges, avals, kept = [], [], []
        for x in operands:
            if isinstance(x, Tensor):
                edges.append(edge_of(x) if x._requires_grad else None)
                avals.append(x._aval)
                kept.append(None)
            else:
                edges.append(None)
                avals.append(dispatch.aval_of(x))
                kept.append(x)
        self.number = next(_numbers)  # after the edges: those may make deferred nodes, which come before this one
        self.edges, self.avals, self.result_avals = edges, avals, [r._aval for r in results]
        self.operands: Any = kept
        self.results: Any = [None] * len(results)
        saves = prim.saves
        for k, i in enumerate(saves.operands):
            if i < len(operands) and kept[i] is None and _is_needed(saves, k, edges):
                kept[i] = save(operands[i])
        for i in saves.results:
            if i < len(results):
                self.results[i] = save(results[i], own=i)

    @property
    def name(self) -> str:
        return self.prim.name

    def run(self, grads):
        """The gradients of the operands, by the primitive's vjp. Errors: RuntimeError where the operation has none."""
        if isinstance(self.prim.vjp, NotDifferentiable):
            raise RuntimeError(message(self.name, f"has no gradient: {self.prim.vjp.reason}", location=self.location))
        return self.prim.vjp(_Context(self), *grads)

    def kept(self) -> list[Tensor]:
        """The tensors that are held for backward."""
        return [] if self.freed else [x[0] for x in (*self.operands, *self.results) if type(x) is tuple]

    def free(self) -> None:
        """Drop what was kept; a second backward through here is an error."""
        self.operands = self.results = FREED

    def change_kept(self, change) -> None:
        """Have change(x) in the place of all x that are kept (see saved.py)."""
        if not self.freed:
            self.operands, self.results = [change(x) for x in self.operands], [change(x) for x in self.results]

    @property
    def freed(self) -> bool:
        return self.operands is FREED

    def __repr__(self) -> str:
        return f"<{self.name} at {self.location[0]}:{self.location[1]}>"


def _is_needed(saves, k: int, edges) -> bool:
    """Is a gradient wanted that needs the k-th saved operand?"""
    if not saves.needed_for:
        return True
    for j in saves.needed_for[k]:
        if j < len(edges) and edges[j] is not None:
            return True
    return False


class _Context:
    """What a vjp rule sees of its node: operands and results (None where not kept), avals, attributes, whose gradients
    are wanted.
    """

    __slots__ = ("attrs", "avals", "needs", "operands", "result_avals", "results")

    def __init__(self, node: Node):
        edges = node.edges
        self.avals, self.result_avals, self.attrs = node.avals, node.result_avals, node.attrs
        self.needs = [e is not None for e in edges]
        self.operands = [restore(x, node, e) if type(x) in _KEPT else x for x, e in zip(node.operands, edges)]
        self.results = [x if x is None else restore(x, node, (node, i)) for i, x in enumerate(node.results)]


def record(prim, operands, results, attrs, location=None) -> None:
    """Link results (a tuple) to operands, if grad mode is on and an operand requires a gradient. `location`: the user's
    (file, line).
    """
    if not state.enabled or not results:
        return
    for x in operands:
        if isinstance(x, Tensor) and x._requires_grad:
            break
    else:
        return
    for r in results:
        if r._aval.dtype.is_floating:
            break
    else:
        return
    node = Node(prim, operands, results, attrs, location or user_location())
    link(node, results)


def link(node, results) -> None:
    """Make floating tensors the results of `node`."""
    for i, result in enumerate(results):
        if result._aval.dtype.is_floating:
            result._requires_grad, result.grad_fn, result._index = True, node, i


def relink(node, operands, results, linked, saved, attributes) -> None:
    """Put the call of a custom Function that `node` stands for on the tape of other tensors (see FunctionNode.again).

    linked: for each result, whether it is one of the new node's.
    """
    new = node.again(operands, results, saved, attributes)
    for i, (result, is_linked) in enumerate(zip(results, linked)):
        if is_linked:
            result._requires_grad, result.grad_fn, result._index = True, new, i


def keep_copy(made: Tensor, x: Tensor) -> None:
    """Have the node that made a tensor keep a copy of its operand x, which is about to be changed in place."""
    node = node_of(made)
    if type(node) is not Node:
        return
    for i, kept in enumerate(node.operands):
        if type(kept) is tuple and kept[0] is x:
            node.operands[i] = save(clone(x.detach()))


def gate(x: Tensor) -> Tensor:
    """A leaf with the value of x at which backward stops."""
    proxy = x._alias()
    proxy._requires_grad = True
    return proxy


def release(x: Tensor) -> None:
    """Free the graph that made x, as a backward without retain_graph does."""
    from .engine import reachable

    for node in reachable([x]):
        node.free()


def outdate(x: Tensor, changed: list[Tensor]) -> None:
    """Have the graph that made x find, wherever it kept one of these tensors, that it was changed in place since."""
    from .engine import reachable

    versions = {id(t._versions()) for t in changed}
    for node in reachable([x]):
        node.change_kept(lambda kept: outdated(kept, versions))


def renew(nodes: list, tensors: list[Tensor]) -> None:
    """What these nodes kept of these tensors, which got the version of the memory they are views of, is up to date."""
    ids = set(map(id, tensors))
    for node in nodes:
        node.change_kept(lambda kept: renewed(kept, ids))


def enabled() -> bool:
    """Is grad mode on in this thread?"""
    return state.enabled


def packs() -> bool:
    """Are saved_tensors_hooks active in this thread?"""
    return state.saver is not None


def next_number() -> int:
    """The number of a node made now."""
    return next(_numbers)
