"""Tensors: dtypes, devices, the table of primitives, dispatch. Imports NumPy and ml_dtypes, and CuPy when a GPU is
first used; nothing of blutrain but errors.

Reading order: dtype, device, aval, primitive (the record of an operation), tensor, dispatch, ops (the records, by
family), shapes, creation, indexing, inplace, interop, methods (what Tensor gets of all that), printing, generator.
"""

from . import (
    methods,  # noqa: F401  (gives Tensor its methods)
    ops,  # noqa: F401  (fills the table)
)
from .device import Device
from .dtype import DType
from .tensor import Tensor

__all__ = ["DType", "Device", "Tensor"]
