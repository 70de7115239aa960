"""The graph of a replayed sequence whose values were read before its backward.

A replay makes no tape. If tensors that require a gradient outlive the flush, the program also hands out what backward will need (the
residuals); a later backward on them is an event of its own, so it is compiled too. Only if something else needs the real tape (an eager
operation on such a tensor) it is built then, from the recorded steps.
"""

from __future__ import annotations

import weakref
from typing import Any

from ..errors import message
from ..tensor import dispatch
from ..tensor.tensor import Tensor
from .log import FunctionCall, Handle, Log, alive
from .trace import Constant


class OpenGraph:
    """Steps of a flushed log with the values that were kept of them. `tensors`: value -> real tensor."""

    def __init__(self, log: Log, results: dict[int, Any], residuals: list[int]):
        self.steps, self.device, self.owner = list(log.steps), log.device, log.owner
        self.has_boundary = bool(log.proxies) or any(t.grad_fn is not None for t in log.externals.values())
        self.externals = dict(log.externals)
        self.residuals = {v: Tensor._wrap(results[v], log.device, log.aval(v)) for v in residuals}
        self.holders: dict[int, weakref.ref] = {}
        self.freed = False
        for value, refs in log.live.items():
            for tensor in alive(refs):
                if tensor.requires_grad:
                    tensor.grad_fn = dispatch.tape.deferred(self.open)
                    self.holders[id(tensor)] = weakref.ref(tensor)
                    self.residuals[value] = tensor

    def value_of(self, tensor: Tensor) -> int:
        """The value a held tensor stands for."""
        return next(v for v, t in self.residuals.items() if t is tensor)

    def free(self) -> None:
        """A backward used the graph up."""
        self.freed = True
        self.residuals = {}
        self.externals = {}

    def open(self) -> None:
        """Build the tape and put the held tensors on it. Errors: RuntimeError for a graph that backward used up."""
        if self.freed:
            raise RuntimeError(
                message(
                    "backward", "the graph was used by an earlier backward", help="pass retain_graph=True to that one"
                )
            )
        tensors = {**self.externals, **self.residuals}
        for tensor in self.residuals.values():
            tensor.grad_fn, tensor.requires_grad = None, False
        for step in self.steps:
            tensors.update(step.captured)
        for step in self.steps:
            for item, taped in zip(step.items, step.taped, strict=True):
                if taped:
                    self._put_on_tape(item, tensors, step)

    def _put_on_tape(self, item, tensors: dict[int, Tensor], step) -> None:
        def tensor(v: int) -> Tensor:
            if v not in tensors:
                tensors[v] = Tensor._make_pending(self._aval(v), self.device, _not_kept())
            return tensors[v]

        results = tuple(tensor(v) for v in item.results)
        if isinstance(item, FunctionCall):
            dispatch.tape.relink(item.node, [None if v is None else tensor(v) for v in item.operands], results)
            return
        operands = [x.value if isinstance(x, Constant) else tensor(x) for x in item.operands]
        dispatch.tape.record(item.prim, operands, results, item.attrs, item.location)

    def _aval(self, value: int):
        step = next(s for s in reversed(self.steps) if s.first <= value)
        return step.avals[value - step.first]


def _not_kept() -> Handle:
    """The handle of a value that no derivative needs: nobody may read it."""
    handle = Handle(None, -1)
    handle.error = RuntimeError("a value of a replayed step that was not kept is read")
    return handle


def graph_of(roots: list[Tensor]) -> OpenGraph | None:
    """The one open graph that made all `roots`, if there is one."""
    graphs = {id(g): g for g in (getattr(getattr(r.grad_fn, "make", None), "__self__", None) for r in roots)}
    graph = next(iter(graphs.values()))
    return graph if len(graphs) == 1 and isinstance(graph, OpenGraph) else None
