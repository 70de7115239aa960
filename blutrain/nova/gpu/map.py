"""map kernels: every result element from the operands' elements at one point.

A thread takes `items` strips of `width` elements along the lane dimension (the one along which most streams are
contiguous); neighbouring threads take neighbouring strips. All loads of a thread come before its first store, so that
they are in flight together. Where an operand or a result is contiguous along another dimension, map_tiled.py goes by
square tiles through shared memory instead. Gather kernels are map kernels with one value that is a row of a table.
"""

from __future__ import annotations

import math

from blutrain.nova.cpu.emit import Number, result_pointer
from blutrain.nova.cpu.emit_domain import Domain, build_domain
from blutrain.nova.cpu.emit_loops import unflatten
from blutrain.nova.cpu.emit_nest import Point
from blutrain.nova.emitter import Emitter
from blutrain.nova.gpu import map_tiled
from blutrain.nova.gpu.configure_common import operand_accesses, predicted_us, width_for
from blutrain.nova.gpu.emit import BLOCK, THREAD, SimtEvaluator, module_text, phase_text
from blutrain.nova.gpu.emit_region import check_region
from blutrain.nova.gpu.emit_strip import VECTOR_BYTES, Strip
from blutrain.nova.gpu.kernel import GpuKernel, GpuPhase
from blutrain.nova.kernel import ITEM_BYTES, Gather, Generic, Kernel, Operand, Unsupported, region_flops
from blutrain.nova.target_gpu import GpuFacts

BLOCK_THREADS = 256
BYTES_IN_FLIGHT = 32  # of loads that a thread should have under way, in addition to its neighbours'
LONG_REGION = 80  # operations an element: work enough for one strip to hide another thread's loads


def supports(kernel: Kernel) -> str | None:
    """None, or why this generator does not take the kernel."""
    try:
        checked_domain(kernel)
    except Unsupported as reason:
        return str(reason)
    return None


def configure(kernel: Kernel, facts: GpuFacts) -> dict[str, int | str]:
    """`form` plain: blocks of `block` threads, each with `items` strips of `width` elements; or tiled."""
    domain = checked_domain(kernel)
    if not domain.extents:
        return {"form": "plain", "block": 32, "items": 1, "width": 1}
    tiling = map_tiled.choose(domain)
    if tiling is not None:
        return {
            "form": "tiled",
            "block": min(map_tiled.BLOCK_THREADS, facts.max_threads_per_block),
            "side": tiling.side,
        }
    lane = choose_lane(domain)
    length = domain.extents[lane]
    width = width_for(domain, lane, _whole(domain, lane, length))
    streams = [a for a in operand_accesses(domain) if all(a.strides)]
    in_flight = sum(width * ITEM_BYTES[a.dtype] for a in streams) or VECTOR_BYTES
    ops = sum(region_flops(op.block_ops) for op in kernel.generics)
    items = 1 if ops > LONG_REGION else max(1, min(4, BYTES_IN_FLIGHT // in_flight))
    strips = max(1, domain.size // width)
    block = min(BLOCK_THREADS, facts.max_threads_per_block, max(32, math.ceil(strips / facts.sms / 32) * 32))
    while items > 1 and strips < facts.sms * block * items:
        items //= 2
    return {"form": "plain", "block": block, "items": items, "width": width}


def generate(kernel: Kernel, facts: GpuFacts, config: dict) -> GpuKernel:
    domain = checked_domain(kernel)
    if config["form"] == "tiled":
        return map_tiled.generate(kernel, domain, facts, config)
    out = Emitter()
    blocks = _MapBody(kernel, domain, out, config).emit()
    symbol = f"{kernel.symbol}_0"
    return GpuKernel(
        text=module_text([phase_text(kernel, symbol, out, config["block"])]),
        target=facts.arch,
        phases=(GpuPhase(symbol, (blocks, 1, 1), config["block"]),),
        workspace_bytes=0,
        bytes=kernel.bytes,
        flops=kernel.flops,
        predicted_us=predicted_us(kernel, facts),
        schedule=f"map, {config['width']} elements x {config['items']} a thread, {blocks} blocks of {config['block']}",
    )


def checked_domain(kernel: Kernel) -> Domain:
    domain = build_domain(kernel)
    everything = frozenset(range(len(domain.extents)))
    for placed in domain.ops:
        op = placed.op
        if isinstance(op, Generic):
            if placed.reduced:
                raise Unsupported("a reduction in a map kernel")
            check_region(op.block)
        elif not isinstance(op, Gather) or not isinstance(op.table, Operand) or not isinstance(op.ids, Operand):
            raise Unsupported("an op that is neither element-wise nor a gather from an operand")
        elif op.table_type.shape[0] == 0 and domain.size:
            raise Unsupported("a gather from an empty table")
    for store in domain.stores:
        if store.dims != everything:
            raise Unsupported("results over different loops")
    return domain


def choose_lane(domain: Domain) -> int:
    """The dimension along which most streams are contiguous, stores counted twice; the last of equals."""

    def score(d: int) -> tuple[bool, int, int]:
        contiguous = 2 * sum(s.access.strides[d] == 1 for s in domain.stores)
        contiguous += sum(a.strides[d] == 1 for a in operand_accesses(domain))
        contiguous += 2 * sum(isinstance(p.op, Gather) and p.dims[-1] == d for p in domain.ops)
        return (domain.extents[d] > 1, contiguous, d)

    return max(range(len(domain.extents)), key=score)


def _whole(domain: Domain, lane: int, length: int) -> int:
    """What the width has to divide: the lane dimension, unless it is the only one (its rest is done singly)."""
    return 8 if len(domain.extents) == 1 and length >= 8 else length


class _MapBody:
    def __init__(self, kernel: Kernel, domain: Domain, out: Emitter, config: dict):
        self.kernel, self.domain, self.out, self.config = kernel, domain, out, config
        self.evaluator = SimtEvaluator(kernel, domain, out)
        self.ints = self.evaluator.integers
        self.top = Point({}, 0)

    def emit(self) -> int:
        """Write the body; returns the number of blocks."""
        if not self.domain.extents:
            one = lambda: self._strips([Strip.one(self.evaluator, self.top)])
            self.out.when(self.ints.equal(THREAD, 0), one)
            return 1
        if not self.domain.size:
            return 0
        self.lane = choose_lane(self.domain)
        self.outer = [d for d in range(len(self.domain.extents)) if d != self.lane]
        width, block, items = (self.config[name] for name in ("width", "block", "items"))
        length, rows = self.domain.extents[self.lane], math.prod(self.domain.extents[d] for d in self.outer)
        self.per_row, rest = length // width, length % width
        total = rows * self.per_row
        blocks = max(1, math.ceil(total / (block * items)))
        first = self.ints.add(self.ints.mul(BLOCK, block * items), THREAD)
        places = [self.ints.add(first, i * block) for i in range(items)]
        if total == blocks * block * items and not rest:
            self._whole_items(places)
        else:
            self._bounded_items(places, total, rest)
        return blocks

    def _bounded_items(self, places: list[Number], total: int, rest: int) -> None:
        """The blocks in front have every item; the last one asks for each, and takes what no strip covers."""
        last = self.ints.less(places[-1], total)
        self.out.when(last, lambda: self._whole_items(places))
        if len(places) > 1:
            is_last = self.out.value(f"arith.xori {last}, {self.out.constant('true', 'i1')} : i1")
            self.out.when(is_last, lambda: self._single_items(places, total))
        if rest:
            start = self.domain.extents[self.lane] - rest
            mine = self.ints.both(self.ints.equal(BLOCK, 0), self.ints.less(THREAD, rest))

            def single() -> None:
                row = Point(dict.fromkeys(self.outer, 0), self.out.innermost, self.top)
                self._strips([Strip.along(self.evaluator, row, self.lane, self.ints.add(THREAD, start), 1)])

            assert mine is not None
            self.out.when(mine, single)

    def _single_items(self, places: list[Number], total: int) -> None:
        for place in places[:-1]:
            self.out.when(self.ints.less(place, total), lambda place=place: self._whole_items([place]))

    def _whole_items(self, places: list[Number]) -> None:
        self._strips([self._strip(place) for place in places])

    def _strip(self, place: Number) -> Strip:
        """Strip number `place` of the nest."""
        row, column = self.ints.div(place, self.per_row), self.ints.rem(place, self.per_row)
        if len(self.domain.extents) == 1:
            row, column = 0, place
        indices = unflatten(self.ints, self.domain.extents, self.outer, row)
        width = self.config["width"]
        outer = Point(indices, self.out.innermost, self.top)
        return Strip.along(self.evaluator, outer, self.lane, self.ints.mul(column, width), width)

    def _strips(self, strips: list[Strip]) -> None:
        """All loads, then all values, then all stores: a result may share an operand's memory."""
        for strip in strips:
            for placed in self.domain.ops:
                if isinstance(placed.op, Gather):
                    self.evaluator.source(strip.gathered(placed), None, strip.points[0])
            for access in operand_accesses(self.domain):
                for point in strip.points:
                    self.evaluator.read(access, point)
        write_all(self.kernel, self.evaluator, strips, self.domain.stores)


def write_all(kernel: Kernel, evaluator: SimtEvaluator, strips: list[Strip], stores) -> None:
    """Every value of every strip, then every store."""
    values = [
        [[evaluator.source(store.source, store.access, p) for p in strip.points] for store in stores]
        for strip in strips
    ]
    for strip, of_strip in zip(strips, values, strict=True):
        for store, of_store in zip(stores, of_strip, strict=True):
            strip.store(of_store, store.access, result_pointer(kernel, store.result))
