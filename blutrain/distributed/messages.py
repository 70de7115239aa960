"""Messages between two ranks, and the barrier: primitives beside collectives.py, for CPUs and GPUs alike."""

from __future__ import annotations

from typing import Any

from ..tensor import dispatch
from ..tensor.aval import Aval
from ..tensor.device import cpu
from ..tensor.primitive import NotDifferentiable, define
from ..tensor.tensor import Tensor
from .collectives import COLLECTIVE, NOT_COMPILED, call, check_rank, contiguous, described, device_of, name_of
from .group import flush_pending, get_group

_MOVES = NotDifferentiable("it moves data from one rank to another; use all_reduce, broadcast, all_gather")


def _start_send(xp, x, dst: int, tag: int):
    name = name_of("send", described(x), f"to {dst}")
    return None, get_group().start(device_of(x), name, "send", contiguous(xp, x), dst, tag)


def _eager_send(xp, x, *, dst, tag):
    get_group().join(*_start_send(xp, x, dst, tag)[1])
    return ()


def _infer_send(x: Aval, *, dst: int, tag: int) -> tuple:
    check_rank("send", dst)
    return ()


SEND = define(
    "send",
    "effect",
    infer=_infer_send,
    eager=_eager_send,
    vjp=_MOVES,
    nova=NOT_COMPILED,
    tags=COLLECTIVE,
    num_results=0,
    doc="send(x, *, dst, tag): rank `dst` gets x by a recv; no result.",
)


def send(x: Tensor, dst: int, tag: int = 0, async_op: bool = False) -> Any:
    """Send x to rank `dst`, which calls recv. With async_op, a Work; x must not change before it is done."""
    return call(SEND, (x,), {"dst": dst, "tag": tag}, async_op, lambda xp, a: _start_send(xp, a, dst, tag))


def _start_recv(xp, like, src: int, tag: int):
    target = xp.empty(like.shape, like.dtype)
    name = name_of("recv", described(like), f"from {src}")
    return target, get_group().start(device_of(like), name, "recv", target, src, tag)


def _eager_recv(xp, like, *, src, tag):
    target, started = _start_recv(xp, like, src, tag)
    get_group().join(*started)
    return target


def _infer_recv(like: Aval, *, src: int, tag: int) -> Aval:
    check_rank("recv", src)
    return like


RECV = define(
    "recv",
    "effect",
    infer=_infer_recv,
    eager=_eager_recv,
    vjp=_MOVES,
    nova=NOT_COMPILED,
    tags=COLLECTIVE,
    doc="recv(like, *, src, tag): what rank `src` sends, a tensor of the shape and dtype of `like`.",
)


def recv(like: Tensor, src: int, tag: int = 0, async_op: bool = False) -> Any:
    """What rank `src` sends: a new tensor of the shape, dtype and device of `like`. With async_op, a Work."""
    return call(RECV, (like.detach(),), {"src": src, "tag": tag}, async_op, lambda xp, a: _start_recv(xp, a, src, tag))


BARRIER = define(
    "barrier",
    "effect",
    infer=lambda *, device: (),
    eager=lambda xp, *, device: _eager_barrier(),
    vjp=_MOVES,
    nova=NOT_COMPILED,
    tags=COLLECTIVE,
    num_results=0,
    doc="barrier(*, device): returns once all ranks have called it; no result.",
)


def _eager_barrier() -> tuple:
    get_group().exchange("barrier", None)
    return ()


def barrier() -> None:
    """The host waits until all ranks have called it (the work of GPUs may still be under way)."""
    flush_pending()
    dispatch.apply(BARRIER, device=cpu)
