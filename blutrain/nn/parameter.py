"""Parameter: a tensor that a Module finds among its attributes and an optimizer trains."""

from __future__ import annotations

from typing import Any

from ..errors import message
from ..tensor.device import as_device, cpu
from ..tensor.dtype import as_dtype, get_default_dtype
from ..tensor.tensor import Tensor


class Parameter(Tensor):
    """`Parameter(tensor)` shares the tensor's memory.

    Errors: TypeError for what is no tensor, or no floating one that is to be trained.
    """

    __slots__ = ()

    def __new__(cls, data: Tensor, requires_grad: bool = True) -> Parameter:
        if not isinstance(data, Tensor):
            help = "blutrain.tensor(data) makes one"
            raise TypeError(
                message("Parameter", "not a tensor", expected="a Tensor", got=type(data).__name__, help=help)
            )
        self = cls._wrap(data.detach()._buffer(), data.device, data._aval)
        self._version = data._versions()
        self.requires_grad_(requires_grad)
        return self

    def __init__(self, data: Tensor, requires_grad: bool = True):
        pass

    def __reduce_ex__(self, protocol: Any):
        return _unpickled, (self.detach().numpy(force=True), str(self.device), self.requires_grad)

    def __repr__(self) -> str:
        return "Parameter containing:\n" + super().__repr__()


def _unpickled(array: Any, device: str, requires_grad: bool) -> Parameter:
    return Parameter(Tensor._wrap(array, cpu).to(device), requires_grad)


def empty_parameter(shape: tuple[int, ...], device: Any = None, dtype: Any = None) -> Parameter:
    """A parameter whose values a layer fills in at once."""
    device = as_device(device)
    dtype = get_default_dtype() if dtype is None else as_dtype(dtype)
    with device.activate():
        parameter = Parameter._wrap(device.xp.empty(shape, dtype.numpy), device)
    parameter.requires_grad_(True)
    return parameter
