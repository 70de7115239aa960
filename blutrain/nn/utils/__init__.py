"""Functions on the gradients of parameters, under PyTorch's names."""

from .clip_grad import clip_grad_norm_, get_total_norm

__all__ = ["clip_grad_norm_", "get_total_norm"]
