"""Copy between devices."""

from __future__ import annotations

from .. import dispatch
from ..device import Device, cpu
from ..primitive import Saves, Unsupported, define
from ..tensor import Tensor


def _eager(xp, x, *, device: Device, source: Device):
    if device is cpu:
        return x.get() if hasattr(x, "get") else x.copy()
    with device.activate():
        return device.xp.asarray(x)


TRANSFER = define(
    "transfer",
    "effect",
    infer=lambda x, *, device, source: x,
    eager=_eager,
    vjp=lambda ctx, g: (transfer(g, ctx.attrs["source"]),),
    saves=Saves(),
    nova=Unsupported("a copy between devices ends a program: move inputs before the step"),
    doc="x copied from the device `source` to `device`.",
)


def transfer(x, device: Device):
    """x on another device, differentiable; reads a pending tensor."""
    attrs = {"device": device, "source": x.device}
    if device.is_cpu and not x.device.is_cpu:
        array = x._host_array()
    else:
        array = dispatch.execute(TRANSFER, x.device, (x._buffer(),), attrs)
    made = Tensor._wrap(array, device, x._aval)
    if x.requires_grad:
        dispatch.tape.record(TRANSFER, (x,), (made,), attrs)
    return made
