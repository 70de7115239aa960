"""Functions of the layers, under PyTorch's names and with its argument order: `import blutrain.nn.functional as F`."""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import message
from ..tensor.creation import one_hot
from ..tensor.dtype import finfo
from ..tensor.ops.arrange import pad
from ..tensor.ops.composite.cross_entropy import cross_entropy
from ..tensor.ops.composite.dropout import dropout as _dropout
from ..tensor.ops.composite.embedding import embedding as _embedding
from ..tensor.ops.composite.gelu import gelu
from ..tensor.ops.composite.layer_norm import layer_norm as _layer_norm
from ..tensor.ops.composite.linear import linear
from ..tensor.ops.composite.mse_loss import mse_loss as _mse_loss
from ..tensor.ops.composite.relu import relu, silu
from ..tensor.ops.composite.rms_norm import rms_norm as _rms_norm
from ..tensor.ops.composite.softmax import log_softmax, softmax
from ..tensor.ops.unary import sigmoid, tanh
from ..tensor.tensor import Tensor

__all__ = [
    "cross_entropy",
    "dropout",
    "embedding",
    "gelu",
    "layer_norm",
    "linear",
    "log_softmax",
    "mse_loss",
    "one_hot",
    "pad",
    "relu",
    "rms_norm",
    "sigmoid",
    "silu",
    "softmax",
    "tanh",
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
