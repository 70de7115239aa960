"""Runs the generated GPU code of `nova.kernel` bodies through the emulator, for the tests of the plain generators."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import gpu as gpu_there
import numpy as np
from cpu_kernels import NUMPY, Body, parsed, poisoned
from gpu_emulator import Emulated

from blutrain.nova.gpu import generate as gpu
from blutrain.nova.gpu import lower
from blutrain.nova.gpu.kernel import GpuKernel
from blutrain.nova.target_gpu import gpu_facts

FACTS = gpu_facts("sm_90a")
MAX_DYNAMIC_SHARED_SIZE_BYTES = 8  # CU_FUNC_ATTRIBUTE_...
# Few multiprocessors: grids are smaller than the work, loops run. The emulator gets small blocks too: it takes a thread of
# the system for each of theirs, and milliseconds for every barrier of many.
SMALL_GPU = replace(FACTS, sms=2, max_threads_per_block=1024 if gpu_there.is_there() else 64)


def generate(body: Body, facts=SMALL_GPU, **config) -> GpuKernel:
    """The code of a body; `config` replaces entries of the schedule."""
    with parsed(body) as op:
        if not config:
            return gpu.generate(op, facts)
        kernel, module, facts = gpu._chosen(op, facts)
        return module.generate(kernel, facts, {**module.configure(kernel, facts), **config})


def supports(body: Body, facts=SMALL_GPU) -> str | None:
    with parsed(body) as op:
        return gpu.supports(op, facts)


def run(body: Body, *arrays: np.ndarray, facts=SMALL_GPU, **config) -> list[np.ndarray]:
    """Compile a body and run it as `run_generated` does."""
    return run_generated(generate(body, facts, **config), body.results, body.aliases, *arrays)


def run_generated(generated: GpuKernel, results: Sequence, aliases: Sequence[int], *arrays: np.ndarray) -> list:
    """Run twice on copies of aliased operands, from a poisoned workspace; both runs agree bit for bit.

    `results` have a shape and a dtype. On the GPU where there is one, else in the emulator.
    """
    launch = _on_device(generated) if gpu_there.is_there() else _on_cpu(generated)
    runs = []
    for _ in range(2):
        copies = [_aligned_copy(a) for a in arrays]
        outputs = [poisoned(v.shape, v.dtype) for v in results]
        workspace = poisoned((generated.workspace_bytes + 256,), "i8").view(np.uint8)
        launch(copies, outputs, aliases, workspace)
        assert (workspace[generated.workspace_bytes :] == 0x5B).all(), "wrote past the workspace"
        for i, (copy, array) in enumerate(zip(copies, arrays, strict=True)):
            assert i in aliases or copy.tobytes() == array.tobytes(), f"operand {i} was written"
        runs.append([copies[a] if a >= 0 else o for o, a in zip(outputs, aliases, strict=True)])
    assert [a.tobytes() for a in runs[0]] == [a.tobytes() for a in runs[1]], "two runs differ"
    return runs[0]


def _on_cpu(generated: GpuKernel):
    emulated = Emulated(generated)

    def launch(operands, results, aliases, workspace) -> None:
        places = [operands[a] if a >= 0 else r for r, a in zip(results, aliases, strict=True)]
        emulated.run([a.ctypes.data for a in (*operands, *places)], workspace.ctypes.data)

    return launch


def _on_device(generated: GpuKernel):
    device = OnDevice(generated)

    def launch(operands, results, aliases, workspace) -> None:
        import cupy

        hosts = [*operands, *results, workspace]
        buffers = [cupy.asarray(np.concatenate([bytes_of(a), np.full(256, 0x5B, np.uint8)])) for a in hosts]
        count = len(operands)
        places = [buffers[a] if a >= 0 else buffers[count + i] for i, a in enumerate(aliases)]
        device.launch([b.data.ptr for b in (*buffers[:count], *places)], buffers[-1].data.ptr)
        for host, buffer in zip(hosts, buffers, strict=True):
            back = cupy.asnumpy(buffer)
            assert (back[-256:] == 0x5B).all(), "wrote past the end of an operand or result"
            bytes_of(host)[:] = back[:-256]

    return launch


class OnDevice:
    """A kernel's phases, loaded; `launch` takes addresses."""

    def __init__(self, generated: GpuKernel):
        import cupy
        from cupy_backends.cuda.api import driver

        self.generated = generated
        self.module = cupy.cuda.function.Module()
        self.module.load(lower.to_ptx(generated.text, generated.target).encode())
        self.functions = [self.module.get_function(p.symbol) for p in generated.phases]
        for phase, function in zip(generated.phases, self.functions, strict=True):
            if phase.shared_bytes:
                driver.funcSetAttribute(function.ptr, MAX_DYNAMIC_SHARED_SIZE_BYTES, phase.shared_bytes)

    def launch(self, pointers: Sequence[int], workspace: int) -> None:
        arguments = tuple(np.uint64(p) for p in (*pointers, workspace, 0))
        for phase, function in zip(self.generated.phases, self.functions, strict=True):
            if 0 not in phase.grid:
                function(phase.grid, (phase.block, 1, 1), arguments, shared_mem=phase.shared_bytes)


def bytes_of(array: np.ndarray) -> np.ndarray:
    """The array's memory."""
    return array.reshape(-1).view(np.uint8)


def _aligned_copy(array: np.ndarray) -> np.ndarray:
    names = {np.dtype(type_).type: name for name, type_ in NUMPY.items()}
    copy = poisoned(array.shape, names[array.dtype.type])
    copy[...] = array
    return copy
