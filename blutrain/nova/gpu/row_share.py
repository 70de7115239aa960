"""How the threads of a block share rows: which strips of which row are this thread's."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from blutrain.nova.cpu.emit import Number
from blutrain.nova.cpu.emit_loops import unflatten
from blutrain.nova.cpu.emit_nest import Point
from blutrain.nova.cpu.row_plan import RowPlan
from blutrain.nova.gpu.emit import THREAD, SimtEvaluator
from blutrain.nova.gpu.emit_strip import Strip


@dataclass(frozen=True)
class Chunk:
    """A strip of this thread in a row. `inside`: is it one (None: certainly); `place`: its first element in the row."""

    number: int
    strip: Strip
    inside: str | None
    place: Number


Body = Callable[[list[Chunk], list[str]], list[str]]  # chunks and carried values to new ones


class Share:
    """`threads` threads for a row, `block` in all; strip number `round * threads + member` of a row is this thread's."""

    def __init__(self, plan: RowPlan, evaluator: SimtEvaluator, config: dict):
        self.plan, self.evaluator, self.out, self.ints = plan, evaluator, evaluator.out, evaluator.integers
        self.width, self.threads, self.block = config["width"], config["threads"], config["block"]
        extents = plan.domain.extents
        self.rows = math.prod(extents[d] for d in plan.row_dims)
        self.columns = math.prod(extents[d] for d in plan.column_dims)
        self.strips = self.columns // self.width if plan.column_dims else 0
        self.per_block = self.block // self.threads
        self.groups = math.ceil(self.rows / self.per_block)
        self.chunks = math.ceil(self.strips / self.threads)  # of a thread in a row
        self.member = self.ints.rem(THREAD, self.threads) if self.per_block > 1 else THREAD
        self.group: Number = self.ints.div(THREAD, self.threads) if self.per_block > 1 else 0

    def chunk(self, at: Point, number: int, round_: Number, is_bounded: bool | None = None) -> Chunk:
        """This thread's strip of a round, under the row `at`; one past the end is the last strip again."""
        ints, extents, dims = self.ints, self.plan.domain.extents, self.plan.column_dims
        if is_bounded is None:
            is_bounded = (number + 1) * self.threads > self.strips
        number_in_row = ints.add(ints.mul(round_, self.threads), self.member)
        inside = ints.less(number_in_row, self.strips) if is_bounded else None
        index = ints.minimum(number_in_row, self.strips - 1) if is_bounded else number_in_row
        lane = dims[-1]
        counts = tuple(e // self.width if d == lane else e for d, e in enumerate(extents))
        places = unflatten(ints, counts, dims, index)
        start = ints.mul(places.pop(lane), self.width)
        outer = Point(places, self.out.innermost, at) if places else at
        own = ints.mul(number_in_row, self.width)  # no two threads have the same one, not even past the end
        strip = Strip.along(self.evaluator, outer, lane, start, self.width, own)
        return Chunk(number, strip, inside, ints.mul(index, self.width))

    def all_chunks(self, at: Point) -> list[Chunk]:
        return [self.chunk(at, k, k) for k in range(self.chunks)]

    def rounds(self, at: Point, body: Body, unroll: int, carried: Sequence[tuple[str, str]] = ()) -> list[str]:
        """`body` over all strips of a row: whole rounds in a loop, `unroll` at a time, the rest behind it."""
        ints, whole = self.ints, self.strips // self.threads // unroll * unroll
        names = [n for n, _ in carried]
        if whole:

            def several(index: str, values: list[str]) -> list[str]:
                return body([self.chunk(at, u, ints.add(index, u), False) for u in range(unroll)], values)

            names = self.out.loop(ints.name(0), ints.name(whole), ints.name(unroll), several, carried)
        for k in range(whole, self.chunks):
            names = body([self.chunk(at, k, k)], names)
        return names
