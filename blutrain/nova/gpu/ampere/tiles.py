"""Sizes that follow from a problem and its schedule: tiles, threads, shared memory, workspace."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

from blutrain.nova.contract.combine import Combiner
from blutrain.nova.gpu.ampere.instruction import LANES
from blutrain.nova.gpu.ampere.layout import Layout, accumulator_layout
from blutrain.nova.gpu.ampere.problem import Problem
from blutrain.nova.gpu.ampere.schedule import Schedule
from blutrain.nova.gpu.ampere.shared import SharedTile
from blutrain.nova.kernel import ITEM_BYTES

WORKSPACE_ALIGNMENT = 256
VECTOR_BYTES = 16


@dataclass(frozen=True, eq=False)
class Tiles:
    problem: Problem
    schedule: Schedule

    def tile(self, axis: str) -> int:
        return {"m": self.schedule.workgroup[0], "n": self.schedule.workgroup[1], "k": self.schedule.reduction}[axis]

    def warp_tile(self, axis: str) -> int:
        return self.schedule.subgroup["mn".index(axis)]

    def run(self, axis: str) -> int:
        return self.schedule.row_run if axis == "m" else self.schedule.column_run

    def count(self, axis: str) -> int:
        """Tiles along an axis."""
        return math.ceil(self.problem.extent[axis] / self.tile(axis))

    @cached_property
    def ragged(self) -> frozenset[str]:
        """Axes along which tiles reach beyond the product."""
        return frozenset(axis for axis in "mnk" if self.problem.extent[axis] % self.tile(axis))

    @property
    def warps(self) -> tuple[int, int]:
        return self.tile("m") // self.warp_tile("m"), self.tile("n") // self.warp_tile("n")

    @property
    def threads(self) -> int:
        return LANES * math.prod(self.warps)

    @property
    def output_tiles(self) -> int:
        return self.problem.extent["batch"] * self.count("m") * self.count("n")

    @property
    def split(self) -> int:
        return self.schedule.split

    @property
    def steps(self) -> int:
        """Stages of k in one range (the last range may have fewer)."""
        return math.ceil(self.count("k") / self.split)

    @cached_property
    def layout(self) -> Layout:
        runs = {"m": self.schedule.row_run, "n": self.schedule.column_run}
        return accumulator_layout(self.problem.instruction, self.schedule.subgroup, self.warps, runs)

    @property
    def swaps(self) -> tuple[tuple[int, int], ...]:
        """Bits of the lane and of the register that sums trade before results are made (see `Layout.traded`).

        ldmatrix.trans leaves a lane two neighbours of each subtile, 4 bytes to store: the lanes of a row trade four
        subtiles, then each holds the eight columns of one. Runs of four leave it eight, 32 bytes of f32, and a store of
        16 would fill half a sector of every lane's: lanes trade halves in pairs.
        """
        side, problem = self.problem.sides["n"], self.problem
        inner = problem.contract.axes["n"][-1:]
        stores = [s.access for s in problem.contract.stores if inner and s.access.strides[inner[0]] == 1]
        least = min((ITEM_BYTES[access.dtype] for access in stores), default=8)
        if side.is_k_major or not problem.instruction.is_mma:
            return ()
        if problem.item == 2 and least <= 2 and self.warp_tile("n") % 32 == 0:
            return (0, 2), (1, 3)
        return ((0, 0),) if self.schedule.column_run == 4 and least == 4 else ()

    @cached_property
    def result_layout(self) -> Layout:
        """Who holds which element when results are made."""
        return self.layout.traded(self.swaps) if self.swaps else self.layout

    # --- shared memory

    @cached_property
    def shared(self) -> dict[str, SharedTile]:
        """The tile of each side."""
        result = {}
        for axis, side in self.problem.sides.items():
            own, k = self.tile(axis), self.tile("k")
            lines, width = (own, k) if side.is_k_major else (k, own)
            reads_vectors = not side.is_k_major and self.problem.item == 4
            result[axis] = SharedTile(lines, width, self.problem.item, reads_vectors)
        return result

    @property
    def stage_bytes(self) -> int:
        return sum(tile.bytes for tile in self.shared.values())

    @property
    def shared_bytes(self) -> int:
        return self.schedule.stages * self.stage_bytes

    # --- the end of a tile

    @property
    def slice_rows(self) -> int:
        """Rows from one slice of a thread's accumulators to the next: whole tiles of the instruction."""
        width = self.problem.instruction.subtile["m"]
        return max(self.problem.instruction.m, width * self.schedule.row_run)

    @property
    def slices(self) -> int:
        return self.warp_tile("m") // self.slice_rows

    @property
    def registers(self) -> int:
        """Accumulators of a thread."""
        return len(self.layout.offsets)

    @property
    def result_item(self) -> int:
        return ITEM_BYTES[self.problem.instruction.result]

    # --- workspace: partial sums of the ranges of k, then partial values of the reductions over rows

    @property
    def sums_bytes(self) -> int:
        if self.split == 1:
            return 0
        return _aligned(self.split * self.output_tiles * self.threads * self.registers * self.result_item)

    @property
    def partial_rows(self) -> int:
        """Partial values of one column: one for each row of warps, and slice where slices are finished apart."""
        slices = self.slices if self.split > 1 else 1
        return self.problem.extent["batch"] * self.count("m") * self.warps[0] * slices

    @property
    def partial_columns(self) -> int:
        return self.count("n") * self.tile("n")

    @cached_property
    def partial_offsets(self) -> tuple[int, ...]:
        """Where each reduction's partial values begin, then where the last ones end."""
        offsets = [self.sums_bytes]
        for reduction in self.problem.contract.reductions:
            item = ITEM_BYTES[Combiner(reduction).dtype]
            offsets.append(offsets[-1] + _aligned(self.partial_rows * self.partial_columns * item))
        return tuple(offsets)

    @property
    def workspace_bytes(self) -> int:
        return self.partial_offsets[-1]


def _aligned(size: int) -> int:
    return math.ceil(size / WORKSPACE_ALIGNMENT) * WORKSPACE_ALIGNMENT
