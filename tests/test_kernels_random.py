"""Random programs through the kernel passes: whatever is fused, stored or recomputed, the numbers stay."""

from __future__ import annotations

import kernels_support
import numpy as np
import pytest
from kernels_support import Step, V

NUM_NODES = 24
UNARY = ("tanh", "neg", "exp", "square", "sigmoid")
BINARY = ("add", "sub", "mul", "maximum")
MOVES = ("transpose", "reshape", "flip", "slice", "expand")


class _Program:
    """Grows a step by random operations on random earlier values, kept small by tanh."""

    def __init__(self, seed: int):
        self.random = np.random.default_rng(seed)
        self.step = Step()
        self.extents = tuple(int(n) for n in self.random.integers(2, 5, 3))
        b, t, c = self.extents
        shapes = [(b, t, c), (b * t, c), (c,), (c, c), (b, t, 1)]
        self.values: list[V] = [self.step.input(shape) for shape in shapes]
        self.state = self.step.input((b, t, c), role="state")
        self.values.append(self.state)

    def shape(self, value: V) -> tuple[int, ...]:
        return self.step.trace.avals[value.number].shape

    def pick(self, wanted=lambda shape: True) -> V | None:
        """A value of a wanted shape, later ones more often."""
        found = [v for v in self.values if wanted(self.shape(v))]
        return found[-1 - int(len(found) * self.random.random() ** 2)] if found else None

    def choose(self, items):
        return items[int(self.random.integers(len(items)))]

    def grow(self) -> None:
        kind = self.choose(("unary", "binary", "binary", "move", "move", "reduce", "reduce", "matmul"))
        value = self.pick()
        made = getattr(self, kind)(value, self.shape(value))
        if made is not None:
            self.values.append(made)

    def unary(self, value: V, shape) -> V:
        return self.step.op(self.choose(UNARY), self.step.op("tanh", value))

    def binary(self, value: V, shape) -> V | None:
        other = self.pick(lambda s: _broadcast(s, shape) is not None)
        return self.step.op("tanh", self.step.op(self.choose(BINARY), value, other))

    def reduce(self, value: V, shape) -> V | None:
        if not shape:
            return None
        count = int(self.random.integers(1, len(shape) + 1))
        dims = tuple(sorted(int(d) for d in self.random.choice(len(shape), count, replace=False)))
        name = self.choose(("sum", "mean", "amax"))
        return self.step.op("tanh", self.step.op(name, value, dims=dims, keepdim=bool(self.random.integers(2))))

    def matmul(self, value: V, shape) -> V | None:
        if len(shape) < 2:
            return None
        other = self.pick(lambda s: len(s) >= 2 and s[-2] == shape[-1] and _broadcast(s[:-2], shape[:-2]) is not None)
        return None if other is None else self.step.op("tanh", self.step.op("matmul", value, other))

    def move(self, value: V, shape) -> V | None:
        if not shape:
            return None
        match self.choose(MOVES):
            case "transpose":
                return self.step.op("transpose", value, perm=tuple(int(d) for d in self.random.permutation(len(shape))))
            case "flip":
                return self.step.op("flip", value, dims=(int(self.random.integers(len(shape))),))
            case "reshape":
                merged = (shape[0] * shape[1], *shape[2:]) if len(shape) > 1 else (*shape, 1)
                b, t, c = self.extents
                target = (b, t, c) if int(np.prod(shape)) == b * t * c and self.random.random() < 0.5 else merged
                return self.step.op("reshape", value, shape=target)
            case "slice":
                starts = tuple(int(self.random.integers(n)) for n in shape)
                sizes = tuple(int(self.random.integers(1, n - s + 1)) for n, s in zip(shape, starts, strict=True))
                return self.step.op("slice", value, starts=starts, sizes=sizes, steps=(1,) * len(shape))
            case _:
                return self.step.op("expand", value, shape=(2, *shape)) if len(shape) < 3 else None


def _broadcast(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...] | None:
    try:
        return np.broadcast_shapes(a, b)
    except ValueError:
        return None


def random_step(seed: int) -> Step:
    """A program of NUM_NODES operations with three outputs and one update of state."""
    program = _Program(seed)
    for _ in range(NUM_NODES):
        program.grow()
    for _ in range(3):
        program.step.output(program.step.op("neg", program.pick()))  # no view of state: it would show the new value
    state_shape = program.shape(program.state)
    new = program.pick(lambda shape: shape == state_shape)
    program.step.assign(program.state, program.step.op("add", new, 0.5))
    return program.step


@pytest.mark.parametrize("seed", range(60))
def test_random_program(seed):
    kernels_support.run_step(random_step(seed))
