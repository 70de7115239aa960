"""Sums, differences and products of arrays of one dtype: CuPy's own kernels move one element a thread at a time."""

from __future__ import annotations

import cupy
import numpy

from ..dtype import bfloat16, float16, float32, float64
from .compile import function, launch_elementwise

OPERATORS = {"add": "+", "subtract": "-", "multiply": "*"}
BODY = "typedef compute_of<T>::type C;\n" + "".join(
    f"""
extern "C" __global__ void {name}(const T* x, const T* y, T* z, i64 size) {{
  map_elements(size, OF_GRID, [](C a, C b) {{ return a {sign} b; }}, z, x, y);
}}
extern "C" __global__ void {name}_one(const T* x, const T* y, T* z, i64 size) {{
  C b = widen(*y);
  map_elements(size, OF_GRID, [=](C a) {{ return a {sign} b; }}, z, x);
}}
"""
    for name, sign in OPERATORS.items()
)
_FLOATS = frozenset(d.numpy for d in (float16, bfloat16, float32, float64))


def binary(name: str, x, y, out=None):
    """The operation of that name (see OPERATORS) on arrays of one shape, or where y is 0-d, narrow floats rounded once.
    None, and nothing is done, for operands that it is not for.

    out: x, where it is to hold the result.
    """
    if type(x) is not cupy.ndarray or type(y) is not cupy.ndarray:
        return None
    dtype, is_one = x.dtype, x.shape != y.shape
    if dtype not in _FLOATS or y.dtype != dtype or (is_one and y.ndim):
        return None
    if not (x.flags.c_contiguous and y.flags.c_contiguous):
        return None
    if out is not None and y.data.mem is x.data.mem and (is_one or y.data.ptr != x.data.ptr):
        return None  # it may be read after it was written
    z, size = cupy.ndarray(x.shape, dtype) if out is None else out, x.size
    kernel = function(BODY, f"{name}_one" if is_one else name, T=dtype)
    launch_elementwise(kernel, size, (x, y, z, numpy.int64(size)), each=4)
    return z
