"""What the `compose` functions share.

They are written with tensor operators and methods, so each line is a simple primitive.
"""

from __future__ import annotations

from ...dtype import compute_dtype
from ...tensor import Tensor


def upcast(tensor: Tensor, dtype=None) -> Tensor:
    """`tensor` in the compute dtype of `dtype` (its own if None): float32 for float16 and bfloat16, otherwise
    unchanged.
    """
    return tensor.to(compute_dtype(dtype or tensor.dtype))


def coefficient(value, dtype):
    """A derived scalar ready to meet tensors of `dtype`: 0-d tensors are cast (they would promote), Python numbers
    are weak anyhow.
    """
    return value.to(dtype) if isinstance(value, Tensor) else value


def square_root(value):
    """Square root of a 0-d tensor or a Python number."""
    return value.sqrt() if isinstance(value, Tensor) else value**0.5
