"""CUDA C++ sources compiled at run time through CuPy, for the element types they are used with.

A source names its types T, U, ...; `function` puts a prelude in front that defines them, how an element is loaded
into its compute type and stored from it (rounded once), the math functions for float and double, and sums over a
block of threads.
"""

from __future__ import annotations

import functools

import cupy

_TYPES = {"float16": "f16", "bfloat16": "bf16", "float32": "float", "float64": "double"}
_INTEGERS = {
    "int8": "signed char",
    "uint8": "unsigned char",
    "int16": "short",
    "uint16": "unsigned short",
    "int32": "int",
    "int64": "long long",
}

# float16 and bfloat16 without CUDA's headers, which a machine with only a driver may lack.
PRELUDE = r"""
typedef long long i64;
typedef unsigned int u32;
typedef unsigned long long u64;
struct f16 { unsigned short bits; };
struct bf16 { unsigned short bits; };
template <class T> struct compute_of { typedef float type; };
template <> struct compute_of<double> { typedef double type; };

__device__ inline float widen(f16 x) { float y; asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits)); return y; }
__device__ inline float widen(bf16 x) { return __uint_as_float((u32)x.bits << 16); }
__device__ inline float widen(float x) { return x; }
__device__ inline double widen(double x) { return x; }
__device__ inline void store(f16* p, float x) { asm("cvt.rn.f16.f32 %0, %1;" : "=h"(p->bits) : "f"(x)); }
__device__ inline void store(bf16* p, float x) {
  u32 bits = __float_as_uint(x);
  p->bits = x != x ? 0x7fc0 : (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
}
__device__ inline void store(float* p, float x) { *p = x; }
__device__ inline void store(double* p, double x) { *p = x; }

__device__ inline float exp_(float x) { return expf(x); }
__device__ inline double exp_(double x) { return exp(x); }
__device__ inline float log_(float x) { return logf(x); }
__device__ inline double log_(double x) { return log(x); }
__device__ inline float tanh_(float x) { return tanhf(x); }
__device__ inline double tanh_(double x) { return tanh(x); }
__device__ inline float erf_(float x) { return erff(x); }
__device__ inline double erf_(double x) { return erf(x); }
__device__ inline float sqrt_(float x) { return sqrtf(x); }
__device__ inline double sqrt_(double x) { return sqrt(x); }
// 16 bytes of elements: what a thread moves at once where memory is aligned to them.
template <class T> struct alignas(16) Pack {
  static const int SIZE = 16 / sizeof(T);
  T of[SIZE];
};
template <class T> struct alignas(4 * sizeof(T)) Four { T of[4]; };
template <class T> __device__ inline bool is_aligned(const T* p) { return (u64)p % 16 == 0; }

template <class C> __device__ inline C larger(C x, C y) { return x > y ? x : y; }
template <class C> __device__ inline C smaller(C x, C y) { return x < y ? x : y; }

// Sum and maximum over the blockDim.x threads of a row, the same in every thread and every run. They are a multiple of
// 32; a block that has several rows (blockDim.y) has 32 of them for each.
template <class C> __device__ C block_sum(C x) {
  __shared__ C parts[32];
  for (int d = 16; d; d >>= 1) x += __shfl_xor_sync(0xffffffffu, x, d);
  if (blockDim.x == 32) return x;
  __syncthreads();  // parts may still be read from the last call
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = x;
  __syncthreads();
  x = threadIdx.x % 32 < blockDim.x / 32 ? parts[threadIdx.x % 32] : C(0);
  for (int d = 16; d; d >>= 1) x += __shfl_xor_sync(0xffffffffu, x, d);
  return x;
}
template <class C> __device__ C block_max(C x, C lowest) {
  __shared__ C parts[32];
  for (int d = 16; d; d >>= 1) x = larger(x, (C)__shfl_xor_sync(0xffffffffu, x, d));
  if (blockDim.x == 32) return x;
  __syncthreads();
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = x;
  __syncthreads();
  x = threadIdx.x % 32 < blockDim.x / 32 ? parts[threadIdx.x % 32] : lowest;
  for (int d = 16; d; d >>= 1) x = larger(x, (C)__shfl_xor_sync(0xffffffffu, x, d));
  return x;
}

// f(x[i], ...) for those of `size` elements that fall to a thread, of which this is number `first` of `step`.
template <class F, class T, class... In>
__device__ void each_element(i64 size, i64 first, i64 step, F f, const T* x, const In*... more) {
  const int N = Pack<T>::SIZE;
  i64 packs = is_aligned(x) && (is_aligned(more) && ... && true) ? size / N : 0;
  #pragma unroll 4
  for (i64 i = first; i < packs; i += step) {
    auto take = [&](const Pack<T>& pack, const Pack<In>&... others) {
      for (int k = 0; k < N; k++) f(widen(pack.of[k]), widen(others.of[k])...);
    };
    take(((const Pack<T>*)x)[i], ((const Pack<In>*)more)[i]...);
  }
  for (i64 i = packs * N + first; i < size; i += step) f(widen(x[i]), widen(more[i])...);
}

// y[i] = f(x[i], ...) for them.
template <class F, class T, class... In>
__device__ void map_elements(i64 size, i64 first, i64 step, F f, T* y, const In*... x) {
  const int N = Pack<T>::SIZE;
  i64 packs = (is_aligned(y) && ... && is_aligned(x)) ? size / N : 0;
  for (i64 i = first; i < packs; i += step) {
    Pack<T> result;
    auto fill = [&](const Pack<In>&... pack) {
      for (int k = 0; k < N; k++) store(result.of + k, f(widen(pack.of[k])...));
    };
    fill(((const Pack<In>*)x)[i]...);
    ((Pack<T>*)y)[i] = result;
  }
  for (i64 i = packs * N + first; i < size; i += step) store(y + i, f(widen(x[i])...));
}
#define OF_GRID blockIdx.x * (i64)blockDim.x + threadIdx.x, (i64)gridDim.x * blockDim.x
#define OF_ROW threadIdx.x, blockDim.x
"""


def c_type(dtype) -> str:
    """The C name of a NumPy dtype. Errors: KeyError for one without."""
    name = dtype.name
    return _TYPES[name] if name in _TYPES else _INTEGERS[name]


def source_text(body: str, types: tuple[tuple[str, str], ...]) -> str:
    """The whole source: prelude, type names (("T", "float"), ...), body."""
    return PRELUDE + "".join(f"typedef {c} {name};\n" for name, c in types) + body


@functools.cache
def _compiled(body: str, name: str, types: tuple):
    """Remembered by dtypes: to ask NumPy for the name of one takes longer than all else here."""
    named = tuple((key, c_type(dtype)) for key, dtype in types)
    return cupy.RawModule(code=source_text(body, named), options=("--std=c++17",)).get_function(name)


def function(body: str, name: str, **dtypes):
    """Kernel `name` (extern "C") of source `body`, its types bound to NumPy dtypes: `function(BODY, "gelu",
    T=x.dtype)`.
    """
    return _compiled(body, name, tuple(dtypes.items()))


def threads_for(extent: int) -> int:
    """Threads of a block that walks `extent` elements, about four each: a power of two from 32 to 1024."""
    threads = 32
    while threads < 1024 and threads * 4 < extent:
        threads *= 2
    return threads


def grid_of_rows(rows: int, columns: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """(grid, block) of a kernel whose block (i) has rows blockDim.y * i + threadIdx.y: up to 1024 columns a row of 32
    threads and four rows, more columns one row.
    """
    return ((-(-rows // 4),), (32, 4)) if columns <= 1024 else ((rows,), (threads_for(columns // 4),))


def launch_elementwise(kernel, size: int, args, each: int = 1) -> None:
    """Launch a kernel that walks `size` elements in a grid-stride loop, a thread `each` of them at a time."""
    if size:
        kernel((min(-(-size // (256 * each)), 1 << 14),), (256,), args)
