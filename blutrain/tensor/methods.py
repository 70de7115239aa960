"""The methods and operators of Tensor: the functions of ops, attached under PyTorch's names."""

from __future__ import annotations

import functools

import numpy

from ..errors import message
from . import creation, indexing, interop, new_tensors
from .dispatch import apply
from .dtype import bfloat16, bool_, float16, float32, float64, int8, int16, int32, int64, uint8
from .inplace import copy_, in_place
from .ops import (
    arithmetic,
    arrange,
    cast,
    closeness,
    compare,
    composite,
    contract,
    diagonal,
    distinct,
    extremum,
    formulas,
    gather,
    movement,
    reduce,
    sampling,
    scatter,
    sort,
    statistics,
    unary,
)
from .tensor import Tensor, aval_of, foreign, known_grad

METHODS = (
    (arithmetic, "add sub mul div floor_divide remainder pow maximum minimum clamp"),
    (compare, "eq ne lt le gt ge logical_and logical_or logical_xor logical_not"),
    (compare, "bitwise_and bitwise_or bitwise_xor bitwise_not bitwise_left_shift bitwise_right_shift"),
    (unary, "exp expm1 log log1p log2 sqrt rsqrt reciprocal sin cos tan atan tanh sigmoid erf neg abs square"),
    (unary, "floor ceil round trunc sign isfinite isnan isinf clone contiguous"),
    (formulas, "addcmul addcdiv lerp logaddexp nan_to_num"),
    (reduce, "sum mean prod any all cumsum"),
    (extremum, "amax amin max min argmax argmin"),
    (statistics, "var std logsumexp norm count_nonzero"),
    (movement, "reshape expand flip narrow"),
    (arrange, "view transpose t permute movedim squeeze unsqueeze flatten unflatten split chunk unbind select ravel"),
    (arrange, "repeat tile repeat_interleave roll tril triu broadcast_to masked_fill"),
    (contract, "matmul mm bmm dot outer"),
    (composite, "softmax log_softmax relu"),
    (closeness, "isclose allclose equal"),
    (sort, "argsort sort topk kthvalue median"),
    (diagonal, "diagonal diag trace"),
    (scatter, "scatter index_fill take_along_dim"),
    (distinct, "unique bincount"),
    (sampling, "multinomial uniform_ normal_ exponential_ bernoulli_"),
    (gather, "gather index_select index_add index_copy scatter_add take"),
    (creation, "masked_select nonzero"),
    (new_tensors, "new_zeros new_ones new_full new_empty new_tensor pin_memory"),
)
IN_PLACE = (
    "add sub mul div pow clamp neg abs exp log sqrt floor round sigmoid tanh masked_fill remainder floor_divide "
    "reciprocal rsqrt relu tril triu lerp addcmul addcdiv nan_to_num scatter scatter_add index_add index_copy index_fill"
)
OPERATORS = {
    "add": (arithmetic.ADD, arithmetic.add),
    "sub": (arithmetic.SUB, arithmetic.sub),
    "mul": (arithmetic.MUL, arithmetic.mul),
    "truediv": (arithmetic.DIV, arithmetic.div),
    "floordiv": (arithmetic.FLOOR_DIVIDE, arithmetic.floor_divide),
    "mod": (arithmetic.REMAINDER, arithmetic.remainder),
    "and": (compare.BITWISE_AND, compare.bitwise_and),
    "or": (compare.BITWISE_OR, compare.bitwise_or),
    "xor": (compare.BITWISE_XOR, compare.bitwise_xor),
    "lshift": (compare.SHIFT_LEFT, compare.bitwise_left_shift),
    "rshift": (compare.SHIFT_RIGHT, compare.bitwise_right_shift),
    "pow": (None, arithmetic.pow),
    "matmul": (None, contract.matmul),
}
CASTS = {
    "float": float32,
    "double": float64,
    "half": float16,
    "bfloat16": bfloat16,
    "long": int64,
    "int": int32,
    "short": int16,
    "char": int8,
    "byte": uint8,
    "bool": bool_,
}
_OPERANDS = (Tensor, int, float, numpy.generic)


def _operator(op: str, prim, function):
    """(x op y, y op x): NotImplemented for what is no tensor or number, so that Python tries the other operand.

    Errors: TypeError for arrays of other libraries: == would be False else, without a word.
    """
    function = function if prim is None else functools.partial(apply, prim)

    operands = _OPERANDS if function is not contract.matmul else Tensor

    def forward(self, other):
        if not isinstance(other, operands):
            return _refused(op, self, other)
        return function(self, other)

    def backward(self, other):
        if not isinstance(other, operands):
            return _refused(op, self, other)
        return function(other, self)

    return forward, backward


def _refused(op: str, x: Tensor, other):
    if hasattr(other, "__dlpack__"):
        kind, help = foreign(other)
        got = f"{x._aval} and {kind}"
        raise TypeError(message(op, "an operand is no tensor", expected="a Tensor or a number", got=got, help=help))
    return NotImplemented


def _cast_method(dtype):
    def method(self):
        return cast.cast(self, dtype)

    method.__doc__ = f"The tensor as {dtype.name}; itself if it is."
    return method


def type_as(x, other):
    """x in the dtype and on the device of `other`."""
    return interop.to(x, other)


def detach(x):
    """The same memory without history: no gradient flows back through it."""
    return x._alias()


def detach_(x):
    """Forget the history of x; returns x."""
    x.grad_fn, x._requires_grad, x._index = None, False, 0
    return x


def expand_as(x, other):
    """x expanded to the shape of `other`."""
    return movement.expand(x, other._aval.shape)


def view_as(x, other):
    """x in the shape of `other`, sharing memory."""
    return arrange.view(x, other._aval.shape)


def reshape_as(x, other):
    """x in the shape of `other`."""
    return movement.reshape(x, other._aval.shape)


def where(x, condition, other):
    """x where `condition` holds, else `other`."""
    return arithmetic.where(condition, x, other)


def fill_(x, value):
    """Every element `value`, in place; returns x."""
    if not isinstance(value, Tensor):
        aval_of(value)
    x[...] = value
    return x


def zero_(x):
    """Every element 0, in place; returns x."""
    return fill_(x, 0)


def deep_copy(x, memo):
    """A leaf with its own memory, and a copy of .grad. Errors: RuntimeError for a tensor with history."""
    if x.grad_fn is not None:
        raise RuntimeError(
            message("deepcopy", "only leaves can be copied", got=str(x._aval), help="use .detach().clone()")
        )
    twin = type(x)._wrap(unary.clone(x.detach())._buffer(), x.device, x._aval)
    twin._requires_grad = x._requires_grad
    memo[id(x)] = twin
    grad = known_grad(x)
    if grad is not None:
        twin._grad = unary.clone(grad.detach())
    return twin


WRITTEN_HERE = (type_as, detach, detach_, expand_as, view_as, reshape_as, where, fill_, zero_, copy_)


def reduced(x):
    """How pickle stores a tensor: class, values, dtype, device, requires_grad.

    Errors: RuntimeError for a tensor with history.
    """
    if x.grad_fn is not None:
        raise RuntimeError(message("pickle", "only leaves can be stored", got=str(x._aval), help="use .detach()"))
    array = x.detach().cpu().numpy()
    bits = array.view(numpy.uint16) if x.dtype is bfloat16 else array  # readable without ml_dtypes
    return restored, (type(x), bits, x.dtype, x.device, x.requires_grad)


def restored(kind, bits, dtype, device, requires_grad: bool):
    """The tensor that `reduced` described."""
    array = creation.to_device(numpy.array(bits).view(dtype.numpy), device)
    x = kind._wrap(array, device)
    x._requires_grad = requires_grad
    return x


SPECIAL = {
    **{function.__name__: function for function in WRITTEN_HERE},
    "__hash__": object.__hash__,  # __eq__ clears it: tensors are told apart by identity
    "__deepcopy__": deep_copy,
    "__reduce__": reduced,
    "__neg__": unary.neg,
    "__pos__": lambda x: x,
    "__abs__": unary.abs,
    "__invert__": compare.bitwise_not,
    "__getitem__": indexing.getitem,
    "__setitem__": indexing.setitem,
    "__array__": interop.array_protocol,
    "__dlpack__": interop.dlpack,
    "__dlpack_device__": interop.dlpack_device,
    "__cuda_array_interface__": property(interop.cuda_array_interface),
    "numpy": interop.to_numpy,
    "to": interop.to,
    "cpu": interop.to_cpu,
    "cuda": interop.to_cuda,
    "T": property(arrange.t),
    "mT": property(contract.mT),
}


def _attach() -> None:
    for module, names in METHODS:
        for name in names.split():
            setattr(Tensor, name, getattr(module, name))
    for name in IN_PLACE.split():
        setattr(Tensor, name + "_", in_place(name + "_", getattr(Tensor, name)))
    for name, (prim, function) in OPERATORS.items():
        forward, backward = _operator(name, prim, function)
        setattr(Tensor, f"__{name}__", forward)
        setattr(Tensor, f"__r{name}__", backward)
        if name != "matmul":
            setattr(Tensor, f"__i{name}__", in_place(f"__i{name}__", function))
    for name in ("eq", "ne", "lt", "le", "gt", "ge"):
        setattr(Tensor, f"__{name}__", _operator(name, getattr(compare, name.upper()), None)[0])
    for name, dtype in CASTS.items():
        setattr(Tensor, name, _cast_method(dtype))
    for name, value in SPECIAL.items():
        setattr(Tensor, name, value)


_attach()
