"""What values there are, and how often: unique and bincount. They read their operand: shapes depend on it."""

from __future__ import annotations

import numpy

from ...errors import message
from ..aval import Aval
from ..dtype import float32, float64, int64
from ..tensor import Tensor
from . import create, gather


def unique(x, sorted: bool = True, return_inverse: bool = False, return_counts: bool = False, dim: int | None = None):
    """The distinct elements of x (or slices along `dim`), always sorted; with them, where asked for, the number of its own
    for each element of x, and how often each occurs (int64). No NaN equals another.

    >>> bt.unique(bt.tensor([3, 1, 3]), return_counts=True)
    (tensor([1, 3]), tensor([1, 2]))
    """
    array, dtype, device = x.detach()._read(), x.dtype, x.device
    array = array.astype(numpy.float32) if dtype.is_narrow else array
    with device.activate():
        options = {"return_inverse": return_inverse, "return_counts": return_counts, "axis": dim, "equal_nan": False}
        found = device.xp.unique(array, **options)
    found = list(found) if isinstance(found, tuple) else [found]
    results = [Tensor._wrap(found[0].astype(dtype.numpy), device)]
    for numbers in found[1:]:
        results.append(Tensor._wrap(numbers.astype(numpy.int64), device))
    if return_inverse:  # NumPy 2.0 alone gives it other dimensions
        results[1] = results[1].reshape(x.shape if dim is None else (x.shape[dim],))
    return tuple(results) if len(results) > 1 else results[0]


def bincount(x, weights=None, minlength: int = 0):
    """How often each of 0, 1, ... occurs in x (a vector of integers, none negative), or the sums of its weights."""
    if x.ndim != 1 or x.dtype.is_floating:
        raise ValueError(message("bincount", "a vector of integers is needed", got=str(x._aval)))
    low, high = (int(x.min()), int(x.max())) if x.numel() else (0, -1)
    if low < 0:
        raise ValueError(message("bincount", "a value is negative", got=str(low)))
    size = max(high + 1, minlength)
    if weights is None:
        dtype, added = int64, create.full_of(x.to(int64)._aval, 1, x.device)
    else:
        dtype = float32 if weights.dtype is float32 else float64
        added = weights.to(dtype)
    return gather.index_add(create.full_of(Aval((size,), dtype), 0, x.device), 0, x.to(int64), added)
