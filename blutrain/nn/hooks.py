"""Hooks of modules: registering, removing, and the call that runs them."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

from ..autograd import Function
from ..errors import message
from ..tensor.tensor import Tensor, structure_epoch

_NAMES = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")
_ids = itertools.count()


def empty() -> dict[str, dict[int, Callable]]:
    """The hook tables of a new module."""
    return {name: {} for name in _NAMES}


class RemovableHandle:
    """Returned by register_*_hook: `remove()` takes the hook out again; also a context manager."""

    __slots__ = ("_key", "_table")

    def __init__(self, table: dict[int, Callable], key: int):
        self._table, self._key = table, key

    def remove(self) -> None:
        if self._table.pop(self._key, None) is not None:
            structure_epoch.bump()

    def __enter__(self) -> RemovableHandle:
        return self

    def __exit__(self, *exc) -> None:
        self.remove()


def register(table: dict[int, Callable], hook: Callable) -> RemovableHandle:
    """Enter `hook`; hooks run in the order of registration. Errors: TypeError if it cannot be called."""
    if not callable(hook):
        raise TypeError(message("register_hook", "a hook must be callable", got=type(hook).__name__))
    key = next(_ids)
    table[key] = hook
    structure_epoch.bump()
    return RemovableHandle(table, key)


def call(module: Any, args: tuple, kwargs: dict) -> Any:
    """forward with the module's hooks around it."""
    for hook in list(module._forward_pre_hooks.values()):
        replaced = hook(module, args)
        if replaced is not None:
            args = replaced if isinstance(replaced, tuple) else (replaced,)
    backward = _Backward(module) if module._backward_hooks or module._backward_pre_hooks else None
    if backward is not None:
        backward.inputs_need = any(isinstance(a, Tensor) and a.requires_grad for a in args)
        args = _through(backward.inputs_known, args)
    output = module.forward(*args, **kwargs)
    for hook in list(module._forward_hooks.values()):
        replaced = hook(module, args, output)
        if replaced is not None:
            output = replaced
    if backward is None:
        return output
    if isinstance(output, tuple):
        return _through(backward.outputs_known, output)
    return _through(backward.outputs_known, (output,))[0]


class _Backward:
    """What the two gates of one call share: the gradients of the outputs, until those of the inputs are known."""

    def __init__(self, module: Any):
        self.module = module
        self.grad_output: tuple | None = None
        self.inputs_need = False

    def outputs_known(self, grads: tuple) -> tuple:
        for hook in list(self.module._backward_pre_hooks.values()):
            grads = _replaced("full_backward_pre_hook", grads, hook(self.module, grads))
        self.grad_output = grads
        if not self.inputs_need:  # no gradient flows further: the hooks run here, as in PyTorch
            self.inputs_known((None,))
        return grads

    def inputs_known(self, grads: tuple) -> tuple:
        for hook in list(self.module._backward_hooks.values()):
            grads = _replaced("full_backward_hook", grads, hook(self.module, grads, self.grad_output))
        return grads


class _Gate(Function):
    """Identity on tensors; its backward hands all their gradients to `known`, and on what that returns."""

    @staticmethod
    def forward(ctx, known, *tensors):
        ctx.known = known
        return tuple(t.detach() for t in tensors)

    @staticmethod
    def backward(ctx, *grads):
        return (None, *ctx.known(grads))


def _through(known: Callable[[tuple], tuple], values: tuple) -> tuple:
    """Pass the floating tensors among `values` through one gate: `known` sees all their gradients together."""
    where = [i for i, v in enumerate(values) if isinstance(v, Tensor) and v.dtype.is_floating]
    if not where:
        return values
    gated = _Gate.apply(known, *[values[i] for i in where])
    result = list(values)
    for i, tensor in zip(where, gated if isinstance(gated, tuple) else (gated,)):
        result[i] = tensor
    return tuple(result)


def _replaced(kind: str, grads: tuple, new: Any) -> tuple:
    if new is None:
        return grads
    new = new if isinstance(new, tuple) else (new,)
    if len(new) != len(grads):
        raise ValueError(
            message(kind, "wrong number of gradients returned", expected=str(len(grads)), got=str(len(new)))
        )
    return new
