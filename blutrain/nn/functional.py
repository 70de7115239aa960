"""Functions of the layers, under PyTorch's names and with its argument order: `import blutrain.nn.functional as F`."""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import message
from ..tensor.creation import one_hot, zeros_like
from ..tensor.dtype import finfo
from ..tensor.ops.arrange import pad
from ..tensor.ops.composite.attention import scaled_dot_product_attention
from ..tensor.ops.composite.dropout import dropout as _dropout
from ..tensor.ops.composite.embedding import embedding as _embedding
from ..tensor.ops.composite.gelu import gelu
from ..tensor.ops.composite.layer_norm import layer_norm as _layer_norm
from ..tensor.ops.composite.linear import linear
from ..tensor.ops.composite.mse_loss import mse_loss as _mse_loss
from ..tensor.ops.composite.relu import relu, silu
from ..tensor.ops.composite.rms_norm import rms_norm as _rms_norm
from ..tensor.ops.composite.softmax import log_softmax, softmax
from ..tensor.ops.random import rand_like
from ..tensor.ops.unary import sigmoid, tanh
from ..tensor.tensor import Tensor
from .activation_functions import elu, glu, hardtanh, leaky_relu, logsigmoid, mish, relu6, softmin, softplus
from .loss_functions import (
    binary_cross_entropy,
    binary_cross_entropy_with_logits,
    cosine_embedding_loss,
    cosine_similarity,
    cross_entropy,
    huber_loss,
    kl_div,
    l1_loss,
    margin_ranking_loss,
    nll_loss,
    normalize,
    pairwise_distance,
    smooth_l1_loss,
    triplet_margin_loss,
)

__all__ = [
    "binary_cross_entropy",
    "binary_cross_entropy_with_logits",
    "cosine_embedding_loss",
    "cosine_similarity",
    "cross_entropy",
    "dropout",
    "elu",
    "embedding",
    "gelu",
    "glu",
    "gumbel_softmax",
    "hardtanh",
    "huber_loss",
    "kl_div",
    "l1_loss",
    "layer_norm",
    "leaky_relu",
    "linear",
    "log_softmax",
    "logsigmoid",
    "margin_ranking_loss",
    "mish",
    "mse_loss",
    "nll_loss",
    "normalize",
    "one_hot",
    "pad",
    "pairwise_distance",
    "relu",
    "relu6",
    "rms_norm",
    "scaled_dot_product_attention",
    "sigmoid",
    "silu",
    "smooth_l1_loss",
    "softmax",
    "softmin",
    "softplus",
    "tanh",
    "triplet_margin_loss",
]


def embedding(indices: Tensor, weight: Tensor, padding_idx: int | None = None) -> Tensor:
    """Rows of weight (num, dim) by integer indices of any shape; the row `padding_idx` gets no gradient.

    Errors: ValueError for an index out of range, with its value.
    """
    return _embedding(weight, indices, padding_idx=padding_idx)


def layer_norm(
    x: Tensor,
    normalized_shape: int | Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """(x - mean) / sqrt(var + eps) * weight + bias over the trailing dimensions `normalized_shape`."""
    return _layer_norm(x, normalized_shape, weight, bias, eps)


def rms_norm(
    x: Tensor, normalized_shape: int | Sequence[int], weight: Tensor | None = None, eps: float | None = None
) -> Tensor:
    """x / sqrt(mean(x²) + eps) * weight over the trailing dimensions; eps None: the machine epsilon of x's dtype."""
    return _rms_norm(x, normalized_shape, weight, finfo(x.dtype).eps if eps is None else eps)


def mse_loss(input: Tensor, target: Tensor, reduction: str = "mean") -> Tensor:
    """(input - target)², averaged, summed or as it is ("none"). The shapes must be equal."""
    return _mse_loss(input, target, reduction)


def dropout(x: Tensor, p: float = 0.5, training: bool = True) -> Tensor:
    """Zero each element with probability p and scale the others by 1/(1-p); x itself where not training or p is 0.

    Each call takes one draw number of the default generator, so no two calls share a mask.
    """
    if not 0.0 <= p <= 1.0:
        raise ValueError(message("dropout", "p must be a probability", expected="0 <= p <= 1", got=repr(p)))
    if not training or p == 0:
        return x
    return _dropout(x, p)


def gumbel_softmax(logits: Tensor, tau: float = 1.0, hard: bool = False, dim: int = -1) -> Tensor:
    """softmax((logits + noise) / tau) with Gumbel noise: categories drawn by their probabilities, near one-hot for a small tau.

    hard: exactly one-hot, with the gradient of what it rounds. Errors: ValueError for a tau that is not positive.
    """
    if not tau > 0:
        raise ValueError(message("gumbel_softmax", "tau must be positive", got=repr(tau)))
    times = -(1.0 - rand_like(logits)).log()  # exponentially distributed
    noise = -times.clamp(min=finfo(logits.dtype).tiny).log()
    soft = softmax((logits + noise) / tau, dim)
    if not hard:
        return soft
    index = soft.detach().argmax(dim, keepdim=True)
    return zeros_like(soft).scatter(dim, index, 1.0) - soft.detach() + soft
