"""Facts about the machine that kernels are made for, each with its source.

Everything that a schedule may depend on stands here; the same facts and the same kernel give the same code, bit for
bit. Nothing is measured at run time (a measured number would differ between runs): sizes come from the operating
system, rates from tables.
"""

from __future__ import annotations

import ctypes
import functools
import math
import os
import sys
from dataclasses import dataclass
from pathlib import Path

from .. import config
from .cpu import orc

# Vector FMAs of full width (`vector_bytes`) that one core starts in a cycle: uops.info and the vendors' optimisation
# guides. 512-bit operations of Zen 4 take two cycles of a 256-bit unit; Intel's client cores have one 512-bit unit.
_FMA_PER_CYCLE = {
    "znver1": 1, "znver2": 2, "znver3": 2, "znver4": 1, "znver5": 2,
    "haswell": 2, "broadwell": 2, "skylake": 2, "alderlake": 2, "raptorlake": 2, "meteorlake": 2,
    "skylake-avx512": 2, "cascadelake": 2, "cooperlake": 2, "icelake-server": 2,
    "sapphirerapids": 2, "emeraldrapids": 2, "graniterapids": 2,
    "icelake-client": 1, "tigerlake": 1, "rocketlake": 1,
    "neoverse-n1": 2, "neoverse-n2": 2, "neoverse-n3": 2, "neoverse-v1": 4, "neoverse-v2": 4, "neoverse-v3": 4,
    "apple-m1": 4, "apple-m2": 4, "apple-m3": 4, "apple-m4": 4, "apple-m5": 4,
}  # fmt: skip
_DEFAULT_FMA_PER_CYCLE = 2
_DEFAULT_GHZ = 2.5
# Typical of one core and of one socket with DDR4/DDR5 (STREAM triad figures that vendors publish); only predicted
# times depend on it.
_GB_S_PER_CORE, _GB_S_PER_SOCKET = 12.0, 120.0
_DEFAULT_CACHES = {1: 32 << 10, 2: 512 << 10, 3: 8 << 20}
_CPU0 = Path("/sys/devices/system/cpu/cpu0")


@dataclass(frozen=True)
class CpuFacts:
    """A CPU as the generators see it: l1 and l2 of one core, l3 shared; `threads` workers run a kernel's tasks."""

    vector_bytes: int
    num_vector_registers: int
    l1_bytes: int
    l2_bytes: int
    l3_bytes: int
    threads: int
    cpu_name: str
    cpu_features: str
    fma_per_cycle: int
    ghz_estimate: float
    mem_gb_s: float
    triple: str

    @property
    def peak_gflops(self) -> float:
        """f32 multiply-adds of all threads, counted as two operations."""
        return self.threads * self.ghz_estimate * self.fma_per_cycle * (self.vector_bytes // 4) * 2

    @property
    def description(self) -> str:
        """A few words for tables."""
        return f"{self.cpu_name}, {self.threads} threads"

    def roofline_us(self, kernel) -> float:
        """The least time of a `GeneratedKernel` by memory traffic and by arithmetic."""
        return max(kernel.flops / (self.peak_gflops * 1e3), kernel.bytes / (self.mem_gb_s * 1e3))

    def codegen_key(self) -> tuple[str, str, str]:
        """The facts that an object depends on beyond its text."""
        return self.triple, self.cpu_name, self.cpu_features


def host_cpu() -> CpuFacts:
    """The machine this process runs on, with the number of threads that holds now."""
    return _host_cpu(num_threads())


@functools.cache
def _host_cpu(threads: int) -> CpuFacts:
    triple, name, features = orc.host_description()
    vector_bytes, registers = _vector_unit(triple, features)
    caches = _cache_bytes()
    return CpuFacts(
        vector_bytes=vector_bytes,
        num_vector_registers=registers,
        l1_bytes=caches[1],
        l2_bytes=caches[2],
        l3_bytes=caches[3],
        threads=threads,
        cpu_name=name,
        cpu_features=features,
        fma_per_cycle=_FMA_PER_CYCLE.get(name, _DEFAULT_FMA_PER_CYCLE),
        ghz_estimate=_ghz(),
        mem_gb_s=min(threads * _GB_S_PER_CORE, _GB_S_PER_SOCKET),
        triple=triple,
    )


def num_threads() -> int:
    """The switch `num_threads`; where it is 0, the cores this process may use (affinity, a container's CPU quota)."""
    setting = config.get("num_threads")
    if setting:
        return setting
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(cores, _quota_cores()))


def _quota_cores() -> int:
    """Whole cores of the cgroup's quota (v2 `cpu.max`: "<quota us> <period us>"), or a large number without one."""
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return max(1, math.ceil(int(quota) / int(period)))
    except (OSError, ValueError):
        return 1 << 20


def _vector_unit(triple: str, features: str) -> tuple[int, int]:
    """(bytes of a vector register, number of them): AVX-512 64/32, AVX2 32/16, SSE 16/16, NEON 16/32. Without FMA a
    CPU counts as SSE.
    """
    if triple.startswith(("aarch64", "arm64")):
        return 16, 32
    enabled = set(features.split(","))
    if {"+avx512f", "+avx512vl", "+avx512bw", "+avx512dq"} <= enabled:
        return 64, 32
    return (32, 16) if {"+avx2", "+fma"} <= enabled else (16, 16)


def _cache_bytes() -> dict[int, int]:
    """Data cache by level: sysfs on Linux, sysctl on macOS (performance cores), a small default where neither tells."""
    sizes = dict(_DEFAULT_CACHES)
    sizes.update(_sysctl_caches() if sys.platform == "darwin" else _sysfs_caches(_CPU0))
    return sizes


def _sysfs_caches(cpu: Path) -> dict[int, int]:
    """Sizes by level; an L2 that several cores share (clusters of ARM and of Intel's small cores) counts by its part."""
    sizes = {}
    for folder in sorted(cpu.glob("cache/index*")):
        try:
            kind, level, size, sharing = (
                (folder / name).read_text().strip() for name in ("type", "level", "size", "shared_cpu_list")
            )
            if kind == "Instruction":
                continue
            threads = _count((cpu / "topology" / "thread_siblings_list").read_text())
            cores = _count(sharing) // threads if level == "2" else 1
            sizes[int(level)] = (int(size[:-1]) << {"K": 10, "M": 20}[size[-1]]) // max(1, cores)
        except (OSError, ValueError, KeyError, IndexError):
            continue
    return sizes


def _count(cpus: str) -> int:
    """How many CPUs a list of the kernel names, such as "0-3,8"."""
    ranges = [part.split("-") for part in cpus.strip().split(",")]
    return sum(int(part[-1]) - int(part[0]) + 1 for part in ranges)


def _sysctl_caches() -> dict[int, int]:
    """Of a performance core; Apple's L2 is one for a cluster of them."""
    sizes = {1: _sysctl("hw.perflevel0.l1dcachesize"), 3: _sysctl("hw.l3cachesize")}
    sizes[2] = _sysctl("hw.perflevel0.l2cachesize") // max(1, _sysctl("hw.perflevel0.cpusperl2"))
    return {level: size for level, size in sizes.items() if size}


def _sysctl(name: str) -> int:
    """An integer that macOS knows, 0 where it does not."""
    value, size = ctypes.c_int64(), ctypes.c_size_t(8)  # 4 or 8 bytes are written, little-endian
    failed = ctypes.CDLL(None).sysctlbyname(name.encode(), ctypes.byref(value), ctypes.byref(size), None, 0)
    return 0 if failed else value.value


def _ghz() -> float:
    """Nominal clock: cpufreq's base, else the time stamp counter's rate; on ARM, which has neither, its highest.

    Not the current "cpu MHz", which changes from second to second and would make schedules differ between runs.
    """
    highest = _cpufreq_ghz("cpuinfo_max_freq") if orc.machine() == "aarch64" else 0.0
    return _cpufreq_ghz("base_frequency") or _time_stamp_ghz() or highest or _DEFAULT_GHZ


def _cpufreq_ghz(name: str) -> float:
    """A frequency of sysfs, in kHz there; 0 where it does not tell."""
    try:
        return int((_CPU0 / "cpufreq" / name).read_text()) / 1e6
    except (OSError, ValueError):
        return 0.0


def _time_stamp_ghz() -> float:
    """Half of x86 bogomips ("BogoMIPS" on ARM is a timer's rate), or 0."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("bogomips"):
                return round(float(line.split(":")[1]) / 2000, 2)
    except (OSError, ValueError):
        pass
    return 0.0
