"""The CUDA driver, through cuda-bindings: every call that nova makes of it, with plain numbers in and out.

Handles and addresses are integers, sizes are bytes. `driver()` is the process's one instance, made at its first use: to
import this module needs no GPU. All calls work in the context that is current, which is CuPy's.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from typing import Any

from ...errors import message
from .kernel import TENSOR_MAP_BYTES, TensorMap

_LOG_BYTES = 16384
_PORTABLE_CLUSTER = 8
_MAP_TYPES = {
    "i8": "UINT8", "i16": "UINT16", "i32": "INT32", "i64": "INT64", "f16": "FLOAT16", "bf16": "BFLOAT16",
    "f32": "FLOAT32", "f64": "FLOAT64", "tf32": "TFLOAT32",
}  # fmt: skip
_SWIZZLES = {0: "NONE", 32: "32B", 64: "64B", 128: "128B"}
_PROMOTIONS = {"none": "NONE", "64": "L2_64B", "128": "L2_128B", "256": "L2_256B"}
_BY_NODE_PRIORITY = 8  # CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY
_EXTERNAL_RECORD = 1  # CU_EVENT_RECORD_EXTERNAL: a node of a graph rather than a dependency of the capture


class DriverError(RuntimeError):
    """A call of the driver that failed: its name, the driver's error name, and what else is known."""

    def __init__(self, call: str, code: str, detail: str = ""):
        self.call, self.code, self.detail = call, code, detail
        super().__init__(f"{call}: {code}{': ' + detail if detail else ''}")


@functools.cache
def driver() -> Driver:
    """The driver. Errors: RuntimeError where cuda-bindings or the driver's library is missing."""
    try:
        from cuda.bindings import driver as api

        api.cuInit(0)
    except Exception as fault:  # the bindings raise errors of their own where libcuda is missing
        need = "an NVIDIA GPU with its driver, and cuda-bindings (pip install blutrain[cuda13])"
        raise RuntimeError(message("cuda", "the driver cannot be used", expected=need, got=str(fault))) from fault
    return Driver(api)


class Driver:
    """Thin methods over `cuda.bindings.driver`; each raises DriverError with the call's name."""

    def __init__(self, api: Any):
        self._api = api
        self._success = api.CUresult.CUDA_SUCCESS
        self._launch_graph = api.cuGraphLaunch
        self._streams: dict[int, Any] = {}  # handles as the bindings like them best, by number

    def call(self, name: str, *arguments) -> Any:
        """Calls the function `name`; its results without the status, one alone or a list. Errors: DriverError."""
        status, *results = getattr(self._api, name)(*arguments)
        if status != self._success:
            raise DriverError(name, status.name)
        return results[0] if len(results) == 1 else results

    def constant(self, enumeration: str, name: str) -> Any:
        """A value of one of the driver's enumerations, its name without the leading CU_."""
        return getattr(getattr(self._api, enumeration), f"CU_{name}")

    # -- code

    def load_module(self, image: bytes) -> int:
        """Loads a cubin, or PTX, which the driver compiles. Errors: DriverError with the compiler's log."""
        log, names = bytearray(_LOG_BYTES), ("JIT_ERROR_LOG_BUFFER", "JIT_ERROR_LOG_BUFFER_SIZE_BYTES")
        options = [self.constant("CUjit_option", name) for name in names]
        status, module = self._api.cuModuleLoadDataEx(image, len(options), options, [log, _LOG_BYTES])
        if status != self._success:
            raise DriverError("cuModuleLoadDataEx", status.name, log.split(b"\0")[0].decode(errors="replace").strip())
        return int(module)

    def unload_module(self, module: int) -> None:
        self.call("cuModuleUnload", module)

    def function(self, module: int, symbol: str, shared_bytes: int, cluster: int) -> int:
        """A kernel function, allowed to take that much dynamic shared memory and clusters of that size."""
        handle = self.call("cuModuleGetFunction", module, symbol.encode())
        settings = {"MAX_DYNAMIC_SHARED_SIZE_BYTES": shared_bytes}
        settings["NON_PORTABLE_CLUSTER_SIZE_ALLOWED"] = int(cluster > _PORTABLE_CLUSTER)
        for name, value in settings.items():
            if value:
                self.call(
                    "cuFuncSetAttribute", handle, self.constant("CUfunction_attribute", f"FUNC_ATTRIBUTE_{name}"), value
                )
        return int(handle)

    def launch(
        self, function: int, grid: Sequence[int], block: int, cluster: int, shared_bytes: int, stream: int, params: int
    ) -> None:
        """Launches a kernel; `params` is the address of an array of pointers to the arguments."""
        if cluster == 1:
            self.call("cuLaunchKernel", function, *grid, block, 1, 1, shared_bytes, stream, params, 0)
        else:
            config = self._config(grid, block, cluster, shared_bytes, stream)
            self.call("cuLaunchKernelEx", config, function, params, 0)

    def _config(self, grid: Sequence[int], block: int, cluster: int, shared_bytes: int, stream: int) -> Any:
        api = self._api
        attribute = api.CUlaunchAttribute()
        attribute.id = self.constant("CUlaunchAttributeID", "LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION")
        dimension = attribute.value.clusterDim
        dimension.x, dimension.y, dimension.z = cluster, 1, 1
        config = api.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = grid
        config.blockDimX, config.blockDimY, config.blockDimZ = block, 1, 1
        config.sharedMemBytes, config.hStream = shared_bytes, stream
        config.attrs, config.numAttrs = [attribute], 1
        return config

    def resident_clusters(self, function: int, block: int, cluster: int, shared_bytes: int) -> int:
        """How many clusters of that size the device holds at once."""
        config = self._config((cluster, 1, 1), block, cluster, shared_bytes, 0)
        return int(self.call("cuOccupancyMaxActiveClusters", function, config))

    def encode_tensor_map(self, spec: TensorMap, address: int, out: int) -> None:
        """Writes the descriptor of `spec` over the memory at `address` to the 128 bytes at `out` (64-byte aligned)."""
        api, rank, constant = self._api, len(spec.extents), self.constant
        encoded = self.call(
            "cuTensorMapEncodeTiled",
            constant("CUtensorMapDataType", f"TENSOR_MAP_DATA_TYPE_{_MAP_TYPES[spec.dtype]}"),
            rank,
            address,
            [api.cuuint64_t(extent) for extent in spec.extents],
            [api.cuuint64_t(stride) for stride in spec.strides_bytes],
            [api.cuuint32_t(side) for side in spec.box],
            [api.cuuint32_t(step) for step in spec.element_strides or (1,) * rank],
            constant("CUtensorMapInterleave", "TENSOR_MAP_INTERLEAVE_NONE"),
            constant("CUtensorMapSwizzle", f"TENSOR_MAP_SWIZZLE_{_SWIZZLES[spec.swizzle]}"),
            constant("CUtensorMapL2promotion", f"TENSOR_MAP_L2_PROMOTION_{_PROMOTIONS[spec.l2]}"),
            constant("CUtensorMapFloatOOBfill", "TENSOR_MAP_FLOAT_OOB_FILL_NONE"),
        )
        ctypes.memmove(out, int(encoded.getPtr()), TENSOR_MAP_BYTES)

    # -- memory

    def allocate_pinned(self, num_bytes: int) -> int:
        """Page-locked host memory, at this address for the device too; `free_pinned` gives it back."""
        return int(self.call("cuMemHostAlloc", num_bytes, 0))

    def free_pinned(self, address: int) -> None:
        self.call("cuMemFreeHost", address)

    # -- streams and events

    def create_stream(self) -> int:
        """A stream that does not wait for the legacy default stream, which cannot be captured."""
        return int(self.call("cuStreamCreate", self.constant("CUstream_flags", "STREAM_NON_BLOCKING")))

    def destroy_stream(self, stream: int) -> None:
        self.call("cuStreamDestroy", stream)

    def synchronize(self, stream: int) -> None:
        self.call("cuStreamSynchronize", stream)

    def create_event(self, *, is_timed: bool = False) -> int:
        flag = self.constant("CUevent_flags", "EVENT_DEFAULT" if is_timed else "EVENT_DISABLE_TIMING")
        return int(self.call("cuEventCreate", flag))

    def destroy_event(self, event: int) -> None:
        self.call("cuEventDestroy", event)

    def record(self, event: int, stream: int) -> None:
        self.call("cuEventRecord", event, stream)

    def record_in_graph(self, event: int, stream: int) -> None:
        """Into a capturing stream: every launch of the graph records the event."""
        self.call("cuEventRecordWithFlags", event, stream, _EXTERNAL_RECORD)

    def wait(self, stream: int, event: int) -> None:
        """Work put into the stream from now on waits for the event."""
        self.call("cuStreamWaitEvent", stream, event, 0)

    def wait_for_event(self, event: int) -> None:
        """The caller waits for the event."""
        self.call("cuEventSynchronize", event)

    def milliseconds(self, start: int, end: int) -> float:
        """Between two timed events that have happened."""
        return self.call("cuEventElapsedTime", start, end)

    # -- graphs

    def begin_capture(self, stream: int) -> None:
        mode = self.constant("CUstreamCaptureMode", "STREAM_CAPTURE_MODE_THREAD_LOCAL")
        self.call("cuStreamBeginCapture", stream, mode)

    def last_captured(self, stream: int) -> int:
        """The node that the last launch into a capturing stream became."""
        # (status, id, graph, nodes, [edges,] count): CUDA 13 added the edges.
        _, _, _, nodes, *_, count = self.call("cuStreamGetCaptureInfo", stream)
        if count != 1:
            raise DriverError("cuStreamGetCaptureInfo", "UNEXPECTED", f"{count} last nodes in a stream without forks")
        return int(nodes[0])

    def end_capture(self, stream: int) -> int:
        """The graph that was captured."""
        return int(self.call("cuStreamEndCapture", stream))

    def instantiate(self, graph: int) -> Any:
        """A graph made ready to run; the handle as the bindings like it best: it is launched every step. Kernels keep the
        priority of the stream that they were captured from.
        """
        return self.call("cuGraphInstantiate", graph, _BY_NODE_PRIORITY)

    def update_node(
        self, executable: Any, node: int, function: int, grid: Sequence[int], block: int, shared_bytes: int, params: int
    ) -> None:
        """New arguments for a kernel of a ready graph; launches from now on use them."""
        values = self._api.CUDA_KERNEL_NODE_PARAMS()
        values.func = self._api.CUfunction(function)
        values.gridDimX, values.gridDimY, values.gridDimZ = grid
        values.blockDimX, values.blockDimY, values.blockDimZ = block, 1, 1
        values.sharedMemBytes, values.kernelParams = shared_bytes, params
        self.call("cuGraphExecKernelNodeSetParams", executable, node, values)

    def launch_graph(self, executable: Any, stream: int) -> None:
        handle = self._streams.get(stream)
        if handle is None:
            handle = self._streams[stream] = self._api.CUstream(stream)
        (status,) = self._launch_graph(executable, handle)
        if status != self._success:
            raise DriverError("cuGraphLaunch", status.name)

    def destroy_graph(self, graph: int) -> None:
        self.call("cuGraphDestroy", graph)

    def destroy_graph_executable(self, executable: Any) -> None:
        self.call("cuGraphExecDestroy", executable)
