"""One table of cases for all tests of operations: eager against float64 NumPy, gradcheck, shape rules, errors, eager
against compiled.

A `Case` is data: the primitive it covers, a function of tensors, descriptions of its inputs, the same function of
float64 arrays. `ERRORS` holds calls that must raise. `TOLERANCE` is the one table of tolerances.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

import blutrain as bt
from blutrain.tensor.ops.arrange import pad

# (relative, absolute) by dtype of the result; a few roundings of values near 1
TOLERANCE = {
    "float64": (1e-12, 1e-12),
    "float32": (3e-6, 3e-6),
    "float16": (2e-3, 2e-3),
    "bfloat16": (1.6e-2, 1.6e-2),
}


@dataclass(frozen=True)
class Input:
    """How an operand is made: floats evenly in [low, high), integers in [low, high), or bools; `fixed` values instead
    of random ones.
    """

    kind: str
    shape: tuple[int, ...]
    low: float = -2.0
    high: float = 2.0
    fixed: Any = None
    grad: bool = True

    def array(self, rng: np.random.Generator) -> np.ndarray:
        """float64, int64 or bool."""
        if self.fixed is not None:
            return np.array(self.fixed, {"float": np.float64, "int": np.int64, "bool": np.bool_}[self.kind])
        if self.kind == "float":
            return rng.uniform(self.low, self.high, self.shape)
        if self.kind == "int":
            return rng.integers(int(self.low), int(self.high), self.shape)
        return rng.integers(0, 2, self.shape).astype(bool)


def f(*shape: int, low=-2.0, high=2.0, fixed=None, grad=True) -> Input:
    """Floats."""
    return Input("float", shape, low, high, fixed, grad)


def i(*shape: int, low=-5, high=6, fixed=None) -> Input:
    """Integers (int64)."""
    return Input("int", shape, low, high, fixed)


def b(*shape: int) -> Input:
    """Bools."""
    return Input("bool", shape)


@dataclass(frozen=True)
class Case:
    """primitive: name in the table; call: function of tensors; inputs; reference: the same on NumPy arrays (floats are
    float64).

    order: how often it is differentiated in gradcheck (0: not). compiled: nova has to be able to compile it. dtypes:
    floats to try.
    """

    primitive: str
    call: Callable
    inputs: tuple[Input, ...]
    reference: Callable
    order: int = 2
    compiled: bool = True
    dtypes: tuple[str, ...] = ("float32", "float64", "float16", "bfloat16")
    label: str = ""
    scale: float = 1.0  # widens the tolerance where a result sums many terms

    @property
    def name(self) -> str:
        shapes = "_".join("x".join(map(str, x.shape)) or "0d" for x in self.inputs)
        return "-".join(filter(None, [self.primitive, self.label, shapes]))

    def arrays(self, seed: int = 0) -> list[np.ndarray]:
        rng = np.random.default_rng(seed)
        return [x.array(rng) for x in self.inputs]

    def tensors(self, dtype: str = "float64", seed: int = 0, requires_grad: bool = False) -> list[bt.Tensor]:
        """The inputs as tensors, floats in `dtype`."""
        result = []
        for x, array in zip(self.inputs, self.arrays(seed)):
            made = bt.tensor(array, dtype=getattr(bt, dtype)) if x.kind == "float" else bt.tensor(array)
            result.append(made.requires_grad_() if requires_grad and x.kind == "float" and x.grad else made)
        return result


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def erf(x):
    return np.vectorize(math.erf, otypes=[float])(x)


def unary(name, reference, low=-2.0, high=2.0, order=2, shapes=((3, 4), (), (0, 3)), **rest):
    return [Case(name, getattr(bt, name), (f(*s, low=low, high=high),), reference, order, **rest) for s in shapes]


PAIRS = (((3, 4), (3, 4)), ((3, 4), (4,)), ((2, 1, 3), (4, 1)), ((), (2, 3)), ((0, 3), (1, 3)), ((), ()))


def binary(name, reference, low=-2.0, high=2.0, order=2, pairs=PAIRS, kind=f, **rest):
    return [
        Case(
            name,
            getattr(bt, name),
            (kind(*x, low=low, high=high), kind(*y, low=low, high=high)),
            reference,
            order,
            **rest,
        )
        for x, y in pairs
    ]


def scalar(name, function, low=-2.0, high=2.0, order=2, **rest):
    """A function written with Python numbers and operators works on tensors and arrays alike."""
    return [Case(name, function, (f(3, 4, low=low, high=high),), function, order, label="scalar", **rest)]


def reduction(name, reference, order=2, low=-2.0, high=2.0, empty=True, **rest):
    function = getattr(bt, name)
    cases = []
    for shape, dim, keep in (
        ((3, 4), None, False),
        ((2, 3, 4), 1, False),
        ((2, 3, 4), (0, 2), True),
        ((5,), -1, True),
        ((), None, False),
    ):
        axes = dim if dim is None or isinstance(dim, tuple) else (dim,)
        cases.append(
            Case(
                name,
                lambda x, dim=dim, keep=keep: function(x, dim, keep),
                (f(*shape, low=low, high=high),),
                lambda x, axes=axes, keep=keep: reference(x, axis=axes, keepdims=keep),
                order,
                label=f"dim{dim}".replace(" ", ""),
                **rest,
            )
        )
    if empty:
        cases.append(
            Case(
                name, lambda x: function(x, 0), (f(0, 3),), lambda x: reference(x, axis=0), order, label="empty", **rest
            )
        )
    return cases


def move(name, call, reference, *inputs, order=2, label="", **rest):
    return [Case(name, call, inputs, reference, order, label=label, **rest)]


def strided(x, dim, n):
    """Every second element, backwards: not contiguous."""
    return x.flip(dim)[:, ::2] if isinstance(x, bt.Tensor) else np.flip(x, dim)[:, ::2]


SORTED = f(6, fixed=[-2, -1, 0, 0, 1, 1.5])
INDEX = i(4, fixed=[0, 2, 2, -1])


def index_add(x, index, src, dim=0):
    out = np.moveaxis(x.copy(), dim, 0)
    np.add.at(out, index, np.moveaxis(src, dim, 0))
    return np.moveaxis(out, 0, dim)


def index_copy(x, index, src, dim=0):
    out = x.copy()
    for k, row in enumerate(index):
        out[(slice(None),) * dim + (row,)] = src[(slice(None),) * dim + (k,)]
    return out


def scatter_add(x, index, src):
    out = x.copy()
    for (r, c), value in np.ndenumerate(src):
        out[r, index[r, c]] += value
    return out


def integer_power(x, y):
    """1 / x**-y rounded towards 0 where y is negative."""
    return np.where(y < 0, np.where(np.abs(x) == 1, x ** (y & 1), 0), x ** np.maximum(y, 0))


def set_slice(x, v):
    y = x.clone() if isinstance(x, bt.Tensor) else x.copy()
    y[1:, ::2] = v
    return y


CASES: list[Case] = [
    *binary("add", np.add),
    *scalar("add", lambda x: 3 + x + 0.5),
    *binary("sub", np.subtract),
    *scalar("sub", lambda x: 1.5 - x - 2),
    *binary("mul", np.multiply),
    *scalar("mul", lambda x: 2 * x * 0.25),
    *binary("div", np.true_divide, low=0.5),
    *scalar("div", lambda x: 1 / x / 3, low=0.5),
    *binary("floor_divide", np.floor_divide, low=0.6, high=9.0, order=0),
    *scalar("floor_divide", lambda x: x // 0.75, order=0, dtypes=("float32", "float64")),
    *binary("remainder", np.remainder, low=0.6, high=9.0, order=1, dtypes=("float32", "float64"), scale=4),
    *binary("pow", np.power, low=0.5, high=2.5),
    Case("pow", lambda x, y: x**y, (i(3, 4), i(4, low=0, high=5)), lambda x, y: x**y, 0, label="int"),
    Case("pow", lambda x, y: x**y, (i(3, 4, low=-2, high=3), i(4, low=-3, high=3)), integer_power, 0, label="negative"),
    Case("round", lambda x: x.round(), (i(3, 4),), lambda x: x, 0, label="int"),
    *scalar("pow", lambda x: x**2 + x**3 + x**-1 + x**0.5 + x**0, low=0.5, scale=8),
    Case("pow", lambda x: 2**x, (f(3, 4),), lambda x: 2**x, label="scalar_base"),
    *binary("maximum", np.maximum),
    *binary("minimum", np.minimum),
    *binary("eq", np.equal, order=0, kind=i),
    *binary("ne", np.not_equal, order=0, kind=i),
    *binary("lt", np.less, order=0),
    *binary("le", np.less_equal, order=0, kind=i),
    *binary("gt", np.greater, order=0),
    *binary("ge", np.greater_equal, order=0, kind=i),
    *binary("logical_and", np.logical_and, order=0, kind=i),
    *binary("logical_or", np.logical_or, order=0, kind=i),
    *binary("logical_xor", np.logical_xor, order=0, kind=i),
    Case("logical_not", bt.logical_not, (b(3, 4),), np.logical_not, 0),
    Case("logical_not", bt.logical_not, (i(3, 4, low=-1, high=2),), np.logical_not, 0, label="int"),
    *binary("bitwise_and", np.bitwise_and, order=0, kind=i),
    *binary("bitwise_or", np.bitwise_or, order=0, kind=i),
    *binary("bitwise_xor", np.bitwise_xor, order=0, kind=i),
    Case("bitwise_and", lambda x, y: x & y, (b(3, 4), b(4)), np.logical_and, 0, label="bool"),
    Case("bitwise_not", lambda x: ~x, (i(3, 4),), np.invert, 0),
    Case("bitwise_not", lambda x: ~x, (b(3, 4),), np.logical_not, 0, label="bool"),
    Case("shift_left", lambda x: x << 3, (i(3, 4),), lambda x: x << 3, 0),
    Case("shift_right", lambda x: x >> 1, (i(3, 4),), lambda x: x >> 1, 0),
    Case("where", bt.where, (b(3, 1), f(3, 4), f(4)), np.where),
    Case(
        "where", lambda c, x: bt.where(c, x, 0.5), (b(3, 4), f(3, 4)), lambda c, x: np.where(c, x, 0.5), label="scalar"
    ),
    Case("where", lambda x: x.clamp(-1, 1.5), (f(3, 4),), lambda x: np.clip(x, -1, 1.5), label="clamp"),
    Case(
        "where",
        lambda x, m: x.masked_fill(m, -1.0),
        (f(3, 4), b(4)),
        lambda x, m: np.where(m, -1.0, x),
        label="masked_fill",
    ),
    Case("where", lambda x: x.tril(1), (f(3, 4),), lambda x: np.tril(x, 1), label="tril"),
    Case("where", lambda x: x.triu(), (f(2, 3, 4),), np.triu, label="triu"),
    *unary("exp", np.exp),
    *unary("expm1", np.expm1),
    *unary("log", np.log, low=0.3),
    *unary("log1p", np.log1p, low=-0.7),
    *unary("log2", np.log2, low=0.3),
    *unary("sqrt", np.sqrt, low=0.3),
    *unary("rsqrt", lambda x: 1 / np.sqrt(x), low=0.3),
    *unary("reciprocal", lambda x: 1 / x, low=0.5),
    *unary("sin", np.sin),
    *unary("cos", np.cos),
    *unary("tan", np.tan, low=-1.2, high=1.2),
    *unary("atan", np.arctan),
    *unary("tanh", np.tanh),
    *unary("sigmoid", sigmoid, low=-6.0, high=6.0),
    *unary("erf", erf, low=-3.0, high=3.0),
    *unary("neg", np.negative),
    *unary("abs", np.abs),
    *unary("square", np.square),
    *unary("floor", np.floor),
    *unary("ceil", np.ceil),
    *unary("round", np.rint),
    *unary("trunc", np.trunc),
    *unary("sign", np.sign),
    *unary("isfinite", np.isfinite, order=0),
    *unary("isnan", np.isnan, order=0),
    *unary("isinf", np.isinf, order=0),
    *[
        Case(n, getattr(bt, n), (f(4, fixed=[0.0, np.inf, -np.inf, np.nan]),), getattr(np, n), 0, label="special")
        for n in ("isfinite", "isnan", "isinf", "sign", "abs", "floor", "tanh")
    ],
    Case("copy", bt.clone, (f(3, 4),), np.copy),
    Case("copy", lambda x: x.t().contiguous(), (f(3, 4),), np.transpose, label="contiguous"),
    Case("cast", lambda x: x.to(bt.float64), (f(3, 4),), np.copy, 2, label="float64"),
    Case("cast", lambda x: x.long(), (f(3, 4, low=-9.0, high=9.0),), np.trunc, 0, label="long"),
    Case("cast", lambda x: x.to(bt.int8), (f(3, 4, low=-9.0, high=9.0),), np.trunc, 0, label="int8"),
    Case("cast", lambda x: x.bool(), (i(3, 4, low=-1, high=2),), lambda x: x != 0, 0, label="bool"),
    Case("cast", lambda x: x.float(), (i(3, 4),), np.copy, 0, label="float"),
    *reduction("sum", np.sum, scale=4),
    *reduction("mean", np.mean, empty=False, scale=4),
    Case("sum", lambda x: x.sum(), (i(3, 4),), np.sum, 0, label="int"),
    Case("sum", lambda x: x.sum(0), (b(3, 4),), lambda x: np.sum(x, 0), 0, label="bool"),
    *reduction("prod", np.prod, scale=4),
    Case(
        "prod",
        lambda x: x.prod(1),
        (f(3, 3, fixed=[[0, 2, 3], [0, 0, 1], [1, 2, 3]]),),
        lambda x: x.prod(1),
        label="zeros",
    ),
    *reduction("amax", np.max, empty=False),
    *reduction("amin", np.min, empty=False),
    Case("amax", lambda x: x.amax(1), (f(0, 3),), lambda x: x.max(1), label="empty"),
    Case("amax", lambda x: x.amax(), (f(4, fixed=[1, np.nan, 3, 2]),), np.max, 0, label="nan"),
    Case("amax", lambda x: x.amax(0), (i(3, 4),), lambda x: x.max(0), 0, label="int"),
    Case("argmax", lambda x: x.argmax(1), (f(3, 4),), lambda x: x.argmax(1), 0),
    Case("argmax", lambda x: x.argmax(), (f(6, fixed=[1, 5, 2, 5, np.nan, np.nan]),), np.argmax, 0, label="nan"),
    Case(
        "argmax", lambda x: x.argmax(0, True), (i(5, fixed=[1, 5, 2, 5, 0]),), lambda x: np.array([1]), 0, label="ties"
    ),
    Case("argmin", lambda x: x.argmin(0), (f(3, 4),), lambda x: x.argmin(0), 0),
    Case("argmin", lambda x: x.argmin(), (f(3, 4),), np.argmin, 0, label="all"),
    Case("any", lambda x: x.any(1), (b(3, 4),), lambda x: x.any(1), 0),
    Case("any", lambda x: x.any(0), (b(0, 3),), lambda x: x.any(0), 0, label="empty"),
    Case("all", lambda x: x.all(), (b(3, 4),), np.all, 0),
    Case("all", lambda x: x.all(0), (i(3, 4),), lambda x: x.all(0), 0, label="int"),
    Case("cumsum", lambda x: x.cumsum(1), (f(3, 5),), lambda x: x.cumsum(1), scale=4),
    Case("cumsum", lambda x: x.cumsum(0), (i(3, 5),), lambda x: x.cumsum(0), 0, label="int"),
    Case("sum", lambda x: x.var(1), (f(3, 5),), lambda x: x.var(1, ddof=1), label="var", scale=4),
    Case("sum", lambda x: x.std(0, 0), (f(3, 5),), lambda x: x.std(0), label="std", scale=4),
    Case("sum", lambda x: x.logsumexp(1), (f(3, 5),), lambda x: np.log(np.exp(x).sum(1)), label="logsumexp", scale=4),
    Case("sum", lambda x: x.norm(), (f(3, 5),), lambda x: np.sqrt((x * x).sum()), label="norm", scale=4),
    Case("gather", lambda x: x.max(1).values, (f(3, 5),), lambda x: x.max(1), label="max"),
    *move("reshape", lambda x: x.reshape(4, -1), lambda x: x.reshape(4, 3), f(3, 4)),
    *move("reshape", lambda x: x.t().reshape(2, 6), lambda x: x.T.reshape(2, 6), f(3, 4), label="copy"),
    *move("reshape", lambda x: x.reshape(0, 7), lambda x: x.reshape(0, 7), f(3, 0), label="empty"),
    *move("reshape", lambda x: x.flatten(1).unsqueeze(0), lambda x: x.reshape(1, 2, 12), f(2, 3, 4), label="flatten"),
    *move("reshape", lambda x: x.squeeze(), np.squeeze, f(1, 3, 1), label="squeeze"),
    *move("transpose", lambda x: x.permute(2, 0, 1), lambda x: x.transpose(2, 0, 1), f(2, 3, 4)),
    *move("transpose", lambda x: x.transpose(0, -1), lambda x: x.swapaxes(0, -1), f(2, 3, 4), label="swap"),
    *move("expand", lambda x: x.expand(2, 3, -1), lambda x: np.broadcast_to(x, (2, 3, 4)), f(3, 4)),
    *move("expand", lambda x: x.expand(3, 4) * 2, lambda x: np.broadcast_to(x, (3, 4)) * 2, f(3, 1), label="ones"),
    *move("expand", lambda x: x.repeat(2, 3), lambda x: np.tile(x, (2, 3)), f(2, 4), label="repeat"),
    *move("slice", lambda x: x[1:, ::2], lambda x: x[1:, ::2], f(3, 5)),
    *move("slice", lambda x: x[::-1, 4:0:-2], lambda x: x[::-1, 4:0:-2], f(3, 5), label="negative"),
    *move("slice", lambda x: x[..., None, -1], lambda x: x[..., None, -1], f(2, 3, 5), label="ellipsis"),
    *move("slice", lambda x: x[5:], lambda x: x[5:], f(3, 4), label="nothing"),
    *move("slice", lambda x: x.chunk(2, 1)[1], lambda x: x[:, 3:], f(2, 5), label="chunk"),
    *move("slice_scatter", lambda x: grad_of_slice(x), lambda x: np.pad(x[:, :2], ((0, 0), (1, 1))), f(3, 3)),
    *move("slice_update", set_slice, set_slice, f(3, 5), f(2, 3)),
    *move("slice_update", set_slice, set_slice, f(3, 5), f(1, fixed=[7.0]), label="broadcast"),
    *move("flip", lambda x: x.flip(0), lambda x: x[::-1], f(3, 4)),
    *move("flip", lambda x: x.flip((0, -1)), lambda x: x[::-1, :, ::-1], f(2, 3, 4), label="two"),
    *move("concat", lambda x, y: bt.cat([x, y, x], 1), lambda x, y: np.concatenate([x, y, x], 1), f(2, 3), f(2, 1)),
    *move(
        "concat", lambda x, y: bt.stack([x, y], 1), lambda x, y: np.stack([x, y], 1), f(2, 3), f(2, 3), label="stack"
    ),
    *move("concat", lambda x, y: bt.cat([x, y]), lambda x, y: np.concatenate([x, y]), f(0, 3), f(2, 3), label="empty"),
    *move("concat", lambda x: x.roll(2, 0), lambda x: np.roll(x, 2, 0), f(5, 2), label="roll"),
    *move(
        "pad",
        lambda x: pad(x, (1, 2, 0, 1), value=0.5),
        lambda x: np.pad(x, ((0, 1), (1, 2)), constant_values=0.5),
        f(2, 3),
    ),
    *move("pad", lambda x: pad(x, (-1, 2)), lambda x: np.pad(x[:, 1:], ((0, 0), (0, 2))), f(2, 3), label="negative"),
    *move("matmul", lambda x, y: x @ y, np.matmul, f(3, 4), f(4, 5), scale=8),
    *move("matmul", lambda x, y: x @ y, np.matmul, f(2, 1, 3, 4), f(5, 4, 2), label="batch", scale=8),
    *move("matmul", lambda x, y: x @ y.t(), lambda x, y: x @ y.T, f(3, 4), f(5, 4), label="transposed", scale=8),
    *move("matmul", lambda x, y: x @ y, np.matmul, f(4), f(4), label="vectors", scale=8),
    *move("matmul", lambda x, y: x @ y, np.matmul, f(2, 3, 4), f(4), label="vector", scale=8),
    *move("matmul", lambda x, y: x @ y, np.matmul, f(4), f(2, 4, 3), label="row", scale=8),
    *move("matmul", lambda x, y: x @ y, np.matmul, f(3, 0), f(0, 2), label="empty"),
    *move("matmul", lambda x, y: x @ y, np.matmul, f(1, 1), f(1, 7), label="ones"),
    *move("matmul", lambda x, y: x @ y, np.matmul, i(3, 4), i(4, 2), label="int", order=0),
    *move("take", lambda x, k: x[k], lambda x, k: x[k], f(5, 3), INDEX),
    *move(
        "take",
        lambda x, k: bt.take(x, k, 1),
        lambda x, k: np.take(x, k, 1),
        f(2, 5, 3),
        i(2, 3, low=0, high=5),
        label="dim1",
    ),
    *move("take", lambda x, k: x[k], lambda x, k: x[k], f(5, 3), i(0, low=0, high=5), label="empty"),
    *move("take", lambda x, k: x.index_select(1, k), lambda x, k: x[:, k], f(3, 5), INDEX, label="select"),
    *move(
        "wrap_index",
        lambda x, j, k: x[j, k],
        lambda x, j, k: x[j, k],
        f(4, 5),
        i(3, low=-4, high=4),
        i(3, low=-5, high=5),
    ),
    *move(
        "wrap_index",
        lambda x, j, k: x[j, :, k],
        lambda x, j, k: x[j, :, k],
        f(4, 2, 5),
        i(3, low=0, high=4),
        i(3, low=0, high=5),
        label="apart",
    ),
    *move("index_add", lambda x, k, v: x.index_add(0, k, v), index_add, f(5, 3), INDEX, f(4, 3), scale=4),
    *move(
        "index_add",
        lambda x, k, v: x.index_add(1, k, v),
        lambda x, k, v: index_add(x, k, v, 1),
        f(3, 5),
        INDEX,
        f(3, 4),
        label="dim1",
        scale=4,
    ),
    *move("index_copy", lambda x, k, v: x.index_copy(0, k, v), index_copy, f(5, 3), INDEX, f(4, 3)),
    *move(
        "index_copy",
        lambda x, k, v: x.index_copy(1, k, v),
        lambda x, k, v: index_copy(x, k, v, 1),
        f(3, 5),
        INDEX,
        f(3, 4),
        label="dim1",
    ),
    *move(
        "gather", lambda x, k: x.gather(1, k), lambda x, k: np.take_along_axis(x, k, 1), f(3, 5), i(3, 2, low=0, high=5)
    ),
    *move(
        "gather",
        lambda x, k: x.gather(0, k),
        lambda x, k: np.take_along_axis(x[:, :2], k, 0),
        f(3, 5),
        i(4, 2, low=0, high=3),
        label="dim0",
    ),
    *move(
        "scatter_add",
        lambda x, k, v: x.scatter_add(1, k, v),
        scatter_add,
        f(3, 5),
        i(3, 4, low=0, high=5),
        f(3, 4),
        scale=4,
    ),
    Case("searchsorted", bt.searchsorted, (SORTED, f(2, 3)), np.searchsorted, 0, compiled=False),
    Case(
        "searchsorted",
        lambda s, x: bt.searchsorted(s, x, right=True),
        (SORTED, i(2, 3)),
        lambda s, x: np.searchsorted(s, x, "right"),
        0,
        compiled=False,
        label="right",
    ),
    Case("argsort", lambda x: x.argsort(1), (f(3, 5),), lambda x: x.argsort(1), 0, compiled=False),
    Case(
        "argsort", lambda x: x.sort(0, True).values, (f(5, 3),), lambda x: -np.sort(-x, 0), compiled=False, label="sort"
    ),
    Case(
        "argsort", lambda x: x.topk(2).values, (f(3, 5),), lambda x: -np.sort(-x)[:, :2], compiled=False, label="topk"
    ),
    Case(
        "argsort",
        lambda x: x.argsort(0, True),
        (i(6, fixed=[1, 3, 1, 3, 2, 3]),),
        lambda x: np.array([1, 3, 5, 4, 0, 2]),
        0,
        compiled=False,
        label="ties",
    ),
    *move(
        "matmul",
        lambda x, y: bt.einsum("bik,bkj->bij", x, y),
        lambda x, y: x @ y,
        f(2, 3, 4),
        f(2, 4, 5),
        label="einsum",
        scale=8,
    ),
    *move(
        "matmul",
        lambda x, y, z: bt.einsum("ij,kj,k->i", x, y, z),
        lambda x, y, z: np.einsum("ij,kj,k->i", x, y, z),
        f(2, 3),
        f(4, 3),
        f(4),
        label="einsum3",
        scale=16,
    ),
    *move(
        "matmul",
        lambda x, y: bt.einsum("ijk,lj->kl", x, y),
        lambda x, y: np.einsum("ijk,lj->kl", x, y),
        f(2, 3, 4),
        f(5, 3),
        label="einsum2",
        scale=16,
    ),
    *move(
        "sum",
        lambda x: bt.einsum("ijk->ki", x),
        lambda x: np.einsum("ijk->ki", x),
        f(2, 3, 4),
        label="einsum1",
        scale=4,
    ),
    *move("full", lambda: bt.full((2, 3), 0.5), lambda: np.full((2, 3), 0.5), order=0, dtypes=("float32",)),
    *move("full", lambda: bt.zeros(2, dtype=bt.int8), lambda: np.zeros(2), order=0, dtypes=("float32",), label="zeros"),
    *move("iota", lambda: bt.arange(7), lambda: np.arange(7), order=0, dtypes=("float32",)),
    *move(
        "iota", lambda: bt.arange(5, -4, -3), lambda: np.arange(5, -4, -3), order=0, dtypes=("float32",), label="down"
    ),
    *move(
        "iota",
        lambda: bt.linspace(0, 1, 5),
        lambda: np.linspace(0, 1, 5),
        order=0,
        dtypes=("float32",),
        label="linspace",
    ),
    *move("transfer", lambda x: x.to("cpu") + 0, np.copy, f(2, 3), compiled=False),
    *move(
        "assign",
        lambda x, y: x.clone().detach().copy_(y),
        lambda x, y: y + 0 * x,
        f(2, 3),
        f(2, 3, grad=False),
        order=0,
    ),
]


def grad_of_slice(x):
    """Differentiable use of slice_scatter."""
    from blutrain.tensor.dispatch import apply
    from blutrain.tensor.primitive import TABLE

    return apply(TABLE["slice_scatter"], x[:, :2], shape=(3, 4), starts=(0, 1), sizes=(3, 2), steps=(1, 1))


def noncontiguous(case: Case) -> Case:
    """The same case with its inputs stored with strides (tests pass tensors that are views of larger ones)."""
    return replace(case, label=f"{case.label}strided")


@dataclass(frozen=True)
class Bad:
    """A call that must raise `error` with `text` in its message."""

    primitive: str
    call: Callable[[], Any]
    error: type[Exception]
    text: str


def z(*shape, dtype=None):
    return bt.zeros(*shape, dtype=dtype)


ERRORS = [
    Bad("add", lambda: z(2, 3) + z(4), ValueError, "shapes do not broadcast"),
    Bad("add", lambda: bt.add(z(2), [1.0]), TypeError, "not a tensor"),
    Bad("add", lambda: z(2, dtype=bt.int8) + 1000, ValueError, "does not fit int8"),
    Bad("sub", lambda: z(2, dtype=bt.bool) - z(2, dtype=bt.bool), TypeError, "not defined for bool"),
    Bad("bitwise_and", lambda: z(2) & z(2), TypeError, "not defined for float32"),
    Bad("where", lambda: bt.where(z(2), z(2), z(2)), TypeError, "condition is not bool"),
    Bad("pow", lambda: bt.arange(3) ** -1, ValueError, "no negative powers"),
    Bad("neg", lambda: -z(2, dtype=bt.bool), TypeError, "not defined for bool"),
    Bad("mean", lambda: bt.arange(3).mean(), TypeError, "not defined for integers"),
    Bad("sum", lambda: z(2, 3).sum(2), IndexError, "out of range"),
    Bad("sum", lambda: z(2, 3).sum((0, 0)), ValueError, "named twice"),
    Bad("sum", lambda: z(2, 3).sum("x"), TypeError, "a dimension is an integer"),
    Bad("amax", lambda: z(0, 3).amax(0), ValueError, "no elements"),
    Bad("argmax", lambda: z(0).argmax(), ValueError, "no elements"),
    Bad("reshape", lambda: z(2, 3).reshape(4), ValueError, "number of elements changes"),
    Bad("reshape", lambda: z(2, 3).reshape(-1, 4), ValueError, "-1 cannot be found"),
    Bad("reshape", lambda: z(2, 3).t().view(6), ValueError, "cannot be seen"),
    Bad("transpose", lambda: z(2, 3).permute(0, 0), ValueError, "each dimension once"),
    Bad("expand", lambda: z(2, 3).expand(2, 4), ValueError, "only extents of 1"),
    Bad("slice", lambda: z(2, 3)[2], IndexError, "out of range in dimension 0"),
    Bad("slice", lambda: z(2, 3)[0, 0, 0], IndexError, "too many indices"),
    Bad("slice", lambda: z(2, 3)["a"], TypeError, "not an index"),
    Bad("slice", lambda: z(2, 3)[..., ...], IndexError, "may appear once"),
    Bad("concat", lambda: bt.cat([z(2, 3), z(2, 4)]), ValueError, "may differ only in dim 0"),
    Bad("concat", lambda: bt.cat([]), ValueError, "no tensors"),
    Bad("concat", lambda: bt.stack([z(2), z(3)]), ValueError, "one shape"),
    Bad(
        "matmul",
        lambda: z(32, 64) @ z(128, 10),
        ValueError,
        "inner dimensions differ: f32[32,64] @ f32[128,10] (64 vs 128)",
    ),
    Bad("matmul", lambda: z(2, 3, 4) @ z(3, 4, 5), ValueError, "do not broadcast"),
    Bad("matmul", lambda: z(2, 2, dtype=bt.bool) @ z(2, 2, dtype=bt.bool), TypeError, "not defined for bool"),
    Bad("take", lambda: z(3, 2)[bt.tensor([0, 3])], IndexError, "got: 3"),
    Bad("take", lambda: z(3, 2)[bt.tensor([0, -4])], IndexError, "got: -4"),
    Bad("take", lambda: bt.take(z(3), z(2)), TypeError, "an index is int64 or int32"),
    Bad("take", lambda: z(3, 2)[z(2)], TypeError, "integers or bools"),
    Bad("take", lambda: z(3, 2)[bt.tensor([True, False])], IndexError, "another shape"),
    Bad("index_add", lambda: z(3, 2).index_add(0, bt.tensor([0]), z(2, 2)), ValueError, "source does not fit"),
    Bad("gather", lambda: z(3, 2).gather(1, bt.zeros(4, 2, dtype=bt.int64)), ValueError, "nowhere larger"),
    Bad("gather", lambda: z(3, 2).gather(1, bt.full((3, 1), 2)), IndexError, "got: 2"),
    Bad("matmul", lambda: bt.einsum("ij,kj->i", z(2, 3), z(2)), ValueError, "one letter per dimension"),
    Bad("matmul", lambda: bt.einsum("ij,jk->ik", z(2, 3), z(2, 3)), ValueError, "j has two extents"),
    Bad("matmul", lambda: bt.einsum("...j->j", z(2, 3)), ValueError, "not understood"),
    Bad("argsort", lambda: z(2, 3).topk(4), ValueError, "k is out of range"),
    Bad("argsort", lambda: z(2, 3).kthvalue(0), ValueError, "k is out of range"),
    Bad("argsort", lambda: z(0).median(), ValueError, "no elements"),
    Bad("searchsorted", lambda: bt.searchsorted(z(2, 3), z(3, 3)), ValueError, "shapes do not fit"),
    Bad("searchsorted", lambda: bt.searchsorted(z(3), 1.0, side="middle"), ValueError, "unknown side"),
    Bad("index_copy", lambda: z(2, 3).scatter(1, bt.zeros(2, 3, dtype=bt.int64), z(1, 3)), ValueError, "does not fit"),
    Bad("index_copy", lambda: z(2, 3).scatter(1, bt.full((2, 1), 3), 1.0), IndexError, "got: 3"),
    Bad("take", lambda: bt.diag(z(2, 2, 2)), ValueError, "a vector or a matrix"),
    Bad("expand", lambda: bt.meshgrid(z(2), indexing="x"), ValueError, "unknown indexing"),
    Bad("index_add", lambda: bt.bincount(bt.tensor([-1])), ValueError, "a value is negative"),
    Bad("reshape", lambda: z(2).view(bt.int8), ValueError, "another size"),
    Bad("full", lambda: bt.zeros(-1), ValueError, "an extent is negative"),
    Bad("iota", lambda: bt.arange(0, 3, 0), ValueError, "the step is 0"),
    Bad("assign", lambda: z(2).copy_(z(3)), ValueError, "expand"),
]
