"""Matrix products through cuBLAS with the accumulation this framework promises: float32 in float32, or in TF32 where
the user says so; float16 and bfloat16 accumulated in float32 and rounded once; strided batches without copies where
the memory allows it.

cuBLAS thinks column by column: a row-major C = A @ B is computed as C.T = B.T @ A.T, which costs nothing but the
order of operands.
"""

from __future__ import annotations

import itertools
import math
from typing import NamedTuple

import cupy
import numpy
from cupy.cuda import cublas, device

from ... import config
from ..dtype import bfloat16, float16, float32, float64

# cudaDataType and cublasComputeType_t (CUDA's library_types.h, cublas_api.h).
_DATA_TYPES = {float32.numpy: 0, float64.numpy: 1, float16.numpy: 2, bfloat16.numpy: 14}
_COMPUTE_32F, _COMPUTE_64F, _COMPUTE_FAST_TF32 = 68, 70, 77
_DEFAULT_MATH, _NO_NARROW_REDUCTION = 0, 16
_DEFAULT_ALGORITHM = -1
_NO_TRANSPOSE, _TRANSPOSE = 0, 1

# alpha and beta are read through pointers to host memory, which has to outlive the call: 0 and 1, by size in bytes.
_NUMBERS = {4: numpy.array([0, 1], numpy.float32), 8: numpy.array([0, 1], numpy.float64)}
_SCALARS = {size: numbers.ctypes.data for size, numbers in _NUMBERS.items()}


class _Operand(NamedTuple):
    """A batch of matrices as cuBLAS takes it; `array` keeps the memory alive.

    batch_step is 0 where one matrix serves all.
    """

    array: cupy.ndarray
    transpose: int
    leading: int
    batch_step: int


def is_tf32_on() -> bool:
    """Has the user asked for float32 products in TF32."""
    return config.get("matmul_precision") == "tf32"


def matmul(x, y, out=None, accumulate: bool = False):
    """x[..., m, k] @ y[..., k, n] of one dtype, leading dimensions broadcast. out: a contiguous array for the result.

    accumulate: out += x @ y, added before the one rounding. Integers go through cupy.matmul.
    """
    if x.dtype not in _DATA_TYPES:
        return cupy.matmul(x, y)
    batch = numpy.broadcast_shapes(x.shape[:-2], y.shape[:-2]) if x.ndim > 2 or y.ndim > 2 else ()
    (m, k), n = x.shape[-2:], y.shape[-1]
    if out is None:
        out = cupy.empty((*batch, m, n), x.dtype)
    if not out.size:
        return out
    if not k:
        if not accumulate:
            out.fill(0)
        return out
    count = math.prod(batch)
    if y.ndim == 2 and count > 1:  # one weight for all: the batch is only more rows
        m, count = m * count, 1
        x, batch = cupy.ascontiguousarray(x).reshape(m, k), ()
    _gemm(_operand(x, batch), _operand(y, batch), out, m, n, k, count, accumulate)
    return out


def _operand(array, batch: tuple[int, ...]) -> _Operand:
    """Describe `array`, copying it only if its strides are not those of a batch of matrices."""
    if math.prod(array.shape[:-2]) == 1:
        matrix = array if array.ndim == 2 else array.reshape(array.shape[-2:])
        found = _layout(matrix)
        return _Operand(matrix, *found, 0) if found else _operand(cupy.ascontiguousarray(matrix), batch)
    if array.shape[:-2] != batch:
        array = cupy.broadcast_to(array, (*batch, *array.shape[-2:]))
    found, step = _layout(array), _batch_step(array)
    if found is None or step is None:
        return _operand(cupy.ascontiguousarray(array), batch)
    return _Operand(array, *found, step)


def _layout(array) -> tuple[int, int] | None:
    """(transposed?, leading dimension) of the last two dimensions, or None where neither of them is contiguous."""
    rows, columns = array.shape[-2:]
    row_step, column_step = (s // array.itemsize for s in array.strides[-2:])
    if (column_step == 1 or columns == 1) and (row_step >= columns or rows == 1):
        return _NO_TRANSPOSE, max(row_step if rows > 1 else columns, 1)
    if (row_step == 1 or rows == 1) and (column_step >= rows or columns == 1):
        return _TRANSPOSE, max(column_step if columns > 1 else rows, 1)
    return None


def _batch_step(array) -> int | None:
    """Elements from one matrix of the batch to the next, or None where that is not one number."""
    dims = [
        (extent, step // array.itemsize) for extent, step in zip(array.shape[:-2], array.strides[:-2]) if extent != 1
    ]
    for (_, outer), (extent, inner) in itertools.pairwise(dims):
        if outer != extent * inner:
            return None
    return dims[-1][1] if dims else 0


def _gemm(a: _Operand, b: _Operand, out, m: int, n: int, k: int, count: int, accumulate: bool) -> None:
    kind = out.dtype
    if max(m, n, k, a.leading, b.leading) >= 1 << 31:
        raise ValueError(f"matmul: cuBLAS takes extents and strides below 2**31, got {m} x {k} @ {k} x {n}")
    is_double = kind == float64.numpy
    compute = _COMPUTE_64F if is_double else _COMPUTE_32F
    if kind == float32.numpy and is_tf32_on():
        compute = _COMPUTE_FAST_TF32
    size = 8 if is_double else 4
    alpha, beta = _SCALARS[size] + size, _SCALARS[size] + size * accumulate
    data = _DATA_TYPES[kind]
    handle = device.get_cublas_handle()
    is_narrow = out.itemsize == 2
    if is_narrow:  # partial sums of a split k stay in float32
        cublas.setMathMode(handle, _NO_NARROW_REDUCTION)
    try:
        cublas.gemmStridedBatchedEx(
            handle, b.transpose, a.transpose, n, m, k,
            alpha, b.array.data.ptr, data, b.leading, b.batch_step, a.array.data.ptr, data, a.leading, a.batch_step,
            beta, out.data.ptr, data, n, m * n, count, compute, _DEFAULT_ALGORITHM,
        )  # fmt: skip
    finally:
        if is_narrow:
            cublas.setMathMode(handle, _DEFAULT_MATH)


def linear(xp, x, w, b=None):
    """The eager rule of linear: the bias is what cuBLAS accumulates onto, so the sum is rounded once."""
    out = cupy.empty((*x.shape[:-1], w.shape[0]), x.dtype)
    rows = (
        cupy.ascontiguousarray(x).reshape(-1, x.shape[-1])
        if x.size
        else x.reshape(math.prod(x.shape[:-1]), x.shape[-1])
    )
    if b is not None:
        out[...] = b
    matmul(rows, w.T, out.reshape(rows.shape[0], w.shape[0]), accumulate=b is not None)
    return out


def linear_backward(xp, grad, x, w, *, needs):
    """The eager rule of linear_backward; the bias gradient is a product with ones, accumulated as the others are."""
    g = cupy.ascontiguousarray(grad).reshape(math.prod(grad.shape[:-1]), w.shape[0])
    results = []
    if needs[0]:
        results.append(matmul(g, w).reshape(x.shape))
    if needs[1]:
        results.append(matmul(g.T, cupy.ascontiguousarray(x).reshape(g.shape[0], x.shape[-1])))
    if needs[2]:
        results.append(matmul(cupy.ones((1, g.shape[0]), g.dtype), g).reshape(w.shape[0]))
    return tuple(results)
