"""The phase behind a product with reductions: partial sums of a column, or row, combined in order, then its outputs."""

from __future__ import annotations

from dataclasses import dataclass

from blutrain.nova.contract.combine import Combiner
from blutrain.nova.contract.form import ColumnReduction
from blutrain.nova.gpu.builder import Builder, Integer
from blutrain.nova.gpu.hopper.tiles import Tiles
from blutrain.nova.gpu.hopper.values import Origin, Run, Values

WARP = 32
GROUPS = 8  # warps of a block, each with an eighth of the rows
THREADS = WARP * GROUPS


@dataclass(frozen=True)
class Partials:
    """Where the partial values of reductions lie: `shares` rows of them `pitch` elements apart, for each reduction, from
    byte `offset` of the workspace. `extent` values are wanted, along `axis` of the product.
    """

    reductions: tuple[ColumnReduction, ...]
    axis: str
    extent: int
    offset: int
    shares: int
    pitch: int

    @property
    def blocks(self) -> int:
        return -(-self.extent // WARP)


def of_columns(tiles: Tiles) -> Partials:
    problem = tiles.problem
    place = (tiles.sums_row_offset, tiles.sums_rows, tiles.sums_pitch)
    return Partials(problem.contract.reductions, "n", problem.n, *place)


def of_rows(tiles: Tiles) -> Partials:
    problem = tiles.problem
    place = (tiles.row_sums_offset, tiles.row_shares, tiles.row_pitch)
    return Partials(problem.contract.row_reductions, "m", problem.m, *place)


def shared_bytes() -> int:
    return THREADS * 4


def emit_totals(out: Builder, tiles: Tiles, partials: Partials, symbol: str) -> None:
    """A block takes 32 values: its warps combine ranges of shares, the first warp combines the warps' values."""
    thread = out.value("nvvm.read.ptx.sreg.tid.x : i32")
    block = out.value("nvvm.read.ptx.sreg.ctaid.x : i32")
    lane, warp = out.bits("andi", thread, WARP - 1), out.bits("shrui", thread, 5)
    place = out.add(out.mul(block, WARP), lane)
    shared = out.value(f"llvm.mlir.addressof @{symbol}_shared : !llvm.ptr<3>")
    base = out.value(f"llvm.ptrtoint {shared} : !llvm.ptr<3> to i32")
    mine = out.name(out.add(base, out.mul(thread, 4)))
    origin = Origin(0, place, 0, frozenset()) if partials.axis == "n" else Origin(place, 0, 0, frozenset())
    for number, reduction in enumerate(partials.reductions):
        combiner = Combiner(reduction)
        value = _shares(out, partials, number, combiner, warp, place)
        out.line("nvvm.barrier0")
        out.asm("st.shared.f32 [$0], $1;", "r,f,~{memory}", [(mine, "i32"), (value, "f32")])
        out.line("nvvm.barrier0")

        def finish(reduction=reduction, combiner=combiner) -> None:
            values = Values(out, tiles.problem.contract, origin)
            total = out.element(values.value(reduction.init, Run(0, 0, 1)), 0, "f32", 1)
            for w in range(GROUPS):
                part = out.asm(f"ld.shared.f32 $0, [$1+{4 * WARP * w}];", "=f,r,~{memory}", [(mine, "i32")], "f32")
                total = combiner.combine(out, total, part, 0)
            vector = out.vector([total], "f32")
            for store in reduction.outputs:
                values.store(values.value(store.value, Run(0, 0, 1), vector), store.access, Run(0, 0, 1))

        first_warp = out.both(out.compare("eq", warp, 0), out.compare("slt", place, partials.extent))
        out.when(first_warp, finish)


def _shares(out: Builder, partials: Partials, number: int, combiner: Combiner, warp: Integer, place: Integer) -> str:
    """The combination of a warp's range of shares, in order."""
    shares = -(-partials.shares // GROUPS)
    first = out.mul(warp, shares)
    last = out.minimum(out.add(first, shares), partials.shares)
    start = out.pointer("%workspace", partials.offset + number * partials.shares * partials.pitch * 4, "i8")

    def step(share: str, carried: list[str]) -> list[str]:
        at = out.place(share, partials.pitch, place, partials.shares * partials.pitch)
        part = out.load(out.pointer(start, at, "f32"), "f32", 4)
        return [combiner.combine(out, carried[0], part, 0)]

    # Values beyond the product lie within the padded pitch: written by nobody, read and dropped.
    return out.repeat(first, last, 1, step, [(out.constant(combiner.neutral, "f32"), "f32")])[0]
