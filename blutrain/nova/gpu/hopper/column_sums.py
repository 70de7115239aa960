"""Sums over the rows of a product: each thread adds up its columns, lanes and warps merge; for each share of the rows one
row of partial sums goes to the workspace.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from blutrain.nova.contract.combine import Combiner
from blutrain.nova.gpu.builder import Integer
from blutrain.nova.gpu.hopper import machine
from blutrain.nova.gpu.hopper.place import Consumer, Place
from blutrain.nova.gpu.hopper.shape import WARPGROUP
from blutrain.nova.gpu.hopper.values import Origin, Values

if TYPE_CHECKING:
    from blutrain.nova.gpu.hopper.epilogue import Epilogue
    from blutrain.nova.gpu.hopper.pieces import Piece


class ColumnSums:
    """Partial sums over the rows of one share of a tile: registers, then lanes, then the warps in order.

    Where p is m, the sums of a group of columns go to shared memory as soon as they are complete (`flush`). Where p is
    n, a thread has the same few columns throughout, and its warp has them to itself.
    """

    def __init__(self, epilogue: Epilogue, place: Place, consumer: Consumer, origin: Origin):
        self.out, self.tiles, self.epilogue = epilogue.out, epilogue.tiles, epilogue
        self.place, self.consumer, self.origin = place, consumer, origin
        self.sums: list[dict[int, str]] = [{} for _ in epilogue.combiners]  # by column of the thread
        self.barrier = self.out.add(consumer.number, machine.CONSUMER_BARRIER)
        if self.tiles.p_axis == "m":  # the sums of the tile before have been read
            machine.named_barrier(self.out, self.barrier, WARPGROUP)

    def add(self, values: Values, piece: Piece, total: str) -> None:
        out = self.out
        for number, (reduction, combiner) in enumerate(
            zip(self.epilogue.contract.reductions, self.epilogue.combiners, strict=True)
        ):
            vector = combiner.value(values, reduction, piece.run, total)
            inside = values.row_inside(piece.run)
            for lane in range(piece.run.lanes):
                element = out.element(vector, lane, "f32", piece.run.lanes)
                if inside is not None:
                    neutral = out.constant(combiner.neutral, "f32")
                    element = out.value(f"arith.select {inside}, {element}, {neutral} : f32")
                column = piece.run.column + lane
                before = self.sums[number].get(column)
                self.sums[number][column] = element if before is None else combiner.combine(out, before, element, 0)

    def flush(self) -> None:
        """Sums over the eight lanes that hold the same columns, to this warp's row in shared memory."""
        out, thread = self.out, self.consumer.thread
        row = out.mul(out.bits("andi", thread.warp, 3), 4 * self.tiles.q_tile)
        at = out.add(row, out.mul(out.bits("andi", thread.lane, 3), 8))
        for number in range(len(self.sums)):
            columns, offset = self._parted_over_lanes(number)
            address = out.name(out.add(out.add(self._shared(number), at), out.mul(offset, 4)))
            for column, value in columns.items():
                out.asm(f"st.shared.f32 [$0+{4 * column}], $1;", "r,f,~{memory}", [(address, "i32"), (value, "f32")])
            self.sums[number] = {}

    def _parted_over_lanes(self, number: int) -> tuple[dict[int, str], Integer]:
        """Each of the eight lanes ends with the sums of an eighth of the columns: of these ones, moved by an offset. At each
        step a lane gives away half of what it has and gets the other's values of the half that it keeps.
        """
        out, combiner, lane = self.out, self.epilogue.combiners[number], self.consumer.thread.lane
        columns, values = list(self.sums[number]), list(self.sums[number].values())
        offset: Integer = 0
        for mask in (16, 8, 4):
            if len(values) == 1:  # nothing to part: both have the sum
                values = [combiner.combine(out, values[0], out.shuffle_xor(values[0], mask), 0)]
                continue
            half = len(values) // 2
            bit = out.bits("andi", lane, mask)
            upper = out.compare("ne", bit, 0)
            offset = out.add(offset, out.mul(out.div(bit, mask), columns[half] - columns[0]))
            kept = []
            for low, high in zip(values[:half], values[half:], strict=True):
                keep, give = (out.value(f"arith.select {upper}, {a}, {b} : f32") for a, b in ((high, low), (low, high)))
                kept.append(combiner.combine(out, keep, out.shuffle_xor(give, mask), 0))
            columns, values = columns[:half], kept
        return dict(zip(columns, values, strict=True)), offset

    def finish(self) -> None:
        if self.tiles.p_axis == "m":
            machine.named_barrier(self.out, self.barrier, WARPGROUP)
            for number, combiner in enumerate(self.epilogue.combiners):
                self._over_warps(number, combiner)
            return
        writes = self.out.compare("eq", self.out.bits("andi", self.consumer.thread.lane, 3), 0)
        for number in range(len(self.sums)):
            columns = self._over_lanes(number, (1, 2))
            self.out.when(writes, lambda n=number, c=columns: self._write(n, c))

    def _over_lanes(self, number: int, masks: tuple[int, ...]) -> dict[int, str]:
        combiner, columns = self.epilogue.combiners[number], {}
        for column, value in self.sums[number].items():
            for mask in masks:
                value = combiner.combine(self.out, value, self.out.shuffle_xor(value, mask), 0)
            columns[column] = value
        return columns

    def _over_warps(self, number: int, combiner: Combiner) -> None:
        out, width = self.out, self.tiles.q_tile

        def combine(column: str, _: list[str]) -> list[str]:
            address = out.name(out.add(self._shared(number), out.mul(column, 4)))
            total = ""
            for warp in range(4):
                text = f"ld.shared.f32 $0, [$1+{warp * width * 4}];"
                value = out.asm(text, "=f,r,~{memory}", [(address, "i32")], "f32")
                total = combiner.combine(out, total, value, 0) if total else value
            out.store(total, self._target(number, out.add(self.place.n, column)), "f32", 4)
            return []

        out.repeat(self.consumer.lane_in_group, width, WARPGROUP, combine)

    def _shared(self, number: int) -> Integer:
        """Address of this consumer's four rows of sums."""
        out, tiles = self.out, self.tiles
        rows = out.add(out.mul(self.consumer.number, len(self.sums)), number)
        return out.add(out.add(self.consumer.thread.shared, tiles.sums_offset), out.mul(rows, 16 * tiles.q_tile))

    def _row(self) -> Integer:
        """The row of partial sums in the workspace that this consumer writes."""
        out, tiles = self.out, self.tiles
        tile_row = out.div(self.place.m, tiles.schedule.tile_m)
        row = out.add(out.mul(self.place.batch, tiles.tiles_m), tile_row)
        if tiles.p_axis == "n":
            return row
        return out.add(out.mul(row, tiles.schedule.slots), self.consumer.slot)

    def _target(self, number: int, column: Integer) -> str:
        """Address of the partial sum of a column of the product."""
        out, tiles = self.out, self.tiles
        first = out.pointer("%workspace", tiles.sums_row_offset, "i8")
        row = out.add(number * tiles.sums_rows, self._row())
        size = len(self.sums) * tiles.sums_rows * tiles.sums_pitch
        return out.pointer(first, out.place(row, tiles.sums_pitch, column, size), "f32")

    def _write(self, number: int, columns: dict[int, str]) -> None:
        first = self._target(number, self.origin.n)
        for column, value in columns.items():
            self.out.store(value, self.out.pointer(first, column, "f32"), "f32", 4)
