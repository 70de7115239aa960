"""Tensors in the dtype and on the device of another one: x.new_zeros(2, 3), x.new_tensor(data), ..."""

from __future__ import annotations

from . import creation
from .tensor import Tensor


def _like(name: str, function):
    def method(x: Tensor, *args, dtype=None, device=None, requires_grad: bool = False) -> Tensor:
        options = {"dtype": dtype or x.dtype, "device": device or x.device, "requires_grad": requires_grad}
        return function(*args, **options)

    method.__name__ = method.__qualname__ = name
    method.__doc__ = f"`{function.__name__}`, in the dtype and on the device of x unless given."
    return method


new_zeros = _like("new_zeros", creation.zeros)
new_ones = _like("new_ones", creation.ones)
new_full = _like("new_full", creation.full)
new_empty = _like("new_empty", creation.empty)
new_tensor = _like("new_tensor", creation.tensor)


def pin_memory(x: Tensor) -> Tensor:
    """x itself, for PyTorch's sake: copies to a GPU go through pinned memory where that pays."""
    return x
