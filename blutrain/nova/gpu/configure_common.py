"""What the schedules of map, row, column, full, gather and scatter kernels have in common: the time model, how wide a
thread's loads are, and how many blocks fill a GPU."""

from __future__ import annotations

import math

from blutrain.nova.cpu.emit_domain import Domain
from blutrain.nova.gpu.emit_strip import VECTOR_BYTES
from blutrain.nova.kernel import ITEM_BYTES, Access, Gather, Kernel, Operand, region_flops
from blutrain.nova.target_gpu import GpuFacts

LAUNCH_US = 2.0  # a small kernel of a replayed graph, by phase
STREAM_EFFICIENCY = 0.88  # of the data sheet's bandwidth, for long streams (H200, AdamW over 38M: 4.2 of 4.8 TB/s)
CACHE_FACTOR = 1.6  # bandwidth of the L2 over memory, for what fits into half of it
OPS_EFFICIENCY = 0.25  # of the f32 rate (two flops an instruction): scalar code without fused multiply-adds
MAX_WIDTH = 8  # elements that a thread takes side by side at most


def time_us(num_bytes: int, flops: int, facts: GpuFacts) -> float:
    """Memory and arithmetic overlap: the longer one."""
    bandwidth = facts.mem_gb_s * 1e3 * STREAM_EFFICIENCY  # bytes per microsecond
    if num_bytes < facts.l2_bytes // 2:
        bandwidth *= CACHE_FACTOR
    return max(num_bytes / bandwidth, flops / (facts.f32_tflops * 1e6 * OPS_EFFICIENCY))


def predicted_us(kernel: Kernel, facts: GpuFacts, phases: int = 1, extra_bytes: int = 0) -> float:
    """The time of one launch; a draw of random bits serves the elements of a strip."""
    draws = sum(math.prod(g.extents) * g.block_ops.count("nova.random_bits") for g in kernel.generics)
    flops = kernel.flops - draws * region_flops(("nova.random_bits",)) * 3 // 4
    return phases * LAUNCH_US + time_us(kernel.bytes + extra_bytes, flops, facts)


def operand_accesses(domain: Domain) -> list[Access]:
    """Everything that is loaded by position, each access once."""
    found = [a for p in domain.ops for a in (*p.inputs, *p.outputs) if isinstance(a.source, Operand)]
    return list(dict.fromkeys(found))


def contiguous_item_bytes(domain: Domain, lane_dim: int) -> int:
    """The largest element among loads and stores that run along `lane_dim`."""
    streams = [*operand_accesses(domain), *(s.access for s in domain.stores)]
    sizes = [ITEM_BYTES[a.dtype] for a in streams if a.strides[lane_dim] == 1]
    for placed in domain.ops:
        if isinstance(placed.op, Gather) and placed.dims[-1] == lane_dim:
            sizes.append(ITEM_BYTES[placed.op.table_type.dtype])
    return max(sizes, default=4)


def width_for(domain: Domain, lane_dim: int, length: int) -> int:
    """Elements that a thread takes side by side: 16 bytes of the widest stream, a divisor of `length`."""
    width = max(1, min(MAX_WIDTH, VECTOR_BYTES // contiguous_item_bytes(domain, lane_dim)))
    return math.gcd(width, length) if length else 1


def power_of_two(value: int) -> int:
    """The smallest power of two that is not below `value`."""
    return 1 << max(0, value - 1).bit_length()
