"""The recorder's events that make gradients: backward, grad, `p.grad`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..tensor import dispatch
from ..tensor.tensor import Tensor, structure_epoch
from .keys import tensors_key
from .log import Log
from .open_graph import OpenGraph, graph_of
from .slots import GradSlots, consumed_error
from .steps import Leaves, has_hooks
from .trace import Location


class GradientEvents:
    """The part of the Recorder that this file holds; the other parts are in record.py."""

    if TYPE_CHECKING:
        log: Log | None
        recording: bool
        slots: GradSlots
        location: tuple[str, int] | None

        def flush(self) -> None: ...
        def refuse_training(self) -> None: ...
        def _begin(self, device) -> Log: ...
        def _body(self) -> Any: ...
        def _event(self, log: Log, key: tuple, scalars: list, body: Any) -> Any: ...
        def _log_of(self, roots) -> Log | None: ...

    # ---------------------------------------------------------------- backward

    def backward(self, roots: list[Tensor], grads: list[Tensor | None], retain_graph: bool, create_graph: bool, inputs):
        """loss.backward() on pending roots, or on what a replayed sequence left: NotImplemented for any other, and for some
        inputs only, which may lie behind an outside tensor.
        """
        self.refuse_training()
        log = self._log_of(roots)
        if inputs is not None:
            if log is not None:
                self.flush()
            return NotImplemented
        graph = None if log is not None or self.recording or retain_graph or create_graph else _replayable_graph(roots)
        if log is None:
            return NotImplemented if graph is None else self._backward_of_graph(graph, roots, grads)
        log.fresh = {}
        base = ("backward", tensors_key(log, roots), tensors_key(log, grads), retain_graph)
        if create_graph or _meets_hooks(log, roots) or self._needs_eager(log, roots, log.position.leaves.get(base)):
            self.flush()  # (a pending p.grad has no history)
            return NotImplemented
        self._record_backward(log, base, {}, roots, grads, retain_graph)
        if log.position.boundary:
            self._hand_out_boundary(log, retain_graph)
        return None

    def _backward_of_graph(self, graph: OpenGraph, roots: list[Tensor], grads: list[Tensor | None]):
        """A backward after the flush: the first event of a new log, which reads what the graph kept."""
        self.flush()
        log = self._begin(graph.device)
        log.owner = graph.owner
        log.fresh, scalars = graph.backward_operands(roots)
        base = ("backward", graph.backward_key(roots), tensors_key(log, grads), False)
        if self._needs_eager(log, roots, log.position.leaves.get(base)):
            self.log = None
            return NotImplemented
        self._record_backward(log, base, scalars, roots, grads, False, graph)
        graph.use(roots)
        return None

    def _record_backward(self, log: Log, base, scalars, roots, grads, retain_graph, graph=None) -> None:
        """Take a backward event into the log: replayed where it is known for these gradient slots."""
        parent = log.position
        slots = self._slots(log, parent.leaves.get(base))

        def body(numbers):
            if graph is not None:
                graph.open(dict(zip(scalars, numbers, strict=True)))
            found: list[Tensor] = []
            step = log.current
            step.grads = dict(log.grads)
            step.freed = [] if retain_graph else [r._pending.value for r in roots if r._pending is not None]
            with self._body():
                dispatch.tape.run_backward(
                    roots,
                    grads,
                    retain_graph=retain_graph,
                    create_graph=False,
                    accumulate=lambda t, g: self._accumulate(log, found, t, g),
                )
            self._reduce(log, found)
            if log.refused is None:
                names = [log.leaf_name(t) for t in found]
                tensors = [x for x in names if isinstance(x, Tensor)]
                parent.leaves.setdefault(base, Leaves(tensors, tuple([x for x in names if isinstance(x, int)])))
                step.key = (*base, self._slots(log, parent.leaves[base]))

        self._event(log, (*base, slots), list(scalars.values()), body)
        known = parent.leaves.get(base) if dispatch.tape.sharing else None
        for reducer in dispatch.tape.sharers(known.tensors) if known is not None else ():
            reducer.is_open = not reducer.is_syncing or bool(log.position.boundary)

    def _slots(self, log: Log, leaves: Leaves | None) -> Any:
        """What the gradient slots of a backward's leaves hold, and who averages them, as a part of its key."""
        if leaves is None:
            return None
        if not leaves.inputs and not dispatch.tape.reducing:
            return self.slots.states(leaves), (), ()
        inputs = [log.outside(v) for v in leaves.inputs] if leaves.inputs else ()
        syncing = tuple([reducer.number for reducer in _reducers_of(leaves, inputs)])
        return self.slots.states(leaves), tuple([self.slots.state(x) for x in inputs]), syncing

    def _needs_eager(self, log: Log, roots: list[Tensor], leaves: Leaves | None) -> bool:
        """Whether a backward reaches a leaf with hooks, or one that is itself pending: user code has to see values; or
        which parameters it reaches has to be compared with other processes.

        leaves: what it is known to reach.
        """
        if leaves is None or leaves.inputs or dispatch.tape.reducing:
            reached = _reached(roots) if leaves is None else [log.outside(v) for v in leaves.inputs]
            if any(reducer.find_unused for reducer in _reducers_of(leaves, reached)):
                return True
            if dispatch.tape.sharing and self._adds_to_parts(log, reached, leaves):
                return True
            if any(t._pending is not None or has_hooks(t) for t in reached):
                return True
        if leaves is None:
            return False
        if leaves.unhooked != structure_epoch.value:
            if any(has_hooks(t) for t in leaves.tensors):
                return True
            leaves.unhooked = structure_epoch.value
        return False

    def _adds_to_parts(self, log: Log, reached: list[Tensor], leaves: Leaves | None) -> bool:
        """Whether a backward adds to averages of which each process has a part: the eager engine knows how."""
        if leaves is not None:
            reached = [*reached, *leaves.tensors]
        return any(not r.is_open and r.has_gradients(log.grads) for r in dispatch.tape.sharers(reached))

    def _reduce(self, log: Log, found: list[Tensor]) -> None:
        """Average the gradients of a recorded backward over processes, where that is wanted: a primitive per bucket.

        Where the backward goes on eagerly, so does this: see `_hand_out_boundary`.
        """
        step = log.current
        if log.refused is not None:
            _tell_reducers(found)
            return
        for reducer in dispatch.tape.reducers_of(found) if not step.boundary else ():
            assert step.grads is not None
            mine = [leaf for leaf in found if dispatch.tape.reducer_of(leaf) is reducer]
            if any(self.slots.state(leaf) == "consumed" and id(leaf) not in step.grads for leaf in mine):
                raise consumed_error()
            with self._body(), dispatch.tape.no_grad():
                averages = reducer.reduce({id(leaf): log.grad_tensor(leaf) for leaf in mine})
            for leaf in mine:
                held = log.grad_tensor(leaf)
                assert held is not None
                log.assign(held, averages[id(leaf)], Location(*(self.location or ("<backward>", 0))))
                step.grads[id(leaf)] = leaf, log.operand(held)

    def _accumulate(self, log: Log, found: list, leaf: Tensor, grad: Tensor) -> None:
        """Add a gradient to a leaf's pending slot."""
        if log.refused is not None:  # the rest of this backward runs eagerly
            found.append(leaf)
            self._accumulate_eagerly(leaf, grad)
            return
        step = log.current
        assert step is not None and step.grads is not None
        gate = next((k for k, p in log.proxies.items() if p is leaf), None)
        if gate is not None:
            value = log.find(next(t for t in log.externals.values() if id(t) == gate))
            assert value is not None
            step.boundary.append((value, log.operand(grad)))
            return
        location = Location(*(self.location or ("<backward>", 0)))
        found.append(leaf)
        state = self.slots.state(leaf)
        if id(leaf) in step.grads:
            held = log.grad_tensor(leaf)
            assert held is not None
            total = held + grad
            if not log.is_shared(held, total):
                log.assign(held, total, location)
                step.grads[id(leaf)] = leaf, log.operand(held)
                return
            grad = total
        elif state == "value":
            old = leaf._grad
            assert old is not None
            log.bind_gradient(leaf)
            total = old + grad
            log.assign(old, total, location)
            log.grad_tensors[id(leaf)] = old
            step.grads[id(leaf)] = leaf, log.operand(old)
            return
        elif state == "consumed":
            return  # what was there is gone, so the sum is not known: the slot stays consumed until it is zeroed
        elif log.operand(grad) < step.first or any(log.operand(grad) == v for _, v in step.grads.values()):
            grad = log.pending(log.copy(grad, location), False)  # somebody else holds it: p.grad is a memory of its own
        log.grad_tensors[id(leaf)] = grad.detach() if grad.requires_grad else grad
        step.grads[id(leaf)] = leaf, log.operand(grad)

    def _accumulate_eagerly(self, leaf: Tensor, grad: Tensor) -> None:
        for reducer in dispatch.tape.sharers((leaf,)):
            reducer.is_open = True  # what this backward gave so far are sums; there were no averages (`_adds_to_parts`)
        grad = grad.detach()
        self.set_grad(leaf, grad.clone() if leaf.grad is None else leaf.grad + grad)

    def _hand_out_boundary(self, log: Log, retain_graph: bool) -> None:
        """Backward reached eager tapes: flush, then go on there with the gradients of the boundary."""
        boundary = [(log.externals[v], log.pending(g, False)) for v, g in log.position.boundary]
        leaves = [leaf for leaf, _ in log.grads.values()]
        dispatch.tape.line_up([*leaves, *_reached([t for t, _ in boundary])])
        self.flush()
        for leaf in leaves:
            if (reducer := dispatch.tape.reducer_of(leaf)) is not None:
                reducer.ready(leaf)
        dispatch.tape.run_backward(
            [t for t, _ in boundary], [g for _, g in boundary], retain_graph=retain_graph, create_graph=False
        )
        for reducer in dispatch.tape.reducers_of(leaves):
            reducer.finish()

    def grad(self, roots, inputs, grads, retain_graph: bool, create_graph: bool, allow_unused: bool):
        """autograd.grad on pending tensors: NotImplemented where no root is pending."""
        log = self._log_of(roots)
        if log is None:
            return NotImplemented
        log.fresh = {}
        tensors = tuple([tensors_key(log, x) for x in (roots, inputs, grads)])
        key = ("grad", create_graph, retain_graph, allow_unused, tensors)
        is_new = key not in log.position.children
        if _meets_hooks(log, roots) or (is_new and (log.reaches_gate(roots) or self._needs_eager(log, roots, None))):
            self.flush()
            return NotImplemented

        def body(_):
            log.current.freed = [] if retain_graph else [r._pending.value for r in roots if r._pending is not None]
            with self._body():
                return dispatch.tape.run_grad(
                    roots,
                    inputs,
                    grads,
                    retain_graph=retain_graph,
                    create_graph=create_graph,
                    allow_unused=allow_unused,
                )

        return self._event(log, key, [], body)

    def get_grad(self, parameter: Tensor) -> Tensor | None:
        """`p.grad`."""
        self.refuse_training()
        if self.log is not None:
            pending = self.log.grad_tensor(parameter)
            if pending is not None:
                return pending
        return self.slots.get(parameter)

    def set_grad(self, parameter: Tensor, value: Tensor | None) -> None:
        """`p.grad = value`."""
        self.refuse_training()
        if self.log is not None and id(parameter) in self.log.grads:
            self.flush()
        if value is not None and value._pending is not None:
            value._buffer()
        self.slots.set(parameter, value)


def _meets_hooks(log: Log, roots: list[Tensor]) -> bool:
    """Whether a backward comes to results of operations with hooks, which run at each backward: whoever gave one its hook
    had the tape built.
    """
    if not log.taped:
        return False
    nodes = dispatch.tape.reachable(roots)
    return any(node.hooks and any(hooks.any() for hooks in node.hooks.values()) for node in nodes)


def _reached(roots: list[Tensor]) -> list[Tensor]:
    """The leaves that a backward from pending roots reaches."""
    return [edge for node in dispatch.tape.reachable(roots) for edge in node.edges if isinstance(edge, Tensor)]


def _reducers_of(leaves: Leaves | None, others: Sequence[Tensor]) -> list[Any]:
    """What averages gradients of these leaves over processes now, in the order they were made."""
    if not dispatch.tape.reducing:
        return []
    found = dispatch.tape.reducers_of(others) if others else []
    if leaves is None:
        return found
    found = {*found, *[reducer for reducer in leaves.find_reducers() if reducer.is_syncing]}
    return sorted(found, key=lambda reducer: reducer.number)


def _tell_reducers(leaves: list[Tensor]) -> None:
    """Eager gradients of one backward, all of which are there."""
    for reducer in dispatch.tape.reducers_of(leaves):
        for leaf in dict.fromkeys(leaves):
            if dispatch.tape.reducer_of(leaf) is reducer:
                reducer.ready(leaf)
        reducer.finish()


def _replayable_graph(roots: list[Tensor]) -> OpenGraph | None:
    """The graph that replayed steps left of all roots, if their backward can be an event."""
    graph = graph_of(roots)
    if graph is None or graph.has_boundary or not graph.is_open(roots) or graph.stale():
        return None
    return graph
