"""linear: x @ w.T + b, the contraction of fully connected layers, and its gradients."""

from __future__ import annotations

from ....errors import message
from ...aval import Aval
from ...dispatch import apply
from ...primitive import Composed, Saves, define
from ..eager_rule import eager_rule
from .blocks import as_rows, narrow, widen
from .check_operands import require_floating
from .compose import upcast
from .derive import vjp_by_compose


def _infer(x, w, b=None):
    require_floating("linear", *((x, w) if b is None else (x, w, b)))
    if len(w.shape) != 2 or not x.shape or x.shape[-1] != w.shape[1]:
        text = message(
            "linear", "x's last dimension must be w's second", expected="x[..., in], weight[out, in]", got=f"{x}, {w}",
            help="the weight is stored as (out_features, in_features)",
        )  # fmt: skip
        raise ValueError(text)
    if b is not None and b.shape != (w.shape[0],):
        raise ValueError(
            message("linear", "the bias has one element per output", expected=f"({w.shape[0]},)", got=str(b))
        )
    return Aval((*x.shape[:-1], w.shape[0]), x.dtype)


def _eager(xp, x, w, b=None):
    y = widen(as_rows(xp, x, 1)) @ widen(w).T
    if b is not None:
        y += b
    return narrow(y, x.dtype).reshape(*x.shape[:-1], w.shape[0])


def _compose(x, w, b=None):
    y = upcast(x).reshape(_num_rows(x), x.shape[-1]) @ upcast(w).transpose(0, 1)
    if b is not None:
        y = y + upcast(b)
    return y.to(x.dtype).reshape(*x.shape[:-1], w.shape[0])


def _num_rows(x) -> int:
    rows = 1
    for extent in x.shape[:-1]:
        rows *= extent
    return rows


def _vjp(ctx, grad):
    needs = (*ctx.needs, False)[:3]
    results = iter(linear_backward(grad, ctx.operands[0], ctx.operands[1], needs=needs))
    return tuple(next(results) if need else None for need in ctx.needs)


LINEAR = define(
    "linear",
    "composite",
    infer=_infer,
    eager=eager_rule("linear", _eager),
    vjp=_vjp,
    nova=Composed(),
    saves=Saves(operands=(0, 1)),
    compose=_compose,
    doc="linear(x[..., k], w[n, k], b[n] or nothing): x @ w.T + b, accumulated in at least float32, rounded once.",
)


def _infer_backward(grad, x, w, *, needs):
    require_floating("linear_backward", grad, x, w)
    results = (x, w, Aval((w.shape[0],), w.dtype))
    return tuple(aval for aval, need in zip(results, needs, strict=True) if need)


def _eager_backward(xp, grad, x, w, *, needs):
    g = widen(as_rows(xp, grad, 1))
    results = []
    if needs[0]:
        results.append(narrow(g @ widen(w), x.dtype).reshape(x.shape))
    if needs[1]:
        results.append(narrow(g.T @ widen(as_rows(xp, x, 1)), w.dtype))
    if needs[2]:
        # A product with ones: BLAS sums blockwise, faster and more exactly than numpy.sum down a column.
        results.append(narrow(xp.ones(g.shape[0], g.dtype) @ g, w.dtype))
    return tuple(results)


def _compose_backward(grad, x, w, *, needs):
    rows = _num_rows(x)
    g = upcast(grad).reshape(rows, w.shape[0])
    results = []
    if needs[0]:
        results.append((g @ upcast(w)).to(x.dtype).reshape(*x.shape))
    if needs[1]:
        results.append((g.transpose(0, 1) @ upcast(x).reshape(rows, x.shape[-1])).to(w.dtype))
    if needs[2]:
        results.append(g.sum(0).to(w.dtype))
    return tuple(results)


LINEAR_BACKWARD = define(
    "linear_backward",
    "composite",
    infer=_infer_backward,
    eager=eager_rule("linear_backward", _eager_backward),
    vjp=vjp_by_compose("linear_backward"),
    nova=Composed(),
    saves=Saves(operands=(0, 1, 2)),
    compose=_compose_backward,
    num_results=3,
    tags=frozenset({"variable_results"}),
    doc=(
        "linear_backward(grad[..., n], x, w, *, needs): those of (grad of x, of w, of b) that the three booleans "
        "`needs` ask for."
    ),
)


def linear(x, weight, bias=None):
    """x @ weight.T + bias. x[..., k], weight[n, k], bias[n] or None; one floating dtype.

    Errors: ValueError for shapes, TypeError for dtypes.
    """
    return apply(LINEAR, x, weight) if bias is None else apply(LINEAR, x, weight, bias)


def linear_backward(grad, x, weight, needs=(True, True, True)):
    """The gradients of linear as a tuple: of x, weight and bias, only those that `needs` asks for."""
    return apply(LINEAR_BACKWARD, grad, x, weight, needs=tuple(bool(n) for n in needs))
