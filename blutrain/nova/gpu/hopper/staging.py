"""Results on their way from a consumer's registers to memory: through blocks of shared memory that TMA writes out."""

from __future__ import annotations

from blutrain.nova.contract.form import Store
from blutrain.nova.gpu.hopper import machine
from blutrain.nova.gpu.hopper.block import Block
from blutrain.nova.gpu.hopper.builder import SHARED, Builder, Integer
from blutrain.nova.gpu.hopper.pieces import Piece, num_chunks, tile_of
from blutrain.nova.gpu.hopper.place import Consumer, Place
from blutrain.nova.gpu.hopper.schedule import CONSUMER_ROWS
from blutrain.nova.gpu.hopper.tiles import WARPGROUP, Tiles
from blutrain.nova.gpu.hopper.values import Run


class Staging:
    """A ring of sets of buffers of a consumer's own, in each a block for every staged result. The first of them has tensor
    map number `first_map`.
    """

    def __init__(
        self, out: Builder, tiles: Tiles, stores: list[Store], first_map: int, place: Place, consumer: Consumer
    ):
        self.out, self.tiles, self.stores, self.place, self.consumer = out, tiles, stores, place, consumer
        self.first_map = first_map
        self.sets = tiles.schedule.staging
        self.total = num_chunks(tiles)
        self.count = 0  # sets sent
        self.written: Run | None = None  # the chunk that waits to be sent
        first = out.add(consumer.thread.shared, tiles.staging_offset)
        self.base = out.add(first, out.mul(consumer.number, self.sets * tiles.staging_set_bytes))
        self.barrier = out.add(consumer.number, machine.CONSUMER_BARRIER)
        self.leads = out.compare("eq", consumer.lane_in_group, 0)

    def open(self) -> None:
        """Where the threads meet once for each chunk: the set before is whole and goes out, the next one is free."""
        pending = self._still_reading()
        self.out.when(self.leads, lambda: self.out.line(f"nvvm.cp.async.bulk.wait_group {pending} {{read}}"))
        self._meet()

    def write(self, store: Store, chunk: list[Piece], values: list[str]) -> None:
        """A chunk into the store's block."""
        Block(self.out, self.tiles, self.consumer.thread, store.access).write(self._buffer(store), chunk, values)

    def close(self, first: Run) -> None:
        """The set holds the chunk that begins at `first`; it is sent where the threads meet next."""
        self.written = first

    def finish(self) -> None:
        """Behind the last chunk of a tile."""
        self._meet()

    def _meet(self) -> None:
        """The proxy fence waits for the thread's writes, which were long ago: of the chunk before; and for its reads of what
        was fetched.
        """
        out, written = self.out, self.written
        machine.proxy_fence(out)
        machine.named_barrier(out, self.barrier, WARPGROUP)
        if written is not None:
            out.when(self.leads, lambda: self._send(written))
            self.count += 1
            self.written = None

    def _buffer(self, store: Store) -> Integer:
        offset = self.count % self.sets * self.tiles.staging_set_bytes
        before = self.stores[: self.stores.index(store)]
        return self.out.add(self.base, offset + sum(tile_of(self.tiles, s.access).bytes for s in before))

    def _still_reading(self) -> int:
        """Groups that may run on when the next chunk is to be written: those committed after the one that last used its
        set, in this tile or the one before. The chunk before it is not committed yet.
        """
        number = self.count + (self.written is not None)
        if number >= self.sets:
            return self.sets - 2
        last = max(range(number, self.total, self.sets), default=number)
        return max(0, self.total - 1 - last + max(0, number - 1))

    def _send(self, first: Run) -> None:
        out, operation, kind = self.out, "global.shared.cta", ""
        if self.tiles.problem.adds:
            operation, kind = "reduce", " {redKind = #nvvm.tma_redux_kind<add>}"
        for number, store in enumerate(self.stores, self.first_map):
            tile, buffer = tile_of(self.tiles, store.access), self._buffer(store)
            for box in range(tile.count):
                source = out.shared_pointer(out.add(buffer, box * tile.box_bytes))
                at = ", ".join(out.name(c) for c in self._corner(first, box * tile.columns))
                out.line(
                    f"nvvm.cp.async.bulk.tensor.{operation} %map{number}, {source}, box[{at}]{kind} : !llvm.ptr, {SHARED}"
                )
        out.line("nvvm.cp.async.bulk.commit.group")

    def _corner(self, first: Run, skipped: int) -> list[Integer]:
        """The element at which a box begins, innermost first: that of the chunk, `skipped` columns on."""
        out, place = self.out, self.place
        share = out.mul(self.consumer.slot, CONSUMER_ROWS * self.tiles.blocks_p)
        m, n = out.add(place.m, first.row), out.add(place.n, first.column + skipped)
        m, n = (out.add(m, share), n) if self.tiles.p_axis == "m" else (m, out.add(n, share))
        return [n, m, *([place.batch] if self.tiles.problem.batch > 1 else [])]
