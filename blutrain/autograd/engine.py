"""Backward: walks the nodes that made the roots, newest first, and runs their derivatives through dispatch.

It works on pending tensors as on real ones (nova records it). The order of the walk, and so of every sum, is the
reverse of the order in
which operations were recorded: equal runs give equal bits.
"""

from __future__ import annotations

import sys
from typing import Any

from .. import config
from ..errors import message
from ..tensor import dispatch
from ..tensor.ops import arithmetic, create
from ..tensor.tensor import Tensor
from .hooks import line_up, reducer_of, sharers
from .mode import state
from .tape import edge_of, node_of


def reachable(roots) -> list:
    """The nodes that made `roots`, newest first."""
    found, todo = {}, [n for n in map(node_of, roots) if n is not None]
    while todo:
        node = todo.pop()
        if id(node) in found:
            continue
        found[id(node)] = node
        for edge in node.edges:
            if type(edge) is tuple and id(edge[0]) not in found:
                todo.append(edge[0])
    return sorted(found.values(), key=lambda n: n.number, reverse=True)


def run_backward(roots, grads, *, retain_graph=None, create_graph=False, accumulate=None, inputs=None) -> None:
    """Add the gradients of `roots` (weighted by `grads`; None: ones) to the leaves they were made from.

    accumulate(leaf, grad): called once per leaf with its whole gradient; default: adds to leaf.grad. inputs: add to .grad
    of these tensors, leaves or not, and of no others. Errors: RuntimeError for a graph that was freed, operations without
    a gradient, saved tensors changed in place, an input that requires no gradient.
    """
    walk = _Walk("backward", roots, grads, retain_graph, create_graph)
    walk.accumulates = True
    walk.tells_reducers = accumulate is None and inputs is None
    wanted = None if inputs is None else _wanted("backward", inputs)
    try:
        walk.run(accumulate or walk.add_to_leaf, wanted or {}, wanted)
        for x in inputs or ():
            if x.grad_fn is not None and (grad := wanted[_key(edge_of(x))]) is not None:
                walk.add_to_leaf(x, grad)
        for reducer in sorted(walk.reducers.values(), key=lambda reducer: reducer.number):
            reducer.finish()
    finally:
        for reducer in walk.reducers.values():
            reducer.reset()


def run_grad(roots, inputs, grads, *, retain_graph=None, create_graph=False, allow_unused=False) -> tuple:
    """The gradients of `roots` with respect to `inputs` (leaves or not), as a tuple; no leaf's .grad changes.

    Errors: as run_backward; RuntimeError for an input that was not used, unless allow_unused (its gradient is then
    None).
    """
    walk = _Walk("grad", roots, grads, retain_graph, create_graph)
    wanted, leaves = _wanted("grad", inputs), {}
    walk.run(lambda leaf, grad: leaves.__setitem__(id(leaf), grad), wanted, wanted)
    result = []
    for i, x in enumerate(inputs):
        key = _key(edge_of(x))
        grad = wanted[key] if wanted[key] is not None else leaves.get(key)
        if grad is None and not allow_unused:
            help = "pass allow_unused=True to get None for it"
            raise RuntimeError(
                message("grad", f"input {i} was not used to compute the roots", got=str(x._aval), help=help)
            )
        result.append(grad)
    return tuple(result)


def _wanted(op: str, inputs) -> dict:
    """The edges of `inputs`, each with no gradient so far. Errors: RuntimeError for one that requires none."""
    wanted = {}
    for x in inputs:
        edge = edge_of(x)
        if edge is None:
            raise RuntimeError(
                message(op, "an input does not require a gradient", got=str(x._aval), help="x.requires_grad_()")
            )
        wanted[_key(edge)] = None
    return wanted


def _key(edge):
    """What identifies an edge: a leaf's id, or (node's id, number of the result)."""
    return (id(edge[0]), edge[1]) if type(edge) is tuple else id(edge)


class _Walk:
    """One backward pass."""

    def __init__(self, op: str, roots, grads, retain_graph, create_graph: bool):
        self.retain = create_graph if retain_graph is None else retain_graph
        self.create_graph = create_graph
        self.roots = list(roots)
        self.seeds = [_seed(op, r, g) for r, g in zip(self.roots, grads, strict=True)]
        self.buffers: dict[int, list] = {}  # node -> gradient so far of each result
        self.leaf_grads: dict[int, Tensor] = {}
        self.leaf_uses: dict[int, int] = {}
        self.wanted: dict | None = None
        self.accumulates = self.tells_reducers = False
        self.is_checked = config.get("detect_anomaly")
        self.reducers: dict[int, Any] = {}  # those that were told of a gradient
        self.shared: dict[int, Tensor] = {}  # gradients that somebody else holds too: a leaf must not take them over

    def run(self, deliver, captured: dict, wanted: dict | None) -> None:
        """deliver(leaf, grad) for leaves; captured: key of an edge -> filled with its gradient; wanted: only what leads to
        these edges, and of the leaves only those among them.
        """
        self.wanted = wanted
        nodes = reachable(self.roots)
        needed = nodes if wanted is None else _leading_to(nodes, wanted)
        for node in needed:
            if node.freed:
                _raise_freed(node)
            for edge in node.edges:
                if isinstance(edge, Tensor):
                    self.leaf_uses[id(edge)] = self.leaf_uses.get(id(edge), 0) + 1
        if self.tells_reducers:
            line_up(edge for node in needed for edge in node.edges if isinstance(edge, Tensor))
        run = {id(n) for n in needed}
        before = state.enabled
        state.enabled = self.create_graph
        try:
            edges = [edge_of(root) for root in self.roots]
            for edge in edges:
                if isinstance(edge, Tensor):
                    self.leaf_uses[id(edge)] = self.leaf_uses.get(id(edge), 0) + 1
            for edge, seed in zip(edges, self.seeds):
                self.shared[id(seed)] = seed
                self._send(edge, seed, deliver)
            for node in nodes:
                grads = self.buffers.pop(id(node), None)
                if grads is None:
                    if id(node) in run:
                        self._skip(node, deliver)
                    continue
                if node.hooks is not None:
                    _run_hooks(node, grads)
                if captured:
                    for i, grad in enumerate(grads):
                        if (id(node), i) in captured:
                            captured[id(node), i] = grad
                if id(node) in run:
                    self._step(node, grads, deliver)
                if not self.retain:
                    node.free()
        finally:
            state.enabled = before

    def _step(self, node, grads, deliver) -> None:
        """Run one node and send its operands' gradients on."""
        if dispatch.recorder is not None:
            dispatch.recorder.location = node.location
        try:
            results = node.run(grads)
        except Exception as error:
            if sys.version_info >= (3, 11):
                error.add_note(f"in the backward of {node.name}, called at {node.location[0]}:{node.location[1]}")
            raise
        if len(results) != len(node.edges):
            raise RuntimeError(
                message(
                    node.name,
                    "its backward returns one gradient per operand",
                    expected=str(len(node.edges)),
                    got=str(len(results)),
                )
            )
        sent = [*map(id, grads)]
        for i, (edge, grad) in enumerate(zip(node.edges, results)):
            if edge is None:
                continue
            if grad is not None:
                if not isinstance(grad, Tensor) or grad._aval != node.avals[i] or self.is_checked:
                    _check(node, i, grad)
                key = id(grad)
                if key in sent or key in self.shared:
                    self.shared[key] = grad
                sent.append(key)
            self._send(edge, grad, deliver)

    def _skip(self, node, deliver) -> None:
        """A node whose results got no gradient sends none."""
        for edge in node.edges:
            if isinstance(edge, Tensor):
                self._send(edge, None, deliver)

    def _send(self, edge, grad, deliver) -> None:
        if type(edge) is tuple:
            if grad is None:
                return
            node, index = edge
            buffer = self.buffers.get(id(node))
            if buffer is None:
                buffer = self.buffers[id(node)] = [None] * len(node.result_avals)
            buffer[index] = grad if buffer[index] is None else arithmetic.add(buffer[index], grad)
            return
        leaf, key = edge, id(edge)
        if grad is not None:
            known = self.leaf_grads.get(key)
            self.leaf_grads[key] = grad if known is None else arithmetic.add(known, grad)
        self.leaf_uses[key] -= 1
        if not self.leaf_uses[key] and key in self.leaf_grads:
            self._finish(leaf, self.leaf_grads.pop(key), deliver)

    def _finish(self, leaf: Tensor, grad: Tensor, deliver) -> None:
        if self.wanted is not None and id(leaf) not in self.wanted:
            return
        hooks = leaf._hooks
        if hooks is not None:
            grad = hooks.run(grad)
        deliver(leaf, grad)
        if hooks is not None and self.accumulates:
            hooks.run_accumulated(leaf)
            if self.tells_reducers and (reducer := reducer_of(leaf)) is not None:
                self.reducers[id(reducer)] = reducer
                reducer.ready(leaf)

    def add_to_leaf(self, leaf: Tensor, grad: Tensor) -> None:
        """The default of `accumulate`: leaf.grad += grad, in place where it exists and no graph of backward is made."""
        if not self.create_graph:
            grad = grad.detach() if grad.requires_grad else grad
        for reducer in sharers((leaf,)):
            reducer.open()
        old = leaf.grad
        if old is None:
            taken = self.create_graph or not (
                id(grad) in self.shared or grad._base is not None or not grad.is_contiguous()
            )
            leaf.grad = grad if taken else arithmetic_copy(grad)
        elif self.create_graph:
            leaf.grad = arithmetic.add(old, grad)
        else:
            old.add_(grad)


def arithmetic_copy(x: Tensor) -> Tensor:
    """A contiguous copy without history."""
    from ..tensor.ops.unary import clone

    return clone(x).detach()


def _seed(op: str, root: Tensor, grad) -> Tensor:
    """The gradient a root starts with."""
    if not root.requires_grad:
        help = "was it computed under no_grad, or from tensors without requires_grad?"
        raise RuntimeError(message(op, "the root does not require a gradient", got=str(root._aval), help=help))
    if grad is None:
        if root._aval.size != 1:
            help = "pass the gradient of the root, or reduce it to a number first (.sum(), .mean())"
            raise RuntimeError(
                message(op, "a gradient can start by itself only at one element", got=str(root._aval), help=help)
            )
        return create.full_of(root._aval, 1, root.device)
    if not isinstance(grad, Tensor) or grad._aval != root._aval or grad.device is not root.device:
        got = f"{grad._aval} on {grad.device}" if isinstance(grad, Tensor) else type(grad).__name__
        raise ValueError(
            message(op, "the gradient does not fit its root", expected=f"{root._aval} on {root.device}", got=got)
        )
    return grad


def _leading_to(nodes, wanted: dict) -> list:
    """Those of `nodes` (newest first) from which an edge in `wanted` can be reached."""
    useful, result = set(), []
    for node in reversed(nodes):
        for edge in node.edges:
            if edge is not None and (_key(edge) in wanted or (type(edge) is tuple and id(edge[0]) in useful)):
                useful.add(id(node))
                result.append(node)
                break
    return result[::-1]


def _run_hooks(node, grads: list) -> None:
    for index, hooks in node.hooks.items():
        if grads[index] is not None:
            grads[index] = hooks.run(grads[index])


def _check(node, i: int, grad) -> None:
    aval = node.avals[i]
    if not isinstance(grad, Tensor) or grad._aval.shape != aval.shape or grad._aval.dtype is not aval.dtype:
        got = str(grad._aval) if isinstance(grad, Tensor) else type(grad).__name__
        raise RuntimeError(
            message(
                node.name,
                f"its backward gives a gradient that does not fit operand {i}",
                expected=str(aval),
                got=got,
                location=node.location,
            )
        )
    if config.get("detect_anomaly") and grad._pending is None and grad.isnan().any().item():
        help = "look at the forward values at that line: a NaN, or a derivative that is infinite there"
        raise RuntimeError(
            message(
                node.name, f"its backward gives NaN for operand {i}", got=str(aval), location=node.location, help=help
            )
        )


def _raise_freed(node) -> None:
    rule = "its saved tensors were freed by an earlier backward"
    raise RuntimeError(
        message(node.name, rule, location=node.location, help="call the first backward with retain_graph=True")
    )
