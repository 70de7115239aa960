"""Random programs: a module whose forward runs a list of instructions on a growing list of values.

A `Drawer` draws the instructions from a source of small numbers (hypothesis, or a generator of NumPy for long runs).
They are run while they are drawn, so that each one fits the values before it; values that grow are squashed, so that a
comparison of two executors says something. Floats, integers and bools appear; parameters are used again (tied), buffers
updated in place, and several values leave the module.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from hypothesis import strategies as st
from random_rules import (
    BINARY,
    BINARY_KINKED,
    COMPARE,
    EMPTY_REDUCTIONS,
    INTEGER,
    KINKED,
    REDUCTIONS,
    ROWS,
    RULES,
    SMOOTH,
    SMOOTH_REDUCTIONS,
    TRUTH,
)

import blutrain as bt
from blutrain import nn

EXTENTS = (1, 2, 3, 5, 7, 33)
LARGE = 20.0  # values beyond are squashed by tanh
MOST = 20000  # elements of a value


@dataclass(frozen=True)
class Instruction:
    """The next value: function(values at `operands`, *arguments); squashed: by tanh."""

    name: str
    operands: tuple[int, ...]
    arguments: tuple = ()
    squashed: bool = False

    def run(self, values: list, parameters: list) -> Any:
        result = RULES[self.name](*[values[i] for i in self.operands], *self.arguments, parameters=parameters)
        return bt.tanh(result) if self.squashed else result


@dataclass
class Program:
    """Inputs (float arrays, the first one of ids), parameters, instructions. It returns the values `outputs` beside the
    last one and a loss of all; `buffers[i]` is a running mean of value i.
    """

    inputs: list[np.ndarray]
    parameters: list[np.ndarray]
    instructions: list[Instruction]
    outputs: list[int] = field(default_factory=list)
    buffers: list[int] = field(default_factory=list)

    def module(self, dtype) -> nn.Module:
        return _Runs(self, dtype)

    def tensors(self, dtype) -> list[bt.Tensor]:
        floats = [bt.tensor(x).to(dtype).requires_grad_() for x in self.inputs[1:]]
        return [bt.tensor(self.inputs[0]), *floats]


class _Runs(nn.Module):
    def __init__(self, program: Program, dtype):
        super().__init__()
        for i, p in enumerate(program.parameters):
            self.register_parameter(f"p{i}", nn.Parameter(bt.tensor(p).to(dtype)))
        for i in program.buffers:
            self.register_buffer(f"b{i}", bt.zeros(1, dtype=dtype))
        self.instructions, self.outputs = tuple(program.instructions), tuple(program.outputs)

    def forward(self, *inputs):
        values, parameters = list(inputs), list(self.parameters())
        for instruction in self.instructions:
            values.append(instruction.run(values, parameters))
        for name, buffer in self.named_buffers():
            value = values[int(name[1:])].detach()
            buffer.mul_(0.9).add_(value.sum().reshape(1) * 0.1)
        results = [v for v in values[len(inputs) :] if v.dtype.is_floating]
        loss = sum((r * r * 0.5 + r).mean() for r in results if r.numel())
        return loss, values[-1], *[values[i] for i in self.outputs]


class Drawer:
    """Draws a program; `number(n)` gives one of 0..n-1."""

    def __init__(self, number: Callable[[int], int], kinked: bool):
        self.number, self.kinked = number, kinked
        self.rng = np.random.default_rng([number(1 << 16), number(1 << 16)])
        self.values: list[bt.Tensor] = []
        self.parameters: list[np.ndarray] = []

    def one_of(self, items) -> Any:
        items = list(items)
        return items[self.number(len(items))]

    def flip(self) -> bool:
        return bool(self.number(2))

    def program(self, length: int) -> Program:
        """A program of up to `length` instructions."""
        shapes = [tuple(self.one_of(EXTENTS) for _ in range(self.number(4))) for _ in range(1 + self.number(3))]
        if self.number(10) == 0:
            shapes.append((0, self.one_of(EXTENTS)))
        ids = self.rng.integers(0, 100, self.one_of(EXTENTS))
        inputs = [ids, *(self.rng.uniform(-1.5, 1.5, s) for s in shapes)]
        program = Program(inputs, self.parameters, [])
        self.values = [bt.tensor(x) for x in inputs]
        with bt.no_grad():
            for _ in range(2 + self.number(length - 1)):
                self._append(program)
        made = range(len(inputs), len(self.values))
        floats = [i for i in made if self.values[i].dtype.is_floating]
        program.outputs = [self.one_of(made) for _ in range(self.number(3))]
        program.buffers = [self.one_of(floats)] if floats and self.number(4) == 0 else []
        return program

    def _append(self, program: Program) -> None:
        instruction = None
        while instruction is None:
            instruction = self.one_of(_KINDS)(self)
        parameters = [bt.tensor(p) for p in self.parameters]
        value = instruction.run(self.values, parameters)
        if value.dtype.is_floating and value.numel() and value.abs().max().item() > LARGE:
            instruction = Instruction(instruction.name, instruction.operands, instruction.arguments, True)
            value = instruction.run(self.values, parameters)
        program.instructions.append(instruction)
        self.values.append(value)

    def pick(self, wanted: Callable[[bt.Tensor], bool] = lambda x: True, kind: str = "float") -> int | None:
        """The number of a value, later ones more often."""
        found = [i for i, v in enumerate(self.values) if _kind(v) == kind and wanted(v)]
        if not found:
            return None
        return found[-1 - min(self.number(len(found)), self.number(len(found)))]

    def parameter(self, shape: tuple[int, ...]) -> int:
        """The number of a parameter of `shape`: one that is there, or a new one."""
        found = [i for i, p in enumerate(self.parameters) if p.shape == shape]
        if found and self.flip():
            return self.one_of(found)
        self.parameters.append(self.rng.uniform(-0.5, 0.5, shape))
        return len(self.parameters) - 1

    def partner(self, i: int | None, kind: str = "float") -> int | None:
        """A value that broadcasts with value i, either way."""
        if i is None:
            return None
        shape = self.values[i].shape
        return self.pick(lambda y: _broadcasts(shape, y.shape), kind)

    def instruction(self, name: str, *operands: int | None, arguments: tuple = ()) -> Instruction | None:
        return None if None in operands else Instruction(name, operands, arguments)  # type: ignore[arg-type]


def _kind(x: bt.Tensor) -> str:
    return "float" if x.dtype.is_floating else "bool" if x.dtype is bt.bool else "int"


def _broadcasts(a: tuple, b: tuple) -> bool:
    try:
        return math.prod(np.broadcast_shapes(a, b)) < MOST
    except ValueError:
        return False


def has_elements(x) -> bool:
    return x.ndim > 0 and x.numel() > 0


def is_small(x) -> bool:
    return 0 < x.ndim < 5 and x.numel() < 3000


# -------------------------------------------------------------------- kinds of instructions


def _unary(d: Drawer):
    return d.instruction(d.one_of([*SMOOTH, *(KINKED if d.kinked else ())]), d.pick())


def _binary(d: Drawer):
    i = d.pick()
    name = d.one_of([*BINARY, *(BINARY_KINKED if d.kinked else ())])
    return d.instruction(name, i, d.partner(i))


def _reduction(d: Drawer):
    i = d.pick(lambda x: x.ndim > 0)
    if i is None:
        return None
    x = d.values[i]
    names = [n for n in REDUCTIONS if d.kinked or n in SMOOTH_REDUCTIONS] if x.numel() else EMPTY_REDUCTIONS
    return d.instruction(d.one_of(names), i, arguments=(_dims(d, x.ndim), d.flip()))


def _dims(d: Drawer, ndim: int) -> tuple[int, ...]:
    """Any axes, at least one."""
    chosen = tuple(dim for dim in range(ndim) if d.flip())
    return chosen or (d.number(ndim),)


def _rows(d: Drawer):
    i = d.pick(has_elements)
    return i if i is None else d.instruction(d.one_of(ROWS), i, arguments=(d.number(d.values[i].ndim),))


def _view(d: Drawer):
    kind = d.one_of(["float", "float", "float", "int", "bool"])
    i = d.pick(is_small, kind)
    if i is None:
        return None
    x = d.values[i]
    dim, name = d.number(x.ndim), d.one_of(["reshape", "permute", "expand", "slice", "flip", "select", "roll", "widen"])
    extent = x.shape[dim]
    if name == "reshape":
        return d.instruction(name, i, arguments=(_other_shape(d, x.numel()),))
    if name == "permute":
        return d.instruction(name, i, arguments=(tuple(int(n) for n in d.rng.permutation(x.ndim)),))
    if name == "expand":
        return d.instruction(name, i, arguments=(d.number(x.ndim + 1), d.one_of((1, 2, 5))))
    if name == "widen":
        return d.instruction(name, i, arguments=(tuple(4 if n == 1 else n for n in x.shape),))
    if not extent:
        return None
    if name == "slice":
        return d.instruction(name, i, arguments=(dim, d.number(extent), 1 + d.number(3)))
    if name == "roll":
        return d.instruction(name, i, arguments=(dim, d.number(5) - 2))
    return d.instruction(name, i, arguments=(dim, d.number(extent)))


def _other_shape(d: Drawer, size: int) -> tuple[int, ...]:
    """Up to four extents with this product."""
    if not size:
        return d.one_of([(0, 3), (2, 0), (0,)])
    shape = []
    for _ in range(d.number(4)):
        shape.append(d.one_of([n for n in range(1, size + 1) if size % n == 0]))
        size //= shape[-1]
    return (*shape, size)


def _join(d: Drawer):
    i = d.pick(is_small)
    if i is None:
        return None
    x, dim = d.values[i], d.number(d.values[i].ndim)
    name = d.one_of(["concat", "stack", "pad"])
    if name == "pad":
        return d.instruction(name, i, arguments=(d.number(3), d.number(3)))
    if name == "stack":
        return d.instruction(name, i, d.pick(lambda y: y.shape == x.shape), arguments=(dim,))
    rest = lambda shape: (*shape[:dim], *shape[dim + 1 :])
    j = d.pick(lambda y: y.ndim == x.ndim and rest(y.shape) == rest(x.shape) and y.numel() < MOST)
    return d.instruction(name, i, j, arguments=(dim,))


def _lookup(d: Drawer):
    i = d.pick(lambda x: has_elements(x) and x.numel() < MOST // 10)
    if i is None:
        return None
    x, dim = d.values[i], d.number(d.values[i].ndim)
    name = d.one_of(["take", "take", "gather", "pairs", "index_copy", "maximum of rows"])
    if name == "take":
        return d.instruction(name, i, 0, arguments=(dim,))
    if name == "gather":
        fits = lambda y: (
            y.ndim == x.ndim and all(m <= n for k, (m, n) in enumerate(zip(y.shape, x.shape, strict=True)) if k != dim)
        )
        return d.instruction(name, i, d.pick(fits, "int"), arguments=(dim,))
    if name == "pairs":
        return d.instruction(name, i, 0) if x.ndim > 1 else None
    if name == "index_copy":
        return d.instruction(name, i, 0)
    return d.instruction(name, i, arguments=(dim,)) if d.kinked else None


def _scatter(d: Drawer):
    i = d.pick(has_elements)
    if i is None:
        return None
    x, dim = d.values[i], d.number(d.values[i].ndim)
    rest = lambda shape: (*shape[:dim], *shape[dim + 1 :])
    j = d.pick(lambda y: y.ndim == x.ndim and rest(y.shape) == rest(x.shape) and y.shape[dim] <= d.values[0].shape[0])
    return d.instruction("index_add", i, j, 0, arguments=(dim,))


def _integers(d: Drawer):
    name = d.one_of(["largest", "smallest", "count", "as int", "as int", "as float", *INTEGER])
    if name in INTEGER:
        i = d.pick(kind="int")
        return d.instruction(name, i, d.partner(i, "int"))
    if name == "as float":
        return d.instruction(name, d.pick(lambda x: x.numel() < MOST, "int"), d.pick())
    if not d.kinked:
        return None
    if name == "count":
        i = d.pick(lambda x: x.ndim > 0, "bool")
        return i if i is None else d.instruction(name, i, arguments=(_dims(d, d.values[i].ndim),))
    if name == "as int":
        types = ["int8", "int16", "int32", "int64"]
        return d.instruction(name, d.pick(lambda x: x.numel() < MOST), arguments=(d.one_of(types),))
    i = d.pick(has_elements)
    return i if i is None else d.instruction(name, i, arguments=(d.number(d.values[i].ndim),))


def _masks(d: Drawer):
    if not d.kinked:
        return None
    name = d.one_of(["compare", "compare", "choose", "choose", "fill", "any", "all", "mask as float", *TRUTH])
    if name == "compare":
        i = d.pick()
        return d.instruction(d.one_of(COMPARE), i, d.partner(i))
    i = d.pick(kind="bool")
    if i is None:
        return None
    mask = d.values[i]
    if name in TRUTH:
        return d.instruction(name, i, d.partner(i, "bool"))
    if name in ("any", "all"):
        return d.instruction(name, i, arguments=(_dims(d, mask.ndim),)) if mask.ndim else None
    if name == "mask as float":
        return d.instruction(name, i, d.pick())
    j = d.partner(i)
    if j is None:
        return None
    if name == "fill":
        fits = mask.ndim <= d.values[j].ndim and np.broadcast_shapes(mask.shape, d.values[j].shape) == d.values[j].shape
        return d.instruction(name, j, i) if fits else None
    both = np.broadcast_shapes(mask.shape, d.values[j].shape)
    return d.instruction(name, i, j, d.pick(lambda y: _broadcasts(both, y.shape)))


def _layers(d: Drawer):
    name = d.one_of(["linear", "linear", "plain linear", "scale", "embed", "layer_norm", "rms_norm", "cross_entropy"])
    if name == "embed":
        return d.instruction(name, d.pick(lambda x: x.numel() < 500, "int"), arguments=(_matrix(d),))
    i = d.pick(has_elements)
    if i is None:
        return None
    width = d.values[i].shape[-1]
    if name in ("linear", "plain linear"):
        rows = d.one_of(EXTENTS)
        weight = d.parameter((rows, width))
        return d.instruction(name, i, arguments=(weight, d.parameter((rows,))) if name == "linear" else (weight,))
    if name == "cross_entropy":
        return d.instruction(name, i, 0)
    count = 2 if name == "layer_norm" else 1
    return d.instruction(name, i, arguments=tuple(d.parameter((width,)) for _ in range(count)))


def _matrix(d: Drawer) -> int:
    found = [i for i, p in enumerate(d.parameters) if p.ndim == 2]
    if found and d.flip():
        return d.one_of(found)  # a table that is a weight, too
    return d.parameter((d.one_of(EXTENTS), d.one_of(EXTENTS)))


def _products(d: Drawer):
    i = d.pick(lambda x: x.ndim > 1 and x.numel() < 3000)
    name = d.one_of(["gram", "matmul", "matmul T", "outer"])
    if name == "outer":
        small = lambda x: 0 < x.numel() < 140
        return d.instruction(name, d.pick(small), d.pick(small))
    if i is None or name == "gram":
        return d.instruction(name, i)
    x, last = d.values[i], -2 if name == "matmul" else -1

    def fits(y) -> bool:
        return (
            y.ndim > 1 and y.shape[last] == x.shape[-1] and y.numel() < 3000 and _broadcasts(x.shape[:-2], y.shape[:-2])
        )

    return d.instruction(name, i, d.pick(fits))


def _updates(d: Drawer):
    name = d.one_of(["in place", "set", "assigned", "detach"])
    i = d.pick(has_elements)
    if i is None or name == "detach":
        return d.instruction(name, i)
    x = d.values[i]
    if name == "set":
        return d.instruction(name, i, d.pick(), arguments=(d.number(x.shape[0]), 1 + d.number(2)))
    if name == "assigned":
        dim = d.number(x.ndim)
        return d.instruction(name, i, d.pick(), arguments=(dim, d.number(x.shape[dim])))
    return d.instruction(name, i, d.pick())


_KINDS = [
    *itertools.repeat(_unary, 2),
    *itertools.repeat(_binary, 3),
    *itertools.repeat(_reduction, 2),
    *itertools.repeat(_view, 4),
    *itertools.repeat(_layers, 2),
    _rows,
    _join,
    _lookup,
    _scatter,
    _integers,
    _masks,
    _products,
    _updates,
]


@st.composite
def programs(draw, kinked: bool, length: int = 10) -> Program:
    """A program of up to `length` instructions."""
    return Drawer(lambda n: draw(st.integers(0, n - 1)), kinked).program(length)


def seeded_program(seed: int, kinked: bool, length: int = 10) -> Program:
    """The same from a generator of NumPy."""
    rng = np.random.default_rng(seed)
    return Drawer(lambda n: int(rng.integers(n)), kinked).program(length)
