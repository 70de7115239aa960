"""Eager rules in cache-sized blocks.

A NumPy expression of twenty steps over a large array moves twenty arrays through memory; over blocks that stay in the
second-level cache it moves one. Narrow floats are widened block by block, so a float16 input never exists as a whole
in float32.
"""

from __future__ import annotations

import numpy

# Elements of a block: 128 KB of float32, so that an input, an output and a few temporaries share a cache of 1 MB; below
# 32 KB the cost of the NumPy calls shows. Measured on an EPYC core: 1 << 14 to 1 << 18 are within 20 %.
BLOCK = 1 << 15


def compute_type(dtype: numpy.dtype) -> numpy.dtype:
    """The np.dtype arithmetic happens in: float32 for float16 and bfloat16, the dtype itself otherwise."""
    return numpy.dtype(numpy.float32) if dtype.itemsize == 2 else dtype


def widen(array):
    """`array` in its compute dtype; itself where it is there already."""
    return array.astype(compute_type(array.dtype), copy=False)


def narrow(array, dtype):
    """`array` rounded once to `dtype`; itself where it has it already."""
    return array.astype(dtype, copy=False)


def map_blocks(xp, rule, arrays, *, num_temporaries: int = 0):
    """Elementwise: `rule(xp, inputs, (result,), temporaries)` over blocks of `arrays`, all of one shape.

    Returns the result, C-contiguous, of the first array's shape and dtype.
    """
    result = xp.empty(arrays[0].shape, arrays[0].dtype)
    map_blocks_into(xp, rule, arrays, (result,), num_temporaries=num_temporaries)
    return result


def map_blocks_into(xp, rule, arrays, outputs, *, num_temporaries: int = 0) -> None:
    """Elementwise: `rule(xp, inputs, results, temporaries)` fills blocks of `outputs` (C-contiguous) from blocks of
    `arrays`.

    The lists hold 1-d blocks in the compute dtype of the first array. `rule` must not write `inputs`; an output may
    be one of the inputs, so it reads an element before it writes it. CuPy gets everything as one block.
    """
    compute = compute_type(arrays[0].dtype)
    flat_inputs = [xp.ascontiguousarray(a).reshape(-1) for a in arrays]
    flat_outputs = [a.reshape(-1) for a in outputs]
    size = flat_inputs[0].size
    block = max(min(size, BLOCK) if xp is numpy else size, 1)
    scratch = [xp.empty(block, compute) for _ in range(num_temporaries)]
    staging = [None if a.dtype == compute else xp.empty(block, compute) for a in outputs]
    for start in range(0, size, block):
        stop = min(start + block, size)
        inputs = [a[start:stop].astype(compute, copy=False) for a in flat_inputs]
        places = [a[start:stop] for a in flat_outputs]
        results = [place if wide is None else wide[: stop - start] for place, wide in zip(places, staging, strict=True)]
        rule(xp, inputs, results, [a[: stop - start] for a in scratch])
        for place, result in zip(places, results, strict=True):
            if place is not result:
                place[...] = result


def row_blocks(xp, num_rows: int, num_columns: int):
    """Slices that cut `num_rows` rows of `num_columns` elements into blocks of about BLOCK elements (CuPy: one
    block).
    """
    step = max(BLOCK // max(num_columns, 1), 1) if xp is numpy else max(num_rows, 1)
    for start in range(0, num_rows, step):
        yield slice(start, min(start + step, num_rows))


def as_rows(xp, array, num_dims: int):
    """`array` as a contiguous matrix: its last `num_dims` dimensions are the columns."""
    split = array.ndim - num_dims
    rows, columns = 1, 1
    for extent in array.shape[:split]:
        rows *= extent
    for extent in array.shape[split:]:
        columns *= extent
    return xp.ascontiguousarray(array).reshape(rows, columns)
