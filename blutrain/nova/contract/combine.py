"""Reductions of a product taken apart: the combiner, its neutral value, and what is combined."""

from __future__ import annotations

from typing import Protocol, TypeVar

from mlir import ir

from blutrain.nova.clone import Coordinate, clone_op
from blutrain.nova.contract.form import ColumnReduction, Expression
from blutrain.nova.emitter import Emitter
from blutrain.nova.kernel import Index, Unsupported

# The value that changes nothing, by combiner; `dtype` decides the spelling of the extremes.
NEUTRAL = {"arith.addf": "0.0", "arith.mulf": "1.0"}


class _Lanes(Protocol):
    @property
    def lanes(self) -> int: ...


_At = TypeVar("_At", bound=_Lanes, contravariant=True)


class Evaluates(Protocol[_At]):
    """What a target's evaluator has: `_At` is how it names the elements of a vector."""

    def value(self, expression: Expression, at: _At, accumulated: str | None = None, /) -> str: ...

    def coordinate(self, indices: tuple[Index, ...], at: _At, /) -> Coordinate: ...

    def region_value(
        self, names: dict[ir.Value, str], value: ir.Value, lanes: int, coordinate: Coordinate, /
    ) -> str: ...


class Combiner:
    """A reducing region taken apart: `acc op f(inputs)`."""

    def __init__(self, reduction: ColumnReduction):
        block = reduction.generic.block
        arguments = list(block.arguments)
        self.inputs, accumulator = arguments[:-1], arguments[-1]
        total = list(block.operations)[-1].operands[0].owner
        self.op = getattr(total, "operation", total)
        if self.op.name not in NEUTRAL or accumulator not in list(self.op.operands):
            raise Unsupported(f"contract: reduces rows with {self.op.name}, expected one of {', '.join(NEUTRAL)}")
        (self.element,) = [v for v in self.op.operands if v != accumulator]
        self.dtype = str(accumulator.type)
        self.neutral = NEUTRAL[self.op.name]

    def combine(self, out: Emitter, a: str, b: str, lanes: int) -> str:
        return clone_op(out, self.op, [a, b], lanes)[0]

    def value(self, evaluator: Evaluates[_At], reduction: ColumnReduction, at: _At, accumulated: str) -> str:
        """f(inputs) at a position."""
        arguments = [evaluator.value(a, at, accumulated) for a in reduction.arguments]
        names: dict[ir.Value, str] = dict(zip(self.inputs, arguments, strict=True))
        return evaluator.region_value(names, self.element, at.lanes, evaluator.coordinate(reduction.indices, at))
