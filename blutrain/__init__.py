"""blutrain: an eager-tensor training framework with a JIT compiler, `blutrain.nova`, inside it. PyTorch's names
wherever PyTorch has one.

Importing it loads neither MLIR nor CuPy: `nova` and `distributed` are imported when they are first used.
"""

# ruff: noqa: F401  (what is imported here are the public names)

from __future__ import annotations

import importlib
import math

from . import autograd, config
from .autograd import enable_grad, is_grad_enabled, no_grad, set_grad_enabled
from .tensor import Device as device
from .tensor import DType, Tensor
from .tensor.creation import (
    arange,
    as_tensor,
    empty,
    empty_like,
    eye,
    from_numpy,
    full,
    full_like,
    is_tensor,
    linspace,
    masked_select,
    nonzero,
    ones,
    ones_like,
    tensor,
    zeros,
    zeros_like,
)
from .tensor.device import get_default_device, set_default_device
from .tensor.dtype import (
    bfloat16,
    finfo,
    float16,
    float32,
    float64,
    get_default_dtype,
    iinfo,
    int8,
    int16,
    int32,
    int64,
    promote_types,
    set_default_dtype,
    uint8,
    uint16,
)
from .tensor.dtype import bool_ as bool
from .tensor.generator import Generator, default_generator, manual_seed
from .tensor.generator import get_state as get_rng_state
from .tensor.generator import set_state as set_rng_state
from .tensor.interop import from_dlpack
from .tensor.ops.arithmetic import add, clamp, div, floor_divide, maximum, minimum, mul, pow, remainder, sub, where
from .tensor.ops.arrange import (
    broadcast_tensors,
    broadcast_to,
    cat,
    chunk,
    flatten,
    hstack,
    masked_fill,
    meshgrid,
    movedim,
    permute,
    ravel,
    repeat_interleave,
    roll,
    split,
    squeeze,
    stack,
    t,
    tile,
    transpose,
    tril,
    triu,
    unbind,
    unflatten,
    unsqueeze,
    vstack,
)
from .tensor.ops.closeness import allclose, equal, isclose
from .tensor.ops.compare import (
    bitwise_and,
    bitwise_left_shift,
    bitwise_not,
    bitwise_or,
    bitwise_right_shift,
    bitwise_xor,
    eq,
    ge,
    gt,
    le,
    logical_and,
    logical_not,
    logical_or,
    logical_xor,
    lt,
    ne,
)
from .tensor.ops.composite import log_softmax, relu, softmax
from .tensor.ops.contract import bmm, dot, matmul, mm, outer
from .tensor.ops.diagonal import diag, diagonal, trace
from .tensor.ops.distinct import bincount, unique
from .tensor.ops.einsum import einsum
from .tensor.ops.extremum import amax, amin, argmax, argmin, max, min
from .tensor.ops.formulas import addcdiv, addcmul, lerp, logaddexp, nan_to_num
from .tensor.ops.gather import gather, index_add, index_copy, index_select, scatter_add, take
from .tensor.ops.movement import flip, narrow, reshape
from .tensor.ops.random import (
    normal,
    rand,
    rand_like,
    randint,
    randn,
    randn_like,
    randperm,
    uniform,
)
from .tensor.ops.reduce import all, any, cumsum, mean, prod, sum
from .tensor.ops.sampling import bernoulli, multinomial
from .tensor.ops.scatter import index_fill, scatter, take_along_dim
from .tensor.ops.search import bucketize, searchsorted
from .tensor.ops.sort import argsort, kthvalue, median, sort, topk
from .tensor.ops.statistics import count_nonzero, logsumexp, norm, std, var
from .tensor.ops.unary import (
    abs,
    atan,
    ceil,
    clone,
    cos,
    erf,
    exp,
    expm1,
    floor,
    isfinite,
    isinf,
    isnan,
    log,
    log1p,
    log2,
    neg,
    reciprocal,
    round,
    rsqrt,
    sigmoid,
    sign,
    sin,
    sqrt,
    square,
    tan,
    tanh,
    trunc,
)

clip, concat, concatenate, swapaxes, moveaxis = clamp, cat, cat, transpose, movedim  # PyTorch has both names, too
inference_mode, dtype = no_grad, DType
inf, nan, pi, e = math.inf, math.nan, math.pi, math.e
float = float32
double = float64
half = float16
long = int64
int = int32
short = int16
__version__ = "0.1.0"
_LAZY = ("nn", "optim", "nova", "distributed")


def __getattr__(name: str):
    if name in _LAZY:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module 'blutrain' has no attribute {name!r}")
