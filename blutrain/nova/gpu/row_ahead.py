"""The next row on its way while one is worked on: cp.async brings its operands into shared memory.

Where a block goes over rows one after the other (sums over the rows), its threads would wait for memory at the head of
every row, and again behind every reduction. Here a thread copies its strips of the next row, and the numbers that are
one a row, before it begins a row, and reads them where that row's turn has come: what it copied itself, so no barrier
is needed. Two rows take turns.
"""

from __future__ import annotations

from dataclasses import dataclass

from blutrain.nova.cpu.emit import Number, operand_pointer
from blutrain.nova.cpu.emit_nest import Point
from blutrain.nova.cpu.row_plan import RowPlan
from blutrain.nova.gpu.configure_common import operand_accesses
from blutrain.nova.gpu.emit import SHARED_POINTER, THREAD, SimtEvaluator
from blutrain.nova.gpu.emit_strip import is_wide, load_pieces
from blutrain.nova.gpu.row_share import Chunk
from blutrain.nova.kernel import ITEM_BYTES, Access

PIECES = {16: "cg", 8: "ca", 4: "ca"}  # bytes that one cp.async copies, and the caches it goes through
ROWS = 2
GLOBAL_POINTER = "!llvm.ptr<1>"


@dataclass(frozen=True)
class Copied:
    """An operand of a row: `size` bytes for each of `pieces` strips of a thread, or for the one number that all read."""

    access: Access
    size: int
    pieces: int
    is_strip: bool


def copied_operands(plan: RowPlan, chunks: int, width: int) -> list[Copied]:
    """All that differ from row to row and that cp.async can copy; a thread has `chunks` strips of `width` elements."""
    found = []
    for access in operand_accesses(plan.domain) if plan.column_dims else ():
        is_strip = any(access.strides[d] for d in plan.column_dims)
        size = ITEM_BYTES[access.dtype] * (width if is_strip else 1)
        fits = size in PIECES and (not is_strip or is_wide(access, plan.column_dims[-1], width))
        if fits and access.dtype != "i1" and any(access.strides[d] for d in plan.row_dims):
            found.append(Copied(access, size, chunks if is_strip else 1, is_strip))
    return found


def ahead_bytes(operands: list[Copied], block: int) -> int:
    """Shared memory of a block of `block` threads."""
    return sum(ROWS * block * operand.pieces * operand.size for operand in operands)


class Ahead:
    """Copies of `operands` in the block's dynamic shared memory: by operand, row, piece, thread."""

    def __init__(self, evaluator: SimtEvaluator, operands: list[Copied], block: int, symbol: str):
        self.evaluator, self.out, self.ints, self.symbol = evaluator, evaluator.out, evaluator.integers, symbol
        self.operands, self.block, self.bytes = operands, block, ahead_bytes(operands, block)
        self.starts = {o.access: ahead_bytes(operands[:i], block) for i, o in enumerate(operands)}

    def copy(self, at: Point, chunks: list[Chunk], turn: Number) -> None:
        """Begin to copy the row `at` to place `turn`, 0 or 1."""
        for operand in self.operands:
            points = [chunk.strip.points[0] for chunk in chunks] if operand.is_strip else [at]
            for piece, point in enumerate(points):
                access = operand.access
                offset = self.evaluator.offset(access.strides, access.offset, point)
                source = self.evaluator.memory.address(operand_pointer(access.source), offset, access.dtype)
                source = self.out.value(f"llvm.addrspacecast {source} : !llvm.ptr to {GLOBAL_POINTER}")
                self.out.line(
                    f"nvvm.cp.async.shared.global {self._address(operand, piece, turn)}, {source}, {operand.size}, "
                    f"cache = {PIECES[operand.size]} : {SHARED_POINTER}, {GLOBAL_POINTER}"
                )

    def commit(self) -> None:
        """What was copied since the last call is one row, even if it is nothing."""
        self.out.line("nvvm.cp.async.commit.group")

    def serve(self, at: Point, chunks: list[Chunk], turn: Number) -> None:
        """Wait for all rows but the last one committed: the row `at` is read from place `turn`."""
        self.out.line(f"nvvm.cp.async.wait.group {ROWS - 1}")
        pieces = {id(chunk.strip): chunk.number for chunk in chunks}
        for operand in self.operands:
            access = operand.access
            if operand.is_strip:
                self.evaluator.staged[access] = lambda strip, operand=operand: self._load(
                    operand, pieces[id(strip)], turn, strip.width
                )
            else:
                (at.memo["load", access],) = self._load(operand, 0, turn, 1)

    def _load(self, operand: Copied, piece: int, turn: Number, width: int) -> list[str]:
        address = lambda first: self._address(operand, piece, turn, first * ITEM_BYTES[operand.access.dtype])
        return load_pieces(self.out, address, operand.access.dtype, width, SHARED_POINTER)

    def _address(self, operand: Copied, piece: int, turn: Number, more: int = 0) -> str:
        """Byte `more` of a piece of this thread."""
        ints, size = self.ints, operand.size
        fixed = self.starts[operand.access] + piece * self.block * size + more
        with self.out.scope(0):
            base = self.out.value(f"llvm.mlir.addressof @{self.symbol}_stage : {SHARED_POINTER}")
        offset = ints.add(ints.add(ints.mul(THREAD, size), ints.mul(turn, operand.pieces * self.block * size)), fixed)
        return self.out.value(
            f"llvm.getelementptr inbounds {base}[{ints.name(offset)}] : ({SHARED_POINTER}, i64) -> {SHARED_POINTER}, i8"
        )
