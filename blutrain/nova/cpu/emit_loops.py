"""Loops of a generated kernel: over strips of lanes, over rows, and the share of a task in both."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from blutrain.nova.cpu.configure_common import round_up
from blutrain.nova.cpu.emit import TASK, Integers, Number
from blutrain.nova.cpu.emit_nest import Point
from blutrain.nova.emitter import Emitter, lane_type

Carried = Sequence[tuple[str, str, str]]  # (initial value, neutral value, type)


def strip_loop(
    out: Emitter,
    lower: Number,
    upper: Number,
    length: int,
    lanes: int,
    unroll: int,
    body: Callable[[list[Number], int, str | None, list[str]], list[str]],
    carried: Carried = (),
    merge: Callable[[list[str], list[str]], list[str]] | None = None,
) -> list[str]:
    """Loop over [lower, upper) by vectors of `lanes`, `unroll` at a time, then singly, then masked.

    `length` is upper - lower, or congruent to it modulo lanes * unroll where the bounds are names. `body(starts, lanes,
    mask, accumulators)` handles one vector at each of `starts` and returns the accumulators, one set per start;
    `merge(a, b)` joins two sets. `carried` is one set of (initial value, neutral value, type): the first vector goes on
    from the initial values, the others start neutral.
    """
    ints = Integers(out)
    is_static = isinstance(lower, int) and isinstance(upper, int)
    step = lanes * unroll
    count = len(carried)
    accumulators = [initial for initial, _, _ in carried]
    types = [type_ for _, _, type_ in carried]
    position: Number = lower

    def run(starts: list[Number], mask: str | None, values: list[str]) -> list[str]:
        return body(starts, lanes, mask, values)

    whole = length // step if is_static else 1
    if whole:
        last = ints.add(lower, ints.mul(ints.div(ints.sub(upper, lower), step), step))

        def unrolled(index: str, values: list[str]) -> list[str]:
            return run([ints.add(index, u * lanes) for u in range(unroll)], None, values)

        wide = [(i, t) for i, _, t in carried] + [(n, t) for _, n, t in carried] * (unroll - 1)
        results = out.loop(ints.name(lower), ints.name(last), ints.name(step), unrolled, wide)
        sets = [results[u * count : (u + 1) * count] for u in range(unroll)]
        while carried and len(sets) > 1:
            assert merge is not None
            pairs = [merge(a, b) for a, b in zip(sets[::2], sets[1::2], strict=False)]
            sets = pairs + ([sets[-1]] if len(sets) % 2 else [])
        accumulators = sets[0] if carried else []
        position = last
    rest = length % step // lanes
    if rest:
        last = ints.add(position, ints.mul(ints.div(ints.sub(upper, position), lanes), lanes))
        accumulators = out.loop(
            ints.name(position),
            ints.name(last),
            ints.name(lanes),
            lambda index, values: run([index], None, values),
            list(zip(accumulators, types, strict=True)),
        )
        position = last
    if length % lanes:
        left = out.value(f"arith.index_cast {ints.name(ints.sub(upper, position))} : i64 to index")
        mask = out.value(f"vector.create_mask {left} : {lane_type('i1', lanes)}")
        accumulators = run([position], mask, accumulators)
    return accumulators


@dataclass(frozen=True)
class Tiles:
    """A nest cut into tasks: ranges of rows (the flattened `outer_dims`), or chunks of a row."""

    extents: tuple[int, ...]
    outer_dims: tuple[int, ...]
    lane_dim: int | None  # None: a row is one piece of work whatever it holds
    rows_per_task: int
    chunk: int  # columns of a task; 0: all of them
    tasks: int

    @property
    def rows(self) -> int:
        return math.prod(self.extents[d] for d in self.outer_dims)

    @property
    def columns(self) -> int:
        return 1 if self.lane_dim is None else self.extents[self.lane_dim]


def cut_tiles(
    extents: tuple[int, ...], lane_dim: int | None, outer_dims: Sequence[int], tasks: int, step: int = 1
) -> Tiles:
    """About `tasks` tasks; chunks of a row are multiples of `step` columns."""
    rows = math.prod(extents[d] for d in outer_dims)
    length = 1 if lane_dim is None else extents[lane_dim]
    if tasks == 1 or rows >= 2 * tasks or length <= step:
        per_task = max(1, math.ceil(rows / tasks))
        return Tiles(extents, tuple(outer_dims), lane_dim, per_task, 0, max(1, math.ceil(rows / per_task)))
    chunk = round_up(math.ceil(length / math.ceil(tasks / max(rows, 1))), step)
    return Tiles(extents, tuple(outer_dims), lane_dim, 1, chunk, max(1, rows * math.ceil(length / chunk)))


def unflatten(ints: Integers, extents: tuple[int, ...], dims: Sequence[int], flat: Number) -> dict[int, Number]:
    """Indices of `dims` from their flat row-major number."""
    indices: dict[int, Number] = {}
    for d in reversed(dims):
        is_first = d == dims[0]
        indices[d] = flat if is_first else ints.rem(flat, extents[d])
        flat = flat if is_first else ints.div(flat, extents[d])
    return indices


Row = Callable[[Point, Number, Number, list[str]], list[str]]  # row point, lower and upper column, accumulators


def for_each_row(
    out: Emitter, tiles: Tiles, top: Point, body: Row, carried: Sequence[tuple[str, str]] = ()
) -> list[str]:
    """Run `body` for every row (or chunk of one) of the running task; returns the carried values."""
    ints = Integers(out)
    length, rows = tiles.columns, tiles.rows
    initial = [value for value, _ in carried]
    if tiles.chunk:
        chunks = math.ceil(length / tiles.chunk)
        lower = ints.mul(ints.rem(TASK, chunks), tiles.chunk)
        upper = ints.minimum(ints.add(lower, tiles.chunk), length)
        row = Point(unflatten(ints, tiles.extents, tiles.outer_dims, ints.div(TASK, chunks)), 0, top)
        return body(row, lower, upper, initial) if rows else initial
    if rows <= 1:
        return body(Point(dict.fromkeys(tiles.outer_dims, 0), 0, top), 0, length, initial) if rows else initial
    first: Number = ints.mul(TASK, tiles.rows_per_task) if tiles.tasks > 1 else 0
    last = ints.minimum(ints.add(first, tiles.rows_per_task), rows)

    def run(index: str, values: list[str]) -> list[str]:
        indices = unflatten(ints, tiles.extents, tiles.outer_dims, index)
        return body(Point(indices, out.innermost, top), 0, length, values)

    return out.loop(ints.name(first), ints.name(last), ints.name(1), run, carried)
