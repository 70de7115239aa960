"""The one cloner: a scalar region, copied as text at a lane type.

`clone_block(out, block, arguments, lanes, ...)` appends the region's ops to an `Emitter`, every scalar type T
turned into `vector<lanes x T>` (or left scalar for lanes 0), and returns the yielded names. It serves every
generator and looks only at ops: arith and math copy as they are, transcendental functions become the
polynomials of polynomials.py, the rest of math scalar libm calls, 16-bit floats are computed in f32,
`linalg.index` asks the coordinate provider.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mlir import ir

from blutrain.nova.emitter import Emitter, lane_type
from blutrain.nova.kernel import Unsupported
from blutrain.nova.philox import emit_random_bits
from blutrain.nova.polynomials import POLYNOMIALS, FloatLanes

Coordinate = Callable[[int], str]  # loop dimension -> name of its index, lanes of type `index`
Extract = Callable[[ir.Value, list[str]], str]  # tensor, lanes of index per dimension -> lanes of elements

NARROW = ("bf16", "f16")
# math ops that LLVM turns into instructions (or short sequences) for vectors.
_NATIVE_MATH = frozenset(
    f"math.{name}"
    for name in (
        "absf",
        "absi",
        "ceil",
        "copysign",
        "ctlz",
        "ctpop",
        "cttz",
        "floor",
        "fma",
        "roundeven",
        "rsqrt",
        "sqrt",
        "trunc",
    )
)
_INTEGER_DIVISIONS = frozenset(
    f"arith.{name}" for name in ("divsi", "divui", "remsi", "remui", "floordivsi", "ceildivsi")
)
_LIBM = {
    **{
        f"math.{name}": name
        for name in ("acos", "acosh", "asin", "asinh", "atan", "atan2", "atanh", "cbrt", "cos", "cosh")
    },
    **{f"math.{name}": name for name in ("erfc", "log10", "log2", "round", "sin", "sinh", "tan")},
    "math.powf": "pow",
}


def clone_block(
    out: Emitter,
    block: ir.Block,
    arguments: Sequence[str],
    lanes: int,
    coordinate: Coordinate | None = None,
    extract: Extract | None = None,
    mask: str | None = None,
) -> list[str]:
    """Append `block` to `out` with its arguments named `arguments` (of their lane types); returns the yielded names.

    `out` needs `value(text)`, `constant(literal, type)` (a splat for vector types) and `declarations`, as an Emitter
    has. Where only the lanes of `mask` hold data, the others divide integers by 1. Raises `Unsupported` for an op that
    has no element-wise meaning or lacks its provider.
    """
    return _Cloner(out, lanes, coordinate, extract, mask).clone(block, arguments)


def clone_op(
    out: Emitter, op: ir.Operation, operands: Sequence[str], lanes: int, coordinate: Coordinate | None = None
) -> list[str]:
    """One op of a region on other operands: how accumulators are combined."""
    return _Cloner(out, lanes, coordinate).op(op, list(operands))


def convert_float(out: Emitter, value: str, source: str, target: str, lanes: int) -> str:
    """`value` in another float dtype; narrowing rounds to nearest even."""
    if source == target:
        return value
    cloner = _Cloner(out, lanes)
    if source in NARROW:
        value, source = cloner.extend(value, source), "f32"
    if target in NARROW:
        if source == "f64":
            value = out.value(f"arith.truncf {value} : {lane_type('f64', lanes)} to {lane_type('f32', lanes)}")
        return cloner.truncate(value, target)
    if source == target:
        return value
    op = "extf" if target == "f64" else "truncf"
    return out.value(f"arith.{op} {value} : {lane_type(source, lanes)} to {lane_type(target, lanes)}")


def check_block(block: ir.Block, has_extract: bool = False) -> None:
    """Raise `Unsupported` now for what `clone_block` would raise later; `has_extract`: there is a provider for it."""
    for op in block.operations:
        name = op.operation.name
        if name == "tensor.extract" and has_extract:
            continue
        if name == "linalg.yield" or name.startswith("arith.") or name in _SPECIAL:
            continue
        if name not in POLYNOMIALS and name not in _NATIVE_MATH and name not in _LIBM and name not in _EXPANDED:
            raise Unsupported(f"{name} in a region")


class _Cloner:
    def __init__(
        self,
        out: Emitter,
        lanes: int,
        coordinate: Coordinate | None = None,
        extract: Extract | None = None,
        mask: str | None = None,
    ):
        self.out, self.lanes, self.coordinate, self.extract, self.mask = out, lanes, coordinate, extract, mask

    def type(self, type_: ir.Type | str) -> str:
        return lane_type(str(type_), self.lanes)

    def clone(self, block: ir.Block, arguments: Sequence[str]) -> list[str]:
        names: dict[ir.Value, str] = dict(zip(block.arguments, arguments, strict=True))
        for op_view in block.operations:
            op = op_view.operation
            if op.name == "linalg.yield":
                return [self._name(names, v) for v in op.operands]
            operands = list(op.operands)
            if op.name == "tensor.extract":
                if self.extract is None:
                    raise Unsupported("tensor.extract in a region of this kernel")
                results = [self.extract(operands[0], [self._name(names, v) for v in operands[1:]])]
            else:
                results = self.op(op, [self._name(names, v) for v in operands])
            names.update(zip(op.results, results, strict=True))
        raise Unsupported("a region without linalg.yield")

    def _name(self, names: dict[ir.Value, str], value: ir.Value) -> str:
        if value in names:
            return names[value]
        owner = value.owner
        if isinstance(owner, ir.Block) or owner.name != "arith.constant":
            raise Unsupported("a region that reads a value from outside that is not a constant")
        (names[value],) = self.op(owner.operation if hasattr(owner, "operation") else owner, [])
        return names[value]

    def op(self, op: ir.Operation, operands: list[str]) -> list[str]:
        name = op.name
        if name in _SPECIAL:
            return [_SPECIAL[name](self, op, operands)]
        if op.regions or not name.startswith(("arith.", "math.")):
            raise Unsupported(f"{name} in a region")
        if name in _INTEGER_DIVISIONS and self.mask:
            operands = [operands[0], self._safe_divisor(operands[1], str(op.operands[1].type))]
        if _is_narrow(op):
            return [self._widened(op, operands)]
        if name in _EXPANDED:
            return [_EXPANDED[name](self, op, operands)]
        dtype = str(op.results[0].type)
        if name in POLYNOMIALS:
            return [POLYNOMIALS[name](FloatLanes(self.out, dtype, self.lanes), operands[0])]
        if name in _LIBM:
            return [self._libm(_LIBM[name], dtype, operands)]
        if name.startswith("math.") and name not in _NATIVE_MATH:
            raise Unsupported(f"{name} in a region")
        return [self._copy(op, operands)]

    def _safe_divisor(self, divisor: str, dtype: str) -> str:
        type_ = self.type(dtype)
        one = self.out.constant("1", type_)
        return self.out.value(f"arith.select {self.mask}, {divisor}, {one} : {self.type('i1')}, {type_}")

    def _copy(self, op: ir.Operation, operands: list[str]) -> str:
        """The op itself in generic form, at the lane type."""
        attributes = ", ".join(f"{n} = {op.attributes[n]}" for n in sorted(op.attributes) if "." not in n)
        types = ", ".join(self.type(v.type) for v in op.operands)
        properties = f" <{{{attributes}}}>" if attributes else ""
        return self.out.value(
            f'"{op.name}"({", ".join(operands)}){properties} : ({types}) -> {self.type(op.results[0].type)}'
        )

    def _widened(self, op: ir.Operation, operands: list[str]) -> str:
        """An op on 16-bit floats, computed in f32 and rounded: what the processor would do, on every processor."""
        wide = [
            self.extend(x, str(v.type)) if str(v.type) in NARROW else x
            for x, v in zip(operands, op.operands, strict=True)
        ]
        f = FloatLanes(self.out, "f32", self.lanes)
        result = str(op.results[0].type)
        if op.name in POLYNOMIALS:
            return self.truncate(POLYNOMIALS[op.name](f, wide[0]), result)
        if op.name in _LIBM:
            return self.truncate(self._libm(_LIBM[op.name], "f32", wide), result)
        attributes = ", ".join(f"{n} = {op.attributes[n]}" for n in sorted(op.attributes) if "." not in n)
        properties = f" <{{{attributes}}}>" if attributes else ""
        types = ", ".join(f.type if str(v.type) in NARROW else self.type(v.type) for v in op.operands)
        to = f.type if result in NARROW else self.type(result)
        value = self.out.value(f'"{op.name}"({", ".join(wide)}){properties} : ({types}) -> {to}')
        return self.truncate(value, result) if result in NARROW else value

    def _libm(self, function: str, dtype: str, operands: list[str]) -> str:
        """A call of the C library per lane."""
        symbol = function + ("f" if dtype == "f32" else "")
        arguments = ", ".join([dtype] * len(operands))
        self.out.declarations[symbol] = f"llvm.func @{symbol}({arguments}) -> {dtype}"
        call = f"llvm.call @{symbol}({{}}) : ({arguments}) -> {dtype}"
        if not self.lanes:
            return self.out.value(call.format(", ".join(operands)))
        result = self.out.constant("0.0", self.type(dtype))
        for lane in range(self.lanes):
            elements = [
                self.out.value(f"vector.extract {x}[{lane}] : {dtype} from {self.type(dtype)}") for x in operands
            ]
            one = self.out.value(call.format(", ".join(elements)))
            result = self.out.value(f"vector.insert {one}, {result} [{lane}] : {dtype} into {self.type(dtype)}")
        return result

    def extend(self, x: str, dtype: str) -> str:
        """bf16 or f16 lanes to f32 lanes."""
        if dtype == "f16":
            return self.out.value(f"arith.extf {x} : {self.type('f16')} to {self.type('f32')}")
        bits = self.out.value(f"arith.bitcast {x} : {self.type('bf16')} to {self.type('i16')}")
        wide = self.out.value(f"arith.extui {bits} : {self.type('i16')} to {self.type('i32')}")
        shifted = self.out.value(f"arith.shli {wide}, {self.out.constant('16', self.type('i32'))} : {self.type('i32')}")
        return self.out.value(f"arith.bitcast {shifted} : {self.type('i32')} to {self.type('f32')}")

    def truncate(self, x: str, dtype: str) -> str:
        """f32 lanes to bf16 or f16, to nearest even. bf16 by integer arithmetic: LLVM would call a compiler runtime."""
        if dtype == "f16":
            return self.out.value(f"arith.truncf {x} : {self.type('f32')} to {self.type('f16')}")
        word, half = self.type("i32"), self.type("i16")

        def integer(op: str, a: str, b: str | int) -> str:
            b = self.out.constant(str(b), word) if isinstance(b, int) else b
            return self.out.value(f"arith.{op} {a}, {b} : {word}")

        bits = self.out.value(f"arith.bitcast {x} : {self.type('f32')} to {word}")
        odd = integer("andi", integer("shrui", bits, 16), 1)
        rounded = integer("shrui", integer("addi", integer("addi", bits, 0x7FFF), odd), 16)
        quiet = integer("ori", integer("shrui", bits, 16), 0x40)
        is_nan = self.out.value(f"arith.cmpf uno, {x}, {x} : {self.type('f32')}")
        suffix = f"{self.type('i1')}, {word}" if self.lanes else word
        kept = self.out.value(f"arith.select {is_nan}, {quiet}, {rounded} : {suffix}")
        narrow = self.out.value(f"arith.trunci {kept} : {word} to {half}")
        return self.out.value(f"arith.bitcast {narrow} : {half} to {self.type('bf16')}")

    def constant(self, op: ir.Operation, operands: list[str]) -> str:
        return self.out.constant(str(op.attributes["value"]).split(" : ")[0], self.type(op.results[0].type))

    def index(self, op: ir.Operation, operands: list[str]) -> str:
        if self.coordinate is None:
            raise Unsupported("linalg.index in a region of this kernel")
        return self.coordinate(ir.IntegerAttr(op.attributes["dim"]).value)

    def random_bits(self, op: ir.Operation, operands: list[str]) -> str:
        return emit_random_bits(self.out, *operands, lanes=self.lanes)

    def convert(self, op: ir.Operation, operands: list[str]) -> str:
        source, target = str(op.operands[0].type), str(op.results[0].type)
        return convert_float(self.out, operands[0], source, target, self.lanes)

    def floordivsi(self, op: ir.Operation, operands: list[str]) -> str:
        return self._rounded_division(op, operands, step=-1)

    def ceildivsi(self, op: ir.Operation, operands: list[str]) -> str:
        return self._rounded_division(op, operands, step=1)

    def ipowi(self, op: ir.Operation, operands: list[str]) -> str:
        """Squares and products by the bits of the exponents, as long as any lane has bits left."""
        out, dtype = self.out, str(op.results[0].type)
        type_, bits = self.type(dtype), int(dtype[1:])

        def binary(name: str, x: str, y: str, suffix: str = type_) -> str:
            return out.value(f"arith.{name} {x}, {y} : {suffix}")

        exponent, one, zero = operands[1], out.constant("1", type_), out.constant("0", type_)
        largest = exponent
        if self.lanes:
            if self.mask:
                chosen = f"{self.type('i1')}, {type_}"
                exponent = out.value(f"arith.select {self.mask}, {exponent}, {zero} : {chosen}")
            largest = out.value(f"vector.reduction <maxui>, {exponent} : {type_} into {dtype}")
        unused = out.value(f"math.ctlz {largest} : {dtype}")
        count = binary("subi", out.constant(str(bits), dtype), unused, dtype)
        count = count if bits == 64 else out.value(f"arith.extui {count} : {dtype} to i64")

        def square(_: str, carried: list[str]) -> list[str]:
            power, base, rest = carried
            is_odd = binary("cmpi eq,", binary("andi", rest, one), one)
            suffix = f"{self.type('i1')}, {type_}" if self.lanes else type_
            power = out.value(f"arith.select {is_odd}, {binary('muli', power, base)}, {power} : {suffix}")
            return [power, binary("muli", base, base), binary("shrui", rest, one)]

        initial = [(one, type_), (operands[0], type_), (exponent, type_)]
        return out.loop(out.integer(0), count, out.integer(1), square, initial)[0]

    def _rounded_division(self, op: ir.Operation, operands: list[str], step: int) -> str:
        """The truncated quotient, one step further where there is a remainder and the signs call for it."""
        a, b = operands
        type_, bools = self.type(op.results[0].type), self.type("i1")

        def binary(name: str, x: str, y: str, suffix: str = type_) -> str:
            return self.out.value(f"arith.{name} {x}, {y} : {suffix}")

        zero = self.out.constant("0", type_)
        quotient = binary("divsi", a, b)
        inexact = binary("cmpi ne,", binary("remsi", a, b), zero)
        signs_differ = binary("cmpi slt,", binary("xori", a, b), zero)
        if step > 0:
            signs_differ = binary("xori", signs_differ, self.out.constant("true", bools), bools)
        moved = binary("addi", quotient, self.out.constant(str(step), type_))
        adjust = binary("andi", inexact, signs_differ, bools)
        suffix = f"{bools}, {type_}" if self.lanes else type_
        return self.out.value(f"arith.select {adjust}, {moved}, {quotient} : {suffix}")


_SPECIAL = {
    "arith.constant": _Cloner.constant,
    "linalg.index": _Cloner.index,
    "nova.random_bits": _Cloner.random_bits,
    "arith.extf": _Cloner.convert,
    "arith.truncf": _Cloner.convert,
}
_EXPANDED = {
    "arith.floordivsi": _Cloner.floordivsi,
    "arith.ceildivsi": _Cloner.ceildivsi,
    "math.ipowi": _Cloner.ipowi,
}


def _is_narrow(op: ir.Operation) -> bool:
    """Does the op compute in a 16-bit float? Moving such values (select, bitcast) does not."""
    if op.name in ("arith.select", "arith.bitcast"):
        return False
    return any(str(v.type) in NARROW for v in (*op.operands, *op.results))
