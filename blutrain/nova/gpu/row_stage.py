"""Rows in shared memory: operands that several sweeps over a long row read are loaded from memory once.

A thread stores its strips of the first sweep that reads an operand into the block's dynamic shared memory, and later
sweeps take them from there. The same thread reads what it wrote, so no barrier is needed.
"""

from __future__ import annotations

from blutrain.nova.cpu.row_plan import Pass, RowPlan
from blutrain.nova.gpu.configure_common import operand_accesses
from blutrain.nova.gpu.emit import SHARED_POINTER, SimtEvaluator
from blutrain.nova.gpu.emit_strip import load_pieces, store_pieces
from blutrain.nova.gpu.row_share import Chunk
from blutrain.nova.kernel import ITEM_BYTES, Access, Produced, Source

ALIGNMENT = 16


def ops_behind(plan: RowPlan, pass_: Pass) -> set[int]:
    """The pass's reductions, and the ops over the columns that it computes, as far as no reduction stands between."""
    reductions = (*pass_.reductions, *pass_.sums)
    stack: list[Source] = [s.source for s in pass_.stores]
    stack += [a.source for r in reductions for a in (*r.placed.inputs, *r.placed.outputs)]
    found: set[int] = set()
    while stack:
        source = stack.pop()
        if not isinstance(source, Produced) or source.op in found or plan.domain.ops[source.op].reduced:
            continue
        found.add(source.op)
        stack += [a.source for a in plan.domain.ops[source.op].inputs]
    return found | {r.index for r in reductions}


def loads_of(plan: RowPlan, pass_: Pass) -> list[Access]:
    """Operand accesses along the columns that a pass makes."""
    operands, lane = set(operand_accesses(plan.domain)), plan.column_dims[-1]
    found = [a for index in sorted(ops_behind(plan, pass_)) for a in plan.domain.ops[index].inputs]
    return list(dict.fromkeys(a for a in found if a in operands and a.strides[lane]))


def stageable(plan: RowPlan) -> list[Access]:
    """Accesses of more than one pass that differ from row to row."""
    if not plan.column_dims:
        return []
    passes = [loads_of(plan, pass_) for pass_ in plan.passes]
    found = list(dict.fromkeys(a for loads in passes for a in loads))
    varies = lambda a: any(a.strides[d] for d in plan.row_dims)
    return [a for a in found if varies(a) and sum(a in loads for loads in passes) > 1]


def stage_bytes(accesses: list[Access], elements: int) -> int:
    """Bytes for `elements` of a row: all strips of all threads, those past the row's end included."""
    return sum((elements * ITEM_BYTES[a.dtype] + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT for a in accesses)


class Stage:
    """The staged operands of a row; installs itself in the evaluator once a row's first sweep has stored them."""

    def __init__(self, evaluator: SimtEvaluator, accesses: list[Access], elements: int, symbol: str):
        self.evaluator, self.out, self.symbol = evaluator, evaluator.out, symbol
        self.starts, self.bytes = {}, 0
        for access in accesses:
            self.starts[access] = self.bytes
            self.bytes += stage_bytes([access], elements)
        self._base = ""

    def keep(self, chunk: Chunk, loads: list[Access]) -> None:
        """Store the elements of a chunk that the running pass has loaded from memory."""
        for access in loads:
            if access in self.starts and access not in self.evaluator.staged:
                values = [self.evaluator.read(access, point) for point in chunk.strip.points]
                address = lambda first, access=access: self._address(access, chunk.strip, first)
                store_pieces(self.out, address, values, access.dtype, SHARED_POINTER)

    def serve(self, loads: list[Access]) -> None:
        """From here on strips are loaded from shared memory."""
        for access in loads:
            if access in self.starts:
                self.evaluator.staged[access] = lambda strip, access=access: load_pieces(
                    self.out,
                    lambda first: self._address(access, strip, first),
                    access.dtype,
                    strip.width,
                    SHARED_POINTER,
                )

    def forget(self) -> None:
        """A new row."""
        self.evaluator.staged.clear()

    def _address(self, access: Access, strip, first: int) -> str:
        ints, item = self.evaluator.integers, ITEM_BYTES[access.dtype]
        with self.out.scope(0):
            if not self._base:
                self._base = self.out.value(f"llvm.mlir.addressof @{self.symbol}_stage : {SHARED_POINTER}")
        offset = ints.add(ints.mul(ints.add(strip.place, first), item), self.starts[access])
        return self.out.value(
            f"llvm.getelementptr inbounds {self._base}[{ints.name(offset)}] : ({SHARED_POINTER}, i64) -> "
            f"{SHARED_POINTER}, i8"
        )

    def declaration(self) -> str:
        """The kernel's dynamic shared memory."""
        return (
            f"llvm.mlir.global external @{self.symbol}_stage() {{addr_space = 3 : i32, alignment = 16 : i64}} : "
            "!llvm.array<0 x i8>"
        )
