"""mse_loss: the squared difference, averaged, summed or per element."""

from __future__ import annotations

from ...aval import Aval
from ...dispatch import apply
from ...primitive import Composed, Saves, define
from ..eager_rule import eager_rule
from .blocks import map_blocks, narrow, row_blocks, widen
from .check_operands import require_one_of, require_same_aval
from .compose import upcast
from .cross_entropy import REDUCTIONS
from .derive import vjp_by_compose


def _infer(x, target, *, reduction):
    require_same_aval("mse_loss", x, target)
    require_one_of("mse_loss", "reduction", reduction, REDUCTIONS)
    return x if reduction == "none" else Aval((), x.dtype)


def _eager(xp, x, target, *, reduction):
    if reduction == "none":
        return map_blocks(xp, _square_block, [x, target])
    flat, wanted = x.reshape(-1), target.reshape(-1)
    partial = []
    for block in row_blocks(xp, flat.size, 1):
        difference = widen(flat[block]) - widen(wanted[block])
        partial.append(xp.dot(difference, difference))
    total = xp.stack(partial).sum() if partial else widen(xp.zeros((), x.dtype))
    return narrow(total if reduction == "sum" else total / widen(xp.asarray(flat.size, x.dtype)), x.dtype)


def _square_block(xp, inputs, results, temporaries):
    (x, target), (y,) = inputs, results
    xp.subtract(x, target, out=y)
    xp.multiply(y, y, out=y)


def _compose(x, target, *, reduction):
    difference = upcast(x) - upcast(target)
    squares = difference * difference
    if reduction == "none":
        return squares.to(x.dtype)
    total = squares.sum()
    return (total if reduction == "sum" else total / float(x.numel())).to(x.dtype)


def _vjp(ctx, grad):
    dx = apply(MSE_LOSS_BACKWARD, grad, *ctx.operands, **ctx.attrs)
    return dx if ctx.needs[0] else None, -dx if ctx.needs[1] else None


MSE_LOSS = define(
    "mse_loss",
    "composite",
    infer=_infer,
    eager=eager_rule("mse_loss", _eager),
    vjp=_vjp,
    nova=Composed(),
    saves=Saves(operands=(0, 1)),
    compose=_compose,
    doc="mse_loss(x, target, *, reduction): (x - target)**2, its mean or sum accumulated in at least float32.",
)


def _infer_backward(grad, x, target, *, reduction):
    return x


def _eager_backward(xp, grad, x, target, *, reduction):
    factor = widen(grad) * (2 / max(x.size, 1) if reduction == "mean" else 2)

    def rule(xp, inputs, results, temporaries):
        (x, target, *factors), (dx,) = inputs, results
        xp.subtract(x, target, out=dx)
        dx *= factors[0] if factors else factor

    return map_blocks(xp, rule, [x, target, factor] if reduction == "none" else [x, target])


def _compose_backward(grad, x, target, *, reduction):
    factor = upcast(grad) * (2 / max(x.numel(), 1) if reduction == "mean" else 2)
    return ((upcast(x) - upcast(target)) * factor).to(x.dtype)


MSE_LOSS_BACKWARD = define(
    "mse_loss_backward",
    "composite",
    infer=_infer_backward,
    eager=eager_rule("mse_loss_backward", _eager_backward),
    vjp=vjp_by_compose("mse_loss_backward"),
    nova=Composed(),
    saves=Saves(operands=(0, 1, 2)),
    compose=_compose_backward,
    doc=(
        "mse_loss_backward(grad, x, target, *, reduction): 2 (x - target) times the gradient; the target's is "
        "its negative."
    ),
)


def mse_loss(x, target, reduction: str = "mean"):
    """(x - target)**2, reduction "mean", "sum" or "none"; x and target of one shape and floating dtype."""
    return apply(MSE_LOSS, x, target, reduction=reduction)
