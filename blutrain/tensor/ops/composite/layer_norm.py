"""layer_norm over the trailing dimensions, and its gradients (Ba, Kiros & Hinton, arXiv 1607.06450).

Statistics in at least float32 and in two passes: a first mean, then mean and variance of what is left after
subtracting it. At offset 1e4 and deviation 1 the rounding of the first mean (1e-3) would be visible; the second takes
it out. The mean is a sum of x/n, which does not overflow near the largest float.
"""

from __future__ import annotations

from ....errors import message
from ...aval import Aval
from ...dispatch import apply
from ...dtype import compute_dtype
from ...primitive import Composed, Saves, define
from ..eager_rule import eager_rule
from .blocks import as_rows, compute_type, narrow, row_blocks, widen
from .check_operands import require_floating
from .compose import upcast
from .derive import vjp_by_compose, vjp_with_statistics

# Where squares overflow the variance is inf and the result 0; without this bound it would be inf - inf.
LARGEST_SQUARE = 1e38


def check_norm(op: str, x, parameters, num_dims: int) -> None:
    """Errors unless `parameters` have the shape of x's last `num_dims` dimensions, which must exist."""
    require_floating(op, x, *parameters)
    if not 1 <= num_dims <= len(x.shape):
        raise ValueError(message(op, "normalizes at least one and at most all dimensions", got=f"{num_dims} of {x}"))
    for parameter in parameters:
        if parameter.shape != x.shape[-num_dims:]:
            expected = f"{list(x.shape[-num_dims:])}, the normalized dimensions of {x}"
            raise ValueError(
                message(op, "weight and bias have the normalized shape", expected=expected, got=str(parameter))
            )


def statistics_aval(x, num_dims: int) -> Aval:
    """Aval of a number per row: the normalized dimensions are 1."""
    return Aval((*x.shape[:-num_dims], *(1,) * num_dims), compute_dtype(x.dtype))


def _infer(x, *parameters, num_dims, eps):
    check_norm("layer_norm", x, parameters, num_dims)
    rows = statistics_aval(x, num_dims)
    return x, rows, rows


def _eager(xp, x, w=None, b=None, *, num_dims, eps):
    matrix = as_rows(xp, x, num_dims)
    num_rows, num_columns = matrix.shape
    compute = compute_type(x.dtype)
    y = xp.empty(matrix.shape, x.dtype)
    mean, rstd = xp.empty((2, num_rows, 1), compute)
    average = xp.full((num_columns, 1), 1 / max(num_columns, 1), compute)
    weight, bias = [None if p is None else widen(p.reshape(-1)) for p in (w, b)]
    for rows in row_blocks(xp, num_rows, num_columns):
        block = widen(matrix[rows])
        first = block @ average
        centred = block - first
        rest = centred @ average
        squares = xp.einsum("ij,ij->i", centred, centred)[:, None] / num_columns
        variance = squares - xp.minimum(rest * rest, LARGEST_SQUARE)
        mean[rows] = first + rest
        rstd[rows] = 1 / xp.sqrt(xp.maximum(variance, 0) + eps)
        centred -= rest
        centred *= rstd[rows]
        if weight is not None:
            centred *= weight
        if bias is not None:
            centred += bias
        y[rows] = centred
    statistics_shape = (*x.shape[: x.ndim - num_dims], *(1,) * num_dims)
    return y.reshape(x.shape), mean.reshape(statistics_shape), rstd.reshape(statistics_shape)


def _compose(x, w=None, b=None, *, num_dims, eps):
    dims = tuple(range(x.ndim - num_dims, x.ndim))
    inverse = 1 / max(_extent(x, num_dims), 1)
    wide = upcast(x)
    first = (wide * inverse).sum(dims, keepdim=True)
    centred = wide - first
    rest = centred.sum(dims, keepdim=True) * inverse
    squares = (centred * centred).sum(dims, keepdim=True) * inverse
    variance = squares - (rest * rest).clamp(max=LARGEST_SQUARE)
    rstd = 1 / (variance.clamp(min=0) + eps).sqrt()
    y = (centred - rest) * rstd
    if w is not None:
        y = y * upcast(w)
    if b is not None:
        y = y + upcast(b)
    return y.to(x.dtype), first + rest, rstd


def _extent(x, num_dims: int) -> int:
    extent = 1
    for n in x.shape[-num_dims:]:
        extent *= n
    return extent


def _vjp(ctx, grad, *_):
    x, w = ctx.operands[0], ctx.operands[1] if len(ctx.avals) > 1 else None
    _, mean, rstd = ctx.results
    needs = (*ctx.needs, False, False)[:3]
    operands = (grad, x, mean, rstd) if w is None else (grad, x, mean, rstd, w)
    results = iter(apply(LAYER_NORM_BACKWARD, *operands, num_dims=ctx.attrs["num_dims"], needs=needs))
    return tuple(next(results) if need else None for need in ctx.needs)


LAYER_NORM = define(
    "layer_norm",
    "composite",
    infer=_infer,
    eager=eager_rule("layer_norm", _eager),
    vjp=vjp_with_statistics("layer_norm", _vjp),
    nova=Composed(),
    saves=Saves(operands=(0, 1, 2), results=(1, 2)),
    compose=_compose,
    num_results=3,
    doc=(
        "layer_norm(x, w or nothing, b or nothing, *, num_dims, eps): (y, mean, 1/deviation), the statistics in "
        "at least float32."
    ),
)


def _infer_backward(grad, x, mean, rstd, w=None, *, num_dims, needs):
    parameter = w if w is not None else Aval(x.shape[-num_dims:], x.dtype)
    return tuple(aval for aval, need in zip((x, parameter, parameter), needs, strict=True) if need)


def _eager_backward(xp, grad, x, mean, rstd, w=None, *, num_dims, needs):
    grads, matrix = as_rows(xp, grad, num_dims), as_rows(xp, x, num_dims)
    mean, rstd = mean.reshape(-1, 1), rstd.reshape(-1, 1)
    num_rows, num_columns = matrix.shape
    compute = compute_type(x.dtype)
    dx = xp.empty(matrix.shape, x.dtype) if needs[0] else None
    dw, db = xp.zeros((2, num_columns), compute)
    weight = None if w is None else widen(w.reshape(-1))
    for rows in row_blocks(xp, num_rows, num_columns):
        g = widen(grads[rows])
        normal = widen(matrix[rows]) - mean[rows]
        normal *= rstd[rows]
        if needs[1]:
            dw += xp.einsum("ij,ij->j", g, normal)
        if needs[2]:
            db += xp.ones(len(g), compute) @ g
        if dx is not None:
            dx[rows] = _input_gradient(xp, g if weight is None else g * weight, normal, rstd[rows])
    shape = x.shape[x.ndim - num_dims :]
    results = (dx, narrow(dw, x.dtype), narrow(db, x.dtype))
    shapes = (x.shape, shape, shape)
    return tuple(r.reshape(s) for r, s, need in zip(results, shapes, needs, strict=True) if need)


def _input_gradient(xp, g, normal, rstd):
    """rstd * (g - mean(g) - normal * mean(g * normal)) by rows; overwrites `normal`."""
    num_columns = max(g.shape[1], 1)
    correlation = xp.einsum("ij,ij->i", g, normal)[:, None] / num_columns
    normal *= correlation
    xp.subtract(g, normal, out=normal)
    normal -= g.sum(-1, keepdims=True) / num_columns
    normal *= rstd
    return normal


def _compose_backward(grad, x, mean, rstd, w=None, *, num_dims, needs):
    leading, dims = tuple(range(x.ndim - num_dims)), tuple(range(x.ndim - num_dims, x.ndim))
    inverse = 1 / max(_extent(x, num_dims), 1)
    g = upcast(grad)
    normal = (upcast(x) - mean) * rstd
    results = []
    if needs[0]:
        scaled = g if w is None else g * upcast(w)
        average = scaled.sum(dims, keepdim=True) * inverse
        correlation = (scaled * normal).sum(dims, keepdim=True) * inverse
        results.append(((scaled - normal * correlation - average) * rstd).to(x.dtype))
    if needs[1]:
        results.append(_sum_leading(g * normal, leading).to(x.dtype))
    if needs[2]:
        results.append(_sum_leading(g, leading).to(x.dtype))
    return tuple(results)


def _sum_leading(x, dims):
    return x.sum(dims) if dims else x


LAYER_NORM_BACKWARD = define(
    "layer_norm_backward",
    "composite",
    infer=_infer_backward,
    eager=eager_rule("layer_norm_backward", _eager_backward),
    vjp=vjp_by_compose("layer_norm_backward"),
    nova=Composed(),
    saves=Saves(operands=(0, 1, 2, 3, 4)),
    compose=_compose_backward,
    num_results=3,
    tags=frozenset({"variable_results"}),
    doc=(
        "layer_norm_backward(grad, x, mean, rstd, w or nothing, *, num_dims, needs): those of (dx, dw, db) that "
        "`needs` asks for."
    ),
)


def layer_norm(x, normalized_shape, weight=None, bias=None, eps: float = 1e-5):
    """(x - mean) / sqrt(variance + eps) * weight + bias over the trailing dimensions `normalized_shape` (an int or a
    sequence).

    weight, bias: None or of `normalized_shape`; one floating dtype for all. Errors: ValueError for shapes, TypeError
    for dtypes.
    """
    num_dims = check_normalized_shape("layer_norm", x, normalized_shape)
    if weight is None:
        y = apply(LAYER_NORM, x, num_dims=num_dims, eps=float(eps))[0]
        return y if bias is None else y + bias
    operands = (x, weight) if bias is None else (x, weight, bias)
    return apply(LAYER_NORM, *operands, num_dims=num_dims, eps=float(eps))[0]


def check_normalized_shape(op: str, x, normalized_shape) -> int:
    """The number of dimensions of `normalized_shape`. Errors: ValueError unless x ends in it."""
    shape = (normalized_shape,) if isinstance(normalized_shape, int) else tuple(normalized_shape)
    if not shape or x.shape[-len(shape) :] != shape:
        raise ValueError(
            message(op, "x must end in normalized_shape", expected=f"[..., {str(list(shape))[1:-1]}]", got=str(x._aval))
        )
    return len(shape)
