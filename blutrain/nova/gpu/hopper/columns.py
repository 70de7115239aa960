"""The phase behind a product with column reductions: partial sums of a column combined in order, then its outputs."""

from __future__ import annotations

from blutrain.nova.cpu.contract_finish import Combiner
from blutrain.nova.gpu.hopper.builder import Builder, Integer
from blutrain.nova.gpu.hopper.tiles import Tiles
from blutrain.nova.gpu.hopper.values import Origin, Run, Values

WARP = 32
GROUPS = 8  # warps of a block, each with an eighth of the rows
THREADS = WARP * GROUPS


def blocks(tiles: Tiles) -> int:
    return -(-tiles.problem.n // WARP)


def shared_bytes() -> int:
    return THREADS * 4


def emit_columns(out: Builder, tiles: Tiles, symbol: str) -> None:
    """A block takes 32 columns: its warps combine ranges of rows, the first warp combines the warps' values."""
    thread = out.value("nvvm.read.ptx.sreg.tid.x : i32")
    block = out.value("nvvm.read.ptx.sreg.ctaid.x : i32")
    lane, warp = out.bits("andi", thread, WARP - 1), out.bits("shrui", thread, 5)
    column = out.add(out.mul(block, WARP), lane)
    shared = out.value(f"llvm.mlir.addressof @{symbol}_shared : !llvm.ptr<3>")
    base = out.value(f"llvm.ptrtoint {shared} : !llvm.ptr<3> to i32")
    mine = out.name(out.add(base, out.mul(thread, 4)))
    for number, reduction in enumerate(tiles.problem.contract.reductions):
        combiner = Combiner(reduction)
        value = _rows(out, tiles, number, combiner, warp, column)
        out.line("nvvm.barrier0")
        out.asm("st.shared.f32 [$0], $1;", "r,f,~{memory}", [(mine, "i32"), (value, "f32")])
        out.line("nvvm.barrier0")

        def finish(reduction=reduction, combiner=combiner) -> None:
            values = Values(out, tiles.problem.contract, Origin(0, column, 0, frozenset()))
            total = out.element(values.value(reduction.init, Run(0, 0, 1)), 0, "f32", 1)
            for w in range(GROUPS):
                part = out.asm(f"ld.shared.f32 $0, [$1+{4 * WARP * w}];", "=f,r,~{memory}", [(mine, "i32")], "f32")
                total = combiner.combine(out, total, part, 0)
            vector = out.vector([total], "f32")
            for store in reduction.outputs:
                values.store(values.value(store.value, Run(0, 0, 1), vector), store.access, Run(0, 0, 1))

        first_warp = out.both(out.compare("eq", warp, 0), out.compare("slt", column, tiles.problem.n))
        out.when(first_warp, finish)


def _rows(out: Builder, tiles: Tiles, number: int, combiner: Combiner, warp: Integer, column: Integer) -> str:
    """The combination of a warp's range of rows, in order."""
    rows = -(-tiles.sums_rows // GROUPS)
    first = out.mul(warp, rows)
    last = out.minimum(out.add(first, rows), tiles.sums_rows)
    start = out.pointer("%workspace", tiles.sums_row_offset + number * tiles.sums_rows * tiles.sums_pitch * 4, "i8")

    def step(row: str, carried: list[str]) -> list[str]:
        at = out.widen(out.add(out.mul(row, tiles.sums_pitch), column))
        part = out.load(out.pointer(start, at, "f32"), "f32", 4)
        return [combiner.combine(out, carried[0], part, 0)]

    # Columns beyond the product lie within the padded pitch: written by nobody, read and dropped.
    return out.repeat(first, last, 1, step, [(out.constant(combiner.neutral, "f32"), "f32")])[0]
