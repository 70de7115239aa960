"""row kernels: layer norm, softmax, cross-entropy, forward and backward, and whatever else sweeps rows.

A row belongs to a group of threads: a part of a warp, a warp, several warps, or a block. In the form "resident" a
thread's elements stay in registers from the first sweep over the row to the last; in the form "staged" they stay in
shared memory; in the form "swept" every sweep reads them again, from the L2 as a rule. Reductions along the row meet by
shuffles, and between warps in shared memory. Sums over the rows (a norm's weight gradient) are kept by every thread for
its own columns over all rows of the block (row_sums.py), and row_combine.py adds up the blocks. A block's next row is
copied into shared memory meanwhile (row_ahead.py).
"""

from __future__ import annotations

import math

from blutrain.nova.cpu.row_plan import RowPlan, plan_rows
from blutrain.nova.emitter import Emitter
from blutrain.nova.gpu import full
from blutrain.nova.gpu.configure_common import power_of_two, predicted_us, width_for
from blutrain.nova.gpu.emit import Shared, phase_text
from blutrain.nova.gpu.emit_block import WARP, Fold
from blutrain.nova.gpu.emit_region import check_regions
from blutrain.nova.gpu.function import module_text
from blutrain.nova.gpu.kernel import GpuKernel, GpuPhase
from blutrain.nova.gpu.row_ahead import ahead_bytes, copied_operands
from blutrain.nova.gpu.row_body import RowBody
from blutrain.nova.gpu.row_combine import check_combined, combine_threads, emit_combine
from blutrain.nova.gpu.row_stage import loads_of, stage_bytes, stageable
from blutrain.nova.kernel import ITEM_BYTES, Kernel, Unsupported
from blutrain.nova.target_gpu import GpuFacts

RESIDENT = 32  # elements of a row that a thread keeps at most
RESIDENT_WITH_SUMS = 16  # the same where it also keeps their sums over the rows
THREADS_WITH_SUMS = 512  # of a multiprocessor: a hundred registers each
MAX_STAGED_THREADS = 1024  # of a multiprocessor, see _long_row
BLOCK_RESIDENT = 16  # aimed at where a block has a row for itself
WIDEST_RESIDENT_BLOCK = 512
LONG_ROW_THREADS = 512
LONG_ROW_UNROLL = 4  # strips under way in a row that is swept
STATIC_SHARED = 2048  # more than what a staged row's reductions need
LONE_ROW = 16384  # elements that one block reduces about as fast as two phases of many


def supports(kernel: Kernel) -> str | None:
    """None, or why this generator does not take the kernel."""
    try:
        plan = _plan(kernel)
    except Unsupported as reason:
        return str(reason)
    rows, columns = _sizes(plan)
    if rows == 1 and columns > LONE_ROW and full.supports(kernel) is None:
        return "one long row, which a single block would sweep: a full reduction"
    return None


def _plan(kernel: Kernel) -> RowPlan:
    plan = plan_rows(kernel)
    check_regions(kernel.ops)
    for reduction in (r for pass_ in plan.passes for r in pass_.reductions):
        Fold(reduction)
    check_combined([Fold(r) for r in plan.sums])
    return plan


def _sizes(plan: RowPlan) -> tuple[int, int]:
    """(rows, columns)."""
    extents = plan.domain.extents
    return math.prod(extents[d] for d in plan.row_dims), math.prod(extents[d] for d in plan.column_dims)


def configure(kernel: Kernel, facts: GpuFacts) -> dict[str, int | str]:
    """`threads` for a row, `block` threads in all, strips of `width` elements; `blocks`: 0, or as many share all rows."""
    plan = _plan(kernel)
    rows, columns = _sizes(plan)
    if not plan.column_dims or not columns:
        lone = {
            "form": "resident",
            "threads": 1,
            "block": min(128, facts.max_threads_per_block),
            "width": 1,
            "unroll": 1,
        }
        return _with_blocks(plan, facts, lone)
    width = width_for(plan.domain, plan.column_dims[-1], plan.domain.extents[plan.column_dims[-1]])
    threads, block = _shape(rows, columns // width, width, bool(plan.sums), facts)
    config = {"form": "resident", "threads": threads, "block": block, "width": width, "unroll": 1}
    if math.ceil(columns // width / threads) * width > RESIDENT:
        config |= _long_row(plan, columns, width, facts)
    return _with_blocks(plan, facts, config)


def _shape(rows: int, strips: int, width: int, has_sums: bool, facts: GpuFacts) -> tuple[int, int]:
    """(threads for a row, threads of a block)."""
    most = RESIDENT_WITH_SUMS if has_sums else RESIDENT
    block = min(256 if has_sums else 128, facts.max_threads_per_block)
    widest = min(WIDEST_RESIDENT_BLOCK, facts.max_threads_per_block)
    if rows * WARP < facts.sms * block and strips > WARP:  # few rows: as many threads as have work
        threads = min(widest, _warps(strips))
        return threads, threads
    if strips * width <= WARP * most:
        return min(WARP, power_of_two(strips)), block
    if has_sums and strips * width <= block // 2 * most:
        return power_of_two(math.ceil(strips * width / most)), block
    threads = min(widest, _warps(math.ceil(strips * width / BLOCK_RESIDENT)))
    return threads, threads


def _long_row(plan: RowPlan, columns: int, width: int, facts: GpuFacts) -> dict[str, int | str]:
    """In shared memory if it fits: two blocks a multiprocessor, or one with twice the threads."""
    accesses, most = stageable(plan), min(LONG_ROW_THREADS, facts.max_threads_per_block // 2)
    for threads in (most, 2 * most):
        staged = stage_bytes(accesses, math.ceil(columns / (threads * width)) * threads * width) + STATIC_SHARED
        blocks = 2 * most // threads
        if accesses and blocks * staged <= facts.shared_bytes_per_sm and staged <= facts.shared_bytes_per_block:
            unroll = LONG_ROW_UNROLL * most // threads
            return {"form": "staged", "threads": threads, "block": threads, "unroll": unroll}
    return {"form": "swept", "threads": most, "block": most, "unroll": LONG_ROW_UNROLL}


def _warps(threads: int) -> int:
    return math.ceil(threads / WARP) * WARP


def _with_blocks(plan: RowPlan, facts: GpuFacts, config: dict) -> dict:
    """As many blocks as run at once, where each has partial results to write, or so much shared memory that it pays to
    keep it: a kernel that is skipped then costs little, too.
    """
    rows, _ = _sizes(plan)
    groups = math.ceil(rows / (config["block"] // config["threads"]))
    loops = bool(plan.sums) or config["form"] == "staged"
    blocks = max(1, min(groups, facts.sms * _resident_blocks(config))) if loops else 0
    return {**config, "blocks": blocks, "ahead": int(0 < blocks < groups and _has_room_ahead(plan, facts, config))}


def _has_room_ahead(plan: RowPlan, facts: GpuFacts, config: dict) -> bool:
    """Whether the next row's operands fit into shared memory, beside what the sums of a block's rows take."""
    if config["form"] != "resident":
        return False
    _, columns = _sizes(plan)
    width, block = config["width"], config["block"]
    chunks = math.ceil(columns // width / config["threads"])
    copied = ahead_bytes(copied_operands(plan, chunks, width), block)
    taken = copied + STATIC_SHARED + sum(columns * ITEM_BYTES[d] for r in plan.sums for d in r.dtypes)
    return taken <= facts.shared_bytes_per_block and _resident_blocks(config) * taken <= facts.shared_bytes_per_sm


def _resident_blocks(config: dict) -> int:
    """Of a multiprocessor, where blocks loop over rows."""
    threads = MAX_STAGED_THREADS if config["form"] == "staged" else THREADS_WITH_SUMS
    return max(1, threads // config["block"])


def _bytes_again(plan: RowPlan, config: dict) -> int:
    """What later sweeps over swept rows read once more: from the L2, which is hardly faster for so many streams."""
    if config["form"] != "swept":
        return 0
    rows, columns = _sizes(plan)
    loads = [a for pass_ in plan.passes for a in loads_of(plan, pass_) if any(a.strides[d] for d in plan.row_dims)]
    return rows * columns * (sum(ITEM_BYTES[a.dtype] for a in loads) - sum(ITEM_BYTES[a.dtype] for a in set(loads)))


def generate(kernel: Kernel, facts: GpuFacts, config: dict) -> GpuKernel:
    body = RowBody(kernel, _plan(kernel), config)
    blocks, block, partials = body.emit(), config["block"], body.sums.partials
    texts = [phase_text(kernel, body.symbol, body.out, block, body.shared)]
    shared_bytes = body.stage.bytes + body.ahead.bytes
    if shared_bytes:
        texts.insert(0, body.stage.declaration())
    phases = [GpuPhase(body.symbol, (blocks, 1, 1), block, shared_bytes=shared_bytes)]
    if body.plan.sums:
        out, symbol, threads = Emitter(), f"{kernel.symbol}_1", combine_threads(blocks, facts)
        shared = Shared(symbol, out)
        combining = emit_combine(kernel, partials, body.plan.post_stores, out, shared, threads)
        texts.append(phase_text(kernel, symbol, out, threads, shared))
        phases.append(GpuPhase(symbol, (combining, 1, 1), threads))
    return GpuKernel(
        text=module_text(texts),
        target=facts.arch,
        phases=tuple(phases),
        workspace_bytes=partials.bytes,
        bytes=kernel.bytes,
        flops=kernel.flops,
        predicted_us=predicted_us(kernel, facts, len(phases), 2 * partials.bytes + _bytes_again(body.plan, config)),
        schedule=f"row, {config['form']}, {config['threads']} threads a row, {config['width']} elements at once, "
        f"{blocks} blocks of {block}{', next row ahead' if body.ahead.bytes else ''}",
    )
