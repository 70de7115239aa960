"""Losses as modules."""

from __future__ import annotations

from ..errors import message
from ..tensor.tensor import Tensor
from . import functional as F
from .module import Module


class CrossEntropyLoss(Module):
    """Cross-entropy of logits (N, C) or (C) against class indices; see functional.cross_entropy for the rules."""

    def __init__(self, *, ignore_index: int = -100, reduction: str = "mean", label_smoothing: float = 0.0):
        super().__init__()
        self.ignore_index, self.label_smoothing = ignore_index, label_smoothing
        self.reduction = _reduction("CrossEntropyLoss", reduction)

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        return F.cross_entropy(
            logits,
            target,
            ignore_index=self.ignore_index,
            reduction=self.reduction,
            label_smoothing=self.label_smoothing,
        )


class MSELoss(Module):
    """Mean (or sum, or none) of (input - target)²."""

    def __init__(self, *, reduction: str = "mean"):
        super().__init__()
        self.reduction = _reduction("MSELoss", reduction)

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        return F.mse_loss(input, target, reduction=self.reduction)


def _reduction(op: str, reduction: str) -> str:
    if reduction not in ("mean", "sum", "none"):
        expected = "'mean', 'sum' or 'none'"
        raise ValueError(message(op, "unknown reduction", expected=expected, got=repr(reduction)))
    return reduction
