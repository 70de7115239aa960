"""Functions on parameters and their gradients, under PyTorch's names."""

from .clip_grad import clip_grad_norm_, get_total_norm
from .parameters import clip_grad_value_, parameters_to_vector, vector_to_parameters

__all__ = [
    "clip_grad_norm_",
    "clip_grad_value_",
    "get_total_norm",
    "parameters_to_vector",
    "vector_to_parameters",
]
