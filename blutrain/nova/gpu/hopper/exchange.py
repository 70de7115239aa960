"""Split k in a cluster: its blocks have a range of k each of one tile, exchange their sums, and share out the finishing.

The chunks of a tile go round the blocks. A block sends the accumulators of another block's chunk straight from registers
into that block's shared memory, where a barrier counts the bytes; to those of its own chunks it adds what comes. Each
element is the sum over ranges 0, 1, 2... in this order. What comes lies where the ring was, as vectors of four:
[consumer's share][chunk of this block's][range][group of four][thread]. Nothing comes from the block itself: through
that place the results leave.
"""

from __future__ import annotations

from collections.abc import Callable

from blutrain.nova.contract.form import Store
from blutrain.nova.gpu.builder import Builder, Integer, struct
from blutrain.nova.gpu.hopper import machine
from blutrain.nova.gpu.hopper.epilogue import Epilogue
from blutrain.nova.gpu.hopper.fetch import FIRST_MAP
from blutrain.nova.gpu.hopper.machine import Ring, Thread
from blutrain.nova.gpu.hopper.pieces import Piece, pieces, thread_origin
from blutrain.nova.gpu.hopper.place import Consumer, Place
from blutrain.nova.gpu.hopper.shape import WARPGROUP
from blutrain.nova.gpu.hopper.split import VECTOR, groups_of
from blutrain.nova.gpu.hopper.staging import Staging
from blutrain.nova.gpu.hopper.tiles import BARRIER_BYTES, Tiles
from blutrain.nova.gpu.hopper.values import Values

GROUP_BYTES = 4 * VECTOR * WARPGROUP  # of four accumulators of all threads


def emit_exchange(out: Builder, tiles: Tiles, epilogue: Epilogue) -> Callable[[list[str], Place, Consumer], None]:
    """The end of a block in a cluster. All its threads, the producer's too, meet at one cluster barrier."""
    chunks = pieces(tiles)

    def finish(sums: list[str], place: Place, consumer: Consumer) -> None:
        exchange = Exchange(out, tiles, place, consumer)
        staging = OwnPlace(exchange, epilogue.staged, place) if epilogue.staged else None
        exchange.open()
        exchange.send(chunks, sums)
        origin = thread_origin(out, tiles, place.m, place.n, place.batch, consumer)

        def end(number: int) -> None:
            totals = exchange.totals(number, chunks[number], sums)
            if staging is not None:
                staging.number = number
            epilogue.chunk(Values(out, epilogue.contract, origin), chunks[number], lambda i: totals[i], staging)

        for number in range(len(chunks)):
            out.when(out.compare("eq", exchange.owners[number], place.split), lambda n=number: end(n))

    return finish


def initialise(out: Builder, tiles: Tiles, thread: Thread) -> None:
    """By one thread, before any other uses the barriers."""
    for number in range(tiles.exchange_barriers):
        barrier = out.shared_pointer(out.add(thread.shared, tiles.exchange_barrier_offset + BARRIER_BYTES * number))
        out.line(f"nvvm.mbarrier.init {barrier}, {out.name(1)} : !llvm.ptr<3>, i32")
    out.line("nvvm.fence.mbarrier.init")


class Exchange:
    """One consumer's part. `owners`: of each chunk the block that finishes it. A block is its range of k."""

    def __init__(self, out: Builder, tiles: Tiles, place: Place, consumer: Consumer):
        self.out, self.tiles, self.rank, self.consumer = out, tiles, place.split, consumer
        self.blocks = tiles.schedule.split
        first = out.mul(consumer.slot, tiles.num_chunks)
        self.owners = [out.rem(out.add(first, number), self.blocks) for number in range(tiles.num_chunks)]
        share = tiles.owned_chunks * self.blocks * tiles.chunk_bytes
        self.share = out.add(consumer.thread.shared, out.mul(consumer.slot, share))
        self.base = out.add(self.share, out.mul(consumer.lane_in_group, 4 * VECTOR))
        first = out.add(consumer.thread.shared, tiles.exchange_barrier_offset)
        self.barrier = out.add(first, out.mul(consumer.slot, BARRIER_BYTES * tiles.owned_chunks))

    def open(self) -> None:
        """Each barrier knows what will come, and nobody in the cluster multiplies from a ring any more."""
        out, tiles, lane = self.out, self.tiles, self.consumer.lane_in_group
        barrier = out.add(self.barrier, out.mul(lane, BARRIER_BYTES))
        coming = (self.blocks - 1) * tiles.chunk_bytes
        ring = Ring(out, self.barrier, 1)
        out.when(out.compare("ult", lane, tiles.owned_chunks), lambda: ring.expect(barrier, coming))
        machine.cluster_barrier(out, is_relaxed=True)

    def send(self, chunks: list[list[Piece]], sums: list[str]) -> None:
        """To the next block first, so that no two send to the same one at a time."""
        out, tiles = self.out, self.tiles
        place = out.name(out.add(self.base, out.mul(self.rank, tiles.chunk_bytes)))
        for step in range(1, self.blocks):
            target = out.name(out.rem(out.add(self.rank, step), self.blocks))
            there = [
                out.asm("mapa.shared::cluster.u32 $0, $1, $2;", "=r,r,r", [(x, "i32"), (target, "i32")], "i32")
                for x in (place, out.name(self.barrier))
            ]
            for number, chunk in enumerate(chunks):
                is_its = out.compare("eq", self.owners[number], target)
                out.when(is_its, lambda n=number, c=chunk, t=there: self._send(n, c, sums, *t))

    def _send(self, number: int, chunk: list[Piece], sums: list[str], place: str, barrier: str) -> None:
        opcode = "st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32"
        nth = BARRIER_BYTES * (number // self.blocks)
        for index, group in enumerate(groups_of(chunk)):
            text = f"{opcode} [$0+{self._offset(number, index)}], {{$2,$3,$4,$5}}, [$1+{nth}];"
            vector = [(s, "f32") for s in sums[VECTOR * group : VECTOR * (group + 1)]]
            self.out.asm(text, "r,r,f,f,f,f,~{memory}", [(place, "i32"), (barrier, "i32"), *vector])

    def totals(self, number: int, chunk: list[Piece], sums: list[str]) -> dict[int, str]:
        """The accumulators of a chunk of this block's, by number, summed over all ranges."""
        out = self.out
        Ring(out, 0, 1).wait(out.add(self.barrier, BARRIER_BYTES * (number // self.blocks)), 0)
        totals: dict[int, str] = {}
        for index, group in enumerate(groups_of(chunk)):
            own = range(VECTOR * group, VECTOR * (group + 1))
            for block in range(self.blocks):
                is_own = out.compare("eq", self.rank, block)
                for i, other in zip(own, self._received(number, index, block), strict=True):
                    part = out.value(f"arith.select {is_own}, {sums[i]}, {other} : f32")
                    totals[i] = out.value(f"arith.addf {totals[i]}, {part} : f32") if block else part
        return totals

    def _received(self, number: int, index: int, block: int) -> list[str]:
        """Of block `block`; undefined where that is this one."""
        out = self.out
        at = out.add(self.base, self._offset(number, index) + block * self.tiles.chunk_bytes)
        text = "ld.shared.v4.f32 {$0,$1,$2,$3}, [$4];"
        loaded = out.asm(text, "=f,=f,=f,=f,r,~{memory}", [(out.name(at), "i32")], struct("f32", VECTOR))
        return out.unpack(loaded, "f32", VECTOR)

    def own_place(self, number: int) -> Integer:
        """Where nothing comes, of a chunk of this block's."""
        own = self.out.mul(self.rank, self.tiles.chunk_bytes)
        return self.out.add(self.out.add(self.share, self._offset(number, 0)), own)

    def _offset(self, number: int, index: int) -> int:
        """The owner's chunks are `blocks` numbers apart."""
        return number // self.blocks * self.blocks * self.tiles.chunk_bytes + index * GROUP_BYTES


class OwnPlace(Staging):
    """Results of chunk `number` leave through its own place, each chunk at once: there are few."""

    number = 0

    def __init__(self, exchange: Exchange, stores: list[Store], place: Place):
        super().__init__(exchange.out, exchange.tiles, stores, FIRST_MAP, place, exchange.consumer)
        self.exchange, self.at_once = exchange, True

    def open(self) -> None:
        """The place is free: what is behind the ring's last stage is done."""

    def _place_of(self, store: Store) -> tuple[Integer, int]:
        return self.exchange.own_place(self.number), self._before(store)
