"""Two collectives on whole buckets, as primitives: gradients become averages, parts of parameters become parameters.

An operand or result is `offset` elements into the bucket's vector, which compiled programs reduce or gather in place.
`reducer` and `bucket` say whose: numbers, so that a step's text is the same in every process; `blocks` what the bucket's
collectives take of a GPU, for the kernels that run beside them.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from math import prod
from typing import TYPE_CHECKING, Any

from ..tensor.aval import Aval
from ..tensor.primitive import NotDifferentiable, Parts, define
from .collectives import COLLECTIVE, compiled
from .current import get_group

if TYPE_CHECKING:
    from .reducer import Reducer

reducers: weakref.WeakValueDictionary[int, Reducer] = weakref.WeakValueDictionary()  # their parameters keep them
observer: Any = None  # observer(name, start) calls `start` in its place and returns what it gave: benchmarks/ddp.py


def _observed(name: str, start: Callable[[], tuple[Any, Any]]) -> tuple[Any, Any]:
    return start() if observer is None else observer(name, start)


# ---------------------------------------------------------------- reduce_bucket


def _infer_reduce(*grads: Aval, reducer, bucket, blocks, offsets, size):
    return grads


def _eager_reduce(xp, *grads, reducer, bucket, blocks, offsets, size):
    """Copies the gradients into a flat array and reduces it; the results are views of it."""
    flat = xp.zeros(size, grads[0].dtype)
    views = [flat[o : o + g.size].reshape(g.shape) for o, g in zip(offsets, grads, strict=True)]
    for view, grad in zip(views, grads, strict=True):
        view[...] = grad
    get_group().join(*_start_reduce(flat, reducer, bucket, blocks))
    return tuple(views)


def _start_reduce(flat: Any, reducer: int, bucket: int, blocks: int) -> tuple[Any, Any]:
    owner = reducers[reducer]
    return _observed(f"bucket {bucket}", lambda: owner.start(owner.buckets[bucket], flat))


def _parts_of_reduce(avals: Sequence[Aval], attrs: Any) -> Parts:
    return Parts(attrs["offsets"], attrs["size"], attrs["offsets"])


REDUCE_BUCKET = define(
    "reduce_bucket",
    "effect",
    infer=_infer_reduce,
    eager=_eager_reduce,
    vjp=NotDifferentiable("gradients are averaged after backward; use all_reduce inside of it"),
    nova=compiled(_parts_of_reduce, _start_reduce),
    num_results=-1,
    tags=COLLECTIVE,
    doc=(
        "reduce_bucket(*grads, *, reducer, bucket, blocks, offsets, size): the averages over all ranks of the gradients in one "
        "bucket, each `offsets[i]` elements into a flat vector of `size`."
    ),
)


# ---------------------------------------------------------------- gather_bucket


def _infer_gather(*parts: Aval, reducer, bucket, blocks, offsets, size, results, shapes):
    return tuple(Aval(shape, parts[0].dtype) for shape in shapes)


def _eager_gather(xp, *parts, reducer, bucket, blocks, offsets, size, results, shapes):
    flat = xp.zeros(size, parts[0].dtype)
    for offset, part in zip(offsets, parts, strict=True):
        flat[offset : offset + part.size] = part
    get_group().join(*_start_gather(flat, reducer, bucket, blocks))
    ends = [offset + prod(shape) for offset, shape in zip(results, shapes, strict=True)]
    return tuple(flat[a:b].reshape(shape) for a, b, shape in zip(results, ends, shapes, strict=True))


def _start_gather(flat: Any, reducer: int, bucket: int, blocks: int) -> tuple[Any, Any]:
    owner = reducers[reducer]
    return _observed(f"parameters {bucket}", lambda: owner.start_gather(owner.buckets[bucket], flat))


def _parts_of_gather(avals: Sequence[Aval], attrs: Any) -> Parts:
    return Parts(attrs["offsets"], attrs["size"], attrs["results"])


GATHER_BUCKET = define(
    "gather_bucket",
    "effect",
    infer=_infer_gather,
    eager=_eager_gather,
    vjp=NotDifferentiable("parameters are gathered after an update"),
    nova=compiled(_parts_of_gather, _start_gather),
    num_results=-1,
    tags=COLLECTIVE,
    doc=(
        "gather_bucket(*parts, *, reducer, bucket, blocks, offsets, size, results, shapes): every rank's parts of a flat vector of "
        "`size`, each `offsets[i]` elements into it; the results are of `shapes`, `results[i]` elements into it."
    ),
)
