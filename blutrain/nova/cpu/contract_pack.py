"""Packs one factor of a contraction into panels, its prologue applied on the way.

A panel holds `width` consecutive rows (of the row factor; columns of the column factor) for a range of k;
`PanelShape` says where element (row, k) lies. What lies past the factor's last row is never read into a result. Past
the last k zeros follow up to a multiple of K_UNROLL, because the micro kernel takes that many steps at a time.

Vectors run along the axis that is contiguous in memory. Three ways:

    copy_rows    along the rows into panels with k outermost
    copy_k       along k into panels with k innermost (row factor only: the micro kernel reads it by elements)
    transpose    along k into panels with k outermost: blocks of lanes x lanes turned in registers (column factor)
"""

from __future__ import annotations

from blutrain.nova.contract.form import Contract, Factor
from blutrain.nova.cpu.configure_contract import K_UNROLL
from blutrain.nova.cpu.contract_builder import Builder, Integer, Module
from blutrain.nova.cpu.contract_layout import PanelShape
from blutrain.nova.cpu.contract_value import Evaluator, Position
from blutrain.nova.emitter import lane_type, zero
from blutrain.nova.kernel import ITEM_BYTES

ARGUMENTS = (
    ("%operands", "!llvm.ptr"),
    ("%panels", "!llvm.ptr"),
    ("%batch", "i64"),
    ("%begin", "i64"),
    ("%end", "i64"),
    ("%k0", "i64"),
    ("%count", "i64"),
)


def emit_pack(module: Module, name: str, contract: Contract, factor: Factor, shape: PanelShape) -> None:
    """A function that packs panels [begin, end) for k in [k0, k0 + count) to `panels`."""
    packer = _Packer(module.builder(), contract, factor, shape)
    if shape.is_k_innermost:
        packer.copy_k()
    elif shape.is_read_along_k:
        packer.transpose()
    else:
        packer.copy_rows()
    module.add(name, ARGUMENTS, packer.out)


class _Packer:
    def __init__(self, out: Builder, contract: Contract, factor: Factor, shape: PanelShape):
        self.out, self.contract, self.factor, self.shape = out, contract, factor, shape
        self.extent = contract.extent(factor.axis)
        self.dtype = contract.dtype
        self.type = lane_type(contract.dtype, shape.lanes)
        self.zeros = out.constant(zero(contract.dtype), self.type)

    def _value(self, evaluator: Evaluator, row: Integer, k: Integer, lane_axis: str, mask: str | None) -> str:
        """The factor at (row, k0 + k), prologue and the contraction's own conversions applied."""
        index = {"batch": "%batch", self.factor.axis: row, "k": self.out.add("%k0", k)}
        aligned = lane_axis == "k" or self.shape.width % self.shape.lanes == 0
        at = Position(index, lane_axis, self.shape.lanes, mask, aligned)
        value = evaluator.value(self.factor.value, at)
        return evaluator.region_value({self.factor.argument: value}, self.factor.product, at.lanes)

    def _store(self, value: str, panel: str, row: Integer, k: Integer) -> None:
        out, shape = self.out, self.shape
        place = out.add(out.mul(row, shape.row_step), out.mul(k, shape.k_step))
        out.store(value, out.pointer(panel, place, self.dtype), self.type, shape.lanes * ITEM_BYTES[self.dtype])

    def _panel(self, number: Integer) -> str:
        """Where panel `number` goes."""
        place = self.out.mul(self.out.sub(number, "%begin"), self.shape.size)
        return self.out.pointer("%panels", place, self.dtype)

    def _keep(self, mask: str | None, value: str) -> str:
        """`value` with zeros in the lanes that `mask` turns off: a prologue of nothing need not be zero."""
        if mask is None:
            return value
        lanes = self.shape.lanes
        return self.out.value(f"arith.select {mask}, {value}, {self.zeros} : vector<{lanes}xi1>, {self.type}")

    # --- along the rows

    def copy_rows(self) -> None:
        """k outside, panels inside: the rows of one k lie side by side in memory, its cache lines are read once."""
        out, shape = self.out, self.shape
        num_full = max(0, (self.extent - shape.pitch) // shape.width + 1)
        full_end = out.minimum("%end", num_full)

        def panels(begin: Integer, end: Integer, is_masked: bool) -> None:
            def step(k: Integer) -> None:
                out.each(begin, end, lambda number: self._copy_row(number, k, is_masked))

            out.each(0, "%count", step)

        panels("%begin", full_end, is_masked=False)
        if num_full * shape.width < self.extent:
            panels(out.maximum("%begin", num_full), "%end", is_masked=True)
        if self.contract.extent("k") % K_UNROLL:
            out.each("%begin", "%end", self._zero_tail)

    def _copy_row(self, number: Integer, k: Integer, is_masked: bool) -> None:
        out, lanes = self.out, self.shape.lanes
        evaluator = Evaluator(out, self.contract)
        for column in range(0, self.shape.pitch, lanes):
            row = out.add(out.mul(number, self.shape.width), column)
            mask = out.first_lanes(out.sub(self.extent, row), lanes) if is_masked else None
            self._store(self._value(evaluator, row, k, self.factor.axis, mask), self._panel(number), column, k)

    def _zero_tail(self, number: Integer) -> None:
        """Zeros from `count` to the next multiple of K_UNROLL."""
        out, panel = self.out, self._panel(number)

        def step(k: Integer) -> None:
            for column in range(0, self.shape.pitch, self.shape.lanes):
                self._store(self.zeros, panel, column, k)

        out.each("%count", out.round_up("%count", K_UNROLL), step)

    # --- along k

    def _blocks_of_k(self, block) -> None:
        """`block(k, mask)` for whole vectors of k, then for the rest; as many steps as the micro kernel takes."""
        out, lanes = self.out, self.shape.lanes
        whole = out.mul(out.div("%count", lanes), lanes)
        out.each(0, whole, lambda k: block(k, None), step=lanes)
        if self.contract.extent("k") % lanes:
            rest = out.sub("%count", whole)
            out.if_(out.less_equal(1, rest), lambda: block(whole, out.first_lanes(rest, lanes)))
        if lanes < K_UNROLL and self.contract.extent("k") % K_UNROLL:
            beyond = out.first_lanes(0, lanes)
            out.each(out.round_up("%count", lanes), out.round_up("%count", K_UNROLL), lambda k: block(k, beyond), lanes)

    def copy_k(self) -> None:
        out, width = self.out, self.shape.width

        def panel(number: Integer) -> None:
            first, place = out.mul(number, width), self._panel(number)

            def row(r: Integer) -> None:
                def block(k: Integer, mask: str | None) -> None:
                    value = self._value(Evaluator(out, self.contract), out.add(first, r), k, "k", mask)
                    self._store(self._keep(mask, value), place, r, k)

                self._blocks_of_k(block)

            out.each(0, out.minimum(out.sub(self.extent, first), width), row)

        out.each("%begin", "%end", panel)

    def transpose(self) -> None:
        out, lanes = self.out, self.shape.lanes

        def panel(number: Integer) -> None:
            def group(column: Integer) -> None:
                first = out.add(out.mul(number, self.shape.width), column)
                rows = [out.minimum(out.add(first, i), max(0, self.extent - 1)) for i in range(lanes)]
                self._blocks_of_k(lambda k, mask: self._transposed(rows, self._panel(number), k, column, mask))

            out.each(0, self.shape.pitch, group, step=lanes)

        out.each("%begin", "%end", panel)

    def _transposed(self, rows: list[Integer], panel: str, k: Integer, column: Integer, mask: str | None) -> None:
        evaluator = Evaluator(self.out, self.contract)
        vectors = [self._keep(mask, self._value(evaluator, row, k, "k", mask)) for row in rows]
        for i, value in enumerate(transposed(self.out, vectors, self.dtype)):
            self._store(value, panel, column, self.out.add(k, i))


def transposed(out: Builder, rows: list[str], dtype: str) -> list[str]:
    """Square transpose in registers: round b exchanges bit b of the row number with bit b of the lane number."""
    lanes = len(rows)
    type_ = lane_type(dtype, lanes)
    rows = list(rows)
    bit = 1
    while bit < lanes:
        low = [lane if not lane & bit else (lane ^ bit) + lanes for lane in range(lanes)]
        high = [lane | bit if not lane & bit else lane + lanes for lane in range(lanes)]
        for i in (i for i in range(lanes) if not i & bit):
            a, b = rows[i], rows[i | bit]
            rows[i] = out.value(f"vector.shuffle {a}, {b} {low} : {type_}, {type_}")
            rows[i | bit] = out.value(f"vector.shuffle {a}, {b} {high} : {type_}, {type_}")
        bit *= 2
    return rows
