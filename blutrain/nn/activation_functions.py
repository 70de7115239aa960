"""Activations made of simple operations, under PyTorch's names; functional.py exports them."""

from __future__ import annotations

from ..errors import message
from ..tensor.ops.arithmetic import where
from ..tensor.ops.arrange import chunk
from ..tensor.ops.composite.compose import upcast
from ..tensor.ops.composite.softmax import softmax
from ..tensor.tensor import Tensor


def leaky_relu(x: Tensor, negative_slope: float = 0.01) -> Tensor:
    """x where it is positive, negative_slope * x elsewhere."""
    return where(x > 0, x, x * negative_slope)


def elu(x: Tensor, alpha: float = 1.0) -> Tensor:
    """x where it is positive, alpha * (exp(x) - 1) elsewhere."""
    return where(x > 0, x, x.clamp(max=0.0).expm1() * alpha)


def softplus(x: Tensor, beta: float = 1.0, threshold: float = 20.0) -> Tensor:
    """log(1 + exp(beta x)) / beta; x itself where beta x is above the threshold."""
    wide = upcast(x)
    scaled = wide if beta == 1 else wide * beta
    bent = scaled.clamp(max=threshold).exp().log1p()
    return where(scaled > threshold, wide, bent if beta == 1 else bent / beta).to(x.dtype)


def logsigmoid(x: Tensor) -> Tensor:
    """log(sigmoid(x)) without overflow."""
    return -softplus(-x, threshold=40.0)  # log(1 + exp(40)) is 40 in float64, too


def hardtanh(x: Tensor, min_val: float = -1.0, max_val: float = 1.0) -> Tensor:
    """x between min_val and max_val, these outside."""
    return x.clamp(min_val, max_val)


def relu6(x: Tensor) -> Tensor:
    """x between 0 and 6, these outside."""
    return x.clamp(0.0, 6.0)


def mish(x: Tensor) -> Tensor:
    """x * tanh(softplus(x))."""
    return x * softplus(x).tanh()


def glu(x: Tensor, dim: int = -1) -> Tensor:
    """The first half of `dim` times the sigmoid of the second."""
    if x.shape[dim] % 2:
        raise ValueError(message("glu", f"dimension {dim} has no two halves", got=str(x._aval)))
    value, gate = chunk(x, 2, dim)
    return value * gate.sigmoid()


def softmin(x: Tensor, dim: int) -> Tensor:
    """softmax(-x)."""
    return softmax(-x, dim)
