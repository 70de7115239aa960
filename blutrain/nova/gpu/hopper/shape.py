"""How a schedule cuts a product: axes as wgmma sees them, tiles, consumers' shares, steps of k, what blocks work on."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

from blutrain.nova.gpu.hopper.problem import Problem
from blutrain.nova.gpu.hopper.schedule import CONSUMER_ROWS, STAGE_ROW_BYTES, Schedule, register_axis

WARPGROUP = 128  # threads
# Registers of a thread by number of consumers, at launch and once the warpgroups have traded them (setmaxnreg), in
# eights. A block trades what it was launched with: to ask for more waits for ever.
LAUNCH_REGISTERS = {2: 168, 3: 128}
CONSUMER_REGISTERS = {2: 232, 3: 160}
PRODUCER_REGISTERS = {2: 40, 3: 32}
MANY_REGISTERS = 64  # of a thread, beside its accumulators


@dataclass(frozen=True, eq=False)
class Shape:
    """A problem and its schedule, on a GPU of `num_sms` multiprocessors with `shared_bytes` for a block."""

    problem: Problem
    schedule: Schedule
    shared_bytes: int
    num_sms: int

    # --- the product's axes as wgmma sees them

    @cached_property
    def register_axis(self) -> str:
        return register_axis(self.problem, self.schedule.repack)

    @property
    def in_registers(self) -> bool:
        return self.register_axis != ""

    @property
    def p_axis(self) -> str:
        return "n" if self.register_axis == "n" else "m"

    @property
    def q_axis(self) -> str:
        return "m" if self.p_axis == "n" else "n"

    def tile(self, axis: str) -> int:
        return self.schedule.tile_m if axis == "m" else self.schedule.tile_n

    def extent(self, axis: str) -> int:
        return self.problem.m if axis == "m" else self.problem.n

    def is_ragged(self, axis: str) -> bool:
        """May a tile reach beyond the product along an axis."""
        return self.num_tiles(axis) * self.tile(axis) != self.extent(axis)

    @property
    def p_tile(self) -> int:
        return self.tile(self.p_axis)

    @property
    def q_tile(self) -> int:
        return self.tile(self.q_axis)

    @property
    def blocks_p(self) -> int:
        """wgmma row blocks of one consumer."""
        return self.p_tile // self.schedule.slots // CONSUMER_ROWS

    @property
    def accumulators_per_block(self) -> int:
        return self.q_tile // 2

    @property
    def num_accumulators(self) -> int:
        return self.blocks_p * self.accumulators_per_block

    @property
    def spare_registers(self) -> int:
        """Of a consumer's thread, beside its accumulators."""
        return CONSUMER_REGISTERS[self.schedule.consumers] - self.num_accumulators

    @property
    def has_few_registers(self) -> bool:
        """Too few for the assembler to compute chunks of an epilogue early."""
        return self.spare_registers < MANY_REGISTERS

    # --- tiles and steps of k

    @property
    def k_tile(self) -> int:
        return STAGE_ROW_BYTES // self.problem.item

    def num_tiles(self, axis: str) -> int:
        """An even number along the axis in which two blocks of a cluster lie side by side."""
        tiles = math.ceil(self.extent(axis) / self.tile(axis))
        return tiles + tiles % 2 if self.pair_axis == axis else tiles

    @property
    def pair_axis(self) -> str:
        """The axis along which the tiles of two blocks that share the other factor's tile are neighbours."""
        return {"": "", "m": "n", "n": "m"}[self.schedule.multicast]

    @property
    def pair(self) -> int:
        return 2 if self.schedule.multicast else 1

    @property
    def tiles_m(self) -> int:
        return self.num_tiles("m")

    @property
    def tiles_n(self) -> int:
        return self.num_tiles("n")

    def steps_along(self, axis: str) -> int:
        """Tiles along an axis, pairs counted once."""
        return self.num_tiles(axis) // (self.pair if self.pair_axis == axis else 1)

    @property
    def output_tiles(self) -> int:
        return self.problem.batch * self.tiles_m * self.tiles_n

    @property
    def total_tiles(self) -> int:
        """Tiles of work: with split k, each range of k counts."""
        return self.output_tiles * self.schedule.split

    @property
    def total_work(self) -> int:
        """What the persistent loop counts: tiles, or pairs of them."""
        return self.total_tiles // self.pair

    @property
    def k_steps(self) -> int:
        """Steps of one range of k: all ranges are equal, TMA reads zeros beyond k. Even in the register form, whose
        loop takes two at a time.
        """
        steps = math.ceil(math.ceil(self.problem.k / self.k_tile) / self.schedule.split)
        return steps + steps % 2 if self.in_registers else steps

    @property
    def group_m(self) -> int:
        return min(self.schedule.group_m, self.steps_along("m"))

    @property
    def workers(self) -> int:
        """Blocks (or pairs of them) launched: persistent, one an SM, except that a cluster that splits k takes one
        tile.
        """
        return self.total_work if self.clustered else min(self.num_sms // self.pair, self.total_work)

    @property
    def blocks(self) -> int:
        return self.workers * self.pair

    @property
    def clustered(self) -> bool:
        return self.schedule.in_cluster

    @property
    def cluster(self) -> int:
        return self.schedule.split if self.clustered else self.pair

    @property
    def in_workspace(self) -> bool:
        """Do partial sums of ranges of k pass through the workspace."""
        return self.schedule.split > 1 and not self.clustered

    @property
    def threads(self) -> int:
        return WARPGROUP * (self.schedule.consumers + 1)
