"""Optimizer updates over many parameters in one launch, by a table of pointers among its arguments."""

from __future__ import annotations

import functools

import cupy
import numpy

from ..ops.composite.update import NUM_TENSORS
from .compile import function

# Elements a block of threads updates: large enough to hide the walk through the table, small enough to spread one
# matrix over a GPU.
CHUNK = 1 << 14
# Rows of the table: the arguments of a launch have 4096 bytes.
ROWS = 60
_TABLE = numpy.dtype((numpy.void, ROWS * 8 * 8))  # CuPy hands over one element of any type by value

# Each parameter has a row in `table`: pointers of old p, g and state, of new p and state, its number of elements.
# Types: P parameter, G gradient, S0 and S1 state; C: what all of it is computed in.
HEAD = (
    f"#define CHUNK {CHUNK}\n#define ROWS {ROWS}"
    + r"""
typedef compute_of<P>::type C;
struct Row {
  const P* p; const G* g; const S0* s0; const S1* s1;
  P* new_p; S0* new_s0; S1* new_s1;
  i64 size;
};
struct Table { Row of[ROWS]; };

// f(p, g, s0, s1) changes numbers for each element; state that the update does not have is 0 and not written.
template <class F> __device__ void each_element_of(const Row& row, i64 first, F f) {
  i64 stop = smaller(first + (i64)CHUNK, row.size);
  u64 addresses = (u64)row.p | (u64)row.g | (u64)row.s0 | (u64)row.s1 | (u64)row.new_p | (u64)row.new_s0 | (u64)row.new_s1;
  i64 fours = addresses % sizeof(Four<double>) == 0 ? (stop - first) / 4 : 0;
  for (i64 k = threadIdx.x; k < fours; k += blockDim.x) {
    i64 i = first / 4 + k;
    Four<P> p = ((const Four<P>*)row.p)[i];
    Four<G> g = ((const Four<G>*)row.g)[i];
    Four<S0> s0 = {};
    Four<S1> s1 = {};
    if (row.s0) s0 = ((const Four<S0>*)row.s0)[i];
    if (row.s1) s1 = ((const Four<S1>*)row.s1)[i];
    for (int e = 0; e < 4; e++) {
      C parameter = widen(p.of[e]), first_state = widen(s0.of[e]), second_state = widen(s1.of[e]);
      f(parameter, (C)widen(g.of[e]), first_state, second_state);
      store(p.of + e, parameter);
      store(s0.of + e, first_state);
      store(s1.of + e, second_state);
    }
    ((Four<P>*)row.new_p)[i] = p;
    if (row.s0) ((Four<S0>*)row.new_s0)[i] = s0;
    if (row.s1) ((Four<S1>*)row.new_s1)[i] = s1;
  }
  for (i64 i = first + 4 * fours + threadIdx.x; i < stop; i += blockDim.x) {
    C parameter = widen(row.p[i]), first_state = row.s0 ? (C)widen(row.s0[i]) : C(0);
    C second_state = row.s1 ? (C)widen(row.s1[i]) : C(0);
    f(parameter, (C)widen(row.g[i]), first_state, second_state);
    store(row.new_p + i, parameter);
    if (row.s0) store(row.new_s0 + i, first_state);
    if (row.s1) store(row.new_s1 + i, second_state);
  }
}
"""
)
BODY = (
    HEAD
    + r"""
extern "C" __global__ void adamw(
    const Table table, const int* owner, const i64* start, double beta1, double rest1, double beta2, double rest2,
    double eps, double step, double root, double decay, double coupled) {
  each_element_of(table.of[owner[blockIdx.x]], start[blockIdx.x], [=](C& p, C g, C& m, C& v) {
    g += p * C(coupled);
    m = m * C(beta1) + g * C(rest1);
    v = v * C(beta2) + g * g * C(rest2);
    p = p * C(decay) - m / (sqrt_(v) * C(root) + C(eps)) * C(step);
  });
}

extern "C" __global__ void sgd(const Table table, const int* owner, const i64* start, double lr, double weight_decay) {
  each_element_of(table.of[owner[blockIdx.x]], start[blockIdx.x], [=](C& p, C g, C&, C&) {
    p -= (g + p * C(weight_decay)) * C(lr);
  });
}

extern "C" __global__ void sgd_momentum(
    const Table table, const int* owner, const i64* start, double lr, double momentum, double rest, double weight_decay,
    int nesterov) {
  each_element_of(table.of[owner[blockIdx.x]], start[blockIdx.x], [=](C& p, C g, C& velocity, C&) {
    g += p * C(weight_decay);
    velocity = velocity * C(momentum) + g * C(rest);
    p -= (nesterov ? g + velocity * C(momentum) : velocity) * C(lr);
  });
}
"""
)


def update_many(name: str, rows, scalars, **attrs) -> None:
    """Update in place: each of `rows` is (p, g, *state) as arrays;

    scalars and attrs as the primitive `name` takes them.
    """
    in_place = [(row, (row[0], *row[2:])) for row in rows]
    _update(name, in_place, scalars, attrs)


def update_rule(name: str):
    """The eager rule of the pure update primitive `name`."""

    def rule(xp, *operands, **attrs):
        tensors, scalars = operands[: NUM_TENSORS[name]], operands[NUM_TENSORS[name] :]
        outputs = tuple(cupy.empty(a.shape, a.dtype) for a in (tensors[0], *tensors[2:]))
        _update(name, [(tensors, outputs)], [float(s) for s in scalars], attrs)
        return outputs[0] if len(outputs) == 1 else outputs

    return rule


def _update(name: str, rows, scalars, attrs) -> None:
    """Launch for every combination of element types among `rows` of (inputs, outputs)."""
    rows = [row for row in rows if row[0][0].size]
    contiguous = [_contiguous(*row) for row in rows]
    groups: dict[tuple, list] = {}
    for row in contiguous:
        groups.setdefault(tuple([a.dtype for a in row[0]]), []).append(row)
    for group in groups.values():
        for first in range(0, len(group), ROWS):
            _launch(name, group[first : first + ROWS], scalars, attrs)
    for (_, outputs), (_, written) in zip(rows, contiguous, strict=True):
        if written is not outputs:
            for output, array in zip(outputs, written, strict=True):
                if array is not output:
                    output[...] = array


def _contiguous(inputs, outputs):
    """The same with contiguous arrays; outputs that are not get a stand-in to be copied back."""
    for a in (*inputs, *outputs):
        if not a.flags.c_contiguous:
            break
    else:
        return inputs, outputs
    ready = tuple(cupy.ascontiguousarray(a) for a in inputs)
    return ready, tuple(a if a.flags.c_contiguous else cupy.empty(a.shape, a.dtype) for a in outputs)


def _launch(name: str, rows, scalars, attrs) -> None:
    inputs = rows[0][0]
    types = [a.dtype for a in inputs] + [inputs[0].dtype] * (4 - len(inputs))
    kernel_name, numbers = _ARGUMENTS[name](*scalars, **attrs)
    kernel = function(BODY, kernel_name, P=types[0], G=types[1], S0=types[2], S1=types[3])
    sizes = tuple([inputs[0].size for inputs, _ in rows])
    owner, start = _chunks(sizes, cupy.cuda.runtime.getDevice())
    table = numpy.zeros((ROWS, 8), numpy.int64)
    table[: len(rows)] = [_row(*row) for row in rows]
    kernel((owner.size,), (512,), (table.reshape(-1).view(_TABLE), owner, start, *numbers))


def _row(inputs, outputs) -> list[int]:
    """Eight numbers: pointers (0 for state that an update does not have) and the size."""
    old, new = [a.data.ptr for a in inputs], [a.data.ptr for a in outputs]
    return [*old, *[0] * (4 - len(old)), *new, *[0] * (3 - len(new)), inputs[0].size]


@functools.lru_cache(maxsize=64)
def _chunks(sizes: tuple[int, ...], device: int):
    """For each block of threads: the row it works on, and the element it starts at."""
    owner = [i for i, size in enumerate(sizes) for _ in range(0, size, CHUNK)]
    start = [first for size in sizes for first in range(0, size, CHUNK)]
    return cupy.asarray(numpy.array(owner, numpy.int32)), cupy.asarray(numpy.array(start, numpy.int64))


def _adam_arguments(decoupled: bool):
    def arguments(lr, beta1, beta2, eps, weight_decay, correction1, correction2):
        decay, coupled = (1 - lr * weight_decay, 0.0) if decoupled else (1.0, weight_decay)
        numbers = (beta1, 1 - beta1, beta2, 1 - beta2, eps, lr / correction1, 1 / correction2**0.5, decay, coupled)
        return "adamw", [numpy.float64(n) for n in numbers]

    return arguments


def _sgd_arguments(lr, weight_decay):
    return "sgd", [numpy.float64(lr), numpy.float64(weight_decay)]


def _momentum_arguments(lr, momentum, dampening, weight_decay, *, nesterov):
    numbers = [numpy.float64(n) for n in (lr, momentum, 1 - dampening, weight_decay)]
    return "sgd_momentum", [*numbers, numpy.int32(nesterov)]


_ARGUMENTS = {
    "adamw": _adam_arguments(True),
    "adam": _adam_arguments(False),
    "sgd": _sgd_arguments,
    "sgd_momentum": _momentum_arguments,
}
