"""embedding: rows of a table by index, and its gradient, a sum of rows per index in the order of the indices."""

from __future__ import annotations

from ....errors import message
from ...aval import Aval
from ...dispatch import apply
from ...dtype import INTEGER, compute_dtype, int32
from ...primitive import Composed, Saves, define
from ..arithmetic import where
from ..compare import eq, ge, logical_or, lt
from ..create import zeros_of
from ..eager_rule import eager_rule
from ..gather import add_rows, index_add, take
from .blocks import as_rows, compute_type, narrow, widen
from .check import check_none, fail
from .check_operands import require_floating
from .compose import upcast
from .derive import vjp_by_compose


def _infer(weight, ids, *, padding_idx):
    require_floating("embedding", weight)
    if len(weight.shape) != 2:
        raise ValueError(
            message("embedding", "the table is a matrix", expected="weight[rows, features]", got=str(weight))
        )
    if ids.dtype.category != INTEGER:
        raise TypeError(message("embedding", "ids are integers", got=str(ids)))
    if not weight.shape[0] and ids.size:
        raise ValueError(message("embedding", "the table has no rows", got=f"{weight}, {ids}"))
    return Aval((*ids.shape, weight.shape[1]), weight.dtype)


def out_of_range_message(num_rows: int) -> str:
    """What an id out of range raises; `{flag}` is its value."""
    return f"embedding: an id is out of range\n  expected: 0 <= id < {num_rows}\n  got: {{flag}}"


def check_ids(xp, ids, num_rows: int) -> None:
    """ValueError with the value of an id outside [0, num_rows)."""
    if ids.size and (ids.min() < 0 or ids.max() >= num_rows):
        fail(out_of_range_message(num_rows), int(ids.max()) if ids.max() >= num_rows else int(ids.min()))


def _eager(xp, weight, ids, *, padding_idx):
    check_ids(xp, ids, weight.shape[0])
    return xp.take(weight, ids, axis=0)


def _compose(weight, ids, *, padding_idx):
    ids, num_rows = _wide_ids(ids), weight.shape[0]
    check_none(logical_or(lt(ids, 0), ge(ids, num_rows)), ids, out_of_range_message(num_rows))
    return take(weight, ids, 0)


def _wide_ids(ids):
    """ids in a dtype that holds every row number and that indexing takes."""
    return ids if ids.element_size() >= 4 else ids.to(int32)


def _vjp(ctx, grad):
    weight = ctx.avals[0]
    return embedding_backward(grad, ctx.operands[1], weight.shape[0], ctx.attrs["padding_idx"]), None


EMBEDDING = define(
    "embedding",
    "composite",
    infer=_infer,
    eager=eager_rule("embedding", _eager),
    vjp=_vjp,
    nova=Composed(),
    saves=Saves(operands=(1,)),
    compose=_compose,
    doc=(
        "embedding(weight[v, d], ids[...], *, padding_idx): weight[ids]; the row padding_idx (None: none) gets "
        "no gradient."
    ),
)


def _infer_backward(grad, ids, *, num_rows, padding_idx):
    return Aval((num_rows, grad.shape[-1]), grad.dtype)


def _eager_backward(xp, grad, ids, *, num_rows, padding_idx):
    rows, flat = widen(as_rows(xp, grad, 1)), ids.reshape(-1)
    table = xp.zeros((num_rows, rows.shape[1]), compute_type(grad.dtype))
    if flat.size:
        add_rows(xp, table, flat, rows)
    if padding_idx is not None:
        table[padding_idx] = 0
    return narrow(table, grad.dtype)


def _compose_backward(grad, ids, *, num_rows, padding_idx):
    updates = upcast(grad).reshape(ids.numel(), grad.shape[-1])
    flat = _wide_ids(ids).reshape(ids.numel())
    if padding_idx is not None:
        updates = where(eq(flat, padding_idx).reshape(ids.numel(), 1), 0, updates)
    table = zeros_of(Aval((num_rows, grad.shape[-1]), compute_dtype(grad.dtype)), grad.device)
    return index_add(table, 0, flat, updates).to(grad.dtype)


EMBEDDING_BACKWARD = define(
    "embedding_backward",
    "composite",
    infer=_infer_backward,
    eager=eager_rule("embedding_backward", _eager_backward),
    vjp=vjp_by_compose("embedding_backward"),
    nova=Composed(),
    saves=Saves(operands=(0, 1)),
    compose=_compose_backward,
    doc=(
        "embedding_backward(grad[..., d], ids[...], *, num_rows, padding_idx): rows of grad summed by id into "
        "[num_rows, d], in at least float32."
    ),
)


def embedding(weight, ids, padding_idx: int | None = None):
    """weight[ids]. weight[v, d] floating; ids integers of any shape; padding_idx: a row that gets no gradient (may
    count from the end).

    Errors: ValueError for an id out of range (with its value) or a padding_idx out of range; TypeError for dtypes.
    """
    if padding_idx is not None:
        num_rows = weight.shape[0]
        if not -num_rows <= padding_idx < num_rows:
            expected = f"{-num_rows} <= padding_idx < {num_rows}"
            raise ValueError(
                message("embedding", "padding_idx is out of range", expected=expected, got=str(padding_idx))
            )
        padding_idx %= num_rows
    return apply(EMBEDDING, weight, ids, padding_idx=padding_idx)


def embedding_backward(grad, ids, num_rows: int, padding_idx: int | None = None):
    """The gradient of embedding with respect to its table of `num_rows` rows."""
    return apply(EMBEDDING_BACKWARD, grad, ids, num_rows=num_rows, padding_idx=padding_idx)
