"""Sums, differences and products of two arrays of one shape and dtype: CuPy's own move one element a thread at a time."""

from __future__ import annotations

import cupy
import numpy

from ..dtype import bfloat16, float16, float32, float64
from .compile import function, launch_elementwise

OPERATORS = {"add": "+", "subtract": "-", "multiply": "*"}
BODY = "typedef compute_of<T>::type C;\n" + "".join(
    f'extern "C" __global__ void {name}(const T* x, const T* y, T* z, i64 size) '
    f"{{ map_elements(size, OF_GRID, [](C a, C b) {{ return a {sign} b; }}, z, x, y); }}\n"
    for name, sign in OPERATORS.items()
)
_FLOATS = frozenset(d.numpy for d in (float16, bfloat16, float32, float64))


def binary(name: str, x, y, out=None):
    """The operation of that name (see OPERATORS), narrow floats rounded once; None for operands that it is not for.

    out: where the result goes; may be x.
    """
    if type(x) is not cupy.ndarray or type(y) is not cupy.ndarray or x.shape != y.shape:
        return None
    dtype = x.dtype
    if dtype not in _FLOATS or y.dtype != dtype or not (x.flags.c_contiguous and y.flags.c_contiguous):
        return None
    z, size = cupy.ndarray(x.shape, dtype) if out is None else out, x.size
    launch_elementwise(function(BODY, name, T=dtype), size, (x, y, z, numpy.int64(size)), each=4)
    return z
