"""dropout: each element zeroed with probability p, the others scaled by 1 / (1 - p).

The mask is a function of (seed, draw + site, index), so the gradient is dropout again with the same numbers: nothing
is saved.
"""

from __future__ import annotations

import numpy

from ...dispatch import apply
from ...primitive import Composed, Saves, define
from ..arithmetic import where
from ..eager_rule import eager_rule
from ..philox import philox_blocks
from ..random import RANDOM_BITS, bits_below, draw_number, keep_threshold, next_draw, seed_number
from .blocks import compute_type
from .check_operands import require_floating, require_fraction
from .compose import upcast

ALL_KEPT = 1 << 32


def _infer(x, seed, draw, *, p, site=0):
    require_floating("dropout", x)
    require_fraction("dropout", "p", p)
    return x


def scale_of(p: float) -> float:
    """What kept elements are multiplied by."""
    return 1 / (1 - p) if p < 1 else 0.0


def _eager(xp, x, seed, draw, *, p, site=0):
    threshold = keep_threshold(1 - p)
    if threshold == ALL_KEPT:
        return x * x.dtype.type(scale_of(p)) if p else x.copy()
    flat = numpy.ascontiguousarray(x).reshape(-1)
    scale = compute_type(x.dtype).type(scale_of(p))
    y = numpy.zeros(flat.size, x.dtype)
    for start, words in philox_blocks(seed_number(seed), draw_number(draw, site), flat.size):
        block = slice(start, start + words.size)
        numpy.copyto(y[block], flat[block] * scale, where=words < threshold, casting="same_kind")
    return y.reshape(x.shape)


def _compose(x, seed, draw, *, p, site=0):
    threshold = keep_threshold(1 - p)
    scaled = upcast(x) * scale_of(p)
    if threshold == ALL_KEPT:
        return scaled.to(x.dtype)
    bits = apply(RANDOM_BITS, seed, draw, shape=x.shape, site=site, device=x.device)
    return where(bits_below(bits, threshold), scaled, 0).to(x.dtype)


DROPOUT = define(
    "dropout",
    "composite",
    infer=_infer,
    eager=eager_rule("dropout", _eager),
    vjp=lambda ctx, grad: (apply(DROPOUT, grad, *ctx.operands[1:], **ctx.attrs), None, None),
    nova=Composed(),
    saves=Saves(operands=(1, 2)),
    compose=_compose,
    tags=frozenset({"random"}),
    doc=(
        "dropout(x, seed, draw, *, p, site): x / (1 - p) where the element's 32 bits are below round((1 - p) * "
        "2**32), else 0."
    ),
)


def dropout(x, p: float, seed=None, draw=None, site: int = 0):
    """Zero each element with probability p and scale the rest by 1 / (1 - p). seed, draw: from the default generator
    where None.

    Errors: ValueError unless 0 <= p <= 1; TypeError for integers.
    """
    if seed is None:
        seed, draw, site = next_draw(None)
    return apply(DROPOUT, x, seed, draw, p=float(p), site=site)
