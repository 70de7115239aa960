"""relu and silu, elementwise, with their gradients."""

from __future__ import annotations

import numpy

from ...dispatch import apply
from ...primitive import Composed, Saves, define
from ..arithmetic import where
from ..eager_rule import eager_rule
from .blocks import map_blocks, narrow, widen
from .check_operands import require_floating, require_same_aval
from .compose import upcast
from .derive import vjp_by_compose

# silu's factor x is held within +-BOUND where its other factor is exactly 0 or 1: an infinity is never multiplied by
# zero.
BOUND = 1e4


def _infer_relu(x):
    require_floating("relu", x)
    return x


def _compose_relu(x):
    return x.clamp(min=0)


def _vjp_relu(ctx, grad):
    return (relu_backward(grad, ctx.results[0]),)


RELU = define(
    "relu",
    "composite",
    infer=_infer_relu,
    eager=lambda xp, x: narrow(xp.maximum(widen(x), 0), x.dtype),
    vjp=_vjp_relu,
    nova=Composed(),
    saves=Saves(results=(0,)),
    compose=_compose_relu,
    doc="relu(x): max(x, 0); NaN stays NaN, the derivative at 0 is 0.",
)


def _infer_relu_backward(grad, y):
    require_same_aval("relu_backward", grad, y)
    return grad


def _eager_relu_backward(xp, grad, y):
    if xp is numpy:
        result = numpy.zeros(grad.shape, grad.dtype)
        numpy.copyto(result, grad, where=y > 0)
        return result
    return narrow(xp.where(widen(y) > 0, widen(grad), 0), grad.dtype)


def _compose_relu_backward(grad, y):
    return where(y > 0, grad, 0)


RELU_BACKWARD = define(
    "relu_backward",
    "composite",
    infer=_infer_relu_backward,
    eager=eager_rule("relu_backward", _eager_relu_backward),
    vjp=lambda ctx, grad: (relu_backward(grad, ctx.operands[1]), None),
    nova=Composed(),
    saves=Saves(operands=(1,)),
    compose=_compose_relu_backward,
    doc="relu_backward(grad, y): grad where relu's result y is positive, else 0.",
)


def _infer_silu(x):
    require_floating("silu", x)
    return x


def _silu_block(xp, inputs, results, temporaries):
    (x,), (y,) = inputs, results
    (scratch,) = temporaries
    _fill_sigmoid(xp, x, scratch)
    xp.maximum(x, -BOUND, out=y)
    y *= scratch


def _fill_sigmoid(xp, x, out):
    """1 / (1 + exp(-x)); exp overflows to inf for very negative x, whose reciprocal 0 is the limit."""
    xp.negative(x, out=out)
    xp.exp(out, out=out)
    out += 1
    xp.reciprocal(out, out=out)


def _compose_silu(x):
    wide = upcast(x)
    return (wide.clamp(min=-BOUND) / (1 + (-wide).exp())).to(x.dtype)


SILU = define(
    "silu",
    "composite",
    infer=_infer_silu,
    eager=eager_rule("silu", lambda xp, x: map_blocks(xp, _silu_block, [x], num_temporaries=1)),
    vjp=lambda ctx, grad: (silu_backward(grad, ctx.operands[0]),),
    nova=Composed(),
    saves=Saves(operands=(0,)),
    compose=_compose_silu,
    doc="silu(x): x / (1 + exp(-x)); -0 at -inf.",
)


def _infer_silu_backward(grad, x):
    require_same_aval("silu_backward", grad, x)
    return x


def _silu_backward_block(xp, inputs, results, temporaries):
    (grad, x), (dx,) = inputs, results
    sigmoid, slope = temporaries
    _fill_sigmoid(xp, x, sigmoid)
    xp.clip(x, -BOUND, BOUND, out=slope)
    xp.subtract(1, sigmoid, out=dx)
    slope *= dx
    slope += 1
    slope *= sigmoid
    xp.multiply(grad, slope, out=dx)


def _compose_silu_backward(grad, x):
    wide = upcast(x)
    sigmoid = 1 / (1 + (-wide).exp())
    slope = sigmoid * (1 + wide.clamp(-BOUND, BOUND) * (1 - sigmoid))
    return (upcast(grad) * slope).to(x.dtype)


SILU_BACKWARD = define(
    "silu_backward",
    "composite",
    infer=_infer_silu_backward,
    eager=eager_rule("silu_backward", lambda xp, *a: map_blocks(xp, _silu_backward_block, a, num_temporaries=2)),
    vjp=vjp_by_compose("silu_backward"),
    nova=Composed(),
    saves=Saves(operands=(0, 1)),
    compose=_compose_silu_backward,
    doc="silu_backward(grad, x): grad times the derivative of silu at x.",
)


def relu(x):
    """max(x, 0) elementwise, x floating of any shape."""
    return apply(RELU, x)


def relu_backward(grad, y):
    """The gradient of relu, from its result y."""
    return apply(RELU_BACKWARD, grad, y)


def silu(x):
    """x * sigmoid(x) elementwise, x floating of any shape."""
    return apply(SILU, x)


def silu_backward(grad, x):
    """The gradient of silu with respect to x."""
    return apply(SILU_BACKWARD, grad, x)
