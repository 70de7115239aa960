"""Linear and Embedding: layers that are a table or a matrix of weights."""

from __future__ import annotations

import math
import operator
from typing import Any

from ..errors import message
from ..tensor.tensor import Tensor
from . import functional as F
from . import init
from .module import Module
from .parameter import Parameter, empty_parameter


class Linear(Module):
    """y = x @ weight.T + bias, for x of shape (..., in_features); weight is (out_features, in_features).

    Initialized as in PyTorch: uniform in ±1/sqrt(in_features).
    """

    def __init__(self, in_features: int, out_features: int, bias: bool = True, device: Any = None, dtype: Any = None):
        super().__init__()
        self.in_features = size_of("Linear", "in_features", in_features)
        self.out_features = size_of("Linear", "out_features", out_features)
        self.weight = empty_parameter((self.out_features, self.in_features), device, dtype)
        self.bias: Parameter | None = empty_parameter((self.out_features,), device, dtype) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        init.kaiming_uniform_(self.weight, a=math.sqrt(5))
        if self.bias is not None:
            bound = 1 / math.sqrt(self.in_features) if self.in_features else 0.0
            init.uniform_(self.bias, -bound, bound)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}"


class Embedding(Module):
    """Rows of weight (num_embeddings, embedding_dim) by index; result (*indices.shape, embedding_dim).

    padding_idx: its row starts at zero and gets no gradient. Errors: an index outside 0..num_embeddings-1 raises with
    its value.
    """

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        padding_idx: int | None = None,
        device: Any = None,
        dtype: Any = None,
    ):
        super().__init__()
        self.num_embeddings = size_of("Embedding", "num_embeddings", num_embeddings)
        self.embedding_dim = size_of("Embedding", "embedding_dim", embedding_dim)
        if padding_idx is not None:
            if not -num_embeddings <= padding_idx < num_embeddings:
                rule = "padding_idx is out of range"
                raise ValueError(message("Embedding", rule, expected=f"0..{num_embeddings - 1}", got=str(padding_idx)))
            padding_idx %= num_embeddings
        self.padding_idx = padding_idx
        self.weight = empty_parameter((self.num_embeddings, self.embedding_dim), device, dtype)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        init.normal_(self.weight)
        if self.padding_idx is not None:
            init.zero_row_(self.weight, self.padding_idx)

    def forward(self, indices: Tensor) -> Tensor:
        return F.embedding(indices, self.weight, padding_idx=self.padding_idx)

    def extra_repr(self) -> str:
        text = f"{self.num_embeddings}, {self.embedding_dim}"
        return text if self.padding_idx is None else f"{text}, padding_idx={self.padding_idx}"


def size_of(op: str, name: str, value: Any, least: int = 0) -> int:
    """`value` as an int. Errors: ValueError if it is none (a NumPy integer is), or below `least`."""
    if isinstance(value, bool) or not hasattr(value, "__index__") or operator.index(value) < least:
        raise ValueError(message(op, f"{name} must be an integer of at least {least}", got=repr(value)))
    return operator.index(value)
