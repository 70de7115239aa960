"""What the schedules of map, row, column, full, gather and scatter kernels have in common: the time model and the
split into tasks."""

from __future__ import annotations

import math

from blutrain.nova.kernel import Kernel
from blutrain.nova.target import CpuFacts

LAUNCH_US = 1.5  # waking the workers and their barrier, by phase
TASK_US = 6.0  # a task shorter than this is not worth claiming
TASKS_PER_THREAD = 4  # slack for uneven progress
CACHE_BANDWIDTH_FACTOR = 2.0  # last-level cache over memory, typical of the cores in target.py
OPS_PER_CYCLE = 1.0  # vector operations of a full register that a core sustains in such code


def lanes_of(facts: CpuFacts) -> int:
    """Lanes for every dtype: one register of f32 (LLVM splits wider types)."""
    return max(4, facts.vector_bytes // 4)


def time_us(num_bytes: int, flops: int, facts: CpuFacts, threads: int | None = None) -> float:
    """Memory and arithmetic overlap: the larger one, on `threads` cores."""
    threads = facts.threads if threads is None else threads
    bandwidth = facts.mem_gb_s * threads / facts.threads * 1e3  # bytes per microsecond
    if num_bytes < facts.l3_bytes:
        bandwidth *= CACHE_BANDWIDTH_FACTOR
    rate = threads * facts.ghz_estimate * 1e3 * lanes_of(facts) * OPS_PER_CYCLE * facts.fma_per_cycle
    return max(num_bytes / bandwidth, flops / rate)


def num_tasks(kernel: Kernel, facts: CpuFacts, flops: int | None = None) -> int:
    """As many tasks as are long enough, at most TASKS_PER_THREAD a thread; 1 on one thread."""
    if facts.threads == 1:
        return 1
    alone = time_us(kernel.bytes, kernel.flops if flops is None else flops, facts, threads=1)
    return max(1, min(TASKS_PER_THREAD * facts.threads, int(alone / TASK_US)))


def predicted_us(kernel: Kernel, facts: CpuFacts, tasks: int, phases: int = 1) -> float:
    threads = min(tasks, facts.threads)
    return phases * LAUNCH_US + time_us(kernel.bytes, kernel.flops, facts, threads)


def unroll_of(ops_per_element: int) -> int:
    """Short bodies are unrolled to hide latency; long ones have work enough in one vector."""
    return 4 if ops_per_element <= 8 else 2 if ops_per_element <= 24 else 1


def round_up(value: int, multiple: int) -> int:
    return math.ceil(value / multiple) * multiple
