"""How tensors look when printed."""

from __future__ import annotations

import numpy

from .dtype import bool_, get_default_dtype, int64

_PLAIN = (bool_, int64)


def format_tensor(x) -> str:
    """tensor([1., 2.], dtype=..., device=..., grad_fn=<mul>) with what is not the default; a pending tensor is computed
    first.
    """
    array = x._host_array()
    if x.dtype.is_narrow:
        array = array.astype(numpy.float32)
    body = numpy.array2string(array, precision=4, separator=", ", prefix="tensor(", threshold=1000, edgeitems=3)
    notes = [] if x.numel() else [f"shape={x.shape}"]
    if x.dtype not in _PLAIN and x.dtype is not get_default_dtype():
        notes.append(f"dtype={x.dtype}")
    if not x.device.is_cpu:
        notes.append(f"device='{x.device}'")
    if x.grad_fn is not None:
        notes.append(f"grad_fn=<{x.grad_fn.name}>")
    elif x.requires_grad:
        notes.append("requires_grad=True")
    return f"tensor({', '.join([body, *notes])})"
