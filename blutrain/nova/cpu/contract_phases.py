"""The phases of a contract kernel: who packs, multiplies and finishes what, and where in the workspace it lies.

Each phase is one function of (operands, workspace, task, worker); `contract.py` lists them. The loops of a product
task:

    for each block of k in the task's range:
        pack the task's row panels                        (unless rows are shared)
        for each group of the task's column panels:
            pack them                                     (unless columns are shared)
            for each row panel of the task, for each column panel of the group:
                one tile; after the last block: finish it

A group makes a task write rows of several tiles at once: longer runs of memory, fewer pages at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from blutrain.nova.cpu.configure_contract import K_UNROLL
from blutrain.nova.cpu.contract_builder import Builder, Integer, Module
from blutrain.nova.cpu.contract_finish import emit_clear_partials
from blutrain.nova.cpu.contract_layout import PACK_STEPS, Layout, PanelShape
from blutrain.nova.emitter import lane_type

Name = Callable[[str], str]  # the symbol of a part of the kernel


@dataclass(frozen=True)
class Cell:
    """What a task covers: a batch, ranges of panels, its partial values' row, its worker's buffers."""

    batch: Integer
    rows: tuple[Integer, Integer]
    columns: tuple[Integer, Integer]
    partials: str
    worker: str


@dataclass(frozen=True)
class Block:
    """A block of k in a task.

    Where it starts, its steps, whether sums of earlier blocks exist, whether it is the last.
    """

    start: Integer
    count: Integer
    more: str | bool
    is_last: str | bool


class _Phase:
    """What the phases share: places in the workspace and calls of the kernel's inner functions."""

    def __init__(self, module: Module, name: Name, layout: Layout):
        self.out: Builder = module.builder()
        self.name, self.layout, self.schedule = name, layout, layout.schedule

    def at(self, offset: Integer) -> str:
        return self.out.pointer("%workspace", offset, "i8")

    def range(self, number: Integer, parts: int, total: int) -> tuple[Integer, Integer]:
        """Part `number` of `parts` nearly equal ones of [0, total)."""
        if parts == 1:
            return 0, total
        out = self.out
        return out.div(out.mul(number, total), parts), out.div(out.mul(out.add(number, 1), total), parts)

    def cell(self, number: Integer) -> Cell:
        out, layout, schedule = self.out, self.layout, self.schedule
        batch, im, in_ = out.digits(number, (layout.batch, schedule.m_tasks, schedule.n_tasks))
        row = out.add(out.mul(batch, schedule.m_tasks), im)
        return Cell(
            batch,
            self.range(im, schedule.m_tasks, layout.panels_m),
            self.range(in_, schedule.n_tasks, layout.panels_n),
            self.at(out.add(out.mul(row, layout.partial_row_bytes), layout.partials)),
            self.at(out.add(out.mul("%worker", layout.worker_stride), layout.worker)),
        )

    def pack(self, part: str, panels: str, batch: Integer, begin: Integer, end: Integer, block: Block) -> None:
        numbers = [(v, "i64") for v in (batch, begin, end, block.start, block.count)]
        self.out.call(self.name(part), [("%operands", "!llvm.ptr"), (panels, "!llvm.ptr"), *numbers])

    def finish(self, cell: Cell, sums: str, i: Integer, j: Integer) -> None:
        """Epilogue and stores of the tile of row panel i and column panel j."""
        m0, n0 = self.out.mul(i, self.schedule.mr), self.out.mul(j, self.schedule.nr)
        pointers = [(p, "!llvm.ptr") for p in ("%operands", sums, cell.partials)]
        self.out.call(self.name("finish"), [*pointers, (cell.batch, "i64"), (m0, "i64"), (n0, "i64")])

    def cut_tile(self, cell: Cell, cut: Integer, i: Integer, j: Integer) -> str:
        """Where cut number `cut` of k leaves the sums of a tile."""
        out, layout = self.out, self.layout
        number = out.add(out.mul(out.add(out.mul(cell.batch, layout.panels_m), i), layout.panels_n), j)
        number = out.add(out.mul(number, self.schedule.split), cut)
        return self.at(out.add(out.mul(number, layout.tile_bytes), layout.cut_tiles))


def emit_pack_phase(module: Module, name: Name, layout: Layout) -> int:
    """Each task packs a part of one shared factor (see `Layout.pack_parts`); returns the number of tasks."""
    phase = _Phase(module, name, layout)
    out = phase.out
    row_tasks, column_tasks = layout.pack_tasks

    def rows() -> None:
        part = phase.range("%task", row_tasks, layout.row_parts)
        _pack_part(phase, "pack_rows", part, layout.panels_m, layout.rows, layout.shared_rows)

    def columns() -> None:
        part = phase.range(out.sub("%task", row_tasks), column_tasks, layout.column_parts)
        _pack_part(phase, "pack_columns", part, layout.panels_n, layout.columns, layout.shared_columns)

    is_rows = not column_tasks or (row_tasks > 0 and out.less_equal(out.add("%task", 1), row_tasks))
    out.if_(is_rows, rows)
    out.if_(out.not_(is_rows), columns)
    module.add_phase(name("pack"), out)
    return row_tasks + column_tasks


def _pack_part(
    phase: _Phase, part: str, bounds: tuple[Integer, Integer], panels: int, shape: PanelShape, offset: int
) -> None:
    """Pack the parts in `bounds` of the factor whose packed form starts at `offset`."""
    out, layout = phase.out, phase.layout
    begin, end = bounds
    everything = Block(0, layout.k, more=False, is_last=True)
    if layout.packs_by_k(shape):
        start, stop = out.mul(begin, PACK_STEPS), out.minimum(out.mul(end, PACK_STEPS), layout.k)
        place = phase.at(out.add(out.mul(start, shape.k_step * layout.item), offset))
        block = Block(start, out.sub(stop, start), more=False, is_last=True)
        phase.pack(part, place, 0, 0, panels, block)
        return

    def one(panel: Integer) -> None:
        batch, index = out.div(panel, panels), out.rem(panel, panels)
        place = phase.at(out.add(out.mul(panel, shape.size * layout.item), offset))
        phase.pack(part, place, batch, index, out.add(index, 1), everything)

    out.each(begin, end, one)


def emit_product_phase(module: Module, name: Name, layout: Layout) -> int:
    """Each task multiplies one cell of the grid over one range of k; returns the number of tasks."""
    product = _Product(module, name, layout)
    product.emit()
    module.add_phase(name("product"), product.out)
    return layout.cells * layout.schedule.split


class _Product(_Phase):
    def emit(self) -> None:
        out, layout, split = self.out, self.layout, self.schedule.split
        self.cut = out.rem("%task", split)
        self.cell_ = self.cell(out.div("%task", split))
        first, end = self.range(self.cut, split, layout.blocks)
        if split == 1:
            emit_clear_partials(out, layout, self.cell_.partials, self.cell_.columns)

        def block(number: Integer) -> None:
            if layout.blocks == 1:
                self._block(Block(0, layout.k, more=False, is_last=True))
                return
            start = out.mul(number, self.schedule.kc)
            count = out.minimum(out.sub(layout.k, start), self.schedule.kc)
            more, is_last = out.not_(out.equal(number, first)), out.equal(out.add(number, 1), end)
            self._block(Block(start, count, more, is_last))

        out.each(first, end, block)

    def _block(self, block: Block) -> None:
        out, cell = self.out, self.cell_
        own_rows = out.pointer(cell.worker, self.layout.worker_rows, "i8")
        own_columns = out.pointer(cell.worker, self.layout.worker_columns, "i8")
        if not self.schedule.share_rows:
            self.pack("pack_rows", own_rows, cell.batch, *cell.rows, block)

        def group(first: Integer) -> None:
            last = out.minimum(out.add(first, self.schedule.group), cell.columns[1])
            if not self.schedule.share_columns:
                self.pack("pack_columns", own_columns, cell.batch, first, last, block)

            def row_panel(i: Integer) -> None:
                rows = self._row_panel(own_rows, i, block)
                out.each(
                    first,
                    last,
                    lambda j: self._tile(rows, self._column_panel(own_columns, first, j, block), i, j, block),
                )

            out.each(*cell.rows, row_panel)

        out.each(*cell.columns, group, step=self.schedule.group)

    def _row_panel(self, own: str, i: Integer, block: Block) -> str:
        layout, out = self.layout, self.out
        if self.schedule.share_rows:
            return self._shared(layout.shared_rows, layout.rows, layout.panels_m, i, block)
        return out.pointer(own, out.mul(out.sub(i, self.cell_.rows[0]), layout.rows.size), layout.dtype)

    def _column_panel(self, own: str, first: Integer, j: Integer, block: Block) -> str:
        layout, out = self.layout, self.out
        if self.schedule.share_columns:
            return self._shared(layout.shared_columns, layout.columns, layout.panels_n, j, block)
        return out.pointer(own, out.mul(out.sub(j, first), layout.columns.size), layout.dtype)

    def _shared(self, offset: int, shape: PanelShape, panels: int, panel: Integer, block: Block) -> str:
        out = self.out
        number = out.add(out.mul(self.cell_.batch, panels), panel)
        place = out.add(out.mul(number, shape.size), out.mul(block.start, shape.k_step))
        return self.at(out.add(out.mul(place, self.layout.item), offset))

    def _tile(self, rows: str, columns: str, i: Integer, j: Integer, block: Block) -> None:
        out = self.out
        sums = self._sums(i, j)
        more = out.constant("false", "i1") if block.more is False else block.more
        steps = out.round_up(block.count, K_UNROLL)
        pointers = [(rows, "!llvm.ptr"), (columns, "!llvm.ptr"), (sums, "!llvm.ptr")]
        out.call(self.name("tile"), [*pointers, (steps, "i64"), (more, "i1")])
        if self.schedule.split == 1:
            out.if_(block.is_last, lambda: self.finish(self.cell_, sums, i, j))

    def _sums(self, i: Integer, j: Integer) -> str:
        """Where the tile's sums are kept from block to block."""
        out, layout, cell = self.out, self.layout, self.cell_
        if self.schedule.split > 1:
            return self.cut_tile(cell, self.cut, i, j)
        tiles = out.pointer(cell.worker, layout.worker_tiles, "i8")
        if layout.num_worker_tiles == 1:
            return tiles
        number = out.add(out.mul(out.sub(j, cell.columns[0]), layout.most_rows), out.sub(i, cell.rows[0]))
        return out.pointer(tiles, out.mul(number, layout.tile_bytes), "i8")


def emit_gather_phase(module: Module, name: Name, layout: Layout) -> int:
    """Each task adds the cuts' sums of its tiles in order and finishes them; returns the number of tasks."""
    phase = _Phase(module, name, layout)
    out = phase.out
    cell = phase.cell("%task")
    emit_clear_partials(out, layout, cell.partials, cell.columns)
    tile = out.pointer(cell.worker, layout.worker_tiles, "i8")

    def one(i: Integer, j: Integer) -> None:
        _sum_cuts(out, layout, phase.cut_tile(cell, 0, i, j), tile)
        phase.finish(cell, tile, i, j)

    out.each(*cell.columns, lambda j: out.each(*cell.rows, lambda i: one(i, j)))
    module.add_phase(name("gather"), out)
    return layout.cells


def _sum_cuts(out: Builder, layout: Layout, cuts: str, tile: str) -> None:
    lanes = layout.schedule.lanes
    type_, bytes_ = lane_type(layout.dtype, lanes), lanes * layout.item

    def vector(index: Integer) -> None:
        first = out.pointer(cuts, index, layout.dtype)
        total = out.load(first, type_, bytes_)
        for cut in range(1, layout.schedule.split):
            part = out.load(out.pointer(first, cut * layout.tile_bytes, "i8"), type_, bytes_)
            total = out.value(f"arith.addf {total}, {part} : {type_}")
        out.store(total, out.pointer(tile, index, layout.dtype), type_, bytes_)

    out.each(0, layout.schedule.mr * layout.schedule.nr, vector, step=lanes)
