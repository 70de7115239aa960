"""Facts about NVIDIA GPUs that kernels are made for, each with its source.

`gpu_facts("sm_90a")` is a table entry, for making kernels without a device; `device_facts()` is the device's own: sizes
read from the driver, rates from the table. A schedule depends on these and nothing measured at run time.

Sources: [CC] CUDA C++ Programming Guide, "Technical specifications per compute capability"; [A100] NVIDIA A100
datasheet and Ampere whitepaper; [GA102], [AD102] whitepapers of those chips (GeForce RTX 3090, RTX 4090); [H200] H200
datasheet and Hopper whitepaper (dense rates, without sparsity); [dev] read from an H200 by cuDeviceGetAttribute and
cuOccupancyMaxActiveClusters (one block a multiprocessor).
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from typing import Any

from ..errors import NovaError


@dataclass(frozen=True)
class GpuFacts:
    """A GPU as the generators see it. Bytes and registers are per multiprocessor (SM) or per block as named.

    max_clusters: (size, how many clusters of that many blocks are resident at once with one block a multiprocessor);
    a size that is not listed is not to be used. Rates are dense, with f32 accumulation.
    """

    name: str
    arch: str
    sms: int
    shared_bytes_per_sm: int
    shared_bytes_per_block: int
    registers_per_sm: int
    threads_per_sm: int
    l2_bytes: int
    mem_gb_s: float
    f32_tflops: float
    tf32_tflops: float
    bf16_tflops: float
    clock_ghz: float
    max_clusters: tuple[tuple[int, int], ...] = ()
    max_registers_per_thread: int = 255
    max_threads_per_block: int = 1024

    @property
    def capability(self) -> tuple[int, int]:
        """Compute capability: (9, 0) for "sm_90a"."""
        digits = self.arch.removeprefix("sm_").rstrip("af")
        return int(digits[:-1]), int(digits[-1])

    @property
    def is_hopper(self) -> bool:
        """Whether TMA and warpgroup products may be used ("sm_90a")."""
        return self.arch == "sm_90a"

    def clusters(self, size: int) -> int:
        """How many clusters of `size` blocks are resident at once; 0 where clusters of that size cannot be used."""
        return self.sms if size == 1 else dict(self.max_clusters).get(size, 0)

    def without(self, sms: int) -> GpuFacts:
        """The GPU as kernels see it while something else holds `sms` of its multiprocessors, wherever they lie; half of
        them are left at least.
        """
        left = max(self.sms - sms, self.sms // 2)
        clusters = tuple((size, count * left // self.sms) for size, count in self.max_clusters)
        return replace(self, sms=left, max_clusters=clusters)

    @property
    def description(self) -> str:
        """A few words for tables."""
        return f"{self.name} ({self.arch}), {self.sms} multiprocessors"

    def roofline_us(self, kernel) -> float:
        """The least time of a `GpuKernel` by memory traffic and by the rate of its arithmetic."""
        tflops = {"f32": self.f32_tflops, "tf32": self.tf32_tflops, "bf16": self.bf16_tflops}[kernel.unit]
        return max(kernel.flops / (tflops * 1e6), kernel.bytes / (self.mem_gb_s * 1e3))

    def codegen_key(self) -> tuple[str, ...]:
        """The facts that assembled code depends on beyond its text."""
        return (self.arch,)


_KIB, _MIB = 1 << 10, 1 << 20
_TABLE = {
    # [A100] 80 GB SXM: 2039 GB/s, 19.5 / 156 / 312 TFLOP/s, boost 1.41 GHz; [CC] 164 KiB shared, 163 a block.
    "sm_80": GpuFacts("NVIDIA A100-SXM4-80GB", "sm_80", 108, 164 * _KIB, 163 * _KIB, 65536, 2048, 40 * _MIB,
                      2039.0, 19.5, 156.0, 312.0, 1.41),
    # [GA102] RTX 3090: 936 GB/s, 35.6 / 35.6 / 71 TFLOP/s, boost 1.695 GHz; [CC] 100 KiB shared, 99 a block.
    "sm_86": GpuFacts("NVIDIA GeForce RTX 3090", "sm_86", 82, 100 * _KIB, 99 * _KIB, 65536, 1536, 6 * _MIB,
                      936.0, 35.6, 35.6, 71.0, 1.695),
    # [AD102] RTX 4090: 1008 GB/s, 82.6 / 82.6 / 165.2 TFLOP/s, boost 2.52 GHz; [CC] 100 KiB shared, 99 a block.
    "sm_89": GpuFacts("NVIDIA GeForce RTX 4090", "sm_89", 128, 100 * _KIB, 99 * _KIB, 65536, 1536, 72 * _MIB,
                      1008.0, 82.6, 82.6, 165.2, 2.52),
    # [H200] SXM: 4800 GB/s, 66.9 / 494.7 / 989.4 TFLOP/s; [dev] 132 SMs, 60 MB of L2, 1.98 GHz, clusters;
    # [CC] 228 KiB shared, 227 a block.
    "sm_90a": GpuFacts("NVIDIA H200", "sm_90a", 132, 228 * _KIB, 227 * _KIB, 65536, 2048, 60 * _MIB,
                       4800.0, 66.9, 494.7, 989.4, 1.98, ((2, 66), (3, 39), (4, 30), (5, 22), (6, 17), (7, 15))),
}  # fmt: skip
ARCHITECTURES = tuple(_TABLE)


def gpu_facts(arch: str) -> GpuFacts:
    """The table's facts of an architecture. Errors: ValueError for one that is not in it."""
    if arch not in _TABLE:
        raise ValueError(f"no facts about GPUs of {arch!r}; known are {', '.join(_TABLE)}")
    return _TABLE[arch]


@functools.cache
def device_facts(index: int = 0) -> GpuFacts:
    """Facts of GPU number `index`. Errors: RuntimeError without a GPU, NovaError for one older than sm_80."""
    from ..tensor.device import Device
    from .gpu.driver_properties import device_properties

    device = Device("cuda", index)
    with device.activate():
        cupy: Any = device.xp
        cupy.cuda.runtime.free(0)  # makes the context
        return facts_from(device_properties(index))


def facts_from(properties: dict) -> GpuFacts:
    """Facts from what the driver says (`driver_properties.device_properties`).

    Sizes are the device's. Rates are the table's for a device that is in it; else those of the nearest architecture
    below, scaled by multiprocessors and clock, and the memory's from clock and bus width.
    """
    major, minor = properties["capability"]
    known = [facts for facts in _TABLE.values() if facts.capability <= (major, minor)]
    if not known:
        message = f"{properties['name']} has compute capability {major}.{minor}; 8.0 or newer is needed"
        raise NovaError(message, stage="target")
    base = max(known, key=lambda facts: facts.capability)
    sizes = {name: properties[name] for name in _READ}
    facts = replace(base, name=properties["name"], max_clusters=tuple(properties["max_clusters"]), **sizes)
    if base.capability != (major, minor):
        facts = replace(facts, arch=f"sm_{major}{minor}")
    if facts.name == base.name:
        return facts
    scale = facts.sms * properties["clock_ghz"] / (base.sms * base.clock_ghz)
    rates = {name: getattr(base, name) * scale for name in ("f32_tflops", "tf32_tflops", "bf16_tflops")}
    return replace(facts, clock_ghz=properties["clock_ghz"], mem_gb_s=properties["mem_gb_s"], **rates)


_READ = (
    "sms", "shared_bytes_per_sm", "shared_bytes_per_block", "registers_per_sm", "threads_per_sm", "l2_bytes",
)  # fmt: skip
