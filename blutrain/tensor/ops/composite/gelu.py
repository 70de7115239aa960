"""gelu(x) = x * P(X <= x) for a standard normal X, exact or by the tanh approximation (Hendrycks & Gimpel, arXiv
1606.08415).

At -inf the result is -0 and the derivative 0, the limits: factors that vanish are never multiplied by an infinity,
because the argument is clamped to +-BOUND, where cdf and derivative are 0 or 1 to the last bit.
"""

from __future__ import annotations

import math

from ...dispatch import apply
from ...primitive import Composed, Saves, define
from ..eager_rule import eager_rule
from .blocks import map_blocks
from .check_operands import require_floating, require_one_of, require_same_aval
from .compose import upcast
from .derive import vjp_by_compose
from .normal_cdf import fill_cdf

APPROXIMATIONS = ("none", "tanh")
BOUND = 100.0
_SCALE = math.sqrt(2 / math.pi)
_CUBIC = 0.044715
_GAUSS = 1 / math.sqrt(2 * math.pi)


def _infer(x, *, approximate):
    require_floating("gelu", x)
    require_one_of("gelu", "approximate", approximate, APPROXIMATIONS)
    return x


def _eager(xp, x, *, approximate):
    rule = _exact_block if approximate == "none" else _tanh_block
    return map_blocks(xp, rule, [x], num_temporaries=3)


def _exact_block(xp, inputs, results, temporaries):
    (x,), (y,) = inputs, results
    cdf, gauss, scratch = temporaries
    xp.clip(x, -BOUND, BOUND, out=y)
    fill_cdf(xp, y, cdf, gauss, scratch)
    xp.maximum(x, -BOUND, out=y)
    y *= cdf


def _tanh_block(xp, inputs, results, temporaries):
    (x,), (y,) = inputs, results
    half_tanh = temporaries[0]
    xp.clip(x, -BOUND, BOUND, out=y)
    _fill_half_tanh(xp, y, half_tanh)
    half_tanh += 0.5
    xp.maximum(x, -BOUND, out=y)
    y *= half_tanh


def _fill_half_tanh(xp, x, out):
    """0.5 * tanh(sqrt(2/pi) * (x + 0.044715 x**3))."""
    xp.multiply(x, x, out=out)
    out *= _CUBIC * _SCALE
    out += _SCALE
    out *= x
    xp.tanh(out, out=out)
    out *= 0.5


def _cdf(z, approximate):
    """P(X <= z) of a tensor; "none": within +-BOUND. (1 + tanh u) / 2 is the sigmoid of 2u, which costs one exp and one division."""
    if approximate == "none":
        return 0.5 + 0.5 * (z * math.sqrt(0.5)).erf()
    return (z * (z * z * (2 * _CUBIC * _SCALE) + 2 * _SCALE)).sigmoid()


def _compose(x, *, approximate):
    wide = upcast(x)
    if approximate == "tanh":
        z = wide.maximum(-BOUND)
        return (z * _cdf(z, approximate)).to(x.dtype)
    return (wide.clamp(min=-BOUND) * _cdf(wide.clamp(-BOUND, BOUND), approximate)).to(x.dtype)


def _vjp(ctx, grad):
    return (gelu_backward(grad, ctx.operands[0], approximate=ctx.attrs["approximate"]),)


GELU = define(
    "gelu",
    "composite",
    infer=_infer,
    eager=eager_rule("gelu", _eager),
    vjp=_vjp,
    nova=Composed(),
    saves=Saves(operands=(0,)),
    compose=_compose,
    doc='gelu(x, *, approximate="none"|"tanh"): x times the normal distribution function at x; elementwise.',
)


def _infer_backward(grad, x, *, approximate):
    require_same_aval("gelu_backward", grad, x)
    return x


def _eager_backward(xp, grad, x, *, approximate):
    rule = _exact_backward_block if approximate == "none" else _tanh_backward_block
    return map_blocks(xp, rule, [grad, x], num_temporaries=4)


def _exact_backward_block(xp, inputs, results, temporaries):
    (grad, x), (dx,) = inputs, results
    z, cdf, gauss, scratch = temporaries
    xp.clip(x, -BOUND, BOUND, out=z)
    fill_cdf(xp, z, cdf, gauss, scratch)
    gauss *= _GAUSS
    gauss *= z
    cdf += gauss
    xp.multiply(grad, cdf, out=dx)


def _tanh_backward_block(xp, inputs, results, temporaries):
    (grad, x), (dx,) = inputs, results
    z, h, slope, _ = temporaries
    xp.clip(x, -BOUND, BOUND, out=z)
    _fill_half_tanh(xp, z, h)
    # d = (0.5 + h) + z * (0.5 - 2 h*h) * u'(z), u' = scale * (1 + 3 cubic z*z), h = tanh(u) / 2
    xp.multiply(z, z, out=slope)
    slope *= 3 * _CUBIC * _SCALE
    slope += _SCALE
    slope *= z
    xp.multiply(h, h, out=z)
    z *= -2
    z += 0.5
    slope *= z
    h += 0.5
    h += slope
    xp.multiply(grad, h, out=dx)


def _compose_backward(grad, x, *, approximate):
    if approximate == "none":
        z = upcast(x).clamp(-BOUND, BOUND)
        slope = _cdf(z, approximate) + z * (z * z * -0.5).exp() * _GAUSS
    else:
        z = upcast(x).maximum(-BOUND)
        cdf = _cdf(z, approximate)  # as gelu itself computes it: a kernel that needs both has one exp
        z = z.minimum(BOUND)
        inner = z * z * (6 * _CUBIC * _SCALE) + 2 * _SCALE
        slope = cdf + z * inner * (cdf - cdf * cdf)
    return (upcast(grad) * slope).to(x.dtype)


GELU_BACKWARD = define(
    "gelu_backward",
    "composite",
    infer=_infer_backward,
    eager=eager_rule("gelu_backward", _eager_backward),
    vjp=vjp_by_compose("gelu_backward"),
    nova=Composed(),
    saves=Saves(operands=(0, 1)),
    compose=_compose_backward,
    doc="gelu_backward(grad, x, *, approximate): grad times the derivative of gelu at x.",
)


def gelu(x, approximate: str = "none"):
    """x * P(X <= x), X standard normal; `approximate="tanh"` as GPT-2. x: floating, any shape. Errors: ValueError,
    TypeError.

    >>> nn.functional.gelu(bt.tensor([-1.0, 0.0, 1.0]))
    tensor([-0.1587,  0.    ,  0.8413])
    """
    return apply(GELU, x, approximate=approximate)


def gelu_backward(grad, x, approximate: str = "none"):
    """The gradient of gelu with respect to x; grad and x of one shape and dtype."""
    return apply(GELU_BACKWARD, grad, x, approximate=approximate)
