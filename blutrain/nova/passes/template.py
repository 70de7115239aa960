"""What a composite means, as data: `compose` run on tensors without values, every primitive it dispatches noted.

While it runs, the recorder's slot of dispatch is ours: nothing is computed, and no tape is written.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from ...tensor import dispatch
from ...tensor.aval import Aval
from ...tensor.device import Device, cpu
from ...tensor.dtype import BOOL, INTEGER, bool_, float64, int64, promote
from ...tensor.primitive import Primitive, Scalar
from ...tensor.tensor import Tensor, aval_of
from ..trace import Constant


@dataclass(frozen=True)
class Step:
    """One simple primitive. `operands`: numbers of values (the composite's operands first, then the results of the
    steps) or Constants.
    """

    prim: Primitive
    operands: tuple[int | Constant, ...]
    attrs: dict[str, Any]
    results: tuple[Aval, ...]


@dataclass(frozen=True)
class Template:
    """Steps in order, and the numbers of the values that are the composite's results."""

    steps: tuple[Step, ...]
    outputs: tuple[int, ...]


def template_of(prim: Primitive, avals: tuple[Aval, ...], attrs: dict[str, Any]) -> Template:
    """The meaning of composite `prim` on operands of `avals`. Remembered by prim, avals and attributes."""
    return _template_of(prim, avals, tuple(sorted(attrs.items())))


@lru_cache(maxsize=1024)
def _template_of(prim: Primitive, avals: tuple[Aval, ...], attrs: tuple) -> Template:
    assert prim.compose is not None, prim.name
    previous = dispatch.recorder
    recorder = _ComposeRecorder(previous)
    tensors = [recorder.new(aval) for aval in avals]
    dispatch.recorder = recorder
    try:
        results = prim.compose(*tensors, **dict(attrs))
    finally:
        dispatch.recorder = previous
    results = results if isinstance(results, tuple) else (results,)
    return Template(tuple(recorder.steps), tuple(r._pending for r in results))


class _ComposeRecorder:
    """Stands in dispatch.recorder: every primitive becomes a step, composites their own meaning. A tensor's handle is
    its value number.

    Only in the thread that compiles; operations of others go to the recorder that was there before.
    """

    def __init__(self, previous: Any = None):
        self.previous, self.thread = previous, threading.get_ident()
        self.steps: list[Step] = []
        self.num_values = 0
        self.known: dict[tuple, Any] = {}

    @property
    def recording(self) -> bool:
        return threading.get_ident() == self.thread or (self.previous is not None and self.previous.recording)

    def __getattr__(self, name: str):
        return getattr(self.previous, name)

    def new(self, aval: Aval) -> Tensor:
        tensor = Tensor._make_pending(aval, cpu, self.num_values)
        self.num_values += 1
        return tensor

    def primitive(self, prim: Primitive, operands, attrs):
        if threading.get_ident() != self.thread:
            return self.previous.primitive(prim, operands, attrs)
        if prim.compose is not None:
            return prim.compose(*operands, **attrs)
        attrs = {k: str(v) if isinstance(v, Device) else v for k, v in attrs.items()}
        numbers = tuple(x._pending if isinstance(x, Tensor) else Constant(x) for x in operands)
        key = (prim, numbers, tuple(type(x) for x in operands), tuple(sorted(attrs.items())))
        found = self.known.get(key)
        if found is None:
            found = self.known[key] = self._step(prim, numbers, operands, attrs)
        return found

    def _step(self, prim: Primitive, numbers, operands, attrs):
        avals = [aval_of(x) for x in operands]
        if isinstance(prim.nova, Scalar) and avals and all(a.weak for a in avals):
            results = (_number(prim, avals, attrs),)
        else:
            results = prim.infer(*avals, **attrs)
            results = (results,) if isinstance(results, Aval) else results
        self.steps.append(Step(prim, numbers, attrs, results))
        tensors = tuple(self.new(a) for a in results)
        return tensors[0] if prim.num_results == 1 else tensors

    def materialize(self, tensor: Tensor):
        if threading.get_ident() != self.thread:
            return self.previous.materialize(tensor)
        raise TypeError("compose reads the value of a tensor; it may only use shapes and dtypes")


def _number(prim: Primitive, avals: list[Aval], attrs) -> Aval:
    """The aval of arithmetic on Python numbers alone: a number again, in float64 or int64."""
    strong = [Aval((), _wide(a), False) for a in avals]
    return prim.infer(*strong, **attrs)._replace(weak=True)


def _wide(aval: Aval):
    return {BOOL: bool_, INTEGER: int64}.get(promote([aval]).category, float64)
