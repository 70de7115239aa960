"""Programs of one launch on the GPU, from poisoned memory, for the tests that need one. Arrays are bytes on the device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import blutrain as bt
from blutrain.nova.gpu import executable as executable_file
from blutrain.nova.gpu import launch_code
from blutrain.nova.gpu.assemble import AssembledKernel, assemble
from blutrain.nova.plan import Launch, ProgramPlan

POISON = 0xFF  # NaN in every float format, -1 in every integer


Rewrite = Callable[[list[AssembledKernel]], list[AssembledKernel]]


def rewritten(patch: pytest.MonkeyPatch, rewrite: Rewrite) -> None:
    """Programs built from now on have the code that `rewrite` makes of theirs."""
    key = launch_code.assembly_key
    patch.setattr(executable_file, "assemble", lambda jobs, strict: rewrite(assemble(jobs, strict=False)))
    patch.setattr(launch_code, "assembly_key", lambda *given: f"{rewrite} {key(*given)}")


class OnDevice:
    """A program of one launch."""

    def __init__(self, plan: ProgramPlan, rewrite: Rewrite | None = None):
        (launch,) = plan.launches
        assert isinstance(launch, Launch)
        results = launch.operands[len(plan.inputs) :]
        self.aliases = [place.index if place.space == "input" else -1 for place in results]
        self.plan = plan
        with pytest.MonkeyPatch.context() as patch:
            if rewrite is not None:
                rewritten(patch, rewrite)
            self.executable = executable_file.build_executable(plan, bt.device("cuda"))

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
