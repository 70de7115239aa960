"""Module: a tree of parameters, buffers and sub-modules (tree.py) with a forward, modes, a place, a state and hooks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..errors import message
from ..tensor import dispatch
from ..tensor.creation import empty
from ..tensor.tensor import Tensor, known_grad, storage_epoch
from . import hooks
from .compile_options import CompileOptions
from .state import IncompatibleKeys, plan_load, state_of
from .tree import Tree


class Module(Tree):
    """Base class of layers and models: assign parameters and sub-modules in `__init__`, compute in `forward`.

    >>> import blutrain as bt
    >>> class Net(bt.nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.fc = bt.nn.Linear(4, 2)
    ...     def forward(self, x):
    ...         return self.fc(x)
    >>> [name for name, _ in Net().named_parameters()]
    ['fc.weight', 'fc.bias']
    """

    training: bool
    _compiled: Any

    def __new__(cls, *args, **kwargs):
        # Here rather than in __init__, so that a subclass which sets attributes before (or without) super().__init__()
        # works.
        self = super().__new__(cls)
        self.__dict__.update(training=True, _compiled=None, _buffers={}, **hooks.empty())
        return self

    def __init__(self) -> None:
        pass

    def forward(self, *args, **kwargs) -> Any:
        raise NotImplementedError(
            message(f"{type(self).__name__}", "forward is not defined", help="define forward(self, ...)")
        )

    # ---- calling

    def __call__(self, *args, **kwargs) -> Any:
        if dispatch.recorder is not None:
            result = dispatch.recorder.module_call(self, args, kwargs)
            if result is not NotImplemented:
                return result
        return self._call_eager(*args, **kwargs)

    def _call_eager(self, *args, **kwargs) -> Any:
        if self._forward_hooks or self._forward_pre_hooks or self._backward_hooks or self._backward_pre_hooks:
            return hooks.call(self, args, kwargs)
        return self.forward(*args, **kwargs)

    def compile(
        self,
        *,
        strict: bool = False,
        precision: str | None = None,
        first_step: str = "eager",
        keep_grads: bool = False,
        max_programs: int = 8,
        memory_limit: int | None = None,
    ) -> Module:
        """Turn compilation on for this module and return it: steps that use it are recorded, compiled by nova and
        replayed.

        strict: raise where a step cannot be replayed, instead of one warning and an eager step.
        precision: None (as eager), or "bf16" (operands of contractions in bf16, all else f32).
        first_step: "eager" (the first step of a new kind runs by the eager rules and is compiled for the next) or
        "compiled".
        keep_grads: `p.grad` stays readable after the optimizer's step, which costs the memory of the gradients.
        max_programs: how many kinds of steps are kept compiled. memory_limit: bytes the compiled step may use, None
        for no limit.

        What is pending is computed at the end of a step, at a read, or by `blutrain.nova.flush()`. An array that shares
        memory with a buffer or parameter (numpy(), DLPack) and was taken before shows what was written only then.

        >>> model = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 2)).compile()
        >>> optimizer = bt.optim.AdamW(model.parameters())
        >>> for step in range(3):
        ...     loss = nn.functional.cross_entropy(model(bt.ones(5, 4)), bt.zeros(5, dtype=bt.int64))
        ...     loss.backward()
        ...     optimizer.step()
        ...     optimizer.zero_grad()
        >>> loss.shape
        ()
        """
        options = CompileOptions(strict, precision, first_step, keep_grads, max_programs, memory_limit)
        from .. import nova  # MLIR is loaded only where something is compiled

        self.__dict__["_compiled"] = nova.install(self, options)
        return self

    # ---- modes, gradients, placement

    def train(self, mode: bool = True) -> Module:
        """Set training mode (dropout on) here and below; returns the module."""
        if not isinstance(mode, bool):
            raise TypeError(message("Module.train", "mode must be a bool", got=repr(mode)))
        for module in self.modules():
            module.training = mode
        return self

    def eval(self) -> Module:
        """Set evaluation mode (dropout off) here and below; returns the module."""
        return self.train(False)

    def requires_grad_(self, requires_grad: bool = True) -> Module:
        """Freeze (False) or unfreeze all parameters; returns the module."""
        for parameter in self.parameters():
            parameter.requires_grad_(requires_grad)
        return self

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop the gradients of all parameters (`set_to_none`), or fill them with zeros."""
        params = list(self.parameters())
        if dispatch.recorder is not None and dispatch.recorder.zero_grad(params, set_to_none):
            return
        for p in params:
            if set_to_none:
                p.grad = None
            elif p.grad is not None:
                p.grad.detach().zero_()

    def apply(self, fn: Callable[[Module], Any]) -> Module:
        """Call `fn` on every module, children first; returns the module. Used for initialization."""
        for module in self.children():
            module.apply(fn)
        fn(self)
        return self

    def to(self, *args, **kwargs) -> Module:
        """Move parameters and buffers to a device and/or floating dtype, in place: optimizers keep their references.

        Arguments as Tensor.to; integer and bool buffers keep their dtype. Errors: TypeError for a dtype that is not
        floating.
        """
        wanted = empty(0).to(*args, **kwargs).dtype
        if not wanted.is_floating:
            raise TypeError(message("Module.to", "a module is moved to floating dtypes only", got=repr(wanted)))
        for tensor in [*self.parameters(), *self.buffers()]:
            _move(tensor, *args, **kwargs)
        storage_epoch.bump()
        return self

    def cpu(self) -> Module:
        return self.to("cpu")

    def cuda(self, index: int = 0) -> Module:
        return self.to(f"cuda:{index}")

    def float(self) -> Module:
        return self.to("float32")

    def double(self) -> Module:
        return self.to("float64")

    def half(self) -> Module:
        return self.to("float16")

    def bfloat16(self) -> Module:
        return self.to("bfloat16")

    # ---- state

    def state_dict(self, prefix: str = "") -> dict[str, Tensor]:
        """Dotted name -> tensor (detached, sharing memory) of all parameters and persistent buffers.

        A tied one under each of its names; `prefix` stands before each name as it is, as in PyTorch.
        """
        return state_of(self, prefix)

    def load_state_dict(self, state_dict: dict[str, Any], strict: bool = True) -> IncompatibleKeys:
        """Copy tensors, NumPy arrays or PyTorch's tensors by name into this module.

        Returns (missing_keys, unexpected_keys). All is checked before anything is written. Errors: ValueError for
        missing or unexpected names (strict), a shape or a kind of dtype that differs, or two different values for a
        tied parameter; TypeError for what is no dictionary. One of the names of a tied parameter is enough.
        """
        return plan_load(self, state_dict, strict).commit()

    # ---- hooks

    def register_forward_pre_hook(self, hook: Callable) -> hooks.RemovableHandle:
        """hook(module, args) before forward; what it returns (not None) replaces the positional arguments."""
        return hooks.register(self._forward_pre_hooks, hook)

    def register_forward_hook(self, hook: Callable) -> hooks.RemovableHandle:
        """hook(module, args, output) after forward; what it returns (not None) replaces the output."""
        return hooks.register(self._forward_hooks, hook)

    def register_full_backward_pre_hook(self, hook: Callable) -> hooks.RemovableHandle:
        """hook(module, grad_output) when the gradients of the outputs are known.

        What it returns (not None) replaces them.
        """
        return hooks.register(self._backward_pre_hooks, hook)

    def register_full_backward_hook(self, hook: Callable) -> hooks.RemovableHandle:
        """hook(module, grad_input, grad_output) when the gradients of the inputs are known.

        What it returns (not None) replaces them.
        """
        return hooks.register(self._backward_hooks, hook)

    # ---- text and copies

    def extra_repr(self) -> str:
        """What stands between the brackets of repr for a layer without sub-modules."""
        return ""

    def __repr__(self) -> str:
        lines = []
        for name, child in self.__dict__.items():
            if isinstance(child, Module):
                lines.append(f"({name}): " + repr(child).replace("\n", "\n  "))
        head = type(self).__name__
        if not lines:
            return f"{head}({self.extra_repr()})"
        return f"{head}({self.extra_repr()}\n  " + "\n  ".join(lines) + "\n)"

    def __getstate__(self) -> dict:
        return {**self.__dict__, "_compiled": None}  # a copy starts uncompiled

    def __setstate__(self, state: dict) -> None:
        self.__dict__.update(state)


def _move(tensor: Tensor, *args, **kwargs) -> None:
    moved, grad = tensor.detach().to(*args, **kwargs), known_grad(tensor)
    if moved.dtype is not tensor.dtype and not (moved.dtype.is_floating and tensor.dtype.is_floating):
        moved = tensor.detach().to(moved.device)
    tensor.data = moved
    if grad is not None:
        tensor.grad = grad.detach().to(moved)
