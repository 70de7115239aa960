"""full kernels: reductions of everything to one value (norms, means, flags), and results that use them.

Every level of reductions is a phase: blocks sweep the nest in strides of the grid and leave one partial value each;
blocks of the next phase begin by adding those up, each for itself. A last phase writes what depends on the last level.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from blutrain.nova.cpu.emit import Number, result_pointer
from blutrain.nova.cpu.emit_loops import unflatten
from blutrain.nova.cpu.emit_nest import Point
from blutrain.nova.cpu.full import _Plan
from blutrain.nova.emitter import Emitter
from blutrain.nova.gpu.configure_common import predicted_us, width_for
from blutrain.nova.gpu.emit import BLOCK, THREAD, Shared, SimtEvaluator, phase_text
from blutrain.nova.gpu.emit_block import BlockReducer, Fold
from blutrain.nova.gpu.emit_region import check_regions
from blutrain.nova.gpu.emit_strip import Strip
from blutrain.nova.gpu.function import module_text
from blutrain.nova.gpu.kernel import GpuKernel, GpuPhase
from blutrain.nova.gpu.map import choose_lane, write_all
from blutrain.nova.gpu.row_combine import Partials, provide_scalars
from blutrain.nova.kernel import Kernel, refusal
from blutrain.nova.target_gpu import GpuFacts

BLOCK_THREADS = 512
BLOCKS_PER_SM = 4
UNROLL = 4  # strips of a thread under way
ACCUMULATORS = 4


def supports(kernel: Kernel) -> str | None:
    """None, or why this generator does not take the kernel."""
    return refusal(_plan, kernel)


def _plan(kernel: Kernel) -> _Plan:
    plan = _Plan(kernel)
    check_regions(kernel.ops)
    for reduction in plan.all_reductions:
        Fold(reduction)
    return plan


def configure(kernel: Kernel, facts: GpuFacts) -> dict[str, int]:
    """`blocks` of `block` threads, strips of `width` elements."""
    plan = _plan(kernel)
    if not plan.domain.extents:
        return {"block": 32, "blocks": 1, "width": 1}
    lane = choose_lane(plan.domain)
    width = width_for(plan.domain, lane, plan.domain.extents[lane])
    strips = max(1, plan.domain.size // width)
    block = min(BLOCK_THREADS, facts.max_threads_per_block, max(32, math.ceil(strips / 32) * 32))
    blocks = min(BLOCKS_PER_SM * facts.sms, math.ceil(strips / (block * UNROLL)))
    return {"block": block, "blocks": max(1, blocks), "width": width}


def generate(kernel: Kernel, facts: GpuFacts, config: dict) -> GpuKernel:
    plan = _plan(kernel)
    folds = {r.index: Fold(r) for r in plan.all_reductions}
    partials = Partials(plan.domain, list(folds.values()), config["blocks"])
    phases, texts, depth = [], [], len(plan.reductions)
    for level in range(depth + 1):
        if level == depth and not plan.stores[level] and not plan.scalars and depth:
            break
        body = _Phase(kernel, plan, folds, partials, level, config)
        blocks = body.emit()
        texts.append(phase_text(kernel, body.symbol, body.out, config["block"], body.shared))
        phases.append(GpuPhase(body.symbol, (blocks, 1, 1), config["block"]))
    return GpuKernel(
        text=module_text(texts),
        target=facts.arch,
        phases=tuple(phases),
        workspace_bytes=partials.bytes,
        bytes=kernel.bytes,
        flops=kernel.flops,
        predicted_us=predicted_us(kernel, facts, len(phases)),
        schedule=f"full, {len(phases)} phases, {config['blocks']} blocks of {config['block']}, "
        f"{config['width']} elements at once",
    )


class _Phase:
    def __init__(self, kernel: Kernel, plan: _Plan, folds: dict[int, Fold], partials: Partials, level: int, config):
        self.kernel, self.plan, self.folds, self.partials, self.level = kernel, plan, folds, partials, level
        self.config, self.symbol, self.out = config, f"{kernel.symbol}_{level}", Emitter()
        self.shared = Shared(self.symbol, self.out)
        self.evaluator = SimtEvaluator(kernel, plan.domain, self.out)
        self.ints, self.top = self.evaluator.integers, Point({}, 0)

    def emit(self) -> int:
        """Write the phase; returns its number of blocks."""
        for reductions in self.plan.reductions[: self.level]:
            before = [self.folds[r.index] for r in reductions]
            provide_scalars(self.evaluator, self.shared, self.partials, before, self.config["block"], self.top)
        is_last = self.level == len(self.plan.reductions)
        folds = [] if is_last else [self.folds[r.index] for r in self.plan.reductions[self.level]]
        if is_last:
            self._write_scalars()
        if not (folds or self.plan.stores[self.level]):
            return 1
        totals = [f.merge_all(self.out, v) for f, v in zip(folds, self._sweep(folds), strict=True)]
        reducer = BlockReducer(self.out, self.ints, self.shared, self.config["block"], self.config["block"])
        done = reducer.reduce(folds, totals, is_last=True)

        def publish() -> None:
            for fold, values in zip(folds, done, strict=True):
                self.partials.store(self.evaluator, fold, values, 0)

        if folds:
            self.out.when(self.ints.equal(THREAD, 0), publish)
        return self.config["blocks"]

    def _write_scalars(self) -> None:
        stores = self.plan.scalars
        if not stores:
            return
        values = [self.evaluator.source(s.source, s.access, self.top) for s in stores]

        def write() -> None:
            for store, value in zip(stores, values, strict=True):
                self.evaluator.store(value, store.access, result_pointer(self.kernel, store.result), self.top)

        condition = self.ints.both(self.ints.equal(BLOCK, 0), self.ints.equal(THREAD, 0))
        self.out.when(condition, write)

    def _sweep(self, folds: list[Fold]) -> list[list[list[str]]]:
        """This thread's share: strips in steps of the grid, UNROLL at a time; accumulators in registers."""
        domain, width = self.plan.domain, self.config["width"]
        carried = [c for f in folds for _ in range(ACCUMULATORS) for c in f.carried(self.out)]
        if not domain.size:
            return self._unpack(folds, [n for n, _ in carried])
        threads = self.config["blocks"] * self.config["block"]
        total = domain.size // width
        first = self.ints.add(self.ints.mul(BLOCK, self.config["block"]), THREAD)
        rounds = math.ceil(total / threads)
        whole = total // threads // UNROLL * UNROLL
        place = lambda index: self.ints.add(first, self.ints.mul(index, threads))
        names = [n for n, _ in carried]
        if whole:
            several = lambda i, v: self._strips([(place(self.ints.add(i, u)), None) for u in range(UNROLL)], folds, v)
            bounds = [self.ints.name(n) for n in (0, whole, UNROLL)]
            names = self.out.loop(bounds[0], bounds[1], bounds[2], several, carried)
        for index in range(whole, rounds):
            here = place(index)
            inside = None if (index + 1) * threads <= total else self.ints.less(here, total)
            here = here if inside is None else self.ints.minimum(here, total - 1)
            names = self._strips([(here, inside)], folds, names)
        return self._unpack(folds, names)

    def _unpack(self, folds: list[Fold], names: Sequence[str]) -> list[list[list[str]]]:
        left = iter(names)
        return [[[next(left) for _ in f.dtypes] for _ in range(ACCUMULATORS)] for f in folds]

    def _strips(self, places: list[tuple[Number, str | None]], folds: list[Fold], names: Sequence[str]) -> list[str]:
        """The elements of some strips, and results over all loops at them."""
        strips = [self._strip(place) for place, _ in places]
        values = self._unpack(folds, names)
        for strip in strips:
            for fold in folds:
                for access in fold.reduction.placed.inputs:
                    self.evaluator.read(access, strip.points[0])
        for strip, (_, inside) in zip(strips, places, strict=True):
            for i, point in enumerate(strip.points):
                for fold, slots in zip(folds, values, strict=True):
                    slot = i % ACCUMULATORS
                    slots[slot] = fold.accumulate(self.evaluator, point, slots[slot], inside)
        for strip, (_, inside) in zip(strips, places, strict=True):
            stores = self.plan.stores[self.level]
            write = lambda strip=strip, stores=stores: write_all(self.kernel, self.evaluator, [strip], stores)
            if stores:
                self.out.when(inside, write)
        return [n for of_fold in values for slot in of_fold for n in slot]

    def _strip(self, place: Number) -> Strip:
        extents, width = self.plan.domain.extents, self.config["width"]
        if not extents:
            return Strip.one(self.evaluator, self.top)
        lane = choose_lane(self.plan.domain)
        outer = [d for d in range(len(extents)) if d != lane]
        per_row = extents[lane] // width
        row, column = (self.ints.div(place, per_row), self.ints.rem(place, per_row)) if outer else (0, place)
        at = Point(unflatten(self.ints, extents, outer, row), self.out.innermost, self.top)
        return Strip.along(self.evaluator, at, lane, self.ints.mul(column, width), width)
