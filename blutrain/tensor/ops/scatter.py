"""Writing element by element: scatter and index_fill, made of index_copy. Of repeated places the last one's value is kept."""

from __future__ import annotations

import math

from ...errors import message
from ..aval import Aval
from ..dtype import int64
from ..shapes import broadcast_shapes, normalize_dim
from ..tensor import Tensor
from . import cast, create, gather, movement


def scatter(x, dim: int, index, src):
    """x with out[i, index[i, j, k], k] = src[i, j, k] for dim 1; src: a tensor, nowhere smaller than the index, or a number.

    >>> bt.zeros(2, 3).scatter(1, bt.tensor([[2], [0]]), 1.0)
    tensor([[0., 0., 1.],
            [1., 0., 0.]])
    """
    dim = normalize_dim("scatter", dim, x.ndim)
    gather._check_pointwise("scatter", x._aval, index._aval, dim)
    if not isinstance(src, Tensor):
        src = create.full_of(Aval(index.shape, x.dtype), src, x.device)
    if src.ndim != x.ndim or src.dtype is not x.dtype or any(s < i for s, i in zip(src.shape, index.shape)):
        expected = f"{Aval(index.shape, x.dtype)} or larger"
        raise ValueError(message("scatter", "the source does not fit", expected=expected, got=str(src._aval)))
    for d, extent in enumerate(index.shape):
        src = movement.narrow(src, d, 0, extent)
    places = _places(x, dim, index)
    flat = gather.index_copy(movement.reshape(x, (-1,)), 0, *[movement.reshape(y, (-1,)) for y in (places, src)])
    return movement.reshape(flat, x.shape)


def _places(x, dim: int, index):
    """The number, in row-major order, of the element of x that each element of the index stands for."""
    places = cast.cast(gather.wrap_index(index, x.shape[dim]), int64) * math.prod(x.shape[dim + 1 :])
    for d, extent in enumerate(index.shape):
        if d != dim and extent > 1:
            along = create.iota(extent, x.device, int64, step=math.prod(x.shape[d + 1 :]))
            places = places + movement.reshape(along, (-1,) + (1,) * (x.ndim - d - 1))
    return places


def index_fill(x, dim: int, index, value):
    """x with `value` at the entries `index` (a vector) of dimension `dim`."""
    dim = normalize_dim("index_fill", dim, x.ndim)
    shape = (*x.shape[:dim], index.numel(), *x.shape[dim + 1 :])
    return gather.index_copy(x, dim, index, create.full_of(Aval(shape, x.dtype), value, x.device))


def take_along_dim(x, indices, dim: int | None = None):
    """As gather, where x and indices broadcast in the other dimensions; dim None: of x flattened."""
    if dim is None:
        return gather.gather(movement.reshape(x, (-1,)), 0, movement.reshape(indices, (-1,)))
    dim = normalize_dim("take_along_dim", dim, x.ndim)
    if indices.ndim != x.ndim:
        raise ValueError(message("take_along_dim", "as many dimensions as x", got=f"{indices._aval} into {x._aval}"))
    others = [y.shape[:dim] + (1,) + y.shape[dim + 1 :] for y in (x, indices)]
    shape = broadcast_shapes("take_along_dim", others)
    x, indices = [movement.expand(y, (*shape[:dim], y.shape[dim], *shape[dim + 1 :])) for y in (x, indices)]
    return gather.gather(x, dim, indices)
