"""Reductions over the columns of a product: a value for each row.

Each tile leaves one partial value for each of its rows in the workspace (where the product is computed transposed, one
from each warp, which holds a share of the columns). The phase behind combines the tiles in order, as it does with
column reductions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from blutrain.nova.contract.combine import Combiner
from blutrain.nova.gpu.builder import Integer
from blutrain.nova.gpu.hopper.values import Origin, Run, Values

if TYPE_CHECKING:
    from blutrain.nova.gpu.hopper.epilogue import Epilogue
    from blutrain.nova.gpu.hopper.place import Consumer, Place


class RowSums:
    """Partial values of the rows of one consumer's share of a tile: registers, then lanes."""

    def __init__(self, epilogue: Epilogue, place: Place, consumer: Consumer, origin: Origin):
        self.out, self.tiles = epilogue.out, epilogue.tiles
        self.place, self.consumer, self.origin = place, consumer, origin
        self.reductions = epilogue.contract.row_reductions
        self.combiners = [Combiner(r) for r in self.reductions]
        self.sums: list[dict[int, str]] = [{} for _ in self.reductions]  # by row of the thread

    def add(self, values: Values, run: Run, total: str) -> None:
        out = self.out
        for sums, reduction, combiner in zip(self.sums, self.reductions, self.combiners, strict=True):
            vector = combiner.value(values, reduction, run, total)
            for lane in range(run.lanes):
                element = out.element(vector, lane, "f32", run.lanes)
                inside = values.column_inside(run, lane)
                if inside is not None:
                    neutral = out.constant(combiner.neutral, "f32")
                    element = out.value(f"arith.select {inside}, {element}, {neutral} : f32")
                before = sums.get(run.row)
                sums[run.row] = element if before is None else combiner.combine(out, before, element, 0)

    def finish(self) -> None:
        """Combines the lanes that hold parts of the same row, and writes what there is."""
        out, lane = self.out, self.consumer.thread.lane
        straight = self.tiles.p_axis == "m"
        masks = (1, 2) if straight else (4, 8, 16)
        writes = out.compare("eq", out.bits("andi", lane, 3), 0) if straight else out.compare("ult", lane, 4)
        for number, (sums, combiner) in enumerate(zip(self.sums, self.combiners, strict=True)):
            for row, value in sums.items():
                for mask in masks:
                    value = combiner.combine(out, value, out.shuffle_xor(value, mask), 0)
                sums[row] = value

            def write(number: int = number, sums: dict[int, str] = sums) -> None:
                first = self._target(number)
                for row, value in sums.items():
                    out.store(value, out.pointer(first, row, "f32"), "f32", 4)

            out.when(writes, write)
            self.sums[number] = {}

    def _target(self, number: int) -> str:
        """Address of the partial value of the thread's first row."""
        out, tiles = self.out, self.tiles
        share: Integer = out.div(self.place.n, tiles.schedule.tile_n)
        if tiles.p_axis == "n":
            warp = out.bits("andi", self.consumer.thread.warp, 3)
            share = out.add(out.mul(share, tiles.schedule.slots), self.consumer.slot)
            share = out.add(out.mul(share, 4), warp)
        first = out.pointer("%workspace", tiles.row_sums_offset, "i8")
        row = out.add(share, number * tiles.row_shares)
        size = len(self.sums) * tiles.row_shares * tiles.row_pitch
        return out.pointer(first, out.place(row, tiles.row_pitch, self.origin.m, size), "f32")
