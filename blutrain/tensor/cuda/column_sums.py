"""Sums down the columns of a matrix in one launch, without atomics on floats: blocks of threads sum chunks of the rows, and
the block that comes last to its columns adds up the chunks in their order, whichever block it is.
"""

from __future__ import annotations

import functools

import cupy
import numpy

from ..ops.composite.blocks import compute_type
from .compile import function

SUMS = r"""
typedef compute_of<T>::type C;
template <int N> struct alignas(N * sizeof(T)) Group { T of[N]; };

// The sum over y of what each thread has, for those of y = 0.
__device__ C sum_over_y(C x) {
  __shared__ C parts[8][33];
  __syncthreads();  // parts may still be read from the last call
  parts[threadIdx.y][threadIdx.x] = x;
  __syncthreads();
  for (int k = 1; k < 8 && !threadIdx.y; k++) x += parts[k][threadIdx.x];
  return x;
}

// M sums down each column, of what add(i, j, totals) adds for row i and the N columns from j. Called by 32 by 8 threads;
// block (i, k) has 32 * N columns and chunk k of the rows. partial[M, chunks, columns], result[M, columns]; `arrived` counts
// the blocks that are done with their columns, and is 0 again in the end.
template <int N, int M, class F> __device__ void sum_rows(
    F add, C* partial, T* result, u32* arrived, i64 rows, i64 columns, i64 chunk) {
  __shared__ bool is_last;
  i64 j = (blockIdx.x * 32 + threadIdx.x) * N, stop = smaller((i64)(blockIdx.y + 1) * chunk, rows);
  C totals[M][N] = {};
  if (j < columns) {
    #pragma unroll 4
    for (i64 i = blockIdx.y * chunk + threadIdx.y; i < stop; i += 8) add(i, j, totals);
  }
  for (int m = 0; m < M; m++)
    for (int n = 0; n < N; n++) {
      C sum = sum_over_y(totals[m][n]);
      if (!threadIdx.y && j < columns) partial[(m * gridDim.y + blockIdx.y) * columns + j + n] = sum;
    }
  __threadfence();
  __syncthreads();
  if (!threadIdx.x && !threadIdx.y) is_last = atomicAdd(arrived + blockIdx.x, 1u) == gridDim.y - 1;
  __syncthreads();
  if (!is_last) return;
  if (!threadIdx.x && !threadIdx.y) arrived[blockIdx.x] = 0;
  __threadfence();
  for (int m = 0; m < M; m++, partial += gridDim.y * columns) {
    C sums[N] = {};
    if (j < columns) {
      #pragma unroll 4
      for (int k = threadIdx.y; k < gridDim.y; k += 8)
        for (int n = 0; n < N; n++) sums[n] += __ldcg(partial + k * columns + j + n);
    }
    for (int n = 0; n < N; n++) {
      C sum = sum_over_y(sums[n]);
      if (!threadIdx.y && j < columns) store(result + m * columns + j + n, sum);
    }
  }
}
"""
BODY = (
    SUMS
    + r"""
template <int N> __device__ void sums(const T* x, C* partial, T* result, u32* arrived, i64 rows, i64 columns, i64 chunk) {
  auto add = [=](i64 i, i64 j, C (&totals)[1][N]) {
    Group<N> group = *(const Group<N>*)(x + i * columns + j);
    for (int n = 0; n < N; n++) totals[0][n] += widen(group.of[n]);
  };
  sum_rows<N, 1>(add, partial, result, arrived, rows, columns, chunk);
}

extern "C" __global__ void column_sums(
    const T* x, C* partial, T* result, u32* arrived, i64 rows, i64 columns, i64 chunk, int is_wide) {
  if (is_wide) sums<Pack<T>::SIZE>(x, partial, result, arrived, rows, columns, chunk);
  else sums<1>(x, partial, result, arrived, rows, columns, chunk);
}
"""
)


def column_sums(x, rows: int, columns: int):
    """The sums of a contiguous array [rows, columns], in its dtype."""
    return sum_rows(BODY, (x,), 1, rows, columns).reshape(columns)


def sum_rows(body: str, arrays, count: int, rows: int, columns: int):
    """Launch `column_sums` of a source that calls sum_rows with M = count; the result [count, columns].

    arrays: its first arguments, contiguous, the first of them of type T. N is as many elements as 16 bytes hold where all
    groups of them are aligned, else 1.
    """
    dtype = arrays[0].dtype
    if not arrays[0].size:
        return cupy.zeros((count, columns), dtype)
    pack = 16 // dtype.itemsize
    is_wide = columns % pack == 0 and not any(a.data.ptr % 16 for a in arrays)
    # About 512 blocks, and no more than one for 32 rows: by shapes alone, so that sums are the same on any GPU.
    blocks = -(-columns // (32 * pack if is_wide else 32))
    chunk = -(-rows // max(min(512 // blocks, -(-rows // 32)), 1))
    num_chunks = -(-rows // chunk)
    partial = cupy.ndarray((count * num_chunks, columns), compute_type(dtype))
    result = cupy.ndarray((count, columns), dtype)
    arrived = _arrived(cupy.cuda.get_current_stream().ptr, cupy.cuda.runtime.getDevice(), blocks)
    sizes = numpy.int64(rows), numpy.int64(columns), numpy.int64(chunk), numpy.int32(is_wide)
    kernel = function(body, "column_sums", T=dtype)
    kernel((blocks, num_chunks), (32, 8), (*arrays, partial, result, arrived, *sizes))
    return result


@functools.cache
def _arrived(stream: int, device: int, blocks: int):
    """Counters that kernels of one stream use one after the other."""
    return cupy.zeros(blocks, numpy.uint32)
