"""What users call to rearrange tensors, made of the movement primitives."""

from __future__ import annotations

import operator

from ...errors import message
from ..dtype import DType, int64, promote
from ..shapes import broadcast_shapes, normalize_dim, normalize_dims
from ..tensor import Tensor
from . import arithmetic, cast, compare, create, movement
from .unary import clone


def view(x, *shape):
    """x in another shape sharing its memory; or, given a dtype of the same size, its bits as that (without gradient).

    Errors: ValueError where strides, or sizes, do not allow it.
    """
    if len(shape) == 1 and isinstance(shape[0], DType):
        return _bits(x, shape[0])
    result = movement.reshape(x, *shape)
    if result._base is None and result._pending is None and x.numel() and result is not x:
        raise ValueError(
            message(
                "view",
                "the memory cannot be seen in that shape",
                got=f"{x._aval} with strides {x.stride()}",
                help="use reshape",
            )
        )
    return result


def _bits(x, dtype: DType):
    if dtype.itemsize != x.dtype.itemsize:
        expected, got = f"{x.dtype.itemsize} bytes an element", f"{dtype} of {dtype.itemsize}"
        raise ValueError(message("view", "the dtype has another size", expected=expected, got=got))
    result = Tensor._wrap(x._read().view(dtype.numpy), x.device)
    result._version, result._foreign = x._versions(), x._foreign
    return result


def transpose(x, dim0: int, dim1: int):
    """Two dimensions exchanged; shares memory."""
    a, b = normalize_dim("transpose", dim0, x.ndim), normalize_dim("transpose", dim1, x.ndim)
    perm = list(range(x.ndim))
    perm[a], perm[b] = b, a
    return movement.transpose_to(x, tuple(perm))


def t(x):
    """A matrix transposed; a vector as it is."""
    if x.ndim > 2:
        raise ValueError(
            message("t", "at most two dimensions", got=str(x._aval), help="use transpose(dim0, dim1) or .mT")
        )
    return x if x.ndim < 2 else transpose(x, 0, 1)


def permute(x, *dims):
    """Dimensions in the order `dims`; shares memory."""
    if len(dims) == 1 and isinstance(dims[0], tuple | list):
        dims = dims[0]
    perm = tuple([normalize_dim("permute", d, x.ndim) for d in dims])
    if sorted(perm) != list(range(x.ndim)):
        raise ValueError(
            message("permute", "each dimension once", expected=f"an order of {x.ndim} dimensions", got=str(tuple(dims)))
        )
    return movement.transpose_to(x, perm)


def movedim(x, source, destination):
    """Dimensions moved to other places (an integer each, or as many in sequences); the others keep their order."""
    sources, places = [
        [normalize_dim("movedim", d, x.ndim) for d in (dims if isinstance(dims, tuple | list) else (dims,))]
        for dims in (source, destination)
    ]
    if len(sources) != len(places) or len(set(sources)) != len(sources) or len(set(places)) != len(places):
        got = f"{source} to {destination}"
        raise ValueError(message("movedim", "each dimension and each place once, as many of both", got=got))
    perm = [d for d in range(x.ndim) if d not in sources]
    for place, d in sorted(zip(places, sources)):
        perm.insert(place, d)
    return movement.transpose_to(x, tuple(perm))


def squeeze(x, dim=None):
    """Without the dimensions of extent 1 (those named, or all)."""
    dims = normalize_dims("squeeze", dim, x.ndim)
    return movement.reshape(x, tuple([n for d, n in enumerate(x.shape) if n != 1 or d not in dims]))


def unsqueeze(x, dim: int):
    """With a new dimension of extent 1 at `dim`."""
    dim = normalize_dim("unsqueeze", dim, x.ndim + 1)
    return movement.reshape(x, (*x.shape[:dim], 1, *x.shape[dim:]))


def flatten(x, start_dim: int = 0, end_dim: int = -1):
    """Dimensions start_dim to end_dim as one."""
    if not x.ndim:
        return movement.reshape(x, (1,))
    first, last = normalize_dim("flatten", start_dim, x.ndim), normalize_dim("flatten", end_dim, x.ndim)
    if first > last:
        raise ValueError(message("flatten", "start_dim comes after end_dim", got=f"{start_dim}, {end_dim}"))
    n = 1
    for extent in x.shape[first : last + 1]:
        n *= extent
    return movement.reshape(x, (*x.shape[:first], n, *x.shape[last + 1 :]))


def ravel(x):
    """All elements as a vector."""
    return movement.reshape(x, (-1,))


def unflatten(x, dim: int, sizes):
    """One dimension as several; one of `sizes` may be -1."""
    dim = normalize_dim("unflatten", dim, x.ndim)
    known, n = 1, x.shape[dim]
    for s in sizes:
        known *= 1 if s == -1 else s
    sizes = [n // known if s == -1 and known else s for s in sizes]
    return movement.reshape(x, (*x.shape[:dim], *sizes, *x.shape[dim + 1 :]))


def cat(tensors, dim: int = 0):
    """Tensors one behind the other along `dim`, in their common dtype."""
    tensors = list(tensors)
    if not tensors:
        raise ValueError(message("cat", "no tensors are given"))
    dtype = promote([x._aval for x in tensors])
    dim = normalize_dim("cat", dim, tensors[0].ndim)
    return movement.apply(movement.CONCAT, *[cast.cast(x, dtype) for x in tensors], dim=dim)


def stack(tensors, dim: int = 0):
    """Tensors of one shape side by side along a new dimension."""
    tensors = list(tensors)
    if not tensors or any(x.shape != tensors[0].shape for x in tensors):
        raise ValueError(
            message("stack", "tensors of one shape are needed", got=", ".join(str(x._aval) for x in tensors))
        )
    return cat([unsqueeze(x, dim) for x in tensors], normalize_dim("stack", dim, tensors[0].ndim + 1))


def hstack(tensors):
    """Side by side: along dimension 1, of vectors and numbers 0."""
    tensors = [movement.reshape(x, (1,)) if not x.ndim else x for x in tensors]
    return cat(tensors, 0 if tensors and tensors[0].ndim == 1 else 1)


def vstack(tensors):
    """One below the other along dimension 0; vectors and numbers are rows."""
    return cat([movement.reshape(x, (1, -1)) if x.ndim < 2 else x for x in tensors])


def meshgrid(*tensors, indexing: str = "ij") -> tuple[Tensor, ...]:
    """The coordinates of all points of a grid, from those along its axes (vectors); "xy" exchanges the first two
    dimensions.
    """
    if indexing not in ("ij", "xy"):
        raise ValueError(message("meshgrid", "unknown indexing", expected="'ij' or 'xy'", got=repr(indexing)))
    tensors = tuple(tensors[0]) if len(tensors) == 1 and isinstance(tensors[0], tuple | list) else tensors
    shape, n = [x.numel() for x in tensors], len(tensors)
    grids = [
        movement.expand(movement.reshape(x, (1,) * d + (-1,) + (1,) * (n - d - 1)), shape)
        for d, x in enumerate(tensors)
    ]
    return tuple([transpose(grid, 0, 1) for grid in grids] if indexing == "xy" and n > 1 else grids)


def split(x, split_size, dim: int = 0) -> tuple[Tensor, ...]:
    """Views of `split_size` entries each along `dim` (the last may be shorter), or of the sizes in a list."""
    dim = normalize_dim("split", dim, x.ndim)
    n = x.shape[dim]
    if isinstance(split_size, tuple | list):
        sizes = [operator.index(s) for s in split_size]
        if sum(sizes) != n or min(sizes, default=0) < 0:
            raise ValueError(message("split", "the sizes do not add up to the extent", expected=str(n), got=str(sizes)))
    else:
        step = operator.index(split_size)
        if step <= 0:
            raise ValueError(message("split", "the size is not positive", got=str(step)))
        sizes = [min(step, n - i) for i in range(0, n, step)] or [0]
    parts, start = [], 0
    for size in sizes:
        parts.append(movement.narrow(x, dim, start, size))
        start += size
    return tuple(parts)


def chunk(x, chunks: int, dim: int = 0) -> tuple[Tensor, ...]:
    """At most `chunks` views of equal size along `dim` (the last may be shorter)."""
    if chunks <= 0:
        raise ValueError(message("chunk", "the number of chunks is not positive", got=str(chunks)))
    n = x.shape[normalize_dim("chunk", dim, x.ndim)]
    return split(x, max(-(-n // chunks), 1), dim)


def unbind(x, dim: int = 0) -> tuple[Tensor, ...]:
    """The slices along `dim`, without it."""
    dim = normalize_dim("unbind", dim, x.ndim)
    return tuple([squeeze(movement.narrow(x, dim, i, 1), dim) for i in range(x.shape[dim])])


def pad(x, pad, mode: str = "constant", value=0):
    """Padded by a constant; `pad` lists (before, after) from the last dimension backwards, as torch.nn.functional.pad;
    negative cuts.
    """
    if mode != "constant":
        raise ValueError(message("pad", "unknown mode", expected='"constant"', got=repr(mode)))
    if len(pad) % 2 or len(pad) > 2 * x.ndim:
        raise ValueError(message("pad", "two amounts per dimension", got=str(tuple(pad))))
    amounts = {x.ndim - 1 - i: (pad[2 * i], pad[2 * i + 1]) for i in range(len(pad) // 2)}
    return movement.pad_dims(x, amounts, value)


def repeat(x, *repeats):
    """x repeated so many times along each dimension, new ones in front; as torch.Tensor.repeat."""
    if len(repeats) == 1 and isinstance(repeats[0], tuple | list):
        repeats = tuple(repeats[0])
    new = len(repeats) - x.ndim
    if new < 0:
        raise ValueError(message("repeat", "a number for each dimension", got=f"{repeats} of {x._aval}"))
    shape = (1,) * new + x.shape
    apart = movement.reshape(x, tuple(k for n in shape for k in (1, n)))
    wide = movement.expand(apart, tuple(k for r, n in zip(repeats, shape) for k in (r, n)))
    return movement.reshape(wide, tuple(r * n for r, n in zip(repeats, shape)))


def tile(x, *repeats):
    """As `repeat`, where fewer numbers than dimensions count for the last ones."""
    repeats = tuple(repeats[0]) if len(repeats) == 1 and isinstance(repeats[0], tuple | list) else repeats
    return repeat(x, (1,) * (x.ndim - len(repeats)) + tuple(repeats))


def repeat_interleave(x, repeats: int, dim: int | None = None):
    """Each entry of `dim` (None: of x flattened) `repeats` times in a row."""
    if dim is None:
        x, dim = flatten(x), 0
    if isinstance(repeats, Tensor) and repeats.ndim:
        rule = "one number of repeats for all entries"
        raise TypeError(message("repeat_interleave", rule, got=str(repeats._aval)))
    dim, repeats = normalize_dim("repeat_interleave", dim, x.ndim), operator.index(repeats)
    wide = unsqueeze(x, dim + 1)
    shape = list(wide.shape)
    shape[dim + 1] = repeats
    return flatten(movement.expand(wide, shape), dim, dim + 1)


def roll(x, shifts, dim=None):
    """Entries of `dim` (None: of x flattened, in its shape) moved on by `shifts`, around the end; or of several."""
    if dim is None:
        return movement.reshape(roll(flatten(x), shifts, 0), x.shape)
    if isinstance(dim, tuple | list):
        for shift, d in zip(shifts, dim, strict=True):
            x = roll(x, shift, d)
        return x
    dim = normalize_dim("roll", dim, x.ndim)
    n = x.shape[dim]
    if not n or not shifts % n:
        return clone(x)
    cut = n - shifts % n
    return cat([movement.narrow(x, dim, cut, n - cut), movement.narrow(x, dim, 0, cut)], dim)


def _triangle(x, diagonal: int, keep):
    if x.ndim < 2:
        raise ValueError(message("tril", "matrices are needed", got=str(x._aval)))
    row = movement.reshape(create.iota(x.shape[-2], x.device, int64), (-1, 1))
    column = create.iota(x.shape[-1], x.device, int64)
    return arithmetic.where(keep(column, row + diagonal), x, False)


def tril(x, diagonal: int = 0):
    """The lower triangle of matrices, zeros elsewhere."""
    return _triangle(x, diagonal, compare.le)


def triu(x, diagonal: int = 0):
    """The upper triangle of matrices, zeros elsewhere."""
    return _triangle(x, diagonal, compare.ge)


def broadcast_to(x, shape):
    """x expanded to `shape`."""
    return movement.expand(x, shape)


def broadcast_tensors(*tensors) -> tuple[Tensor, ...]:
    """All expanded to their common shape."""
    shape = broadcast_shapes("broadcast_tensors", [x.shape for x in tensors])
    return tuple([movement.expand(x, shape) for x in tensors])


def masked_fill(x, mask, value):
    """x with `value` where the bool tensor `mask` holds, in the dtype of x."""
    return cast.cast(arithmetic.where(mask, value, x), x.dtype)


def select(x, dim: int, index: int):
    """Entry `index` of `dim`, without that dimension; shares memory."""
    dim = normalize_dim("select", dim, x.ndim)
    n = x.shape[dim]
    if not -n <= index < n:
        raise IndexError(
            message("select", "the index is out of range", expected=f"{-n} <= index < {n}", got=str(index))
        )
    return squeeze(movement.narrow(x, dim, index % n, 1), dim)
