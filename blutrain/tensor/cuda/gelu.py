"""gelu and its gradient, one kernel each. The formulas and limits are those of ops/composite/gelu.py."""

from __future__ import annotations

import cupy
import numpy

from .compile import function, launch_elementwise

BODY = r"""
typedef compute_of<T>::type C;
#define BOUND C(100)
#define SCALE C(0.7978845608028654)
#define CUBIC C(0.044715)

__device__ C clamped(C x) { return x < -BOUND ? -BOUND : x > BOUND ? BOUND : x; }
__device__ C half_tanh(C z) { return C(0.5) * tanh_(SCALE * (z + CUBIC * z * z * z)); }
__device__ C cdf(C z, int approximate) {
  return C(0.5) + (approximate ? half_tanh(z) : C(0.5) * erf_(z * C(0.7071067811865476)));
}
__device__ C slope(C z, int approximate) {
  if (!approximate) return cdf(z, 0) + z * C(0.3989422804014327) * exp_(C(-0.5) * z * z);
  C h = half_tanh(z);
  return C(0.5) + h + z * (C(0.5) - 2 * h * h) * SCALE * (1 + 3 * CUBIC * z * z);
}

extern "C" __global__ void gelu(const T* x, T* y, i64 size, int approximate) {
  auto f = [=](C x) { return (x < -BOUND ? -BOUND : x) * cdf(clamped(x), approximate); };
  map_elements(size, OF_GRID, f, y, x);
}

extern "C" __global__ void gelu_backward(const T* grad, const T* x, T* dx, i64 size, int approximate) {
  map_elements(size, OF_GRID, [=](C g, C x) { return g * slope(clamped(x), approximate); }, dx, grad, x);
}
"""


def gelu(xp, x, *, approximate):
    """The eager rule of gelu."""
    return _launch("gelu", (x,), approximate)


def gelu_backward(xp, grad, x, *, approximate):
    """The eager rule of gelu_backward."""
    return _launch("gelu_backward", (grad, x), approximate)


def _launch(name: str, arrays, approximate: str):
    result = cupy.empty(arrays[-1].shape, arrays[-1].dtype)
    arrays = [cupy.ascontiguousarray(a) for a in arrays]
    kernel = function(BODY, name, T=result.dtype)
    launch_elementwise(
        kernel, result.size, (*arrays, result, numpy.int64(result.size), numpy.int32(approximate == "tanh")), each=4
    )
    return result
