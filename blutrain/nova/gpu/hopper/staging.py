"""Results on their way from a consumer's registers to memory: through blocks of shared memory that TMA writes out.

The warps of a consumer meet once for each chunk, and the chunk before goes out. Or each sends its own rows as soon as it
has written them, and waits for no other.
"""

from __future__ import annotations

from blutrain.nova.contract.form import Store
from blutrain.nova.gpu.builder import SHARED, Builder, Integer
from blutrain.nova.gpu.hopper import machine
from blutrain.nova.gpu.hopper.block import Block
from blutrain.nova.gpu.hopper.pieces import Piece, num_chunks, sends_by_warps, sent_rows, tile_of
from blutrain.nova.gpu.hopper.place import Consumer, Place
from blutrain.nova.gpu.hopper.schedule import CONSUMER_ROWS
from blutrain.nova.gpu.hopper.shape import WARPGROUP
from blutrain.nova.gpu.hopper.tiles import Tiles
from blutrain.nova.gpu.hopper.values import Run


def leader(out: Builder, tiles: Tiles, consumer: Consumer) -> str:
    """Is this the thread that sends: of a warp, or of the consumer."""
    lane = consumer.thread.lane if sends_by_warps(tiles) else consumer.lane_in_group
    return out.compare("eq", lane, 0)


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
        self.by_warps = self.at_once = sends_by_warps(tiles)
        self.written: Run | None = None  # the chunk that waits to be sent
        first = out.add(consumer.thread.shared, tiles.staging_offset)
        self.base = out.add(first, out.mul(consumer.number, self.sets * tiles.staging_set_bytes))
        self.barrier = out.add(consumer.number, machine.CONSUMER_BARRIER)
        self.leads = leader(out, tiles, consumer)

    def open(self) -> None:
        """Behind it the next set is free."""
        pending = self._still_reading()
        self.out.when(self.leads, lambda: self.out.line(f"nvvm.cp.async.bulk.wait_group {pending} {{read}}"))
        if self.by_warps:
            machine.warp_barrier(self.out)
        else:
            self._meet()

    def write(self, store: Store, chunk: list[Piece], values: list[str]) -> None:
        """A chunk into the store's block."""
        block = Block(self.out, self.tiles, self.consumer.thread, store.access)
        block.write(*self._place_of(store), chunk, values)

    def close(self, first: Run) -> None:
        """The set holds the chunk that begins at `first`: it is sent, at once or where the warps meet next."""
        self.written = first
        if self.at_once:
            self._meet()

    def finish(self) -> None:
        """Behind the last chunk of a tile."""
        if not self.at_once:
            self._meet()

    def _meet(self) -> None:
        """The proxy fence waits for the thread's writes, and for its reads of what was fetched."""
        out, written = self.out, self.written
        machine.proxy_fence(out)
        if self.by_warps:
            machine.warp_barrier(out)
        else:
            machine.named_barrier(out, self.barrier, WARPGROUP)
        if written is not None:
            out.when(self.leads, lambda: self._send(written))
            self.count += 1
            self.written = None

    def _place_of(self, store: Store) -> tuple[Integer, int]:
        """Of the store's block: an address and bytes behind it."""
        return self.base, self.count % self.sets * self.tiles.staging_set_bytes + self._before(store)

    def _before(self, store: Store) -> int:
        """Bytes of a set in front of the store's block."""
        return sum(tile_of(self.tiles, s.access).bytes for s in self.stores[: self.stores.index(store)])

    def _still_reading(self) -> int:
        """Groups that may run on when the next chunk is to be written: those committed after the one that last used its
        set, in this tile or the one before. Where warps meet, the chunk before it is not committed yet.
        """
        waits = self.written is not None
        number = self.count + waits
        if number >= self.sets:
            return self.sets - 1 - waits
        last = max(range(number, self.total, self.sets), default=number)
        return max(0, self.total - 1 - last + number - waits)

    def _send(self, first: Run) -> None:
        out, operation, kind = self.out, "global.shared.cta", ""
        if self.tiles.problem.adds:
            operation, kind = "reduce", " {redKind = #nvvm.tma_redux_kind<add>}"
        mine = self._rows()
        for number, store in enumerate(self.stores, self.first_map):
            tile = tile_of(self.tiles, store.access)
            buffer = out.add(out.add(*self._place_of(store)), out.mul(mine, tile.row_bytes))
            for box in range(tile.count):
                source = out.shared_pointer(out.add(buffer, box * tile.box_bytes))
                at = ", ".join(out.name(c) for c in self._corner(first, mine, box * tile.columns))
                out.line(
                    f"nvvm.cp.async.bulk.tensor.{operation} %map{number}, {source}, box[{at}]{kind} : !llvm.ptr, {SHARED}"
                )
        out.line("nvvm.cp.async.bulk.commit.group")

    def _rows(self) -> Integer:
        """The first row of a block that the thread sends."""
        if not self.by_warps:
            return 0
        return self.out.mul(self.out.bits("andi", self.consumer.thread.warp, 3), sent_rows(self.tiles))

    def _corner(self, first: Run, mine: Integer, skipped: int) -> list[Integer]:
        """The element at which a box begins, innermost first: that of the chunk, `mine` rows and `skipped` columns on."""
        out, place = self.out, self.place
        share = out.mul(self.consumer.slot, CONSUMER_ROWS * self.tiles.blocks_p)
        m, n = out.add(out.add(place.m, first.row), mine), out.add(place.n, first.column + skipped)
        m, n = (out.add(m, share), n) if self.tiles.p_axis == "m" else (m, out.add(n, share))
        return [n, m, *([place.batch] if self.tiles.problem.batch > 1 else [])]
