"""Abstract values: what is known of a tensor without its data."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from .dtype import DType, bool_, get_default_dtype, int64, on_default_change


class Aval(NamedTuple):
    """Shape and dtype of a tensor; `weak` marks a Python scalar, which takes the dtype of what it meets."""

    shape: tuple[int, ...]
    dtype: DType
    weak: bool = False

    @property
    def size(self) -> int:
        """Number of elements."""
        n = 1
        for extent in self.shape:
            n *= extent
        return n

    def __str__(self) -> str:
        if self.weak:
            return {0: "bool", 1: "int", 2: "float"}[self.dtype.category]
        return f"{self.dtype.short}[{','.join(map(str, self.shape))}]"


class NeedsValue(Exception):
    """Raised by an `infer` rule whose result shape depends on data: while recording it counts as a read."""


_SCALARS: dict[type, Aval] = {}


def scalar_aval(x) -> Aval | None:
    """The weak aval of a Python or NumPy scalar; None for anything else."""
    kind = type(x)
    aval = _SCALARS.get(kind)
    if aval is None:
        aval = _scalar_aval(x)
        if aval is not None:
            _SCALARS[kind] = aval
    return aval


def _scalar_aval(x) -> Aval | None:
    if isinstance(x, bool | np.bool_):
        return Aval((), bool_, True)
    if isinstance(x, int | np.integer):
        return Aval((), int64, True)
    if isinstance(x, float | np.floating):
        return Aval((), get_default_dtype(), True)
    return None


def plain_number(x):
    """A Python bool, int or float from a subclass or a NumPy scalar; None for anything else."""
    aval = scalar_aval(x)
    return None if aval is None else (bool, int, float)[aval.dtype.category](x)


on_default_change.append(_SCALARS.clear)
