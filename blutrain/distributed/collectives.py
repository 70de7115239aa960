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
from ..tensor.primitive import Collective, NotDifferentiable, Unsupported, define
from ..tensor.tensor import Tensor
from .group import Work, flush_pending, get_group

OPS = ("sum", "mean", "max")
_NOT_COMPILED = Unsupported("a collective inside a compiled call runs by the eager rules")
COLLECTIVE = frozenset(("collective",))
_GROUP = NotDifferentiable("it moves data from one rank to another; use all_reduce, broadcast, all_gather")


def _device(xp, array) -> Device:
    return cpu if xp is numpy else Device("cuda", array.device.id)


def _contiguous(xp, array):
    return xp.ascontiguousarray(array)


def _name(name: str, aval: Any, *details: Any) -> str:
    return " ".join(map(str, (name, *filter(lambda d: d is not None, details), aval)))


def _described(array) -> str:
    return f"{array.dtype.name}{list(array.shape)}"


# ---------------------------------------------------------------- all_reduce


def _infer_all_reduce(x: Aval, *, op: str) -> Aval:
    _check_op("all_reduce", x, op)
    return x


def _start_all_reduce(xp, x, op: str):
    target = xp.empty(x.shape, x.dtype)
    name = _name("all_reduce", _described(x), op)
    return target, get_group().start(_device(xp, x), name, "all_reduce", _contiguous(xp, x), target, op)


def _eager_all_reduce(xp, x, *, op):
    target, started = _start_all_reduce(xp, x, op)
    get_group().join(*started)
    return target


def _start_in_place(flat, op: str):
    """What a compiled program does."""
    xp = numpy if isinstance(flat, numpy.ndarray) else None
    return get_group().start(_device(xp, flat), _name("all_reduce", _described(flat), op), "all_reduce", flat, flat, op)


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
    nova=Collective("whole", _start_in_place, lambda started: get_group().join(*started)),
    tags=COLLECTIVE,
    doc='all_reduce(x, *, op): the "sum", "mean" or "max" over all ranks, element by element; the same on each.',
)


def all_reduce(x: Tensor, op: str = "sum", async_op: bool = False) -> Any:
    """The "sum", "mean" or "max" of x over all ranks, a new tensor; with async_op, a Work that gives it.

    float16 and bfloat16 on CPUs are added in float32 and rounded once. Errors: ValueError for another op; TypeError for
    the mean of integers; PeerLost, CollectiveTimeout.
    """
    return _call(ALL_REDUCE, (x,), {"op": op}, async_op, lambda xp, a: _start_all_reduce(xp, a, op))


# ---------------------------------------------------------------- broadcast


def _start_broadcast(xp, x, src: int):
    target = x.copy(order="C")
    name = _name("broadcast", _described(x), f"from {src}")
    return target, get_group().start(_device(xp, x), name, "broadcast", target, src)


def _eager_broadcast(xp, x, *, src):
    target, started = _start_broadcast(xp, x, src)
    get_group().join(*started)
    return target


def _infer_broadcast(x: Aval, *, src: int) -> Aval:
    _check_rank("broadcast", src)
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
    nova=_NOT_COMPILED,
    tags=COLLECTIVE,
    doc="broadcast(x, *, src): the x of rank `src`; shapes and dtypes are equal on all ranks.",
)


def broadcast(x: Tensor, src: int = 0, async_op: bool = False) -> Any:
    """The x of rank `src`, a new tensor on every rank; with async_op, a Work that gives it."""
    return _call(BROADCAST, (x,), {"src": src}, async_op, lambda xp, a: _start_broadcast(xp, a, src))


# ---------------------------------------------------------------- all_gather, reduce_scatter


def _infer_all_gather(x: Aval, *, size: int) -> Aval:
    return Aval((size * x.shape[0], *x.shape[1:]) if x.shape else (size,), x.dtype)


def _start_all_gather(xp, x, size: int):
    target = xp.empty(_infer_all_gather(Aval(x.shape, x.dtype), size=size).shape, x.dtype)
    return target, get_group().start(
        _device(xp, x), _name("all_gather", _described(x)), "all_gather", _contiguous(xp, x), target
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
    nova=_NOT_COMPILED,
    tags=COLLECTIVE,
    doc="all_gather(x, *, size): the x of all ranks one after the other, along the first dimension.",
)


def all_gather(x: Tensor, async_op: bool = False) -> Any:
    """The x of all ranks (equal shapes) joined along the first dimension, in order of rank; 0-d ones make a vector."""
    size = get_group().size
    return _call(ALL_GATHER, (x,), {"size": size}, async_op, lambda xp, a: _start_all_gather(xp, a, size))


def _infer_reduce_scatter(x: Aval, *, op: str, size: int) -> Aval:
    _check_op("reduce_scatter", x, op)
    if not x.shape or x.shape[0] % size:
        expected = f"a first dimension that {size} ranks divide evenly"
        raise ValueError(message("reduce_scatter", "there are no equal parts", expected=expected, got=str(x)))
    return Aval((x.shape[0] // size, *x.shape[1:]), x.dtype)


def _start_reduce_scatter(xp, x, op: str, size: int):
    target = xp.empty((x.shape[0] // size, *x.shape[1:]), x.dtype)
    name = _name("reduce_scatter", _described(x), op)
    return target, get_group().start(_device(xp, x), name, "reduce_scatter", _contiguous(xp, x), target, op)


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
    nova=_NOT_COMPILED,
    tags=COLLECTIVE,
    doc="reduce_scatter(x, *, op, size): part number `rank` of `size` equal ones of what all_reduce(x) gives.",
)


def reduce_scatter(x: Tensor, op: str = "sum", async_op: bool = False) -> Any:
    """This rank's part, of equal ones along the first dimension, of the reduction of x over all ranks.

    Errors: ValueError where the first dimension has no equal parts.
    """
    size = get_group().size
    attrs = {"op": op, "size": size}
    return _call(REDUCE_SCATTER, (x,), attrs, async_op, lambda xp, a: _start_reduce_scatter(xp, a, op, size))


# ---------------------------------------------------------------- send, recv, barrier


def _start_send(xp, x, dst: int, tag: int):
    name = _name("send", _described(x), f"to {dst}")
    return None, get_group().start(_device(xp, x), name, "send", _contiguous(xp, x), dst, tag)


def _eager_send(xp, x, *, dst, tag):
    get_group().join(*_start_send(xp, x, dst, tag)[1])
    return ()


def _infer_send(x: Aval, *, dst: int, tag: int) -> tuple:
    _check_rank("send", dst)
    return ()


SEND = define(
    "send",
    "effect",
    infer=_infer_send,
    eager=_eager_send,
    vjp=_GROUP,
    nova=_NOT_COMPILED,
    tags=COLLECTIVE,
    num_results=0,
    doc="send(x, *, dst, tag): rank `dst` gets x by a recv; no result.",
)


def send(x: Tensor, dst: int, tag: int = 0, async_op: bool = False) -> Any:
    """Send x to rank `dst`, which calls recv. With async_op, a Work; x must not change before it is done."""
    return _call(SEND, (x,), {"dst": dst, "tag": tag}, async_op, lambda xp, a: _start_send(xp, a, dst, tag))


def _start_recv(xp, like, src: int, tag: int):
    target = xp.empty(like.shape, like.dtype)
    name = _name("recv", _described(like), f"from {src}")
    return target, get_group().start(_device(xp, like), name, "recv", target, src, tag)


def _eager_recv(xp, like, *, src, tag):
    target, started = _start_recv(xp, like, src, tag)
    get_group().join(*started)
    return target


def _infer_recv(like: Aval, *, src: int, tag: int) -> Aval:
    _check_rank("recv", src)
    return like


RECV = define(
    "recv",
    "effect",
    infer=_infer_recv,
    eager=_eager_recv,
    vjp=_GROUP,
    nova=_NOT_COMPILED,
    tags=COLLECTIVE,
    doc="recv(like, *, src, tag): what rank `src` sends, a tensor of the shape and dtype of `like`.",
)


def recv(like: Tensor, src: int, tag: int = 0, async_op: bool = False) -> Any:
    """What rank `src` sends: a new tensor of the shape, dtype and device of `like`. With async_op, a Work."""
    return _call(RECV, (like.detach(),), {"src": src, "tag": tag}, async_op, lambda xp, a: _start_recv(xp, a, src, tag))


BARRIER = define(
    "barrier",
    "effect",
    infer=lambda *, device=None: (),
    eager=lambda xp, *, device=None: _eager_barrier(device or cpu),
    vjp=_GROUP,
    nova=_NOT_COMPILED,
    tags=COLLECTIVE,
    num_results=0,
    doc="barrier(*, device): returns once all ranks have called it; no result.",
)


def _eager_barrier(device: Device) -> tuple:
    get_group().run(device, "barrier", "barrier")
    return ()


def barrier() -> None:
    """Wait until all ranks have called it."""
    flush_pending()
    dispatch.apply(BARRIER, device=cpu)


# ---------------------------------------------------------------- what they share


def _call(prim, operands: tuple, attrs: dict, async_op: bool, start) -> Any:
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


def _check_rank(name: str, rank: int) -> None:
    size = get_group().size
    if not 0 <= rank < size:
        raise ValueError(message(name, "no such rank", expected=f"0 <= rank < {size}", got=str(rank)))
