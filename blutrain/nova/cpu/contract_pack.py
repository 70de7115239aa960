"""Packs one factor of a contraction into panels, its prologue applied on the way.

A panel holds `width` consecutive rows (of the row factor; columns of the column factor) for a range of k, k
outermost: element (r, k) at `k * pitch + r`. What lies past the factor's last row or between `width` and `pitch` is
never read into a result. Past the last k zeros follow up to a multiple of K_UNROLL, because the micro kernel takes
that many steps at a time.

Vectors run along the axis that is contiguous in memory: along the rows they are copied; along k, blocks of lanes x
lanes are transposed in registers.
"""

from __future__ import annotations

from blutrain.nova.cpu.configure_contract import K_UNROLL
from blutrain.nova.cpu.contract_builder import Builder, Integer, Module
from blutrain.nova.cpu.contract_form import Contract, Factor, loads
from blutrain.nova.cpu.contract_layout import PanelShape
from blutrain.nova.cpu.contract_value import Evaluator, Position, linear_step, zero
from blutrain.nova.emitter import lane_type
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
    packer.emit()
    module.add(name, ARGUMENTS, packer.out)


class _Packer:
    def __init__(self, out: Builder, contract: Contract, factor: Factor, shape: PanelShape):
        self.out, self.contract, self.factor, self.shape = out, contract, factor, shape
        self.extent = contract.extent(factor.axis)
        self.type = lane_type(contract.dtype, shape.lanes)

    def emit(self) -> None:
        out = self.out
        pack = self._panel_along_k if runs_along_k(self.contract, self.factor) else self._panel_along_rows

        def panel(number: Integer) -> None:
            first = out.mul(number, self.shape.width)
            place = out.mul(out.sub(number, "%begin"), self.shape.size)
            pack(first, out.pointer("%panels", place, self.contract.dtype))
            self._zero_tail(out.pointer("%panels", place, self.contract.dtype))

        out.each("%begin", "%end", panel)

    def _position(self, row: Integer, k: Integer, lane_axis: str, mask: str | None, aligned: bool) -> Position:
        return Position({"batch": "%batch", self.factor.axis: row, "k": k}, lane_axis, self.shape.lanes, mask, aligned)

    def _value(self, evaluator: Evaluator, at: Position) -> str:
        value = evaluator.value(self.factor.value, at)
        return evaluator.region_value({self.factor.argument: value}, self.factor.product, at.lanes)

    def _store(self, value: str, panel: str, k: Integer, column: Integer) -> None:
        out, dtype = self.out, self.contract.dtype
        place = out.add(out.mul(k, self.shape.pitch), column)
        out.store(value, out.pointer(panel, place, dtype), self.type, self.shape.lanes * ITEM_BYTES[dtype])

    # --- vectors along the rows

    def _panel_along_rows(self, first: Integer, panel: str) -> None:
        out, lanes, pitch = self.out, self.shape.lanes, self.shape.pitch
        width, count = self.shape.width, -(-self.extent // self.shape.width)
        fits = (count - 1) * width + pitch <= self.extent
        full = fits or out.less_equal(out.add(first, pitch), self.extent)

        def copy(masked: bool) -> None:
            masks = [
                out.first_lanes(out.sub(self.extent, out.add(first, c)), lanes) if masked else None
                for c in range(0, pitch, lanes)
            ]

            def step(k: Integer) -> None:
                evaluator = Evaluator(out, self.contract)
                for column, mask in zip(range(0, pitch, lanes), masks, strict=True):
                    aligned = width % lanes == 0
                    at = self._position(out.add(first, column), out.add("%k0", k), self.factor.axis, mask, aligned)
                    self._store(self._value(evaluator, at), panel, k, column)

            out.each(0, "%count", step)

        out.if_(full, lambda: copy(masked=False))
        out.if_(out.not_(full), lambda: copy(masked=True))

    # --- vectors along k

    def _panel_along_k(self, first: Integer, panel: str) -> None:
        out, lanes = self.out, self.shape.lanes
        whole = out.mul(out.div("%count", lanes), lanes)

        def blocks(column: Integer) -> None:
            rows: list[Integer | None] = [None] * lanes
            for i in range(lanes):
                if not isinstance(column, int) or column + i < self.shape.width:
                    row = out.add(out.add(first, column), i)
                    rows[i] = out.minimum(row, max(0, self.extent - 1))
            out.each(0, whole, lambda k: self._transposed(rows, panel, k, column, None), step=lanes)
            if self.contract.extent("k") % lanes:
                rest = out.sub("%count", whole)

                def tail() -> None:
                    self._transposed(rows, panel, whole, column, out.first_lanes(rest, lanes))

                out.if_(out.less_equal(1, rest), tail)

        out.each(0, self.shape.pitch, blocks, step=lanes)

    def _transposed(
        self, rows: list[Integer | None], panel: str, k: Integer, column: Integer, mask: str | None
    ) -> None:
        """One block of lanes x lanes, zero in rows that are None and where `mask` turns lanes of k off."""
        out = self.out
        evaluator = Evaluator(out, self.contract)
        zeros = out.constant(zero(self.contract.dtype), self.type)
        vectors = []
        for row in rows:
            if row is None:
                vectors.append(zeros)
                continue
            value = self._value(evaluator, self._position(row, out.add("%k0", k), "k", mask, True))
            if mask is not None:
                value = out.value(f"arith.select {mask}, {value}, {zeros} : vector<{len(rows)}xi1>, {self.type}")
            vectors.append(value)
        for i, value in enumerate(transpose(out, vectors, self.contract.dtype)):
            self._store(value, panel, out.add(k, i), column)

    def _zero_tail(self, panel: str) -> None:
        """Zeros from `count` to the next multiple of K_UNROLL."""
        out = self.out
        if self.contract.extent("k") % K_UNROLL == 0:
            return
        zeros = out.constant(zero(self.contract.dtype), self.type)

        def step(k: Integer) -> None:
            for column in range(0, self.shape.pitch, self.shape.lanes):
                self._store(zeros, panel, k, column)

        out.each("%count", out.round_up("%count", K_UNROLL), step)


def runs_along_k(contract: Contract, factor: Factor) -> bool:
    """Whether most of the bytes that the factor loads are contiguous along k rather than along its rows."""
    weight = {"k": 0, factor.axis: 0}
    for access in loads(factor.value):
        size = ITEM_BYTES[access.dtype]
        for dim, stride in enumerate(access.strides):
            size *= contract.generic.extents[dim] if stride else 1
        for axis in weight:
            dims = contract.axes[axis]
            step = linear_step([contract.generic.extents[d] for d in dims], [access.strides[d] for d in dims])
            innermost = access.strides[dims[-1]] if dims else 0
            weight[axis] += size if 1 in (step, innermost) else 0
    return weight["k"] > weight[factor.axis]


def transpose(out: Builder, rows: list[str], dtype: str) -> list[str]:
    """Square transpose in registers: round b exchanges bit b of the row number with bit b of the lane number."""
    lanes = len(rows)
    type_ = lane_type(dtype, lanes)
    rows = list(rows)
    bit = 1
    while bit < lanes:
        for i in range(lanes):
            if i & bit:
                continue
            j = i | bit
            low = [lane if not lane & bit else (lane ^ bit) + lanes for lane in range(lanes)]
            high = [lane | bit if not lane & bit else lane + lanes for lane in range(lanes)]
            a, b = rows[i], rows[j]
            rows[i] = out.value(f"vector.shuffle {a}, {b} {low} : {type_}, {type_}")
            rows[j] = out.value(f"vector.shuffle {a}, {b} {high} : {type_}, {type_}")
        bit *= 2
    return rows
