"""Element types and how they combine.

Promotion (the table of `promote`) follows PyTorch: bool < integers < floats; between categories the higher one wins
whatever the sizes (int64 with float16 gives float16); inside a category the smallest type that holds both (int8 with
uint8 gives int16, float16 with bfloat16 gives float32). A Python scalar is weak: it takes the dtype of the tensors it
meets unless its category is higher, then int64 or the default float dtype. A 0-d tensor is an ordinary tensor (PyTorch
treats it as weak; here only Python scalars are). Narrow floats (float16, bfloat16) are computed in float32 and rounded
once.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np

from ..errors import message

BOOL, INTEGER, FLOATING = 0, 1, 2


class DType:
    """An element type: `name` "float32", `short` "f32", `numpy` its np.dtype, `itemsize` in bytes, `category` BOOL |
    INTEGER | FLOATING.
    """

    __slots__ = ("category", "is_floating", "is_narrow", "is_signed", "itemsize", "name", "numpy", "short")

    def __init__(self, name: str, short: str, numpy_type, category: int):
        self.name, self.short, self.category = name, short, category
        self.numpy = np.dtype(numpy_type)
        self.itemsize = self.numpy.itemsize
        self.is_floating = category == FLOATING
        self.is_signed = category == FLOATING or name.startswith("int")
        self.is_narrow = name in ("float16", "bfloat16")

    @property
    def is_floating_point(self) -> bool:
        return self.is_floating

    def __repr__(self) -> str:
        return f"blutrain.{self.name}"

    def __reduce__(self):
        return _by_name, (self.name,)


bool_ = DType("bool", "i1", np.bool_, BOOL)
uint8 = DType("uint8", "u8", np.uint8, INTEGER)
uint16 = DType("uint16", "u16", np.uint16, INTEGER)
int8 = DType("int8", "i8", np.int8, INTEGER)
int16 = DType("int16", "i16", np.int16, INTEGER)
int32 = DType("int32", "i32", np.int32, INTEGER)
int64 = DType("int64", "i64", np.int64, INTEGER)
float16 = DType("float16", "f16", np.float16, FLOATING)
bfloat16 = DType("bfloat16", "bf16", ml_dtypes.bfloat16, FLOATING)
float32 = DType("float32", "f32", np.float32, FLOATING)
float64 = DType("float64", "f64", np.float64, FLOATING)

ALL = (bool_, uint8, uint16, int8, int16, int32, int64, float16, bfloat16, float32, float64)
NAMES = {d.name: d for d in ALL}
SHORT = {d.short: d for d in ALL}
_FROM_NUMPY = {d.numpy: d for d in ALL}
_default = float32
on_default_change: list = []  # functions that drop what was remembered under the old default


def _by_name(name: str) -> DType:
    return NAMES[name]


def from_numpy_dtype(dtype, op: str = "tensor") -> DType:
    """The DType of a np.dtype. Errors: TypeError for types without one (complex, str, object, uint32, ...)."""
    found = _FROM_NUMPY.get(dtype)
    if found is None:
        dtype = np.dtype(dtype)
        found = _FROM_NUMPY.get(dtype.newbyteorder("="))
    if found is None:
        supported = ", ".join(NAMES)
        raise TypeError(
            message(op, "the element type is not supported", expected=f"one of {supported}", got=str(dtype))
        )
    return found


def as_dtype(dtype, op: str = "dtype") -> DType:
    """A DType from itself, its name, bool/int/float, or anything NumPy takes for a dtype."""
    if isinstance(dtype, DType):
        return dtype
    if dtype is float:
        return _default
    if isinstance(dtype, str) and dtype in NAMES:
        return NAMES[dtype]
    try:
        return from_numpy_dtype(np.dtype(dtype), op)
    except TypeError as fault:
        if str(fault).startswith(op):
            raise
        raise TypeError(
            message(op, "not a dtype", expected="a blutrain dtype such as blutrain.float32", got=repr(dtype))
        ) from None


def get_default_dtype() -> DType:
    """The float dtype of new tensors made from Python floats, and of float results of integer inputs; float32 unless
    set.
    """
    return _default


def set_default_dtype(dtype) -> None:
    """Set the default float dtype. Errors: TypeError for a dtype that is not floating."""
    global _default
    dtype = as_dtype(dtype, "set_default_dtype")
    if not dtype.is_floating:
        raise TypeError(message("set_default_dtype", "the dtype is not floating", got=repr(dtype)))
    _default = dtype
    for forget in on_default_change:
        forget()


def _promote_pair(a: DType, b: DType) -> DType:
    if a is b:
        return a
    if a.category != b.category:
        return a if a.category > b.category else b
    if a.category == FLOATING:
        if a.is_narrow and b.is_narrow:
            return float32
        return a if a.itemsize > b.itemsize else b
    if a.is_signed == b.is_signed:
        return a if a.itemsize > b.itemsize else b
    signed, unsigned = (a, b) if a.is_signed else (b, a)
    if signed.itemsize > unsigned.itemsize:
        return signed
    return {1: int16, 2: int32}[unsigned.itemsize]


PROMOTION = {(a, b): _promote_pair(a, b) for a in ALL for b in ALL}
_WEAK = {BOOL: lambda: bool_, INTEGER: lambda: int64, FLOATING: get_default_dtype}


def promote(avals) -> DType:
    """The common dtype of tensors and weak scalars (anything with `.dtype` and `.weak`)."""
    strong, weak = None, -1
    for aval in avals:
        if aval.weak:
            weak = max(weak, aval.dtype.category)
        else:
            strong = aval.dtype if strong is None else PROMOTION[strong, aval.dtype]
    if strong is not None and strong.category >= weak:
        return strong
    return _WEAK[weak]()


def promote_types(a: DType, b: DType) -> DType:
    """The dtype of an operation on tensors of dtypes `a` and `b`, as torch.promote_types."""
    return PROMOTION[as_dtype(a), as_dtype(b)]


def compute_dtype(dtype: DType) -> DType:
    """The dtype arithmetic happens in: float32 for float16 and bfloat16, otherwise the dtype itself."""
    return float32 if dtype.is_narrow else dtype


def float_dtype(dtype: DType) -> DType:
    """`dtype` if floating, else the default float dtype: what exp, mean or true division give."""
    return dtype if dtype.is_floating else _default


class finfo:
    """Limits of a float dtype: bits, eps, max, min, tiny, smallest_normal (as torch.finfo)."""

    def __init__(self, dtype: DType):
        dtype = as_dtype(dtype, "finfo")
        if not dtype.is_floating:
            raise TypeError(message("finfo", "the dtype is not floating", got=repr(dtype)))
        info = ml_dtypes.finfo(dtype.numpy)
        self.dtype, self.bits = dtype, dtype.itemsize * 8
        self.eps, self.max, self.min = float(info.eps), float(info.max), float(info.min)
        self.tiny = self.smallest_normal = float(info.tiny)


class iinfo:
    """Limits of an integer dtype: bits, max, min (as torch.iinfo)."""

    def __init__(self, dtype: DType):
        dtype = as_dtype(dtype, "iinfo")
        if dtype.category != INTEGER:
            raise TypeError(message("iinfo", "the dtype is not an integer type", got=repr(dtype)))
        info = np.iinfo(dtype.numpy)
        self.dtype, self.bits, self.max, self.min = dtype, info.bits, int(info.max), int(info.min)
