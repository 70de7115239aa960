"""Where a piece of work lies: a tile of the output, the consumer that computes it."""

from __future__ import annotations

from dataclasses import dataclass

from blutrain.nova.gpu.builder import Builder, Integer
from blutrain.nova.gpu.hopper.machine import Thread
from blutrain.nova.gpu.hopper.tiles import Tiles


@dataclass(frozen=True)
class Place:
    """One tile of work: its first row and column, its batch index, its range of k, its number among the output's; how
    many tiles its consumer has had before.
    """

    m: Integer
    n: Integer
    batch: Integer
    digits: tuple[Integer, ...]
    split: Integer
    number: Integer
    turn: Integer = 0

    def along(self, axis: str) -> Integer:
        return self.m if axis == "m" else self.n


@dataclass(frozen=True)
class Consumer:
    """What the epilogue may ask: the thread, its number among its warpgroup's, the consumer's number, its share."""

    thread: Thread
    lane_in_group: str
    number: Integer
    slot: Integer


def locate(out: Builder, tiles: Tiles, work: Integer, rank: Integer = 0) -> Place:
    """Tile (of a pair: tile `rank`) number `work`: ranges of k outermost, then batches, then groups of row tiles, column
    tile by column tile.
    """
    steps_m, steps_n = tiles.steps_along("m"), tiles.steps_along("n")
    per_split, per_batch = tiles.output_tiles // tiles.pair, steps_m * steps_n
    split, number = (out.div(work, per_split), out.rem(work, per_split)) if tiles.schedule.split > 1 else (0, work)
    batch, inner = (out.div(number, per_batch), out.rem(number, per_batch)) if tiles.problem.batch > 1 else (0, number)
    group = out.div(inner, tiles.group_m * steps_n)
    within = out.rem(inner, tiles.group_m * steps_n)
    height: Integer = tiles.group_m
    if steps_m % tiles.group_m:
        height = out.minimum(tiles.group_m, out.sub(steps_m, out.mul(group, tiles.group_m)))
    row = out.add(out.mul(group, tiles.group_m), out.rem(within, height))
    column = out.quotient(within, height)
    if tiles.pair_axis == "m":
        row = out.add(out.mul(row, 2), rank)
    elif tiles.pair_axis == "n":
        column = out.add(out.mul(column, 2), rank)
    digits: list[Integer] = []
    rest: Integer = batch
    for dim in reversed(tiles.problem.rows.batch):
        digits.insert(0, out.rem(rest, dim.extent))
        rest = out.div(rest, dim.extent)
    m, n = out.mul(row, tiles.schedule.tile_m), out.mul(column, tiles.schedule.tile_n)
    if tiles.pair == 2:
        number = out.add(out.mul(number, 2), rank)
    return Place(m, n, batch, tuple(digits), split, number)


def rank_of(out: Builder, tiles: Tiles, thread: Thread) -> Integer:
    """The block's number in its cluster."""
    return out.rem(thread.block, tiles.cluster)
