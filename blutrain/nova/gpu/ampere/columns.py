"""The last phase of kernels with reductions over rows: adds the rows of partial values, in order.

A block takes 32 columns. Eight groups of threads each combine a range of the rows, then the first combines the groups.
"""

from __future__ import annotations

import math

from blutrain.nova.contract.combine import Combiner
from blutrain.nova.gpu.ampere.elements import Elements, run
from blutrain.nova.gpu.ampere.finish import EXACT
from blutrain.nova.gpu.ampere.tiles import Tiles
from blutrain.nova.gpu.builder import SHARED, Builder, Integer
from blutrain.nova.kernel import ITEM_BYTES

COLUMNS, GROUPS = 32, 8
THREADS = COLUMNS * GROUPS


def blocks(tiles: Tiles) -> int:
    return math.ceil(tiles.problem.extent["n"] / COLUMNS)


def shared_bytes() -> int:
    return THREADS * 8


def emit_columns(out: Builder, tiles: Tiles) -> None:
    thread = out.value("nvvm.read.ptx.sreg.tid.x : i32")
    block = out.value("nvvm.read.ptx.sreg.ctaid.x : i32")
    group, lane = out.div(thread, COLUMNS), out.rem(thread, COLUMNS)
    column = out.add(out.mul(block, COLUMNS), lane)
    ragged = frozenset({"n"} if tiles.problem.extent["n"] % COLUMNS else ())
    fast = tiles.problem.kind not in EXACT
    for number, reduction in enumerate(tiles.problem.contract.reductions):
        combiner = Combiner(reduction)
        elements = Elements(out, tiles.problem.contract, {"batch": 0, "m": 0, "n": column}, ragged, fast)
        value = _combine_rows(out, tiles, number, combiner, group, column)
        pieces = _gathered(out, combiner, value, thread, lane)

        def finish(elements=elements, reduction=reduction, combiner=combiner, pieces=pieces) -> None:
            at = run("n", 1)
            (total,) = elements.value(reduction.init, at)
            for piece in pieces():
                total = combiner.combine(out, total, piece, 0)
            values = [elements.value(store.value, at, [total]) for store in reduction.outputs]
            for value, store in zip(values, reduction.outputs, strict=True):
                elements.store(value, store.access, at)

        out.when(out.compare("ult", thread, COLUMNS), finish)
        out.line("nvvm.barrier0")


def _combine_rows(out: Builder, tiles: Tiles, number: int, combiner: Combiner, group: Integer, column: Integer) -> str:
    """A group's range of the partial rows of one column."""
    rows = tiles.partial_rows if not tiles.problem.is_empty else 0
    each = math.ceil(rows / GROUPS)
    begin = out.mul(group, each)
    end = out.minimum(out.add(begin, each), rows)
    base = out.pointer("%workspace", tiles.partial_offsets[number], "i8")
    # Tiles are whole, so are the rows of partial values: a column beyond the product is within their width, or not
    # read at all.
    inside = out.minimum(column, max(tiles.partial_columns - 1, 0))
    base = out.pointer(base, out.widen(inside), combiner.dtype)
    neutral = out.constant(combiner.neutral, combiner.dtype)
    if rows == 0:
        return neutral

    def add(row: str, carried: list[str]) -> list[str]:
        offset = out.value(f"arith.muli {out.widen(row)}, {out.name(tiles.partial_columns, 'i64')} : i64")
        value = out.load(out.pointer(base, offset, combiner.dtype), combiner.dtype, ITEM_BYTES[combiner.dtype])
        return [combiner.combine(out, carried[0], value, 0)]

    (total,) = out.repeat(begin, end, 1, add, [(neutral, combiner.dtype)])
    return total


def _gathered(out: Builder, combiner: Combiner, value: str, thread: str, lane: Integer):
    """Exchange through shared memory; returns what reads a column's groups, in order."""
    dtype, item = combiner.dtype, ITEM_BYTES[combiner.dtype]
    address = out.value(f"llvm.mlir.addressof @shared : {SHARED}")
    base = out.value(f"llvm.ptrtoint {address} : {SHARED} to i32")
    out.line(
        f"llvm.store {value}, {out.shared_pointer(out.add(base, out.mul(thread, item)))} "
        f"{{alignment = {item} : i64}} : {dtype}, {SHARED}"
    )
    out.line("nvvm.barrier0")

    def read() -> list[str]:
        first = out.add(base, out.mul(lane, item))
        places = [out.shared_pointer(out.add(first, group * COLUMNS * item)) for group in range(GROUPS)]
        return [out.value(f"llvm.load {p} {{alignment = {item} : i64}} : {SHARED} -> {dtype}") for p in places]

    return read
