"""The sum over k of a tile, by one consumer warpgroup: wgmma over the stages of the ring."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from blutrain.nova.gpu.builder import Builder, Integer
from blutrain.nova.gpu.hopper import machine
from blutrain.nova.gpu.hopper.machine import WGMMAS_PER_STEP, Ring, Wgmma
from blutrain.nova.gpu.hopper.operands import Descriptor, Fragments, descriptor
from blutrain.nova.gpu.hopper.place import Consumer
from blutrain.nova.gpu.hopper.tiles import Tiles

SLOT_BYTES = 64 * 128  # 64 rows of the p tile


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
class Sums:
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


def sums_of(out: Builder, tiles: Tiles, ring: Ring, consumer: Consumer) -> Sums:
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
    return Sums(
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
