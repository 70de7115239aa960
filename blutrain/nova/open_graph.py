"""The graph of a replayed sequence whose results outlive the flush.

If tensors that require a gradient are still held, the program also hands out what their backward will read. A later
backward on them is an event of its own, so it is compiled too. Only if something else needs the real tape (an eager
operation on such a tensor) it is built then, from the recorded steps.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

from ..tensor import dispatch
from ..tensor.tensor import Tensor, write_epoch
from .log import Log
from .retape import OpenValues, open_values, rebuild
from .steps import Handle, alive

if TYPE_CHECKING:
    from .record import Recorder


class OpenGraph:
    """Steps of a flushed log with the values that were kept of them.

    kept: value -> tensor that backward reads (aliases of held ones and inputs among them); scalars: value -> number that
    backward reads; used: roots of backwards since. It is owned by the tensors that were held, and does not own them.
    """

    def __init__(self, recorder: Recorder, log: Log, results: dict[int, Any], values: OpenValues):
        self.recorder, self.clock, self.written = recorder, recorder.clock, write_epoch.value
        self.steps, self.device, self.owner = log.steps, log.device, log.owner
        self.used: list[int] = []
        self._held: list[tuple[int, weakref.ref]] | None = None
        self.has_boundary = False
        self._live = log.live
        self.kept: dict[int, Tensor] = {}
        self.scalars: dict[int, float | int] = {}
        self.externals = dict(log.externals) if values.is_open else _edges_of(log.externals)
        if values.is_open:
            self.has_boundary = bool(log.proxies) or any(t.grad_fn is not None for t in log.externals.values())
            self.clock -= any(v in step.updates for step in log.steps for v in values.kept)
            self._keep(log, results, values)
        log.deferred.make = self.open  # the held tensors have it

    def _keep(self, log: Log, results: dict[int, Any], values: OpenValues) -> None:
        numbers = log.scalar_values()
        for v in values.kept:
            if v in numbers:
                self.scalars[v] = numbers[v]
            elif v in values.made:
                kept = self.kept[v] = Tensor._wrap(results[v], log.device, log.aval(v))
                for twin in _sharing_memory(log, v):
                    kept._version = twin._versions()
            elif v in log.externals:
                self.kept[v] = log.externals[v]

    @property
    def held(self) -> dict[int, list[Tensor]]:
        """The real tensors that stand for values and are still alive."""
        if self._held is None:  # the tape is not built yet
            live = ((value, ref, ref()) for value, refs in self._live.items() for ref in refs)
            self._held = [(value, ref) for value, ref, t in live if t is not None and _graph_of(t) is self]
        held: dict[int, list[Tensor]] = {}
        for value, ref in self._held:
            tensor = ref()
            if tensor is not None:
                held.setdefault(value, []).append(tensor)
        return held

    def is_open(self, roots: list[Tensor]) -> bool:
        """Whether a backward from `roots` finds anything that none before has used up."""
        return self._open_values(frozenset(self._values_of(roots))).is_open

    def stale(self) -> list[Tensor]:
        """What the graph reads and somebody changed in place since: its derivatives would be wrong."""
        if self.clock == self.recorder.clock and self.written == write_epoch.value:
            return []
        written = self.recorder.written_since(self.clock)
        captured = [t for step in self.steps for _, t in step.captured]
        changed = [t for t in captured if id(t) in written]
        changed += [
            t for t in (*captured, *self.kept.values()) if t._version is not None and t._version.value > self.written
        ]
        return changed

    def backward_key(self, roots: list[Tensor]) -> tuple:
        """What a backward from `roots` is, as the first event of a log."""
        return self.steps[-1].number, self._values_of(roots), tuple(self.used)

    def backward_operands(self, roots: list[Tensor]) -> tuple[dict[int, Tensor], dict[int, float | int]]:
        """What that event brings in: by id the roots and the tensors their derivatives read; by value the numbers."""
        kept = self._open_values(frozenset(self._values_of(roots))).kept
        tensors = [*roots, *(self.kept[v] for v in kept if v in self.kept)]
        return {id(t): t for t in tensors}, {v: self.scalars[v] for v in kept if v in self.scalars}

    def use(self, roots: list[Tensor]) -> None:
        """A backward from `roots` used up what led to them."""
        self.used += self._values_of(roots)
        left = self._open_values(frozenset(v for v, tensors in self.held.items() if tensors))
        self.kept = {v: t for v, t in self.kept.items() if v in left.kept}
        self.externals = self.externals if left.is_open else _edges_of(self.externals)

    def _values_of(self, roots: list[Tensor]) -> tuple[int, ...]:
        return tuple([next(v for v, tensors in self.held.items() if any(t is r for t in tensors)) for r in roots])

    def _open_values(self, held: frozenset[int]) -> OpenValues:
        return open_values(self.steps, held, tuple(self.used))

    def open(self, numbers: dict[int, Any] | None = None) -> None:
        """Build the tape and put the held tensors on it.

        numbers: what stands for `scalars` in the event being recorded.
        """
        tensors: dict[int, Any] = {**self.externals, **self.scalars, **self.kept, **(numbers or {})}
        for step in self.steps:
            tensors.update(step.captured)
        for value, held in self.held.items():
            if held:
                tensors[value] = held[0]
            for tensor in held:
                tensor.grad_fn, tensor._requires_grad = None, False
        rebuild(self.steps, tensors, lambda v: Tensor._make_pending(self._aval(v), self.device, _not_kept()))
        for held in self.held.values():
            for tensor in held:
                tensor._requires_grad = True
                tensor.grad_fn, tensor._index = held[0].grad_fn, held[0]._index
        for value in self.used:
            dispatch.tape.release(tensors[value])
        if stale := self.stale():  # what kept an old value says so when it is needed
            for held in self.held.values():
                dispatch.tape.outdate(held[0], stale)

    def _aval(self, value: int):
        step = next(s for s in reversed(self.steps) if s.first <= value)
        return step.avals[value - step.first]


def _sharing_memory(log: Log, value: int) -> list[Tensor]:
    """A tensor, if there is one, whose changes in place are changes of what stands for `value`."""
    root = log.root_value(value)
    if not log.is_made(root):
        return [log.externals[root] if root in log.externals else log.captured(root)]
    return (alive(log.live.get(root, ())) or alive(log.live.get(value, ())))[:1]


def _not_kept() -> Handle:
    """The handle of a value that no derivative needs: nobody may read it."""
    handle = Handle(None, -1)
    handle.error = RuntimeError("a value of a replayed step that was not kept is read")
    return handle


def _edges_of(externals: dict[int, Tensor]) -> dict[int, Tensor]:
    """What stands for outside tensors in a graph that was used up: leaves, and places on a tape without their memory.

    Whoever walks the graph again finds that it was freed, as in eager mode, rather than that it led nowhere.
    """
    edges = {value: tensor for value, tensor in externals.items() if tensor._requires_grad}
    for value, tensor in edges.items():
        if tensor.grad_fn is not None and not isinstance(tensor.grad_fn, dispatch.tape.deferred):
            edges[value] = place = Tensor._make_pending(tensor._aval, tensor.device, _not_kept())
            node = dispatch.tape.node_of(tensor)
            place._requires_grad, place.grad_fn, place._index = True, node, tensor._index
    return edges


def graph_of(roots: list[Tensor]) -> OpenGraph | None:
    """The one open graph that made all `roots`, if there is one."""
    graphs = {id(g): g for g in map(_graph_of, roots)}
    graph = next(iter(graphs.values()))
    return graph if len(graphs) == 1 and isinstance(graph, OpenGraph) else None


def _graph_of(tensor: Tensor) -> Any:
    """The object whose method makes a tensor's node when it is needed, if there is one."""
    return getattr(getattr(tensor.grad_fn, "make", None), "__self__", None)
