"""The cloner for device code: scalar regions on the GPU's own conversions and approximate functions.

tanh.approx has a relative error of 2^-11 (5e-4, as TF32 and bf16 operands have), exp 2 ulp + |x| 2^-24, log 2^-22 of
the larger of 1 and its value, division 2 ulp, reciprocals 1 ulp (PTX ISA, tanh, ex2, lg2, div.full, rcp); products
and sums may fuse; everything else as on a CPU.
"""

from __future__ import annotations

from collections.abc import Sequence

from mlir import ir

from blutrain.nova.clone import _LIBM, Coordinate, _Cloner
from blutrain.nova.gpu.emit_region import SimtCloner
from blutrain.nova.gpu.hopper.builder import Builder

LOG2_E = 1.4426950408889634
LN_2 = 0.6931471805599453


def clone_region(
    out: Builder, block: ir.Block, arguments: Sequence[str], lanes: int, coordinate: Coordinate | None = None
) -> list[str]:
    """`clone.clone_block` for device code."""
    return _DeviceCloner(out, lanes, coordinate).clone(block, arguments)


class _DeviceCloner(_Cloner):
    out: Builder

    def op(self, op: ir.Operation, operands: list[str]) -> list[str]:
        dtypes = {str(v.type) for v in (*op.operands, *op.results)}
        if op.name in ("arith.extf", "arith.truncf"):
            source, target = self.type(op.operands[0].type), self.type(op.results[0].type)
            if source == "vector<2xbf16>" and target == "vector<2xf32>":
                return [self._widen_pair(operands[0])]
            return [self.out.value(f"{op.name} {operands[0]} : {source} to {target}")]
        if op.name in _CONTRACTED and dtypes == {"f32"}:
            type_ = self.type("f32")
            return [self.out.value(f"{op.name} {operands[0]}, {operands[1]} fastmath<contract> : {type_}")]
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

    def exp(self, operands: list[str]) -> str:
        return self.exp2([self._times(operands[0], LOG2_E)])

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

    def _each(self, text: str, operands: list[str]) -> str:
        """One instruction for each lane."""
        constraints = ",".join(["=f", *["f"] * len(operands)])
        elements = [[self.out.element(x, lane, "f32", self.lanes) for x in operands] for lane in range(self.lanes)]
        results = [self.out.pure_asm(text, constraints, [(e, "f32") for e in lane], "f32") for lane in elements]
        return self.out.vector(results, "f32")


def _is_one(value: ir.Value) -> bool:
    owner = value.owner
    return not isinstance(owner, ir.Block) and owner.name == "arith.constant" and _holds_one(owner.operation)


def _holds_one(constant: ir.Operation) -> bool:
    attribute = constant.attributes["value"]
    return isinstance(attribute, ir.FloatAttr) and attribute.value == 1.0


_CONTRACTED = ("arith.addf", "arith.subf", "arith.mulf")
_APPROXIMATE = {
    "math.tanh": _DeviceCloner.tanh,
    "math.exp": _DeviceCloner.exp,
    "math.exp2": _DeviceCloner.exp2,
    "math.log": _DeviceCloner.log,
    "math.log2": _DeviceCloner.log2,
    "arith.divf": _DeviceCloner.divf,
}
