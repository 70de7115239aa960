"""softmax and log_softmax along one dimension, shifted by the maximum, and their gradients.

A row that holds +inf, or nothing but -inf, is NaN throughout (inf - inf); a row of some -inf has probability 0 there.
"""

from __future__ import annotations

from ...dispatch import apply
from ...primitive import Composed, Saves, define
from ...shapes import normalize_dim
from ..eager_rule import eager_rule
from .blocks import as_rows, row_blocks, widen
from .check_operands import require_floating, require_same_aval
from .compose import upcast
from .derive import vjp_by_compose


def _infer(x, *, dim):
    require_floating("softmax", x)
    return x


def _by_rows(rule):
    """An eager rule over rows from `rule(xp, blocks, result)`: moves `dim` last, cuts the rows into blocks, widens
    and narrows.
    """

    def eager(xp, *arrays, dim):
        moved = [xp.moveaxis(a, dim, -1) for a in arrays]
        matrices = [as_rows(xp, a, 1) for a in moved]
        result = xp.empty(matrices[0].shape, arrays[0].dtype)
        if result.size:
            for rows in row_blocks(xp, *result.shape):
                result[rows] = rule(xp, *[widen(m[rows]) for m in matrices])
        return xp.moveaxis(result.reshape(moved[0].shape), -1, dim)

    return eager


def _softmax_rows(xp, x):
    y = x - x.max(-1, keepdims=True)
    xp.exp(y, out=y)
    y /= y.sum(-1, keepdims=True)
    return y


def _compose_softmax(x, *, dim):
    if not x.numel():
        return x
    wide = upcast(x)
    exponentials = (wide - wide.amax(dim, keepdim=True).detach()).exp()
    return (exponentials / exponentials.sum(dim, keepdim=True)).to(x.dtype)


SOFTMAX = define(
    "softmax",
    "composite",
    infer=_infer,
    eager=eager_rule("softmax", _by_rows(_softmax_rows)),
    vjp=lambda ctx, grad: (apply(SOFTMAX_BACKWARD, grad, ctx.results[0], **ctx.attrs),),
    nova=Composed(),
    saves=Saves(results=(0,)),
    compose=_compose_softmax,
    doc="softmax(x, *, dim): exp(x - max) over its sum along dim (non-negative).",
)


def _log_softmax_rows(xp, x):
    y = x - x.max(-1, keepdims=True)
    y -= xp.log(xp.exp(y).sum(-1, keepdims=True))
    return y


def _compose_log_softmax(x, *, dim):
    if not x.numel():
        return x
    wide = upcast(x)
    shifted = wide - wide.amax(dim, keepdim=True).detach()
    return (shifted - shifted.exp().sum(dim, keepdim=True).log()).to(x.dtype)


LOG_SOFTMAX = define(
    "log_softmax",
    "composite",
    infer=_infer,
    eager=eager_rule("log_softmax", _by_rows(_log_softmax_rows)),
    vjp=lambda ctx, grad: (apply(LOG_SOFTMAX_BACKWARD, grad, ctx.results[0], **ctx.attrs),),
    nova=Composed(),
    saves=Saves(results=(0,)),
    compose=_compose_log_softmax,
    doc="log_softmax(x, *, dim): the logarithm of softmax, without forming it.",
)


def _infer_backward(grad, y, *, dim):
    require_same_aval("softmax_backward", grad, y)
    return y


def _softmax_backward_rows(xp, grad, y):
    dx = grad * y
    total = dx.sum(-1, keepdims=True)
    xp.subtract(grad, total, out=dx)
    dx *= y
    return dx


def _compose_softmax_backward(grad, y, *, dim):
    g, p = upcast(grad), upcast(y)
    return (p * (g - (g * p).sum(dim, keepdim=True))).to(y.dtype)


SOFTMAX_BACKWARD = define(
    "softmax_backward",
    "composite",
    infer=_infer_backward,
    eager=eager_rule("softmax_backward", _by_rows(_softmax_backward_rows)),
    vjp=vjp_by_compose("softmax_backward"),
    nova=Composed(),
    saves=Saves(operands=(0, 1)),
    compose=_compose_softmax_backward,
    doc="softmax_backward(grad, y, *, dim): y * (grad - sum(grad * y)), y the result of softmax.",
)


def _log_softmax_backward_rows(xp, grad, y):
    dx = xp.exp(y)
    dx *= grad.sum(-1, keepdims=True)
    xp.subtract(grad, dx, out=dx)
    return dx


def _compose_log_softmax_backward(grad, y, *, dim):
    g = upcast(grad)
    return (g - upcast(y).exp() * g.sum(dim, keepdim=True)).to(y.dtype)


LOG_SOFTMAX_BACKWARD = define(
    "log_softmax_backward",
    "composite",
    infer=_infer_backward,
    eager=eager_rule("log_softmax_backward", _by_rows(_log_softmax_backward_rows)),
    vjp=vjp_by_compose("log_softmax_backward"),
    nova=Composed(),
    saves=Saves(operands=(0, 1)),
    compose=_compose_log_softmax_backward,
    doc="log_softmax_backward(grad, y, *, dim): grad - exp(y) * sum(grad), y the result of log_softmax.",
)


def softmax(x, dim: int):
    """exp(x) / sum(exp(x)) along `dim`, without overflow. Errors: IndexError for dim, TypeError for integers."""
    return apply(SOFTMAX, x, dim=normalize_dim("softmax", dim, x.ndim))


def log_softmax(x, dim: int):
    """log(softmax(x, dim)). Errors: IndexError for dim, TypeError for integers."""
    return apply(LOG_SOFTMAX, x, dim=normalize_dim("log_softmax", dim, x.ndim))
