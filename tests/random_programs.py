"""Random programs: a module whose forward runs a list of instructions on a growing list of values.

Hypothesis draws the instructions. They are run while they are drawn, so that each one fits the shapes before it; values
that grow are squashed, so that a comparison of two executors says something.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import strategies as st

import blutrain as bt
from blutrain import nn
from blutrain.nn import functional as F

EXTENTS = (1, 2, 3, 5, 7, 33)
LARGE = 20.0  # values beyond are squashed by tanh

SMOOTH = {
    "exp": lambda x: (-(x * x)).exp(),
    "tanh": bt.tanh,
    "sigmoid": bt.sigmoid,
    "sin": bt.sin,
    "erf": bt.erf,
    "square": lambda x: x * x,
    "neg": lambda x: -x,
    "log": lambda x: (x * x + 0.5).log(),
    "sqrt": lambda x: (x * x + 0.1).sqrt(),
    "gelu": F.gelu,
    "gelu tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": lambda x: x * bt.sigmoid(x),
    "reciprocal": lambda x: 1.0 / (x * x + 1.0),
    "shifted": lambda x: 1.5 - 2 * x,
}
KINKED = {
    "abs": bt.abs,
    "relu": F.relu,
    "clamp": lambda x: x.clamp(-0.5, 0.75),
    "masked": lambda x: bt.where(x > 0.1, x * 3.0, -1.0),
}
BINARY = {
    "add": lambda x, y: x + y,
    "sub": lambda x, y: x - y,
    "mul": lambda x, y: x * y,
    "div": lambda x, y: x / (y * y + 1.0),
}
BINARY_KINKED = {"maximum": bt.maximum, "minimum": bt.minimum, "where": lambda x, y: bt.where(x > y, x, y * 0.5)}
REDUCTIONS = {
    "sum": bt.sum,
    "mean": bt.mean,
    "amax": bt.amax,
    "logsumexp": bt.logsumexp,
    "norm": lambda x, d, k: (x * x).sum(d, k),
}
ROWS = {
    "softmax": lambda x: F.softmax(x, -1),
    "log_softmax": lambda x: F.log_softmax(x, -1) * 0.3,
    "layer_norm": lambda x: F.layer_norm(x, (x.shape[-1],)),
    "centred": lambda x: x - x.mean(-1, keepdim=True),
}


@dataclass(frozen=True)
class Instruction:
    """The next value: function(values at `operands`, *arguments); squashed: by tanh."""

    name: str
    operands: tuple[int, ...]
    arguments: tuple = ()
    squashed: bool = False

    def run(self, values: list, parameters: list) -> Any:
        result = _RULES[self.name](*[values[i] for i in self.operands], *self.arguments, parameters=parameters)
        return bt.tanh(result) if self.squashed else result


def _rule(function):
    return lambda *operands, parameters: function(*operands)


_RULES: dict[str, Any] = {
    k: _rule(v) for t in (SMOOTH, KINKED, BINARY, BINARY_KINKED, REDUCTIONS, ROWS) for k, v in t.items()
}
_RULES |= {
    "reshape": _rule(lambda x, shape: x.reshape(shape)),
    "permute": _rule(lambda x, order: x.permute(order)),
    "expand": _rule(lambda x, n: x.unsqueeze(0).expand(n, *x.shape)),
    "slice": _rule(lambda x, dim, start, step: x.flip(dim).narrow(dim, start, x.shape[dim] - start) if step < 0
                   else x.narrow(dim, start, x.shape[dim] - start)),
    "concat": _rule(lambda x, y, dim: bt.cat([x, y, x], dim)),
    "take": _rule(lambda x, ids, dim: x.index_select(dim, ids.remainder(x.shape[dim]))),
    "outer": _rule(lambda x, y: x.reshape(-1, 1) @ y.reshape(1, -1)),
    "gram": _rule(lambda x: x @ x.transpose(-1, -2)),
    "linear": lambda x, weight, bias, parameters: F.linear(x, parameters[weight], parameters[bias]),
    "scale": lambda x, vector, parameters: x * parameters[vector],
    "embed": lambda ids, table, parameters: F.embedding(ids.remainder(parameters[table].shape[0]), parameters[table]),
}  # fmt: skip


@dataclass
class Program:
    """Inputs (float arrays and one of ids), parameters, instructions; what it returns: the last values, summed up."""

    inputs: list[np.ndarray]
    parameters: list[np.ndarray]
    instructions: list[Instruction]

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
        self.instructions = tuple(program.instructions)

    def forward(self, *inputs):
        values, parameters = list(inputs), list(self.parameters())
        for instruction in self.instructions:
            values.append(instruction.run(values, parameters))
        results = values[len(inputs) :]
        return results[-1], sum((r * r * 0.5 + r).mean() for r in results if r.numel())


@st.composite
def programs(draw, kinked: bool, length: int = 10) -> Program:
    """A program of up to `length` instructions."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    extents = st.sampled_from(EXTENTS)
    shapes = draw(st.lists(st.lists(extents, max_size=3).map(tuple), min_size=1, max_size=3))
    if draw(st.integers(0, 9)) == 0:
        shapes.append((0, draw(extents)))
    inputs = [rng.integers(0, 100, draw(extents)), *(rng.uniform(-1.5, 1.5, s) for s in shapes)]
    program = Program(inputs, [], [])
    values = [bt.tensor(x) for x in inputs]
    with bt.no_grad():
        for _ in range(draw(st.integers(2, length))):
            instruction = draw(_instruction(values, program.parameters, rng, kinked))
            parameters = [bt.tensor(p) for p in program.parameters]
            value = instruction.run(values, parameters)
            if value.numel() and value.abs().max().item() > LARGE:
                instruction = Instruction(instruction.name, instruction.operands, instruction.arguments, True)
                value = instruction.run(values, parameters)
            program.instructions.append(instruction)
            values.append(value)
    return program


@st.composite
def _instruction(draw, values: list, parameters: list, rng, kinked: bool) -> Instruction:
    """One instruction that fits; parameters it needs are appended."""
    i = draw(st.integers(1, len(values) - 1))
    x = values[i]
    choices = [name for name, fits in _FITTING.items() if fits(x)]
    kind = draw(st.sampled_from(choices))
    if kind == "unary":
        return Instruction(draw(st.sampled_from([*SMOOTH, *(KINKED if kinked else ())])), (i,))
    if kind == "binary":
        partners = [j for j in range(1, len(values)) if _broadcasts(x.shape, values[j].shape)]
        name = draw(st.sampled_from([*BINARY, *(BINARY_KINKED if kinked else ())]))
        return Instruction(name, (i, draw(st.sampled_from(partners))))
    if kind == "reduction":
        dims = draw(st.sampled_from([None, *range(x.ndim), tuple(range(x.ndim))]))
        names = [n for n in REDUCTIONS if kinked or n != "amax"] if x.numel() else ["sum", "norm"]
        dims = tuple(range(x.ndim)) if dims is None else dims
        return Instruction(draw(st.sampled_from(names)), (i,), (dims, draw(st.booleans())))
    if kind == "rows":
        return Instruction(draw(st.sampled_from(list(ROWS))), (i,))
    if kind == "movement":
        return _movement(draw, i, x)
    if kind == "take":
        return Instruction("take", (i, 0), (draw(st.integers(0, x.ndim - 1)),))
    if kind == "embed":
        parameters.append(rng.uniform(-1, 1, (draw(st.sampled_from(EXTENTS)), draw(st.sampled_from(EXTENTS)))))
        return Instruction("embed", (0,), (len(parameters) - 1,))
    if kind == "scale":
        parameters.append(rng.uniform(-1, 1, x.shape[-1:]))
        return Instruction("scale", (i,), (len(parameters) - 1,))
    if kind == "gram":
        return Instruction("gram", (i,))
    width = draw(st.sampled_from(EXTENTS))
    parameters += [rng.uniform(-0.5, 0.5, (width, x.shape[-1])), rng.uniform(-1, 1, width)]
    return Instruction("linear", (i,), (len(parameters) - 2, len(parameters) - 1))


def _movement(draw, i: int, x) -> Instruction:
    name = draw(st.sampled_from(["reshape", "permute", "expand", "slice", "concat"]))
    if name == "expand":
        return Instruction(name, (i,), (draw(st.sampled_from((1, 2, 5))),))
    if name == "permute":
        return Instruction(name, (i,), (tuple(draw(st.permutations(range(x.ndim)))),))
    dim = draw(st.integers(0, x.ndim - 1))
    if name == "slice":
        return Instruction(
            name, (i,), (dim, draw(st.integers(0, max(0, x.shape[dim] - 1))), draw(st.sampled_from((1, -1))))
        )
    if name == "concat":
        return Instruction(name, (i, i), (dim,))
    size = math.prod(x.shape)
    divisors = [d for d in range(1, size + 1) if size % d == 0] or [1]
    first = draw(st.sampled_from(divisors))
    return Instruction("reshape", (i,), ((first, size // first),) if size else ((0, 3),))


_FITTING = {
    "unary": lambda x: True,
    "binary": lambda x: x.numel() < 20000,
    "reduction": lambda x: x.ndim > 0,
    "rows": lambda x: x.ndim > 0 and x.numel() > 0,
    "movement": lambda x: 0 < x.ndim and x.numel() < 3000,
    "take": lambda x: x.ndim > 0 and x.numel() > 0,
    "embed": lambda x: True,
    "scale": lambda x: x.ndim > 0 and x.numel() > 0,
    "gram": lambda x: x.ndim > 1 and x.numel() < 3000,
    "linear": lambda x: x.ndim > 0 and x.numel() > 0,
}


def _broadcasts(a: tuple, b: tuple) -> bool:
    try:
        return math.prod(np.broadcast_shapes(a, b)) < 20000
    except ValueError:
        return False
