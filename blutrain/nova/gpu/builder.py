"""Text of kernels for the tensor cores: 32-bit index arithmetic with constants folded, inline PTX, the module around."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import overload

from blutrain.nova.cpu.emit import POINTER
from blutrain.nova.emitter import Emitter, FoldedIntegers, Integer
from blutrain.nova.gpu.function import function_text, module_text
from blutrain.nova.kernel import Kernel

LARGEST_I32 = 2**31 - 1

SHARED = "!llvm.ptr<3>"
MAP_PARAMETER = "!llvm.ptr {llvm.align = 64 : i64, llvm.byval = !llvm.array<128 x i8>, nvvm.grid_constant}"


def struct(dtype: str, count: int) -> str:
    return f"!llvm.struct<({', '.join([dtype] * count)})>"


class Builder(FoldedIntegers, Emitter):
    """An Emitter for device code: integers are i32 unless a name says otherwise."""

    def name(self, value: Integer, type_: str = "i32") -> str:
        if isinstance(value, str):
            return value
        bits = int(type_[1:])
        wrapped = (value + (1 << bits - 1)) % (1 << bits) - (1 << bits - 1)
        return self.constant(str(wrapped), type_)

    def _binary(self, op: str, a: Integer, b: Integer, type_: str = "i32") -> str:
        return self.value(f"arith.{op} {self.name(a, type_)}, {self.name(b, type_)} : {type_}")

    def sub(self, a: Integer, b: Integer) -> Integer:
        if isinstance(b, int):
            return self.add(a, -b)
        return self._binary("subi", a, b)

    def quotient(self, a: Integer, b: Integer) -> Integer:
        """Division by a value of the run."""
        return self.div(a, b) if isinstance(b, int) else self._binary("divui", a, b)

    def bits(self, op: str, a: Integer, b: Integer) -> str:
        """andi, ori, xori, shli, shrui."""
        return self._binary(op, a, b)

    def compare(self, predicate: str, a: Integer, b: Integer) -> str:
        return self.value(f"arith.cmpi {predicate}, {self.name(a)}, {self.name(b)} : i32")

    @overload
    def both(self, a: str, b: str | None) -> str: ...
    @overload
    def both(self, a: str | None, b: str | None) -> str | None: ...
    def both(self, a: str | None, b: str | None) -> str | None:
        """The conjunction of two conditions; None is always true."""
        if a is None or b is None:
            return b if a is None else a
        return self.value(f"arith.andi {a}, {b} : i1")

    def as_integer(self, condition: str) -> str:
        return self.value(f"arith.extui {condition} : i1 to i32")

    def select(self, condition: str, a: Integer, b: Integer) -> str:
        return self.value(f"arith.select {condition}, {self.name(a)}, {self.name(b)} : i32")

    def widen(self, value: Integer) -> str:
        if isinstance(value, int):
            return self.name(value, "i64")
        return self.value(f"arith.extui {value} : i32 to i64")

    def place(self, row: Integer, pitch: int, column: Integer, size: int) -> str:
        """Element (row, column) of an array of `size` elements as an i64, found in 32 bits where these hold it."""
        if size <= LARGEST_I32:
            return self.widen(self.add(self.mul(row, pitch), column))
        start = self.value(f"arith.muli {self.widen(row)}, {self.name(pitch, 'i64')} : i64")
        return self.value(f"arith.addi {start}, {self.widen(column)} : i64")

    # --- control

    def repeat(
        self,
        lower: Integer,
        upper: Integer,
        step: Integer,
        body: Callable[[str, list[str]], Sequence[str]],
        carried: Sequence[tuple[str, str]] = (),
    ) -> list[str]:
        """`scf.for` over i32; see `Emitter.loop`."""
        return self.loop(self.name(lower), self.name(upper), self.name(step), body, carried, "i32")

    def either(self, condition: str, then: Callable[[], None], otherwise: Callable[[], None]) -> None:
        bodies = []
        for body in (then, otherwise):
            self._open()
            body()
            bodies.append(self._close())
        self.line(f"scf.if {condition} {{")
        self.blocks[self.depth] += bodies[0]
        self.line("} else {")
        self.blocks[self.depth] += bodies[1]
        self.line("}")

    def asm(self, text: str, constraints: str, arguments: Sequence[tuple[str, str]] = (), result: str = "") -> str:
        """Inline PTX with side effects; `arguments` are (name, type). Lines are separated by newlines."""
        escaped = text.replace("\n", "\\0A")
        names, types = (", ".join(a[i] for a in arguments) for i in (0, 1))
        call = f'llvm.inline_asm has_side_effects asm_dialect = att "{escaped}", "{constraints}" {names} : ({types})'
        if not result:
            self.line(f"{call} -> ()")
            return ""
        return self.value(f"{call} -> {result}")

    def pure_asm(self, text: str, constraints: str, arguments: Sequence[tuple[str, str]], result: str) -> str:
        """Inline PTX that only computes."""
        names, types = (", ".join(a[i] for a in arguments) for i in (0, 1))
        return self.value(
            f'llvm.inline_asm asm_dialect = att "{text}", "{constraints}" {names} : ({types}) -> {result}'
        )

    def unpack(self, value: str, dtype: str, count: int) -> list[str]:
        type_ = struct(dtype, count)
        return [self.value(f"llvm.extractvalue {value}[{i}] : {type_}") for i in range(count)]

    # --- memory

    def shared_pointer(self, address: Integer) -> str:
        return self.value(f"llvm.inttoptr {self.name(address)} : i32 to {SHARED}")

    def load(self, pointer: str, type_: str, alignment: int, constant: bool = False) -> str:
        invariant = " invariant" if constant else ""
        return self.value(f"llvm.load {pointer}{invariant} {{alignment = {alignment} : i64}} : !llvm.ptr -> {type_}")

    def store(self, value: str, pointer: str, type_: str, alignment: int) -> None:
        self.line(f"llvm.store {value}, {pointer} {{alignment = {alignment} : i64}} : {type_}, !llvm.ptr")

    def element(self, vector: str, lane: int, dtype: str, lanes: int) -> str:
        at = self.name(lane)
        return self.value(f"llvm.extractelement {vector}[{at} : i32] : vector<{lanes}x{dtype}>")

    def vector(self, elements: Sequence[str], dtype: str) -> str:
        type_ = f"vector<{len(elements)}x{dtype}>"
        result = self.value(f"llvm.mlir.undef : {type_}")
        for i, x in enumerate(elements):
            result = self.value(f"llvm.insertelement {x}, {result}[{self.name(i)} : i32] : {type_}")
        return result

    def shuffle_xor(self, value: str, mask: int, dtype: str = "f32") -> str:
        """An f32 or f64 of the lane whose number differs in `mask`."""
        if dtype == "f64":
            pair = self.value(f"llvm.bitcast {value} : f64 to vector<2xi32>")
            words = [self._shuffle(self.element(pair, i, "i32", 2), mask) for i in range(2)]
            return self.value(f"llvm.bitcast {self.vector(words, 'i32')} : vector<2xi32> to f64")
        word = self._shuffle(self.value(f"llvm.bitcast {value} : f32 to i32"), mask)
        return self.value(f"llvm.bitcast {word} : i32 to f32")

    def _shuffle(self, word: str, mask: int) -> str:
        everyone, clamp = self.name(-1), self.name(31)
        return self.value(f"nvvm.shfl.sync bfly {everyone}, {word}, {self.name(mask)}, {clamp} : i32 -> i32")


class Module:
    """A `gpu.module @kernels` of kernel functions that all take the parameters of one nova.kernel."""

    def __init__(self, kernel: Kernel):
        self.pointers = [f"%p{i}: {POINTER}" for i in range(len(kernel.operands) + len(kernel.results))]
        self.parts: list[str] = []

    def add(
        self,
        symbol: str,
        out: Builder,
        threads: int,
        num_maps: int = 0,
        cluster: int = 1,
        shared: int = 0,
        layout: str = "",
    ) -> None:
        """The function around a body. shared: bytes of static shared memory, named @<symbol>_shared; layout: printed beside
        the function.
        """
        if shared:
            self.parts.append(
                f"llvm.mlir.global internal @{symbol}_shared() {{addr_space = 3 : i32, alignment = 16 : i64, dso_local}} : "
                f"!llvm.array<{shared} x i8>"
            )
        maps = [f"%map{i}: {MAP_PARAMETER}" for i in range(num_maps)]
        parameters = [*maps, *self.pointers, f"%workspace: {POINTER}"]
        attributes = ["nvvm.minctasm = 1 : i32"]
        attributes += [f"nvvm.cluster_dim = array<i32: {cluster}, 1, 1>"] if cluster > 1 else []
        attributes += [f'nova.layout = "{layout}"'] if layout else []
        self.parts.append(function_text(symbol, parameters, attributes, threads, out.function_body()))

    def text(self) -> str:
        return module_text([_DYNAMIC_SHARED, *self.parts])


_DYNAMIC_SHARED = "llvm.mlir.global external @shared() {addr_space = 3 : i32, alignment = 1024 : i64, dso_local} : !llvm.array<0 x i8>"
