"""Dispatch: the one way an operation runs.

Two slots are filled from outside, so that this package imports neither autograd nor nova: `tape` (autograd installs itself) and
`recorder` (nova installs itself while a compiled module exists; None costs one comparison).
"""

from __future__ import annotations

from typing import Any

from .primitive import Primitive
from .tensor import Tensor, aval_of, common_device

# Contract of the recorder (nova/record.py), each method called only where the slot is not None:
#   recording: bool                                 true while the body of a compiled module runs
#   primitive(prim, operands, attrs) -> Tensor | tuple   record instead of executing
#   module_call(module, args, kwargs) -> result | NotImplemented
#   backward(roots, grads, retain_graph, create_graph) / grad(...) -> result | NotImplemented
#   clip_grad_norm(parameters, max_norm, ...) -> Tensor | NotImplemented
#   optimizer_step(optimizer) -> bool, zero_grad(parameters, set_to_none) -> bool
#   get_grad(parameter) -> Tensor | None, set_grad(parameter, value)
#   materialize(tensor)                             a pending tensor's value is wanted: flush
#   write(tensor)                                   a real tensor is about to be written in place: flush on conflict
recorder: Any = None

# Contract of the tape: record(prim, operands, results, attrs) links results to operands for backward.
tape: Any = None


def apply(prim: Primitive, *operands, **attrs):
    """Run `prim` on tensors and Python scalars; returns a Tensor, or a tuple where the primitive has several results."""
    if recorder is not None and (recorder.recording or _any_pending(operands)):
        return recorder.primitive(prim, operands, attrs)
    device = common_device(prim.name, operands, attrs)
    prim.infer(*[aval_of(x) for x in operands], **attrs)
    arrays = [x._buffer() if isinstance(x, Tensor) else x for x in operands]
    with device.activate():
        values = prim.eager(device.xp, *arrays, **attrs)
    if prim.num_results == 1:
        result = Tensor._wrap(values, device)
        tape.record(prim, operands, (result,), attrs)
        return result
    results = tuple(Tensor._wrap(v, device) for v in values)
    tape.record(prim, operands, results, attrs)
    return results


def _any_pending(operands) -> bool:
    return any(isinstance(x, Tensor) and x._pending is not None for x in operands)
