"""cross_entropy of logits against class indices, softmax included, and its gradient.

Rows whose target is `ignore_index` count for nothing: not in the loss, not in the gradient (zero even where the row
is NaN), not in the denominator of "mean", which is the number of rows kept. With none kept "sum" is 0, "mean" is 0/0
= NaN, and gradients are zeros. A target outside [0, classes) that is not `ignore_index` raises with its value.
"""

from __future__ import annotations

from ....errors import message
from ...aval import Aval
from ...dispatch import apply
from ...dtype import INTEGER, compute_dtype, int32, int64
from ...primitive import Composed, Saves, define
from ..arithmetic import where
from ..compare import eq, ge, logical_and, logical_or, lt, ne
from ..create import iota
from ..eager_rule import eager_rule
from .blocks import compute_type, narrow, row_blocks, widen
from .check import check_none, fail
from .check_operands import require_floating, require_fraction, require_one_of
from .compose import upcast
from .derive import vjp_by_compose, vjp_with_statistics

REDUCTIONS = ("mean", "sum", "none")


def _infer(logits, target, *, ignore_index, label_smoothing, reduction):
    require_floating("cross_entropy", logits)
    require_one_of("cross_entropy", "reduction", reduction, REDUCTIONS)
    require_fraction("cross_entropy", "label_smoothing", label_smoothing)
    if target.dtype.category != INTEGER:
        raise TypeError(
            message("cross_entropy", "targets are class indices", expected="an integer dtype", got=str(target))
        )
    if len(logits.shape) != 2 or target.shape != logits.shape[:1]:
        got = f"{logits} and {target}"
        raise ValueError(
            message(
                "cross_entropy", "one target per row of logits", expected="logits[rows, classes], target[rows]", got=got
            )
        )
    if not logits.shape[1]:
        raise ValueError(message("cross_entropy", "there are no classes", got=str(logits)))
    shape = target.shape if reduction == "none" else ()
    return Aval(shape, logits.dtype), Aval(target.shape, compute_dtype(logits.dtype))


def out_of_range_message(num_classes: int, ignore_index: int) -> str:
    """What a target out of range raises; `{flag}` is its value."""
    expected = f"0 <= target < {num_classes}, or ignore_index {ignore_index}"
    return f"cross_entropy: a target is out of range\n  expected: {expected}\n  got: {{flag}}"


def check_targets(xp, target, num_classes: int, ignore_index: int):
    """(rows kept as bool, targets with ignored ones as 0).

    Errors: ValueError with the value of a target out of range.
    """
    kept = target != ignore_index
    bad = kept & ((target < 0) | (target >= num_classes))
    if bad.any():
        fail(out_of_range_message(num_classes, ignore_index), int(target[bad].max()))
    return kept, xp.where(kept, target, 0)


def _eager(xp, logits, target, *, ignore_index, label_smoothing, reduction):
    num_rows, num_classes = logits.shape
    kept, index = check_targets(xp, target, num_classes, ignore_index)
    compute = compute_type(logits.dtype)
    lse, losses = xp.empty((2, num_rows), compute)
    for rows in row_blocks(xp, num_rows, num_classes):
        block = widen(logits[rows])
        largest = block.max(-1, keepdims=True)
        exponentials = block - largest
        xp.exp(exponentials, out=exponentials)
        lse[rows] = xp.log(exponentials.sum(-1)) + largest[:, 0]
        losses[rows] = lse[rows] - (1 - label_smoothing) * block[xp.arange(len(block)), index[rows]]
        if label_smoothing:
            losses[rows] -= label_smoothing * (block.sum(-1) / num_classes)
    losses = xp.where(kept, losses, 0)
    return narrow(reduce_losses(xp, losses, kept, reduction), logits.dtype), lse


def reduce_losses(xp, losses, kept, reduction: str):
    """Per-row losses to the result of `reduction`; "mean" divides by the rows kept."""
    if reduction == "none":
        return losses
    total = losses.sum()
    return total if reduction == "sum" else total / kept.sum().astype(losses.dtype)


def _compose(logits, target, *, ignore_index, label_smoothing, reduction):
    num_classes = logits.shape[1]
    wide, target = upcast(logits), _wide_target(target, ignore_index)
    kept = compose_check(target, num_classes, ignore_index)
    largest = wide.amax(1, keepdim=True).detach()
    lse = (wide - largest).exp().sum(1).log() + largest.reshape(target.numel())
    losses = lse - (1 - label_smoothing) * where(_one_hot(target, logits), wide, 0).sum(1)
    if label_smoothing:
        losses = losses - label_smoothing * (wide.sum(1) / num_classes)
    losses = where(kept, losses, 0)
    if reduction == "none":
        return losses.to(logits.dtype), lse
    total = losses.sum()
    if reduction == "mean":
        total = total / kept.sum().to(total.dtype)
    return total.to(logits.dtype), lse


def compose_check(target, num_classes: int, ignore_index: int):
    """The rows kept, as bool. A check reports a target out of range."""
    target = _wide_target(target, ignore_index)
    kept = ne(target, ignore_index)
    bad = logical_and(kept, logical_or(lt(target, 0), ge(target, num_classes)))
    check_none(bad, target, out_of_range_message(num_classes, ignore_index))
    return kept


def _wide_target(target, ignore_index: int):
    """Targets in a dtype that holds every class and `ignore_index`."""
    if abs(ignore_index) >= 2**31:
        return target.to(int64)
    return target if target.element_size() >= 4 else target.to(int32)


def _one_hot(target, logits):
    """bool[rows, classes]: is this the target's column. Ignored and bad targets are none."""
    columns = iota(logits.shape[1], logits.device, target.dtype)
    return eq(columns, target.reshape(target.numel(), 1))


def _vjp(ctx, grad, *_):
    logits, target = ctx.operands
    return apply(CROSS_ENTROPY_BACKWARD, grad, logits, target, ctx.results[1], **ctx.attrs), None


CROSS_ENTROPY = define(
    "cross_entropy",
    "composite",
    infer=_infer,
    eager=eager_rule("cross_entropy", _eager),
    vjp=vjp_with_statistics("cross_entropy", _vjp),
    nova=Composed(),
    saves=Saves(operands=(0, 1), results=(1,)),
    compose=_compose,
    num_results=2,
    doc=(
        "cross_entropy(logits[n, v], target[n], *, ignore_index, label_smoothing, reduction): (loss, logsumexp "
        "per row in at least float32)."
    ),
)


def _infer_backward(grad, logits, target, lse, *, ignore_index, label_smoothing, reduction):
    return logits


def _eager_backward(xp, grad, logits, target, lse, *, ignore_index, label_smoothing, reduction):
    num_rows, num_classes = logits.shape
    kept = target != ignore_index
    index = xp.where(kept, target, 0)
    factor = row_factors(xp, grad, kept, compute_type(logits.dtype), reduction)
    dx = xp.empty(logits.shape, logits.dtype)
    for rows in row_blocks(xp, num_rows, num_classes):
        block = widen(logits[rows]) - lse[rows, None]
        xp.exp(block, out=block)
        if label_smoothing:
            block -= label_smoothing / num_classes
        block[xp.arange(len(block)), index[rows]] -= 1 - label_smoothing
        block *= factor[rows, None]
        dx[rows] = block
    dx[~kept] = 0
    return dx


def row_factors(xp, grad, kept, compute, reduction: str):
    """What each row's softmax - one_hot is multiplied by: the gradient of its loss, 0 for ignored rows."""
    factor = widen(grad)
    if reduction == "mean":
        factor = factor / xp.maximum(kept.sum(), 1).astype(compute)
    return xp.where(kept, factor, 0).astype(compute, copy=False)


def _compose_backward(grad, logits, target, lse, *, ignore_index, label_smoothing, reduction):
    target = _wide_target(target, ignore_index)
    kept = ne(target, ignore_index)
    factor = upcast(grad)
    if reduction == "mean":
        factor = factor / kept.sum().to(factor.dtype)
    column = (target.numel(), 1)
    if reduction == "none":
        factor = factor.reshape(column)
    probabilities = (upcast(logits) - lse.reshape(column)).exp()
    hit, miss = 1 - label_smoothing + label_smoothing / logits.shape[1], label_smoothing / logits.shape[1]
    excess = where(_one_hot(target, logits), probabilities - hit, probabilities - miss)
    return where(kept.reshape(column), excess * factor, 0).to(logits.dtype)


CROSS_ENTROPY_BACKWARD = define(
    "cross_entropy_backward",
    "composite",
    infer=_infer_backward,
    eager=eager_rule("cross_entropy_backward", _eager_backward),
    vjp=vjp_by_compose("cross_entropy_backward"),
    nova=Composed(),
    saves=Saves(operands=(0, 1, 2, 3)),
    compose=_compose_backward,
    doc=(
        "cross_entropy_backward(grad, logits, target, lse, ...): (softmax - smoothed one-hot) times the gradient "
        "of each row's loss."
    ),
)


def cross_entropy(logits, target, *, ignore_index: int = -100, reduction: str = "mean", label_smoothing: float = 0.0):
    """-log softmax(logits)[target], averaged, summed or per row.

    logits[n, classes] (or [classes], or [n, classes, ...]) floating; target of the shape without classes, integers.
    Errors: ValueError for shapes, an unknown reduction, a target out of range; TypeError for dtypes.

    >>> nn.functional.cross_entropy(bt.zeros(2, 4), bt.tensor([0, 3]))  # log(4)
    tensor(1.3863)
    """
    attrs = {"ignore_index": int(ignore_index), "label_smoothing": float(label_smoothing), "reduction": reduction}
    if logits.ndim == 2:
        return apply(CROSS_ENTROPY, logits, target, **attrs)[0]
    if logits.ndim == 0 or target.shape != (*logits.shape[:1], *logits.shape[2:])[logits.ndim == 1 :]:
        got = f"{logits._aval} and {target._aval}"
        expected = "logits[n, classes, ...] and target[n, ...], or logits[classes] and one target"
        raise ValueError(message("cross_entropy", "one target per position of logits", expected=expected, got=got))
    rows = logits.movedim(1, -1).reshape(target.numel(), logits.shape[1]) if logits.ndim > 1 else logits.reshape(1, -1)
    loss = apply(CROSS_ENTROPY, rows, target.reshape(target.numel()), **attrs)[0]
    return loss.reshape(*target.shape) if reduction == "none" else loss
