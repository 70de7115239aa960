"""Module: a tree of parameters, buffers and sub-modules with a forward.

Everything a module holds stands in its `__dict__` in order of definition; parameters and sub-modules are found there
by type, buffers by name. There is no second registry that could disagree, and reading `self.weight` is a plain
attribute read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from ..errors import message
from ..tensor import dispatch
from ..tensor.creation import empty
from ..tensor.tensor import Tensor, known_grad, storage_epoch, structure_epoch
from . import hooks
from .compile_options import CompileOptions
from .parameter import Parameter
from .state import IncompatibleKeys, plan_load, state_of

_MISSING = object()


class Module:
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
    _buffers: dict[str, bool]
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
        """
        options = CompileOptions(strict, precision, first_step, keep_grads, max_programs, memory_limit)
        from .. import nova  # MLIR is loaded only where something is compiled

        self.__dict__["_compiled"] = nova.install(self, options)
        return self

    # ---- attributes

    def __setattr__(self, name: str, value: Any) -> None:
        old = self.__dict__.get(name, _MISSING)
        if old is value:
            return
        if isinstance(old, Parameter) and isinstance(value, Tensor) and not isinstance(value, Parameter):
            raise TypeError(
                message(
                    f"{type(self).__name__}.{name}",
                    "a parameter cannot be replaced by a plain tensor",
                    expected="a Parameter, or None",
                    got=f"{type(value).__name__} {value._aval}",
                    help=f"wrap it in nn.Parameter, or copy its values with self.{name}.copy_(...) under no_grad",
                )
            )
        if name in self._buffers and not (value is None or isinstance(value, Tensor)):
            expected, got = "a Tensor, or None", type(value).__name__
            help = f"del self.{name} first, if it is to be no buffer any more"
            raise TypeError(
                message(f"{type(self).__name__}.{name}", "it is a buffer", expected=expected, got=got, help=help)
            )
        # A plain tensor (a side output of forward) is data, all else is structure that a compiled step may depend on.
        if type(value) is not Tensor or type(old) is not Tensor or name in self._buffers:
            structure_epoch.bump()
        object.__setattr__(self, name, value)

    def __delattr__(self, name: str) -> None:
        self._buffers.pop(name, None)
        structure_epoch.bump()
        object.__delattr__(self, name)

    def register_parameter(self, name: str, parameter: Parameter | None) -> None:
        """Set attribute `name` to a parameter, or to None for one that this module does not have.

        Errors: ValueError for a name that is taken or holds a dot, TypeError for what is no parameter.
        """
        self._register("parameter", name, parameter, Parameter)

    def register_module(self, name: str, module: Module | None) -> None:
        """Set attribute `name` to a sub-module. Errors: as register_parameter."""
        self._register("module", name, module, Module)

    add_module = register_module

    def register_buffer(self, name: str, tensor: Tensor | None, persistent: bool = True) -> None:
        """Set attribute `name` to a tensor that moves with the module but is not trained.

        persistent: it is part of state_dict. Errors: as register_parameter; TypeError for a Parameter.
        """
        if isinstance(tensor, Parameter):
            raise TypeError(
                message("register_buffer", f"{name!r} is not a buffer", expected="a Tensor", got="Parameter")
            )
        self._register("buffer", name, tensor, Tensor)
        self._buffers[name] = persistent

    def _register(self, kind: str, name: str, value: Any, expected: type) -> None:
        op = f"register_{kind}"
        if not isinstance(name, str) or not name or "." in name:
            raise ValueError(message(op, "a name is a text without dots", got=repr(name)))
        taken = getattr(self, name, None)
        if taken is not None and not (isinstance(taken, expected) and name in self.__dict__):
            raise ValueError(
                message(op, f"{type(self).__name__} has an attribute {name!r} already", got=type(taken).__name__)
            )
        if not (value is None or isinstance(value, expected)):
            rule = f"{name!r} is not a {kind}"
            raise TypeError(message(op, rule, expected=f"a {expected.__name__}", got=type(value).__name__))
        setattr(self, name, value)

    # ---- the tree

    def named_children(self) -> Iterator[tuple[str, Module]]:
        """The direct sub-modules, each once."""
        seen = set()
        for name, value in list(self.__dict__.items()):
            if isinstance(value, Module) and id(value) not in seen:
                seen.add(id(value))
                yield name, value

    def children(self) -> Iterator[Module]:
        return (module for _, module in self.named_children())

    def named_modules(self, prefix: str = "", remove_duplicate: bool = True) -> Iterator[tuple[str, Module]]:
        """This module and all below it, depth first, with dotted names."""
        return _walk(self, prefix, set() if remove_duplicate else None)

    def modules(self) -> Iterator[Module]:
        return (module for _, module in self.named_modules())

    def named_parameters(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Parameter]]:
        """Parameters with dotted names.

        A tied one comes once, under its first name, unless `remove_duplicate=False`.
        """
        return self._named_tensors(prefix, recurse, remove_duplicate, lambda m: m._own_parameters())

    def parameters(self, recurse: bool = True) -> Iterator[Parameter]:
        return (p for _, p in self.named_parameters(recurse=recurse))

    def named_buffers(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Tensor]]:
        return self._named_tensors(prefix, recurse, remove_duplicate, lambda m: m._own_buffers())

    def buffers(self, recurse: bool = True) -> Iterator[Tensor]:
        return (b for _, b in self.named_buffers(recurse=recurse))

    def get_submodule(self, target: str) -> Module:
        """The module with dotted name `target` ("" is this one). Errors: AttributeError naming what is missing."""
        module: Any = self
        for part in filter(None, target.split(".")):
            module = module.__dict__.get(part)
            if not isinstance(module, Module):
                raise AttributeError(message("get_submodule", f"{type(self).__name__} has no sub-module {target!r}"))
        return module

    def get_parameter(self, target: str) -> Parameter:
        """The parameter with dotted name `target`."""
        path, _, name = target.rpartition(".")
        value = self.get_submodule(path).__dict__.get(name)
        if not isinstance(value, Parameter):
            raise AttributeError(message("get_parameter", f"{type(self).__name__} has no parameter {target!r}"))
        return value

    def _own_parameters(self) -> list[tuple[str, Parameter]]:
        return [(name, value) for name, value in self.__dict__.items() if isinstance(value, Parameter)]

    def _own_buffers(self) -> list[tuple[str, Tensor]]:
        return [(name, self.__dict__[name]) for name in self._buffers if self.__dict__[name] is not None]

    def _named_tensors(self, prefix: str, recurse: bool, remove_duplicate: bool, own: Callable) -> Iterator:
        seen = set()
        modules = self.named_modules(prefix, remove_duplicate) if recurse else [(prefix, self)]
        for path, module in modules:
            for name, tensor in own(module):
                if remove_duplicate and id(tensor) in seen:
                    continue
                seen.add(id(tensor))
                yield f"{path}.{name}" if path else name, tensor

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


def _walk(module: Module, prefix: str, seen: set[int] | None) -> Iterator[tuple[str, Module]]:
    if seen is not None:
        if id(module) in seen:
            return
        seen.add(id(module))
    yield prefix, module
    for name, child in list(module.__dict__.items()):
        if isinstance(child, Module):
            yield from _walk(child, f"{prefix}.{name}" if prefix else name, seen)


def _move(tensor: Tensor, *args, **kwargs) -> None:
    moved, grad = tensor.detach().to(*args, **kwargs), known_grad(tensor)
    if moved.dtype is not tensor.dtype and not (moved.dtype.is_floating and tensor.dtype.is_floating):
        moved = tensor.detach().to(moved.device)
    tensor.data = moved
    if grad is not None:
        tensor.grad = grad.detach().to(moved)
