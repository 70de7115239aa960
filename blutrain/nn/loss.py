"""Losses as modules."""

from __future__ import annotations

from ..errors import message
from ..tensor.tensor import Tensor
from . import functional as F
from .module import Module


class CrossEntropyLoss(Module):
    """Cross-entropy of logits (N, C) or (C) against class indices or probabilities; see functional.cross_entropy."""

    def __init__(
        self,
        weight: Tensor | None = None,
        *,
        ignore_index: int = -100,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
    ):
        super().__init__()
        self.register_buffer("weight", weight)
        self.ignore_index, self.label_smoothing = ignore_index, label_smoothing
        self.reduction = _reduction("CrossEntropyLoss", reduction)

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        return F.cross_entropy(
            logits,
            target,
            self.weight,
            ignore_index=self.ignore_index,
            reduction=self.reduction,
            label_smoothing=self.label_smoothing,
        )


class NLLLoss(Module):
    """functional.nll_loss: of log-probabilities, against class indices."""

    def __init__(self, weight: Tensor | None = None, *, ignore_index: int = -100, reduction: str = "mean"):
        super().__init__()
        self.register_buffer("weight", weight)
        self.ignore_index, self.reduction = ignore_index, _reduction("NLLLoss", reduction)

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        return F.nll_loss(input, target, self.weight, self.ignore_index, self.reduction)


class BCELoss(Module):
    """functional.binary_cross_entropy: of probabilities."""

    def __init__(self, weight: Tensor | None = None, *, reduction: str = "mean"):
        super().__init__()
        self.register_buffer("weight", weight)
        self.reduction = _reduction("BCELoss", reduction)

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        return F.binary_cross_entropy(input, target, self.weight, self.reduction)


class BCEWithLogitsLoss(Module):
    """functional.binary_cross_entropy_with_logits."""

    def __init__(self, weight: Tensor | None = None, *, reduction: str = "mean", pos_weight: Tensor | None = None):
        super().__init__()
        self.register_buffer("weight", weight)
        self.register_buffer("pos_weight", pos_weight)
        self.reduction = _reduction("BCEWithLogitsLoss", reduction)

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        return F.binary_cross_entropy_with_logits(input, target, self.weight, self.reduction, self.pos_weight)


class KLDivLoss(Module):
    """functional.kl_div; reduction also "batchmean"."""

    def __init__(self, *, reduction: str = "mean", log_target: bool = False):
        super().__init__()
        self.reduction = reduction if reduction == "batchmean" else _reduction("KLDivLoss", reduction)
        self.log_target = log_target

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        return F.kl_div(input, target, self.reduction, self.log_target)


class L1Loss(Module):
    """Mean (or sum, or none) of |input - target|."""

    def __init__(self, *, reduction: str = "mean"):
        super().__init__()
        self.reduction = _reduction("L1Loss", reduction)

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        return F.l1_loss(input, target, self.reduction)


class SmoothL1Loss(Module):
    """functional.smooth_l1_loss."""

    def __init__(self, *, reduction: str = "mean", beta: float = 1.0):
        super().__init__()
        self.reduction, self.beta = _reduction("SmoothL1Loss", reduction), beta

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        return F.smooth_l1_loss(input, target, self.reduction, self.beta)


class HuberLoss(Module):
    """functional.huber_loss."""

    def __init__(self, *, reduction: str = "mean", delta: float = 1.0):
        super().__init__()
        self.reduction, self.delta = _reduction("HuberLoss", reduction), delta

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        return F.huber_loss(input, target, self.reduction, self.delta)


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
