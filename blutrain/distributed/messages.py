"""Messages between two ranks, and the barrier: primitives beside collectives.py, for CPUs and GPUs alike."""

from __future__ import annotations

from typing import Any

from ..tensor import dispatch
from ..tensor.aval import Aval
from ..tensor.device import cpu
from ..tensor.primitive import NotDifferentiable, Unsupported, define
from ..tensor.tensor import Tensor
from .collectives import COLLECTIVE, call, check_rank, define_collective, start
from .current import get_group

_MOVES = NotDifferentiable("it moves data from one rank to another; use all_reduce, broadcast, all_gather")
_ELSEWHERE = Unsupported("messages and barriers do not run inside of a compiled program: call them outside of it")


def _infer_send(x: Aval, *, dst: int, tag: int) -> tuple:
    check_rank("send", dst)
    return ()


def _start_send(xp, x, *, dst: int, tag: int):
    return None, start(x, "send", f"to {dst}", xp.ascontiguousarray(x), dst, tag)


SEND = define_collective(
    "send",
    infer=_infer_send,
    start=_start_send,
    vjp=_MOVES,
    nova=_ELSEWHERE,
    num_results=0,
    doc="send(x, *, dst, tag): rank `dst` gets x by a recv; no result.",
)


def send(x: Tensor, dst: int, tag: int = 0, async_op: bool = False) -> Any:
    """Send x to rank `dst`, which calls recv. With async_op, a Work; x must not change before it is done.

    On GPUs a rank's messages run in the order of its calls, whatever the tag: of two ranks that send to each other one
    has to receive first. Errors: ValueError where there is no rank `dst`.
    """
    return call(SEND, x, async_op, dst=dst, tag=tag)


def _infer_recv(like: Aval, *, src: int, tag: int) -> Aval:
    check_rank("recv", src)
    return like


def _start_recv(xp, like, *, src: int, tag: int):
    target = xp.empty(like.shape, like.dtype)
    return target, start(like, "recv", f"from {src}", target, src, tag)


RECV = define_collective(
    "recv",
    infer=_infer_recv,
    start=_start_recv,
    vjp=_MOVES,
    nova=_ELSEWHERE,
    doc="recv(like, *, src, tag): what rank `src` sends, a tensor of the shape and dtype of `like`.",
)


def recv(like: Tensor, src: int, tag: int = 0, async_op: bool = False) -> Any:
    """What rank `src` sends: a new tensor of the shape, dtype and device of `like`. With async_op, a Work.

    Errors: ValueError where there is no rank `src`.
    """
    return call(RECV, like.detach(), async_op, src=src, tag=tag)


def _eager_barrier(xp, *, device) -> tuple:
    get_group().exchange("barrier", None)
    return ()


BARRIER = define(
    "barrier",
    "effect",
    infer=lambda *, device: (),
    eager=_eager_barrier,
    vjp=_MOVES,
    nova=_ELSEWHERE,
    tags=COLLECTIVE,
    num_results=0,
    doc="barrier(*, device): returns once all ranks have called it; no result.",
)


def barrier() -> None:
    """The host waits until all ranks have called it (the work of GPUs may still be under way)."""
    dispatch.apply(BARRIER, device=cpu)
