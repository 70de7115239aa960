"""layer_norm and its gradients: threads that share rows, and sums down the columns."""

from __future__ import annotations

import math

import cupy
import numpy

from ..ops.composite.blocks import compute_type
from .column_sums import SUMS, sum_rows
from .compile import function, grid_of_rows

BODY = (
    SUMS
    + r"""
extern "C" __global__ void layer_norm(
    const T* x, const T* w, const T* b, T* y, C* mean, C* rstd, i64 rows, i64 columns, double eps) {
  i64 row = blockIdx.x * (i64)blockDim.y + threadIdx.y;
  if (row >= rows) return;
  x += row * columns;
  y += row * columns;
  C inverse = C(1) / C(columns), first = 0, rest = 0, squares = 0;
  each_element(columns, OF_ROW, [&](C x) { first += x * inverse; }, x);
  first = block_sum(first);
  auto spread = [&](C x) {
    C centred = x - first;
    rest += centred;
    squares += centred * centred;
  };
  each_element(columns, OF_ROW, spread, x);
  rest = block_sum(rest) * inverse;
  C variance = block_sum(squares) * inverse - smaller(rest * rest, C(1e38));
  C scale = C(1) / sqrt_((variance < 0 ? C(0) : variance) + C(eps));
  if (threadIdx.x == 0) {
    mean[row] = first + rest;
    rstd[row] = scale;
  }
  auto normal = [=](C x) { return (x - first - rest) * scale; };
  if (w && b) map_elements(columns, OF_ROW, [=](C x, C w, C b) { return normal(x) * w + b; }, y, x, w, b);
  else if (w) map_elements(columns, OF_ROW, [=](C x, C w) { return normal(x) * w; }, y, x, w);
  else map_elements(columns, OF_ROW, normal, y, x);
}

extern "C" __global__ void input_gradient(
    const T* grad, const T* x, const C* mean, const C* rstd, const T* w, T* dx, i64 rows, i64 columns) {
  i64 row = blockIdx.x * (i64)blockDim.y + threadIdx.y;
  if (row >= rows) return;
  grad += row * columns;
  x += row * columns;
  dx += row * columns;
  C shift = mean[row], scale = rstd[row], total = 0, correlation = 0;
  auto add = [&](C g, C x, C w) {
    total += g * w;
    correlation += g * w * ((x - shift) * scale);
  };
  if (w) each_element(columns, OF_ROW, add, grad, x, w);
  else each_element(columns, OF_ROW, [&](C g, C x) { add(g, x, C(1)); }, grad, x);
  total = block_sum(total) / C(columns);
  correlation = block_sum(correlation) / C(columns);
  auto f = [=](C g, C x, C w) { return (g * w - (x - shift) * scale * correlation - total) * scale; };
  if (w) map_elements(columns, OF_ROW, f, dx, grad, x, w);
  else map_elements(columns, OF_ROW, [=](C g, C x) { return f(g, x, C(1)); }, dx, grad, x);
}

template <int N> __device__ void sums(
    const T* grad, const T* x, const C* mean, const C* rstd, C* partial, T* result, u32* arrived, i64 rows, i64 columns,
    i64 chunk) {
  auto add = [=](i64 i, i64 j, C (&totals)[2][N]) {
    Group<N> g = *(const Group<N>*)(grad + i * columns + j), v = *(const Group<N>*)(x + i * columns + j);
    C shift = mean[i], scale = rstd[i];
    for (int n = 0; n < N; n++) {
      totals[0][n] += widen(g.of[n]) * ((widen(v.of[n]) - shift) * scale);
      totals[1][n] += widen(g.of[n]);
    }
  };
  sum_rows<N, 2>(add, partial, result, arrived, rows, columns, chunk);
}

// result: the gradients of weight and bias.
extern "C" __global__ void column_sums(
    const T* grad, const T* x, const C* mean, const C* rstd, C* partial, T* result, u32* arrived, i64 rows, i64 columns,
    i64 chunk, int is_wide) {
  if (is_wide) sums<Pack<T>::SIZE>(grad, x, mean, rstd, partial, result, arrived, rows, columns, chunk);
  else sums<1>(grad, x, mean, rstd, partial, result, arrived, rows, columns, chunk);
}
"""
)
NULL = numpy.uint64(0)


def layer_norm(xp, x, w=None, b=None, *, num_dims, eps):
    """The eager rule of layer_norm."""
    x = cupy.ascontiguousarray(x)
    rows, columns = _extents(x.shape, num_dims)
    shape, compute = (*x.shape[: x.ndim - num_dims], *(1,) * num_dims), compute_type(x.dtype)
    y, mean, rstd = cupy.ndarray(x.shape, x.dtype), cupy.ndarray(shape, compute), cupy.ndarray(shape, compute)
    if x.size:
        kernel = function(BODY, "layer_norm", T=x.dtype)
        sizes = numpy.int64(rows), numpy.int64(columns), numpy.float64(eps)
        kernel(*grid_of_rows(rows, columns), (x, _pointer(w), _pointer(b), y, mean, rstd, *sizes))
    return y, mean, rstd


def _extents(shape: tuple[int, ...], num_dims: int) -> tuple[int, int]:
    """(rows, columns) of an array whose last `num_dims` dimensions are the columns."""
    split = len(shape) - num_dims
    return math.prod(shape[:split]), math.prod(shape[split:])


def _pointer(array):
    return NULL if array is None else cupy.ascontiguousarray(array)


def layer_norm_backward(xp, grad, x, mean, rstd, w=None, *, num_dims, needs):
    """The eager rule of layer_norm_backward."""
    grad, x, mean, rstd = [cupy.ascontiguousarray(a) for a in (grad, x, mean, rstd)]
    rows, columns = _extents(x.shape, num_dims)
    results = []
    if needs[0]:
        dx = cupy.ndarray(x.shape, x.dtype)
        if x.size:
            kernel, sizes = function(BODY, "input_gradient", T=x.dtype), (numpy.int64(rows), numpy.int64(columns))
            kernel(*grid_of_rows(rows, columns), (grad, x, mean, rstd, _pointer(w), dx, *sizes))
        results.append(dx)
    if needs[1] or needs[2]:
        sums = sum_rows(BODY, (grad, x, mean, rstd), 2, rows, columns).reshape(2, *x.shape[x.ndim - num_dims :])
        results += [sums[i] for i in (0, 1) if needs[1 + i]]
    return tuple(results)
