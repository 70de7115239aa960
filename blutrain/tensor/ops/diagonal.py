"""Diagonals of matrices. They are copies, where PyTorch's `diagonal` is a view."""

from __future__ import annotations

from ...errors import message
from ..dtype import int64
from ..shapes import normalize_dim
from . import arrange, create, gather, movement, reduce


def diagonal(x, offset: int = 0, dim1: int = 0, dim2: int = 1):
    """The elements of dimensions dim1 and dim2 whose indices differ by `offset` (dim2's being larger), as the last
    dimension.
    """
    first, second = normalize_dim("diagonal", dim1, x.ndim), normalize_dim("diagonal", dim2, x.ndim)
    if first == second:
        raise ValueError(message("diagonal", "dim1 and dim2 are one dimension", got=f"{dim1}, {dim2}"))
    rows, columns = x.shape[first], x.shape[second]
    start = offset if offset >= 0 else -offset * columns
    length = max(min(rows + min(offset, 0), columns - max(offset, 0)), 0)
    places = create.iota(length, x.device, int64, start=start if length else 0, step=columns + 1)
    return gather.take(arrange.flatten(arrange.movedim(x, (first, second), (-2, -1)), -2), places, -1)


_of_matrices = diagonal


def diag(x, diagonal: int = 0):
    """The diagonal of a matrix; of a vector the matrix that has it there, and zeros elsewhere."""
    if x.ndim == 2:
        return _of_matrices(x, diagonal)
    if x.ndim != 1:
        raise ValueError(message("diag", "a vector or a matrix is needed", got=str(x._aval)))
    n = x.shape[0]
    row = create.iota(n, x.device, int64).reshape(-1, 1)
    square = movement.reshape(x, (1, n)) * (row == create.iota(n, x.device, int64)).to(x.dtype)
    above, left = max(-diagonal, 0), max(diagonal, 0)
    return arrange.pad(square, (left, above, above, left))


def trace(x):
    """The sum of the diagonal of a matrix."""
    return reduce.sum(_of_matrices(x))
