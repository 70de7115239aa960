"""Automatic differentiation, backwards. Imports tensor only.

Reading order: mode (no_grad), tape (what is recorded), saved (what is kept), engine (backward), hooks, function (custom
functions), checkpoint, gradcheck. Importing this package fills the slot `dispatch.tape` and gives Tensor its methods
backward, register_hook, ...
"""

from __future__ import annotations

from types import SimpleNamespace

from ..errors import message
from ..tensor import dispatch
from ..tensor.tensor import Tensor
from . import engine, tape
from .checkpoint import checkpoint
from .function import Function
from .gradcheck import gradcheck
from .hooks import (
    line_up,
    reducer_of,
    reducers_of,
    reducing,
    register_hook,
    register_post_accumulate_grad_hook,
    retain_grad,
    sharers,
    sharing,
)
from .mode import enable_grad, is_grad_enabled, no_grad, set_grad_enabled
from .saved import saved_tensors_hooks

__all__ = [
    "Function",
    "backward",
    "checkpoint",
    "enable_grad",
    "grad",
    "gradcheck",
    "is_grad_enabled",
    "no_grad",
    "saved_tensors_hooks",
    "set_grad_enabled",
]

dispatch.tape = SimpleNamespace(
    deferred=tape.Deferred,
    enable_grad=enable_grad,
    enabled=tape.enabled,
    gate=tape.gate,
    keep_copy=tape.keep_copy,
    line_up=line_up,
    node_of=tape.node_of,
    no_grad=no_grad,
    outdate=tape.outdate,
    packs=tape.packs,
    reachable=engine.reachable,
    record=tape.record,
    reducer_of=reducer_of,
    reducers_of=reducers_of,
    reducing=reducing,
    release=tape.release,
    relink=tape.relink,
    renew=tape.renew,
    run_backward=engine.run_backward,
    run_grad=engine.run_grad,
    sharers=sharers,
    sharing=sharing,
)


def _tensors(op: str, x) -> list[Tensor]:
    tensors = [x] if isinstance(x, Tensor) else list(x)
    if not tensors or not all(isinstance(t, Tensor) for t in tensors):
        raise TypeError(message(op, "a tensor or a sequence of tensors is needed", got=repr(type(x).__name__)))
    return tensors


def _gradients(op: str, roots, grads) -> list:
    grads = [None] * len(roots) if grads is None else [grads] if isinstance(grads, Tensor) else list(grads)
    if len(grads) != len(roots):
        raise ValueError(message(op, "one gradient per root", expected=str(len(roots)), got=str(len(grads))))
    return grads


def backward(
    tensors, grad_tensors=None, retain_graph: bool | None = None, create_graph: bool = False, inputs=None
) -> None:
    """Add the gradients of `tensors` to .grad of the leaves (or of `inputs` only) they were computed from, as
    torch.autograd.backward.

    grad_tensors: the gradient each root starts with, needed unless it has one element. retain_graph: keep what was
    saved for another backward (default: create_graph). create_graph: the gradients can be differentiated again.
    """
    roots = _tensors("backward", tensors)
    grads = _gradients("backward", roots, grad_tensors)
    retain_graph = create_graph if retain_graph is None else retain_graph
    inputs = None if inputs is None else _tensors("backward", inputs)
    if dispatch.recorder is not None:
        if dispatch.recorder.backward(roots, grads, retain_graph, create_graph, inputs) is not NotImplemented:
            return
    engine.run_backward(roots, grads, retain_graph=retain_graph, create_graph=create_graph, inputs=inputs)


def grad(
    outputs,
    inputs,
    grad_outputs=None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    allow_unused: bool = False,
):
    """The gradients of `outputs` with respect to `inputs` as a tuple, as torch.autograd.grad; no .grad changes.

    Errors: RuntimeError for an input that requires no gradient, or was not used (allow_unused: its gradient is None).

    >>> x = bt.tensor(3.0, requires_grad=True)
    >>> (slope,) = bt.autograd.grad(x**2, x, create_graph=True)
    >>> slope.item(), bt.autograd.grad(slope, x)[0].item()
    (6.0, 2.0)
    """
    roots, variables = _tensors("grad", outputs), _tensors("grad", inputs)
    grads = _gradients("grad", roots, grad_outputs)
    retain_graph = create_graph if retain_graph is None else retain_graph
    if dispatch.recorder is not None:
        result = dispatch.recorder.grad(roots, variables, grads, retain_graph, create_graph, allow_unused)
        if result is not NotImplemented:
            return result
    return engine.run_grad(
        roots, variables, grads, retain_graph=retain_graph, create_graph=create_graph, allow_unused=allow_unused
    )


def _tensor_backward(
    self: Tensor, gradient=None, retain_graph: bool | None = None, create_graph: bool = False, inputs=None
) -> None:
    """Add the gradients of this tensor to .grad of the leaves it was computed from: see blutrain.autograd.backward."""
    backward(self, gradient, retain_graph, create_graph, inputs)


for _name, _method in {
    "backward": _tensor_backward,
    "register_hook": register_hook,
    "register_post_accumulate_grad_hook": register_post_accumulate_grad_hook,
    "retain_grad": retain_grad,
}.items():
    setattr(Tensor, _name, _method)
