"""Rules for shapes and dimensions that several families share, with their errors."""

from __future__ import annotations

import operator

from ..errors import message


def broadcast_shapes(op: str, shapes) -> tuple[int, ...]:
    """The shape that all broadcast to (NumPy's rule). Errors: ValueError naming the shapes."""
    shapes = list(shapes)
    first = shapes[0]
    if all(s == first for s in shapes):
        return first
    ndim = max(len(s) for s in shapes)
    result = [1] * ndim
    for shape in shapes:
        for d, extent in enumerate(shape, ndim - len(shape)):
            if extent == result[d] or extent == 1:
                continue
            if result[d] != 1:
                got = " and ".join(str(list(s)) for s in shapes)
                raise ValueError(
                    message(
                        op, "shapes do not broadcast", expected="extents that are equal or 1, from the right", got=got
                    )
                )
            result[d] = extent
    return tuple(result)


def normalize_dim(op: str, dim, ndim: int) -> int:
    """A dimension counted from the left. Errors: TypeError for no integer, IndexError out of range."""
    try:
        if isinstance(dim, bool):
            raise TypeError
        index = operator.index(dim)
    except TypeError:
        raise TypeError(message(op, "a dimension is an integer", got=repr(dim))) from None
    if not -ndim <= index < ndim:
        expected = f"{-ndim} <= dim < {ndim}" if ndim else "no dimension: the tensor is 0-d"
        raise IndexError(message(op, "the dimension is out of range", expected=expected, got=str(index)))
    return index + ndim if index < 0 else index


def normalize_dims(op: str, dims, ndim: int) -> tuple[int, ...]:
    """Sorted dimensions from an integer, a sequence or None (all). Errors: a dimension named twice, out of range."""
    if dims is None:
        return tuple(range(ndim))
    if type(dims) is int and 0 <= dims < ndim:
        return (dims,)
    if not isinstance(dims, tuple | list):
        dims = (dims,)
    result = tuple(sorted(normalize_dim(op, d, ndim) for d in dims))
    if len(set(result)) != len(result):
        raise ValueError(message(op, "a dimension is named twice", got=str(tuple(dims))))
    return result


def as_shape(op: str, shape) -> tuple[int, ...]:
    """A tuple of extents from `(2, 3)`, `((2, 3),)` or `(2,)`-like arguments. Errors: TypeError, negative extents."""
    if len(shape) == 1 and isinstance(shape[0], tuple | list):
        shape = shape[0]
    try:
        shape = tuple([operator.index(n) for n in shape])
    except TypeError:
        raise TypeError(message(op, "a shape is a sequence of integers", got=repr(shape))) from None
    if any(n < 0 for n in shape):
        raise ValueError(message(op, "an extent is negative", got=str(shape)))
    return shape


def reduced_shape(shape: tuple[int, ...], dims: tuple[int, ...], keepdim: bool) -> tuple[int, ...]:
    """What is left of `shape` after a reduction over `dims`."""
    if keepdim:
        return tuple([1 if d in dims else n for d, n in enumerate(shape)])
    return tuple([n for d, n in enumerate(shape) if d not in dims])
