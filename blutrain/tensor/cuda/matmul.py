"""Matrix products through cuBLAS with the accumulation this framework promises: float32 in float32, or in TF32 where
the user says so; float16 and bfloat16 accumulated in float32 and rounded once; strided batches without copies where
the memory allows it. A single product goes through cuBLASLt.

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
from . import cublas_lt
from .column_sums import column_sums

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


def matmul(x, y):
    """x[..., m, k] @ y[..., k, n] of one dtype, leading dimensions broadcast. Integers go through cupy.matmul."""
    if x.dtype not in _DATA_TYPES:
        return cupy.matmul(x, y)
    batch = numpy.broadcast_shapes(x.shape[:-2], y.shape[:-2]) if x.ndim > 2 or y.ndim > 2 else ()
    (m, k), n = x.shape[-2:], y.shape[-1]
    if not k:
        return cupy.zeros((*batch, m, n), x.dtype)
    out, count = cupy.ndarray((*batch, m, n), x.dtype), math.prod(batch)
    if y.ndim == 2 and count > 1:  # one weight for all: the batch is only more rows
        _multiply(_rows(x, k), _operand(y, ()), out, m * count, n, k)
    elif out.size:
        _multiply(_operand(x, batch), _operand(y, batch), out, m, n, k, count)
    return out


def _rows(array, columns: int) -> _Operand:
    """All of an array's rows of `columns` elements as one matrix."""
    return _Operand(cupy.ascontiguousarray(array), _NO_TRANSPOSE, max(columns, 1), 0)


def _transposed(operand: _Operand) -> _Operand:
    return operand._replace(transpose=1 - operand.transpose)


def _operand(array, batch: tuple[int, ...]) -> _Operand:
    """Describe `array`, copying it only if its strides are not those of a batch of matrices."""
    if array.ndim == 2 or math.prod(array.shape[:-2]) == 1:
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
    if array.flags.c_contiguous:
        return _NO_TRANSPOSE, max(columns, 1)
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


def _multiply(a: _Operand, b: _Operand, out, m: int, n: int, k: int, count: int = 1, bias=None) -> None:
    """Fill `out`, `count` matrices [m, n], with a @ b (+ bias[n], added before the one rounding)."""
    if not out.size:
        return
    if not k:
        out[...] = 0 if bias is None else bias
        return
    kind = out.dtype
    if max(m, n, k, a.leading, b.leading) >= 1 << 31:
        raise ValueError(f"matmul: cuBLAS takes extents and strides below 2**31, got {m} x {k} @ {k} x {n}")
    is_double = kind == float64.numpy
    compute = _COMPUTE_64F if is_double else _COMPUTE_32F
    if kind == float32.numpy and is_tf32_on():
        compute = _COMPUTE_FAST_TF32
    if count == 1 and not is_double:
        addresses = a.array.data.ptr | b.array.data.ptr | out.data.ptr
        if not (addresses if bias is None else addresses | bias.data.ptr) % 16:
            product = cublas_lt.Product(
                _DATA_TYPES[kind], compute, m, n, k, a.transpose, a.leading, b.transpose, b.leading, bias is not None
            )
            cublas_lt.multiply(product, a.array, b.array, out, bias, _SCALARS[4] + 4, _SCALARS[4])
            return
    if bias is not None:
        out[...] = bias
    size = 8 if is_double else 4
    alpha, beta = _SCALARS[size] + size, _SCALARS[size] + size * (bias is not None)
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
    """The eager rule of linear."""
    n, k = w.shape
    out = cupy.ndarray((*x.shape[:-1], n), x.dtype)
    if out.size:
        bias = None if b is None else cupy.ascontiguousarray(b)
        _multiply(_rows(x, k), _transposed(_operand(w, ())), out, out.size // n, n, k, bias=bias)
    return out


def linear_backward(xp, grad, x, w, *, needs):
    """The eager rule of linear_backward."""
    n, k = w.shape
    g, rows = _rows(grad, n), math.prod(grad.shape[:-1])
    results = []
    if needs[0]:
        dx = cupy.ndarray(x.shape, x.dtype)
        _multiply(g, _operand(w, ()), dx, rows, k, n)
        results.append(dx)
    if needs[1]:
        dw = cupy.ndarray(w.shape, w.dtype)
        _multiply(_transposed(g), _rows(x, k), dw, n, k, rows)
        results.append(dw)
    if needs[2]:
        results.append(column_sums(g.array, rows, n))
    return tuple(results)
