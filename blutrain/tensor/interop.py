"""Exchange with NumPy, CuPy, PyTorch, ...: numpy(), __array__, DLPack, __cuda_array_interface__, and moving between
devices.
"""

from __future__ import annotations

from typing import Any

from ..errors import message
from . import dispatch
from .device import Device, as_device, cpu
from .dtype import DType, as_dtype, bfloat16, from_numpy_dtype
from .ops import cast, transfer
from .ops.unary import clone
from .tensor import Tensor


def to_numpy(x: Tensor, *, force: bool = False) -> Any:
    """A NumPy array that shares the memory of a CPU tensor. bfloat16 gives an array of ml_dtypes.bfloat16, which NumPy
    alone computes badly with.

    Errors: a tensor that requires a gradient or is on a GPU, unless force=True (which detaches and copies as needed).
    """
    if x.requires_grad and not force:
        raise RuntimeError(
            message("numpy", "the tensor requires a gradient, which NumPy would lose", help="use .detach().numpy()")
        )
    if not x.device.is_cpu:
        if not force:
            raise TypeError(message("numpy", f"the tensor is on {x.device}", help="use .cpu().numpy()"))
        return x._host_array()
    return x._read()


def array_protocol(x: Tensor, dtype=None, copy=None):
    """What numpy.asarray(tensor) calls."""
    array = to_numpy(x)
    if dtype is not None and array.dtype != dtype:
        if copy is False:
            raise ValueError(
                message("__array__", "another dtype needs a copy", expected=str(array.dtype), got=str(dtype))
            )
        return array.astype(dtype)
    return array.copy() if copy else array


def cuda_array_interface(x: Tensor) -> dict:
    """The property __cuda_array_interface__ of a GPU tensor.

    Errors: AttributeError of a CPU tensor (so that hasattr works), bfloat16.
    """
    if x.device.is_cpu:
        raise AttributeError(message("__cuda_array_interface__", "the tensor is on the CPU", help="use .numpy()"))
    if x.requires_grad:
        raise RuntimeError(message("__cuda_array_interface__", "the tensor requires a gradient", help="use .detach()"))
    if x.dtype is bfloat16:
        raise TypeError(message("__cuda_array_interface__", "the interface has no bfloat16", help="use DLPack"))
    return x._read().__cuda_array_interface__


def dlpack(x: Tensor, *, stream=None, max_version=None, dl_device=None, copy=None):
    """A DLPack capsule of the memory.

    Errors: bfloat16 on the CPU (NumPy cannot export it), tensors that require a gradient.
    """
    if x.requires_grad:
        raise BufferError(message("__dlpack__", "the tensor requires a gradient", help="use .detach()"))
    if x.dtype is bfloat16 and x.device.is_cpu:
        raise BufferError(
            message("__dlpack__", "NumPy cannot export bfloat16", help="use .view(blutrain.uint16) or cast to float32")
        )
    array = x._read()
    if x.device.is_cpu:
        if not array.flags.writeable:
            array = array.copy()
        return array.__dlpack__(
            stream=stream, **({} if max_version is None else {"max_version": max_version, "copy": copy})
        )
    return array.__dlpack__(stream=stream)


def dlpack_device(x: Tensor) -> tuple[int, int]:
    """(kDLCPU, 0) or (kDLCUDA, index)."""
    return (1, 0) if x.device.is_cpu else (2, x.device.index or 0)


def from_dlpack(source) -> Tensor:
    """A tensor that shares the memory of any object with __dlpack__ (PyTorch, NumPy, CuPy, JAX, ...).

    Errors: dtypes without an equal here.
    """
    if not hasattr(source, "__dlpack__"):
        raise TypeError(message("from_dlpack", "the object has no __dlpack__", got=type(source).__name__))
    kind, index = source.__dlpack_device__()
    if kind not in (1, 2, 3):
        raise ValueError(
            message(
                "from_dlpack", "memory on that kind of device cannot be used", expected="CPU or CUDA", got=str(kind)
            )
        )
    device = Device("cuda", index) if kind == 2 else cpu
    try:
        array = device.xp.from_dlpack(source)
    except (BufferError, RuntimeError, ValueError) as fault:
        raise BufferError(message("from_dlpack", "the memory cannot be imported", got=str(fault))) from fault
    from_numpy_dtype(array.dtype, "from_dlpack")
    if dispatch.recorder is not None:
        dispatch.recorder.host_data("from_dlpack")
    made = Tensor._wrap(array, device)
    made._foreign = True
    return made


def to(x: Tensor, *args, device: Any = None, dtype=None, copy: bool = False, non_blocking: bool = False) -> Tensor:
    """x in another dtype and/or on another device: `x.to("cuda")`, `x.to(blutrain.float16)`, `x.to(other)`; x itself if
    nothing changes.

    `non_blocking` is accepted for PyTorch's sake; copies are ordered on the current stream. Gradients flow back through
    both changes.
    """
    for arg in args:
        if isinstance(arg, Tensor):
            device, dtype = arg.device, arg.dtype
        elif isinstance(arg, Device | int) or (isinstance(arg, str) and arg.partition(":")[0] in ("cpu", "cuda")):
            device = arg
        else:
            dtype = _dtype_of(arg)
    where = x.device if device is None else as_device(device)
    wanted: DType = x.dtype if dtype is None else as_dtype(dtype, "to")
    result = cast.cast(x, wanted)
    if where is not x.device:
        result = transfer.transfer(result, where)
    return clone(result) if copy and result is x else result


def _dtype_of(arg: Any) -> DType:
    try:
        return as_dtype(arg, "to")
    except TypeError as fault:
        if not isinstance(arg, str):
            raise
        expected = 'a device ("cpu", "cuda", "cuda:<index>") or a dtype such as blutrain.float32'
        raise TypeError(message("to", "neither a device nor a dtype", expected=expected, got=repr(arg))) from fault


def to_cpu(x: Tensor) -> Tensor:
    """x on the CPU."""
    return to(x, device=cpu)


def to_cuda(x: Tensor, device=None) -> Tensor:
    """x on a GPU (the first unless given)."""
    return to(x, device=Device("cuda") if device is None else device)
