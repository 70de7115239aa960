"""cross_entropy and its gradient. One block of threads per row;

rules for ignored rows, NaN and bad targets as on the CPU.
"""

from __future__ import annotations

import cupy
import numpy

from ..ops.composite.blocks import compute_type
from ..ops.composite.cross_entropy import out_of_range_message
from .compile import function, threads_for
from .range_check import RangeCheck

BODY = r"""
typedef compute_of<T>::type C;
#define LOWEST (sizeof(C) == 8 ? C(-1.7976931348623157e308) : C(-3.4028234663852886e38f))

__device__ bool is_kept(i64 target, i64 columns, i64 ignore) {
  return target != ignore && target >= 0 && target < columns;
}

// Of the elements that a thread has seen: the largest (finite, so that -inf - largest is no NaN), the sum of
// exp(x - largest), the sum. One pass: where a larger one comes the sum so far shrinks.
struct Seen {
  C largest = LOWEST, exponentials = 0, total = 0;
  template <int N> __device__ void take(const T* x) {
    C values[N], top = largest;
    for (int k = 0; k < N; k++) top = larger((C)(values[k] = widen(x[k])), top);
    exponentials *= exp_(largest - top);
    for (int k = 0; k < N; k++) {
      exponentials += exp_(values[k] - top);
      total += values[k];
    }
    largest = top;
  }
};

extern "C" __global__ void row_losses(
    const T* x, const I* target, C* losses, C* lse, i64 columns, i64 ignore, double smoothing) {
  i64 row = blockIdx.x, wanted = target[row];
  x += row * columns;
  Seen seen;
  i64 packs = is_aligned(x) ? columns / Pack<T>::SIZE : 0;
  #pragma unroll 4
  for (i64 i = threadIdx.x; i < packs; i += blockDim.x) {
    Pack<T> pack = ((const Pack<T>*)x)[i];
    seen.take<Pack<T>::SIZE>(pack.of);
  }
  for (i64 j = packs * Pack<T>::SIZE + threadIdx.x; j < columns; j += blockDim.x) seen.take<1>(x + j);
  C largest = block_max(seen.largest, LOWEST);
  C exponentials = block_sum(seen.exponentials * exp_(seen.largest - largest)), total = seen.total;
  if (smoothing != 0) total = block_sum(total);
  if (threadIdx.x) return;
  C normalizer = log_(exponentials) + largest;
  lse[row] = normalizer;
  C loss = 0;
  if (is_kept(wanted, columns, ignore)) {
    loss = normalizer - C(1 - smoothing) * widen(x[wanted]);
    if (smoothing != 0) loss -= C(smoothing) * (total / C(columns));
  }
  losses[row] = loss;
}

// One block: the reduced loss (mode 1 mean, 0 sum), and the largest target out of range where there is one.
extern "C" __global__ void reduce_losses(
    const C* losses, const I* target, T* result, i64* worst, i64 rows, i64 columns, i64 ignore, int mode) {
  C total = 0;
  i64 kept = 0, bad = (i64)1 << 63;
  for (i64 i = threadIdx.x; i < rows; i += blockDim.x) {
    i64 wanted = target[i];
    total += losses[i];
    kept += wanted != ignore;
    if (wanted != ignore && (wanted < 0 || wanted >= columns)) bad = larger(bad, wanted);
  }
  total = block_sum(total);
  kept = block_sum(kept);
  bad = block_max(bad, (i64)1 << 63);
  if (threadIdx.x) return;
  if (mode >= 0) store(result, mode ? total / C(kept) : total);
  if (bad != (i64)1 << 63) *worst = bad;
}

extern "C" __global__ void count_kept(const I* target, C* count, i64 rows, i64 ignore) {
  i64 kept = 0;
  for (i64 i = threadIdx.x; i < rows; i += blockDim.x) kept += target[i] != ignore;
  kept = block_sum(kept);
  if (threadIdx.x == 0) *count = C(kept);
}

// grad_step: 0 where one gradient serves all rows, 1 where each row has its own. count: null unless the mean was taken.
extern "C" __global__ void cross_entropy_backward(
    const T* grad, const T* x, const I* target, const C* lse, const C* count, T* dx, i64 columns, i64 ignore,
    double smoothing, i64 grad_step) {
  i64 row = blockIdx.x, wanted = target[row];
  x += row * columns;
  dx += row * columns;
  if (!is_kept(wanted, columns, ignore)) {
    for (i64 j = threadIdx.x; j < columns; j += blockDim.x) store(dx + j, C(0));
    return;
  }
  C factor = widen(grad[row * grad_step]), normalizer = lse[row], miss = C(smoothing / (double)columns);
  if (count) factor /= *count;
  auto gradient = [&](T x, i64 j) {
    return (exp_(widen(x) - normalizer) - miss - (j == wanted ? C(1 - smoothing) : C(0))) * factor;
  };
  const int N = Pack<T>::SIZE;
  i64 packs = is_aligned(x) && is_aligned(dx) ? columns / N : 0;
  #pragma unroll 2
  for (i64 i = threadIdx.x; i < packs; i += blockDim.x) {
    Pack<T> pack = ((const Pack<T>*)x)[i];
    for (int k = 0; k < N; k++) store(pack.of + k, gradient(pack.of[k], i * N + k));
    ((Pack<T>*)dx)[i] = pack;
  }
  for (i64 j = packs * N + threadIdx.x; j < columns; j += blockDim.x) store(dx + j, gradient(x[j], j));
}
"""
_MODES = {"mean": 1, "sum": 0, "none": -1}


def cross_entropy(xp, logits, target, *, ignore_index, label_smoothing, reduction):
    """The eager rule of cross_entropy."""
    x, target = cupy.ascontiguousarray(logits), cupy.ascontiguousarray(target)
    rows, columns = x.shape
    losses, lse = cupy.empty((2, rows), compute_type(x.dtype))
    ignore = numpy.int64(ignore_index)
    types = {"T": x.dtype, "I": target.dtype}
    if rows:
        args = (x, target, losses, lse, numpy.int64(columns), ignore, numpy.float64(label_smoothing))
        function(BODY, "row_losses", **types)((rows,), (threads_for(columns),), args)
    result = cupy.empty((), x.dtype)
    check = RangeCheck()
    args = (
        losses,
        target,
        result,
        check.pointer,
        numpy.int64(rows),
        numpy.int64(columns),
        ignore,
        numpy.int32(_MODES[reduction]),
    )
    function(BODY, "reduce_losses", **types)((1,), (1024,), args)
    check.launched(out_of_range_message(columns, ignore_index))
    return losses.astype(x.dtype, copy=False) if reduction == "none" else result, lse


def cross_entropy_backward(xp, grad, logits, target, lse, *, ignore_index, label_smoothing, reduction):
    """The eager rule of cross_entropy_backward."""
    x, target, grad = (cupy.ascontiguousarray(a) for a in (logits, target, grad))
    rows, columns = x.shape
    dx = cupy.empty(x.shape, x.dtype)
    if not dx.size:
        return dx
    ignore = numpy.int64(ignore_index)
    types = {"T": x.dtype, "I": target.dtype}
    count = numpy.uint64(0)
    if reduction == "mean":
        count = cupy.empty((), lse.dtype)
        function(BODY, "count_kept", **types)((1,), (1024,), (target, count, numpy.int64(rows), ignore))
    scalars = (numpy.int64(columns), ignore, numpy.float64(label_smoothing), numpy.int64(reduction == "none"))
    args = (grad, x, target, cupy.ascontiguousarray(lse), count, dx, *scalars)
    function(BODY, "cross_entropy_backward", **types)((rows,), (threads_for(columns),), args)
    return dx
