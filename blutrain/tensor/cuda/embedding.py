"""embedding and its gradient: each row of the table is summed by one block of threads, over its ids in their order, so no
atomics on floats.
"""

from __future__ import annotations

import cupy
import numpy

from ..ops.composite.blocks import as_rows
from ..ops.composite.embedding import out_of_range_message
from .compile import function, threads_for
from .range_check import RangeCheck

BODY = r"""
typedef compute_of<T>::type C;

extern "C" __global__ void embedding(const T* table, const I* ids, T* result, i64* worst, i64 rows, i64 columns) {
  i64 id = ids[blockIdx.x];
  if (id < 0 || id >= rows) {  // its row stays undefined; a maximum of integers: the same whatever the order
    if (threadIdx.x == 0) atomicMax(worst, id);
    return;
  }
  for (i64 j = threadIdx.x; j < columns; j += blockDim.x) result[blockIdx.x * columns + j] = table[id * columns + j];
}

// For each row of the table: where its id stands first (as count - i, so that 0 is nowhere), and how often.
extern "C" __global__ void find_ids(const I* ids, u64* first, u64* times, i64 count, i64 rows, i64 padding) {
  i64 i = blockIdx.x * (i64)blockDim.x + threadIdx.x;
  if (i >= count) return;
  i64 id = ids[i];
  if (id < 0 || id >= rows || id == padding) return;
  atomicMax(first + id, (u64)(count - i));
  atomicAdd(times + id, (u64)1);
}

// Block (i, k) sums for the id at position i, if it stands first there. It looks for the others in steps of a position
// a thread: those of a step are listed in their order, and their rows added in it.
extern "C" __global__ void embedding_backward(
    const T* grad, const I* ids, const u64* first, const u64* times, T* table, i64 count, i64 columns, i64 rows) {
  __shared__ i64 places[256];
  __shared__ int found[8];
  i64 start = blockIdx.x, j = blockIdx.y * (i64)blockDim.x + threadIdx.x, id = ids[start];
  if (id < 0 || id >= rows || first[id] != (u64)(count - start)) return;
  C total = j < columns ? widen(grad[start * columns + j]) : C(0);
  i64 left = times[id] - 1;
  for (i64 i = start + 1 + threadIdx.x; left > 0; i += blockDim.x) {
    bool is_here = i < count && ids[i] == id;
    u32 of_warp = __ballot_sync(0xffffffffu, is_here);
    if (threadIdx.x % 32 == 0) found[threadIdx.x / 32] = __popc(of_warp);
    __syncthreads();
    int before = 0, all = 0;
    for (int w = 0; w < blockDim.x / 32; w++) {
      before += w < threadIdx.x / 32 ? found[w] : 0;
      all += found[w];
    }
    if (is_here) places[before + __popc(of_warp & ((1u << threadIdx.x % 32) - 1))] = i;
    __syncthreads();
    if (j < columns) {
      #pragma unroll 4
      for (int p = 0; p < all; p++) total += widen(grad[places[p] * columns + j]);
    }
    left -= all;
    __syncthreads();  // places and found are still read
  }
  if (j < columns) store(table + id * columns + j, total);
}
"""


def embedding(xp, weight, ids, *, padding_idx):
    """The eager rule of embedding."""
    table, flat = cupy.ascontiguousarray(weight), cupy.ascontiguousarray(ids).reshape(-1)
    rows, columns = table.shape
    result = cupy.empty((flat.size, columns), table.dtype)
    if flat.size:
        check = RangeCheck()
        args = (table, flat, result, check.pointer, numpy.int64(rows), numpy.int64(columns))
        function(BODY, "embedding", T=table.dtype, I=flat.dtype)((flat.size,), (threads_for(columns),), args)
        check.launched(out_of_range_message(rows))
    return result.reshape(*ids.shape, columns)


def embedding_backward(xp, grad, ids, *, num_rows, padding_idx):
    """The eager rule of embedding_backward."""
    rows, flat = as_rows(cupy, grad, 1), cupy.ascontiguousarray(ids).reshape(-1)
    columns, count = rows.shape[1], numpy.int64(flat.size)
    table = cupy.zeros((num_rows, columns), grad.dtype)
    if rows.size:
        first, times = cupy.zeros((2, num_rows), numpy.uint64)
        padding = numpy.int64(-1 if padding_idx is None else padding_idx)
        args = (flat, first, times, count, numpy.int64(num_rows), padding)
        types = {"T": grad.dtype, "I": flat.dtype}
        function(BODY, "find_ids", **types)((-(-flat.size // 256),), (256,), args)
        args = (rows, flat, first, times, table, count, numpy.int64(columns), numpy.int64(num_rows))
        threads = min(threads_for(4 * columns), 256)
        grid = flat.size, -(-columns // threads)
        function(BODY, "embedding_backward", **types)(grid, (threads,), args)
    return table
