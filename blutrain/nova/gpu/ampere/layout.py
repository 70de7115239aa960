"""The layout of accumulators: which warp, lane and register holds which element of a block's tile.

A layout is nested: the number of a register, a lane or a warp is read as digits, fastest first, and every digit moves
along m and n by a step of its own. Printed into the IR, for one warp of mma.m16n8k8 with two tiles along n:

    #nova.layout<register = [2:(0,1), 2:(8,0), 2:(0,8)], lane = [4:(0,2), 8:(1,0)], warp = []>

Subtiles need not lie one behind the other. With a run of R they interleave: element c of subtile q is at
R c + q mod R + 8 R (q div R), so that a lane's elements of R subtiles are neighbours. They then leave as one vector;
and 32-bit factors that are contiguous along m or n, which ldmatrix cannot transpose, are read as one.

Where that leaves results in bad pieces, lanes trade sums before the results are made: bits of the lane's number and of the
register's change places (`Layout.traded`, `finish.trade`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from blutrain.nova.gpu.ampere.instruction import LANES, Instruction
from blutrain.nova.gpu.builder import Builder, Integer


@dataclass(frozen=True)
class Digit:
    """A digit 0..extent-1; each unit moves by (m, n)."""

    extent: int
    m: int
    n: int


@dataclass(frozen=True)
class Layout:
    register: tuple[Digit, ...]
    lane: tuple[Digit, ...]
    warp: tuple[Digit, ...]

    def __str__(self) -> str:
        parts = ", ".join(
            f"{holder} = [{', '.join(f'{d.extent}:({d.m},{d.n})' for d in getattr(self, holder))}]"
            for holder in ("register", "lane", "warp")
        )
        return f"#nova.layout<{parts}>"

    @cached_property
    def offsets(self) -> tuple[tuple[int, int], ...]:
        """(m, n) of each register's element, from the thread's first."""
        result = [(0, 0)]
        for digit in self.register:
            result = [(m + i * digit.m, n + i * digit.n) for i in range(digit.extent) for m, n in result]
        return tuple(result)

    def traded(self, swaps: Sequence[tuple[int, int]]) -> Layout:
        """With bits (of the lane's number, of the register's) exchanged."""
        lane, register = _bits(self.lane), _bits(self.register)
        for i, j in swaps:
            lane[i], register[j] = register[j], lane[i]
        return Layout(tuple(register), tuple(lane), self.warp)

    def first(self, out: Builder, lane: Integer, warp: Integer) -> tuple[Integer, Integer]:
        """(m, n) of a thread's first element in the tile."""
        m: Integer = 0
        n: Integer = 0
        for number, digits in ((lane, self.lane), (warp, self.warp)):
            for position, digit in enumerate(digits):
                value = number if position == len(digits) - 1 else out.rem(number, digit.extent)
                number = out.div(number, digit.extent)
                m, n = out.add(m, out.mul(value, digit.m)), out.add(n, out.mul(value, digit.n))
        return m, n


def _bits(digits: Sequence[Digit]) -> list[Digit]:
    """Digits of two, for extents that are powers of two."""
    return [Digit(2, d.m << i, d.n << i) for d in digits for i in range(d.extent.bit_length() - 1)]


def interleaved(position: Integer, run: int, width: int, out: Builder | None = None) -> Integer:
    """Where element `position` of a factor's line of subtiles lies: of subtile q = position div width, as above."""
    if run == 1:
        return position
    if isinstance(position, int):
        q, c = divmod(position, width)
        return run * c + q % run + width * run * (q // run)
    assert out is not None
    q, c = out.div(position, width), out.rem(position, width)
    place = out.add(out.mul(c, run), out.rem(q, run))
    return out.add(place, out.mul(out.div(q, run), width * run))


def accumulator_layout(
    instruction: Instruction, warp_tile: tuple[int, int], warps: tuple[int, int], runs: dict[str, int]
) -> Layout:
    """Registers count the elements of an instruction's tile first, then tiles along n, then along m."""
    width = instruction.subtile
    q_m = _subtiles(warp_tile[0] // width["m"], runs["m"], width["m"])
    q_n = _subtiles(warp_tile[1] // width["n"], runs["n"], width["n"])
    along_m = [Digit(extent, step, 0) for extent, step in q_m]
    along_n = [Digit(extent, 0, step) for extent, step in q_n]
    if instruction.is_mma:
        pair, *along_m = _split_first(along_m)  # a tile's two row subtiles
        register = [Digit(2, 0, runs["n"]), pair, *along_n, *along_m]
        lane = [Digit(4, 0, 2 * runs["n"]), Digit(8, runs["m"], 0)]
    else:
        register = [*along_n, *along_m]
        lane = [Digit(LANES // width["m"], 0, runs["n"]), Digit(width["m"], runs["m"], 0)]
    warp = [Digit(warps[1], 0, warp_tile[1]), Digit(warps[0], warp_tile[0], 0)]
    return Layout(*(tuple(d for d in digits if d.extent > 1) for digits in (register, lane, warp)))


def _subtiles(count: int, run: int, width: int) -> list[tuple[int, int]]:
    """The number of a subtile as digits (extent, step)."""
    return [(run, 1), (count // run, width * run)] if run > 1 else [(count, width)]


def _split_first(digits: Sequence[Digit]) -> list[Digit]:
    """The first digit's lowest bit as a digit of its own."""
    first, *rest = digits
    return [Digit(2, first.m, first.n), Digit(first.extent // 2, 2 * first.m, 2 * first.n), *rest]
