"""The sizes of a contract kernel's parts under a schedule, and where each lies in the workspace."""

from __future__ import annotations

from dataclasses import dataclass

from blutrain.nova.contract.form import Contract, Factor, loads
from blutrain.nova.cpu.configure_contract import ContractSchedule
from blutrain.nova.kernel import ITEM_BYTES, linear_step

ALIGNMENT = 64
PAGE = 4096
PACK_STEPS = 16
PARTIAL_ITEM_BYTES = 8  # of a partial value of any dtype, so that rows of them stay aligned


@dataclass(frozen=True)
class PanelShape:
    """A packed panel of `width` rows and `steps` of k: element (row, k) at `row * row_step + k * k_step`.

    With k outermost a step of k takes `pitch` elements: the width in whole vectors. With k innermost a row takes a
    vector more than `steps`, so that the rows of a panel lie in different cache sets.
    """

    width: int
    pitch: int
    lanes: int
    steps: int
    is_k_innermost: bool
    is_read_along_k: bool

    @property
    def row_step(self) -> int:
        return self.steps + self.lanes if self.is_k_innermost else 1

    @property
    def k_step(self) -> int:
        return 1 if self.is_k_innermost else self.pitch

    @property
    def size(self) -> int:
        """Elements of a panel."""
        return self.width * self.row_step if self.is_k_innermost else self.steps * self.pitch


class Layout:
    """Counts of panels, blocks, tiles and tasks, and byte offsets into the workspace.

    The workspace holds, in this order: the shared packed factors; tiles of the cuts of k; rows of partial values; and
    for every worker its own packed panels and tiles, `worker_stride` bytes apart, starting at `worker`.
    """

    def __init__(self, contract: Contract, schedule: ContractSchedule, threads: int):
        self.contract, self.schedule = contract, schedule
        self.dtype = contract.dtype
        self.item = ITEM_BYTES[contract.dtype]
        self.batch, self.m, self.n, self.k = (contract.extent(a) for a in ("batch", "m", "n", "k"))
        self.panels_m, self.panels_n = -(-self.m // schedule.mr), -(-self.n // schedule.nr)
        self.blocks = max(1, -(-self.k // schedule.kc))
        self.rows = self._shape(contract.rows, schedule.mr, schedule.row_pitch, schedule.share_rows)
        self.columns = self._shape(contract.columns, schedule.nr, schedule.nr, schedule.share_columns)
        self.tile_bytes = schedule.mr * schedule.nr * self.item
        self.cells = self.batch * schedule.m_tasks * schedule.n_tasks if self.panels_m and self.panels_n else 0
        self.most_rows, self.most_columns = (
            -(-self.panels_m // schedule.m_tasks),
            -(-self.panels_n // schedule.n_tasks),
        )
        self._place(threads)

    def _shape(self, factor: Factor, width: int, pitch: int, is_shared: bool) -> PanelShape:
        """Panels of a shared factor hold all of k, those of a task one block."""
        steps = (self.blocks if is_shared else 1) * self.schedule.kc
        along_k = runs_along_k(self.contract, factor)
        return PanelShape(width, pitch, self.schedule.lanes, steps, along_k and factor.axis == "m", along_k)

    def _place(self, threads: int) -> None:
        schedule, item = self.schedule, self.item
        end = 0

        def take(size: int) -> int:
            nonlocal end
            start, end = end, end + -(-size // ALIGNMENT) * ALIGNMENT
            return start

        self.shared_rows = take(schedule.share_rows * self.batch * self.panels_m * self.rows.size * item)
        self.shared_columns = take(schedule.share_columns * self.batch * self.panels_n * self.columns.size * item)
        tiles = self.batch * self.panels_m * self.panels_n
        self.cut_tiles = take((schedule.split > 1) * tiles * schedule.split * self.tile_bytes)
        self.partials = take(self.num_partial_rows * self.partial_row_bytes)
        self.worker, end = end, 0
        self.worker_rows = take((not schedule.share_rows) * self.most_rows * self.rows.size * item)
        group = min(schedule.group, self.most_columns)
        self.worker_columns = take((not schedule.share_columns) * group * self.columns.size * item)
        self.worker_tiles = take(self.num_worker_tiles * self.tile_bytes)
        # A line more than whole pages keeps the workers' buffers out of the same cache sets.
        self.worker_stride = -(-end // PAGE) * PAGE + 2 * ALIGNMENT
        self.workspace_bytes = self.worker + self.worker_stride * threads

    @property
    def num_worker_tiles(self) -> int:
        """Tiles of sums that a task keeps: all of its own where k has several blocks, else the current one."""
        return self.most_rows * self.most_columns if self.blocks > 1 and self.schedule.split == 1 else 1

    @property
    def num_partial_rows(self) -> int:
        """Tasks that leave partial values of the same column: batches times cuts along m."""
        return self.batch * self.schedule.m_tasks if self.contract.reductions and self.cells else 0

    @property
    def partial_width_bytes(self) -> int:
        """Bytes of one reduction's partial values of one task."""
        return self.panels_n * self.schedule.nr * PARTIAL_ITEM_BYTES

    @property
    def partial_row_bytes(self) -> int:
        return len(self.contract.reductions) * self.partial_width_bytes

    @property
    def pack_tasks(self) -> tuple[int, int]:
        """Tasks that pack the shared rows, and the shared columns: in proportion to the elements."""
        work = (
            self.schedule.share_rows * self.panels_m * self.rows.size,
            self.schedule.share_columns * self.panels_n * self.columns.size,
        )
        rows, columns = (
            min(parts, max(1, round(self.schedule.pack_tasks * w / sum(work)))) if w else 0
            for w, parts in zip(work, (self.row_parts, self.column_parts), strict=True)
        )
        return rows, columns

    @property
    def row_parts(self) -> int:
        """Pieces into which packing the shared rows can be cut, see `pack_parts`."""
        return self.pack_parts(self.rows, self.panels_m)

    @property
    def column_parts(self) -> int:
        return self.pack_parts(self.columns, self.panels_n)

    def pack_parts(self, shape: PanelShape, panels: int) -> int:
        """Panels through all batches; steps of k, PACK_STEPS at a time, where one k's rows are contiguous in memory.

        Otherwise a task would read a few rows of every k, and every k is another page.
        """
        return -(-self.k // PACK_STEPS) if self.packs_by_k(shape) else self.batch * panels

    def packs_by_k(self, shape: PanelShape) -> bool:
        return not shape.is_read_along_k and self.batch == 1 and self.k > 0


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
