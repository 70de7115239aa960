"""Collectives on tensors: functions of all ranks' values, as primitives.

    total = all_reduce(x, "sum")                   # a new tensor; differentiable
    work = all_reduce(x, "sum", async_op=True)     # returns at once; work.wait() gives the tensor

A derivative is that of the sum of all ranks' losses: each rank runs backward on its own. They run in the order in which
the program calls them, which must be the same on all ranks; what nova has recorded before is computed first.
"""

from __future__ import annotations

from typing import Any

import numpy

from ..errors import message
from ..tensor import dispatch
from ..tensor.aval import Aval
from ..tensor.device import Device, cpu
from ..tensor.primitive import Collective, Unsupported, define
from ..tensor.tensor import Tensor
from .group import Work, flush_pending, follow_replay, get_group

OPS = ("sum", "mean", "max")
NOT_COMPILED = Unsupported("a collective inside a compiled call runs by the eager rules")
COLLECTIVE = frozenset(("collective",))


def device_of(array) -> Device:
    return cpu if isinstance(array, numpy.ndarray | numpy.generic) else Device("cuda", array.device.id)


def contiguous(xp, array):
    return xp.ascontiguousarray(array)


def name_of(name: str, aval: Any, *details: Any) -> str:
    return " ".join(map(str, (name, *filter(lambda d: d is not None, details), aval)))


def described(array) -> str:
    return f"{array.dtype.name}{list(array.shape)}"


# ---------------------------------------------------------------- all_reduce


def _infer_all_reduce(x: Aval, *, op: str) -> Aval:
    _check_op("all_reduce", x, op)
    return x


def _start_all_reduce(xp, x, op: str):
    target = xp.empty(x.shape, x.dtype)
    name = name_of("all_reduce", described(x), op)
    return target, get_group().start(device_of(x), name, "all_reduce", contiguous(xp, x), target, op)


def _eager_all_reduce(xp, x, *, op):
    target, started = _start_all_reduce(xp, x, op)
    get_group().join(*started)
    return target


def _start_in_place(flat, op: str):
    """What a compiled program does."""
    name = name_of("all_reduce", described(flat), op)
    return get_group().start(device_of(flat), name, "all_reduce", flat, flat, op)


def _vjp_all_reduce(ctx, grad):
    if ctx.attrs["op"] == "max":
        raise RuntimeError(message("all_reduce", "max has no gradient", help="detach the operand"))
    return (dispatch.apply(ALL_REDUCE, grad, op=ctx.attrs["op"]),)


ALL_REDUCE = define(
    "all_reduce",
    "effect",
    infer=_infer_all_reduce,
    eager=_eager_all_reduce,
    vjp=_vjp_all_reduce,
    nova=Collective("whole", _start_in_place, lambda started: get_group().join(*started), follow_replay),
    tags=COLLECTIVE,
    doc='all_reduce(x, *, op): the "sum", "mean" or "max" over all ranks, element by element; the same on each.',
)


def all_reduce(x: Tensor, op: str = "sum", async_op: bool = False) -> Any:
    """The "sum", "mean" or "max" of x over all ranks, a new tensor; with async_op, a Work that gives it.

    float16 and bfloat16 on CPUs are added in float32 and rounded once. Errors: ValueError for another op; TypeError for
    the mean of integers; PeerLost, CollectiveTimeout.
    """
    return call(ALL_REDUCE, (x,), {"op": op}, async_op, lambda xp, a: _start_all_reduce(xp, a, op))


# ---------------------------------------------------------------- broadcast


def _start_broadcast(xp, x, src: int):
    target = x.copy(order="C")
    name = name_of("broadcast", described(x), f"from {src}")
    return target, get_group().start(device_of(x), name, "broadcast", target, src)


def _eager_broadcast(xp, x, *, src):
    target, started = _start_broadcast(xp, x, src)
    get_group().join(*started)
    return target


def _infer_broadcast(x: Aval, *, src: int) -> Aval:
    check_rank("broadcast", src)
    return x


def _vjp_broadcast(ctx, grad):
    total = dispatch.apply(ALL_REDUCE, grad, op="sum")
    return (total if get_group().rank == ctx.attrs["src"] else total * 0,)


BROADCAST = define(
    "broadcast",
    "effect",
    infer=_infer_broadcast,
    eager=_eager_broadcast,
    vjp=_vjp_broadcast,
    nova=NOT_COMPILED,
    tags=COLLECTIVE,
    doc="broadcast(x, *, src): the x of rank `src`; shapes and dtypes are equal on all ranks.",
)


def broadcast(x: Tensor, src: int = 0, async_op: bool = False) -> Any:
    """The x of rank `src`, a new tensor on every rank; with async_op, a Work that gives it."""
    return call(BROADCAST, (x,), {"src": src}, async_op, lambda xp, a: _start_broadcast(xp, a, src))


# ---------------------------------------------------------------- all_gather, reduce_scatter


def _infer_all_gather(x: Aval, *, size: int) -> Aval:
    return Aval((size * x.shape[0], *x.shape[1:]) if x.shape else (size,), x.dtype)


def _start_all_gather(xp, x, size: int):
    target = xp.empty(_infer_all_gather(Aval(x.shape, x.dtype), size=size).shape, x.dtype)
    return target, get_group().start(
        device_of(x), name_of("all_gather", described(x)), "all_gather", contiguous(xp, x), target
    )


def _eager_all_gather(xp, x, *, size):
    target, started = _start_all_gather(xp, x, size)
    get_group().join(*started)
    return target


def _vjp_all_gather(ctx, grad):
    part = dispatch.apply(REDUCE_SCATTER, grad, op="sum", size=ctx.attrs["size"])
    return (part.reshape(ctx.avals[0].shape),)


ALL_GATHER = define(
    "all_gather",
    "effect",
    infer=_infer_all_gather,
    eager=_eager_all_gather,
    vjp=_vjp_all_gather,
    nova=NOT_COMPILED,
    tags=COLLECTIVE,
    doc="all_gather(x, *, size): the x of all ranks one after the other, along the first dimension.",
)


def all_gather(x: Tensor, async_op: bool = False) -> Any:
    """The x of all ranks (equal shapes) joined along the first dimension, in order of rank; 0-d ones make a vector."""
    size = get_group().size
    return call(ALL_GATHER, (x,), {"size": size}, async_op, lambda xp, a: _start_all_gather(xp, a, size))


def _infer_reduce_scatter(x: Aval, *, op: str, size: int) -> Aval:
    _check_op("reduce_scatter", x, op)
    if not x.shape or x.shape[0] % size:
        expected = f"a first dimension that {size} ranks divide evenly"
        raise ValueError(message("reduce_scatter", "there are no equal parts", expected=expected, got=str(x)))
    return Aval((x.shape[0] // size, *x.shape[1:]), x.dtype)


def _start_reduce_scatter(xp, x, op: str, size: int):
    target = xp.empty((x.shape[0] // size, *x.shape[1:]), x.dtype)
    name = name_of("reduce_scatter", described(x), op)
    return target, get_group().start(device_of(x), name, "reduce_scatter", contiguous(xp, x), target, op)


def _eager_reduce_scatter(xp, x, *, op, size):
    target, started = _start_reduce_scatter(xp, x, op, size)
    get_group().join(*started)
    return target


def _vjp_reduce_scatter(ctx, grad):
    if ctx.attrs["op"] == "max":
        raise RuntimeError(message("reduce_scatter", "max has no gradient", help="detach the operand"))
    whole = dispatch.apply(ALL_GATHER, grad, size=ctx.attrs["size"])
    return (whole / ctx.attrs["size"] if ctx.attrs["op"] == "mean" else whole,)


REDUCE_SCATTER = define(
    "reduce_scatter",
    "effect",
    infer=_infer_reduce_scatter,
    eager=_eager_reduce_scatter,
    vjp=_vjp_reduce_scatter,
    nova=NOT_COMPILED,
    tags=COLLECTIVE,
    doc="reduce_scatter(x, *, op, size): part number `rank` of `size` equal ones of what all_reduce(x) gives.",
)


def reduce_scatter(x: Tensor, op: str = "sum", async_op: bool = False) -> Any:
    """This rank's part, of equal ones along the first dimension, of the reduction of x over all ranks.

    Errors: ValueError where the first dimension has no equal parts.
    """
    size = get_group().size
    attrs = {"op": op, "size": size}
    return call(REDUCE_SCATTER, (x,), attrs, async_op, lambda xp, a: _start_reduce_scatter(xp, a, op, size))


# ---------------------------------------------------------------- what they share


def call(prim, operands: tuple, attrs: dict, async_op: bool, start) -> Any:
    """Run a collective on tensors, or start it."""
    recorder = dispatch.recorder
    if recorder is not None and recorder.recording:
        result = dispatch.apply(prim, *operands, **attrs)
        return Work(get_group(), None, None, result) if async_op else result  # pyright: ignore[reportArgumentType]
    flush_pending()
    x: Tensor = operands[0]
    if not isinstance(x, Tensor):
        raise TypeError(message(prim.name, "the operand is no tensor", got=type(x).__name__))
    if not async_op:
        return dispatch.apply(prim, *operands, **attrs)
    if x.requires_grad and dispatch.tape.enabled():
        help = "x.detach(), or without async_op"
        raise RuntimeError(message(prim.name, "no gradient flows through an asynchronous collective", help=help))
    prim.infer(x._aval, **attrs)
    with x.device.activate():
        target, (entry, request) = start(x.device.xp, x._buffer())
    return Work(get_group(), entry, request, None if target is None else Tensor._wrap(target, x.device))


def _check_op(name: str, x: Aval, op: str) -> None:
    if op not in OPS:
        raise ValueError(message(name, "unknown op", expected=" or ".join(OPS), got=repr(op)))
    if op == "mean" and not x.dtype.is_floating:
        raise TypeError(message(name, "the mean of integers is no integer", got=str(x), help='cast, or use "sum"'))


def check_rank(name: str, rank: int) -> None:
    size = get_group().size
    if not 0 <= rank < size:
        raise ValueError(message(name, "no such rank", expected=f"0 <= rank < {size}", got=str(rank)))
