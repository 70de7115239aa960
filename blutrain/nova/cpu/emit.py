"""Memory and functions of a generated CPU kernel: pointers, loads and stores at a lane type, the entry points.

A phase is two functions. The entry `void symbol(ptr operands, ptr workspace, i64 task, i64 worker)` loads the
pointers and calls a private body that takes each as an argument of its own: `llvm.noalias` on arguments is what
lets LLVM keep values in registers across stores, and inlining turns it into scopes. A result that is written in
an operand's memory shares that operand's pointer.
"""

from __future__ import annotations

from dataclasses import dataclass

from blutrain.nova.emitter import Emitter, FoldedIntegers, Integer, lane_type, memory_dtype
from blutrain.nova.kernel import ITEM_BYTES, Kernel, Operand, Source, Unsupported

POINTER = "!llvm.ptr"
WORKSPACE, TASK, WORKER = "%workspace", "%task", "%worker"


def result_pointer(kernel: Kernel, result: int) -> str:
    """The body's name of the memory of a result."""
    alias = kernel.aliases[result]
    return f"%a{alias if alias >= 0 else len(kernel.operands) + result}"


def operand_pointer(source: Source) -> str:
    """The body's name of the memory of an operand."""
    if not isinstance(source, Operand):
        raise Unsupported("memory of a value that is no operand of the kernel")
    return f"%a{source.index}"


Number = str | int  # an i64: its name, or its value where it is known now


@dataclass(frozen=True)
class Memory:
    """Loads and stores through an Emitter; `offset` is an i64 name counting elements of `dtype`."""

    out: Emitter

    def address(self, pointer: str, offset: str, dtype: str) -> str:
        element = memory_dtype(dtype)
        return self.out.value(
            f"llvm.getelementptr inbounds {pointer}[{offset}] : ({POINTER}, i64) -> {POINTER}, {element}"
        )

    def load(self, pointer: str, offset: str, dtype: str, lanes: int, mask: str | None = None) -> str:
        """One element (`lanes` 0) or `lanes` in a row; those outside `mask` are not touched and read as zero."""
        type_ = lane_type(memory_dtype(dtype), lanes)
        address = self.address(pointer, offset, dtype)
        align = f"{{alignment = {ITEM_BYTES[dtype]} : i64}}"
        if mask is None:
            value = self.out.value(f"llvm.load {address} {align} : {POINTER} -> {type_}")
        else:
            zero = self._zero(memory_dtype(dtype), lanes)
            masks = f"({POINTER}, {lane_type('i1', lanes)}, {type_}) -> {type_}"
            align = align.replace("i64", "i32")
            value = self.out.value(f"llvm.intr.masked.load {address}, {mask}, {zero} {align} : {masks}")
        return self._from_memory(value, dtype, lanes)

    def store(self, value: str, pointer: str, offset: str, dtype: str, lanes: int, mask: str | None = None) -> None:
        type_ = lane_type(memory_dtype(dtype), lanes)
        value = self._to_memory(value, dtype, lanes)
        address = self.address(pointer, offset, dtype)
        align = f"{{alignment = {ITEM_BYTES[dtype]} : i64}}"
        if mask is None:
            self.out.line(f"llvm.store {value}, {address} {align} : {type_}, {POINTER}")
            return
        types = f"{type_}, {lane_type('i1', lanes)} into {POINTER}"
        self.out.line(f"llvm.intr.masked.store {value}, {address}, {mask} {align.replace('i64', 'i32')} : {types}")

    def load_at(self, pointer: str, offsets: str, dtype: str, lanes: int, mask: str | None = None) -> str:
        """A gather: `offsets` are i64 lanes (one i64 for lanes 0)."""
        if not lanes:
            return self.load(pointer, offsets, dtype, 0)
        element, type_ = memory_dtype(dtype), lane_type(memory_dtype(dtype), lanes)
        pointers = f"vector<{lanes}x{POINTER}>"
        indices = lane_type("i64", lanes)
        addresses = self.out.value(
            f"llvm.getelementptr inbounds {pointer}[{offsets}] : ({POINTER}, {indices}) -> {pointers}, {element}"
        )
        mask = mask or self.out.constant("true", lane_type("i1", lanes))
        align = f"{{alignment = {ITEM_BYTES[dtype]} : i32}}"
        types = f"({pointers}, {lane_type('i1', lanes)}, {type_}) -> {type_}"
        zero = self._zero(element, lanes)
        return self._from_memory(
            self.out.value(f"llvm.intr.masked.gather {addresses}, {mask}, {zero} {align} : {types}"), dtype, lanes
        )

    def store_at(self, value: str, pointer: str, offsets: str, dtype: str, lanes: int, mask: str | None = None) -> None:
        """A scatter to distinct places."""
        if not lanes:
            self.store(value, pointer, offsets, dtype, 0)
            return
        value = self._to_memory(value, dtype, lanes)
        pointers = f"vector<{lanes}x{POINTER}>"
        addresses = self.out.value(
            f"llvm.getelementptr inbounds {pointer}[{offsets}] : "
            f"({POINTER}, {lane_type('i64', lanes)}) -> {pointers}, {memory_dtype(dtype)}"
        )
        mask = mask or self.out.constant("true", lane_type("i1", lanes))
        align = f"{{alignment = {ITEM_BYTES[dtype]} : i32}}"
        types = f"{lane_type(memory_dtype(dtype), lanes)}, {lane_type('i1', lanes)} into {pointers}"
        self.out.line(f"llvm.intr.masked.scatter {value}, {addresses}, {mask} {align} : {types}")

    def _zero(self, element: str, lanes: int) -> str:
        return self.out.constant("0" if element.startswith("i") else "0.0", lane_type(element, lanes))

    def _from_memory(self, value: str, dtype: str, lanes: int) -> str:
        if dtype != "i1":
            return value
        return self.out.value(f"arith.cmpi ne, {value}, {self._zero('i8', lanes)} : {lane_type('i8', lanes)}")

    def _to_memory(self, value: str, dtype: str, lanes: int) -> str:
        if dtype != "i1":
            return value
        return self.out.value(f"arith.extui {value} : {lane_type('i1', lanes)} to {lane_type('i8', lanes)}")


class Integers(FoldedIntegers):
    """Arithmetic in i64, written to an Emitter."""

    def __init__(self, out: Emitter):
        self.out = out

    def name(self, x: str | int) -> str:
        return self.out.integer(x) if isinstance(x, int) else x

    def _binary(self, op: str, a: Integer, b: Integer) -> str:
        return self.out.value(f"arith.{op} {self.name(a)}, {self.name(b)} : i64")


def phase_text(kernel: Kernel, symbol: str, out: Emitter) -> str:
    """The two functions of a phase whose body was written to `out`."""
    count = len(kernel.operands) + len(kernel.results)
    used = [i for i in range(count) if i < len(kernel.operands) or kernel.aliases[i - len(kernel.operands)] < 0]
    arguments = [f"%a{i}: {POINTER} {{llvm.noalias}}" for i in used]
    arguments += [f"{WORKSPACE}: {POINTER} {{llvm.noalias}}", f"{TASK}: i64", f"{WORKER}: i64"]
    loads = []
    for i in used:
        loads.append(f"  %s{i} = llvm.getelementptr inbounds %operands[{i}] : ({POINTER}) -> {POINTER}, {POINTER}")
        loads.append(f"  %a{i} = llvm.load %s{i} : {POINTER} -> {POINTER}")
    names = ", ".join([f"%a{i}" for i in used] + [WORKSPACE, TASK, WORKER])
    types = ", ".join([POINTER] * (len(used) + 1) + ["i64", "i64"])
    return "\n".join(
        [
            f"llvm.func internal @{symbol}_body({', '.join(arguments)}) {{",
            out.function_body(),
            "  llvm.return",
            "}",
            f"llvm.func @{symbol}(%operands: {POINTER}, {WORKSPACE}: {POINTER}, {TASK}: i64, {WORKER}: i64) {{",
            *loads,
            f"  llvm.call @{symbol}_body({names}) : ({types}) -> ()",
            "  llvm.return",
            "}",
        ]
    )


def module_text(functions: list[str], declarations: dict[str, str]) -> str:
    return "module {\n" + "\n".join([*sorted(declarations.values()), *functions]) + "\n}\n"
