"""Split k through the workspace: partial tiles of the ranges of k, which a second phase sums and finishes.

A partial tile keeps the order of the accumulators, [consumer's share][group of four][thread] vectors of four. Each
element is the sum over ranges 0, 1, 2... in this order.
"""

from __future__ import annotations

from dataclasses import dataclass

from blutrain.nova.gpu.builder import Builder, Integer
from blutrain.nova.gpu.hopper.epilogue import Epilogue
from blutrain.nova.gpu.hopper.machine import Thread
from blutrain.nova.gpu.hopper.pieces import Piece, num_chunks, pieces, thread_origin
from blutrain.nova.gpu.hopper.place import Consumer, Place, locate
from blutrain.nova.gpu.hopper.shape import WARPGROUP
from blutrain.nova.gpu.hopper.tiles import Tiles
from blutrain.nova.gpu.hopper.values import Run, Values

VECTOR = 4  # accumulators kept together
VECTOR_TYPE = "vector<4xf32>"


@dataclass(frozen=True)
class Chunk:
    """Chunk `number` (of the running kernel) of a consumer's share, as the first chunk moved along."""

    pieces: list[Piece]
    row: Integer
    column: Integer
    group: Integer  # groups of four accumulators to add


def locate_chunk(out: Builder, tiles: Tiles, number: Integer) -> Chunk:
    """All chunks of a share look alike: later ones are the first one, moved."""
    chunks = pieces(tiles)
    first = chunks[0]

    def moved(a: int, b: int) -> tuple[int, int, int]:
        one, other = chunks[a][0], chunks[b][0]
        steps = other.run.row - one.run.row, other.run.column - one.run.column
        return *steps, (other.accumulators[0] - one.accumulators[0]) // VECTOR

    blocks = 1 if tiles.p_axis == "n" else tiles.blocks_p
    columns, block = out.div(number, blocks), out.rem(number, blocks)
    row: Integer = 0
    column: Integer = 0
    group: Integer = 0
    for index, step in ((columns, blocks), (block, 1)):
        if step < len(chunks) and index != 0:
            down, right, groups = moved(0, step)
            row, column = out.add(row, out.mul(index, down)), out.add(column, out.mul(index, right))
            group = out.add(group, out.mul(index, groups))
    return Chunk(first, row, column, group)


def groups_of(chunk: list[Piece]) -> list[int]:
    return sorted({a // VECTOR for piece in chunk for a in piece.accumulators})


def finish_chunk(
    out: Builder, epilogue: Epilogue, place: Place, consumer: Consumer, chunk: Chunk, vectors: dict[int, str]
) -> None:
    """Epilogue and stores of one chunk; `vectors` holds the sums by group."""
    m, n = out.add(place.m, chunk.row), out.add(place.n, chunk.column)
    origin = thread_origin(out, epilogue.tiles, m, n, place.batch, consumer)
    elements = {g: [out.element(v, i, "f32", VECTOR) for i in range(VECTOR)] for g, v in vectors.items()}
    moved = [Piece(Run(p.run.row, p.run.column, p.run.lanes), p.accumulators) for p in chunk.pieces]
    values = Values(out, epilogue.contract, origin)
    epilogue.chunk(values, moved, lambda a: elements[a // VECTOR][a % VECTOR])


def emit_partial(out: Builder, tiles: Tiles):
    """The main phase's epilogue: the accumulators as they are."""

    def epilogue(sums: list[str], place: Place, consumer: Consumer) -> None:
        work = out.add(out.mul(place.split, tiles.output_tiles), place.number)
        base = _partial(out, tiles, work, consumer.slot, consumer.lane_in_group)
        for group in range(len(sums) // VECTOR):
            vector = out.vector(sums[VECTOR * group : VECTOR * (group + 1)], "f32")
            pointer = out.pointer(base, group * WARPGROUP * VECTOR, "f32")
            out.store(vector, pointer, VECTOR_TYPE, 16)

    return epilogue


def _partial(out: Builder, tiles: Tiles, work: Integer, slot: Integer, lane: Integer) -> str:
    """Where a thread's first vector of a partial tile lies."""
    start = out.pointer("%workspace", tiles.partials_offset, "i8")
    tile = out.value(
        f"arith.muli {out.widen(work)}, {out.name(tiles.schedule.tile_m * tiles.schedule.tile_n, 'i64')} : i64"
    )
    within = out.add(out.mul(slot, WARPGROUP * tiles.num_accumulators), out.mul(lane, VECTOR))
    return out.pointer(out.pointer(start, tile, "f32"), out.widen(within), "f32")


def sum_blocks(tiles: Tiles) -> int:
    """Blocks of the second phase: one for each chunk."""
    return tiles.output_tiles * tiles.schedule.slots * num_chunks(tiles)


def emit_sum(out: Builder, tiles: Tiles) -> None:
    """The second phase: one warpgroup for each chunk."""
    thread = Thread.read(out)
    chunks = num_chunks(tiles)
    tile, rest = (
        out.div(thread.block, tiles.schedule.slots * chunks),
        out.rem(thread.block, tiles.schedule.slots * chunks),
    )
    slot, number = out.div(rest, chunks), out.rem(rest, chunks)
    consumer = Consumer(thread, thread.index, 0, slot)
    chunk = locate_chunk(out, tiles, number)
    place = locate(out, tiles, out.div(tile, tiles.pair), out.rem(tile, tiles.pair))
    totals: dict[int, str] = {}
    for split in range(tiles.schedule.split):
        base = _partial(out, tiles, out.add(tile, split * tiles.output_tiles), slot, thread.index)
        shift = out.widen(out.mul(chunk.group, WARPGROUP * VECTOR))
        base = out.pointer(base, shift, "f32")
        for group in groups_of(chunk.pieces):
            vector = out.load(out.pointer(base, group * WARPGROUP * VECTOR, "f32"), VECTOR_TYPE, 16)
            totals[group] = out.value(f"arith.addf {totals[group]}, {vector} : {VECTOR_TYPE}") if split else vector
    finish_chunk(out, Epilogue(out, tiles), place, consumer, chunk, totals)
