"""The persistent kernel: a producer warp fills the ring by TMA, consumer warpgroups multiply and run the epilogue."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from blutrain.nova.gpu.hopper import machine
from blutrain.nova.gpu.hopper.builder import Builder, Integer
from blutrain.nova.gpu.hopper.machine import WGMMAS_PER_STEP, Ring, Thread, Wgmma
from blutrain.nova.gpu.hopper.operands import (
    Descriptor,
    Fragments,
    copies,
    descriptor,
    emit_copies,
)
from blutrain.nova.gpu.hopper.tiles import CONSUMER_REGISTERS, PRODUCER_REGISTERS, WARPGROUP, Tiles

P_MAP, Q_MAP = "%map0", "%map1"
SLOT_BYTES = 64 * 128  # 64 rows of the p tile


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


Epilogue = Callable[[list[str], Place, Consumer], None]


class Fetcher(Protocol):
    """Brings operands of the epilogue for one consumer."""

    def initialise(self) -> None: ...

    def fill(self, place: Place, slot: Integer, at: Sequence[str], /) -> Sequence[str]: ...


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
) -> None:
    """The body of the kernel, with `num_maps` tensor maps beside the factors'. `prefetch(place, consumer)` runs before a
    tile's product, `epilogue` gets its sums, `finish(consumer)` runs once at a consumer's end; `fetcher(thread,
    number of a consumer)` brings operands of the epilogue from a warp of its own.
    """
    thread = Thread.read(out)
    ring = Ring(out, out.add(thread.shared, tiles.barrier_offset), tiles.schedule.stages)

    def start() -> None:
        ring.initialise(tiles.schedule.slots * (4 if tiles.in_registers else 1) * tiles.pair)
        if fetcher is not None:
            for number in range(tiles.schedule.consumers):
                fetcher(thread, number).initialise()
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


def rank_of(out: Builder, tiles: Tiles, thread: Thread) -> Integer:
    """The block's number in its cluster."""
    return out.rem(thread.block, tiles.cluster)


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
    if tiles.clustered:  # the blocks of a cluster end together: they read each other's shared memory
        machine.cluster_barrier(out)
        machine.cluster_barrier(out)


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


@dataclass(frozen=True)
class _Fragments:
    """Before a step of the register form: its stage, the last stage, not yet released, and fragments (i32): those that
    running products read, those of the step's halves.
    """

    stage: str
    parity: str
    last: str
    behind: list[str]
    front: list[str]
    back: list[str]
    sums: list[str]

    def pack(self) -> list[str]:
        return [self.stage, self.parity, self.last, *self.behind, *self.front, *self.back, *self.sums]

    @classmethod
    def unpack(cls, values: list[str], count: int) -> _Fragments:
        stage, parity, last, *rest = values
        behind, front, back = (rest[i * count : (i + 1) * count] for i in range(3))
        return cls(stage, parity, last, behind, front, back, rest[3 * count :])


@dataclass(frozen=True, eq=False)
class _Sums:
    """The sum over k of one tile by one consumer. Methods return (stage, parity) behind the tile, the last stage (not
    yet released), and accumulators that `Wgmma.wait_all` has to turn into sums.
    """

    out: Builder
    tiles: Tiles
    ring: Ring
    wgmma: Wgmma
    p_base: Integer
    q_base: Integer
    descriptors: tuple[Descriptor, Descriptor]
    fragments: Fragments | None
    releases: str  # 1 in the threads of the warpgroup (register form: of each warp) that release a stage
    rank: str  # "", or the block of the pair that such a thread tells

    def start(self, stage: str, parity: str) -> tuple[str, str, str, list[str]]:
        undefined = [self.out.value("llvm.mlir.undef : f32")] * self.tiles.num_accumulators
        if self.fragments is not None:
            return self._from_registers(stage, parity, undefined)
        return self._from_shared(stage, parity, undefined)

    def _from_shared(self, stage: str, parity: str, sums: list[str]) -> tuple[str, str, str, list[str]]:
        """The first step starts from zero; each later one releases the stage of the one before."""
        out, ring = self.out, self.ring
        sums = self._multiply(stage, parity, sums, first=True)
        last = stage
        stage, parity = ring.next(stage, parity)

        def step(_: str, carried: list[str]) -> Sequence[str]:
            stage, parity, last, *sums = carried
            sums = self._multiply(stage, parity, sums, first=False)
            machine.wait_all_but_one(out)
            self.release(last)
            return [*ring.next(stage, parity), stage, *sums]

        if self.tiles.k_steps > 1:
            carried = [*((x, "i32") for x in (stage, parity, last)), *((s, "f32") for s in sums)]
            stage, parity, last, *sums = out.repeat(1, self.tiles.k_steps, 1, step, carried)
        return stage, parity, last, sums

    def _multiply(self, stage: str, parity: str, sums: list[str], first: bool) -> list[str]:
        self.ring.wait(self.ring.full(stage), parity)
        p = self.descriptors[0].emit(self.out, self._p(stage))
        q = self.descriptors[1].emit(self.out, self._q(stage))
        return self.wgmma.from_shared(self.out, sums, p, q, first)

    def _from_registers(self, stage: str, parity: str, sums: list[str]) -> tuple[str, str, str, list[str]]:
        """Fragments are loaded a half step ahead of the products that need them, two steps in a round of the loop: no
        load overwrites registers that a running wgmma reads.
        """
        out, rounds = self.out, self.tiles.k_steps // 2 - 1
        front, back = self._fragments(stage, parity, 0), self._fragments(stage, None, 1)
        state = _Fragments(stage, parity, stage, [out.name(0)] * len(back), front, back, sums)

        def two(number: str, carried: list[str]) -> Sequence[str]:
            state = _Fragments.unpack(carried, len(front))
            goes_on = out.as_integer(out.compare("ne", number, 0))
            return self._step(self._step(state, goes_on), None).pack()

        if rounds:
            types = ["i32"] * (3 + 3 * len(front)) + ["f32"] * len(sums)
            carried = list(zip(state.pack(), types, strict=True))
            state = _Fragments.unpack(out.repeat(0, rounds, 1, two, carried), len(front))
        state = self._step(self._step(state, None if rounds else out.name(0)), None, is_last=True)
        return state.stage, state.parity, state.last, state.sums

    def _step(self, state: _Fragments, goes_on: str | None, is_last: bool = False) -> _Fragments:
        """The products of one step, and the loads for the next. `goes_on` (an i32): not 0 behind the first step; None:
        known to be so.
        """
        out, wgmma, half = self.out, self.wgmma, WGMMAS_PER_STEP // 2
        q = self.descriptors[1].emit(out, self._q(state.stage))
        stage, parity = self.ring.next(state.stage, state.parity)
        sums = wgmma.from_registers(out, state.sums, state.front, q, 0, goes_on)
        machine.wait_all_but_one(out, state.behind)
        self.release(state.last, goes_on)
        front = state.front if is_last else self._fragments(stage, parity, 0)
        sums = wgmma.from_registers(out, sums, state.back, q, half, None)
        machine.wait_all_but_one(out, state.front)
        back = state.back if is_last else self._fragments(stage, None, 1)
        return _Fragments(stage, parity, state.stage, state.back, front, back, sums)

    def _fragments(self, stage: str, parity: str | None, half: int) -> list[str]:
        """Of the first or second half of a step; waits for its stage where `parity` is given."""
        assert self.fragments is not None
        if parity is not None:
            self.ring.wait(self.ring.full(stage), parity)
        steps = WGMMAS_PER_STEP // 2
        return self.fragments.load(self._p(stage), range(half * steps, (half + 1) * steps))

    def release(self, stage: str, condition: str | None = None) -> None:
        """Give a stage back to the producers that fill it; only where `condition` (an i32) is not 0."""
        releases = (
            self.releases if condition is None else self.out.name(self.out.bits("andi", self.releases, condition))
        )
        self.ring.release(stage, releases, self.rank)

    def _p(self, stage: str) -> Integer:
        return self.out.add(self.p_base, self.out.mul(stage, self.tiles.p_bytes))

    def _q(self, stage: str) -> Integer:
        return self.out.add(self.q_base, self.out.mul(stage, self.tiles.q_bytes))


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
    sums = _sums(out, tiles, ring, consumer)
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


def _sums(out: Builder, tiles: Tiles, ring: Ring, consumer: Consumer) -> _Sums:
    thread, in_registers = consumer.thread, tiles.in_registers
    q = descriptor(tiles, tiles.q_axis)
    p = q if in_registers else descriptor(tiles, tiles.p_axis)
    wgmma = Wgmma(
        tiles.problem.dtype,
        tiles.blocks_p,
        tiles.q_tile,
        p.k_step,
        q.k_step,
        p.transposed,
        q.transposed,
    )
    share = 0 if in_registers else out.mul(consumer.slot, tiles.blocks_p * SLOT_BYTES)
    lane = thread.lane if in_registers else consumer.lane_in_group
    leads = out.compare("ult", lane, tiles.pair)
    return _Sums(
        out=out,
        tiles=tiles,
        ring=ring,
        wgmma=wgmma,
        p_base=out.add(thread.shared, share),
        q_base=out.add(thread.shared, tiles.q_offset),
        descriptors=(p, q),
        fragments=Fragments(out, tiles, thread, consumer.slot) if in_registers else None,
        releases=out.as_integer(leads),
        rank=lane if tiles.pair == 2 else "",
    )
