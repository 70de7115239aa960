"""What all elementwise records share: broadcasting, promotion, how narrow floats are computed, and derivatives under
broadcasting.
"""

from __future__ import annotations

import functools

import numpy

from ...errors import message
from ..aval import Aval, scalar_aval
from ..dtype import (
    BOOL,
    FLOATING,
    INTEGER,
    bool_,
    compute_dtype,
    float_dtype,
    from_numpy_dtype,
    on_default_change,
    promote,
)
from ..primitive import Primitive, Saves, define
from ..shapes import broadcast_shapes

ANY = (BOOL, INTEGER, FLOATING)
NUMBER = (INTEGER, FLOATING)
FLOAT = (FLOATING,)
BITS = (BOOL, INTEGER)
NOTHING = Saves()
_FUSED = frozenset(("add", "sub", "mul"))
_SCALARS = {BOOL: bool, INTEGER: int, FLOATING: float}
_CATEGORY = {BOOL: "bool", INTEGER: "integers", FLOATING: "floats"}


def elementwise(name: str, compute, *, vjp, nova, doc: str, result="promoted", accepts=ANY, saves=NOTHING) -> Primitive:
    """Define an elementwise primitive.

    compute: the operation on arrays (or Python scalars) that are already in the computing dtype: the name of a function
    of NumPy and CuPy,
        or a function (xp, *arrays).
    result: dtype of the result: "promoted", "floating" (promoted, integers go to the default float), "bool".
    accepts: categories of the promoted dtype that the operation has a meaning for.
    """

    def function_of(xp):
        return getattr(xp, compute) if isinstance(compute, str) else functools.partial(compute, xp)

    def eager(xp, *arrays):
        if xp is not numpy and name in _FUSED and (values := fused()(compute, *arrays)) is not None:
            return values
        kinds = tuple([x.dtype if hasattr(x, "dtype") else x.__class__ for x in arrays])
        return _run(_casts(name, result, kinds), function_of(xp), arrays)

    def prepare(*avals: Aval):
        kinds = tuple([_SCALARS[a.dtype.category] if a.weak else a.dtype.numpy for a in avals])
        casts = _casts(name, result, kinds)
        function = function_of(numpy)
        return function if casts == (None, None) else lambda *arrays: _run(casts, function, arrays)

    infer = functools.partial(_infer, name, result, accepts)
    return define(
        name, "elementwise", infer=infer, eager=eager, prepare=prepare, vjp=vjp, nova=nova, doc=doc, saves=saves
    )


@functools.cache
def fused():
    """What runs those of _FUSED on CuPy's arrays, where it can."""
    from ..cuda.pointwise import binary

    return binary


def _run(casts, function, arrays):
    """Apply `function` in the computing dtype and round once."""
    before, after = casts
    if before is not None:
        arrays = [x if cast is None else cast(x) for x, cast in zip(arrays, before)]
    values = function(*arrays)
    return values if after is None else values.astype(after)


def _infer(name: str, result: str, accepts, *avals: Aval) -> Aval:
    shape = broadcast_shapes(name, [a.shape for a in avals])
    dtype = promote(avals)
    if dtype.category not in accepts:
        expected = " or ".join(_CATEGORY[c] for c in accepts)
        raise TypeError(
            message(name, f"not defined for {dtype.name}", expected=expected, got=", ".join(map(str, avals)))
        )
    if result == "bool":
        return Aval(shape, bool_)
    return Aval(shape, float_dtype(dtype) if result == "floating" else dtype)


@functools.cache
def _casts(name: str, result: str, kinds: tuple):
    """How each operand gets to the computing dtype (None: it is there), and the dtype to round the result to (None: it
    has it).
    """
    avals = [_aval_of_kind(k) for k in kinds]
    dtype = promote(avals)
    if result == "floating":
        dtype = float_dtype(dtype)
    computing = compute_dtype(dtype)
    casts = [caster(name, a.weak, k, dtype, computing) for a, k in zip(avals, kinds)]
    if all(c is None for c in casts):
        casts = None
    final = None if result == "bool" or computing is dtype else dtype.numpy
    return casts, final


on_default_change.append(_casts.cache_clear)


def _aval_of_kind(kind) -> Aval:
    if isinstance(kind, numpy.dtype):
        return Aval((), from_numpy_dtype(kind))
    aval = scalar_aval(kind())
    assert aval is not None, kind
    return aval


def caster(name: str, weak: bool, kind, dtype, computing):
    """A function that takes an operand (array of np.dtype `kind`, or a Python scalar) to `computing`, rounding scalars
    to `dtype`; None: nothing to do.
    """
    target = computing.numpy
    if not weak:
        return None if kind == target else lambda x: x.astype(target)
    if dtype.is_narrow:
        return lambda x: target.type(dtype.numpy.type(x))
    if dtype.category == INTEGER:
        info = numpy.iinfo(target)
        return lambda x: _checked_int(name, x, dtype, info)
    plain = float if dtype.category == FLOATING else bool
    return None if kind is plain else plain


def _checked_int(name: str, x, dtype, info) -> int:
    if not info.min <= x <= info.max:
        raise ValueError(
            message(
                name, f"the number does not fit {dtype.name}", expected=f"{info.min} to {info.max}", got=str(int(x))
            )
        )
    return int(x)


def reduce_to(grad, aval: Aval):
    """The gradient of a broadcast operand: summed over the dimensions it was repeated along, in its dtype."""
    grad = sum_to_shape(grad, aval.shape)
    return grad if grad._aval.dtype is aval.dtype else grad.to(aval.dtype)


def sum_to_shape(x, shape: tuple[int, ...]):
    """Sum over what broadcasting added to `shape`."""
    if x._aval.shape == shape:
        return x
    new = len(x._aval.shape) - len(shape)
    repeated = tuple(d for d, n in enumerate(x._aval.shape) if d < new or (shape[d - new] == 1 and n != 1))
    return x.sum(repeated).reshape(shape)


def grads(ctx, *thunks):
    """The gradients of an elementwise vjp: each thunk gives one operand's, computed only where needed."""
    return tuple(
        [reduce_to(thunk(), aval) if need else None for thunk, aval, need in zip(thunks, ctx.avals, ctx.needs)]
    )
