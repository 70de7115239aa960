"""Abstract values: what is known of a tensor without its data."""

from __future__ import annotations

from typing import NamedTuple

from .dtype import DType


class Aval(NamedTuple):
    """Shape and dtype of a tensor; `weak` marks a Python scalar, which takes the dtype of what it meets."""

    shape: tuple[int, ...]
    dtype: DType
    weak: bool = False

    def __str__(self) -> str:
        return f"{self.dtype.short}[{','.join(map(str, self.shape))}]"


class NeedsValue(Exception):
    """Raised by an `infer` rule whose result shape depends on data: while recording it counts as a read."""
