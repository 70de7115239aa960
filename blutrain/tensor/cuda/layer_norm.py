"""layer_norm and its gradients. One block of threads per row;

sums down the columns in two steps of fixed order, without atomics.
"""

from __future__ import annotations

import cupy
import numpy

from ..ops.composite.blocks import as_rows, compute_type
from .column_sums import chunks_of, sum_partials
from .compile import function, threads_for

BODY = r"""
typedef compute_of<T>::type C;

extern "C" __global__ void layer_norm(
    const T* x, const T* w, const T* b, T* y, C* mean, C* rstd, i64 columns, double eps) {
  i64 row = blockIdx.x;
  x += row * columns;
  y += row * columns;
  C inverse = C(1) / C(columns), first = 0, rest = 0, squares = 0;
  for (i64 j = threadIdx.x; j < columns; j += blockDim.x) first += widen(x[j]) * inverse;
  first = block_sum(first);
  for (i64 j = threadIdx.x; j < columns; j += blockDim.x) {
    C centred = widen(x[j]) - first;
    rest += centred;
    squares += centred * centred;
  }
  rest = block_sum(rest) * inverse;
  C variance = block_sum(squares) * inverse - smaller(rest * rest, C(1e38));
  C scale = C(1) / sqrt_((variance < 0 ? C(0) : variance) + C(eps));
  if (threadIdx.x == 0) {
    mean[row] = first + rest;
    rstd[row] = scale;
  }
  for (i64 j = threadIdx.x; j < columns; j += blockDim.x) {
    C value = (widen(x[j]) - first - rest) * scale;
    if (w) value *= widen(w[j]);
    if (b) value += widen(b[j]);
    store(y + j, value);
  }
}

extern "C" __global__ void input_gradient(
    const T* grad, const T* x, const C* mean, const C* rstd, const T* w, T* dx, i64 columns) {
  i64 row = blockIdx.x;
  grad += row * columns;
  x += row * columns;
  dx += row * columns;
  C shift = mean[row], scale = rstd[row], total = 0, correlation = 0;
  for (i64 j = threadIdx.x; j < columns; j += blockDim.x) {
    C g = widen(grad[j]) * (w ? widen(w[j]) : C(1));
    total += g;
    correlation += g * ((widen(x[j]) - shift) * scale);
  }
  total = block_sum(total) / C(columns);
  correlation = block_sum(correlation) / C(columns);
  for (i64 j = threadIdx.x; j < columns; j += blockDim.x) {
    C g = widen(grad[j]) * (w ? widen(w[j]) : C(1));
    store(dx + j, (g - (widen(x[j]) - shift) * scale * correlation - total) * scale);
  }
}

// 32 columns by 8 rows of threads; block (i, k) sums chunk k of the rows for columns 32 * i ... into row k of `partial`,
// the sums of grad into as many rows behind.
extern "C" __global__ void column_sums(
    const T* grad, const T* x, const C* mean, const C* rstd, C* partial, i64 rows, i64 columns, i64 chunk) {
  __shared__ C parts[2][8][33];
  i64 j = blockIdx.x * 32 + threadIdx.x, stop = smaller((i64)(blockIdx.y + 1) * chunk, rows);
  C weight = 0, bias = 0;
  if (j < columns)
    for (i64 i = blockIdx.y * chunk + threadIdx.y; i < stop; i += 8) {
      C g = widen(grad[i * columns + j]);
      weight += g * ((widen(x[i * columns + j]) - mean[i]) * rstd[i]);
      bias += g;
    }
  parts[0][threadIdx.y][threadIdx.x] = weight;
  parts[1][threadIdx.y][threadIdx.x] = bias;
  __syncthreads();
  if (threadIdx.y || j >= columns) return;
  for (int k = 1; k < 8; k++) {
    weight += parts[0][k][threadIdx.x];
    bias += parts[1][k][threadIdx.x];
  }
  partial[blockIdx.y * columns + j] = weight;
  partial[(gridDim.y + blockIdx.y) * columns + j] = bias;
}
"""
NULL = numpy.uint64(0)


def layer_norm(xp, x, w=None, b=None, *, num_dims, eps):
    """The eager rule of layer_norm."""
    matrix = as_rows(cupy, x, num_dims)
    rows, columns = matrix.shape
    y = cupy.empty(matrix.shape, x.dtype)
    mean, rstd = cupy.empty((2, rows), compute_type(x.dtype))
    if matrix.size:
        kernel = function(BODY, "layer_norm", T=x.dtype)
        args = (matrix, _pointer(w), _pointer(b), y, mean, rstd, numpy.int64(columns), numpy.float64(eps))
        kernel((rows,), (threads_for(columns),), args)
    shape = (*x.shape[: x.ndim - num_dims], *(1,) * num_dims)
    return y.reshape(x.shape), mean.reshape(shape), rstd.reshape(shape)


def _pointer(array):
    return NULL if array is None else cupy.ascontiguousarray(array)


def layer_norm_backward(xp, grad, x, mean, rstd, w=None, *, num_dims, needs):
    """The eager rule of layer_norm_backward."""
    g, matrix = as_rows(cupy, grad, num_dims), as_rows(cupy, x, num_dims)
    mean, rstd = cupy.ascontiguousarray(mean), cupy.ascontiguousarray(rstd)
    results = []
    if needs[0]:
        dx = cupy.empty(matrix.shape, x.dtype)
        if dx.size:
            args = (g, matrix, mean, rstd, _pointer(w), dx, numpy.int64(matrix.shape[1]))
            function(BODY, "input_gradient", T=x.dtype)((matrix.shape[0],), (threads_for(matrix.shape[1]),), args)
        results.append(dx.reshape(x.shape))
    if needs[1] or needs[2]:
        sums = _column_sums(g, matrix, mean, rstd)
        shape = x.shape[x.ndim - num_dims :]
        results += [total.reshape(shape) for total, need in zip(sums, needs[1:], strict=True) if need]
    return tuple(results)


def _column_sums(g, matrix, mean, rstd):
    """(sum of g * normal, sum of g) over the rows."""
    rows, columns = matrix.shape
    if not matrix.size:
        return cupy.zeros((2, columns), matrix.dtype)
    blocks = -(-columns // 32)
    num_chunks, chunk = chunks_of(rows, blocks)
    partial = cupy.ndarray((2 * num_chunks, columns), mean.dtype)
    args = (g, matrix, mean, rstd, partial, numpy.int64(rows), numpy.int64(columns), numpy.int64(chunk))
    function(BODY, "column_sums", T=matrix.dtype)((blocks, num_chunks), (32, 8), args)
    return sum_partials(partial, 2, columns, matrix.dtype)
