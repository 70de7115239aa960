"""Philox bits and dropout: a thread makes the four words of one counter and serves four consecutive elements."""

from __future__ import annotations

import math

import cupy
import numpy

from ..ops.composite.dropout import ALL_KEPT, scale_of
from ..ops.philox import split
from ..ops.random import draw_number, keep_threshold, seed_number
from .compile import function, launch_elementwise

PHILOX = r"""
__device__ void philox(u64 index, u32 draw_low, u32 draw_high, u32 k0, u32 k1, u32* words) {
  u32 x0 = (u32)index, x1 = (u32)(index >> 32), x2 = draw_low, x3 = draw_high;
  for (int round = 0; round < 10; round++) {
    u64 p0 = (u64)0xD2511F53u * x0, p1 = (u64)0xCD9E8D57u * x2;
    x0 = (u32)(p1 >> 32) ^ x1 ^ k0;
    x1 = (u32)p1;
    x2 = (u32)(p0 >> 32) ^ x3 ^ k1;
    x3 = (u32)p0;
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  words[0] = x0; words[1] = x1; words[2] = x2; words[3] = x3;
}
"""
BITS = (
    PHILOX
    + r"""
extern "C" __global__ void random_bits(u32* bits, i64 size, u32 draw_low, u32 draw_high, u32 k0, u32 k1) {
  for (i64 i = blockIdx.x * (i64)blockDim.x + threadIdx.x; 4 * i < size; i += (i64)gridDim.x * blockDim.x) {
    u32 words[4];
    philox(i, draw_low, draw_high, k0, k1, words);
    for (int k = 0; k < 4 && 4 * i + k < size; k++) bits[4 * i + k] = words[k];
  }
}
"""
)
DROPOUT = (
    PHILOX
    + r"""
typedef compute_of<T>::type C;
extern "C" __global__ void dropout(
    const T* x, T* y, i64 size, u64 threshold, double scale, u32 draw_low, u32 draw_high, u32 k0, u32 k1) {
  bool is_aligned = ((u64)x | (u64)y) % sizeof(Four<T>) == 0;
  for (i64 i = blockIdx.x * (i64)blockDim.x + threadIdx.x; 4 * i < size; i += (i64)gridDim.x * blockDim.x) {
    u32 words[4];
    philox(i, draw_low, draw_high, k0, k1, words);
    auto f = [&](T x, int k) { return words[k] < threshold ? widen(x) * C(scale) : C(0); };
    if (is_aligned && 4 * i + 4 <= size) {
      Four<T> four = ((const Four<T>*)x)[i];
      for (int k = 0; k < 4; k++) store(four.of + k, f(four.of[k], k));
      ((Four<T>*)y)[i] = four;
    } else {
      for (i64 k = 0, j = 4 * i; k < 4 && j < size; k++, j++) store(y + j, f(x[j], k));
    }
  }
}
"""
)


def random_bits(xp, seed, draw, *, shape, site=0, device=None):
    """The eager rule of random_bits."""
    bits = cupy.empty(shape, numpy.int32)
    size = math.prod(shape)
    launch_elementwise(
        function(BITS, "random_bits"), -(-size // 4), (bits, numpy.int64(size), *_numbers(seed, draw, site))
    )
    return bits


def _numbers(seed, draw, site: int):
    """The draw number and the key as 32-bit words."""
    return [numpy.uint32(word) for word in (*split(draw_number(draw, site)), *split(seed_number(seed)))]


def dropout(xp, x, seed, draw, *, p, site=0):
    """The eager rule of dropout."""
    threshold = keep_threshold(1 - p)
    if threshold == ALL_KEPT and p == 0:
        return x.copy()
    y = cupy.empty(x.shape, x.dtype)
    args = (
        cupy.ascontiguousarray(x),
        y,
        numpy.int64(x.size),
        numpy.uint64(threshold),
        numpy.float64(scale_of(p)),
        *_numbers(seed, draw, site),
    )
    launch_elementwise(function(DROPOUT, "dropout", T=x.dtype), -(-x.size // 4), args)
    return y
