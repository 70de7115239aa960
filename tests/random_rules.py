"""What the instructions of random programs do: a function of values for each name.

All are tame: no division by small numbers, no logarithm of negative ones, comparisons away from equality.
"""

from __future__ import annotations

from typing import Any

import blutrain as bt
from blutrain.nn import functional as F

SMOOTH = {
    "exp": lambda x: (-(x * x)).exp(),
    "expm1": lambda x: bt.expm1(bt.tanh(x)),
    "tanh": bt.tanh,
    "sigmoid": bt.sigmoid,
    "sin": bt.sin,
    "cos": bt.cos,
    "atan": bt.atan,
    "erf": bt.erf,
    "square": lambda x: x * x,
    "cube": lambda x: bt.tanh(x) ** 3,
    "neg": lambda x: -x,
    "log": lambda x: (x * x + 0.5).log(),
    "log1p": lambda x: bt.log1p(x * x),
    "sqrt": lambda x: (x * x + 0.1).sqrt(),
    "rsqrt": lambda x: bt.rsqrt(x * x + 0.5),
    "gelu": F.gelu,
    "gelu tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu,
    "reciprocal": lambda x: 1.0 / (x * x + 1.0),
    "shifted": lambda x: 1.5 - 2 * x,
}
KINKED = {
    "abs": bt.abs,
    "relu": F.relu,
    "clamp": lambda x: x.clamp(-0.5, 0.75),
    "masked": lambda x: bt.where(x > 0.1, x * 3.0, -1.0),
    "tril": lambda x: x.tril(1) if x.ndim > 1 else x,
}
BINARY = {
    "add": lambda x, y: x + y,
    "sub": lambda x, y: x - y,
    "mul": lambda x, y: x * y,
    "div": lambda x, y: x / (y * y + 1.0),
    "mse": lambda x, y: F.mse_loss(x + y * 0, y + x * 0, reduction="none"),
}
BINARY_KINKED = {"maximum": bt.maximum, "minimum": bt.minimum, "larger": lambda x, y: bt.where(x > y, x, y * 0.5)}
COMPARE = {
    "lt": lambda x, y: x < y + 0.037,
    "ge": lambda x, y: x >= y - 0.051,
    "positive": lambda x, y: x * 0 + y > 0.017,
}
INTEGER = {
    "int add": lambda i, j: i + j,
    "int mul": lambda i, j: (i * j).remainder(97),
    "int div": lambda i, j: i // (j.remainder(5) + 1),
    "int rem": lambda i, j: i.remainder(j.remainder(7) + 2),
    "int and": lambda i, j: i & j,
    "int xor": lambda i, j: i ^ j,
    "int max": bt.maximum,
    "int equal": lambda i, j: (i.remainder(3) == j.remainder(3)).long(),
}
TRUTH = {"and": bt.logical_and, "or": bt.logical_or, "xor": bt.logical_xor, "not": lambda a, b: ~a | b}
REDUCTIONS = {
    "sum": bt.sum,
    "mean": bt.mean,
    "amax": bt.amax,
    "amin": bt.amin,
    "logsumexp": bt.logsumexp,
    "sum of squares": lambda x, d, k: (x * x).sum(d, k),
    "prod": lambda x, d, k: bt.tanh(x).prod(d, k),
    "var": lambda x, d, k: x.var(d, 0, k),
}
SMOOTH_REDUCTIONS = ("sum", "mean", "logsumexp", "sum of squares", "var")
EMPTY_REDUCTIONS = ("sum", "sum of squares", "prod")
ROWS = {
    "softmax": F.softmax,
    "log_softmax": lambda x, d: F.log_softmax(x, d) * 0.3,
    "centred": lambda x, d: x - x.mean(d, keepdim=True),
    "normalized": lambda x, d: x * bt.rsqrt((x * x).mean(d, keepdim=True) + 0.1),
    "cumsum": lambda x, d: x.cumsum(d) * 0.2,
    "standard": lambda x, d: (x - x.mean(d, keepdim=True)) / (x.std(d, 0, keepdim=True) + 0.5),
}


def _ids(ids, extent: int):
    return ids.remainder(extent)


def _assigned(x, y, dim: int, start: int):
    """A copy of x with a part replaced."""
    made = x.clone()
    part = (*[slice(None)] * dim, slice(start, None))
    made[part] = x[part] * 0.5 + y.sum() * 0.01
    return made


def _in_place(x, y):
    made = x.clone()
    made.mul_(0.5).add_(y.mean() if y.numel() else 0.0)
    made += 0.25
    return made


def _set(x, y, start: int, step: int):
    made = x * 1.0
    made[start::step] = y.sum() * 0.05
    return made


def _cross_entropy(x, ids):
    rows = x.reshape(-1, x.shape[-1])
    count = rows.shape[0]
    target = _ids(ids.reshape(-1)[:1] + bt.arange(count), rows.shape[1])
    return F.cross_entropy(rows, target, label_smoothing=0.1, reduction="mean")


def _rule(function):
    return lambda *operands, parameters: function(*operands)


RULES: dict[str, Any] = {
    name: _rule(function)
    for table in (SMOOTH, KINKED, BINARY, BINARY_KINKED, COMPARE, INTEGER, TRUTH, REDUCTIONS, ROWS)
    for name, function in table.items()
}
RULES |= {
    name: _rule(function)
    for name, function in {
        "reshape": lambda x, shape: x.reshape(shape),
        "permute": lambda x, order: x.permute(order),
        "expand": lambda x, dim, n: x.unsqueeze(dim).expand(*x.shape[:dim], n, *x.shape[dim:]),
        "widen": lambda x, shape: x.expand(*shape),
        "slice": lambda x, dim, start, step: x.transpose(0, dim)[start::step].transpose(0, dim),
        "flip": lambda x, dim, start: x.flip(dim).narrow(dim, start, x.shape[dim] - start),
        "select": lambda x, dim, place: x.select(dim, place),
        "roll": lambda x, dim, n: x.roll(n, dim),
        "concat": lambda x, y, dim: bt.cat([x, y, x], dim),
        "stack": lambda x, y, dim: bt.stack([x, y * 2], dim),
        "pad": lambda x, low, high: F.pad(x, (low, high), value=0.5),
        "take": lambda x, ids, dim: x.index_select(dim, _ids(ids, x.shape[dim])),
        "gather": lambda x, y, dim: x.gather(dim, _ids((y * 10).long().abs(), x.shape[dim])),
        "pairs": lambda x, ids: x[_ids(ids, x.shape[0]), _ids(ids * 3 + 1, x.shape[1])],
        "index_add": lambda x, y, ids, dim: x.index_add(dim, _ids(ids[: y.shape[dim]], x.shape[dim]), y),
        "index_copy": lambda x, ids: x.index_copy(0, _ids(ids[:1], x.shape[0]), x.narrow(0, 0, 1) * 2),
        "scatter_add": lambda x, y, dim: x.scatter_add(dim, _ids((y * 10).long().abs(), x.shape[dim]), y),
        "largest": lambda x, dim: x.argmax(dim),
        "smallest": lambda x, dim: x.argmin(dim, keepdim=True),
        "maximum of rows": lambda x, dim: x.max(dim).values,
        "choose": lambda m, x, y: bt.where(m, x, y),
        "fill": lambda x, m: x.masked_fill(m, -0.7),
        "count": lambda m, dims: m.sum(dims),
        "any": lambda m, dims: m.any(dims),
        "all": lambda m, dims: m.all(dims),
        "as float": lambda i, x: (i.remainder(7).to(x.dtype) - 3.0) * 0.25,
        "as int": lambda x, name: (x * 8).to(getattr(bt, name)).long(),
        "mask as float": lambda m, x: m.to(x.dtype) * 0.5,
        "outer": lambda x, y: x.reshape(-1, 1) @ y.reshape(1, -1),
        "gram": lambda x: x @ x.transpose(-1, -2),
        "matmul": lambda x, y: x @ y,
        "matmul T": lambda x, y: x @ y.transpose(-1, -2),
        "cross_entropy": _cross_entropy,
        "assigned": _assigned,
        "in place": _in_place,
        "set": _set,
        "detach": lambda x: x.detach() * 0.5,
    }.items()
}
RULES |= {
    "layer_norm": lambda x, *affine, parameters: F.layer_norm(x, x.shape[-1:], *[parameters[i] for i in affine]),
    "rms_norm": lambda x, weight, parameters: F.rms_norm(x, x.shape[-1:], parameters[weight]),
    "linear": lambda x, weight, bias, parameters: F.linear(x, parameters[weight], parameters[bias]),
    "plain linear": lambda x, weight, parameters: F.linear(x, parameters[weight]),
    "scale": lambda x, vector, parameters: x * parameters[vector],
    "embed": lambda ids, table, parameters: F.embedding(_ids(ids, parameters[table].shape[0]), parameters[table]),
}
