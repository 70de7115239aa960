"""x[index] and x[index] = value, as NumPy has them.

Integers, slices (negative steps too), None and ... make views through the primitive slice; integer tensors, lists and
bool masks are gathered through take. A mask's result shape depends on its values, so indexing with one reads it;
writing a number through a mask does not. Writing through a repeated index keeps the last value.
"""

from __future__ import annotations

import operator
from typing import NamedTuple

import numpy

from ..errors import message
from . import dispatch
from .aval import Aval
from .creation import nonzero, tensor
from .dispatch import apply
from .dtype import INTEGER, bool_, int64
from .inplace import needs_history, take_over
from .ops import arithmetic, cast, create, effect, gather, movement
from .tensor import Tensor, aval_of

MAX_CONSTANTS = 16
_ALL = slice(None)
_SEQUENCES = (list, tuple, range, numpy.ndarray)  # of numbers, which stand for an index tensor


class _Basic(NamedTuple):
    """A parsed index without tensors: the slice taken, and the shape it is seen in afterwards."""

    starts: tuple[int, ...]
    sizes: tuple[int, ...]
    steps: tuple[int, ...]
    shape: tuple[int, ...]


def getitem(x: Tensor, index) -> Tensor:
    """x[index]. Errors: IndexError out of range or too many indices, TypeError for what is no index."""
    if type(index) is int and x._aval.shape:
        return _row(x, index)
    basic, places = _parse(x, index)
    view = movement.slice_dims(x, basic.starts, basic.sizes, basic.steps)
    if basic.shape != basic.sizes:
        view = apply(movement.RESHAPE, view, shape=basic.shape)
    if not places:
        return view if view is not x else apply(movement.RESHAPE, x, shape=x._aval.shape)
    moved, dim, indices, _ = _to_one_index(view, places)
    return gather.take(moved, indices, dim)


def _row(x: Tensor, index: int) -> Tensor:
    """x[index] for an integer."""
    n, *rest = x._aval.shape
    start = _checked_int(index, n, 0)
    zeros = (0,) * len(rest)
    row = apply(movement.SLICE, x, starts=(start, *zeros), sizes=(1, *rest), steps=(1,) * (len(rest) + 1))
    return apply(movement.RESHAPE, row, shape=tuple(rest))


def setitem(x: Tensor, index, value) -> None:
    """x[index] = value, in place; `value` is cast to x's dtype and broadcast."""
    if not isinstance(value, Tensor):
        value = _value_tensor(x, value)
    if (
        needs_history(x, value)
        or x._pending is not None
        or (dispatch.recorder is not None and dispatch.recorder.recording)
    ):
        if not _is_there(x, index, value):
            take_over("setitem", x, _replaced(x, index, value))
        return
    if dispatch.recorder is not None:
        dispatch.recorder.write(x)
    effect.check_writable("setitem", x)
    key = _raw_index(x, index)
    with x.device.activate():
        _write(x, key, value)
    x._bump_version()


def _is_there(x: Tensor, index, value: Tensor) -> bool:
    """Is `value` the view x[index] itself, as after `x[index] += y`?"""
    if value._base is None or value._base is not (x if x._base is None else x._base):
        return False
    key = _raw_index(x, index)
    try:
        view = Tensor._wrap(x._buffer()[key if any(k is Ellipsis for k in key) else (*key, ...)], x.device)
    except IndexError:
        return False  # the write says what is wrong
    return (view.shape, view.stride(), view.data_ptr()) == (value.shape, value.stride(), value.data_ptr())


def _write(x: Tensor, key, value: Tensor) -> None:
    source = value._buffer()
    if value.device is not x.device:
        if value.ndim:
            dispatch.common_device("setitem", (x, value), {})
        source = value.item()
    try:
        x._array[key] = source
    except IndexError as fault:
        raise IndexError(message("setitem", str(fault), got=f"index into {x._aval}")) from None
    except ValueError as fault:
        raise ValueError(message("setitem", "the value does not fit", got=f"{value._aval} ({fault})")) from None


def _value_tensor(x: Tensor, value) -> Tensor:
    if not isinstance(value, list | tuple | numpy.ndarray):
        aval_of(value)  # TypeError for what is no number
    return tensor(value, dtype=x.dtype, device=x.device)


def _raw_index(x: Tensor, index):
    """The index with arrays in place of tensors, for NumPy or CuPy."""
    items = index if isinstance(index, tuple) else (index,)
    raw = []
    for item in items:
        if isinstance(item, Tensor):
            _check_index_tensor(item._aval)
            item = item._buffer()
        elif isinstance(item, _SEQUENCES):
            item = _index_tensor(item, x.device)._buffer()
        elif not (item is None or item is Ellipsis or isinstance(item, slice)):
            item = _as_int(item)
        raw.append(item)
    return tuple(raw)


def _replaced(x: Tensor, index, value: Tensor) -> Tensor:
    """x with x[index] replaced, as a new tensor with history."""
    value = cast.cast(value, x.dtype)
    if isinstance(index, Tensor) and index.dtype is bool_ and not value.ndim:
        _check_mask(x, 0, index)
        mask = movement.reshape(index, index.shape + (1,) * (x.ndim - index.ndim))
        return arithmetic.where(mask, value, x)
    basic, places = _parse(x, index)
    if not places:
        # a value of the result's shape, seen in the shape of the slice (integers in the index kept as extents of 1)
        value = movement.reshape(_broadcast_value(value, basic.shape), basic.sizes)
        return apply(movement.SLICE_UPDATE, x, value, starts=basic.starts, sizes=basic.sizes, steps=basic.steps)
    view = movement.slice_dims(x, basic.starts, basic.sizes, basic.steps)
    seen = movement.reshape(view, basic.shape)
    moved, dim, indices, undo = _to_one_index(seen, places)
    taken = (*moved.shape[:dim], *indices.shape, *moved.shape[dim + 1 :])
    changed = gather.index_copy(moved, dim, indices, _broadcast_value(value, taken))
    changed = movement.reshape(undo(changed), basic.sizes)
    if view is x:
        return changed
    return apply(movement.SLICE_UPDATE, x, changed, starts=basic.starts, sizes=basic.sizes, steps=basic.steps)


def _broadcast_value(value: Tensor, shape: tuple[int, ...]) -> Tensor:
    while value.ndim > len(shape) and value.shape[0] == 1:
        value = movement.reshape(value, value.shape[1:])
    return movement.expand(value, shape)


def _as_int(item) -> int:
    try:
        if isinstance(item, bool | numpy.bool_):
            raise TypeError
        return operator.index(item)
    except TypeError:
        expected = "integers, slices, None, ..., integer or bool tensors, lists"
        raise TypeError(message("index", "not an index", expected=expected, got=type(item).__name__)) from None


def _check_index_tensor(aval: Aval) -> None:
    if aval.dtype is not bool_ and (aval.dtype.category != INTEGER):
        raise TypeError(message("index", "an index tensor holds integers or bools", got=str(aval)))


def _index_tensor(item, device) -> Tensor:
    if dispatch.recorder is not None and dispatch.recorder.recording and _is_short_list(item):
        return apply(movement.CONCAT, *[create.full_of(Aval((1,), int64), i, device) for i in item], dim=0)
    made = tensor(item, device=device)
    return (
        cast.cast(made, "int64") if not made.numel() and made.dtype.is_floating else made
    )  # [] has no dtype of its own


def _is_short_list(item) -> bool:
    """Is it written out in the program, like the numbers of a slice: a constant to whoever records, not data."""
    return type(item) in (list, tuple) and 0 < len(item) <= MAX_CONSTANTS and all(type(i) is int for i in item)


def _parse(x: Tensor, index):
    """(_Basic, places): what slices do, and the list of (dimension of its result, index tensor) to gather with then.

    Beside tensors an integer is a place too: a 0-d index that broadcasts with them.
    """
    items = _expand_items(x, index)
    gathered = any(isinstance(item, Tensor) for item in items)
    starts, sizes, steps, shape, places = [], [], [], [], []
    dims = x._aval.shape
    for item in items:
        if item is None:
            shape.append(1)
            continue
        n = dims[len(sizes)]
        start, size, step = 0, n, 1
        if item is _ALL:
            shape.append(n)
        elif isinstance(item, slice):
            start, stop, step = _slice_bounds(item, n)
            size = len(range(start, stop, step))
            start = start if size else 0
            shape.append(size)
        elif isinstance(item, Tensor):
            places.append((len(shape), item))
            shape.append(n)
        elif gathered:
            places.append((len(shape), _checked_int(item, n, len(sizes))))
            shape.append(n)
        else:
            start, size = _checked_int(item, n, len(sizes)), 1
        starts.append(start)
        sizes.append(size)
        steps.append(step)
    return _Basic(tuple(starts), tuple(sizes), tuple(steps), tuple(shape)), places


def _slice_bounds(item: slice, n: int) -> tuple[int, int, int]:
    if item.step == 0:
        raise ValueError(message("index", "the step of a slice is 0"))
    try:
        return item.indices(n)
    except TypeError:
        raise TypeError(message("index", "the bounds of a slice are integers", got=repr(item))) from None


def _checked_int(item: int, n: int, dim: int) -> int:
    if not -n <= item < n:
        raise IndexError(
            message("index", f"out of range in dimension {dim}", expected=f"{-n} <= index < {n}", got=str(item))
        )
    return item + n if item < 0 else item


def _expand_items(x: Tensor, index) -> list:
    """One item per dimension of x, None for new ones: ... filled up, masks replaced by the indices of true elements."""
    items, masks, used, ellipsis = [], [], 0, -1
    for item in index if type(index) is tuple else (index,):
        if item is None:
            items.append(item)
            continue
        if item is Ellipsis:
            if ellipsis >= 0:
                raise IndexError(message("index", "... may appear once"))
            ellipsis = len(items)
            continue
        if isinstance(item, _SEQUENCES):
            item = _index_tensor(item, x.device)
        if isinstance(item, Tensor):
            _check_index_tensor(item._aval)
            if item.dtype is bool_:
                masks.append((used, ellipsis >= 0, item))
                items += nonzero(item, as_tuple=True)
                used += item.ndim
                continue
            item = cast_index(item)
        elif type(item) is not int and not isinstance(item, slice):
            item = _as_int(item)
        items.append(item)
        used += 1
    missing = len(x._aval.shape) - used
    if missing < 0:
        raise IndexError(message("index", "too many indices", expected=f"at most {x.ndim}", got=str(used)))
    for dim, behind, mask in masks:
        _check_mask(x, dim + missing if behind else dim, mask)
    if missing:
        at = ellipsis if ellipsis >= 0 else len(items)
        items[at:at] = [_ALL] * missing
    return items


def cast_index(index: Tensor) -> Tensor:
    """An integer tensor in a dtype that gather takes."""
    return index if index.dtype.itemsize >= 4 else cast.cast(index, "int64")


def _check_mask(x: Tensor, dim: int, mask: Tensor) -> None:
    if not mask.ndim:
        raise TypeError(message("index", "a 0-d mask is not supported", help="use where"))
    if x._aval.shape[dim : dim + mask.ndim] != mask._aval.shape:
        got = f"a mask {mask._aval} at dimension {dim} of {x._aval}"
        raise IndexError(message("index", "the mask has another shape than the dimensions it selects from", got=got))


def _to_one_index(x: Tensor, places):
    """(x with the indexed dimensions as one, that dimension, one index tensor, function that undoes that)."""
    if len(places) == 1:
        dim, index = places[0]
        return x, dim, index, lambda y: y
    dims = [d for d, _ in places]
    adjacent = dims == list(range(dims[0], dims[0] + len(dims)))
    first = dims[0] if adjacent else 0
    others = [d for d in range(x.ndim) if d not in dims]
    perm = tuple(others[:first] + dims + others[first:])
    ordered = movement.transpose_to(x, perm)
    extents = ordered.shape[first : first + len(dims)]
    total = 1
    for n in extents:
        total *= n
    wrapped = [gather.wrap_index(i, n).to(int64) if isinstance(i, Tensor) else i for (_, i), n in zip(places, extents)]
    linear = wrapped[0]
    for index, n in zip(wrapped[1:], extents[1:]):
        linear = linear * n + index
    merged = movement.reshape(ordered, (*ordered.shape[:first], total, *ordered.shape[first + len(dims) :]))
    inverse = tuple(sorted(range(x.ndim), key=perm.__getitem__))
    return merged, first, linear, lambda y: movement.transpose_to(movement.reshape(y, ordered.shape), inverse)
