"""Runs the generated GPU code of `nova.kernel` bodies through the emulator, for the tests of the plain generators."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from cpu_kernels import Body, parsed, poisoned
from gpu_emulator import Emulated

from blutrain.nova.gpu import generate as gpu
from blutrain.nova.gpu.kernel import GpuKernel
from blutrain.nova.target_gpu import gpu_facts

FACTS = gpu_facts("sm_90a")
SMALL_GPU = replace(FACTS, sms=2)  # few multiprocessors: grids are smaller than the work, loops run


def generate(body: Body, facts=SMALL_GPU, **config) -> GpuKernel:
    """The code of a body; `config` replaces entries of the schedule."""
    with parsed(body) as op:
        if not config:
            return gpu.generate(op, facts)
        kernel, module = gpu._chosen(op, facts)
        return module.generate(kernel, facts, {**module.configure(kernel, facts), **config})


def supports(body: Body, facts=SMALL_GPU) -> str | None:
    with parsed(body) as op:
        return gpu.supports(op, facts)


def run(body: Body, *arrays: np.ndarray, facts=SMALL_GPU, **config) -> list[np.ndarray]:
    """Compile and run twice on copies of aliased operands, from a poisoned workspace; both runs agree bit for bit."""
    generated = generate(body, facts, **config)
    emulated = Emulated(generated)
    runs = []
    for _ in range(2):
        copies = [_aligned_copy(a) for a in arrays]
        outputs = [
            copies[alias] if alias >= 0 else poisoned(value.shape, value.dtype)
            for value, alias in zip(body.results, body.aliases, strict=True)
        ]
        workspace = poisoned((generated.workspace_bytes + 256,), "i8")
        emulated.run([a.ctypes.data for a in (*copies, *outputs)], workspace.ctypes.data)
        assert (workspace.view(np.uint8)[generated.workspace_bytes :] == 0x5B).all(), "wrote past the workspace"
        for i, (copy, array) in enumerate(zip(copies, arrays, strict=True)):
            assert i in body.aliases or copy.tobytes() == array.tobytes(), f"operand {i} was written"
        runs.append([r.copy() for r in outputs])
    assert [a.tobytes() for a in runs[0]] == [a.tobytes() for a in runs[1]], "two runs differ"
    return runs[0]


def _aligned_copy(array: np.ndarray) -> np.ndarray:
    names = {v: k for k, v in _names().items()}
    copy = poisoned(array.shape, names[array.dtype.type])
    copy[...] = array
    return copy


def _names() -> dict[str, type]:
    from cpu_kernels import NUMPY

    return {name: np.dtype(type_).type for name, type_ in NUMPY.items()}


def arrays_of(body: Body, seed: int = 0) -> Sequence[np.ndarray]:
    from cpu_kernels import random

    rng = np.random.default_rng(seed)
    return [random(rng, v.shape, v.dtype) for v in body.operands]
