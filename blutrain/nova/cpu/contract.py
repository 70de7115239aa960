"""Generates the code of a contract kernel for a CPU: packed, register-tiled vector code, parallel over tasks.

Phases, each a function of the ABI in CONTRACTS (operands, workspace, task, worker), left out where there is nothing to do:

    pack      the factors that several tasks read, as a whole, into the workspace
    product   each task one cell of the grid batch x m x n (x cuts of k): pack what is not packed yet, multiply, finish
    gather    only with cuts of k: sum the tiles of the cuts in order, finish
    columns   only with reductions over rows: combine the tasks' partial rows in order

"Finish" is the epilogue and the stores of one tile. The files in reading order: contract_form (what is computed), configure_contract (the
schedule), contract_pack, contract_tile, contract_finish (the functions), this file (phases and workspace).
"""

from __future__ import annotations

from dataclasses import dataclass

from blutrain.nova.clone import check_block
from blutrain.nova.cpu.configure_contract import K_UNROLL, ContractSchedule
from blutrain.nova.cpu.configure_contract import configure as configure_schedule
from blutrain.nova.cpu.contract_builder import Builder, Integer, Module
from blutrain.nova.cpu.contract_finish import (
    Combiner,
    emit_clear_partials,
    emit_columns,
    emit_finish,
    num_column_tasks,
)
from blutrain.nova.cpu.contract_form import Contract, read_contract
from blutrain.nova.cpu.contract_layout import Layout, PanelShape
from blutrain.nova.cpu.contract_pack import emit_pack
from blutrain.nova.cpu.contract_predict import predict_microseconds
from blutrain.nova.cpu.contract_tile import emit_micro_kernel
from blutrain.nova.emitter import lane_type
from blutrain.nova.kernel import GeneratedKernel, Kernel, Phase, Unsupported
from blutrain.nova.target import CpuFacts


def supports(kernel: Kernel) -> str | None:
    """Why this generator does not take the kernel, or None."""
    try:
        contract = read_contract(kernel)
        for generic in kernel.generics:
            check_block(generic.block)
        for reduction in contract.reductions:
            Combiner(reduction)
    except Unsupported as reason:
        return str(reason)
    return None


def configure(kernel: Kernel, facts: CpuFacts) -> dict:
    """The schedule of a contract kernel, as entries of its `lowering_config`."""
    return configure_schedule(read_contract(kernel), facts).to_config()


def generate(kernel: Kernel, facts: CpuFacts) -> GeneratedKernel:
    """The kernel's code, by the schedule in its `lowering_config`. Raises `Unsupported` where `supports` gives a reason."""
    contract = read_contract(kernel)
    schedule = ContractSchedule.from_config(kernel.config) if kernel.config else configure_schedule(contract, facts)
    return _Generator(contract, schedule, facts).generate()


class _Generator:
    def __init__(self, contract: Contract, schedule: ContractSchedule, facts: CpuFacts):
        self.contract, self.schedule, self.facts = contract, schedule, facts
        self.layout = Layout(contract, schedule, facts.threads)
        self.dtype, self.symbol = contract.dtype, contract.kernel.symbol
        self.module = Module()
        self.phases: list[Phase] = []

    # --- the module

    def generate(self) -> GeneratedKernel:
        layout, kernel = self.layout, self.contract.kernel
        if layout.cells:
            self._add_functions()
            if self.schedule.share_rows or self.schedule.share_columns:
                self._add_pack_phase()
            self._add_product_phase()
            if self.schedule.split > 1:
                self._add_gather_phase()
        if self.contract.reductions and layout.n:
            emit_columns(self.module, self._phase("columns", num_column_tasks(layout)), layout)
        return GeneratedKernel(
            text=self.module.text(),
            phases=tuple(self.phases),
            workspace_bytes=layout.workspace_bytes if self.phases else 0,
            bytes=kernel.bytes,
            flops=kernel.flops,
            predicted_us=predict_microseconds(layout, kernel.bytes, self.facts),
        )

    def _add_functions(self) -> None:
        contract, layout, name = self.contract, self.layout, self._name
        emit_pack(self.module, name("pack_rows"), contract, contract.rows, layout.rows)
        emit_pack(self.module, name("pack_columns"), contract, contract.columns, layout.columns)
        emit_micro_kernel(self.module, name("tile"), self.schedule, self.dtype, accumulates=layout.blocks > 1)
        emit_finish(self.module, name("finish"), layout)

    def _phase(self, part: str, tasks: int) -> str:
        """Announce a phase; returns its symbol."""
        self.phases.append(Phase(self._name(part), tasks))
        return self._name(part)

    def _name(self, part: str) -> str:
        return f"{self.symbol}_{part}"

    def _at(self, out: Builder, offset: Integer) -> str:
        return out.pointer("%workspace", offset, "i8")

    # --- pack

    def _add_pack_phase(self) -> None:
        """Task t packs a range of panels of one factor; panels are numbered through all batches."""
        out = self.module.builder()
        layout = self.layout
        row_tasks, column_tasks = layout.pack_tasks

        def rows() -> None:
            self._pack_range(
                out, "pack_rows", "%task", row_tasks, self.layout.panels_m, self.layout.rows, self.layout.shared_rows
            )

        def columns() -> None:
            number = out.sub("%task", row_tasks)
            self._pack_range(
                out,
                "pack_columns",
                number,
                column_tasks,
                self.layout.panels_n,
                self.layout.columns,
                self.layout.shared_columns,
            )

        if row_tasks and column_tasks:
            is_rows = out.less_equal(out.add("%task", 1), row_tasks)
            out.if_(is_rows, rows)
            out.if_(out.not_(is_rows), columns)
        else:
            (rows if row_tasks else columns)()
        self.module.add_phase(self._phase("pack", row_tasks + column_tasks), out)

    def _pack_range(
        self, out: Builder, part: str, number: Integer, tasks: int, panels: int, shape: PanelShape, offset: int
    ) -> None:
        total = self.layout.batch * panels
        begin, end = _range(out, number, tasks, total)

        def one(panel: Integer) -> None:
            batch, index = out.div(panel, panels), out.rem(panel, panels)
            place = self._at(out, out.add(out.mul(panel, shape.size * self.layout.item), offset))
            self._call_pack(out, part, place, batch, index, out.add(index, 1), 0, self.layout.k)

        out.each(begin, end, one)

    def _call_pack(
        self,
        out: Builder,
        part: str,
        panels: str,
        batch: Integer,
        begin: Integer,
        end: Integer,
        k0: Integer,
        count: Integer,
    ) -> None:
        out.call(
            self._name(part),
            [("%operands", "!llvm.ptr"), (panels, "!llvm.ptr"), *((v, "i64") for v in (batch, begin, end, k0, count))],
        )

    # --- product

    def _add_product_phase(self) -> None:
        out, layout, schedule = self.module.builder(), self.layout, self.schedule
        task, cut = out.div("%task", schedule.split), out.rem("%task", schedule.split)
        cell = self._cell(out, task)
        blocks = _range(out, cut, schedule.split, self.layout.blocks)
        if schedule.split == 1:
            self._clear(out, cell)

        def block(number: Integer) -> None:
            k0 = out.mul(number, schedule.kc)
            count = self.layout.k if self.layout.blocks == 1 else out.minimum(out.sub(self.layout.k, k0), schedule.kc)
            self._block(out, cell, cut, blocks, number, k0, count)

        out.each(*blocks, block)
        self.module.add_phase(self._phase("product", layout.cells * schedule.split), out)

    def _cell(self, out: Builder, task: Integer) -> _Cell:
        batch, im, in_ = out.digits(task, (self.layout.batch, self.schedule.m_tasks, self.schedule.n_tasks))
        rows = _range(out, im, self.schedule.m_tasks, self.layout.panels_m)
        columns = _range(out, in_, self.schedule.n_tasks, self.layout.panels_n)
        row = out.add(out.mul(batch, self.schedule.m_tasks), im)
        partials = self._at(out, out.add(out.mul(row, self.layout.partial_row_bytes), self.layout.partials))
        worker = self._at(out, out.add(out.mul("%worker", self.layout.worker_stride), self.layout.worker))
        return _Cell(batch, rows, columns, partials, worker)

    def _clear(self, out: Builder, cell: _Cell) -> None:
        emit_clear_partials(out, self.layout, cell.partials, cell.columns)

    def _block(
        self,
        out: Builder,
        cell: _Cell,
        cut: Integer,
        blocks: tuple[Integer, Integer],
        number: Integer,
        k0: Integer,
        count: Integer,
    ) -> None:
        """One block of k of a task: for every column panel, the tiles of all row panels."""
        schedule, layout = self.schedule, self.layout
        own_rows = out.pointer(cell.worker, layout.worker_rows, "i8")
        own_columns = out.pointer(cell.worker, layout.worker_columns, "i8")
        steps = out.round_up(count, K_UNROLL)
        more = out.not_(out.equal(number, blocks[0])) if self.layout.blocks > 1 else False
        is_last = out.equal(out.add(number, 1), blocks[1]) if self.layout.blocks > 1 else True
        if not schedule.share_rows:
            self._call_pack(out, "pack_rows", own_rows, cell.batch, *cell.rows, k0, count)

        def column_panel(j: Integer) -> None:
            columns = own_columns
            if schedule.share_columns:
                columns = self._shared(
                    out, layout.shared_columns, self.layout.columns, self.layout.panels_n, cell.batch, j, k0
                )
            else:
                self._call_pack(out, "pack_columns", own_columns, cell.batch, j, out.add(j, 1), k0, count)

            def tile(i: Integer) -> None:
                if schedule.share_rows:
                    rows = self._shared(
                        out, layout.shared_rows, self.layout.rows, self.layout.panels_m, cell.batch, i, k0
                    )
                else:
                    rows = out.pointer(own_rows, out.mul(out.sub(i, cell.rows[0]), self.layout.rows.size), self.dtype)
                sums = self._tile_place(out, cell, cut, i, j)
                flag = out.constant("0", "i1") if more is False else more
                out.call(
                    self._name("tile"),
                    [(rows, "!llvm.ptr"), (columns, "!llvm.ptr"), (steps, "i64"), (sums, "!llvm.ptr"), (flag, "i1")],
                )
                if schedule.split == 1:
                    out.if_(is_last, lambda: self._finish(out, cell, sums, i, j))

            out.each(*cell.rows, tile)

        out.each(*cell.columns, column_panel)

    def _shared(
        self, out: Builder, offset: int, shape: PanelShape, panels: int, batch: Integer, panel: Integer, k0: Integer
    ) -> str:
        """Where a shared factor's panel has the block that starts at k0."""
        number = out.add(out.mul(batch, panels), panel)
        place = out.add(out.mul(number, shape.size), out.mul(k0, shape.pitch))
        return self._at(out, out.add(out.mul(place, self.layout.item), offset))

    def _tile_place(self, out: Builder, cell: _Cell, cut: Integer, i: Integer, j: Integer) -> str:
        """Where the sums of tile (i, j) are kept."""
        if self.schedule.split > 1:
            return self._cut_place(out, cell, cut, i, j)
        tiles = out.pointer(cell.worker, self.layout.worker_tiles, "i8")
        if self.layout.num_worker_tiles == 1:
            return tiles
        number = out.add(out.mul(out.sub(j, cell.columns[0]), self.layout.most_rows), out.sub(i, cell.rows[0]))
        return out.pointer(tiles, out.mul(number, self.layout.tile_bytes), "i8")

    def _cut_place(self, out: Builder, cell: _Cell, cut: Integer, i: Integer, j: Integer) -> str:
        number = out.add(out.mul(out.add(out.mul(cell.batch, self.layout.panels_m), i), self.layout.panels_n), j)
        number = out.add(out.mul(number, self.schedule.split), cut)
        return self._at(out, out.add(out.mul(number, self.layout.tile_bytes), self.layout.cut_tiles))

    def _finish(self, out: Builder, cell: _Cell, sums: str, i: Integer, j: Integer) -> None:
        m0, n0 = out.mul(i, self.schedule.mr), out.mul(j, self.schedule.nr)
        pointers = [("%operands", "!llvm.ptr"), (sums, "!llvm.ptr"), (cell.partials, "!llvm.ptr")]
        out.call(self._name("finish"), [*pointers, (cell.batch, "i64"), (m0, "i64"), (n0, "i64")])

    # --- gather

    def _add_gather_phase(self) -> None:
        out = self.module.builder()
        cell = self._cell(out, "%task")
        self._clear(out, cell)
        tile = out.pointer(cell.worker, self.layout.worker_tiles, "i8")

        def column_panel(j: Integer) -> None:
            def one(i: Integer) -> None:
                self._sum_cuts(out, self._cut_place(out, cell, 0, i, j), tile)
                self._finish(out, cell, tile, i, j)

            out.each(*cell.rows, one)

        out.each(*cell.columns, column_panel)
        self.module.add_phase(self._phase("gather", self.layout.cells), out)

    def _sum_cuts(self, out: Builder, cuts: str, tile: str) -> None:
        lanes = self.schedule.lanes
        type_, bytes_ = lane_type(self.dtype, lanes), lanes * self.layout.item

        def vector(index: Integer) -> None:
            first = out.pointer(cuts, index, self.dtype)
            total = out.load(first, type_, bytes_)
            for cut in range(1, self.schedule.split):
                part = out.load(out.pointer(first, cut * self.layout.tile_bytes, "i8"), type_, bytes_)
                total = out.value(f"arith.addf {total}, {part} : {type_}")
            out.store(total, out.pointer(tile, index, self.dtype), type_, bytes_)

        out.each(0, self.schedule.mr * self.schedule.nr, vector, step=lanes)


@dataclass(frozen=True)
class _Cell:
    """What a task covers: a batch, ranges of panels, and where its partial rows and its worker's buffers are."""

    batch: Integer
    rows: tuple[Integer, Integer]
    columns: tuple[Integer, Integer]
    partials: str
    worker: str


def _range(out: Builder, number: Integer, parts: int, total: int) -> tuple[Integer, Integer]:
    """Part `number` of `parts` nearly equal ones of [0, total)."""
    if parts == 1:
        return 0, total
    return out.div(out.mul(number, total), parts), out.div(out.mul(out.add(number, 1), total), parts)


__all__ = ["configure", "generate", "supports"]
