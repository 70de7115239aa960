"""map kernels: every result element from the operands' elements at one point.

A thread takes `items` strips of `width` elements along the lane dimension (the one along which most streams are
contiguous); neighbouring threads take neighbouring strips. All loads of a thread come before its first store, so that
they are in flight together. Where an operand or a result is contiguous along another dimension, map_tiled.py goes by
square tiles through shared memory instead. Gather kernels are map kernels with one value that is a row of a table.
Parts that share nothing (map_group.py) have blocks of their own.
"""

from __future__ import annotations

import math
from typing import Any

from blutrain.nova.cpu.emit import Number, result_pointer
from blutrain.nova.cpu.emit_domain import Domain, build_domain
from blutrain.nova.cpu.emit_loops import unflatten
from blutrain.nova.cpu.emit_nest import Point
from blutrain.nova.emitter import Emitter
from blutrain.nova.gpu import map_tiled
from blutrain.nova.gpu.configure_common import operand_accesses, predicted_us, width_for
from blutrain.nova.gpu.emit import BLOCK, THREAD, SimtEvaluator, SimtIntegers, phase_text
from blutrain.nova.gpu.emit_region import check_regions
from blutrain.nova.gpu.emit_strip import VECTOR_BYTES, Strip
from blutrain.nova.gpu.function import module_text
from blutrain.nova.gpu.kernel import GpuKernel, GpuPhase
from blutrain.nova.gpu.map_group import parts_of
from blutrain.nova.kernel import ITEM_BYTES, Gather, Generic, Kernel, Operand, Unsupported, refusal, region_flops
from blutrain.nova.target_gpu import GpuFacts

BLOCK_THREADS = 256
BYTES_IN_FLIGHT = 32  # of loads that a thread should have under way, in addition to its neighbours'
LONG_REGION = 80  # operations an element: work enough for one strip to hide another thread's loads


def supports(kernel: Kernel) -> str | None:
    """None, or why this generator does not take the kernel."""
    return refusal(checked_parts, kernel)


def configure(kernel: Kernel, facts: GpuFacts) -> dict[str, Any]:
    """`form` plain: blocks of `block` threads, each with `items` strips of `width` elements; tiled; or parts: blocks of
    `block` threads, `items` and `widths` of each part.
    """
    parts = checked_parts(kernel)
    if len(parts) > 1:
        plain = [_plain(*part, facts) for part in parts]
        strips = sum(domain.size // config["width"] for (_, domain), config in zip(parts, plain, strict=True))
        return {
            "form": "parts",
            "block": _block(strips, facts),
            "items": tuple(config["items"] for config in plain),
            "widths": tuple(config["width"] for config in plain),
        }
    ((_, domain),) = parts
    tiling = map_tiled.choose(domain) if domain.extents else None
    if tiling is not None:
        return {
            "form": "tiled",
            "block": min(map_tiled.BLOCK_THREADS, facts.max_threads_per_block),
            "side": tiling.side,
        }
    return {"form": "plain", **_plain(kernel, domain, facts)}


def _plain(kernel: Kernel, domain: Domain, facts: GpuFacts) -> dict[str, int]:
    if not domain.extents:
        return {"block": 32, "items": 1, "width": 1}
    lane = choose_lane(domain)
    length = domain.extents[lane]
    width = width_for(domain, lane, _whole(domain, lane, length))
    streams = [a for a in operand_accesses(domain) if all(a.strides)]
    in_flight = sum(width * ITEM_BYTES[a.dtype] for a in streams) or VECTOR_BYTES
    ops = sum(region_flops(op.block_ops) for op in kernel.generics)
    items = 1 if ops > LONG_REGION else max(1, min(4, BYTES_IN_FLIGHT // in_flight))
    strips = max(1, domain.size // width)
    block = _block(strips, facts)
    while items > 1 and strips < facts.sms * block * items:
        items //= 2
    return {"block": block, "items": items, "width": width}


def _block(strips: int, facts: GpuFacts) -> int:
    """Threads of a block, fewer where that spreads the strips over more multiprocessors."""
    return min(BLOCK_THREADS, facts.max_threads_per_block, max(32, math.ceil(strips / facts.sms / 32) * 32))


def generate(kernel: Kernel, facts: GpuFacts, config: dict) -> GpuKernel:
    parts = checked_parts(kernel)
    if config["form"] == "tiled":
        ((_, domain),) = parts
        return map_tiled.generate(kernel, domain, facts, config)
    out = Emitter()
    if config["form"] == "plain":
        ((_, domain),) = parts
        blocks = _MapBody(kernel, domain, out, config, BLOCK).emit()
        form = f"{config['width']} elements x {config['items']} a thread"
    else:
        blocks = _emit_parts(parts, out, config)
        form = f"{len(parts)} parts side by side"
    symbol = f"{kernel.symbol}_0"
    return GpuKernel(
        text=module_text([phase_text(kernel, symbol, out, config["block"])]),
        target=facts.arch,
        phases=(GpuPhase(symbol, (blocks, 1, 1), config["block"]),),
        workspace_bytes=0,
        bytes=kernel.bytes,
        flops=kernel.flops,
        predicted_us=predicted_us(kernel, facts),
        schedule=f"map, {form}, {blocks} blocks of {config['block']}",
    )


def _emit_parts(parts: list[tuple[Kernel, Domain]], out: Emitter, config: dict) -> int:
    """The bodies of all parts; returns the number of blocks."""
    first = 0
    for part, items, width in zip(parts, config["items"], config["widths"], strict=True):
        first = _emit_part(*part, out, {"block": config["block"], "items": items, "width": width}, first)
    return first


def _emit_part(kernel: Kernel, domain: Domain, out: Emitter, config: dict, first: int) -> int:
    """A part whose blocks begin with number `first`; returns that of the next one's."""
    ints, end = SimtIntegers(out, is_small=False), first + num_blocks(domain, config)
    mine = ints.less(BLOCK, end)
    if first:
        not_before = out.value(f"arith.cmpi uge, {BLOCK}, {ints.name(first)} : i64")
        mine = out.value(f"arith.andi {not_before}, {mine} : i1")

    def body() -> None:
        _MapBody(kernel, domain, out, config, ints.add(BLOCK, -first)).emit()

    out.when(mine, body)
    return end


def num_blocks(domain: Domain, config: dict) -> int:
    """Blocks of a domain in the plain form."""
    if not domain.extents or not domain.size:
        return int(domain.size > 0)
    strips = domain.size // domain.extents[lane := choose_lane(domain)] * (domain.extents[lane] // config["width"])
    return max(1, math.ceil(strips / (config["block"] * config["items"])))


def checked_parts(kernel: Kernel) -> list[tuple[Kernel, Domain]]:
    """The parts of the kernel; itself where it has no parts, or one that goes by tiles. Found once: who asks for support
    asks for a schedule next.
    """
    held = vars(kernel)
    if "checked_parts" not in held:
        held["checked_parts"] = _checked_parts(kernel)
    return held["checked_parts"]


def _checked_parts(kernel: Kernel) -> list[tuple[Kernel, Domain]]:
    parts = parts_of(kernel)
    for part, domain in parts:
        _check(part, domain)
    if not parts or any(domain.extents and map_tiled.choose(domain) for _, domain in parts):
        domain = build_domain(kernel)
        _check(kernel, domain)
        return [(kernel, domain)]
    return parts


def _check(kernel: Kernel, domain: Domain) -> None:
    check_regions(kernel.ops)
    everything = frozenset(range(len(domain.extents)))
    for placed in domain.ops:
        op = placed.op
        if isinstance(op, Generic):
            if placed.reduced:
                raise Unsupported("a reduction in a map kernel")
        elif not isinstance(op, Gather) or not isinstance(op.table, Operand) or not isinstance(op.ids, Operand):
            raise Unsupported("an op that is neither element-wise nor a gather from an operand")
        elif op.table_type.shape[0] == 0 and domain.size:
            raise Unsupported("a gather from an empty table")
    for store in domain.stores:
        if store.dims != everything:
            raise Unsupported("results over different loops")


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
    """The blocks of a nest, this one number `block` of them."""

    def __init__(self, kernel: Kernel, domain: Domain, out: Emitter, config: dict, block: Number):
        self.kernel, self.domain, self.out, self.config, self.block = kernel, domain, out, config, block
        self.evaluator = SimtEvaluator(kernel, domain, out)
        self.ints = self.evaluator.integers
        self.top = Point({}, out.innermost)

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
        blocks = num_blocks(self.domain, self.config)
        first = self.ints.add(self.ints.mul(self.block, block * items), THREAD)
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
            mine = self.ints.both(self.ints.equal(self.block, 0), self.ints.less(THREAD, rest))

            def single() -> None:
                row = Point(dict.fromkeys(self.outer, 0), self.out.innermost, self.top)
                self._strips([Strip.along(self.evaluator, row, self.lane, self.ints.add(THREAD, start), 1)])

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
