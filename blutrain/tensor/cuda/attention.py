"""The softmax between the two products of attention, and its gradient, in place: one block of threads per row of scores."""

from __future__ import annotations

import numpy

from .compile import function, threads_for

BODY = r"""
typedef compute_of<T>::type C;
#define LOWEST (sizeof(C) == 8 ? C(-1.7976931348623157e308) : C(-3.4028234663852886e38f))

// Query i sees the first i + 1 of the keys if is_causal. A row in which no key is left (all are -inf) becomes zeros.
extern "C" __global__ void softmax(T* scores, i64 queries, i64 keys, int is_causal, double scale) {
  T* x = scores + blockIdx.x * keys;
  i64 seen = is_causal ? smaller((i64)(blockIdx.x % queries) + 1, keys) : keys;
  C largest = LOWEST, total = 0;
  each_element(seen, OF_BLOCK, [&](C x) { largest = x * C(scale) > largest ? x * C(scale) : largest; }, x);
  largest = block_max(largest, LOWEST);
  auto weight = [=](C x) { return exp_(x * C(scale) - largest); };
  each_element(seen, OF_BLOCK, [&](C x) { total += weight(x); }, x);
  total = block_sum(total);
  C inverse = total == 0 ? C(0) : C(1) / total;
  map_elements(seen, OF_BLOCK, [=](C x) { return weight(x) * inverse; }, x, x);
  for (i64 j = seen + threadIdx.x; j < keys; j += blockDim.x) store(x + j, C(0));
}

extern "C" __global__ void softmax_backward(T* grad, const T* weights, i64 keys, double scale) {
  T* g = grad + blockIdx.x * keys;
  const T* w = weights + blockIdx.x * keys;
  C total = 0;
  each_element(keys, OF_BLOCK, [&](C g, C w) { total += g * w; }, g, w);
  total = block_sum(total);
  map_elements(keys, OF_BLOCK, [=](C g, C w) { return (g - total) * w * C(scale); }, g, g, w);
}
"""


def softmax(scores, is_causal: bool, scale: float) -> None:
    """Turn products of queries and keys [..., queries, keys], of the floats they are computed in, into weights."""
    queries, keys = scores.shape[-2:]
    args = (scores, numpy.int64(queries), numpy.int64(keys), numpy.int32(is_causal), numpy.float64(scale))
    _launch("softmax", scores, args)


def softmax_backward(grad, weights, scale: float) -> None:
    """Turn the gradient of weights into that of the products."""
    _launch("softmax_backward", grad, (grad, weights, numpy.int64(grad.shape[-1]), numpy.float64(scale)))


def _launch(name: str, rows, args) -> None:
    if rows.size:
        keys = rows.shape[-1]
        function(BODY, name, T=rows.dtype)((rows.size // keys,), (threads_for(keys // 4),), args)
