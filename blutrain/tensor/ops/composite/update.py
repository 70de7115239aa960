"""The updates of optimizers: adamw, adam, sgd. Pure: old values to new ones; writing them back is `assign`, or
`update_in_place`.

Scalars derived from hyperparameters (1 - beta, 1 - lr * weight_decay, ...) are computed in float64 and meet the
tensors rounded to their dtype, the same eager (Python floats) and compiled (0-d float64 tensors). Narrow parameters
are updated in float32, rounded once.
"""

from __future__ import annotations

from ....errors import message
from ...dispatch import apply
from ...primitive import Composed, NotDifferentiable, define
from ..eager_rule import eager_rule
from .blocks import map_blocks_into
from .check_operands import require_floating
from .compose import coefficient, square_root, upcast

_NO_VJP = NotDifferentiable("updates of an optimizer are not differentiated")
# How many of the leading operands are tensors: the parameter, its gradient, its state.
NUM_TENSORS = {"adamw": 4, "adam": 4, "sgd": 2, "sgd_momentum": 3}


def _infer_update(name: str):
    count = NUM_TENSORS[name]

    def infer(*avals, **attrs):
        p, *others = avals[:count]
        require_floating(name, p)
        for other in others:
            if other.shape != p.shape or not other.dtype.is_floating:
                raise ValueError(
                    message(name, "gradient and state have the parameter's shape", expected=str(p), got=str(other))
                )
        results = (p, *avals[2:count])
        return results if len(results) > 1 else p

    return infer


def _eager_update(name: str):
    """The pure eager rule: fills new arrays with the block rule."""

    def eager(xp, *operands, **attrs):
        tensors, scalars = operands[: NUM_TENSORS[name]], operands[NUM_TENSORS[name] :]
        outputs = [xp.empty(a.shape, a.dtype) for a in (tensors[0], *tensors[2:])]
        run_blocks(xp, name, tensors, outputs, scalars, attrs)
        return tuple(outputs) if len(outputs) > 1 else outputs[0]

    return eager_rule(name, eager)


def run_blocks(xp, name: str, tensors, outputs, scalars, attrs) -> None:
    """Fill `outputs` (the new parameter, the new state; may be the old ones' memory) by the rule of update `name`."""
    rule, num_temporaries = _BLOCKS[name]
    numbers = [float(s) for s in scalars]
    map_blocks_into(xp, rule(*numbers, **attrs), tensors, outputs, num_temporaries=num_temporaries)


def _adamw_block(lr, beta1, beta2, eps, weight_decay, correction1, correction2, decoupled=True):
    step, root, decay = lr / correction1, 1 / correction2**0.5, 1 - lr * weight_decay

    def rule(xp, inputs, results, temporaries):
        (p, g, m, v), (new_p, new_m, new_v), (t, u) = inputs, results, temporaries
        if not decoupled and weight_decay:
            xp.multiply(p, weight_decay, out=u)
            u += g
            g = u
        xp.multiply(g, 1 - beta1, out=t)
        xp.multiply(m, beta1, out=new_m)
        new_m += t
        xp.multiply(g, g, out=t)
        t *= 1 - beta2
        xp.multiply(v, beta2, out=new_v)
        new_v += t
        xp.sqrt(new_v, out=t)
        t *= root
        t += eps
        xp.divide(new_m, t, out=t)
        t *= step
        if decoupled:
            xp.multiply(p, decay, out=new_p)
            new_p -= t
        else:
            xp.subtract(p, t, out=new_p)

    return rule


def _adam_block(*numbers):
    return _adamw_block(*numbers, decoupled=False)


def _sgd_block(lr, weight_decay):
    def rule(xp, inputs, results, temporaries):
        (p, g), (new_p,), (t,) = inputs, results, temporaries
        xp.multiply(p, weight_decay, out=t)
        t += g
        t *= lr
        xp.subtract(p, t, out=new_p)

    return rule


def _sgd_momentum_block(lr, momentum, dampening, weight_decay, *, nesterov):
    def rule(xp, inputs, results, temporaries):
        (p, g, b), (new_p, new_b), (t, u) = inputs, results, temporaries
        xp.multiply(p, weight_decay, out=t)
        t += g
        xp.multiply(t, 1 - dampening, out=u)
        xp.multiply(b, momentum, out=new_b)
        new_b += u
        if nesterov:
            xp.multiply(new_b, momentum, out=u)
            t += u
            t *= lr
        else:
            xp.multiply(new_b, lr, out=t)
        xp.subtract(p, t, out=new_p)

    return rule


_BLOCKS = {
    "adamw": (_adamw_block, 2),
    "adam": (_adam_block, 2),
    "sgd": (_sgd_block, 1),
    "sgd_momentum": (_sgd_momentum_block, 2),
}


def _compose_adamw(p, g, m, v, lr, beta1, beta2, eps, weight_decay, correction1, correction2):
    wide, dtype = upcast(p), upcast(p).dtype
    moment, square = _moments(upcast(g, p.dtype), m.to(dtype), v.to(dtype), beta1, beta2)
    update = _adam_step(moment, square, lr, eps, correction1, correction2)
    return (
        (wide * coefficient(1 - lr * weight_decay, dtype) - update).to(p.dtype),
        moment.to(m.dtype),
        square.to(v.dtype),
    )


def _compose_adam(p, g, m, v, lr, beta1, beta2, eps, weight_decay, correction1, correction2):
    wide, dtype = upcast(p), upcast(p).dtype
    gradient = wide * coefficient(weight_decay, dtype) + upcast(g, p.dtype)
    moment, square = _moments(gradient, m.to(dtype), v.to(dtype), beta1, beta2)
    update = _adam_step(moment, square, lr, eps, correction1, correction2)
    return (wide - update).to(p.dtype), moment.to(m.dtype), square.to(v.dtype)


def _moments(g, m, v, beta1, beta2):
    dtype = g.dtype
    moment = m * coefficient(beta1, dtype) + g * coefficient(1 - beta1, dtype)
    return moment, v * coefficient(beta2, dtype) + g * g * coefficient(1 - beta2, dtype)


def _adam_step(moment, square, lr, eps, correction1, correction2):
    """lr / correction1 * moment / (sqrt(square / correction2) + eps): eps stands outside of the corrected root."""
    dtype = moment.dtype
    denominator = square.sqrt() * coefficient(1 / square_root(correction2), dtype) + coefficient(eps, dtype)
    return moment / denominator * coefficient(lr / correction1, dtype)


def _compose_sgd(p, g, lr, weight_decay):
    wide, dtype = upcast(p), upcast(p).dtype
    gradient = wide * coefficient(weight_decay, dtype) + upcast(g, p.dtype)
    return (wide - gradient * coefficient(lr, dtype)).to(p.dtype)


def _compose_sgd_momentum(p, g, buffer, lr, momentum, dampening, weight_decay, *, nesterov):
    wide, dtype = upcast(p), upcast(p).dtype
    gradient = wide * coefficient(weight_decay, dtype) + upcast(g, p.dtype)
    velocity = buffer.to(dtype) * coefficient(momentum, dtype) + gradient * coefficient(1 - dampening, dtype)
    update = gradient + velocity * coefficient(momentum, dtype) if nesterov else velocity
    return (wide - update * coefficient(lr, dtype)).to(p.dtype), velocity.to(buffer.dtype)


def _define_update(name: str, compose, doc: str):
    count = NUM_TENSORS[name]
    return define(
        name,
        "composite",
        infer=_infer_update(name),
        eager=_eager_update(name),
        vjp=_NO_VJP,
        nova=Composed(),
        compose=compose,
        num_results=count - 1,
        tags=frozenset({"update"}),
        doc=doc,
    )


ADAMW = _define_update(
    "adamw",
    _compose_adamw,
    "adamw(p, g, m, v, lr, beta1, beta2, eps, weight_decay, correction1, correction2): (p, m, v). Decay "
    "p * (1 - lr * weight_decay) first, eps outside of the corrected root (Loshchilov & Hutter, arXiv 1711.05101).",
)
ADAM = _define_update(
    "adam",
    _compose_adam,
    "adam(p, g, m, v, lr, beta1, beta2, eps, weight_decay, correction1, correction2): (p, m, v). Decay joins "
    "the gradient (Kingma & Ba, arXiv 1412.6980).",
)
SGD = _define_update("sgd", _compose_sgd, "sgd(p, g, lr, weight_decay): p - lr * (g + weight_decay * p).")
SGD_MOMENTUM = _define_update(
    "sgd_momentum",
    _compose_sgd_momentum,
    "sgd_momentum(p, g, buffer, lr, momentum, dampening, weight_decay, *, nesterov): (p, buffer), the new buffer being "
    "buffer * momentum + g * (1 - dampening). As in PyTorch the first step has no dampening: hand in 0.",
)


def adamw(p, g, m, v, lr, beta1, beta2, eps, weight_decay, bias_correction1, bias_correction2):
    """New (p, m, v) after one AdamW step; bias_correction1, 2 are 1 - beta**step.

    Tensors of one shape, the rest numbers.
    """
    return apply(ADAMW, p, g, m, v, lr, beta1, beta2, eps, weight_decay, bias_correction1, bias_correction2)


def adam(p, g, m, v, lr, beta1, beta2, eps, weight_decay, bias_correction1, bias_correction2):
    """New (p, m, v) after one Adam step, weight decay added to the gradient."""
    return apply(ADAM, p, g, m, v, lr, beta1, beta2, eps, weight_decay, bias_correction1, bias_correction2)


def sgd(p, g, lr, weight_decay=0.0):
    """New p after one step of gradient descent."""
    return apply(SGD, p, g, lr, weight_decay)


def sgd_momentum(p, g, buffer, lr, momentum, dampening=0.0, weight_decay=0.0, nesterov: bool = False):
    """New (p, buffer) after one step with momentum; a fresh buffer is zeros and its first dampening 0."""
    return apply(SGD_MOMENTUM, p, g, buffer, lr, momentum, dampening, weight_decay, nesterov=nesterov)
