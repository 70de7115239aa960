"""map kernels: every result element from the operands' elements at one point, vectorised, in parallel chunks.

The lane dimension is the one along which most accesses are contiguous. The other dimensions are flattened into
rows; tasks are ranges of rows, or chunks of a row where rows are few. Where an operand is contiguous along
another dimension (a transpose) that dimension becomes the innermost loop, so that the cache lines of a gathered
strip are used up before they are left. Gather kernels are map kernels with one value that is a row of a table.
"""

from __future__ import annotations

from blutrain.nova.clone import check_block
from blutrain.nova.cpu.configure_common import lanes_of, num_tasks, predicted_us, unroll_of
from blutrain.nova.cpu.emit import Integers, Number, module_text, phase_text, result_pointer
from blutrain.nova.cpu.emit_domain import Domain, build_domain
from blutrain.nova.cpu.emit_loops import cut_tiles, for_each_row, strip_loop
from blutrain.nova.cpu.emit_nest import Evaluator, Point
from blutrain.nova.cpu.emit_transpose import is_transposed, load_transposed
from blutrain.nova.emitter import Emitter
from blutrain.nova.kernel import (
    Access,
    Gather,
    GeneratedKernel,
    Generic,
    Kernel,
    Operand,
    Phase,
    Unsupported,
    region_flops,
)
from blutrain.nova.target import CpuFacts

TILE_OPS = 24  # a region is copied once for every row of a tile; a longer one gathers instead


def supports(kernel: Kernel) -> str | None:
    """None, or why this generator does not take the kernel."""
    try:
        _checked_domain(kernel)
    except Unsupported as reason:
        return str(reason)
    return None


def configure(kernel: Kernel, facts: CpuFacts) -> dict[str, int]:
    """`tasks` pieces of `lanes`-wide vectors, `unroll` at a time."""
    ops = sum(region_flops(op.block_ops) for op in kernel.generics)
    return {"lanes": lanes_of(facts), "unroll": unroll_of(ops), "tasks": num_tasks(kernel, facts)}


def generate(kernel: Kernel, facts: CpuFacts, config: dict[str, int]) -> GeneratedKernel:
    domain = _checked_domain(kernel)
    out = Emitter()
    tasks = _MapBody(kernel, domain, out, config).emit()
    symbol = f"{kernel.symbol}_0"
    return GeneratedKernel(
        text=module_text([phase_text(kernel, symbol, out)], out.declarations),
        phases=(Phase(symbol, tasks),),
        workspace_bytes=0,
        bytes=kernel.bytes,
        flops=kernel.flops,
        predicted_us=predicted_us(kernel, facts, tasks),
    )


def _checked_domain(kernel: Kernel) -> Domain:
    domain = build_domain(kernel)
    everything = frozenset(range(len(domain.extents)))
    for placed in domain.ops:
        op = placed.op
        if isinstance(op, Generic):
            if placed.reduced:
                raise Unsupported("a reduction in a map kernel")
            check_block(op.block, has_extract=True)
        elif not isinstance(op, Gather) or not isinstance(op.table, Operand) or not isinstance(op.ids, Operand):
            raise Unsupported("an op that is neither element-wise nor a gather from an operand")
        elif op.table_type.shape[0] == 0 and domain.size:
            raise Unsupported("a gather from an empty table")
    for store in domain.stores:
        if store.dims != everything:
            raise Unsupported("results over different loops")
    return domain


class _MapBody:
    def __init__(self, kernel: Kernel, domain: Domain, out: Emitter, config: dict[str, int]):
        self.kernel, self.domain, self.out, self.config = kernel, domain, out, config
        self.ints, self.evaluator = Integers(out), Evaluator(kernel, domain, out)
        self.ops = sum(region_flops(op.block_ops) for op in kernel.generics)
        self.lane_dim, self.inner_dim = _choose_dims(domain, _accesses(domain), config["lanes"])
        self.outer_dims = [d for d in range(len(domain.extents)) if d not in (self.lane_dim, self.inner_dim)]

    def emit(self) -> int:
        """Write the body; returns the number of tasks."""
        top = Point({}, 0)
        if self.lane_dim is None:
            self._element([top])
            return 1
        step = self.config["lanes"] * self.config["unroll"]
        tiles = cut_tiles(self.domain.extents, self.lane_dim, self.outer_dims, self.config["tasks"], step)
        for_each_row(self.out, tiles, top, lambda row, lower, upper, _: self._strips(row, lower, upper))
        return tiles.tasks

    def _strips(self, row: Point, lower: Number, upper: Number) -> list[str]:
        lane_dim = self.lane_dim
        assert lane_dim is not None
        unroll = 1 if self.inner_dim is not None else self.config["unroll"]
        length = self.domain.extents[lane_dim]

        def strip(starts: list[Number], lanes: int, mask: str | None, _: list[str]) -> list[str]:
            depth = self.out.innermost
            points = [Point({lane_dim: s}, depth, row, lane_dim, lanes, mask) for s in starts]
            if self.inner_dim is None:
                self._element(points)
            else:
                self._inner_loop(row, starts[0], lanes, mask)
            return []

        return strip_loop(self.out, lower, upper, length, self.config["lanes"], unroll, strip)

    def _inner_loop(self, row: Point, start: Number, lanes: int, mask: str | None) -> None:
        """All indices of the inner dimension under one strip: by square tiles of transposed operands, then singly."""
        inner, lane_dim = self.inner_dim, self.lane_dim
        assert inner is not None and lane_dim is not None
        extent = self.domain.extents[inner]
        turned = [a for a in _accesses(self.domain) if is_transposed(a, lane_dim, inner)]
        tiles = extent // lanes * lanes if mask is None and turned and self.ops <= TILE_OPS else 0

        def point(index: Number) -> Point:
            at = Point({inner: index}, self.out.innermost, row)
            return Point({lane_dim: start}, self.out.innermost, at, lane_dim, lanes, mask)

        def tile(index: str, _: list[str]) -> list[str]:
            points = [point(self.ints.add(index, i)) for i in range(lanes)]
            for access in turned:
                load_transposed(self.evaluator, access, points)
            self._element(points)
            return []

        def single(index: str, _: list[str]) -> list[str]:
            self._element([point(index)])
            return []

        for lower, upper, step, body in ((0, tiles, lanes, tile), (tiles, extent, 1, single)):
            if lower < upper:
                self.out.loop(self.ints.name(lower), self.ints.name(upper), self.ints.name(step), body)

    def _element(self, points: list[Point]) -> None:
        """All results at each point: every value before any store, for a result may share an operand's memory."""
        for point in points:
            values = [self.evaluator.source(s.source, s.access, point) for s in self.domain.stores]
            for store, value in zip(self.domain.stores, values, strict=True):
                self.evaluator.store(value, store.access, result_pointer(self.kernel, store.result), point)


def _accesses(domain: Domain) -> list[Access]:
    found = [a for p in domain.ops for a in (*p.inputs, *p.outputs) if isinstance(a.source, Operand)]
    return list(dict.fromkeys(found))


def _choose_dims(domain: Domain, loads: list[Access], lanes: int) -> tuple[int | None, int | None]:
    """(lane dimension, innermost loop inside a strip or None)."""
    if not domain.extents:
        return None, None

    def score(d: int) -> tuple[bool, int, int]:
        contiguous = 2 * sum(s.access.strides[d] == 1 for s in domain.stores) + sum(a.strides[d] == 1 for a in loads)
        return (domain.extents[d] >= lanes, contiguous, d)

    lane = max(range(len(domain.extents)), key=score)
    for access in loads:
        if abs(access.strides[lane]) > 1:
            unit = [d for d, s in enumerate(access.strides) if s == 1 and d != lane and domain.extents[d] > 1]
            if unit:
                return lane, unit[0]
    return lane, None
