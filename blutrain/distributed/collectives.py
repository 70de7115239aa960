"""Collectives on tensors: functions of all ranks' values, as primitives.

    total = all_reduce(x, "sum")                   # a new tensor; differentiable
    work = all_reduce(x, "sum", async_op=True)     # returns at once; work.wait() gives the tensor

A derivative is that of the sum of all ranks' losses: each rank runs backward on its own. They run in the order in which
the program calls them, which must be the same on all ranks; what nova has recorded before is computed first. A compiled
program has them inside, each on a vector of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy

from ..errors import message
from ..tensor import dispatch
from ..tensor.aval import Aval
from ..tensor.device import Device, cpu
from ..tensor.dtype import bool_
from ..tensor.primitive import Collective, Parts, Primitive, define
from ..tensor.tensor import Tensor
from .current import get_group
from .group import Work, flush_pending

OPS = ("sum", "mean", "max")
COLLECTIVE = frozenset(("collective",))
_starts: dict[
    str, Callable[..., tuple[Any, Any]]
] = {}  # primitive -> start(xp, x, **attrs): (result, what was started)


def define_collective(name: str, *, start: Callable, num_results: int = 1, **record: Any) -> Primitive:
    """A primitive of one operand. start(xp, x, **attrs) gives its result, to be there later, and what `join` takes."""

    def eager(xp, x, **attrs):
        target, started = start(xp, x, **attrs)
        get_group().join(*started)
        return () if target is None else target

    _starts[name] = start
    return define(name, "effect", eager=eager, num_results=num_results, tags=COLLECTIVE, **record)


def call(prim: Primitive, x: Tensor, async_op: bool, **attrs: Any) -> Any:
    """Run a collective on a tensor, or start it: then a Work."""
    recorder = dispatch.recorder
    if recorder is not None and recorder.recording:
        result = dispatch.apply(prim, x, **attrs)
        return Work(get_group(), None, None, result) if async_op else result  # pyright: ignore[reportArgumentType]
    flush_pending()
    if not isinstance(x, Tensor):
        raise TypeError(message(prim.name, "the operand is no tensor", got=type(x).__name__))
    if not async_op:
        return dispatch.apply(prim, x, **attrs)
    if x.requires_grad and dispatch.tape.enabled():
        help = "x.detach(), or without async_op"
        raise RuntimeError(message(prim.name, "no gradient flows through an asynchronous collective", help=help))
    prim.infer(x._aval, **attrs)
    with x.device.activate():
        target, (entry, request) = _starts[prim.name](x.device.xp, x._buffer(), **attrs)
    return Work(get_group(), entry, request, None if target is None else Tensor._wrap(target, x.device))


def start(array: Any, name: str, detail: str, *operands: Any) -> tuple[Any, Any]:
    """Enter the backend's collective `name` on its operands, for an array that messages describe: by its size, as a
    compiled program knows no shape.
    """
    device = cpu if isinstance(array, numpy.ndarray | numpy.generic) else Device("cuda", array.device.id)
    return get_group().start(device, f"{name} {detail} {array.dtype.name}[{array.size}]", name, *operands)


def compiled(parts: Callable[[Sequence[Aval], Any], Parts], start: Callable) -> Collective:
    """The lowering of a collective whose result is there once the group's `join` returns."""
    return Collective(
        parts, start, lambda started: get_group().join(*started), lambda all: get_group().follow_replay(all)
    )


def check_rank(name: str, rank: int) -> None:
    """Errors: ValueError for a rank that is not there."""
    size = get_group().size
    if not 0 <= rank < size:
        raise ValueError(message(name, "no such rank", expected=f"0 <= rank < {size}", got=str(rank)))


def _check_op(name: str, x: Aval, op: str) -> None:
    if op not in OPS:
        raise ValueError(message(name, "unknown op", expected=" or ".join(OPS), got=repr(op)))
    if op == "mean" and not x.dtype.is_floating:
        raise TypeError(message(name, "the mean of integers is no integer", got=str(x), help='cast, or use "sum"'))
    if op == "sum" and x.dtype is bool_:
        raise TypeError(message(name, "the sum of booleans is no boolean", got=str(x), help='cast, or use "max"'))


def _whole(avals: Sequence[Aval], attrs: Any) -> Parts:
    return Parts((0,), avals[0].size, (0,))


# ---------------------------------------------------------------- all_reduce


def _infer_all_reduce(x: Aval, *, op: str) -> Aval:
    _check_op("all_reduce", x, op)
    return x


def _start_all_reduce(xp, x, *, op: str):
    target = xp.empty(x.shape, x.dtype)
    return target, start(x, "all_reduce", op, xp.ascontiguousarray(x), target, op)


def _vjp_all_reduce(ctx, grad):
    if ctx.attrs["op"] == "max":
        raise RuntimeError(message("all_reduce", "max has no gradient", help="detach the operand"))
    return (dispatch.apply(ALL_REDUCE, grad, op=ctx.attrs["op"]),)


ALL_REDUCE = define_collective(
    "all_reduce",
    infer=_infer_all_reduce,
    start=_start_all_reduce,
    vjp=_vjp_all_reduce,
    nova=compiled(_whole, lambda flat, op: start(flat, "all_reduce", op, flat, flat, op)),
    doc='all_reduce(x, *, op): the "sum", "mean" or "max" over all ranks, element by element; the same on each.',
)


def all_reduce(x: Tensor, op: str = "sum", async_op: bool = False) -> Any:
    """The "sum", "mean" or "max" of x over all ranks, a new tensor; with async_op, a Work that gives it.

    float16 and bfloat16 on CPUs are added in float32 and rounded once. Errors: ValueError for another op; TypeError for
    the mean of integers and the sum of booleans; PeerLost, CollectiveTimeout.
    """
    return call(ALL_REDUCE, x, async_op, op=op)


# ---------------------------------------------------------------- broadcast


def _infer_broadcast(x: Aval, *, src: int) -> Aval:
    check_rank("broadcast", src)
    return x


def _start_broadcast(xp, x, *, src: int):
    target = x.copy(order="C")
    return target, _start_broadcast_in_place(target, src)


def _start_broadcast_in_place(flat, src: int):
    return start(flat, "broadcast", f"from {src}", flat, src)


def _vjp_broadcast(ctx, grad):
    total = dispatch.apply(ALL_REDUCE, grad, op="sum")
    return (total if get_group().rank == ctx.attrs["src"] else total * 0,)


BROADCAST = define_collective(
    "broadcast",
    infer=_infer_broadcast,
    start=_start_broadcast,
    vjp=_vjp_broadcast,
    nova=compiled(_whole, _start_broadcast_in_place),
    doc="broadcast(x, *, src): the x of rank `src`; shapes and dtypes are equal on all ranks.",
)


def broadcast(x: Tensor, src: int = 0, async_op: bool = False) -> Any:
    """The x of rank `src`, a new tensor on every rank; with async_op, a Work that gives it.

    Errors: ValueError where there is no rank `src`.
    """
    return call(BROADCAST, x, async_op, src=src)


# ---------------------------------------------------------------- all_gather, reduce_scatter
# In a compiled program this rank's part lies behind all of it: in its place it might not be aligned as kernels need it.
# `count`, the elements of the operand, says where.


def _behind(size: int) -> int:
    """Where something may begin behind `size` elements: at a multiple of 256 bytes."""
    return -(-size // 256) * 256


def _infer_all_gather(x: Aval, *, ranks: int, count: int) -> Aval:
    return Aval((ranks * x.shape[0], *x.shape[1:]) if x.shape else (ranks,), x.dtype)


def _start_all_gather(xp, x, *, ranks: int, count: int):
    target = xp.empty(_infer_all_gather(Aval(x.shape, x.dtype), ranks=ranks, count=count).shape, x.dtype)
    return target, start(x, "all_gather", "of", xp.ascontiguousarray(x), target)


def _start_all_gather_in_place(flat, ranks: int, count: int):
    mine = flat[_behind(ranks * count) :]
    return start(mine, "all_gather", "of", mine, flat[: ranks * count])


def _vjp_all_gather(ctx, grad):
    ranks, count = ctx.attrs["ranks"], ctx.attrs["count"]
    part = dispatch.apply(REDUCE_SCATTER, grad, op="sum", ranks=ranks, count=ranks * count)
    return (part.reshape(ctx.avals[0].shape),)


def _parts_of_all_gather(avals: Sequence[Aval], attrs: Any) -> Parts:
    mine = _behind(attrs["ranks"] * attrs["count"])
    return Parts((mine,), mine + attrs["count"], (0,))


ALL_GATHER = define_collective(
    "all_gather",
    infer=_infer_all_gather,
    start=_start_all_gather,
    vjp=_vjp_all_gather,
    nova=compiled(_parts_of_all_gather, _start_all_gather_in_place),
    doc="all_gather(x, *, ranks, count): the x of all ranks one after the other, along the first dimension.",
)


def all_gather(x: Tensor, async_op: bool = False) -> Any:
    """The x of all ranks (equal shapes) joined along the first dimension, in order of rank; 0-d ones make a vector."""
    return call(ALL_GATHER, x, async_op, ranks=get_group().size, count=_count(x))


def _infer_reduce_scatter(x: Aval, *, op: str, ranks: int, count: int) -> Aval:
    _check_op("reduce_scatter", x, op)
    if not x.shape or x.shape[0] % ranks:
        expected = f"a first dimension that {ranks} ranks divide evenly"
        raise ValueError(message("reduce_scatter", "there are no equal parts", expected=expected, got=str(x)))
    return Aval((x.shape[0] // ranks, *x.shape[1:]), x.dtype)


def _start_reduce_scatter(xp, x, *, op: str, ranks: int, count: int):
    target = xp.empty((x.shape[0] // ranks, *x.shape[1:]), x.dtype)
    return target, start(x, "reduce_scatter", op, xp.ascontiguousarray(x), target, op)


def _start_reduce_scatter_in_place(flat, op: str, ranks: int, count: int):
    return start(flat[:count], "reduce_scatter", op, flat[:count], flat[_behind(count) :], op)


def _vjp_reduce_scatter(ctx, grad):
    if ctx.attrs["op"] == "max":
        raise RuntimeError(message("reduce_scatter", "max has no gradient", help="detach the operand"))
    ranks = ctx.attrs["ranks"]
    whole = dispatch.apply(ALL_GATHER, grad, ranks=ranks, count=ctx.attrs["count"] // ranks)
    return (whole / ranks if ctx.attrs["op"] == "mean" else whole,)


def _parts_of_reduce_scatter(avals: Sequence[Aval], attrs: Any) -> Parts:
    mine = _behind(attrs["count"])
    return Parts((0,), mine + attrs["count"] // attrs["ranks"], (mine,))


REDUCE_SCATTER = define_collective(
    "reduce_scatter",
    infer=_infer_reduce_scatter,
    start=_start_reduce_scatter,
    vjp=_vjp_reduce_scatter,
    nova=compiled(_parts_of_reduce_scatter, _start_reduce_scatter_in_place),
    doc="reduce_scatter(x, *, op, ranks, count): this rank's part, of `ranks` equal ones, of what all_reduce(x) gives.",
)


def reduce_scatter(x: Tensor, op: str = "sum", async_op: bool = False) -> Any:
    """This rank's part, of equal ones along the first dimension, of the reduction of x over all ranks.

    Errors: those of all_reduce; ValueError where the first dimension has no equal parts.
    """
    return call(REDUCE_SCATTER, x, async_op, op=op, ranks=get_group().size, count=_count(x))


def _count(x: Any) -> int:
    return x.numel() if isinstance(x, Tensor) else 0  # `call` refuses anything else
