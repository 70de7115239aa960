"""embedding and its gradient: each row of the table is summed by one block, over its ids in their order, so no
atomics on floats.
"""

from __future__ import annotations

import cupy
import numpy

from ..ops.composite.blocks import as_rows
from ..ops.composite.check import fail
from ..ops.composite.embedding import out_of_range_message
from .compile import function, threads_for

BODY = r"""
typedef compute_of<T>::type C;

extern "C" __global__ void embedding(const T* table, const I* ids, T* result, i64* worst, i64 rows, i64 columns) {
  i64 id = ids[blockIdx.x];
  if (id < 0 || id >= rows) {  // a maximum of integers: the same whatever the order
    if (threadIdx.x == 0) atomicMax(worst, id);
    return;
  }
  for (i64 j = threadIdx.x; j < columns; j += blockDim.x) result[blockIdx.x * columns + j] = table[id * columns + j];
}

// `sorted`: the ids in order, `order`: where each stood. Block (i, k) sums for the id at sorted position i, if it is
// the first of its kind.
extern "C" __global__ void embedding_backward(
    const T* grad, const I* sorted, const i64* order, T* table, i64 count, i64 columns, i64 padding) {
  i64 i = blockIdx.x, id = sorted[i];
  if (id == padding || (i > 0 && sorted[i - 1] == id)) return;
  i64 j = blockIdx.y * (i64)blockDim.x + threadIdx.x;
  if (j >= columns) return;
  C total = 0;
  for (; i < count && sorted[i] == id; i++) total += widen(grad[order[i] * columns + j]);
  store(table + id * columns + j, total);
}
"""
_NONE_BAD = -(1 << 63)


def embedding(xp, weight, ids, *, padding_idx):
    """The eager rule of embedding. Waits for the GPU: an id out of range raises here, not later."""
    table, flat = cupy.ascontiguousarray(weight), cupy.ascontiguousarray(ids).reshape(-1)
    rows, columns = table.shape
    result = cupy.empty((flat.size, columns), table.dtype)
    if flat.size:
        worst = cupy.full((), _NONE_BAD, numpy.int64)
        args = (table, flat, result, worst, numpy.int64(rows), numpy.int64(columns))
        function(BODY, "embedding", T=table.dtype, I=flat.dtype)((flat.size,), (threads_for(columns),), args)
        bad = int(worst)
        if bad != _NONE_BAD:
            fail(out_of_range_message(rows), bad)
    return result.reshape(*ids.shape, columns)


def embedding_backward(xp, grad, ids, *, num_rows, padding_idx):
    """The eager rule of embedding_backward."""
    rows, flat = as_rows(cupy, grad, 1), cupy.ascontiguousarray(ids).reshape(-1)
    columns = rows.shape[1]
    table = cupy.zeros((num_rows, columns), grad.dtype)
    if rows.size:
        order = cupy.argsort(flat).astype(numpy.int64, copy=False)  # CuPy's sort is stable
        padding = numpy.int64(-1 if padding_idx is None else padding_idx)
        args = (rows, flat[order], order, table, numpy.int64(flat.size), numpy.int64(columns), padding)
        threads = min(threads_for(4 * columns), 256)
        function(BODY, "embedding_backward", T=grad.dtype, I=flat.dtype)(
            (flat.size, -(-columns // threads)), (threads,), args
        )
    return table
