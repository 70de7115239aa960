"""Tensor: an array on a device, what is known of it, and its place in the graph of autograd.

Methods that are operations are attached by methods.py; this file holds the state. `Tensor._buffer()` is the only way to
the array: a pending tensor (recorded by nova, not computed yet) has none before its recorder fills it in.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy

from ..errors import GradientConsumed, message
from . import late_checks
from .aval import Aval, scalar_aval
from .device import Device, cpu
from .dtype import DType, from_numpy_dtype
from .shapes import normalize_dim

_ndarray = numpy.ndarray
if TYPE_CHECKING:
    from .tensor_methods import TensorMethods as _Methods
else:
    _Methods = object


class Epoch:
    """A counter of changes that somebody elsewhere has to notice."""

    __slots__ = ("value",)

    def __init__(self):
        self.value = 0

    def bump(self) -> None:
        self.value += 1


storage_epoch = Epoch()  # a tensor got other memory (`.data = ...`): pointers bound to it are stale
structure_epoch = Epoch()  # requires_grad or the structure of a module changed
write_epoch = Epoch()  # a tensor was changed in place


class Version:
    """Changes in place of one memory, shared by its views: `value` is the `write_epoch` of the last one, `history` counts
    those that autograd knows of.

    own: that of the last one noted here; steps: the cell where compiled steps note theirs, once for all they write, or None;
    pending: the recorder will write this memory, so whoever reads it waits for that.
    """

    __slots__ = ("history", "own", "pending", "steps")

    def __init__(self):
        self.own = self.history = 0
        self.pending = False
        self.steps: Epoch | None = None

    @property
    def value(self) -> int:
        return self.own if self.steps is None else max(self.own, self.steps.value)


class Tensor(_Methods):
    """An n-dimensional array with PyTorch's names for methods and operators. Made by `blutrain.tensor`, `zeros`,
    `rand`, ...

    Slots: `_array` numpy/cupy array or None while pending; `_aval` shape and dtype; `device`; `_requires_grad`;
    `grad_fn` the node of autograd that made it (None: a leaf) and `_index` which of its results this is; `_grad`;
    `_pending` the recorder's handle (several
    tensors may share one: what autograd saves of a result is an alias of it); `_version` None until memory is shared or
    written in place; `_base` the tensor it is a view of; `_history` the `Version.history` it was made at; `_hooks`;
    `_foreign`: its memory belongs to somebody else (from_numpy, DLPack).
    """

    __slots__ = (
        "__weakref__",
        "_array",
        "_aval",
        "_base",
        "_foreign",
        "_grad",
        "_history",
        "_hooks",
        "_index",
        "_pending",
        "_requires_grad",
        "_version",
        "device",
        "grad_fn",
    )
    _pending: Any  # the handle is the recorder's
    __array_ufunc__ = None  # a NumPy array on the left of an operator leaves the operation to us

    def __init__(self, *args, **kwargs):
        raise TypeError(
            message("Tensor", "not made by calling the class", help="use blutrain.tensor(data), zeros, empty, ...")
        )

    @classmethod
    def _wrap(cls, array, device: Device, aval: Aval | None = None) -> Tensor:
        """A leaf around an array of `device`; `aval`, where the caller knows it, must describe it."""
        if device is cpu and type(array) is not _ndarray:
            array = numpy.asarray(array)
        self = object.__new__(cls)
        self._array = array
        self._aval = aval if aval is not None else Aval(tuple(array.shape), from_numpy_dtype(array.dtype))
        self.device = device
        self._requires_grad = self._foreign = False
        self.grad_fn = self._grad = self._pending = self._version = self._base = self._hooks = None
        self._index = self._history = 0
        return self

    @classmethod
    def _make_pending(cls, aval: Aval, device: Device, handle) -> Tensor:
        """A tensor whose value the recorder will fill in when `handle` is executed."""
        self = object.__new__(cls)
        self._array, self._aval, self.device, self._pending = None, aval, device, handle
        self._requires_grad = self._foreign = False
        self.grad_fn = self._grad = self._version = self._base = self._hooks = None
        self._index = self._history = 0
        return self

    def _alias(self) -> Tensor:
        """The same value, memory and version as a tensor without history; not a view in autograd's sense."""
        if self._pending is None:
            twin = Tensor._wrap(self._array, self.device, self._aval)
            twin._version = self._versions()
            twin._foreign = self._foreign
        else:
            twin = Tensor._make_pending(self._aval, self.device, self._pending)
            twin._version = self._versions()
        return twin

    def _buffer(self):
        """The array. Of a pending tensor: has it computed first."""
        if self._pending is not None:
            dispatch.recorder.materialize(self)
        elif self._version is not None and self._version.pending:
            dispatch.recorder.await_write(self)
        return self._array

    def _read(self):
        """The array, for whoever makes of its values something that is no tensor, or has another shape.

        Errors: what checks found that kernels on a GPU made before.
        """
        if dispatch.recorder is not None and self._pending is None:
            dispatch.recorder.value_read()
        array = self._buffer()
        if not self.device.is_cpu:
            late_checks.settle()
        return array

    def _host_array(self):
        """The values as a NumPy array, read: a copy, where the tensor is on a GPU.

        Errors: what a value check of a compiled step says that ran there and has not been heard of.
        """
        array = self._read()
        if self.device.is_cpu:
            return array
        if dispatch.recorder is not None:
            dispatch.recorder.settle()
        return array.get()

    def _versions(self) -> Version:
        if self._version is None:
            self._version = Version()
        return self._version

    def _bump_version(self) -> None:
        """Note a change in place; every write does."""
        write_epoch.bump()
        self._versions().own = write_epoch.value

    @property
    def shape(self) -> tuple[int, ...]:
        return self._aval.shape

    @property
    def dtype(self) -> DType:
        return self._aval.dtype

    @property
    def ndim(self) -> int:
        return len(self._aval.shape)

    def dim(self) -> int:
        return len(self._aval.shape)

    def size(self, dim: int | None = None):
        """The shape, or the extent of one dimension."""
        return self._aval.shape if dim is None else self._aval.shape[normalize_dim("size", dim, self.ndim)]

    def numel(self) -> int:
        return self._aval.size

    def element_size(self) -> int:
        """Bytes per element."""
        return self._aval.dtype.itemsize

    @property
    def itemsize(self) -> int:
        return self._aval.dtype.itemsize

    @property
    def nbytes(self) -> int:
        return self._aval.size * self._aval.dtype.itemsize

    def is_floating_point(self) -> bool:
        return self._aval.dtype.is_floating

    @property
    def is_cuda(self) -> bool:
        return not self.device.is_cpu

    def is_contiguous(self) -> bool:
        """True where memory is row-major without gaps (always, of a pending tensor)."""
        return self._pending is not None or bool(self._array.flags.c_contiguous)

    def stride(self, dim: int | None = None):
        """Strides in elements, of all dimensions or one."""
        array = self._buffer()
        strides = tuple(s // array.dtype.itemsize for s in array.strides)
        return strides if dim is None else strides[normalize_dim("stride", dim, self.ndim)]

    def data_ptr(self) -> int:
        """Address of the first element."""
        array = self._buffer()
        return array.ctypes.data if self.device.is_cpu else array.data.ptr

    @property
    def is_leaf(self) -> bool:
        return self.grad_fn is None

    @property
    def grad(self) -> Tensor | None:
        if dispatch.recorder is not None:
            return dispatch.recorder.get_grad(self)
        return self._grad

    @grad.setter
    def grad(self, value: Tensor | None) -> None:
        if value is not None:
            _check_grad(self, value)
        if dispatch.recorder is not None:
            dispatch.recorder.set_grad(self, value)
        else:
            self._grad = value

    @grad.deleter
    def grad(self) -> None:
        self.grad = None

    @property
    def requires_grad(self) -> bool:
        """Whether autograd records operations on the tensor; setting it is `requires_grad_`."""
        if self._base is not None and self._version.history != self._history:
            dispatch.refresh_view(self)
        return self._requires_grad

    @requires_grad.setter
    def requires_grad(self, value: bool) -> None:
        self.requires_grad_(value)

    def requires_grad_(self, requires_grad: bool = True) -> Tensor:
        """Have autograd record operations on this leaf.

        Errors: a tensor that is not floating; turning it off on a result of recorded operations.
        """
        requires_grad = bool(requires_grad)
        if requires_grad and not self._aval.dtype.is_floating:
            raise TypeError(message("requires_grad_", "only floating tensors have gradients", got=str(self._aval)))
        if not requires_grad and self.grad_fn is not None:
            raise RuntimeError(message("requires_grad_", "the tensor is no leaf", help="use .detach()"))
        if self._requires_grad is not requires_grad:
            self._requires_grad = requires_grad
            structure_epoch.bump()
        return self

    @property
    def data(self) -> Tensor:
        """The same memory without history; writes to it are not seen by autograd.

        Setting it gives the tensor other memory.
        """
        twin = self._alias()
        twin._version = None
        return twin

    @data.setter
    def data(self, value: Tensor) -> None:
        if value._aval.dtype is not self._aval.dtype or value.device is not self.device:
            if self.requires_grad and not value._aval.dtype.is_floating:
                raise TypeError(message("data", "a tensor with gradients must stay floating", got=str(value._aval)))
        if dispatch.recorder is not None:
            dispatch.recorder.write(self)
        self._array, self._aval, self.device = value._buffer(), value._aval, value.device
        self._pending, self._foreign = None, value._foreign
        self._bump_version()
        storage_epoch.bump()

    def item(self):
        """The Python number of a tensor with one element."""
        if self._aval.size != 1:
            raise ValueError(
                message("item", "the tensor has not exactly one element", got=str(self._aval), help="use .tolist()")
            )
        value = self._host_array().item()
        return value if isinstance(value, bool | int | float) else float(value)  # bfloat16 gives an ml_dtypes scalar

    def tolist(self):
        """Nested lists of Python numbers; a number of a 0-d tensor."""
        array = self._host_array()
        return (array.astype(numpy.float32) if self._aval.dtype.name == "bfloat16" else array).tolist()

    def __bool__(self) -> bool:
        if self._aval.size != 1:
            raise ValueError(
                message(
                    "bool",
                    "the truth of a tensor with several elements is not defined",
                    got=str(self._aval),
                    help="use .any() or .all()",
                )
            )
        return bool(self.item())

    def __float__(self) -> float:
        return float(self.item())

    def __int__(self) -> int:
        return int(self.item())

    def __index__(self) -> int:
        if self._aval.dtype.is_floating:
            raise TypeError(message("index", "only integer tensors are indices", got=str(self._aval)))
        return int(self.item())

    def __len__(self) -> int:
        if not self._aval.shape:
            raise TypeError(message("len", "a 0-d tensor has no length"))
        return self._aval.shape[0]

    def __iter__(self):
        if not self._aval.shape:
            raise TypeError(message("iter", "a 0-d tensor cannot be iterated"))
        return (self[i] for i in range(self._aval.shape[0]))

    def __repr__(self) -> str:
        from .printing import format_tensor

        return format_tensor(self)

    def __format__(self, spec: str) -> str:
        is_number = not self._aval.shape or (spec and self._aval.size == 1)
        return format(self.item(), spec) if is_number else object.__format__(self, spec)


def _check_grad(tensor: Tensor, value: Tensor) -> None:
    if not isinstance(value, Tensor):
        raise TypeError(message("grad", "a gradient is a tensor or None", got=type(value).__name__))
    if value._aval != tensor._aval or value.device is not tensor.device:
        raise ValueError(
            message(
                "grad",
                "a gradient has its tensor's shape, dtype and device",
                expected=f"{tensor._aval} on {tensor.device}",
                got=f"{value._aval} on {value.device}",
            )
        )


def known_grad(x: Tensor) -> Tensor | None:
    """x.grad, or None where a compiled step consumed it."""
    try:
        return x.grad
    except GradientConsumed:
        return None


def aval_of(x) -> Aval:
    """The aval of a tensor or a Python scalar. Errors: TypeError for anything else."""
    if isinstance(x, Tensor):
        return x._aval
    aval = scalar_aval(x)
    if aval is None:
        got, help = foreign(x)
        raise TypeError(message("operand", "not a tensor", expected="a Tensor or a Python number", got=got, help=help))
    return aval


def foreign(x) -> tuple[str, str]:
    """What an operand is that is no tensor of ours, and how to make one of it."""
    kind = type(x)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    if isinstance(x, _ndarray):
        return f"{name} {x.dtype}{list(x.shape)}", "use blutrain.from_numpy(array)"
    if hasattr(x, "__dlpack__"):
        return name, "use blutrain.from_dlpack(x)"
    return name, "use blutrain.tensor(...)" if isinstance(x, list | tuple) else ""


from . import dispatch  # noqa: E402  (dispatch names Tensor, Tensor asks its recorder slot)
