"""Checkpointing: backward recomputes what a function saved, in exchange for memory."""

from __future__ import annotations

from ..errors import message
from ..tensor import dispatch
from ..tensor.generator import default_generator
from .mode import enable_grad, state
from .saved import saved_tensors_hooks


def checkpoint(function, *args, preserve_rng_state: bool = True, **kwargs):
    """function(*args, **kwargs), keeping none of its intermediate results: the first use of one in backward runs the
    function again.

    preserve_rng_state: the second run draws the same random numbers. The function must compute the same both times and
    is best free of side effects. While nova records a step this is a plain call: the compiler decides what is
    recomputed. Errors: RuntimeError in backward if the second run saves other tensors than the first.

    >>> x = bt.ones(2, requires_grad=True)
    >>> bt.autograd.checkpoint(lambda x: x.exp().log(), x).sum().backward()
    >>> x.grad
    tensor([1., 1.])
    """
    if not state.enabled or (dispatch.recorder is not None and dispatch.recorder.recording):
        return function(*args, **kwargs)
    frame = _Frame(lambda: function(*args, **kwargs), preserve_rng_state)
    with saved_tensors_hooks(frame.pack, frame.unpack):
        return function(*args, **kwargs)


class _Frame:
    """The saved tensors of one checkpointed call: their avals, and after the second run the tensors."""

    def __init__(self, again, preserve_rng_state: bool):
        self.again, self.avals, self.tensors = again, [], {}
        self.random = default_generator.get_state() if preserve_rng_state else None

    def pack(self, tensor) -> int:
        self.avals.append(tensor._aval)
        return len(self.avals) - 1

    def unpack(self, number: int):
        if number not in self.tensors:
            self._recompute()
        return self.tensors.pop(number)  # each once: what backward is done with is freed

    def _recompute(self) -> None:
        found = []

        def keep(tensor):
            found.append(tensor)
            return None

        now = default_generator.get_state()
        if self.random is not None:
            default_generator.set_state(self.random)
        try:
            with enable_grad(), saved_tensors_hooks(keep, lambda _: None):
                self.again()
        finally:
            if self.random is not None:
                default_generator.set_state(now)
        if [x._aval for x in found] != self.avals:
            got = (
                f"{len(found)} tensors, first {len(self.avals)}"
                if len(found) != len(self.avals)
                else "other shapes or dtypes"
            )
            raise RuntimeError(
                message("checkpoint", "the second run of the function saved other tensors than the first", got=got)
            )
        self.tensors = dict(enumerate(found))
