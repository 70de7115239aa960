"""Between Python and MLIR: avals and tensor types, attribute values and attributes, user lines and locations.

All functions need a current context (`with context:`), as MLIR's own constructors do.
"""

from __future__ import annotations

from typing import Any

from mlir import ir

from ...tensor.aval import Aval
from ...tensor.device import Device
from ...tensor.dtype import NAMES, SHORT, DType

_UNSIGNED = {"u8": "ui8", "u16": "ui16"}
_DTYPE_OF_TEXT = {_UNSIGNED.get(short, short): dtype for short, dtype in SHORT.items()}
_FLOATS = {"f16": ir.F16Type, "bf16": ir.BF16Type, "f32": ir.F32Type, "f64": ir.F64Type}


def element_type(dtype: DType) -> ir.Type:
    """f32 for float32, i1 for bool, ui8 for uint8."""
    if dtype.is_floating:
        return _FLOATS[dtype.short].get()
    bits = int(dtype.short[1:])
    return ir.IntegerType.get_unsigned(bits) if dtype.short in _UNSIGNED else ir.IntegerType.get_signless(bits)


def tensor_type(shape, dtype: DType) -> ir.RankedTensorType:
    return ir.RankedTensorType.get(list(shape), element_type(dtype))


def dtype_of(type_: ir.Type) -> DType:
    """The dtype of an element type. Errors: TypeError for one that no dtype has (index, f8, ...)."""
    dtype = _DTYPE_OF_TEXT.get(str(type_))
    if dtype is None:
        raise TypeError(f"no dtype has the element type {type_}")
    return dtype


def aval_of(type_: ir.Type) -> Aval:
    """Shape and dtype of a ranked tensor type."""
    tensor = ir.RankedTensorType(type_)
    return Aval(tuple(tensor.shape), dtype_of(tensor.element_type))


def attribute_of(value) -> ir.Attribute:
    """An attribute of a record as MLIR's: ints i64, floats f64, tuples arrays, dtypes types, None unit, devices
    strings.
    """
    if value is None:
        return ir.UnitAttr.get()
    if isinstance(value, bool):
        return ir.BoolAttr.get(value)
    if isinstance(value, int):
        return ir.IntegerAttr.get(ir.IntegerType.get_signless(64), value)
    if isinstance(value, float):
        return ir.FloatAttr.get(ir.F64Type.get(), value)
    if isinstance(value, (str, Device)):
        return ir.StringAttr.get(str(value))
    if isinstance(value, DType):
        return ir.TypeAttr.get(element_type(value))
    if isinstance(value, (tuple, list)):
        if all(type(v) is int for v in value):
            return ir.DenseI64ArrayAttr.get(list(value))
        return ir.ArrayAttr.get([attribute_of(v) for v in value])
    if isinstance(value, slice):
        return ir.DictAttr.get({k: attribute_of(getattr(value, k)) for k in ("start", "stop", "step")})
    raise TypeError(f"no MLIR attribute stands for {value!r} of type {type(value).__name__}")


def python_of(attribute: ir.Attribute) -> Any:
    """The inverse of `attribute_of`: also reads `array<i32: ...>` and scalars of any width."""
    if isinstance(attribute, (ir.BoolAttr, ir.IntegerAttr, ir.FloatAttr, ir.StringAttr)):
        return attribute.value
    if isinstance(attribute, (ir.DenseI64ArrayAttr, ir.DenseI32ArrayAttr)):
        return tuple(attribute)
    if isinstance(attribute, ir.UnitAttr):
        return None
    if isinstance(attribute, ir.TypeAttr):
        return dtype_of(attribute.value)
    if isinstance(attribute, ir.ArrayAttr):
        return tuple(python_of(a) for a in attribute)
    if isinstance(attribute, ir.DictAttr):
        entries = {attribute[i].name: python_of(attribute[i].attr) for i in range(len(attribute))}
        return slice(*(entries[k] for k in ("start", "stop", "step")))
    raise TypeError(f"no Python value stands for the attribute {attribute}")


def scalar_attribute(value: bool | int | float, dtype: DType) -> ir.Attribute:
    """`value` as an attribute of `dtype`, rounded to it."""
    if dtype.is_floating:
        return ir.FloatAttr.get(element_type(dtype), float(value))
    if dtype is NAMES["bool"]:
        return ir.BoolAttr.get(bool(value))
    return ir.IntegerAttr.get(element_type(dtype), int(value))


def location_of(file: str, line: int) -> ir.Location:
    return ir.Location.file(file, line, 0)


def user_lines(location: ir.Location) -> tuple[str, ...]:
    """The "file:line" that a location names, in order and without repetition; none for an unknown one."""
    if location.is_a_file():
        return (f"{location.filename}:{location.start_line}",)
    if location.is_a_fused():
        return tuple(dict.fromkeys(line for part in location.locations for line in user_lines(part)))
    if location.is_a_callsite():
        return user_lines(location.callee) or user_lines(location.caller)
    if location.is_a_name():
        return user_lines(location.child_loc)
    return ()
