"""Programs of one launch on the GPU, from poisoned memory, for the tests that need one. Arrays are bytes on the device."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

import blutrain as bt
from blutrain.nova.gpu.assemble import AssembledKernel, assemble, plan_jobs
from blutrain.nova.plan import Launch, ProgramPlan

POISON = 0xFF  # NaN in every float format, -1 in every integer


class OnDevice:
    """A program of one launch. `rewrite` makes other code of the assembled kernels."""

    def __init__(
        self, plan: ProgramPlan, rewrite: Callable[[list[AssembledKernel]], list[AssembledKernel]] | None = None
    ):
        from blutrain.nova.gpu.driver import driver
        from blutrain.nova.gpu.executable import Executable
        from blutrain.nova.gpu.memory import DeviceMemory

        assembled = assemble(plan_jobs(plan), strict=False)
        if rewrite is not None:  # another text, so that the code is not taken for the one that is loaded already
            assembled = rewrite(assembled)
            kernels = [replace(kernel, text=f"{kernel.text}\n// {rewrite}") for kernel in plan.kernels]
            plan = replace(plan, kernels=tuple(kernels))
        (launch,) = plan.launches
        assert isinstance(launch, Launch)
        results = launch.operands[len(plan.inputs) :]
        self.aliases = [place.index if place.space == "input" else -1 for place in results]
        self.plan, memory = plan, DeviceMemory(bt.device("cuda"))
        with memory.activate():
            self.executable = Executable(plan, assembled, driver(), memory)

    def run(self, arrays: list[Any]) -> list[Any]:
        """All results. What is updated in place is copied first."""
        operands = [array.copy() if i in self.aliases else array for i, array in enumerate(arrays)]
        results = [
            operands[alias] if alias >= 0 else poisoned(size)
            for alias, size in zip(self.aliases, self.plan.sizes("output"), strict=True)
        ]
        for i, operand in enumerate(operands):
            self.executable.bind(i, operand.data.ptr)
        for i, result in enumerate(results):
            self.executable.bind_output(i, result.data.ptr)
        poison_workspace(self.executable)
        self.executable.launch()
        return results

    def run_on(self, arrays: list[np.ndarray]) -> list[np.ndarray]:
        """Results in the host's memory of arrays there: in the shape and dtype of the plan."""
        import cupy
        from cpu_kernels import NUMPY

        specs = zip(self.plan.outputs, self.run([on_device(array) for array in arrays]), strict=True)
        return [cupy.asnumpy(result).view(NUMPY[spec.dtype]).reshape(spec.shape) for spec, result in specs]


def poisoned(num_bytes: int) -> Any:
    """Fresh memory."""
    import cupy

    made = cupy.empty(max(num_bytes, 1), cupy.uint8)
    made.data.memset_async(POISON, made.nbytes)
    return made[:num_bytes]


def poison_workspace(executable: Any) -> None:
    """Whatever is read before it is written shows."""
    size = max(kernel.workspace_bytes for kernel in executable.plan.kernels)
    executable._owned._workspace.memset_async(POISON, size)


def on_device(array: np.ndarray) -> Any:
    """An array's bytes, copied to the device."""
    import cupy

    return cupy.asarray(np.ascontiguousarray(array).reshape(-1).view(np.uint8))
