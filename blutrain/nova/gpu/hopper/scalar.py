"""The cloner for device code: scalar regions on the GPU's own conversions and approximate functions.

tanh.approx has a relative error of 2^-11 (5e-4, as TF32 and bf16 operands have), exp 2 ulp + |x| 2^-24, log 2^-22 of
the larger of 1 and its value, division 2 ulp, reciprocals 1 ulp (PTX ISA, tanh, ex2, lg2, div.full, rcp); products
and sums may fuse; everything else as on a CPU.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeGuard

from mlir import ir

from blutrain.nova.clone import _LIBM, Coordinate, _Cloner
from blutrain.nova.gpu.builder import Builder
from blutrain.nova.gpu.emit_region import SimtCloner

LOG2_E = 1.4426950408889634
LN_2 = 0.6931471805599453


def clone_region(
    out: Builder, block: ir.Block, arguments: Sequence[str], lanes: int, coordinate: Coordinate | None = None
) -> list[str]:
    """`clone.clone_block` for device code."""
    return _DeviceCloner(out, lanes, coordinate).clone(block, arguments)


def clone_value(
    out: Builder, names: dict[ir.Value, str], value: ir.Value, lanes: int, coordinate: Coordinate | None = None
) -> str:
    """A value inside a region, from the names of the block arguments that it depends on; `names` gets those on the way."""
    cloner = _DeviceCloner(out, lanes, coordinate)

    def name_of(v: ir.Value) -> str:
        if v not in names:
            op = v.owner.operation
            names.update(zip(op.results, cloner.op(op, [name_of(x) for x in op.operands]), strict=True))
        return names[v]

    return name_of(value)


class _DeviceCloner(_Cloner):
    out: Builder

    def __init__(self, out: Builder, lanes: int, coordinate: Coordinate | None = None):
        super().__init__(out, lanes, coordinate)
        self.names: dict[ir.Value, str] = {}  # of what an operation has read

    def op(self, op: ir.Operation, operands: list[str]) -> list[str]:
        self.names.update(zip(op.operands, operands, strict=True))
        dtypes = {str(v.type) for v in (*op.operands, *op.results)}
        if op.name in ("arith.extf", "arith.truncf"):
            source, target = self.type(op.operands[0].type), self.type(op.results[0].type)
            if source == "vector<2xbf16>" and target == "vector<2xf32>":
                return [self._widen_pair(operands[0])]
            return [self.out.value(f"{op.name} {operands[0]} : {source} to {target}")]
        if op.name in _CONTRACTED and dtypes == {"f32"}:
            return [self._contracted(op.name.removeprefix("arith."), *operands)]
        if op.name == "math.exp" and dtypes == {"f32"}:
            return [self.exp2([self._scaled(op.operands[0], LOG2_E)])]
        if op.name == "arith.divf" and dtypes == {"f32"} and _is_one(op.operands[0]):
            return [self._each("rcp.approx.ftz.f32 $0, $1;", operands[1:])]
        if op.name in _APPROXIMATE and dtypes == {"f32"}:
            return [_APPROXIMATE[op.name](self, operands)]
        if op.name in _LIBM or op.name == "arith.remf":
            return [self._one_by_one(op, operands)]
        return super().op(op, operands)

    def _widen_pair(self, pair: str) -> str:
        """Two bf16 as f32: an instruction each, on the word that holds them."""
        out = self.out
        word = out.value(f"llvm.bitcast {pair} : vector<2xbf16> to i32")
        halves = out.bits("shli", word, 16), out.bits("andi", word, -(1 << 16))
        return out.vector([out.value(f"llvm.bitcast {half} : i32 to f32") for half in halves], "f32")

    def _one_by_one(self, op: ir.Operation, operands: list[str]) -> str:
        """What has code for scalars only."""
        dtypes = [str(v.type) for v in op.operands]
        results = []
        for lane in range(self.lanes):
            elements = [self.out.element(x, lane, d, self.lanes) for x, d in zip(operands, dtypes, strict=True)]
            results += SimtCloner(self.out, 0).op(op, elements)
        return self.out.vector(results, str(op.results[0].type))

    def extend(self, x: str, dtype: str) -> str:
        return self.out.value(f"arith.extf {x} : {self.type(dtype)} to {self.type('f32')}")

    def truncate(self, x: str, dtype: str) -> str:
        return self.out.value(f"arith.truncf {x} : {self.type('f32')} to {self.type(dtype)}")

    def tanh(self, operands: list[str]) -> str:
        return self._each("tanh.approx.f32 $0, $1;", operands)

    def exp2(self, operands: list[str]) -> str:
        return self._each("ex2.approx.ftz.f32 $0, $1;", operands)

    def log2(self, operands: list[str]) -> str:
        return self._each("lg2.approx.f32 $0, $1;", operands)

    def log(self, operands: list[str]) -> str:
        return self._times(self.log2(operands), LN_2)

    def divf(self, operands: list[str]) -> str:
        return self._each("div.full.f32 $0, $1, $2;", operands)

    def _times(self, x: str, factor: float) -> str:
        type_ = self.type("f32")
        return self.out.value(f"arith.mulf {x}, {self.out.constant(repr(factor), type_)} : {type_}")

    def _scaled(self, value: ir.Value, factor: float) -> str:
        """value times factor: in the constants that it is a sum or product of, where that takes no multiplication."""
        op, type_ = _producer(value), self.type("f32")
        number = _number(op)
        if number is not None:
            return self.out.constant(repr(number * factor), type_)
        if _absorbs(op):
            if op.name == "arith.negf":
                return self._scaled(op.operands[0], -factor)
            if op.name == "arith.mulf":
                a, b = sorted(op.operands, key=lambda x: _absorbs(_producer(x)))
                return self._contracted("mulf", self._name(self.names, a), self._scaled(b, factor))
            return self._contracted("addf", *(self._scaled(x, factor) for x in op.operands))
        return self._times(self._name(self.names, value), factor)

    def _contracted(self, name: str, a: str, b: str) -> str:
        return self.out.value(f"arith.{name} {a}, {b} fastmath<contract> : {self.type('f32')}")

    def _each(self, text: str, operands: list[str]) -> str:
        """One instruction for each lane."""
        constraints = ",".join(["=f", *["f"] * len(operands)])
        elements = [[self.out.element(x, lane, "f32", self.lanes) for x in operands] for lane in range(self.lanes)]
        results = [self.out.pure_asm(text, constraints, [(e, "f32") for e in lane], "f32") for lane in elements]
        return self.out.vector(results, "f32")


def _producer(value: ir.Value) -> ir.Operation | None:
    owner = value.owner
    return None if isinstance(owner, ir.Block) else owner.operation


def _number(op: ir.Operation | None) -> float | None:
    """The number that a constant is; None for others, infinities and NaN."""
    if op is None or op.name != "arith.constant":
        return None
    attribute = op.attributes["value"]
    if isinstance(attribute, ir.FloatAttr) and math.isfinite(attribute.value):
        return attribute.value
    return None


def _is_one(value: ir.Value) -> bool:
    return _number(_producer(value)) == 1.0


def _absorbs(op: ir.Operation | None) -> TypeGuard[ir.Operation]:
    """Whether a factor of an operation's result can go to constants alone: k, -x, k * y, x + x for such x."""
    if op is None or op.name not in ("arith.negf", "arith.mulf", "arith.addf"):
        return _number(op) is not None
    some = any if op.name == "arith.mulf" else all
    return some(_absorbs(_producer(x)) for x in op.operands)


_CONTRACTED = ("arith.addf", "arith.subf", "arith.mulf")
_APPROXIMATE = {
    "math.tanh": _DeviceCloner.tanh,
    "math.exp2": _DeviceCloner.exp2,
    "math.log": _DeviceCloner.log,
    "math.log2": _DeviceCloner.log2,
    "arith.divf": _DeviceCloner.divf,
}
