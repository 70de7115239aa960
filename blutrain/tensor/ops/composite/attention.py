"""scaled_dot_product_attention: softmax(q @ k.T * scale + mask) @ v.

A query that no key is left for gets zeros, and zero gradients.
"""

from __future__ import annotations

import math

import numpy

from ....errors import message
from ...aval import Aval
from ...dispatch import apply
from ...dtype import bool_, int64
from ...primitive import Composed, Saves, define
from ...shapes import broadcast_shapes
from ..arithmetic import where
from ..compare import eq, ge
from ..create import iota
from ..eager_rule import eager_rule
from .blocks import narrow, widen
from .check_operands import require_floating
from .compose import upcast
from .derive import differentiate, vjp_by_compose
from .dropout import dropout

NAME = "scaled_dot_product_attention"


def _infer(q, k, v, mask=None, *, is_causal, scale):
    require_floating(NAME, q, k, v)
    shapes_fit = (
        min(len(q.shape), len(k.shape), len(v.shape)) >= 2 and q.shape[-1] == k.shape[-1] and k.shape[-2] == v.shape[-2]
    )
    if not shapes_fit:
        expected = "q[..., queries, features], k[..., keys, features], v[..., keys, values]"
        raise ValueError(message(NAME, "q, k and v do not fit", expected=expected, got=f"{q}, {k}, {v}"))
    batch = broadcast_shapes(NAME, [q.shape[:-2], k.shape[:-2], v.shape[:-2]])
    if mask is not None:
        if mask.dtype is not bool_ and mask.dtype is not q.dtype:
            raise TypeError(message(NAME, "the mask is bool or has q's dtype", got=str(mask)))
        scores = (*batch, q.shape[-2], k.shape[-2])
        if broadcast_shapes(NAME, [scores, mask.shape]) != scores:
            raise ValueError(
                message(NAME, "the mask does not broadcast to the scores", expected=str(list(scores)), got=str(mask))
            )
    return Aval((*batch, q.shape[-2], v.shape[-1]), q.dtype)


def _matmul(xp):
    """The product of arrays in the precision that the user chose."""
    if xp is numpy:
        return numpy.matmul
    from ...cuda.matmul import matmul

    return matmul


def _eager(xp, q, k, v, mask=None, *, is_causal, scale):
    matmul = _matmul(xp)
    scores = matmul(widen(q), widen(k).swapaxes(-1, -2))
    if not scores.size:
        return xp.zeros((*scores.shape[:-1], v.shape[-1]), q.dtype)
    if mask is not None:
        scores *= scale
        scores, scale = xp.where(mask, scores, -math.inf) if mask.dtype == bool else scores + mask, 1.0
    _softmax(xp, scores, is_causal, scale)
    return narrow(matmul(scores, widen(v)), q.dtype)


def _softmax(xp, scores, is_causal: bool, scale: float) -> None:
    """Weights in place of products of queries and keys."""
    if xp is not numpy:
        from ...cuda.attention import softmax

        softmax(scores, is_causal, scale)
        return
    scores *= scale
    if is_causal:
        rows, columns = numpy.arange(scores.shape[-2])[:, None], numpy.arange(scores.shape[-1])
        numpy.copyto(scores, -math.inf, where=columns > rows)
    largest = scores.max(-1, keepdims=True)
    scores -= numpy.where(largest == -math.inf, 0, largest)
    numpy.exp(scores, out=scores)
    total = scores.sum(-1, keepdims=True)
    scores /= numpy.where(total == 0, 1, total)


def _softmax_backward(xp, grad, weights, scale: float) -> None:
    """The gradient of the products in place of that of the weights."""
    if xp is not numpy:
        from ...cuda.attention import softmax_backward

        softmax_backward(grad, weights, scale)
        return
    grad -= (grad * weights).sum(-1, keepdims=True)
    grad *= weights
    grad *= scale


def _compose(q, k, v, mask=None, *, is_causal, scale):
    if not k.shape[-2]:
        return (upcast(q).sum(-1, keepdim=True) * 0 + upcast(v).sum(-2, keepdim=True)).to(q.dtype)
    weights, total = _weights(q, k, mask, is_causal, scale)
    return ((weights @ upcast(v)) / total).to(q.dtype)


def _weights(q, k, mask, is_causal: bool, scale: float):
    """exp of the scores, and its sum over the keys, or 1 where no key is left."""
    scores = (upcast(q) @ upcast(k).transpose(-1, -2)) * scale
    if mask is not None:
        scores = where(mask, scores, -math.inf) if mask.dtype is bool_ else scores + upcast(mask)
    if is_causal:
        rows, columns = iota(scores.shape[-2], q.device, int64), iota(scores.shape[-1], q.device, int64)
        scores = where(ge(rows.reshape(scores.shape[-2], 1), columns), scores, -math.inf)
    largest = scores.amax(-1, keepdim=True).detach()
    # Without the guard a row of nothing but -inf would be inf - inf.
    weights = (scores - where(eq(largest, -math.inf), 0.0, largest)).exp()
    total = weights.sum(-1, keepdim=True)
    return weights, where(eq(total, 0), 1.0, total)


def _vjp(ctx, grad):
    q, k, v = ctx.operands[:3]
    if len(ctx.operands) == 4 or not k.shape[-2] or not q.shape[:-2] == k.shape[:-2] == v.shape[:-2]:
        return differentiate(_compose, ctx, (grad,))
    needs = tuple(ctx.needs)
    results = iter(apply(SCALED_DOT_PRODUCT_ATTENTION_BACKWARD, grad, q, k, v, needs=needs, **ctx.attrs))
    return tuple(next(results) if need else None for need in needs)


SCALED_DOT_PRODUCT_ATTENTION = define(
    NAME,
    "composite",
    infer=_infer,
    eager=eager_rule(NAME, _eager),
    vjp=_vjp,
    nova=Composed(),
    saves=Saves(operands=(0, 1, 2, 3)),
    compose=_compose,
    doc=(
        "scaled_dot_product_attention(q, k, v, mask or nothing, *, is_causal, scale): softmax(q @ k.T * scale + "
        "mask) @ v."
    ),
)


def _infer_backward(grad, q, k, v, *, is_causal, scale, needs):
    return tuple(aval for aval, need in zip((q, k, v), needs, strict=True) if need)


def _eager_backward(xp, grad, q, k, v, *, is_causal, scale, needs):
    matmul = _matmul(xp)
    grad, wide_q, wide_k, wide_v = map(widen, (grad, q, k, v))
    weights = matmul(wide_q, wide_k.swapaxes(-1, -2))
    _softmax(xp, weights, is_causal, scale)
    results = []
    if needs[0] or needs[1]:
        of_scores = matmul(grad, wide_v.swapaxes(-1, -2))
        _softmax_backward(xp, of_scores, weights, scale)
        if needs[0]:
            results.append(narrow(matmul(of_scores, wide_k), q.dtype))
        if needs[1]:
            results.append(narrow(matmul(of_scores.swapaxes(-1, -2), wide_q), k.dtype))
    if needs[2]:
        results.append(narrow(matmul(weights.swapaxes(-1, -2), grad), v.dtype))
    return tuple(results)


def _compose_backward(grad, q, k, v, *, is_causal, scale, needs):
    weights, total = _weights(q, k, None, is_causal, scale)
    weights, g = weights / total, upcast(grad)
    results = []
    if needs[0] or needs[1]:
        of_weights = g @ upcast(v).transpose(-1, -2)
        of_scores = (of_weights - (of_weights * weights).sum(-1, keepdim=True)) * weights * scale
        if needs[0]:
            results.append((of_scores @ upcast(k)).to(q.dtype))
        if needs[1]:
            results.append((of_scores.transpose(-1, -2) @ upcast(q)).to(k.dtype))
    if needs[2]:
        results.append((weights.transpose(-1, -2) @ g).to(v.dtype))
    return tuple(results)


SCALED_DOT_PRODUCT_ATTENTION_BACKWARD = define(
    f"{NAME}_backward",
    "composite",
    infer=_infer_backward,
    eager=eager_rule(f"{NAME}_backward", _eager_backward),
    vjp=vjp_by_compose(f"{NAME}_backward"),
    nova=Composed(),
    saves=Saves(operands=(0, 1, 2, 3)),
    compose=_compose_backward,
    num_results=3,
    tags=frozenset({"variable_results"}),
    doc=(
        "scaled_dot_product_attention_backward(grad, q, k, v, *, is_causal, scale, needs): those of (grad of q, of k, of "
        "v) that the three booleans `needs` ask for; leading dimensions are equal."
    ),
)


def scaled_dot_product_attention(
    query,
    key,
    value,
    attn_mask=None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
):
    """softmax(query @ key.T * scale) @ value over the last two dimensions; leading ones broadcast.

    query[..., queries, e], key[..., keys, e], value[..., keys, f]; attn_mask: bool (True: may look) or added to the
    scores; dropout_p: of the weights, drawn wherever it is not 0; is_causal: query i sees keys 0..i; scale: 1/sqrt(e) if
    None. Errors: ValueError for shapes, TypeError for dtypes.
    """
    scale = 1 / math.sqrt(query.shape[-1]) if scale is None else float(scale)
    operands = (query, key, value) if attn_mask is None else (query, key, value, attn_mask)
    if dropout_p and key.shape[-2]:
        _infer(*[x._aval for x in operands], is_causal=is_causal, scale=scale)
        weights, total = _weights(query, key, attn_mask, is_causal, scale)
        return (dropout(weights / total, dropout_p) @ upcast(value)).to(query.dtype)
    return apply(SCALED_DOT_PRODUCT_ATTENTION, *operands, is_causal=bool(is_causal), scale=scale)
