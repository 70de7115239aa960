"""Kernels formed from operations of the table: plain GPU code, on the GPU or emulated, against the reference evaluator."""

import gpu
import gpu_kernels
import kernels_support
import linalg_reference
import numpy as np
import pytest
from cases import CASES
from cpu_kernels import NUMPY, random
from mlir import ir

from blutrain.nova.dialect import create_context
from blutrain.nova.gpu import generate
from blutrain.nova.import_trace import import_trace
from blutrain.nova.kernel import read_kernel
from blutrain.nova.passes.driver import Settings, run_passes

COMPILED = [case for case in CASES if case.compiled]
SAMPLE = 6  # the emulator runs every so many cases
TOLERANCE = {8: 1e-12, 4: 3e-5, 2: 2e-2}


@pytest.mark.parametrize("case", COMPILED, ids=lambda case: case.name)
def test_generated_code_computes_the_kernel(case):
    dtype = "float32" if "float32" in case.dtypes else case.dtypes[0]
    step = kernels_support.record(case.call, [tensor._buffer() for tensor in case.tensors(dtype)])
    module = import_trace(step.trace, create_context())
    run_passes(module, (*kernels_support.GRAPH, *kernels_support.KERNELS), gpu_kernels.FACTS, Settings(verify=False))
    with module.context, ir.Location.unknown():
        for op in kernels_support.kernels_of(module):
            if read_kernel(op).anchor != "contract":
                compare(op, is_run=gpu.is_there() or COMPILED.index(case) % SAMPLE == 0)


def compare(op: ir.Operation, is_run: bool) -> None:
    """Every kernel is generated; some are run."""
    kernel, generated = read_kernel(op), generate.generate(op, gpu_kernels.SMALL_GPU)
    if not is_run:
        return
    rng = np.random.default_rng(0)
    arrays = [random(rng, t.shape, t.dtype) for t in kernel.operands]
    for i, type_ in enumerate(kernel.operands):
        if type_.dtype[0] == "i" and type_.dtype != "i1":
            arrays[i] = np.array(np.abs(arrays[i]) % 3, NUMPY[type_.dtype])  # ids that are inside every table
    expected = linalg_reference.run_kernel(op, [a.copy() for a in arrays])
    results = gpu_kernels.run_generated(generated, kernel.results, kernel.aliases, *arrays)
    for got, want in zip(results, map(np.asarray, expected), strict=True):
        if want.dtype.kind in "iub":
            np.testing.assert_array_equal(got, want)
            continue
        tolerance = TOLERANCE[want.dtype.itemsize]
        np.testing.assert_allclose(got.astype(np.float64), want.astype(np.float64), rtol=tolerance, atol=tolerance)
