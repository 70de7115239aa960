"""rms_norm over the trailing dimensions, and its gradients (Zhang & Sennrich, arXiv 1910.07467)."""

from __future__ import annotations

from ...aval import Aval
from ...dispatch import apply
from ...primitive import Composed, Saves, define
from ..eager_rule import eager_rule
from .blocks import as_rows, compute_type, narrow, row_blocks, widen
from .compose import upcast
from .derive import vjp_by_compose, vjp_with_statistics
from .layer_norm import check_norm, check_normalized_shape, statistics_aval


def _infer(x, *parameters, num_dims, eps):
    check_norm("rms_norm", x, parameters, num_dims)
    return x, statistics_aval(x, num_dims)


def _eager(xp, x, w=None, *, num_dims, eps):
    matrix = as_rows(xp, x, num_dims)
    num_rows, num_columns = matrix.shape
    y = xp.empty(matrix.shape, x.dtype)
    scale = xp.empty((num_rows, 1), compute_type(x.dtype))
    weight = None if w is None else widen(w.reshape(-1))
    for rows in row_blocks(xp, num_rows, num_columns):
        block = widen(matrix[rows])
        scale[rows] = 1 / xp.sqrt(xp.einsum("ij,ij->i", block, block)[:, None] / num_columns + eps)
        normal = block * scale[rows]
        if weight is not None:
            normal *= weight
        y[rows] = normal
    return y.reshape(x.shape), scale.reshape(*x.shape[: x.ndim - num_dims], *(1,) * num_dims)


def _compose(x, w=None, *, num_dims, eps):
    wide = upcast(x)
    scale = 1 / ((wide * wide).sum(_trailing(x, num_dims), keepdim=True) * _inverse_extent(x, num_dims) + eps).sqrt()
    y = wide * scale
    return (y if w is None else y * upcast(w)).to(x.dtype), scale


def _trailing(x, num_dims: int) -> tuple[int, ...]:
    return tuple(range(x.ndim - num_dims, x.ndim))


def _inverse_extent(x, num_dims: int) -> float:
    extent = 1
    for n in x.shape[-num_dims:]:
        extent *= n
    return 1 / max(extent, 1)


def _vjp(ctx, grad, *_):
    operands = (grad, ctx.operands[0], ctx.results[1], *ctx.operands[1:])
    needs = (*ctx.needs, False)[:2]
    results = iter(apply(RMS_NORM_BACKWARD, *operands, num_dims=ctx.attrs["num_dims"], needs=needs))
    return tuple(next(results) if need else None for need in ctx.needs)


RMS_NORM = define(
    "rms_norm",
    "composite",
    infer=_infer,
    eager=eager_rule("rms_norm", _eager),
    vjp=vjp_with_statistics("rms_norm", _vjp),
    nova=Composed(),
    saves=Saves(operands=(0, 1), results=(1,)),
    compose=_compose,
    num_results=2,
    doc="rms_norm(x, w or nothing, *, num_dims, eps): (y, 1/sqrt(mean(x*x) + eps)), the latter in at least float32.",
)


def _infer_backward(grad, x, scale, w=None, *, num_dims, needs):
    parameter = w if w is not None else Aval(x.shape[-num_dims:], x.dtype)
    return tuple(aval for aval, need in zip((x, parameter), needs, strict=True) if need)


def _eager_backward(xp, grad, x, scale, w=None, *, num_dims, needs):
    grads, matrix, scale = as_rows(xp, grad, num_dims), as_rows(xp, x, num_dims), scale.reshape(-1, 1)
    num_rows, num_columns = matrix.shape
    dx = xp.empty(matrix.shape, x.dtype)
    dw = xp.zeros(num_columns, compute_type(x.dtype))
    weight = None if w is None else widen(w.reshape(-1))
    for rows in row_blocks(xp, num_rows, num_columns):
        g = widen(grads[rows])
        normal = widen(matrix[rows]) * scale[rows]
        if needs[1]:
            dw += xp.einsum("ij,ij->j", g, normal)
        if needs[0]:
            scaled = g if weight is None else g * weight
            normal *= xp.einsum("ij,ij->i", scaled, normal)[:, None] / num_columns
            xp.subtract(scaled, normal, out=normal)
            normal *= scale[rows]
            dx[rows] = normal
    results = (dx.reshape(x.shape), narrow(dw, x.dtype).reshape(x.shape[x.ndim - num_dims :]))
    return tuple(r for r, need in zip(results, needs, strict=True) if need)


def _compose_backward(grad, x, scale, w=None, *, num_dims, needs):
    leading, dims = tuple(range(x.ndim - num_dims)), _trailing(x, num_dims)
    g, normal = upcast(grad), upcast(x) * scale
    results = []
    if needs[0]:
        scaled = g if w is None else g * upcast(w)
        correlation = (scaled * normal).sum(dims, keepdim=True) * _inverse_extent(x, num_dims)
        results.append(((scaled - normal * correlation) * scale).to(x.dtype))
    if needs[1]:
        products = g * normal
        results.append((products.sum(leading) if leading else products).to(x.dtype))
    return tuple(results)


RMS_NORM_BACKWARD = define(
    "rms_norm_backward",
    "composite",
    infer=_infer_backward,
    eager=eager_rule("rms_norm_backward", _eager_backward),
    vjp=vjp_by_compose("rms_norm_backward"),
    nova=Composed(),
    saves=Saves(operands=(0, 1, 2, 3)),
    compose=_compose_backward,
    num_results=2,
    tags=frozenset({"variable_results"}),
    doc="rms_norm_backward(grad, x, scale, w or nothing, *, num_dims, needs): those of (dx, dw) that `needs` asks for.",
)


def rms_norm(x, normalized_shape, weight=None, eps: float = 1e-6):
    """x / sqrt(mean(x*x) + eps) * weight over the trailing dimensions `normalized_shape`. Errors as layer_norm."""
    num_dims = check_normalized_shape("rms_norm", x, normalized_shape)
    operands = (x,) if weight is None else (x, weight)
    return apply(RMS_NORM, *operands, num_dims=num_dims, eps=float(eps))[0]
