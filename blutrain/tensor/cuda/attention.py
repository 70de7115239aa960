"""The softmax between the two products of attention, and its gradient, in place."""

from __future__ import annotations

import numpy

from .compile import function, grid_of_rows

BODY = r"""
typedef compute_of<T>::type C;
#define LOWEST (sizeof(C) == 8 ? C(-1.7976931348623157e308) : C(-3.4028234663852886e38f))

// Query i sees the first i + 1 of the keys if is_causal. A row in which no key is left (all are -inf) becomes zeros.
extern "C" __global__ void softmax(T* scores, i64 rows, i64 keys, i64 queries, int is_causal, double scale) {
  i64 row = blockIdx.x * (i64)blockDim.y + threadIdx.y;
  if (row >= rows) return;
  T* x = scores + row * keys;
  i64 seen = is_causal ? smaller(row % queries + 1, keys) : keys;
  C largest = LOWEST, total = 0;
  each_element(seen, OF_ROW, [&](C x) { largest = x * C(scale) > largest ? x * C(scale) : largest; }, x);
  largest = block_max(largest, LOWEST);
  auto weight = [=](C x) { return exp_(x * C(scale) - largest); };
  each_element(seen, OF_ROW, [&](C x) { total += weight(x); }, x);
  total = block_sum(total);
  C inverse = total == 0 ? C(0) : C(1) / total;
  map_elements(seen, OF_ROW, [=](C x) { return weight(x) * inverse; }, x, x);
  for (i64 j = seen + threadIdx.x; j < keys; j += blockDim.x) store(x + j, C(0));
}

extern "C" __global__ void softmax_backward(T* grad, const T* weights, i64 rows, i64 keys, double scale) {
  i64 row = blockIdx.x * (i64)blockDim.y + threadIdx.y;
  if (row >= rows) return;
  T* g = grad + row * keys;
  const T* w = weights + row * keys;
  C total = 0;
  each_element(keys, OF_ROW, [&](C g, C w) { total += g * w; }, g, w);
  total = block_sum(total);
  map_elements(keys, OF_ROW, [=](C g, C w) { return (g - total) * w * C(scale); }, g, g, w);
}
"""


def softmax(scores, is_causal: bool, scale: float) -> None:
    """Turn products of queries and keys [..., queries, keys], of the floats they are computed in, into weights."""
    _launch("softmax", (scores,), numpy.int64(scores.shape[-2]), numpy.int32(is_causal), numpy.float64(scale))


def softmax_backward(grad, weights, scale: float) -> None:
    """Turn the gradient of weights into that of the products."""
    _launch("softmax_backward", (grad, weights), numpy.float64(scale))


def _launch(name: str, arrays, *scalars) -> None:
    scores = arrays[0]
    if scores.size:
        keys = scores.shape[-1]
        rows = scores.size // keys
        kernel = function(BODY, name, T=scores.dtype)
        kernel(*grid_of_rows(rows, keys), (*arrays, numpy.int64(rows), numpy.int64(keys), *scalars))
