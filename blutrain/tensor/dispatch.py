"""Dispatch: the one way an operation runs.

Two slots are filled from outside, so that this package imports neither autograd nor nova: `tape` (autograd installs
itself) and `recorder` (nova installs itself while a compiled module exists; None costs one comparison).
"""

from __future__ import annotations

import contextvars
import threading
from typing import Any

import numpy

from ..errors import message
from . import late_checks
from .aval import plain_number
from .device import cpu
from .primitive import Primitive
from .tensor import Tensor, aval_of

# Contract of the recorder (nova/record.py), each method called only where the slot is not None:
#   recording: bool                                 true while the body of a compiled module runs
#   primitive(prim, operands, attrs) -> Tensor | tuple   record instead of executing
#   module_call(module, args, kwargs) -> result | NotImplemented
#   backward(roots, grads, retain_graph, create_graph, inputs) / grad(...) -> result | NotImplemented
#   clip_grad_norm(parameters, max_norm, ...) -> Tensor | NotImplemented
#   refuse_training()                               what comes is no business of a recorded body
#   optimizer_step(optimizer) -> bool, zero_grad(parameters, set_to_none) -> bool
#   get_grad(parameter) -> Tensor | None, set_grad(parameter, value)
#   materialize(tensor)                             a pending tensor's value is wanted: set `_array`, clear `_pending`
#   value_read()                                    user code is about to read a real tensor's value
#   settle()                                        the host reads values of a GPU: raise what checks there found
#   holds_collectives() -> bool, flush()            is one among what is pending; compute what is pending
#   await_write(tensor)                             a real tensor is read whose memory (`Version.pending`) it will write
#   write(tensor)                                   a real tensor is about to be written in place: flush on conflict
recorder: Any = None
_PLAIN = frozenset((bool, int, float))

# Contract of the tape: `enabled()`: is grad mode on in this thread; `record(prim, operands, results, attrs)` links
# results to operands for backward (it checks grad mode and requires_grad itself; works on pending tensors as on real
# ones).
tape: Any = None

# What keeps this process from reaching its next collective though it is well ("compiling"; nova sets it): the watchdog
# of distributed tells the other ranks.
busy: str = ""


def apply(prim: Primitive, *operands, **attrs) -> Any:
    """Run `prim` on tensors and Python scalars; returns a Tensor, or a tuple where the primitive has several results.

    A primitive without tensor operands gets its Device as the attribute `device`.
    """
    if recorder is not None and is_recorded(operands):
        return recorder.primitive(prim, operands, attrs)
    device, needs_grad, avals, arrays = None, False, [], []
    for x in operands:
        if isinstance(x, Tensor):
            avals.append(x._aval)
            arrays.append(x._array)
            if x.device is not device:
                device = x.device if device is None else _mixed_devices(prim, operands)
            if x._base is not None and x._version.history != x._history:
                refresh_view(x)
            if x._requires_grad:
                needs_grad = True
        else:
            avals.append(aval_of(x))
            arrays.append(x if type(x) in _PLAIN else plain_number(x))
    device = attrs["device"] if device is None else device
    if device is cpu:
        result_avals, rule = prim.plan(*avals, **attrs)
        values = _run_quietly(rule, *arrays)
    else:
        result_avals = prim.infer(*avals, **attrs)
        with device.activate():
            values = prim.eager(device.xp, *arrays, **attrs)
    if prim.num_results != 1:
        results = tuple([Tensor._wrap(v, device, a) for v, a in zip(values, result_avals)])
        if needs_grad:
            tape.record(prim, operands, results, attrs)
        return results
    result = Tensor._wrap(values, device, result_avals)
    if prim.kind == "movement" and "view" in prim.tags:
        link_view(result, operands[0])
    if needs_grad:
        tape.record(prim, operands, (result,), attrs)
    return result


def refresh_view(view: Tensor) -> None:
    """Give a view of memory that was written with history the history that its base has now."""
    from .inplace import seen_again

    seen_again(view)


class _Quiet(threading.local):
    """Per thread a context in which NumPy keeps quiet: x/0 and log(0) are values here.

    numpy.errstate would do too, but costs 1 us each time, this 0.03.
    """

    def __init__(self):
        context = contextvars.copy_context()
        context.run(numpy.seterr, all="ignore")
        self.run = context.run


_quiet = _Quiet()


def _run_quietly(rule, *arrays, **attrs):
    try:
        return _quiet.run(rule, *arrays, **attrs)
    except RuntimeError as fault:
        if "cannot enter context" not in str(fault):
            raise
    return rule(*arrays, **attrs)  # inside another rule of this thread (a signal handler, __del__): it is quiet already


def execute(prim: Primitive, device, arrays, attrs):
    """The eager rule of `prim` on arrays of `device`: no tensors, no tape, no shape check.

    What nova's interpreter runs. Errors: those of the rule's checks of values, on a GPU too.
    """
    if device is cpu:
        return _run_quietly(prim.eager, numpy, *arrays, **attrs)
    with device.activate():
        results = prim.eager(device.xp, *arrays, **attrs)
    late_checks.settle()
    return results


def is_recorded(operands) -> bool:
    """Would an operation on `operands` be recorded, not executed?"""
    if recorder is None or recorder.recording:
        return recorder is not None
    for x in operands:
        if isinstance(x, Tensor) and (x._pending is not None or (x._version is not None and x._version.pending)):
            return True
    return False


def link_view(result: Tensor, operand: Tensor) -> None:
    """Note that `result` shares the operand's memory, if it does (a reshape may have to copy)."""
    if not operand.is_contiguous() and not shares_memory(result._array, operand._array):
        return
    result._base = operand if operand._base is None else operand._base
    version = result._version = operand._versions()
    result._history = version.history
    result._foreign = operand._foreign


def shares_memory(a, b) -> bool:
    """Do two arrays of one device overlap (by their bounds: a copy never does)."""
    if isinstance(a, numpy.ndarray):
        return numpy.may_share_memory(a, b)
    return a.data.mem is b.data.mem


def common_device(name: str, operands, attrs):
    """The one device of the tensor operands, or the attribute `device`.

    Errors: ValueError where tensors are on different devices.
    """
    device = attrs.get("device")
    for x in operands:
        if isinstance(x, Tensor) and x.device is not device:
            device = x.device if device is None else _mixed_devices(name, operands)
    return device


def _mixed_devices(prim, operands):
    name = prim if isinstance(prim, str) else prim.name
    got = ", ".join(f"{x._aval} on {x.device}" for x in operands if isinstance(x, Tensor))
    raise ValueError(message(name, "tensors are on different devices", got=got, help="move one with .to(device)"))
