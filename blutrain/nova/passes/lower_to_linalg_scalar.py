"""Scalar code of a region: the expressions of the primitive table, casts, constants and indices as arith and math
operations.

A scalar is a `Scalar(name, dtype)`; f16, bf16 and the unsigned integers never appear inside a region except where a
block argument is widened, a result narrowed, or a cast rounds. Which scalars stand for which dtype: `computing(dtype)`, f32 for the
narrow floats, i32 within their range for the unsigned integers, the dtype itself otherwise.
"""

from __future__ import annotations

import ast
import math
import struct
from functools import lru_cache
from typing import NamedTuple

from ...tensor.aval import Aval
from ...tensor.dtype import BOOL, INTEGER, DType, bool_, compute_dtype, float32, float64, int32, int64, promote


class Scalar(NamedTuple):
    """An SSA name inside a region and what it holds."""

    name: str
    dtype: DType


def computing(dtype: DType) -> DType:
    """The dtype that values of `dtype` are computed in."""
    if dtype.is_floating:
        return compute_dtype(dtype)
    return int32 if is_unsigned(dtype) else dtype


def is_unsigned(dtype: DType) -> bool:
    return dtype.category == INTEGER and not dtype.is_signed


def element_text(dtype: DType) -> str:
    """MLIR's spelling of an element in a kernel: unsigned integers are signless there."""
    return f"i{dtype.short[1:]}" if is_unsigned(dtype) else dtype.short


def memory_text(shape, dtype: DType) -> str:
    """MLIR's spelling of a tensor in a kernel."""
    return f"tensor<{''.join(f'{extent}x' for extent in shape)}{element_text(dtype)}>"


class Region:
    """Lines of one linalg region, equal ones merged."""

    def __init__(self):
        self.lines: list[str] = []
        self._made: dict[str, str] = {}
        self._ranges: dict[str, int] = {}  # scalars that are known to be unsigned numbers of so many bytes
        self._narrow: dict[str, tuple[str, DType]] = {}  # scalars that hold a narrow float exactly: its name and dtype

    def value(self, text: str) -> str:
        """The name of `text`, emitted once."""
        name = self._made.get(text)
        if name is None:
            name = self._made[text] = f"%s{len(self._made)}"
            self.lines.append(f"{name} = {text}")
        return name

    def constant(self, value: bool | int | float, dtype: DType) -> Scalar:
        """`value` rounded to `dtype`, in its computing dtype."""
        wide = computing(dtype)
        type_ = "" if wide is bool_ else f" : {element_text(wide)}"
        return Scalar(self.value(f"arith.constant {literal(_rounded(value, dtype), wide)}{type_}"), wide)

    def index(self, dim: int, coefficient: int, offset: int) -> Scalar:
        """`coefficient * loop[dim] + offset` as i64; dim -1: the offset."""
        if dim < 0:
            return self.constant(offset, int64)
        name = self.value(f"arith.index_cast {self.value(f'linalg.index {dim} : index')} : index to i64")
        found = Scalar(name, int64)
        if coefficient != 1:
            found = self.apply("arith.muli", found, self.constant(coefficient, int64))
        return self.apply("arith.addi", found, self.constant(offset, int64)) if offset else found

    def apply(self, op: str, *operands: Scalar) -> Scalar:
        """An operation whose operands and result have one type."""
        dtype = operands[0].dtype
        return Scalar(self.value(f"{op} {', '.join(x.name for x in operands)} : {element_text(dtype)}"), dtype)

    def compare(self, predicate: str, a: Scalar, b: Scalar) -> Scalar:
        op = "arith.cmpf" if a.dtype.is_floating else "arith.cmpi"
        return Scalar(self.value(f"{op} {predicate}, {a.name}, {b.name} : {element_text(a.dtype)}"), bool_)

    def select(self, condition: Scalar, a: Scalar, b: Scalar) -> Scalar:
        text = f"arith.select {condition.name}, {a.name}, {b.name} : {element_text(a.dtype)}"
        return Scalar(self.value(text), a.dtype)

    def shift(self, op: str, a: Scalar, b: Scalar) -> Scalar:
        """By as many bits as there are, or more (a negative number counts as such): nothing is left but the sign, where it
        moves in from the left.
        """
        bits = 8 * a.dtype.itemsize
        inside = self.compare("ult", b, self.constant(bits, b.dtype))
        if op == "arith.shli":
            return self.select(inside, self.apply(op, a, b), self.constant(0, a.dtype))
        return self.apply(op, a, self.select(inside, b, self.constant(bits - 1, b.dtype)))

    def narrow(self, x: Scalar, dtype: DType) -> str:
        """The name of `x` as a stored element of `dtype`."""
        x = self.cast(x, dtype)
        if x.dtype is dtype:
            return x.name
        name, known = self._narrow.get(x.name, ("", None))
        if known is dtype:
            return name
        op = "arith.truncf" if dtype.is_floating else "arith.trunci"
        return self.value(f"{op} {x.name} : {element_text(x.dtype)} to {element_text(dtype)}")

    def widen(self, name: str, dtype: DType) -> Scalar:
        """A stored element of `dtype` as a scalar."""
        wide = computing(dtype)
        if wide is dtype:
            return Scalar(name, dtype)
        op = "arith.extf" if dtype.is_floating else "arith.extui"
        found = Scalar(self.value(f"{op} {name} : {element_text(dtype)} to {element_text(wide)}"), wide)
        if dtype.is_floating:
            self._narrow[found.name] = name, dtype
        else:
            self._ranges[found.name] = dtype.itemsize
        return found

    def round(self, x: Scalar, dtype: DType) -> Scalar:
        """`x` as a tensor of `dtype` would hold it: like `cast`, and narrow floats are rounded."""
        is_narrow = dtype.is_floating and computing(dtype) is not dtype
        return self.widen(self.narrow(x, dtype), dtype) if is_narrow else self.cast(x, dtype)

    def cast(self, x: Scalar, dtype: DType) -> Scalar:
        """`x` in the computing dtype of `dtype`: floats to integers truncate, to bool is `!= 0`; integers wrap."""
        if is_unsigned(dtype):
            return self._wrapped(self.cast(x, int32), dtype)
        source, target = x.dtype, computing(dtype)
        if source is target:
            return x
        if target is bool_:
            return self.compare("une" if source.is_floating else "ne", x, self.constant(0, source))
        if source.is_floating and target.is_floating:
            op = "arith.extf" if target.itemsize > source.itemsize else "arith.truncf"
        elif source.is_floating:
            return self._to_integer(x, target)
        elif target.is_floating:
            op = "arith.uitofp" if source.category == BOOL else "arith.sitofp"
        elif target.itemsize > source.itemsize or source is bool_:
            op = "arith.extui" if source.category == BOOL else "arith.extsi"
        else:
            op = "arith.trunci"
        return Scalar(self.value(f"{op} {x.name} : {element_text(source)} to {element_text(target)}"), target)

    def _wrapped(self, x: Scalar, dtype: DType) -> Scalar:
        """An i32 within the range of an unsigned dtype."""
        if self._ranges.get(x.name, 4) <= dtype.itemsize:
            return x
        found = self.apply("arith.andi", x, self.constant(2 ** (8 * dtype.itemsize) - 1, int32))
        self._ranges[found.name] = dtype.itemsize
        return found

    def _to_integer(self, x: Scalar, target: DType) -> Scalar:
        """Through i64 for narrow integers: values that do not fit wrap, as they do eagerly."""
        wide = Scalar(self.value(f"arith.fptosi {x.name} : {element_text(x.dtype)} to i64"), int64)
        return self.cast(wide, target)

    def expression(self, text: str, operands: list[Scalar], result: DType) -> Scalar:
        """A `primitive.Scalar` expression (see there for the notation) on `operands` of the computing dtype."""
        return _Evaluator(self, operands, computing(result)).value(_parsed(text, len(operands)))


_SHIFTS = ("arith.shli", "arith.shrsi")


class _Evaluator:
    """Emits a parsed expression. A constant takes the dtype of its sibling operands."""

    def __init__(self, region: Region, operands: list[Scalar], result: DType):
        self.region, self.operands, self.result = region, operands, result
        self.dtype = operands[-1].dtype if operands else result

    def value(self, tree: ast.expr, dtype: DType | None = None) -> Scalar:
        if isinstance(tree, ast.Name) and tree.id in ("a", "b", "c"):
            return self.operands["abc".index(tree.id)]
        number = _number(tree)
        if number is not None:
            return self.region.constant(number, dtype or self.dtype)
        assert isinstance(tree, ast.Call)
        return self._call(tree)

    def _call(self, tree: ast.Call) -> Scalar:
        op = ast.unparse(tree.func)
        arguments = list(tree.args)
        if op in ("arith.cmpf", "arith.cmpi"):
            return self.region.compare(ast.literal_eval(arguments[0]), *self._alike(arguments[1:], self.dtype))
        if op == "arith.select":
            return self.region.select(self.value(arguments[0]), *self._alike(arguments[1:], self.result))
        operands = self._alike(arguments, self.dtype)
        return self.region.shift(op, *operands) if op in _SHIFTS else self.region.apply(op, *operands)

    def _alike(self, trees: list[ast.expr], default: DType) -> list[Scalar]:
        """Operands of one dtype: constants take that of the others, or `default` where all are constants."""
        known = [None if _number(tree) is not None else self.value(tree) for tree in trees]
        dtype = next((x.dtype for x in known if x is not None), default)
        return [self.value(tree, dtype) if x is None else x for tree, x in zip(trees, known, strict=True)]


@lru_cache(maxsize=1024)
def _parsed(text: str, num_operands: int) -> ast.expr:
    if "(" not in text and "." in text:
        text = f"{text}({', '.join('abc'[:num_operands])})"
    return ast.parse(text, mode="eval").body


_NAMED = {"inf": math.inf, "nan": math.nan}


def _number(tree: ast.expr) -> bool | int | float | None:
    if isinstance(tree, ast.Constant) and isinstance(tree.value, (bool, int, float)):
        return tree.value
    if isinstance(tree, ast.Name):
        return _NAMED.get(tree.id)
    if isinstance(tree, ast.UnaryOp) and isinstance(tree.op, ast.USub):
        inner = _number(tree.operand)
        return None if inner is None else -inner
    return None


def scalar_of(region: Region, lowering, operands: list[Scalar], dtypes: list[DType], result: DType) -> Scalar:
    """One elementwise primitive: operands cast as its record says, then its expression for that category of dtype.
    `lowering` is the record's `primitive.Scalar`. Errors: ValueError where the record has no expression for the
    dtype."""
    common = result if lowering.compute in ("result", "select") else promote([Aval((), d) for d in dtypes])
    if lowering.compute == "select":
        operands = [region.cast(operands[0], bool_), *(region.cast(x, common) for x in operands[1:])]
    else:
        operands = [region.cast(x, common) for x in operands]
    text = (lowering.boolean, lowering.integer, lowering.floating)[common.category]
    if text is None:
        raise ValueError(f"no expression for {common.name}")
    return region.cast(region.expression(text, operands, result), result)


def literal(value: bool | int | float, dtype: DType) -> str:
    """MLIR's text of a constant: floats exactly, infinities and NaN in hexadecimal."""
    if dtype is bool_:
        return "true" if value else "false"
    if not dtype.is_floating:
        return str(int(value))
    value = float(value)
    if math.isfinite(value):
        return f"{value:.17e}" if dtype is float64 else f"{value:.9e}"
    packed = struct.pack(">d" if dtype is float64 else ">f", value)
    return "0x" + packed.hex().upper()


def _rounded(value: bool | int | float, dtype: DType) -> bool | int | float:
    """`value` as `dtype` holds it."""
    if not dtype.is_floating:
        return value
    return float(dtype.numpy.type(value))


def extreme(dtype: DType, sign: int) -> int | float | bool:
    """The largest (sign 1) or smallest (sign -1) value of a dtype."""
    if dtype.is_floating:
        return sign * math.inf
    if dtype is bool_:
        return sign > 0
    bits = 8 * dtype.itemsize
    return 2 ** (bits - 1) - 1 if sign > 0 else -(2 ** (bits - 1))


__all__ = [
    "Region",
    "Scalar",
    "computing",
    "element_text",
    "extreme",
    "float32",
    "is_unsigned",
    "literal",
    "memory_text",
    "scalar_of",
]
