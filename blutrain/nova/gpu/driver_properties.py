"""What the driver says about a GPU: the sizes that `target_gpu.GpuFacts` holds."""

from __future__ import annotations

import functools
from typing import Any

from .driver import Driver, driver

_ATTRIBUTES = {
    "sms": "MULTIPROCESSOR_COUNT",
    "shared_bytes_per_sm": "MAX_SHARED_MEMORY_PER_MULTIPROCESSOR",
    "shared_bytes_per_block": "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN",
    "registers_per_sm": "MAX_REGISTERS_PER_MULTIPROCESSOR",
    "threads_per_sm": "MAX_THREADS_PER_MULTIPROCESSOR",
    "l2_bytes": "L2_CACHE_SIZE",
}
_CLUSTER_SIZES = range(2, 9)  # larger ones are not portable
_PROBE_BLOCK = 384
_PROBE = b""".version 7.8
.target sm_90
.address_size 64
.visible .entry probe() { ret; }
\0"""


def device_properties(index: int) -> dict[str, Any]:
    """Name, compute capability, sizes, clock, memory bandwidth and resident clusters of GPU number `index`.

    Needs a current context on that device.
    """
    api = driver()
    device = api.call("cuDeviceGet", index)
    attribute = functools.partial(_attribute, api, device)
    capability = attribute("COMPUTE_CAPABILITY_MAJOR"), attribute("COMPUTE_CAPABILITY_MINOR")
    sizes = {name: attribute(source) for name, source in _ATTRIBUTES.items()}
    return {
        "name": api.call("cuDeviceGetName", 256, device).split(b"\0")[0].decode(),
        "capability": capability,
        **sizes,
        "clock_ghz": attribute("CLOCK_RATE") / 1e6,  # kHz
        # Two transfers a clock (kHz), the bus's width in bits.
        "mem_gb_s": 2 * attribute("MEMORY_CLOCK_RATE") * attribute("GLOBAL_MEMORY_BUS_WIDTH") / 8 / 1e6,
        "max_clusters": _resident_clusters(api, sizes["shared_bytes_per_block"]) if capability >= (9, 0) else (),
    }


def _attribute(api: Driver, device: Any, name: str) -> int:
    return int(api.call("cuDeviceGetAttribute", api.constant("CUdevice_attribute", f"DEVICE_ATTRIBUTE_{name}"), device))


def _resident_clusters(api: Driver, shared_bytes: int) -> tuple[tuple[int, int], ...]:
    """(size, clusters resident at once) for blocks that fill a multiprocessor's shared memory; sizes that fit only."""
    module = api.load_module(_PROBE)
    try:
        function = api.function(module, "probe", shared_bytes, 1)
        counts = {size: api.resident_clusters(function, _PROBE_BLOCK, size, shared_bytes) for size in _CLUSTER_SIZES}
    finally:
        api.unload_module(module)
    return tuple((size, count) for size, count in counts.items() if count)
