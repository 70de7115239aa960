"""Sizes that follow from how a product is cut: shared memory, workspace; and whether a schedule fits."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

from blutrain.nova.gpu.hopper.problem import Side
from blutrain.nova.gpu.hopper.schedule import CONSUMER_ROWS, STAGE_ROW_BYTES
from blutrain.nova.gpu.hopper.shape import LAUNCH_REGISTERS, WARPGROUP, Shape
from blutrain.nova.gpu.kernel import WORKSPACE
from blutrain.nova.kernel import Unsupported

MAX_WGMMA_COLUMNS = 256
MAX_SIDE = 256  # of a tile
WGMMA_REGISTERS = 26  # of a thread that ptxas wants for one wgmma, beside its sums: it goes by those of the launch
BARRIER_BYTES = 8


@dataclass(frozen=True, eq=False)
class Tiles(Shape):
    """A shape with what its epilogue needs: reductions over rows, and buffers between shared memory and TMA."""

    num_reductions: int = 0
    staging_set_bytes: int = 0  # a consumer's buffers for a chunk of each result that leaves through shared memory
    fetch_set_bytes: int = 0  # and for a chunk of each operand that comes through it
    num_chunks: int = 0  # of a consumer's share of a tile

    # --- shared memory

    @property
    def p_bytes(self) -> int:
        return self.p_tile * STAGE_ROW_BYTES

    @property
    def q_bytes(self) -> int:
        return self.q_tile * STAGE_ROW_BYTES

    @property
    def stage_bytes(self) -> int:
        return self.p_bytes + self.q_bytes

    @property
    def q_offset(self) -> int:
        return self.schedule.stages * self.p_bytes

    @property
    def staging_offset(self) -> int:
        return self.schedule.stages * self.stage_bytes

    @property
    def staging_bytes(self) -> int:
        """Of all consumers. (The blocks of a cluster that split k find room where their rings were.)"""
        return 0 if self.clustered else self.schedule.consumers * self.schedule.staging * self.staging_set_bytes

    @property
    def fetch_offset(self) -> int:
        return self.staging_offset + self.staging_bytes

    @property
    def fetch_bytes(self) -> int:
        """Of all consumers."""
        return self.schedule.consumers * self.schedule.fetch * self.fetch_set_bytes

    @property
    def sums_offset(self) -> int:
        return self.fetch_offset + self.fetch_bytes

    @property
    def sums_bytes(self) -> int:
        """Per consumer and column reduction: a row of partial sums from each of its four warps."""
        if self.p_axis == "n":  # each warp has its columns to itself
            return 0
        return self.num_reductions * self.schedule.consumers * 4 * self.q_tile * 4

    @property
    def barrier_offset(self) -> int:
        used = self.sums_offset + self.sums_bytes
        if self.clustered:  # where the ring was, lies later what the other blocks send
            used = max(used, self.exchange_barriers * self.schedule.split * self.chunk_bytes)
        return used

    @property
    def fetch_barrier_offset(self) -> int:
        return self.barrier_offset + 2 * BARRIER_BYTES * self.schedule.stages

    @property
    def chunk_bytes(self) -> int:
        """Of a chunk's accumulators in all threads of a consumer."""
        return 4 * WARPGROUP * self.num_accumulators // max(1, self.num_chunks)

    @property
    def owned_chunks(self) -> int:
        """Most chunks of a consumer's share that one of the blocks that share a tile finishes."""
        return -(-self.num_chunks // self.schedule.split)

    @property
    def exchange_barriers(self) -> int:
        return self.schedule.slots * self.owned_chunks

    @property
    def exchange_barrier_offset(self) -> int:
        return self.fetch_barrier_offset  # nothing is fetched where k is split

    @property
    def total_shared_bytes(self) -> int:
        fetches = self.schedule.fetch > 0 and self.fetch_set_bytes > 0
        if self.clustered:
            return self.exchange_barrier_offset + BARRIER_BYTES * self.exchange_barriers
        return self.fetch_barrier_offset + 2 * BARRIER_BYTES * self.schedule.fetch * self.schedule.consumers * fetches

    # --- workspace

    @cached_property
    def repacked(self) -> Side | None:
        """The k-major copy that the first phase makes, at the start of the workspace."""
        if not self.schedule.repack:
            return None
        side = self.problem.side(self.schedule.repack)
        unit = 16 // self.problem.item
        row = -(-self.problem.k // unit) * unit
        size = side.extent * row
        batch, step = [], size
        for dim in reversed(side.batch):
            batch.append(type(dim)(dim.extent, step if dim.stride else 0))
            step *= dim.extent if dim.stride else 1
        return Side(side.axis, WORKSPACE, side.extent, row, 1, 0, tuple(reversed(batch)))

    @property
    def repacked_bytes(self) -> int:
        copy = self.repacked
        if copy is None:
            return 0
        batches = math.prod(b.extent for b in copy.batch if b.stride)
        return -(-batches * copy.extent * copy.stride * self.problem.item // 256) * 256

    @property
    def partials_offset(self) -> int:
        return self.repacked_bytes

    @property
    def partials_bytes(self) -> int:
        return self.total_tiles * self.schedule.tile_m * self.schedule.tile_n * 4 if self.in_workspace else 0

    @property
    def sums_row_offset(self) -> int:
        """Bytes from the workspace's start to the partial column sums."""
        return self.partials_offset + self.partials_bytes

    @property
    def sums_rows(self) -> int:
        """Rows of partial column sums: of each tile row, or of each consumer's share of one."""
        shares = 1 if self.p_axis == "n" else self.schedule.slots
        return self.problem.batch * self.tiles_m * shares

    @property
    def sums_pitch(self) -> int:
        """Elements of a row of partial column sums of one reduction."""
        return self.tiles_n * self.schedule.tile_n

    @property
    def row_shares(self) -> int:
        """Partial sums of a row: of each tile column, or of each warp's share of one."""
        return self.tiles_n * (4 * self.schedule.slots if self.p_axis == "n" else 1)

    @property
    def row_pitch(self) -> int:
        """Elements from one partial sum of a row to the next."""
        return self.tiles_m * self.schedule.tile_m

    @property
    def row_sums_offset(self) -> int:
        """Bytes from the workspace's start to the partial row sums."""
        return self.sums_row_offset + self.num_reductions * self.sums_rows * self.sums_pitch * 4

    @property
    def workspace_bytes(self) -> int:
        partials_bytes = self.row_shares * self.row_pitch * 4
        return self.row_sums_offset + len(self.problem.contract.row_reductions) * partials_bytes

    def side(self, axis: str) -> Side:
        """The factor as the main phase reads it."""
        return self.repacked if axis == self.schedule.repack and self.repacked else self.problem.side(axis)

    @property
    def shared_unit(self) -> int:
        """A shared tile is cut in halves of whole blocks: of 64 where the factor is contiguous along its own axis."""
        axis = self.schedule.multicast
        return 128 if axis and axis != self.register_axis and not self.side(axis).k_major else 64

    def problem_with_schedule(self) -> str:
        """ "" or why this schedule does not fit this problem."""
        s = self.schedule
        rules = (
            (self.p_tile % (CONSUMER_ROWS * s.slots), f"a tile of {self.p_tile} rows for {s.slots} consumers"),
            (self.q_tile % 32 or self.q_tile > MAX_WGMMA_COLUMNS, f"{self.q_tile} columns, expected 32, 64, ... 256"),
            (max(s.tile_m, s.tile_n) > MAX_SIDE, f"a tile above {MAX_SIDE}"),
            (
                self.accumulators_per_block + WGMMA_REGISTERS > LAUNCH_REGISTERS[s.consumers],
                f"{self.q_tile} columns for {s.consumers} consumers",
            ),
            (self.total_shared_bytes > self.shared_bytes, f"{self.total_shared_bytes} bytes of shared memory"),
            (s.pingpong and s.consumers != 2, "ping-pong takes two consumers"),
            (self.in_registers and self.blocks_p > 2, "the register form takes 64 or 128 rows a consumer"),
            (self.num_accumulators + 16 * self.blocks_p * self.in_registers > 192, "too many registers"),
            (s.split > 1 and self.num_reductions, "split k with column reductions"),
            (s.split > 1 and self.problem.contract.row_reductions, "split k with row reductions"),
            (s.stages < 2, "fewer than two stages"),
            (
                s.staging == 1 and not s.fetch,
                "one set of staging buffers, where warps meet between writing and sending",
            ),
            (
                self.fetch_set_bytes > 0 and self.num_chunks % s.fetch != 0,
                f"{self.num_chunks} chunks, not a multiple of {s.fetch}",
            ),
            (s.multicast and self.clustered, "multicast where the blocks of a cluster split k"),
            (
                s.multicast and self.tile(s.multicast) % self.shared_unit,
                f"a shared tile not of {self.shared_unit} rows",
            ),
            (self.clustered and (s.pingpong or s.split > 8), "a cluster of more than 8 blocks, or with ping-pong"),
        )
        return next((text for broken, text in rules if broken), "")

    def check(self) -> None:
        text = self.problem_with_schedule()
        if text:
            raise Unsupported(f"hopper: schedule {self.schedule}: {text}")
