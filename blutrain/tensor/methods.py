"""The methods and operators of Tensor: the functions of ops, attached under PyTorch's names."""

from __future__ import annotations

from . import dispatch, indexing, interop
from .dtype import bfloat16, bool_, float16, float32, float64, int8, int16, int32, int64, uint8
from .inplace import copy_, in_place
from .ops import arithmetic, arrange, cast, compare, contract, gather, movement, reduce, unary
from .ops.arithmetic import add, clamp, div, floor_divide, mul, pow, remainder, sub, where
from .ops.compare import bitwise_and, bitwise_left_shift, bitwise_not, bitwise_or, bitwise_right_shift, bitwise_xor
from .ops.effect import assign
from .tensor import Tensor, aval_of

METHODS = (
    (arithmetic, "add sub mul div floor_divide remainder pow maximum minimum clamp"),
    (
        compare,
        "eq ne lt le gt ge logical_and logical_or logical_xor logical_not bitwise_and bitwise_or bitwise_xor bitwise_not",
    ),
    (compare, "bitwise_left_shift bitwise_right_shift"),
    (
        unary,
        "exp expm1 log log1p log2 sqrt rsqrt reciprocal sin cos tan atan tanh sigmoid erf neg abs square clone contiguous",
    ),
    (unary, "floor ceil round trunc sign isfinite isnan isinf"),
    (reduce, "sum mean prod amax amin max min argmax argmin any all cumsum var std logsumexp norm count_nonzero"),
    (movement, "reshape expand flip narrow"),
    (
        arrange,
        "view transpose t permute movedim squeeze unsqueeze flatten unflatten split chunk unbind repeat repeat_interleave roll",
    ),
    (arrange, "tril triu broadcast_to masked_fill select"),
    (contract, "matmul dot outer"),
    (gather, "gather index_select index_add index_copy scatter_add take"),
)
IN_PLACE = (
    "add sub mul div pow clamp neg abs exp log sqrt floor round sigmoid tanh masked_fill remainder floor_divide".split()
)

for _module, _names in METHODS:
    for _name in _names.split():
        setattr(Tensor, _name, getattr(_module, _name))
for _name in IN_PLACE:
    setattr(Tensor, _name + "_", in_place(_name + "_", getattr(Tensor, _name)))


def _binary(function):
    """An operator: NotImplemented for what is no tensor or number, so that Python tries the other operand."""

    def forward(self, other):
        return function(self, other) if isinstance(other, _OPERANDS) else NotImplemented

    def backward(self, other):
        return function(other, self) if isinstance(other, _OPERANDS) else NotImplemented

    return forward, backward


import numpy  # noqa: E402

_OPERANDS = (Tensor, int, float, numpy.generic)
for _name, _function in {
    "add": add,
    "sub": sub,
    "mul": mul,
    "truediv": div,
    "floordiv": floor_divide,
    "mod": remainder,
    "pow": pow,
    "and": bitwise_and,
    "or": bitwise_or,
    "xor": bitwise_xor,
    "lshift": bitwise_left_shift,
    "rshift": bitwise_right_shift,
    "matmul": contract.matmul,
}.items():
    _forward, _backward = _binary(_function)
    setattr(Tensor, f"__{_name}__", _forward)
    setattr(Tensor, f"__r{_name}__", _backward)
    if _name != "matmul":
        setattr(Tensor, f"__i{_name}__", in_place(f"__i{_name}__", _function))
for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    setattr(Tensor, f"__{_name}__", _binary(getattr(compare, _name))[0])
Tensor.__hash__ = object.__hash__  # setting __eq__ cleared it: tensors are told apart by identity
Tensor.__neg__, Tensor.__pos__, Tensor.__abs__, Tensor.__invert__ = unary.neg, lambda x: x, unary.abs, bitwise_not
Tensor.__getitem__, Tensor.__setitem__ = indexing.getitem, indexing.setitem
Tensor.numpy, Tensor.__array__ = interop.to_numpy, interop.array_protocol
Tensor.__dlpack__, Tensor.__dlpack_device__ = interop.dlpack, interop.dlpack_device
Tensor.__cuda_array_interface__ = property(interop.cuda_array_interface)
Tensor.to, Tensor.cpu, Tensor.cuda, Tensor.copy_ = interop.to, interop.to_cpu, interop.to_cuda, copy_
Tensor.T = property(arrange.t)
Tensor.mT = property(contract.mT)
for _name, _dtype in {
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
}.items():
    setattr(Tensor, _name, lambda x, _dtype=_dtype: cast.cast(x, _dtype))


def _method(function):
    setattr(Tensor, function.__name__, function)
    return function


@_method
def type_as(x, other):
    """x in the dtype and on the device of `other`."""
    return interop.to(x, other)


@_method
def detach(x):
    """The same memory without history: no gradient flows back through it."""
    return x._alias()


@_method
def detach_(x):
    """Forget the history of x; returns x."""
    x.grad_fn, x.requires_grad, x._index = None, False, 0
    return x


@_method
def expand_as(x, other):
    """x expanded to the shape of `other`."""
    return movement.expand(x, other._aval.shape)


@_method
def view_as(x, other):
    """x in the shape of `other`, sharing memory."""
    return arrange.view(x, other._aval.shape)


@_method
def reshape_as(x, other):
    """x in the shape of `other`."""
    return movement.reshape(x, other._aval.shape)


@_method
def fill_(x, value):
    """Every element `value`, in place; returns x."""
    if not isinstance(value, Tensor):
        aval_of(value)
    x[...] = value
    return x


@_method
def zero_(x):
    """Every element 0, in place; returns x."""
    return fill_(x, 0)


@_method
def masked_select(x, mask):
    """The elements where the bool mask holds, as a vector."""
    from .creation import masked_select as function

    return function(x, mask)


@_method
def nonzero(x, as_tuple: bool = False):
    """Indices of nonzero elements: int64 [count, ndim], or a tuple of vectors."""
    from .creation import nonzero as function

    return function(x, as_tuple=as_tuple)


@_method
def lerp(x, end, weight):
    """x + weight * (end - x)."""
    return add(x, mul(sub(end, x), weight))


@_method
def addcmul_(x, first, second, value=1):
    """x += value * first * second."""
    return x.add_(mul(mul(first, second), value))


@_method
def __deepcopy__(x, memo):
    """A leaf with its own memory (and a copy of .grad). Errors: RuntimeError for a tensor with history."""
    if x.grad_fn is not None:
        from ..errors import message

        raise RuntimeError(
            message("deepcopy", "only leaves can be copied", got=str(x._aval), help="use .detach().clone()")
        )
    twin = type(x)._wrap(x.detach().clone()._buffer(), x.device, x._aval)
    twin.requires_grad = x.requires_grad
    memo[id(x)] = twin
    if x._grad is not None:
        twin._grad = x._grad.detach().clone()
    return twin


def _where_method(condition_or_x, *args):
    """cond.where is not PyTorch's: x.where(condition, other) gives x where condition holds, else other."""
    condition, other = args
    return where(condition, condition_or_x, other)


Tensor.where = _where_method
assert clamp and assign and dispatch
