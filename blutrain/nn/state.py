"""state_dict and load_state_dict: everything is checked first, then everything is copied."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from ..autograd import no_grad
from ..errors import message
from ..tensor.device import cpu
from ..tensor.tensor import Tensor


class IncompatibleKeys(NamedTuple):
    """Names that load_state_dict(strict=False) left alone."""

    missing_keys: list[str]
    unexpected_keys: list[str]


def state_of(module: Any, prefix: str = "") -> dict[str, Tensor]:
    """Name -> detached tensor; names of one tied tensor map to one and the same object."""
    detached: dict[int, Tensor] = {}
    return {
        prefix + name: detached.setdefault(id(tensor), tensor.detach()) for name, tensor in _named_state(module).items()
    }


class LoadPlan(NamedTuple):
    """A checked state: which value goes into which tensor. Nothing is written before `commit`."""

    pairs: list[tuple[Tensor, Any]]
    keys: IncompatibleKeys

    def commit(self) -> IncompatibleKeys:
        with no_grad():
            for tensor, value in self.pairs:
                tensor.copy_(_as_tensor(value, tensor))
        return self.keys


def plan_load(module: Any, state: dict[str, Any], strict: bool = True) -> LoadPlan:
    """Check `state` against the module; see Module.load_state_dict."""
    if not isinstance(state, Mapping):
        got = type(state).__name__
        raise TypeError(message("load_state_dict", "not a state", expected="a dictionary of names to tensors", got=got))
    own, state = _named_state(module), {name: _value(value) for name, value in state.items()}
    sources, problems = _match(own, state)
    missing = [name for name, tensor in own.items() if name not in state and id(tensor) not in sources]
    unexpected = [name for name in state if name not in own]
    if strict:
        problems += [f"missing: {name} {own[name]._aval}" for name in missing]
        problems += [f"unexpected: {name} {_describe(state[name])}" for name in unexpected]
    if problems:
        raise ValueError(_report(module, problems))
    tensors = {id(tensor): tensor for tensor in own.values()}
    pairs = [(tensors[key], value) for key, (_, value) in sources.items()]
    return LoadPlan(pairs, IncompatibleKeys(missing, unexpected))


def _value(value: Any) -> Any:
    """What other libraries call a tensor (PyTorch, JAX) as a NumPy array."""
    if isinstance(value, Tensor | np.ndarray) or not hasattr(value, "__dlpack__"):
        return value
    value = value.detach() if hasattr(value, "detach") else value
    return np.asarray(value.float() if str(value.dtype) == "torch.bfloat16" else value)  # NumPy takes no bfloat16 of it


def _named_state(module: Any) -> dict[str, Tensor]:
    tensors = {}
    for path, sub in module.named_modules(remove_duplicate=False):
        persistent = [(name, buffer) for name, buffer in sub._own_buffers() if sub._buffers[name]]
        for name, tensor in [*sub._own_parameters(), *persistent]:
            tensors[f"{path}.{name}" if path else name] = tensor
    return tensors


def _match(own: dict[str, Tensor], state: dict[str, Any]) -> tuple[dict[int, tuple[str, Any]], list[str]]:
    """id of a tensor -> (name, value) that goes into it, and what stands against it. Nothing is written."""
    sources: dict[int, tuple[str, Any]] = {}
    problems = []
    for name, tensor in own.items():
        if name not in state:
            continue
        value = state[name]
        problem = _problem(name, tensor, value)
        if problem:
            problems.append(problem)
        elif id(tensor) not in sources:
            sources[id(tensor)] = (name, value)
        elif not _same(sources[id(tensor)][1], value):
            problems.append(f"tied: {sources[id(tensor)][0]} and {name} are one parameter here, but two values differ")
    return sources, problems


def _problem(name: str, tensor: Tensor, value: Any) -> str | None:
    if not isinstance(value, Tensor | np.ndarray):
        return f"{name}: expected a tensor or an array, got {type(value).__name__}"
    if tuple(value.shape) != tuple(tensor.shape):
        return f"shape: {name}: expected {tensor._aval}, got {_describe(value)}"
    if _kind(value) != _kind(tensor):
        return f"dtype: {name}: expected {tensor._aval}, got {_describe(value)}"
    return None


def _kind(value: Any) -> str:
    dtype = value.dtype.numpy if isinstance(value, Tensor) else value.dtype
    # ml_dtypes' bfloat16 is of NumPy's kind "V"; all floats convert into each other
    return {"V": "f"}.get(np.dtype(dtype).kind, np.dtype(dtype).kind)


def _describe(value: Any) -> str:
    if isinstance(value, Tensor):
        return str(value._aval)
    if isinstance(value, np.ndarray):
        return f"{value.dtype}[{','.join(map(str, value.shape))}]"
    return type(value).__name__


def _same(a: Any, b: Any) -> bool:
    return a is b or np.array_equal(np.asarray(_on_host(a)), np.asarray(_on_host(b)), equal_nan=_kind(a) == "f")


def _on_host(value: Any) -> Any:
    return value.detach().numpy() if isinstance(value, Tensor) else value


def _as_tensor(value: Any, like: Tensor) -> Tensor:
    tensor = value if isinstance(value, Tensor) else Tensor._wrap(value, cpu)
    return tensor.detach().to(like.device)


def _report(module: Any, problems: list[str]) -> str:
    shown = problems[:20] + ([f"... and {len(problems) - 20} more"] if len(problems) > 20 else [])
    return message(
        "load_state_dict",
        f"the state does not fit {type(module).__name__}; nothing was loaded",
        got="\n    ".join(["", *shown]),
        help="build the model with the sizes the state was saved with; strict=False skips missing and unexpected names",
    )
