"""Matrices that an epilogue reads: fetched by TMA, chunk by chunk, while the product is under way.

A warp of the producer warpgroup serves each consumer: it fills a ring of sets of blocks, in each a chunk of every
fetched operand, in the order in which the epilogue takes them. So what a tile needs lies in shared memory before its
sums are done, and no thread waits for memory. (A load from registers' side could not be issued so early: it would have
to be held beside the accumulators, and where the assembler moves it and what depends on it in front of the turn of the
other consumer, it delays the products.)
"""

from __future__ import annotations

from collections.abc import Sequence

from blutrain.nova.gpu.builder import Builder, Integer
from blutrain.nova.gpu.hopper.block import Block
from blutrain.nova.gpu.hopper.machine import Ring, Thread
from blutrain.nova.gpu.hopper.pieces import TRANSPOSED_ROWS, WARPS, Piece, Tile, fetched_loads, num_chunks, tile_of
from blutrain.nova.gpu.hopper.place import Place
from blutrain.nova.gpu.hopper.schedule import CONSUMER_ROWS
from blutrain.nova.gpu.hopper.tiles import BARRIER_BYTES, Tiles
from blutrain.nova.gpu.hopper.values import Values

FIRST_MAP = 2  # behind the factors'


class Fetch:
    """The ring of one consumer; `consumer` counts warpgroups that multiply."""

    def __init__(self, out: Builder, tiles: Tiles, thread: Thread, consumer: Integer):
        self.out, self.tiles, self.thread = out, tiles, thread
        self.operands = [tile_of(tiles, access) for access in fetched_loads(tiles)]
        sets, barriers = tiles.schedule.fetch, 2 * BARRIER_BYTES * tiles.schedule.fetch
        first = out.add(thread.shared, tiles.fetch_offset)
        self.base = out.add(first, out.mul(consumer, sets * tiles.fetch_set_bytes))
        first = out.add(thread.shared, tiles.fetch_barrier_offset)
        self.ring = Ring(out, out.add(first, out.mul(consumer, barriers)), sets)
        self.count = 0

    def initialise(self) -> None:
        """By one thread, before any other uses the ring."""
        self.ring.initialise(WARPS)  # each releases a set

    # --- the warp that fetches

    def fill(self, place: Place, slot: Integer, at: Sequence[str]) -> Sequence[str]:
        """Fetches all chunks of a share of a tile, from the place `at` in the ring on; the place behind."""
        out, tiles, ring = self.out, self.tiles, self.ring
        share = out.mul(slot, CONSUMER_ROWS * tiles.blocks_p)

        def chunk(number: str, at: list[str]) -> Sequence[str]:
            stage, parity = at
            ring.wait(ring.empty(stage), out.bits("xori", parity, 1))
            ring.expect(ring.full(stage), sum(tile.bytes for tile in self.operands))
            target = out.add(self.base, out.mul(stage, tiles.fetch_set_bytes))
            for index, tile in enumerate(self.operands):
                for box in range(tile.count):
                    corner = self._corner(place, share, number, box, tile)
                    self._copy(index, corner, out.add(target, box * tile.box_bytes), stage)
                target = out.add(target, tile.bytes)
            return ring.next(stage, parity)

        return out.repeat(0, num_chunks(tiles), 1, chunk, [(x, "i32") for x in at])

    def _corner(self, place: Place, share: Integer, number: str, box: int, tile: Tile) -> list[Integer]:
        """The element at which a box of chunk `number` begins, innermost first."""
        out, tiles, columns = self.out, self.tiles, tile.columns
        if tiles.p_axis == "n":
            n, m = out.add(out.add(place.n, share), box * columns), out.add(place.m, out.mul(number, TRANSPOSED_ROWS))
        else:
            n = out.add(place.n, out.mul(out.div(number, tiles.blocks_p), columns))
            block = out.mul(out.rem(number, tiles.blocks_p), CONSUMER_ROWS)
            m = out.add(out.add(place.m, share), block)
        return [n, m, *([place.batch] if tiles.problem.batch > 1 else [])]

    def _copy(self, index: int, corner: list[Integer], target: Integer, stage: str) -> None:
        out = self.out
        pointer = out.value(f"llvm.addrspacecast {out.shared_pointer(target)} : !llvm.ptr<3> to !llvm.ptr<7>")
        barrier = out.shared_pointer(self.ring.full(stage))
        at = ", ".join(out.name(x) for x in corner)
        out.line(
            f"nvvm.cp.async.bulk.tensor.shared.cluster.global {pointer}, %map{FIRST_MAP + index}, {barrier}, "
            f"box[{at}] : !llvm.ptr<7>, !llvm.ptr"
        )

    # --- the consumer

    def take(self, place: Place, chunk: list[Piece], values: Values) -> None:
        """Gives `values` its operands of a chunk. Chunks are taken in order; a tile has a whole number of rounds."""
        out, tiles, sets = self.out, self.tiles, self.tiles.schedule.fetch
        stage, rounds = self.count % sets, num_chunks(tiles) // sets
        parity: Integer = self.count // sets % 2
        if rounds % 2:
            parity = out.bits("andi", out.add(place.turn, parity), 1)
        self.count += 1
        self.ring.wait(out.add(self.ring.first_full, BARRIER_BYTES * stage), parity)
        skipped = stage * tiles.fetch_set_bytes
        for tile in self.operands:
            vectors = Block(out, tiles, self.thread, tile.access).read(self.base, skipped, chunk)
            for piece, vector in zip(chunk, vectors, strict=True):
                values.provide(tile.access, piece.run, vector)
            skipped += tile.bytes

    def release(self) -> None:
        """Gives the set of the chunk that was taken last back to the warp that fetches.

        To be called behind a proxy fence, a meeting of the warp and the stores of what was computed from the chunk: a load
        may wait in its queue behind stores while an arrival, which takes another way, overtakes it.
        """
        stage = (self.count - 1) % self.tiles.schedule.fetch
        first_lane = self.out.as_integer(self.out.compare("eq", self.thread.lane, 0))
        self.ring.release(self.out.name(stage), first_lane)
