"""Kernels formed from operations of the table: the generated code against the reference evaluator of the same IR."""

import kernels_support
import linalg_reference
import numpy as np
import pytest
from cases import CASES
from cpu_kernels import NUMPY, TWO_THREADS, CompiledOp, random
from mlir import ir

from blutrain.nova.dialect import create_context
from blutrain.nova.import_trace import import_trace
from blutrain.nova.kernel import read_kernel
from blutrain.nova.passes.driver import Settings, run_passes

SAMPLE = [case for case in CASES if case.compiled][::5]
TOLERANCE = {8: 1e-12, 4: 3e-5, 2: 2e-2}


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
@pytest.mark.parametrize("case", SAMPLE, ids=lambda case: case.name)
def test_generated_code_computes_the_kernel(case, dtype):
    if dtype not in case.dtypes:
        return
    step = kernels_support.record(case.call, [tensor._buffer() for tensor in case.tensors(dtype)])
    module = import_trace(step.trace, create_context())
    run_passes(module, (*kernels_support.GRAPH, *kernels_support.KERNELS), TWO_THREADS, Settings(verify=False))
    with module.context, ir.Location.unknown():
        for op in kernels_support.kernels_of(module):
            compare(op)


def compare(op: ir.Operation) -> None:
    kernel = read_kernel(op)
    if kernel.anchor == "contract":
        return
    rng = np.random.default_rng(0)
    arrays = [random(rng, t.shape, t.dtype) for t in kernel.operands]
    for i, type_ in enumerate(kernel.operands):
        if type_.dtype[0] == "i" and type_.dtype != "i1":
            arrays[i] = np.array(np.abs(arrays[i]) % 3, NUMPY[type_.dtype])  # ids that are inside every table
    expected = linalg_reference.run_kernel(op, [a.copy() for a in arrays])
    for got, want in zip(CompiledOp(op).run(*arrays), map(np.asarray, expected), strict=True):
        if want.dtype.kind in "iub":
            np.testing.assert_array_equal(got, want)
            continue
        tolerance = TOLERANCE[want.dtype.itemsize]
        np.testing.assert_allclose(got.astype(np.float64), want.astype(np.float64), rtol=tolerance, atol=tolerance)
