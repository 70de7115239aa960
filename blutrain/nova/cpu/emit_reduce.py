"""Reductions: how accumulators start, take in lanes of elements, merge, and become one scalar.

A reduction whose region ends in one known combiner (`acc = combine(f(inputs), acc)`) may be reordered: it runs in
vector accumulators, several at a time, that are merged pairwise in a fixed order. Any other region (argmax: value
and index with compare and select) is folded element by element in index order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mlir import ir

from blutrain.nova.clone import clone_op
from blutrain.nova.cpu.emit_domain import Placed
from blutrain.nova.cpu.emit_nest import Evaluator, Point
from blutrain.nova.emitter import Emitter, lane_type
from blutrain.nova.kernel import Generic, Produced, Splat, Undefined

_INFINITY = {"f64": "7FF0000000000000", "f32": "7F800000", "bf16": "7F80", "f16": "7C00"}
_MINUS_INFINITY = {"f64": "FFF0000000000000", "f32": "FF800000", "bf16": "FF80", "f16": "FC00"}


def neutral_literal(op_name: str, dtype: str) -> str | None:
    """MLIR's text of the combiner's neutral element; None for an op that is no known combiner."""
    bits = int(dtype[1:]) if dtype[0] == "i" else 0
    is_bool = dtype == "i1"
    match op_name.removeprefix("arith."):
        case "addf":
            return "0.0"
        case "mulf":
            return "1.0"
        case "maximumf" | "maxnumf":
            return "0x" + _MINUS_INFINITY[dtype]
        case "minimumf" | "minnumf":
            return "0x" + _INFINITY[dtype]
        case "addi" | "ori" | "xori" | "maxui":
            return "false" if is_bool else "0"
        case "muli":
            return "true" if is_bool else "1"
        case "andi" | "minui":
            return "true" if is_bool else "-1"
        case "maxsi":
            return "true" if is_bool else str(-(1 << bits - 1))
        case "minsi":
            return "false" if is_bool else str((1 << bits - 1) - 1)
    return None


@dataclass(frozen=True, eq=False)
class Reduction:
    """Body op `index` of the kernel as a reduction. `combiners[i]` combines result i; empty: fold in order."""

    index: int
    placed: Placed
    combiners: tuple[ir.Operation, ...]

    @property
    def op(self) -> Generic:
        assert isinstance(self.placed.op, Generic)
        return self.placed.op

    @property
    def dtypes(self) -> tuple[str, ...]:
        return tuple(t.dtype for t in self.op.types)

    @property
    def results(self) -> tuple[Produced, ...]:
        return tuple(Produced(self.index, i) for i in range(len(self.op.types)))

    @property
    def is_ordered(self) -> bool:
        return not self.combiners

    def neutral(self, out: Emitter, lanes: int) -> list[str]:
        """Accumulators that hold nothing yet."""
        names = []
        for op, dtype in zip(self.combiners, self.dtypes, strict=True):
            literal = neutral_literal(op.name, dtype)
            assert literal is not None
            names.append(out.constant(literal, lane_type(dtype, lanes)))
        return names

    def carried(self, out: Emitter, lanes: int) -> list[tuple[str, str]]:
        return [(n, lane_type(d, lanes)) for n, d in zip(self.neutral(out, lanes), self.dtypes, strict=True)]

    def merge(self, out: Emitter, a: Sequence[str], b: Sequence[str], lanes: int) -> list[str]:
        return [clone_op(out, op, (x, y), lanes)[0] for op, x, y in zip(self.combiners, a, b, strict=True)]

    def accumulate(self, evaluator: Evaluator, point: Point, accumulators: Sequence[str]) -> list[str]:
        """The accumulators after the elements at `point`; lanes outside its mask keep theirs."""
        new = evaluator.region(self.placed, point, accumulators)
        if point.mask is None:
            return new
        bools = lane_type("i1", point.lanes)
        return [
            evaluator.out.value(f"arith.select {point.mask}, {n}, {a} : {bools}, {lane_type(d, point.lanes)}")
            for n, a, d in zip(new, accumulators, self.dtypes, strict=True)
        ]

    def horizontal(self, out: Emitter, accumulators: Sequence[str], lanes: int) -> list[str]:
        """Lanes to one scalar each, by halves."""
        values = list(accumulators)
        while lanes > 1:
            half = lanes // 2
            values = self.merge(out, self._slice(out, values, lanes, 0), self._slice(out, values, lanes, half), half)
            lanes = half
        types = [lane_type(d, 1) for d in self.dtypes]
        return [
            out.value(f"vector.extract {v}[0] : {d} from {t}")
            for v, d, t in zip(values, self.dtypes, types, strict=True)
        ]

    def _slice(self, out: Emitter, values: Sequence[str], lanes: int, start: int) -> list[str]:
        half = lanes // 2
        return [
            out.value(
                f"vector.extract_strided_slice {v} {{offsets = [{start}], sizes = [{half}], strides = [1]}} : "
                f"{lane_type(d, lanes)} to {lane_type(d, half)}"
            )
            for v, d in zip(values, self.dtypes, strict=True)
        ]

    def finish(self, evaluator: Evaluator, accumulators: Sequence[str], point: Point) -> list[str]:
        """Put the init in front: a neutral fill changes nothing, anything else (accumulate onto) is combined."""
        results = []
        for op, name, access in zip(self.combiners, accumulators, self.placed.outputs, strict=True):
            source = access.source
            if isinstance(source, Splat) and _is_same_number(source.literal, neutral_literal(op.name, access.dtype)):
                results.append(name)
            else:
                init = evaluator.read(access, point)
                results.append(clone_op(evaluator.out, op, (init, name), point.lanes)[0])
        return results


def _is_same_number(a: str, b: str | None) -> bool:
    if a == b or b is None:
        return a == b
    try:
        return float(a) == float(b)
    except ValueError:
        return False


def as_reduction(index: int, placed: Placed) -> Reduction:
    """Find the combiners: the yielded value of each result is a known op on its accumulator, used nowhere else."""
    op = placed.op
    assert isinstance(op, Generic)
    num_inputs = len(op.inputs)
    yielded = list(op.block.operations)[-1].operands
    combiners: list[ir.Operation] = []
    for i, value in enumerate(yielded):
        accumulator = op.block.arguments[num_inputs + i]
        owner = value.owner
        producer = None if isinstance(owner, ir.Block) else getattr(owner, "operation", owner)
        if producer is None or neutral_literal(producer.name, op.types[i].dtype) is None:
            return Reduction(index, placed, ())
        uses = list(accumulator.uses)
        if len(uses) != 1 or accumulator not in list(producer.operands) or len(list(value.uses)) != 1:
            return Reduction(index, placed, ())
        combiners.append(producer)
    if any(isinstance(a.source, Undefined) for a in op.outputs):
        return Reduction(index, placed, ())
    return Reduction(index, placed, tuple(combiners))
