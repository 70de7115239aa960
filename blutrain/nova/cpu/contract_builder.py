"""An `Emitter` with what contract kernels are written in: folded i64 arithmetic, pointers, vectors, functions.

Integers are SSA names or Python ints; arithmetic on ints happens here, so that static shapes leave no dead code.
Pointers are `!llvm.ptr`, offsets count elements, and booleans that are known at generation are Python bools.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from blutrain.nova.emitter import Emitter, FoldedIntegers, Integer

Arguments = Sequence[tuple[str, str]]  # name and type
PHASE_ARGUMENTS = (("%operands", "!llvm.ptr"), ("%workspace", "!llvm.ptr"), ("%task", "i64"), ("%worker", "i64"))


class Module:
    """The functions of one kernel."""

    def __init__(self):
        self.functions: list[str] = []
        self.declarations: dict[str, str] = {}

    def builder(self) -> Builder:
        builder = Builder()
        builder.declarations = self.declarations
        return builder

    def add(self, name: str, arguments: Arguments, body: Builder) -> None:
        """A function inside this module."""
        linkage = "attributes {llvm.linkage = #llvm.linkage<internal>} "
        self.functions.append(f"func.func private {_signature(name, arguments)} {linkage}{_block(body)}")

    def add_phase(self, name: str, body: Builder) -> None:
        """A function that the host calls."""
        self.functions.append(f"func.func {_signature(name, PHASE_ARGUMENTS)} {_block(body)}")

    def text(self) -> str:
        return "\n".join([*self.declarations.values(), *self.functions])


def _signature(name: str, arguments: Arguments) -> str:
    return f"@{name}({', '.join(f'{a}: {t}' for a, t in arguments)})"


def _block(body: Builder) -> str:
    return f"{{\n{body.function_body()}\n  return\n}}\n"


class Builder(FoldedIntegers, Emitter):
    """The body of one function."""

    def __init__(self):
        super().__init__()
        self._operands: dict[int, str] = {}

    def call(self, name: str, arguments: Sequence[tuple[Integer, str]]) -> None:
        values = ", ".join(self.i64(v) if isinstance(v, int) else v for v, _ in arguments)
        self.line(f"func.call @{name}({values}) : ({', '.join(t for _, t in arguments)}) -> ()")

    # --- control flow

    def each(self, start: Integer, stop: Integer, body: Callable[[Integer], None], step: int = 1) -> None:
        """`for i in range(start, stop, step): body(i)`; one turn is written without a loop, none not at all."""
        if isinstance(start, int) and isinstance(stop, int):
            if start >= stop:
                return
            if start + step >= stop:
                body(start)
                return

        def turn(index: str, _carried: list[str]) -> list[str]:
            body(index)
            return []

        self.loop(self.i64(start), self.i64(stop), self.i64(step), turn)

    def if_(self, condition: str | bool, body: Callable[[], None]) -> None:
        if condition is True:
            body()
        elif condition is not False:
            self.when(condition, body)

    def not_(self, condition: str | bool) -> str | bool:
        if isinstance(condition, bool):
            return not condition
        return self.value(f"arith.xori {condition}, {self.constant('true', 'i1')} : i1")

    # --- integers

    def i64(self, value: Integer) -> str:
        return self.integer(value) if isinstance(value, int) else value

    def _binary(self, op: str, a: Integer, b: Integer) -> str:
        return self.value(f"arith.{op} {self.i64(a)}, {self.i64(b)} : i64")

    def round_up(self, a: Integer, multiple: int) -> Integer:
        return self.mul(self.div(self.add(a, multiple - 1), multiple), multiple)

    def equal(self, a: Integer, b: Integer) -> str | bool:
        if isinstance(a, int) and isinstance(b, int):
            return a == b
        return self.value(f"arith.cmpi eq, {self.i64(a)}, {self.i64(b)} : i64")

    def less_equal(self, a: Integer, b: Integer) -> str | bool:
        if isinstance(a, int) and isinstance(b, int):
            return a <= b
        return self.value(f"arith.cmpi sle, {self.i64(a)}, {self.i64(b)} : i64")

    def digits(self, index: Integer, extents: Sequence[int]) -> list[Integer]:
        """Row-major coordinates of a flat index."""
        result: list[Integer] = []
        for position, extent in enumerate(reversed(extents)):
            result.append(index if position == len(extents) - 1 else self.rem(index, extent))
            index = self.div(index, extent)
        return result[::-1]

    # --- memory

    def pointer(self, base: str, offset: Integer, dtype: str) -> str:
        """`base` plus `offset` elements."""
        if offset == 0:
            return base
        element = "i8" if dtype == "i1" else dtype
        types = "(!llvm.ptr)" if isinstance(offset, int) else "(!llvm.ptr, i64)"
        return self.value(f"llvm.getelementptr {base}[{offset}] : {types} -> !llvm.ptr, {element}")

    def operand(self, number: int) -> str:
        """Pointer `number` of the array `%operands`, loaded once at the head of the function."""
        if number not in self._operands:
            with self.scope(0):
                slot = self.pointer("%operands", 8 * number, "i8")
                self._operands[number] = self.load(slot, "!llvm.ptr", 8)
        return self._operands[number]

    def load(self, pointer: str, type_: str, alignment: int) -> str:
        return self.value(f"llvm.load {pointer} {{alignment = {alignment} : i64}} : !llvm.ptr -> {type_}")

    def store(self, value: str, pointer: str, type_: str, alignment: int) -> None:
        self.line(f"llvm.store {value}, {pointer} {{alignment = {alignment} : i64}} : {type_}, !llvm.ptr")

    # --- vectors

    def lane_numbers(self, lanes: int) -> str:
        numbers = ", ".join(map(str, range(lanes)))
        return self.constant(f"[{numbers}]", f"vector<{lanes}xi64>")

    def first_lanes(self, count: Integer, lanes: int) -> str:
        """Mask of the lanes below `count`."""
        bound = self.value(f"vector.broadcast {self.i64(count)} : i64 to vector<{lanes}xi64>")
        return self.value(f"arith.cmpi slt, {self.lane_numbers(lanes)}, {bound} : vector<{lanes}xi64>")
