"""Functions that make tensors. Random ones are in ops/random.py."""

from __future__ import annotations

import math
from typing import Any

import numpy

from ..errors import message
from . import dispatch
from .aval import Aval
from .device import Device, as_device, cpu
from .dtype import INTEGER, DType, as_dtype, bool_, from_numpy_dtype, get_default_dtype, int32, int64
from .ops import cast, compare, create, movement
from .shapes import as_shape
from .tensor import Tensor, aval_of


def tensor(data, *, dtype=None, device=None, requires_grad: bool = False) -> Tensor:
    """A new tensor that copies `data`: a number, nested lists, a NumPy array, a tensor.

    Python floats get the default dtype (float32), ints int64, bools bool; arrays and tensors keep theirs. Errors:
    TypeError for data that is no number, ValueError for lists of unequal lengths.

    >>> bt.tensor([[1, 2], [3, 4.5]])
    tensor([[1. , 2. ],
            [3. , 4.5]])
    """
    dtype = None if dtype is None else as_dtype(dtype, "tensor")
    if isinstance(data, Tensor):
        made = data.detach().to(device=device or data.device, dtype=dtype or data.dtype, copy=True)
        return made.requires_grad_() if requires_grad else made
    where = as_device(device)
    if dispatch.recorder is not None and dispatch.recorder.recording:
        if isinstance(data, bool | int | float):  # a constant of the recorded program
            return _full("tensor", (), data, dtype or aval_of(data).dtype, where, requires_grad)
        dispatch.recorder.host_data("tensor")
    made = Tensor._wrap(to_device(_host_array(data, dtype), where), where)
    return made.requires_grad_() if requires_grad else made


def as_tensor(data, *, dtype=None, device=None) -> Tensor:
    """`data` itself if it is a tensor that fits, else a tensor of it; a NumPy array shares its memory where it can."""
    if isinstance(data, Tensor):
        return data.to(device=device or data.device, dtype=as_dtype(dtype) if dtype else data.dtype)
    if isinstance(data, numpy.ndarray) and as_device(device) is cpu:
        made = from_numpy(data)
        return made if dtype is None else cast.cast(made, dtype)
    return tensor(data, dtype=dtype, device=device)


def _host_array(data, dtype: DType | None):
    """A new contiguous NumPy array of a supported dtype."""
    if isinstance(data, numpy.ndarray | numpy.generic):
        found = from_numpy_dtype(data.dtype)
        return numpy.array(data, dtype=(dtype or found).numpy, order="C")
    if hasattr(data, "get") and hasattr(data, "__cuda_array_interface__"):  # CuPy
        return _host_array(data.get(), dtype)
    if hasattr(data, "__array_interface__") or hasattr(data, "__dlpack__"):
        return _host_array(numpy.asarray(data), dtype)
    data = _numbers(data)
    try:
        array = numpy.array(data)
    except ValueError as fault:
        raise ValueError(message("tensor", "the lists do not form a rectangular array", got=str(fault))) from None
    dtype = _dtype_of_lists(data, array) if dtype is None else dtype
    _check_range(array, dtype)
    with numpy.errstate(all="ignore"):
        return array.astype(dtype.numpy)


def _dtype_of_lists(data, array) -> DType:
    """The dtype of numbers in nested lists, which NumPy made `array` of."""
    typed = _typed_leaf(data)
    if typed is not None:
        return typed
    kind = array.dtype.kind
    if kind == "f":  # also what NumPy makes of no numbers at all
        return get_default_dtype()
    if kind not in "bi":
        raise TypeError(message("tensor", "the data is not numeric, or does not fit int64", got=str(array.dtype)))
    return bool_ if kind == "b" else int64


def _check_range(array, dtype: DType) -> None:
    if array.dtype.kind not in "iu" or dtype.category != INTEGER or not array.size:
        return
    info = numpy.iinfo(dtype.numpy)
    if array.min() < info.min or array.max() > info.max:
        rule, expected = f"the numbers do not fit {dtype.name}", f"{info.min} to {info.max}"
        raise ValueError(message("tensor", rule, expected=expected, got=f"{array.min()} to {array.max()}"))


def _numbers(data):
    """Tensors in nested lists become Python numbers or lists."""
    if isinstance(data, Tensor):
        return data.tolist()
    if isinstance(data, list | tuple):
        return [_numbers(x) for x in data]
    return data


def _typed_leaf(data):
    """The dtype of the first leaf if it is a NumPy scalar or array."""
    while isinstance(data, list) and data:
        data = data[0]
    return from_numpy_dtype(data.dtype) if isinstance(data, numpy.ndarray | numpy.generic) else None


def to_device(array, device: Device):
    """A host array on `device` (itself on the CPU)."""
    if device is cpu:
        return array
    with device.activate():
        return device.xp.asarray(array)


def from_numpy(array) -> Tensor:
    """A CPU tensor that shares the array's memory.

    Errors: TypeError for unsupported dtypes, ValueError for byte-swapped ones.
    """
    if not isinstance(array, numpy.ndarray):
        raise TypeError(message("from_numpy", "not a NumPy array", got=type(array).__name__))
    if not array.dtype.isnative:
        raise ValueError(
            message(
                "from_numpy",
                "the array is byte-swapped",
                got=str(array.dtype),
                help="array.astype(array.dtype.newbyteorder('='))",
            )
        )
    from_numpy_dtype(array.dtype, "from_numpy")
    if dispatch.recorder is not None:
        dispatch.recorder.host_data("from_numpy")
    made = Tensor._wrap(array.view(numpy.ndarray), cpu)
    made._foreign = True
    return made


def _full(op: str, shape, value, dtype, device, requires_grad: bool) -> Tensor:
    made = create.full_of(Aval(shape, dtype), value, as_device(device))
    return made.requires_grad_() if requires_grad else made


def full(size, fill_value, *, dtype=None, device=None, requires_grad: bool = False) -> Tensor:
    """Every element `fill_value`; its dtype follows the number unless given."""
    if isinstance(fill_value, Tensor):
        fill_value = fill_value.item()
    if dtype is None:
        dtype = bool_ if isinstance(fill_value, bool) else int64 if isinstance(fill_value, int) else get_default_dtype()
    size = (size,) if isinstance(size, int) else size
    return _full("full", as_shape("full", (size,)), fill_value, as_dtype(dtype, "full"), device, requires_grad)


def zeros(*size, dtype=None, device=None, requires_grad: bool = False) -> Tensor:
    """Zeros: `zeros(2, 3)` or `zeros((2, 3))`; the default float dtype unless given."""
    dtype = get_default_dtype() if dtype is None else as_dtype(dtype, "zeros")
    return _full("zeros", as_shape("zeros", size), 0, dtype, device, requires_grad)


def ones(*size, dtype=None, device=None, requires_grad: bool = False) -> Tensor:
    """Ones: `ones(2, 3)` or `ones((2, 3))`; the default float dtype unless given."""
    dtype = get_default_dtype() if dtype is None else as_dtype(dtype, "ones")
    return _full("ones", as_shape("ones", size), 1, dtype, device, requires_grad)


def empty(*size, dtype=None, device=None, requires_grad: bool = False) -> Tensor:
    """A tensor whose content does not matter (zeros, which cost nothing before they are touched)."""
    return zeros(*size, dtype=dtype, device=device, requires_grad=requires_grad)


def _like(x: Tensor, value, dtype, device, requires_grad: bool) -> Tensor:
    dtype = x.dtype if dtype is None else as_dtype(dtype)
    return _full("full_like", x.shape, value, dtype, x.device if device is None else device, requires_grad)


def zeros_like(x: Tensor, *, dtype=None, device=None, requires_grad: bool = False) -> Tensor:
    """Zeros of the shape, dtype and device of x."""
    return _like(x, 0, dtype, device, requires_grad)


def ones_like(x: Tensor, *, dtype=None, device=None, requires_grad: bool = False) -> Tensor:
    """Ones of the shape, dtype and device of x."""
    return _like(x, 1, dtype, device, requires_grad)


def full_like(x: Tensor, fill_value, *, dtype=None, device=None, requires_grad: bool = False) -> Tensor:
    """`fill_value` in the shape, dtype and device of x."""
    return _like(x, fill_value, dtype, device, requires_grad)


def empty_like(x: Tensor, *, dtype=None, device=None, requires_grad: bool = False) -> Tensor:
    """A tensor of the shape, dtype and device of x whose content does not matter."""
    return _like(x, 0, dtype, device, requires_grad)


def arange(start, end=None, step=1, *, dtype=None, device=None) -> Tensor:
    """start, start + step, ... below `end`; `arange(n)` counts from 0. int64 of integers, else a float dtype."""
    start, end = (0, start) if end is None else (start, end)
    if not step:
        raise ValueError(message("arange", "the step is 0"))
    whole = all(isinstance(v, int) for v in (start, end, step))
    size = max(-((start - end) // step) if whole else math.ceil((end - start) / step), 0)
    dtype = as_dtype(dtype, "arange") if dtype is not None else int64 if whole else get_default_dtype()
    return create.iota(size, as_device(device), dtype, start, step)


def linspace(start: float, end: float, steps: int, *, dtype=None, device=None) -> Tensor:
    """`steps` numbers evenly from start to end, both included."""
    dtype, device = get_default_dtype() if dtype is None else as_dtype(dtype, "linspace"), as_device(device)
    if steps < 0:
        raise ValueError(message("linspace", "the number of steps is negative", got=repr(steps)))
    if steps < 2:
        return create.iota(steps, device, dtype, float(start))
    inner = create.iota(steps - 1, device, dtype, float(start), (end - start) / (steps - 1))
    return movement.apply(movement.CONCAT, inner, full((1,), end, dtype=dtype, device=device), dim=0)


def eye(n: int, m: int | None = None, *, dtype=None, device=None) -> Tensor:
    """Ones on the diagonal of an [n, m] matrix (m = n unless given), zeros elsewhere."""
    where, dtype = as_device(device), get_default_dtype() if dtype is None else as_dtype(dtype, "eye")
    row = movement.reshape(create.iota(n, where, int64), (n, 1))
    return cast.cast(compare.eq(row, create.iota(n if m is None else m, where, int64)), dtype)


def one_hot(index: Tensor, num_classes: int = -1) -> Tensor:
    """int64 [..., num_classes] with a 1 at each index.

    Errors: CheckError for an index out of range; -1 reads the largest index.

    >>> nn.functional.one_hot(bt.tensor([0, 2]))
    tensor([[1, 0, 0],
            [0, 0, 1]])
    """
    from .ops.composite.check import check

    if num_classes == -1:
        num_classes = int(index.max().item()) + 1 if index.numel() else 0
    wrong = compare.lt(index, 0) | compare.ge(index, num_classes)
    check(cast.cast(wrong.any(), int32), f"one_hot: an index is out of range, expected 0 <= index < {num_classes}")
    return cast.cast(
        compare.eq(movement.reshape(index, (*index.shape, 1)), create.iota(num_classes, index.device, int64)), int64
    )


def nonzero(x: Tensor, *, as_tuple: bool = False) -> Any:
    """Indices of nonzero elements: int64 [count, ndim], or a tuple of vectors.

    Reads x: the shape depends on its values.
    """
    array = x._read()
    with x.device.activate():
        found = [Tensor._wrap(i, x.device) for i in array.nonzero()] if x.ndim else _nonzero_scalar(x)
        if as_tuple:
            return tuple(found)
        xp = x.device.xp
        columns = [i._array for i in found] if x.ndim else []
        stacked = xp.stack(columns, axis=1) if columns else xp.zeros((int(array.astype(bool)), 0), xp.int64)
    return Tensor._wrap(stacked, x.device)


def _nonzero_scalar(x: Tensor):
    return [zeros(int(bool(x.item())), dtype=int64, device=x.device)]


def masked_select(x: Tensor, mask: Tensor) -> Tensor:
    """The elements of x where the bool mask holds, as a vector (both broadcast)."""
    from .ops.arrange import broadcast_tensors

    x, mask = broadcast_tensors(x, mask)
    return x[mask]


def is_tensor(x) -> bool:
    """Is x a blutrain tensor?"""
    return isinstance(x, Tensor)
