"""Tree: what a module holds, found in its `__dict__`, with dotted names.

Everything stands there in order of definition; parameters and sub-modules are found by type, buffers by name. There is
no second registry that could disagree, and reading `self.weight` is a plain attribute read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from ..errors import message
from ..tensor.tensor import Tensor, structure_epoch
from .parameter import Parameter

if TYPE_CHECKING:
    from .module import Module

_MISSING = object()


class Tree:
    """The attributes of a module and the modules below it."""

    _buffers: dict[str, bool]  # name -> is it part of state_dict

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
        self._register("module", name, module, Tree)

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
            raise TypeError(
                message(
                    op,
                    rule,
                    expected="a Module" if expected is Tree else f"a {expected.__name__}",
                    got=type(value).__name__,
                )
            )
        setattr(self, name, value)

    # ---- the tree

    def named_children(self) -> Iterator[tuple[str, Module]]:
        """The direct sub-modules, each once."""
        seen = set()
        for name, value in list(self.__dict__.items()):
            if isinstance(value, Tree) and id(value) not in seen:
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
            if not isinstance(module, Tree):
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


def _walk(module: Any, prefix: str, seen: set[int] | None) -> Iterator[tuple[str, Module]]:
    if seen is not None:
        if id(module) in seen:
            return
        seen.add(id(module))
    yield prefix, module
    for name, child in list(module.__dict__.items()):
        if isinstance(child, Tree):
            yield from _walk(child, f"{prefix}.{name}" if prefix else name, seen)
