"""Records a training step from shapes alone: no data, no arithmetic, no GPU.

    with shapes_only():
        model, optimizer = MLPGPT(config), AdamW(...)       # parameters without values
    trace = record_step(model, optimizer, inputs, device=Device("cuda"), precision="tf32")

Arrays are memory that nobody touches, so the operating system gives them no pages. The recorder and everything behind it
are those of a real step.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy

from ..errors import NovaError
from ..tensor import dispatch
from ..tensor.aval import Aval
from ..tensor.device import Device, cpu
from ..tensor.primitive import Primitive
from ..tensor.tensor import Tensor, aval_of, storage_epoch, structure_epoch
from .execute import wanted_trace
from .record import Recorder
from .steps import alive
from .trace import Trace

if TYPE_CHECKING:
    from ..nn.module import Module
    from ..optim.optimizer import Optimizer


class _Shapes:
    """In the recorder's place: operations give tensors of the right shape whose values are not defined."""

    recording = True

    def primitive(self, prim: Primitive, operands: tuple, attrs: dict) -> Any:
        if prim.name == "assign":
            return operands[0]
        avals = prim.infer(*map(aval_of, operands), **attrs)
        if prim.num_results == 1:
            return shaped(avals)
        return tuple(map(shaped, avals or ()))

    def draw(self, generator) -> tuple[int, int, int]:
        return generator.seed, generator.draw(), 0

    def settle(self) -> None:
        pass

    def value_read(self) -> None:
        raise TypeError("shapes_only: a value is read, and here are none")

    def host_data(self, what: str) -> None:
        raise TypeError(f"shapes_only: {what} takes values from the host, and here are none")


def shaped(aval: Aval) -> Tensor:
    """A tensor on the CPU without values."""
    return Tensor._wrap(numpy.empty(aval.shape, aval.dtype.numpy), cpu, aval)


@contextlib.contextmanager
def shapes_only() -> Iterator[None]:
    """Inside, operations on the CPU give tensors without values. Nothing may be pending."""
    before, dispatch.recorder = dispatch.recorder, _Shapes()
    try:
        yield
    finally:
        dispatch.recorder = before


class _Tracer(Recorder):
    """A recorder whose flush keeps the trace instead of executing it."""

    def __init__(self):
        super().__init__()
        self.traces: list[Trace] = []

    def flush(self) -> None:
        log, self.log = self.log, None
        if log is not None and log.steps:
            log.grad_tensors.clear()
            self.traces.append(wanted_trace(log))
            for handle in alive(log.handles):
                handle.fail(NovaError("a step recorded from shapes has no values", stage="aot"))

    def refuse(self, reason: str, *, location: Any = None, detail: str = "") -> None:
        raise NovaError(
            f"the step cannot be recorded: {reason} {detail}".rstrip(), stage="aot", location=str(location or "")
        )


def record_step(
    model: Module, optimizer: Optimizer, inputs: Sequence[Aval], *, device: Device, precision: str | None = None
) -> Trace:
    """The trace of `model(*inputs).backward()` and `optimizer.step()` as on `device`, the loss held.

    model and optimizer: made inside `shapes_only`; they cannot be used for anything else afterwards. Errors: NovaError
    for a step that cannot be recorded.
    """
    _make_state(optimizer)
    states = [value for state in optimizer.state.values() for value in state.values() if isinstance(value, Tensor)]
    arguments = [shaped(aval) for aval in inputs]
    for tensor in (*model.parameters(), *model.buffers(), *states, *arguments):
        tensor.device = device
    storage_epoch.bump()
    structure_epoch.bump()
    tracer, before = _Tracer(), dispatch.recorder
    dispatch.recorder = tracer
    try:
        model.compile(strict=True, precision=precision, first_step="compiled")
        loss = model(*arguments)
        loss.backward()
        optimizer.step()
    finally:
        dispatch.recorder = before
    (trace,) = tracer.traces
    return trace


def _make_state(optimizer: Optimizer) -> None:
    """Has the optimizer make its state, which it does for parameters that have a gradient."""
    params = [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad]
    with shapes_only():
        dispatch.recorder = None  # state is zeros, which take no pages either
        for p in params:
            p._grad = shaped(p._aval)
        optimizer._buckets()
        for p in params:
            p._grad = None
