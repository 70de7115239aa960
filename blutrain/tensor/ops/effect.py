"""The one effect: writing a tensor's memory."""

from __future__ import annotations

from ...errors import message
from .. import dispatch, late_checks
from ..aval import Aval
from ..primitive import NotDifferentiable, Special, define


def _infer_assign(dst: Aval, value: Aval) -> Aval:
    if dst.shape != value.shape or dst.dtype is not value.dtype:
        raise ValueError(message("assign", "the value does not fit", expected=str(dst), got=str(value)))
    return dst


def _eager_assign(xp, dst, value):
    if dst is not value:
        xp.copyto(dst, value)
    return dst


ASSIGN = define(
    "assign",
    "effect",
    infer=_infer_assign,
    eager=_eager_assign,
    vjp=NotDifferentiable("assign writes memory outside of autograd"),
    nova=Special("assign"),
    doc="Copy value into dst's memory; the result is dst.",
)


def assign(dst, value):
    """Write `value` (same shape and dtype) into `dst` in place, outside of autograd; returns dst.

    Its version is bumped. Errors: RuntimeError for memory that cannot be written.
    """
    recorder = dispatch.recorder
    if recorder is not None:
        if recorder.recording or dst._pending is not None or value._pending is not None:
            if dst._pending is None:
                check_writable("assign", dst)
            recorder.primitive(ASSIGN, (dst, value), {})
            dst._bump_version()
            return dst
        recorder.write(dst)
    dispatch.common_device("assign", (dst, value), {})
    ASSIGN.infer(dst._aval, value._aval)
    check_writable("assign", dst)
    dispatch.execute(ASSIGN, dst.device, (dst._buffer(), value._buffer()), {})
    dst._bump_version()
    return dst


def check_writable(op: str, x) -> None:
    """Before a write. Errors: RuntimeError where elements of x are one in memory (expand), or belong to an array that is
    read-only; what earlier checks of values on a GPU found.
    """
    late_checks.settle()
    if x._base is None and not x._foreign:
        return
    array = x._buffer()
    if any(n > 1 and not stride for n, stride in zip(array.shape, array.strides)):
        rule = "several elements of the tensor are one in memory, as expand makes them"
        raise RuntimeError(message(op, rule, got=str(x._aval), help="write a .clone() of it"))
    if x.device.is_cpu and not array.flags.writeable:
        raise RuntimeError(message(op, "the tensor's memory is read-only", got=str(x._aval), help="use .clone()"))
