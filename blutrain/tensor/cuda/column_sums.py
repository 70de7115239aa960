"""Sums down the columns of a matrix in one launch, without atomics on floats: blocks of threads sum chunks of the rows, and
the block that comes last to its columns adds up the chunks in their order, whichever block it is.
"""

from __future__ import annotations

import functools
from typing import Any

import cupy
import numpy

from ..ops.composite.blocks import compute_type
from .compile import function

# For kernels of 32 by 8 threads whose block (i, k) sums chunk k of the rows of some columns.
SUMS = r"""
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

// Every block calls it once it has left its sums of `width` columns in row k of the matrices partial[chunks, columns].
// `arrived` counts the blocks at those columns, and is 0 again in the end.
__device__ void add_chunks(const C* partial, int matrices, T* result, u32* arrived, i64 columns, int width) {
  __shared__ bool is_last;
  __threadfence();
  __syncthreads();
  if (!threadIdx.x && !threadIdx.y) is_last = atomicAdd(arrived + blockIdx.x, 1u) == gridDim.y - 1;
  __syncthreads();
  if (!is_last) return;
  if (!threadIdx.x && !threadIdx.y) arrived[blockIdx.x] = 0;
  __threadfence();
  for (int i = 0; i < matrices; i++, partial += gridDim.y * columns, result += columns)
    for (int left = 0; left < width; left += 32) {
      i64 j = blockIdx.x * (i64)width + left + threadIdx.x;
      C total = 0;
      if (j < columns) {
        #pragma unroll 4
        for (int k = threadIdx.y; k < gridDim.y; k += 8) total += __ldcg(partial + k * columns + j);
      }
      total = sum_over_y(total);
      if (!threadIdx.y && j < columns) store(result + j, total);
    }
}
"""
BODY = (
    SUMS
    + r"""
// N columns a thread: more than one only where all of their groups are aligned.
template <int N> __device__ void sums(const T* x, C* partial, T* result, u32* arrived, i64 rows, i64 columns, i64 chunk) {
  struct alignas(N * sizeof(T)) Group { T of[N]; };
  i64 j = (blockIdx.x * 32 + threadIdx.x) * N, stop = smaller((i64)(blockIdx.y + 1) * chunk, rows);
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
  add_chunks(partial, 1, result, arrived, columns, 32 * N);
}

extern "C" __global__ void column_sums(
    const T* x, C* partial, T* result, u32* arrived, i64 rows, i64 columns, i64 chunk, int is_wide) {
  if (is_wide) sums<Pack<T>::SIZE>(x, partial, result, arrived, rows, columns, chunk);
  else sums<1>(x, partial, result, arrived, rows, columns, chunk);
}
"""
)


class Split:
    """How the rows are cut for blocks of `width` columns: about 1024 blocks, and no more than one for 32 rows. It depends on
    shapes alone, so that sums are the same on any GPU.
    """

    def __init__(self, rows: int, columns: int, width: int):
        blocks = -(-columns // width)
        self.chunk = -(-rows // max(min(1024 // blocks, -(-rows // 32)), 1))
        self.grid = blocks, -(-rows // self.chunk)
        self.columns = columns

    def memory(self, matrices: int, dtype) -> tuple[Any, Any, Any]:
        """(partial, result, arrived) of add_chunks."""
        partial = cupy.ndarray((matrices * self.grid[1], self.columns), compute_type(dtype))
        arrived = _arrived(cupy.cuda.get_current_stream().ptr, cupy.cuda.runtime.getDevice(), self.grid[0])
        return partial, cupy.ndarray((matrices, self.columns), dtype), arrived


@functools.cache
def _arrived(stream: int, device: int, blocks: int):
    """Counters that kernels of one stream use one after the other."""
    return cupy.zeros(blocks, numpy.uint32)


def column_sums(x, rows: int, columns: int):
    """The sums of a contiguous array [rows, columns], in its dtype."""
    if not x.size:
        return cupy.zeros(columns, x.dtype)
    pack = 16 // x.itemsize
    is_wide = columns % pack == 0 and x.data.ptr % 16 == 0
    split = Split(rows, columns, 32 * pack if is_wide else 32)
    partial, result, arrived = split.memory(1, x.dtype)
    sizes = numpy.int64(rows), numpy.int64(columns), numpy.int64(split.chunk)
    args = (x, partial, result, arrived, *sizes, numpy.int32(is_wide))
    function(BODY, "column_sums", T=x.dtype)(split.grid, (32, 8), args)
    return result.reshape(columns)
