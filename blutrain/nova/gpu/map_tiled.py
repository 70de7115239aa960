"""map kernels with a transposed stream: square tiles that cross shared memory.

A stream is turned where it is contiguous along another dimension (`inner`) than the lanes. A block takes a tile of
`side` x `side` elements: turned operands are read along `inner` into shared memory, one padded row for each lane
index; then every element is computed along the lanes, with turned operands read from shared memory; results that are
turned go through shared memory once more. So every access to memory is contiguous over a warp, and at most two lanes of
a warp meet in a bank (two elements of 4 bytes a lane, in large tiles).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from blutrain.nova.cpu.emit import Number, operand_pointer, result_pointer
from blutrain.nova.cpu.emit_domain import Domain, Store
from blutrain.nova.cpu.emit_loops import unflatten
from blutrain.nova.cpu.emit_nest import Point
from blutrain.nova.emitter import Emitter
from blutrain.nova.gpu.configure_common import operand_accesses, predicted_us
from blutrain.nova.gpu.emit import (
    BLOCK,
    MAX_STATIC_SHARED,
    THREAD,
    Shared,
    SimtEvaluator,
    barrier,
    phase_text,
)
from blutrain.nova.gpu.emit_strip import Strip, load_vector, store_vector
from blutrain.nova.gpu.function import module_text
from blutrain.nova.gpu.kernel import GpuKernel, GpuPhase
from blutrain.nova.kernel import ITEM_BYTES, Access, Kernel
from blutrain.nova.target_gpu import GpuFacts

BLOCK_THREADS = 256
LARGE = 1 << 20  # elements from which on it is the bytes under way that count, not the number of blocks
MIN_EXTENT = 8  # of both sides of the tile; below, a warp's elements share few cache lines whatever one does


@dataclass(frozen=True)
class Tiling:
    """Which dimensions a tile spans, and the streams that are turned."""

    lane: int
    inner: int
    loads: tuple[Access, ...]
    stores: tuple[Store, ...]
    side: int


def choose(domain: Domain) -> Tiling | None:
    """The tiling of a nest with a turned stream, None for one without."""
    from blutrain.nova.gpu.map import choose_lane

    lane = choose_lane(domain)
    streams = [*operand_accesses(domain), *(s.access for s in domain.stores)]
    turned = [(a, d) for a in streams for d in _unit_dims(a, domain, lane)]
    if not turned:
        return None
    inner = max({d for _, d in turned}, key=lambda d: (sum(ITEM_BYTES[a.dtype] for a, e in turned if e == d), d))
    if min(domain.extents[lane], domain.extents[inner]) < MIN_EXTENT:
        return None
    is_turned = lambda a: inner in _unit_dims(a, domain, lane)
    loads = tuple(a for a in operand_accesses(domain) if is_turned(a))
    stores = tuple(s for s in domain.stores if is_turned(s.access))
    items = [ITEM_BYTES[a.dtype] for a in (*loads, *(s.access for s in stores))]
    straight = [ITEM_BYTES[a.dtype] for a in streams if a.strides[lane] == 1]
    side = 64 if min(items + straight) <= 2 or domain.size >= LARGE else 32
    if sum(items) * side * (side + 1) > MAX_STATIC_SHARED:
        side = 32
    return Tiling(lane, inner, loads, stores, side) if sum(items) * side * (side + 1) <= MAX_STATIC_SHARED else None


def _unit_dims(access: Access, domain: Domain, lane: int) -> list[int]:
    """Dimensions along which the access is contiguous, if the lanes are far apart."""
    if access.strides[lane] in (0, 1):
        return []
    return [d for d, s in enumerate(access.strides) if s == 1 and domain.extents[d] > 1]


def generate(kernel: Kernel, domain: Domain, facts: GpuFacts, config: dict) -> GpuKernel:
    tiling = choose(domain)
    assert tiling is not None
    body = _TiledBody(kernel, domain, tiling, config["block"])
    blocks = body.emit()
    return GpuKernel(
        text=module_text([phase_text(kernel, body.symbol, body.out, config["block"], body.shared)]),
        target=facts.arch,
        phases=(GpuPhase(body.symbol, (blocks, 1, 1), config["block"]),),
        workspace_bytes=0,
        bytes=kernel.bytes,
        flops=kernel.flops,
        predicted_us=predicted_us(kernel, facts),
        schedule=f"map, tiles of {tiling.side} x {tiling.side} through shared memory, {blocks} blocks of {config['block']}",
    )


class _TiledBody:
    def __init__(self, kernel: Kernel, domain: Domain, tiling: Tiling, block: int):
        self.kernel, self.domain, self.tiling = kernel, domain, tiling
        self.out, self.symbol = Emitter(), f"{kernel.symbol}_0"
        self.evaluator = SimtEvaluator(kernel, domain, self.out)
        self.ints = self.evaluator.integers
        self.shared = Shared(self.symbol, self.out)
        self.top = Point({}, 0)
        side = tiling.side
        self.pitch, self.width = side + 1, side // 32
        self.rows = range(0, side, block // 32)  # a warp's rows of the tile

    def emit(self) -> int:
        """Write the body; returns the number of blocks."""
        if not self.domain.size:
            return 0
        ints, extents, tiling = self.ints, self.domain.extents, self.tiling
        tiles = [math.ceil(extents[d] / tiling.side) for d in (tiling.inner, tiling.lane)]
        self.outer = [d for d in range(len(extents)) if d not in (tiling.inner, tiling.lane)]
        lane_tile, rest = ints.rem(BLOCK, tiles[1]), ints.div(BLOCK, tiles[1])
        inner_tile, outer = ints.rem(rest, tiles[0]), ints.div(rest, tiles[0])
        self.at = Point(unflatten(ints, extents, self.outer, outer), 0, self.top)
        self.first = {tiling.lane: ints.mul(lane_tile, tiling.side), tiling.inner: ints.mul(inner_tile, tiling.side)}
        self.warp, self.lane_number = ints.div(THREAD, 32), ints.rem(THREAD, 32)
        self.loaded = {a: self.shared.allocate(self._tile_bytes(a)) for a in tiling.loads}
        self.made = {s.result: self.shared.allocate(self._tile_bytes(s.access)) for s in tiling.stores}
        self._fetch()
        self._compute()
        self._flush()
        return tiles[0] * tiles[1] * math.prod(extents[d] for d in self.outer)

    def _tile_bytes(self, access: Access) -> int:
        return self.tiling.side * self.pitch * ITEM_BYTES[access.dtype]

    def _is_whole(self, dim: int) -> bool:
        return self.domain.extents[dim] % self.tiling.side == 0

    def _clamped(self, dim: int, index: Number) -> Number:
        """An index past the end reads the last element again."""
        return index if self._is_whole(dim) else self.ints.minimum(index, self.domain.extents[dim] - 1)

    # --- turned operands into shared memory

    def _fetch(self) -> None:
        """A warp's rows are lane indices; its lanes lie along the inner dimension."""
        fetched = [(a, j, i, v) for a in self.tiling.loads for j in self.rows for i, v in self._read_along(a, j)]
        for access, j, place, value in fetched:
            row = self.ints.mul(self.ints.add(self.warp, j), self.pitch)
            self.shared.store(value, self.loaded[access], self.ints.name(self.ints.add(row, place)), access.dtype)
        if fetched:
            barrier(self.out)

    def _read_along(self, access: Access, j: int) -> list[tuple[Number, str]]:
        """(place in the tile's row, value) of this thread's elements in the row `j` plus its warp."""
        ints, tiling, width = self.ints, self.tiling, self.width
        row = self._clamped(tiling.lane, ints.add(ints.add(self.first[tiling.lane], self.warp), j))
        base = Point({tiling.lane: row}, 0, self.at)
        pointer = operand_pointer(access.source)
        if self._is_aligned(access):
            place = ints.mul(self.lane_number, width)
            index = ints.add(self.first[tiling.inner], place)
            offset = self.evaluator.offset(access.strides, access.offset, Point({tiling.inner: index}, 0, base))
            values = load_vector(self.evaluator, pointer, offset, access.dtype, width)
            return [(ints.add(place, e), value) for e, value in enumerate(values)]
        found = []
        for e in range(width):
            place = ints.add(self.lane_number, 32 * e)
            index = self._clamped(tiling.inner, ints.add(self.first[tiling.inner], place))
            offset = self.evaluator.offset(access.strides, access.offset, Point({tiling.inner: index}, 0, base))
            found.append((place, self.evaluator.memory.load(pointer, offset, access.dtype, 0)))
        return found

    def _is_aligned(self, access: Access) -> bool:
        rest = [s for d, s in enumerate(access.strides) if d != self.tiling.inner]
        aligned = all(s % self.width == 0 for s in (*rest, access.offset))
        return self.width > 1 and aligned and self._is_whole(self.tiling.inner)

    # --- the elements, lanes along the lane dimension

    def _compute(self) -> None:
        """A warp's rows are inner indices. Values past the end are computed and not stored."""
        strips = [found for i in self.rows for found in self._strips(i)]
        for strip, _, _ in strips:
            for access in operand_accesses(self.domain):
                for point in strip.points:
                    self.evaluator.read(access, point)
        values = [
            [[self.evaluator.source(s.source, s.access, p) for p in strip.points] for s in self.domain.stores]
            for strip, _, _ in strips
        ]
        for (strip, place, row), of_strip in zip(strips, values, strict=True):
            for store, of_store in zip(self.domain.stores, of_strip, strict=True):
                self._put(strip, place, row, store, of_store)

    def _strips(self, i: int) -> list[tuple[Strip, Number, Number]]:
        """This thread's elements in the row `i` plus its warp: one strip, or single elements 32 apart.

        With each its place in the tile: lane index, inner index.
        """
        ints, tiling = self.ints, self.tiling
        row = ints.add(self.warp, i)
        inner = self._clamped(tiling.inner, ints.add(self.first[tiling.inner], row))
        at = Point({tiling.inner: inner}, 0, self.at)
        strips = []
        is_one = self._is_whole(tiling.lane)
        for e in range(1 if is_one else self.width):
            place = ints.mul(self.lane_number, self.width) if is_one else ints.add(self.lane_number, 32 * e)
            start = self._clamped(tiling.lane, ints.add(self.first[tiling.lane], place))
            strip = Strip.along(self.evaluator, at, tiling.lane, start, self.width if is_one else 1)
            for k, point in enumerate(strip.points):
                for access in tiling.loads:
                    index = ints.add(ints.mul(ints.add(place, k), self.pitch), row)
                    point.memo["load", access] = self.shared.load(self.loaded[access], ints.name(index), access.dtype)
            strips.append((strip, place, row))
        return strips

    def _put(self, strip: Strip, place: Number, row: Number, store: Store, values: list[str]) -> None:
        ints = self.ints
        if store in self.tiling.stores:
            for k, value in enumerate(values):
                index = ints.name(ints.add(ints.mul(ints.add(place, k), self.pitch), row))
                self.shared.store(value, self.made[store.result], index, store.access.dtype)
            return
        inside = self._inside(place, row)
        write = lambda: strip.store(values, store.access, result_pointer(self.kernel, store.result))
        self.out.when(inside, write)

    def _inside(self, lane_place: Number, inner_place: Number) -> str | None:
        """Is an element of the tile one of the nest? None: always."""
        ints, conditions = self.ints, []
        for dim, place in ((self.tiling.lane, lane_place), (self.tiling.inner, inner_place)):
            if not self._is_whole(dim):
                conditions.append(ints.less(ints.add(self.first[dim], place), self.domain.extents[dim]))
        return ints.both(*conditions)

    # --- turned results out of shared memory

    def _flush(self) -> None:
        if not self.tiling.stores:
            return
        barrier(self.out)
        ints, tiling = self.ints, self.tiling
        for store in tiling.stores:
            for j in self.rows:
                row = ints.add(self.warp, j)
                self._flush_row(store, row)

    def _flush_row(self, store: Store, row: Number) -> None:
        """A warp's rows are lane indices again, its lanes along the inner dimension."""
        ints, tiling, width = self.ints, self.tiling, self.width
        access, pointer = store.access, result_pointer(self.kernel, store.result)
        is_one = self._is_aligned(access)
        for e in range(1 if is_one else width):
            place = ints.mul(self.lane_number, width) if is_one else ints.add(self.lane_number, 32 * e)
            base = Point({tiling.lane: ints.add(self.first[tiling.lane], row)}, 0, self.at)
            at = Point({tiling.inner: ints.add(self.first[tiling.inner], place)}, 0, base)
            offset = self.evaluator.offset(access.strides, access.offset, at)
            values = [
                self.shared.load(
                    self.made[store.result],
                    ints.name(ints.add(ints.mul(row, self.pitch), ints.add(place, k))),
                    access.dtype,
                )
                for k in range(width if is_one else 1)
            ]
            write = lambda v=values, o=offset: store_vector(self.evaluator, v, pointer, o, access.dtype)
            inside = self._inside(row, place)
            self.out.when(inside, write)
