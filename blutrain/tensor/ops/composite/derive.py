"""The derivative of a composite by differentiating its `compose`: how backward primitives get derivatives of their own.

`compose` runs on the saved operands while the tape's slot of dispatch is ours; the simple primitives noted are then
walked backwards through their own vjp rules. Everything runs through dispatch, so it can be recorded, and with
create_graph differentiated again.
"""

from __future__ import annotations

import contextlib
import threading
from types import SimpleNamespace
from typing import Any, NamedTuple

from ... import dispatch
from ...primitive import TABLE, NotDifferentiable
from ...tensor import Tensor
from ..arithmetic import add

_lock = threading.RLock()  # the tape's slot is one for all threads


def vjp_by_compose(name: str):
    """The vjp rule of composite `name` that differentiates its `compose`.

    The record has to save all operands that it reads.
    """

    def vjp(ctx, *grads):
        return differentiate(TABLE[name].compose, ctx, grads)

    return vjp


def vjp_with_statistics(name: str, rule):
    """The vjp rule of a composite whose further results are statistics kept for backward.

    They have gradients only inside second derivatives; then `compose` is differentiated, otherwise `rule` serves.
    """

    def vjp(ctx, *grads):
        if all(grad is None for grad in grads[1:]):
            return rule(ctx, *grads)
        return differentiate(TABLE[name].compose, ctx, grads)

    return vjp


class _Step(NamedTuple):
    prim: Any
    operands: tuple
    results: tuple
    attrs: dict


class _Notes:
    """Stands in dispatch.tape: notes the steps that depend on `variables`, and hands them on to the real tape."""

    def __init__(self, outer, variables):
        self.outer = outer
        self.thread = threading.get_ident()
        self.steps: list[_Step] = []
        self.reached = {id(v) for v in variables if v is not None}

    def enabled(self) -> bool:
        return self.outer.enabled()

    def record(self, prim, operands, results, attrs, *rest) -> None:
        if self.outer.enabled():
            self.outer.record(prim, operands, results, attrs, *rest)
        if threading.get_ident() != self.thread or isinstance(prim.vjp, NotDifferentiable):
            return
        if any(id(x) in self.reached for x in operands):
            self.steps.append(_Step(prim, tuple(operands), tuple(results), attrs))
            for result in results:
                result._requires_grad = result.dtype.is_floating
                self.reached.add(id(result))

    def __getattr__(self, name: str):
        return getattr(self.outer, name)


@contextlib.contextmanager
def _noted(variables):
    with _lock:
        notes = _Notes(dispatch.tape, variables)
        dispatch.tape = notes
        try:
            yield notes.steps
        finally:
            dispatch.tape = notes.outer
            for step in notes.steps:
                for result in step.results:
                    result._requires_grad = result.grad_fn is not None


def differentiate(compose, ctx, grads) -> tuple:
    """The gradients of `ctx.operands` under `compose`, given those of its results (None: none).

    What vjp rules return.
    """
    variables = [_variable(x) if need else None for x, need in zip(ctx.operands, ctx.needs, strict=True)]
    operands = [x if v is None else v for x, v in zip(ctx.operands, variables, strict=True)]
    with _noted(variables) as steps:
        results = compose(*operands, **ctx.attrs)
    found: dict[int, Tensor] = {}
    for result, grad in zip(results if isinstance(results, tuple) else (results,), grads, strict=True):
        _accumulate(found, result, grad)
    reached = {id(v) for v in variables if v is not None}
    reached.update(id(r) for step in steps for r in step.results)
    for step in reversed(steps):
        given = [found.pop(id(r), None) for r in step.results]
        if any(g is not None for g in given):
            needs = [id(x) in reached for x in step.operands]
            for operand, need, grad in zip(
                step.operands, needs, step.prim.vjp(_context(step, needs), *given), strict=True
            ):
                if need:
                    _accumulate(found, operand, grad)
    # A tensor given twice gets its whole gradient where it stands first.
    return tuple([None if v is None else found.pop(id(v), None) for v in variables])


def _variable(x: Tensor) -> Tensor:
    """`x` as something to differentiate by: itself inside a graph that goes on, else an alias."""
    if x.requires_grad:
        return x
    alias = x._alias()
    alias._requires_grad = True
    return alias


def _accumulate(found: dict[int, Tensor], tensor, grad) -> None:
    if grad is not None:
        known = found.get(id(tensor))
        found[id(tensor)] = grad if known is None else add(known, grad)


def _context(step: _Step, needs) -> SimpleNamespace:
    return SimpleNamespace(
        operands=step.operands,
        results=step.results,
        avals=tuple(dispatch.aval_of(x) for x in step.operands),
        result_avals=tuple(r._aval for r in step.results),
        attrs=step.attrs,
        needs=needs,
    )
