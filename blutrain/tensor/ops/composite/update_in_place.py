"""update_in_place: one step of an optimizer over many parameters, new values written over the old;

on a GPU one launch for all.
"""

from __future__ import annotations

from typing import Any

import numpy

from ... import dispatch, late_checks
from ...primitive import TABLE
from ...tensor import Tensor, write_epoch
from .update import NUM_TENSORS, run_blocks


def update_in_place(name: str, params, grads, states, scalars, **attrs) -> None:
    """Step `params` (real tensors) by update `name` ("adamw", "adam", "sgd", "sgd_momentum").

    grads: one per parameter; states: a tuple of tensors per parameter; scalars: numbers shared by all, in the order
    of the primitive. The same numbers as the primitive followed by assigns, without new memory. Errors: those of the
    primitive.
    """
    late_checks.settle()
    prim, numbers = TABLE[name], [float(s) for s in scalars]
    rows = [(p, g, *state) for p, g, state in zip(params, grads, states, strict=True)]
    of_numbers = [dispatch.aval_of(n) for n in numbers]
    by_device: dict[Any, list] = {}
    for row in rows:
        prim.infer(*[t._aval for t in row], *of_numbers, **attrs)
        by_device.setdefault(dispatch.common_device(name, row, {}), []).append(row)
        if dispatch.recorder is not None:
            for written in (row[0], *row[2:]):
                dispatch.recorder.write(written)
    for device, group in by_device.items():
        arrays = [tuple([t._buffer() for t in row]) for row in group]
        with device.activate():
            if device.is_cpu:
                _on_cpu(name, arrays, numbers, attrs)
            else:
                from ...cuda.update import update_many

                update_many(name, arrays, numbers, **attrs)
        _bump(group)


def _on_cpu(name: str, rows, numbers, attrs) -> None:
    with numpy.errstate(all="ignore"):
        for row in rows:
            outputs = [a if a.flags.c_contiguous else numpy.empty(a.shape, a.dtype) for a in (row[0], *row[2:])]
            run_blocks(numpy, name, row[: NUM_TENSORS[name]], outputs, numbers, attrs)
            for old, new in zip((row[0], *row[2:]), outputs, strict=True):
                if old is not new:
                    old[...] = new


def _bump(rows: list[tuple[Tensor, ...]]) -> None:
    """Note that all parameters and states were changed in place, as one change."""
    write_epoch.bump()
    for row in rows:
        for written in (row[0], *row[2:]):
            written._versions().own = write_epoch.value
