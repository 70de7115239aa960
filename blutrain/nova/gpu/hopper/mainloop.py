"""The persistent kernel: a producer warp fills the ring by TMA, consumer warpgroups multiply and run the epilogue."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol

from blutrain.nova.gpu.builder import Builder, Integer
from blutrain.nova.gpu.hopper import machine
from blutrain.nova.gpu.hopper.machine import Ring, Thread
from blutrain.nova.gpu.hopper.operands import copies, emit_copies
from blutrain.nova.gpu.hopper.place import Consumer, Place, locate, rank_of
from blutrain.nova.gpu.hopper.shape import CONSUMER_REGISTERS, PRODUCER_REGISTERS, WARPGROUP
from blutrain.nova.gpu.hopper.sums import sums_of
from blutrain.nova.gpu.hopper.tiles import Tiles

P_MAP, Q_MAP = "%map0", "%map1"

Epilogue = Callable[[list[str], Place, Consumer], None]


class Fetcher(Protocol):
    """Brings operands of the epilogue for one consumer."""

    def initialise(self) -> None: ...

    def fill(self, place: Place, slot: Integer, at: Sequence[str], /) -> Sequence[str]: ...


def _nothing(*_: object) -> None:
    """No prefetch, nothing to finish."""


def emit_main(
    out: Builder,
    tiles: Tiles,
    num_maps: int,
    epilogue: Epilogue,
    finish: Callable[[Consumer], None] = _nothing,
    prefetch: Callable[[Place, Consumer], None] = _nothing,
    fetcher: Callable[[Thread, Integer], Fetcher] | None = None,
    initialise: Callable[[Thread], None] = _nothing,
) -> None:
    """The body of the kernel, with `num_maps` tensor maps beside the factors'. `prefetch(place, consumer)` runs before a
    tile's product, `epilogue` gets its sums, `finish(consumer)` runs once at a consumer's end; `fetcher(thread,
    number of a consumer)` brings operands of the epilogue from a warp of its own; `initialise(thread)` is run by the
    thread that makes the barriers.
    """
    thread = Thread.read(out)
    ring = Ring(out, out.add(thread.shared, tiles.barrier_offset), tiles.schedule.stages)

    def start() -> None:
        ring.initialise(tiles.schedule.slots * (4 if tiles.in_registers else 1) * tiles.pair)
        if fetcher is not None:
            for number in range(tiles.schedule.consumers):
                fetcher(thread, number).initialise()
        initialise(thread)
        for i in range(2 + num_maps):
            out.line(f"nvvm.prefetch tensormap, %map{i} : !llvm.ptr")

    out.when(out.compare("eq", thread.index, 0), start)
    if tiles.pair == 2:
        machine.cluster_barrier(out)
    else:
        out.line("nvvm.barrier0")
    warpgroup = out.bits("shrui", thread.warp, 2)
    out.either(
        out.compare("eq", warpgroup, 0),
        lambda: _emit_producer(out, tiles, thread, ring, fetcher),
        lambda: _emit_consumer(out, tiles, thread, ring, warpgroup, epilogue, finish, prefetch),
    )
    if tiles.pair == 2:  # no block may end while the other one still writes to its shared memory
        machine.cluster_barrier(out)


def first_work(out: Builder, tiles: Tiles, thread: Thread) -> Integer:
    """The first tile (or pair) of a block. With split k, the blocks of a cluster share an output tile, each with its
    range of k.
    """
    if not tiles.clustered:
        return out.div(thread.block, tiles.pair)
    return out.add(out.mul(rank_of(out, tiles, thread), tiles.output_tiles), out.div(thread.block, tiles.cluster))


def _emit_producer(
    out: Builder, tiles: Tiles, thread: Thread, ring: Ring, fetcher: Callable[[Thread, Integer], Fetcher] | None
) -> None:
    out.line(f"nvvm.setmaxregister decrease {PRODUCER_REGISTERS[tiles.schedule.consumers]}")
    elected = out.value("nvvm.elect.sync -> i1")
    leads = out.both(out.compare("eq", thread.warp, 0), elected)
    p, q = copies(tiles, tiles.p_axis), copies(tiles, tiles.q_axis)
    rank = rank_of(out, tiles, thread)

    def tile(work: str, at: list[str]) -> Sequence[str]:
        place = locate(out, tiles, work, rank)
        first_k = out.mul(place.split, tiles.k_steps * tiles.k_tile)

        def step(number: str, at: list[str]) -> Sequence[str]:
            stage, parity = at
            ring.wait(ring.empty(stage), out.bits("xori", parity, 1))
            full = ring.full(stage)
            ring.expect(full, tiles.stage_bytes)
            k = out.add(first_k, out.mul(number, tiles.k_tile))
            for what, name, axis, offset, bytes_ in (
                (p, P_MAP, tiles.p_axis, 0, tiles.p_bytes),
                (q, Q_MAP, tiles.q_axis, tiles.q_offset, tiles.q_bytes),
            ):
                target = out.add(out.add(thread.shared, offset), out.mul(stage, bytes_))
                emit_copies(out, what, name, target, full, k, place.along(axis), place.digits, rank)
            return ring.next(stage, parity)

        return out.repeat(0, tiles.k_steps, 1, step, [(x, "i32") for x in at])

    def run() -> None:
        places = [(x, "i32") for x in ring.start()]
        out.repeat(first_work(out, tiles, thread), tiles.total_work, tiles.workers, tile, places)

    out.when(leads, run)
    if fetcher is not None:
        number = out.sub(thread.warp, 1)
        serves = out.both(out.compare("ult", number, tiles.schedule.consumers), elected)
        out.when(serves, lambda: _emit_fetches(out, tiles, thread, number, fetcher(thread, number)))
    if tiles.clustered:  # all threads of a cluster meet once, when its rings are empty
        machine.cluster_barrier(out, is_relaxed=True)


def _emit_fetches(out: Builder, tiles: Tiles, thread: Thread, number: Integer, fetcher: Fetcher) -> None:
    """What consumer `number` will read for its tiles."""
    rank = rank_of(out, tiles, thread)
    slot = 0 if tiles.schedule.pingpong else number

    def tile(work: str, at: list[str]) -> Sequence[str]:
        return fetcher.fill(locate(out, tiles, work, rank), slot, at)

    first, step = consumer_work(out, tiles, thread, number)
    out.repeat(first, tiles.total_work, step, tile, [(out.name(0), "i32")] * 2)


def consumer_work(out: Builder, tiles: Tiles, thread: Thread, number: Integer) -> tuple[Integer, int]:
    """The first tile (or pair) of consumer `number`, and the step to the next."""
    first, step = first_work(out, tiles, thread), tiles.workers
    if not tiles.schedule.pingpong:
        return first, step
    return out.add(first, out.mul(number, step)), 2 * step


def _emit_consumer(
    out: Builder,
    tiles: Tiles,
    thread: Thread,
    ring: Ring,
    warpgroup: str,
    epilogue: Epilogue,
    finish: Callable,
    prefetch: Callable,
) -> None:
    schedule = tiles.schedule
    out.line(f"nvvm.setmaxregister increase {CONSUMER_REGISTERS[schedule.consumers]}")
    number = out.sub(warpgroup, 1)
    lane_in_group = out.name(out.bits("andi", thread.index, WARPGROUP - 1))
    consumer = Consumer(thread, lane_in_group, number, 0 if schedule.pingpong else number)
    sums = sums_of(out, tiles, ring, consumer)
    stage, parity = ring.start()
    rank = rank_of(out, tiles, thread)
    first, step = consumer_work(out, tiles, thread, number)
    if schedule.pingpong:
        is_second = out.compare("eq", number, 1)
        out.when(is_second, lambda: machine.arrive_named_barrier(out, machine.ORDER_BARRIER, 2 * WARPGROUP))
        behind, its_parity = ring.advance(stage, parity, tiles.k_steps)
        stage, parity = out.select(is_second, behind, stage), out.select(is_second, its_parity, parity)

    def tile(work: str, at: list[str]) -> Sequence[str]:
        stage, parity, turn = at
        place = replace(locate(out, tiles, work, rank), turn=turn)
        prefetch(place, consumer)
        if schedule.pingpong:  # one consumer multiplies while the other runs its epilogue
            machine.named_barrier(out, out.add(number, machine.ORDER_BARRIER), 2 * WARPGROUP)
        stage, parity, last, running = sums.start(stage, parity)
        if schedule.pingpong:
            other = out.value(f"arith.subi {out.name(machine.ORDER_BARRIER + 1)}, {number} : i32")
            machine.arrive_named_barrier(out, other, 2 * WARPGROUP)
        finished = sums.wgmma.wait_all(out, running)
        sums.release(last)
        epilogue(finished, place, consumer)
        if schedule.pingpong:
            stage, parity = ring.advance(stage, parity, tiles.k_steps)
        return stage, parity, out.name(out.add(turn, 1))

    out.repeat(first, tiles.total_work, step, tile, [(x, "i32") for x in (stage, parity, out.name(0))])
    finish(consumer)
