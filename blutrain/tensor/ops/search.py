"""Places in sorted sequences: searchsorted is the primitive, bucketize the same with its arguments exchanged."""

from __future__ import annotations

from ...errors import message
from ..aval import Aval
from ..dispatch import apply
from ..dtype import from_numpy_dtype, int64, promote
from ..primitive import NotDifferentiable, Unsupported, define
from ..tensor import Tensor
from . import cast, create


def _infer(sequence: Aval, values: Aval, *, right: bool) -> Aval:
    if not sequence.shape or (len(sequence.shape) > 1 and sequence.shape[:-1] != values.shape[:-1]):
        expected = "a sorted vector, or as many of them as values has rows"
        raise ValueError(message("searchsorted", "shapes do not fit", expected=expected, got=f"{sequence}, {values}"))
    return Aval(values.shape, int64)


def _eager(xp, sequence, values, *, right: bool):
    if from_numpy_dtype(sequence.dtype).is_narrow:
        sequence, values = sequence.astype(xp.float32), values.astype(xp.float32)
    side = "right" if right else "left"
    if sequence.ndim == 1:
        return xp.asarray(xp.searchsorted(sequence, values, side)).astype(xp.int64)
    places = xp.empty(values.shape, xp.int64)
    rows = zip(*(x.reshape(-1, x.shape[-1]) for x in (places, sequence, values)), strict=True)
    for place, row, wanted in rows if places.size else ():
        place[...] = xp.searchsorted(row, wanted, side)
    return places


SEARCHSORTED = define(
    "searchsorted",
    "gather",
    infer=_infer,
    eager=_eager,
    vjp=NotDifferentiable("the result is an index"),
    nova=Unsupported("searchsorted has no generator: no kernel searches"),
    doc="How many elements of the sorted rows of `sequence` are below each of `values` (right: not above).",
)


def searchsorted(sorted_sequence, values, *, right: bool = False, side: str | None = None):
    """Where in the sorted last dimension of `sorted_sequence` each of `values` would go (int64): before its equals, or
    behind them (`right`, side="right").

    >>> bt.searchsorted(bt.tensor([1, 3, 3, 5]), bt.tensor([3, 6]))
    tensor([1, 4])
    """
    if side not in (None, "left", "right") or (side == "left" and right):
        raise ValueError(
            message("searchsorted", "unknown side", expected="'left' or 'right'", got=f"{side!r}, {right=}")
        )
    if not isinstance(values, Tensor):
        values = create.full_of(Aval((), sorted_sequence.dtype), values, sorted_sequence.device)
    dtype = promote([sorted_sequence._aval, values._aval])
    operands = [cast.cast(x, dtype) for x in (sorted_sequence, values)]
    return apply(SEARCHSORTED, *operands, right=right or side == "right")


def bucketize(x, boundaries, *, right: bool = False):
    """The number of the bucket of each element of x between sorted `boundaries` (a vector): searchsorted(boundaries, x)."""
    return searchsorted(boundaries, x, right=right)
