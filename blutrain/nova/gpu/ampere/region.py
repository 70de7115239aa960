"""The cloner for epilogues and prologues: exact as everywhere (`SimtCloner`), or with the GPU's approximate functions.

Products of TF32 and 16-bit factors are rounded at 2^-11; tanh.approx errs no more than that, ex2, lg2 and div.full by
a few units in the last place (PTX ISA). f32 and f64 products keep their precision in what follows them.
"""

from __future__ import annotations

from mlir import ir

from blutrain.nova.clone import Coordinate
from blutrain.nova.gpu.builder import Builder
from blutrain.nova.gpu.emit_region import SimtCloner

_LOG2_E, _LN_2 = 1.4426950408889634, 0.6931471805599453


def cloner(out: Builder, block: ir.Block | None, fast: bool, coordinate: Coordinate | None = None) -> SimtCloner:
    """For scalars of one thread."""
    return (_FastCloner if fast else SimtCloner)(out, 0, coordinate, None)


class _FastCloner(SimtCloner):
    def op(self, op: ir.Operation, operands: list[str]) -> list[str]:
        if op.name in _APPROXIMATE and str(op.results[0].type) == "f32":
            return [_APPROXIMATE[op.name](self, *operands)]
        return super().op(op, operands)

    def instruction(self, name: str, *operands: str) -> str:
        places = ", ".join(f"${i}" for i in range(len(operands) + 1))
        constraints = ",".join(["=f", *["f"] * len(operands)])
        return self.out.pure_asm(f"{name} {places};", constraints, [(x, "f32") for x in operands], "f32")  # type: ignore[attr-defined]

    def scaled(self, x: str, factor: float) -> str:
        return self.out.value(f"arith.mulf {x}, {self.out.constant(repr(factor), 'f32')} : f32")


_APPROXIMATE = {
    "math.tanh": lambda c, x: c.instruction("tanh.approx.f32", x),
    "math.exp2": lambda c, x: c.instruction("ex2.approx.ftz.f32", x),
    "math.exp": lambda c, x: c.instruction("ex2.approx.ftz.f32", c.scaled(x, _LOG2_E)),
    "math.log": lambda c, x: c.scaled(c.instruction("lg2.approx.f32", x), _LN_2),
    "arith.divf": lambda c, x, y: c.instruction("div.full.f32", x, y),
}
