"""nova.jit: a compiled function. A module stands for it whose `forward` is the function, and that module is compiled."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Iterable
from typing import Any

from ..errors import message
from ..nn.module import Module
from ..nn.parameter import Parameter
from ..tensor.tensor import Tensor


class Function(Module):
    """Stands for a function. Below it is what the function reads by reference: modules, parameters, other tensors."""

    def __init__(self, function: Callable, state: Any):
        super().__init__()
        self.__name__ = getattr(function, "__qualname__", type(function).__name__)
        self.forward = function
        for number, item in enumerate(_leaves(state)):
            self._hold(f"state{number}", item)
        if isinstance(function, types.MethodType) and isinstance(function.__self__, Module):
            self._hold("instance", function.__self__)

    def _hold(self, name: str, item: Module | Tensor) -> None:
        if isinstance(item, Tensor) and item.grad_fn is not None:
            rule, help = "a tensor in `state` was computed by operations that are on the tape", "pass it as an argument"
            raise ValueError(message("nova.jit", rule, got=str(item._aval), help=f"{help}, or detach() it"))
        if isinstance(item, Module):
            self.register_module(name, item)
        elif isinstance(item, Parameter):
            self.register_parameter(name, item)
        else:
            item._buffer()  # a pending one has no memory to refer to yet
            self.register_buffer(name, item)


def jit(function: Callable | None = None, *, state: Any = (), **options) -> Any:
    """Compile a function of tensors: its calls are recorded, compiled and replayed as those of `Module.compile()` are.

    state: modules, parameters and other tensors (in lists, tuples, dicts) that it reads, or changes in place, beyond its
    arguments. Modules and tensors that it has from closures, globals or arguments are found without; a tensor found so is
    treated like an argument. Other values that it reads there are guards: another value makes another program. options: as
    of Module.compile. Without a function it gives a decorator.

    `backward()` and `optimizer.step()` come after the call, and are compiled with it. A function that calls them itself, or has
    arguments that cannot be compared (an optimizer, an array), runs its Python at every call; the modules that it calls are
    compiled then, with what it does with their results, as after `Module.compile()`. Errors: TypeError for a Module (it
    has compile()), or for what is no module or tensor in `state`; ValueError for a tensor there that is not a leaf.

    >>> from blutrain import nova
    >>> model = nn.Linear(4, 2)
    >>> optimizer = bt.optim.SGD(model.parameters(), lr=0.1)
    >>> @nova.jit
    ... def loss_of(x, y):
    ...     return nn.functional.cross_entropy(model(x), y)
    >>> for step in range(3):
    ...     loss = loss_of(bt.ones(5, 4), bt.zeros(5, dtype=bt.int64))
    ...     loss.backward()
    ...     optimizer.step()
    ...     optimizer.zero_grad()
    >>> loss.shape
    ()
    """
    if function is None:
        return functools.partial(jit, state=state, **options)
    if isinstance(function, Module) or not callable(function):
        help = "a module has compile()" if isinstance(function, Module) else "pass the function, not its result"
        raise TypeError(message("nova.jit", "it compiles functions", got=type(function).__name__, help=help))
    module = Function(function, state).compile(**options)

    @functools.wraps(function)
    def compiled(*args, **kwargs):
        return module(*args, **kwargs)

    setattr(compiled, "_compiled", module._compiled)  # noqa: B010 (nova.explain looks there)
    return compiled


def _leaves(state: Any) -> list[Module | Tensor]:
    """The modules and tensors in nested state, each once."""
    if isinstance(state, (Module, Tensor)):
        return [state]
    items = state.values() if isinstance(state, dict) else state
    if isinstance(items, str) or not isinstance(items, Iterable):
        help = "optimizers and schedules are used after the call" if hasattr(state, "step") else ""
        expected = "modules, parameters, tensors, and lists or dicts of them"
        rule = "`state` holds something else"
        raise TypeError(message("nova.jit", rule, expected=expected, got=type(state).__name__, help=help))
    return list({id(leaf): leaf for item in items for leaf in _leaves(item)}.values())
