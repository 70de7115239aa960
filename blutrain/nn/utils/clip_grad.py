"""Clipping of gradients by their joint norm."""

from __future__ import annotations

import math
from collections.abc import Iterable
from numbers import Real
from typing import Any

import numpy as np

from ...autograd import no_grad
from ...autograd.hooks import reducer_of, require_averages, shard_of
from ...errors import message
from ...tensor import dispatch
from ...tensor.device import cpu
from ...tensor.dtype import compute_dtype, float32, float64, int32
from ...tensor.ops.arithmetic import where
from ...tensor.ops.arrange import stack
from ...tensor.ops.composite.check import check
from ...tensor.tensor import Tensor

MIN_NORM_TYPE = 1.0  # below, it is no norm


def clip_grad_norm_(
    parameters: Tensor | Iterable, max_norm: float, norm_type: float = 2.0, error_if_nonfinite: bool = False
) -> Tensor:
    """Scale the gradients so that their joint norm is at most `max_norm`; returns the norm before (a 0-d tensor).

    parameters: tensors, or (name, tensor) pairs as named_parameters gives them: an error then names the parameter. One that
    comes twice counts once.
    Errors: ValueError for a bad max_norm or norm_type; RuntimeError for a norm that is not finite, where
    `error_if_nonfinite` asks for it; no gradient has changed then.

    >>> p = nn.Parameter(bt.zeros(2))
    >>> p.grad = bt.tensor([3.0, 4.0])
    >>> nn.utils.clip_grad_norm_([p], max_norm=1.0), p.grad
    (tensor(5.), tensor([0.6, 0.8]))
    """
    items = [parameters] if isinstance(parameters, Tensor) else list(parameters)
    params = _tensors(items)
    if len(set(map(id, params))) < len(params):
        items = list({id(p): item for p, item in zip(reversed(params), reversed(items))}.values())[::-1]
        params = _tensors(items)
    max_norm, norm_type = _checked("max_norm", max_norm, 0.0), _checked("norm_type", norm_type, MIN_NORM_TYPE)
    require_averages("clip_grad_norm_", params)
    scales = max_norm < math.inf
    if dispatch.recorder is not None:
        names = tuple(zip(map(id, params), _names(items))) if error_if_nonfinite else None
        options = {"norm_type": norm_type, "names": names, "scales": scales}
        result = dispatch.recorder.clip_grad_norm(_clip, params, max_norm, **options)
        if result is not NotImplemented:
            return result
    have = [p for p in params if p.grad is not None]
    grads = [p.grad for p in have]
    with no_grad():
        norm = _norm(have, grads, norm_type, scales)
        if error_if_nonfinite and not math.isfinite(norm.item()):
            names = [name for name, p in zip(_names(items), params) if p.grad is not None]
            raise RuntimeError(nonfinite_message(names, grads, norm.item()))
        coefficient = _coefficient(norm, max_norm)
        for g in grads:
            g.mul_(coefficient.to(device=g.device, dtype=g.dtype))
    return norm


def _clip(
    params: list[Tensor], grads: list[Tensor], max_norm: Any, norm_type: float, names: Any, scales: bool
) -> tuple[Tensor, list[Tensor]]:
    """(norm, scaled gradients): the numbers of clip_grad_norm_ without a write, for a recorded step.

    max_norm may be a run-time scalar; scales: it is finite. names: (id, name) of parameters; not None asks for the check
    that the norm is finite.
    """
    norm = _norm(params, grads, norm_type, scales)
    if names is not None:
        _check_finite(norm, params, grads, norm_type, dict(names))
    coefficient = _coefficient(norm, max_norm)
    return norm, [g * coefficient.to(g.dtype) for g in grads]


def _check_finite(norm: Tensor, params: list, grads: list, norm_type: float, names: dict[int, str]) -> None:
    """A value check that names the first parameter whose gradient is not finite, or has an infinite norm."""
    norms = [_power_sum(g, norm_type) for g in grads if g.numel()]
    texts = [f"the gradient of {names[id(p)]} {g._aval}" for p, g in zip(params, grads) if g.numel()]
    finite = stack([x.isfinite() for x in (*norms, norm)]).to(int32)
    flag = where(finite.amin() == 1, 0, finite.argmin(0) + 1).to(int32)
    check(flag, f"clip_grad_norm_: {{flag|{'|'.join([*texts, 'the norm of the gradients'])}}} is not finite")


def _norm(params: list[Tensor], grads: list[Tensor], norm_type: float, scales: bool) -> Tensor:
    """The norm of the parameters' gradients, of which each of several processes may have parts only.

    Processes that average gradients agree on it: they sum in another order where one is compiled and another is not, and
    would scale equal gradients to different bits.
    """
    shards = [shard_of(p) for p in params]
    reducers = {id(s.reducer): s.reducer for s in shards if s is not None}
    if not reducers:
        norm = get_total_norm(grads, norm_type)
        averaging = next((r for p in params if (r := reducer_of(p)) is not None), None) if scales else None
        return norm if averaging is None else averaging.total(norm, "max")
    power, combine, op = (1.0, Tensor.maximum, "max") if norm_type == math.inf else (norm_type, Tensor.add, "sum")
    whole = [g for g, s in zip(grads, shards) if s is None]
    totals = [get_total_norm(whole, norm_type) ** power] if whole else []
    for reducer in reducers.values():
        shared = [(g, s) for g, s in zip(grads, shards) if s is not None and s.reducer is reducer]
        parts = [s.part(g) for g, s in shared if s.size]
        mine = get_total_norm(parts, norm_type) if parts else grads[0].reshape(-1)[:0].sum()
        wide = float64 if any(g.dtype is float64 for g, _ in shared) else float32  # whatever parts a rank has
        totals.append(reducer.total(mine.to(wide) ** power, op))
    return _combine(totals, combine, grads[0].device) ** (1 / power)


def get_total_norm(tensors: list[Tensor], norm_type: float = 2.0) -> Tensor:
    """The norm of all elements of `tensors` together, in float32 at least; 0 where there are none."""
    parts = [_power_sum(t, norm_type) for t in tensors if t.numel()]
    if not parts:
        return Tensor._wrap(np.zeros((), np.float32), cpu)
    device = tensors[0].device
    if norm_type == math.inf:
        return _combine(parts, Tensor.maximum, device)
    total = _combine(parts, Tensor.add, device)
    return total.sqrt() if norm_type == 2.0 else total ** (1.0 / norm_type)


def _power_sum(t: Tensor, norm_type: float) -> Tensor:
    """The sum of |t| ** norm_type, for inf the largest |t|."""
    wide = t.to(compute_dtype(t.dtype))
    if norm_type == math.inf:
        return wide.abs().amax()
    return (wide * wide if norm_type == 2.0 else wide.abs() ** norm_type).sum()


def nonfinite_message(names: list[str], grads: list[Tensor], norm: float) -> str:
    """The text of the error, which names the first parameter whose gradient is not finite."""
    for name, g in zip(names, grads):
        if not bool(g.isfinite().all()):
            return message(
                "clip_grad_norm_", f"the gradient of {name} {g._aval} is not finite", got=f"a total norm of {norm}"
            )
    return message(
        "clip_grad_norm_", "the norm overflows, though every gradient is finite", got=f"a total norm of {norm}"
    )


def _coefficient(norm: Tensor, max_norm: Any) -> Tensor:
    return (max_norm / (norm + 1e-6)).clamp(max=1.0)


def _combine(parts: list[Tensor], operation: Any, device: Any) -> Tensor:
    total = parts[0]
    for part in parts[1:]:
        total = operation(total, part.to(device))
    return total


def _names(items: list) -> list[str]:
    return [item[0] if isinstance(item, tuple) else f"parameter {i}" for i, item in enumerate(items)]


def _tensors(items: list) -> list[Tensor]:
    """The tensors of a list of tensors or pairs. Errors: TypeError for anything else."""
    if all(issubclass(kind, Tensor) for kind in set(map(type, items))):
        return items
    params = [item[1] if isinstance(item, tuple) else item for item in items]
    for name, p in zip(_names(items), params):
        if not isinstance(p, Tensor):
            raise TypeError(message("clip_grad_norm_", f"{name} is no tensor", got=type(p).__name__))
    return params


def _checked(name: str, value: Any, least: float) -> float:
    if isinstance(value, bool) or not isinstance(value, Real) or not value >= least:
        raise ValueError(message("clip_grad_norm_", f"{name} must be a number of at least {least}", got=repr(value)))
    return float(value)
