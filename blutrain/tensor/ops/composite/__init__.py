"""Composites: operations that backward and fusion want whole, each with its own backward primitive and its meaning in
simple primitives.

May import: the simple families of `ops`, the table and dispatch. Reading order: check_operands, blocks and compose
(what the families share), derive (derivatives through `compose`), select (NumPy rule or CUDA kernel), then one family
a file.
"""

from __future__ import annotations

from .attention import scaled_dot_product_attention
from .check import check
from .cross_entropy import cross_entropy
from .dropout import dropout
from .embedding import embedding, embedding_backward
from .gelu import gelu, gelu_backward
from .layer_norm import layer_norm
from .linear import linear, linear_backward
from .mse_loss import mse_loss
from .relu import relu, relu_backward, silu, silu_backward
from .rms_norm import rms_norm
from .softmax import log_softmax, softmax
from .update import adam, adamw, sgd, sgd_momentum
from .update_in_place import update_in_place

__all__ = [
    "adam",
    "adamw",
    "check",
    "cross_entropy",
    "dropout",
    "embedding",
    "embedding_backward",
    "gelu",
    "gelu_backward",
    "layer_norm",
    "linear",
    "linear_backward",
    "log_softmax",
    "mse_loss",
    "relu",
    "relu_backward",
    "rms_norm",
    "scaled_dot_product_attention",
    "sgd",
    "sgd_momentum",
    "silu",
    "silu_backward",
    "softmax",
    "update_in_place",
]
