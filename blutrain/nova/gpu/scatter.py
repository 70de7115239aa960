"""scatter kernels: rows of updates added into a table by id (the gradient of an embedding), the same bits in every
run, without atomics.

The first phase (scatter_sort.py) sorts the ids by row, keeping their order: `start[row]` is the number of ids below the
row, `order[start[row]..]` their numbers. In the second phase (scatter_sums.py) a warp takes a row, or a tile of its
columns, keeps the sums in registers (f32 for 16-bit tables) and writes every element once, so the table needs no
clearing; of a table that is added to in place, it takes the rows that have ids. A row with more ids than `HOT` is
shared by the warps of the block in equal runs of its ids, whose sums are added in order. Ids outside the table are
dropped. Element-wise operations on the sums (fuse_scatter: the update of the table's parameter) are done where the sums
are, in registers.
"""

from __future__ import annotations

import math

from blutrain.nova.cpu.emit_domain import Domain, build_domain
from blutrain.nova.gpu.configure_common import LAUNCH_US, operand_accesses, power_of_two, time_us
from blutrain.nova.gpu.emit import phase_text
from blutrain.nova.gpu.emit_block import WARP
from blutrain.nova.gpu.emit_region import check_regions
from blutrain.nova.gpu.emit_strip import VECTOR_BYTES
from blutrain.nova.gpu.function import module_text
from blutrain.nova.gpu.kernel import GpuKernel, GpuPhase
from blutrain.nova.gpu.scatter_phase import table_of
from blutrain.nova.gpu.scatter_sort import ScatterSort
from blutrain.nova.gpu.scatter_sums import ScatterSums
from blutrain.nova.kernel import ITEM_BYTES, Generic, Kernel, ScatterAdd, Unsupported, check_scatter, refusal
from blutrain.nova.target_gpu import GpuFacts

SORT_THREADS = 1024
IDS_PER_THREAD = 8  # of a block that sorts; fewer ids, fewer threads
SUM_THREADS = 256
LANE_ELEMENTS = 16  # of a lane at most: its columns of the table, and of every tensor that is read beside the sums


def supports(kernel: Kernel) -> str | None:
    """None, or why this generator does not take the kernel."""
    return refusal(checked_domain, kernel)


def checked_domain(kernel: Kernel) -> tuple[ScatterAdd, Domain]:
    """The scatter_add, and the nest of the table's rows and columns."""
    op, *later = kernel.ops or (None,)
    if not isinstance(op, ScatterAdd) or not all(isinstance(o, Generic) for o in later):
        raise Unsupported("no scatter_add followed by element-wise operations")
    check_scatter(op)
    check_regions(later)
    domain = build_domain(kernel)
    table = domain.ops[0].nest_dims
    if len(domain.extents) > 2 or any(store.dims != table for store in domain.stores):
        raise Unsupported("results over other loops than the table's")
    for placed in domain.ops[1:]:
        assert isinstance(placed.op, Generic)
        if placed.reduced:
            raise Unsupported("a reduction behind a scatter_add")
    return op, domain


def configure(kernel: Kernel, facts: GpuFacts) -> dict[str, int]:
    """`blocks` of `threads` sort the ids; a lane of a block of `block` sums `vectors` vectors of `width` columns."""
    op, domain = checked_domain(kernel)
    rows, columns = table_of(op)
    block = min(SUM_THREADS, facts.max_threads_per_block)
    beside = [a for a in operand_accesses(domain) if all(a.strides)]
    dtypes = {op.updates_type.dtype, *(a.dtype for a in beside)}
    dtypes |= {op.types[0].dtype, *(store.access.dtype for store in domain.stores)}
    most = VECTOR_BYTES // max(ITEM_BYTES[dtype] for dtype in dtypes)
    width = math.gcd(most, columns) if columns else 1
    lane_elements = max(width, LANE_ELEMENTS // (1 + len(beside)))
    tiles = max(1, math.ceil(columns / (WARP * lane_elements)))
    vectors = max(1, math.ceil(columns / (WARP * width * tiles)))
    while vectors > 1 and rows * math.ceil(columns / (WARP * width * vectors)) < 2 * facts.sms * block // WARP:
        vectors = (vectors + 1) // 2
    threads = max(2 * WARP, min(SORT_THREADS, power_of_two(op.ids_type.size // IDS_PER_THREAD)))
    threads = min(threads, facts.max_threads_per_block)
    return {
        "blocks": max(1, min(facts.sms, rows), math.ceil(rows / threads)),
        "threads": threads,
        "width": width,
        "vectors": vectors,
        "block": block,
    }


def generate(kernel: Kernel, facts: GpuFacts, config: dict[str, int]) -> GpuKernel:
    (op, domain), threads, block = checked_domain(kernel), config["threads"], config["block"]
    symbols = [f"{kernel.symbol}_{i}" for i in range(2)]
    sort = ScatterSort(kernel, domain, symbols[0], config)
    sums = ScatterSums(kernel, domain, symbols[1], config)
    blocks = (sort.emit(), sums.emit())
    texts = [
        phase_text(kernel, symbols[0], sort.out, threads, sort.shared),
        phase_text(kernel, symbols[1], sums.out, block, sums.shared),
    ]
    touched = min(1.0, op.ids_type.size / max(1, table_of(op)[0])) if sums.is_in_place else 1.0
    table = op.types[0].bytes * (2 if op.init else 1)
    num_bytes = kernel.bytes - int((1 - touched) * table)
    scanned = config["blocks"] * op.ids_type.bytes
    return GpuKernel(
        text=module_text(texts),
        target=facts.arch,
        phases=(GpuPhase(symbols[0], (blocks[0], 1, 1), threads), GpuPhase(symbols[1], (blocks[1], 1, 1), block)),
        workspace_bytes=sort.lists.bytes,
        bytes=num_bytes,
        flops=op.updates_type.size + kernel.flops,
        predicted_us=2 * LAUNCH_US + time_us(num_bytes, kernel.flops, facts) + time_us(scanned, 0, facts),
        schedule=f"scatter, {config['blocks']} blocks sort the ids, a warp sums {config['vectors']} x {config['width']} "
        f"x {WARP} columns, {blocks[1]} blocks of {block}",
    )
