"""Losses and distances made of simple operations, under PyTorch's names; functional.py exports them."""

from __future__ import annotations

import math

from ..errors import message
from ..tensor.ops.arithmetic import where
from ..tensor.ops.composite.check_operands import require_one_of
from ..tensor.ops.composite.compose import upcast
from ..tensor.ops.composite.cross_entropy import REDUCTIONS, compose_check
from ..tensor.ops.composite.cross_entropy import cross_entropy as _cross_entropy
from ..tensor.ops.composite.softmax import log_softmax
from ..tensor.tensor import Tensor
from .activation_functions import softplus


def l1_loss(input: Tensor, target: Tensor, reduction: str = "mean") -> Tensor:
    """|input - target|."""
    return _reduced("l1_loss", _distance("l1_loss", input, target), reduction, input)


def smooth_l1_loss(input: Tensor, target: Tensor, reduction: str = "mean", beta: float = 1.0) -> Tensor:
    """d²/2 / beta where the distance d is below beta, d - beta/2 elsewhere; at beta 0 l1_loss."""
    d = _distance("smooth_l1_loss", input, target)
    loss = where(d < beta, d * d * (0.5 / beta), d - 0.5 * beta) if beta else d
    return _reduced("smooth_l1_loss", loss, reduction, input)


def huber_loss(input: Tensor, target: Tensor, reduction: str = "mean", delta: float = 1.0) -> Tensor:
    """d²/2 where the distance d is at most delta, delta (d - delta/2) elsewhere."""
    d = _distance("huber_loss", input, target)
    return _reduced("huber_loss", where(d <= delta, d * d * 0.5, (d - 0.5 * delta) * delta), reduction, input)


def binary_cross_entropy(
    input: Tensor, target: Tensor, weight: Tensor | None = None, reduction: str = "mean"
) -> Tensor:
    """-(t log(p) + (1 - t) log(1 - p)) of probabilities p; a logarithm is at least -100, and has gradient 0 there."""
    _require_same_shape("binary_cross_entropy", input, target)
    p, t = upcast(input), upcast(target)
    loss = -(t * _bounded_log(p) + (1 - t) * _bounded_log(1 - p))
    return _reduced("binary_cross_entropy", loss if weight is None else loss * weight, reduction, input)


def _bounded_log(x: Tensor) -> Tensor:
    return where(x > 0, where(x > 0, x, 1.0).log(), -100.0).clamp(min=-100.0)


def binary_cross_entropy_with_logits(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    reduction: str = "mean",
    pos_weight: Tensor | None = None,
) -> Tensor:
    """binary_cross_entropy of sigmoid(input), without overflow; pos_weight multiplies the losses of positive targets."""
    _require_same_shape("binary_cross_entropy_with_logits", input, target)
    x, t = upcast(input), upcast(target)
    below = softplus(-x, threshold=40.0)  # -log(sigmoid(x))
    loss = (1 - t) * x + (below if pos_weight is None else below * ((pos_weight - 1) * t + 1))
    loss = loss if weight is None else loss * weight
    return _reduced("binary_cross_entropy_with_logits", loss, reduction, input)


def kl_div(input: Tensor, target: Tensor, reduction: str = "mean", log_target: bool = False) -> Tensor:
    """target * (log(target) - input), of log-probabilities as input, and as target if `log_target`; "batchmean": the sum
    divided by the rows.
    """
    x, t = upcast(input), upcast(target)
    if log_target:
        loss = t.exp() * (t - x)
    else:
        loss = where(t > 0, t * where(t > 0, t, 1.0).log(), 0.0) - t * x
    if reduction == "batchmean":
        return (loss.sum() / input.shape[0]).to(input.dtype)
    return _reduced("kl_div", loss, reduction, input)


def nll_loss(
    input: Tensor, target: Tensor, weight: Tensor | None = None, ignore_index: int = -100, reduction: str = "mean"
) -> Tensor:
    """-input[target] of log-probabilities [n, classes, ...] or [classes]; weight: one factor a class, by whose sum over the
    targets "mean" divides.
    """
    require_one_of("nll_loss", "reduction", reduction, REDUCTIONS)
    if input.ndim == 1:
        result = nll_loss(input.reshape(1, -1), target.reshape(1), weight, ignore_index, reduction)
        return result.reshape(target.shape) if reduction == "none" else result
    if target.shape != (*input.shape[:1], *input.shape[2:]):
        got, expected = f"{input._aval} and {target._aval}", "input[n, classes, ...] and target[n, ...]"
        raise ValueError(message("nll_loss", "one target per position of input", expected=expected, got=got))
    kept = compose_check(target, input.shape[1], ignore_index)
    safe = where(kept, target, 0)
    factor = kept.to(upcast(input).dtype) if weight is None else where(kept, upcast(weight)[safe], 0.0)
    picked = upcast(input).gather(1, safe.long().unsqueeze(1)).squeeze(1)
    return _weighted(where(kept, -picked, 0.0), factor, reduction).to(input.dtype)


def _weighted(losses: Tensor, factor: Tensor, reduction: str) -> Tensor:
    """Losses times their factors, by whose sum "mean" divides."""
    if reduction == "none":
        return losses * factor
    total = (losses * factor).sum()
    return total if reduction == "sum" else total / factor.sum()


def cross_entropy(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    *,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor:
    """-log softmax(input)[target], averaged, summed or per row.

    input: [n, classes], [classes], or [n, classes, ...], floating; target: integers of that shape without classes, or
    probabilities of that shape; weight: one factor a class, by whose sum over the targets "mean" divides (with
    probabilities, by n). Errors: ValueError for shapes, an unknown reduction, a target out of range; TypeError for dtypes.

    >>> nn.functional.cross_entropy(bt.zeros(2, 4), bt.tensor([0, 3]))  # log(4)
    tensor(1.3863)
    """
    if weight is None and not (target.dtype.is_floating and target.shape == input.shape):
        options = {"ignore_index": ignore_index, "reduction": reduction, "label_smoothing": label_smoothing}
        return _cross_entropy(input, target, **options)
    require_one_of("cross_entropy", "reduction", reduction, REDUCTIONS)
    dim = min(1, input.ndim - 1)
    log_p, classes = log_softmax(upcast(input), dim), input.shape[dim]
    shape = (-1,) + (1,) * (input.ndim - 1 - dim)
    weighted = log_p if weight is None else log_p * upcast(weight).reshape(shape)
    if target.dtype.is_floating:
        _require_same_shape("cross_entropy", input, target)
        t = upcast(target) * (1 - label_smoothing) + label_smoothing / classes
        return _reduced("cross_entropy", -(t * weighted).sum(dim), reduction, input, input.numel() // classes)
    loss = nll_loss(log_p, target, weight, ignore_index, reduction)
    if label_smoothing:
        kept = target != ignore_index
        smooth = where(kept, -weighted.sum(dim), 0.0)
        if reduction != "none":
            smooth = smooth.sum()
        if reduction == "mean":
            smooth = smooth / upcast(weight)[where(kept, target, 0)].where(kept, 0.0).sum()
        loss = loss * (1 - label_smoothing) + smooth * (label_smoothing / classes)
    return loss.to(input.dtype)


def cosine_similarity(x1: Tensor, x2: Tensor, dim: int = 1, eps: float = 1e-8) -> Tensor:
    """The cosine of the angle between vectors along `dim`, whose lengths count as at least eps."""
    lengths = [x.norm(2, dim).clamp(min=eps) for x in (x1, x2)]
    return (x1 * x2).sum(dim) / (lengths[0] * lengths[1])


def pairwise_distance(x1: Tensor, x2: Tensor, p: float = 2.0, eps: float = 1e-6, keepdim: bool = False) -> Tensor:
    """The p-norm of x1 - x2 + eps along the last dimension."""
    return (x1 - x2 + eps).norm(p, -1, keepdim)


def normalize(input: Tensor, p: float = 2.0, dim: int = 1, eps: float = 1e-12) -> Tensor:
    """Vectors along `dim` divided by their p-norm, or by eps where that is larger."""
    return input / input.norm(p, dim, True).clamp(min=eps)


def triplet_margin_loss(
    anchor: Tensor, positive: Tensor, negative: Tensor, margin: float = 1.0, p: float = 2.0, reduction: str = "mean"
) -> Tensor:
    """max(d(anchor, positive) - d(anchor, negative) + margin, 0) with d the pairwise_distance."""
    near, far = pairwise_distance(anchor, positive, p), pairwise_distance(anchor, negative, p)
    return _reduced("triplet_margin_loss", (near - far + margin).clamp(min=0.0), reduction, anchor)


def margin_ranking_loss(
    input1: Tensor, input2: Tensor, target: Tensor, margin: float = 0.0, reduction: str = "mean"
) -> Tensor:
    """max(-target (input1 - input2) + margin, 0); target: 1 where the first is to be larger, -1 where the second is."""
    _require_same_shape("margin_ranking_loss", input1, input2)
    _require_same_shape("margin_ranking_loss", input1, target)
    losses = ((upcast(input2) - upcast(input1)) * target + margin).clamp(min=0.0)
    return _reduced("margin_ranking_loss", losses, reduction, input1)


def cosine_embedding_loss(
    input1: Tensor, input2: Tensor, target: Tensor, margin: float = 0.0, reduction: str = "mean"
) -> Tensor:
    """1 - cos of the vectors along the last dimension where target is 1, max(cos - margin, 0) where it is -1."""
    _require_same_shape("cosine_embedding_loss", input1, input2)
    cosine = cosine_similarity(upcast(input1), upcast(input2), -1)
    _require_same_shape("cosine_embedding_loss", cosine, target)
    losses = where(target > 0, 1.0 - cosine, (cosine - margin).clamp(min=0.0))
    return _reduced("cosine_embedding_loss", losses, reduction, input1)


def _distance(op: str, input: Tensor, target: Tensor) -> Tensor:
    _require_same_shape(op, input, target)
    return (upcast(input) - upcast(target)).abs()


def _require_same_shape(op: str, input: Tensor, target: Tensor) -> None:
    if input.shape != target.shape:
        got = f"{input._aval} and {target._aval}"
        raise ValueError(message(op, "input and target have one shape", got=got))


def _reduced(op: str, losses: Tensor, reduction: str, like: Tensor, rows: int | None = None) -> Tensor:
    """`losses` by `reduction` in the dtype of `like`; rows: by how many "mean" divides, if not by their number."""
    require_one_of(op, "reduction", reduction, REDUCTIONS)
    if reduction != "none":
        count = losses.numel() if rows is None else rows
        losses = losses.sum() if reduction == "sum" else losses.sum() / count if count else losses.sum() * math.nan
    return losses.to(like.dtype)
