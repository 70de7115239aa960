"""Sums down the columns of a matrix, in two steps of fixed order without atomics: blocks of threads sum chunks of the
rows, then the sums of the chunks are added.
"""

from __future__ import annotations

import cupy
import numpy

from ..ops.composite.blocks import compute_type
from .compile import function

# column_sums: 32 by 8 threads; block (i, k) sums chunk k of the rows into row k of `partial`.
# sum_partials: 32 by 8 threads; block (i, k) adds up matrix k of `partial`.
BODY = r"""
typedef compute_of<T>::type C;

// The sum over y of what each thread has, for those of y = 0.
__device__ C sum_over_y(C x) {
  __shared__ C parts[8][33];
  __syncthreads();  // parts may still be read from the last call
  parts[threadIdx.y][threadIdx.x] = x;
  __syncthreads();
  for (int k = 1; k < 8 && !threadIdx.y; k++) x += parts[k][threadIdx.x];
  return x;
}

template <int N> __device__ void sum_chunk(const T* x, C* partial, i64 rows, i64 columns, i64 chunk) {
  struct alignas(N * sizeof(T)) Group { T of[N]; };
  i64 stop = smaller((i64)(blockIdx.y + 1) * chunk, rows);
  for (i64 left = blockIdx.x * 32; left < columns / N; left += gridDim.x * 32) {
    i64 j = (left + threadIdx.x) * N;
    C total[N] = {};
    if (j < columns) {
      #pragma unroll 4
      for (i64 i = blockIdx.y * chunk + threadIdx.y; i < stop; i += 8) {
        Group group = *(const Group*)(x + i * columns + j);
        for (int k = 0; k < N; k++) total[k] += widen(group.of[k]);
      }
    }
    for (int k = 0; k < N; k++) {
      C sum = sum_over_y(total[k]);
      if (!threadIdx.y && j < columns) partial[blockIdx.y * columns + j + k] = sum;
    }
  }
}

extern "C" __global__ void column_sums(const T* x, C* partial, i64 rows, i64 columns, i64 chunk) {
  const int N = Pack<T>::SIZE;
  if (is_aligned(x) && columns % N == 0) sum_chunk<N>(x, partial, rows, columns, chunk);
  else sum_chunk<1>(x, partial, rows, columns, chunk);
}

extern "C" __global__ void sum_partials(const C* partial, T* result, i64 chunks, i64 columns) {
  i64 j = blockIdx.x * 32 + threadIdx.x;
  partial += blockIdx.y * chunks * columns;
  C total = 0;
  if (j < columns)
    for (i64 k = threadIdx.y; k < chunks; k += 8) total += partial[k * columns + j];
  total = sum_over_y(total);
  if (!threadIdx.y && j < columns) store(result + blockIdx.y * columns + j, total);
}
"""


def chunks_of(rows: int, column_blocks: int) -> tuple[int, int]:
    """(number of chunks, rows of a chunk): about 1024 blocks, and no more than one for 32 rows. The split depends on
    shapes alone, so that sums are the same on any GPU.
    """
    chunk = -(-rows // max(min(1024 // column_blocks, -(-rows // 32)), 1))
    return -(-rows // chunk), chunk


def column_sums(x, rows: int, columns: int):
    """The sums of a contiguous array [rows, columns], in its dtype."""
    if not x.size:
        return cupy.zeros(columns, x.dtype)
    blocks = -(-columns // (32 * (16 // x.itemsize)))
    num_chunks, chunk = chunks_of(rows, blocks)
    partial = cupy.ndarray((num_chunks, columns), compute_type(x.dtype))
    args = (x, partial, numpy.int64(rows), numpy.int64(columns), numpy.int64(chunk))
    function(BODY, "column_sums", T=x.dtype)((blocks, num_chunks), (32, 8), args)
    return sum_partials(partial, 1, columns, x.dtype).reshape(columns)


def sum_partials(partial, count: int, columns: int, dtype):
    """partial[count * chunks, columns] in the compute type: the sums over each of `count` groups of chunks."""
    result = cupy.ndarray((count, columns), dtype)
    args = (partial, result, numpy.int64(partial.shape[0] // count), numpy.int64(columns))
    function(BODY, "sum_partials", T=dtype)((-(-columns // 32), count), (32, 8), args)
    return result
