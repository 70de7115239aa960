"""CUDA kernels of eager mode, used where CuPy's own operations would be many launches or another precision.

Imported at the first composite that runs on a GPU. `KERNELS`: eager rules by the name of their primitive, called as
`rule(cupy, *arrays, **attrs)`; a composite without an entry runs its NumPy rule on CuPy. Reading order: compile,
matmul and cublas_lt, then one family a file. May import: cupy, and of `ops` what belongs to a rule itself (names, messages,
bounds).
"""

from __future__ import annotations

from .cross_entropy import cross_entropy, cross_entropy_backward
from .dropout import dropout, random_bits
from .embedding import embedding, embedding_backward
from .gelu import gelu, gelu_backward
from .layer_norm import layer_norm, layer_norm_backward
from .matmul import linear, linear_backward
from .update import update_rule

KERNELS = {
    "cross_entropy": cross_entropy,
    "cross_entropy_backward": cross_entropy_backward,
    "dropout": dropout,
    "embedding": embedding,
    "embedding_backward": embedding_backward,
    "gelu": gelu,
    "gelu_backward": gelu_backward,
    "layer_norm": layer_norm,
    "layer_norm_backward": layer_norm_backward,
    "linear": linear,
    "linear_backward": linear_backward,
    "random_bits": random_bits,
    "adam": update_rule("adam"),
    "adamw": update_rule("adamw"),
    "sgd": update_rule("sgd"),
    "sgd_momentum": update_rule("sgd_momentum"),
}
