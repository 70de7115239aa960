"""The instructions that multiply: shape, operand type, and which element of a tile each lane and register holds.

A warp computes a tile of m x n from k steps. Its factors are cut into subtiles 8 wide (4 for the columns of `fma`):
lane 4g + t holds of a row subtile row g, of a column subtile column g as a factor, columns 2t and 2t + 1 as a result
(PTX ISA, "Matrix multiply-accumulate operation using mma instruction", figures of m16n8k8 and m16n8k16).
"""

from __future__ import annotations

from dataclasses import dataclass

from blutrain.nova.gpu.builder import Builder, struct

LANES = 32
KEPT = -1 << 13  # of an f32's bits by TF32
# 1 + 2^-10 / (4 ln 2): what truncation to TF32 takes on average, of numbers whose logarithms are spread evenly.
MAKES_UP_FOR_TRUNCATION = "0x3F800B8B"
LARGEST = "0x7F7FE000"  # of TF32


@dataclass(frozen=True)
class Instruction:
    """`name` as the schedule prints it. `dtype`: of the factors in shared memory; `result`: of the accumulators.

    `m`, `n`, `k`: the tile of one instruction. `products`: instructions for one product of tiles.
    """

    name: str
    dtype: str
    result: str
    m: int
    n: int
    k: int
    products: int = 1

    @property
    def is_mma(self) -> bool:
        return self.name != "fma.f64"

    @property
    def subtile(self) -> dict[str, int]:
        """Width of a subtile along m and n."""
        return {"m": 8, "n": min(8, self.n)}

    @property
    def registers(self) -> int:
        """Accumulators of a lane for one tile."""
        return self.m * self.n // LANES


INSTRUCTIONS = {
    "bf16": Instruction("mma.m16n8k16.bf16", "bf16", "f32", 16, 8, 16),
    "f16": Instruction("mma.m16n8k16.f16", "f16", "f32", 16, 8, 16),
    "tf32": Instruction("mma.m16n8k8.tf32", "f32", "f32", 16, 8, 8),
    "fp32": Instruction("mma.m16n8k8.tf32x3", "f32", "f32", 16, 8, 8, products=3),
    "f64": Instruction("fma.f64", "f64", "f64", 8, 4, 1),
}

Fragment = list[str]  # registers of one subtile: k low and k high halves, each an i32; one f64 for `fma`


class Multiplier:
    """Emits products of fragments. `prepare` is what a factor's fragment needs once, however often it is used."""

    def __init__(self, out: Builder, kind: str):
        self.out, self.kind, self.instruction = out, kind, INSTRUCTIONS[kind]

    def prepare(self, fragment: Fragment) -> list[Fragment]:
        """The fragment as the instruction takes it; for "fp32" the rounded values and what rounding left."""
        if self.kind == "tf32":
            return [[self._round(self._float(x)) for x in fragment]]
        if self.kind == "fp32":
            pairs = [self._split(self._float(x)) for x in fragment]
            return [[big for big, _ in pairs], [small for _, small in pairs]]
        return [fragment]

    def multiply(self, sums: list[str], rows: list[list[Fragment]], column: list[Fragment]) -> list[str]:
        """sums + rows * column for one tile; `rows`: the prepared subtiles of its m, `column`: that of its n."""
        if not self.instruction.is_mma:
            return [self.out.value(f"math.fma {rows[0][0][0]}, {column[0][0]}, {sums[0]} : f64")]
        if self.kind != "fp32":
            return self._mma(sums, self._rows(rows, 0), column[0])
        # Small terms first. The tensor cores truncate as they add, so the running sum is kept in the ordinary
        # units, which round (Ootomo and Yokota, "Recovering single precision accuracy from Tensor Cores", 2022).
        zero = self.out.constant("0.0", "f32")
        terms = [zero] * self.instruction.registers
        for row_part, column_part in ((1, 0), (0, 1), (0, 0)):
            terms = self._mma(terms, self._rows(rows, row_part), column[column_part])
        return [self.out.value(f"arith.addf {s}, {t} : f32") for s, t in zip(sums, terms, strict=True)]

    def _rows(self, rows: list[list[Fragment]], part: int) -> list[str]:
        """Both row subtiles in the instruction's order: k low of each, then k high."""
        return [rows[half][part][k] for k in (0, 1) for half in (0, 1)]

    def _mma(self, sums: list[str], rows: list[str], column: list[str]) -> list[str]:
        dtype = "tf32" if self.instruction.dtype == "f32" else self.instruction.dtype
        shape = f"m{self.instruction.m}n{self.instruction.n}k{self.instruction.k}"
        text = (
            f"mma.sync.aligned.{shape}.row.col.f32.{dtype}.{dtype}.f32 "
            "{$0,$1,$2,$3}, {$4,$5,$6,$7}, {$8,$9}, {$0,$1,$2,$3};"
        )
        arguments = [(x, "i32") for x in (*rows, *column)] + [(x, "f32") for x in sums]
        result = self.out.pure_asm(text, "=f,=f,=f,=f,r,r,r,r,r,r,0,1,2,3", arguments, struct("f32", 4))
        return self.out.unpack(result, "f32", 4)

    def _float(self, x: str) -> str:
        return self.out.value(f"llvm.bitcast {x} : i32 to f32")

    def _round(self, x: str) -> str:
        """To TF32 as an i32, in whose low bits the instruction, which truncates, takes no part.

        At most 0.72 of TF32's last place away, 1/2 for `cvt.rna`, and 6 % more on average (root mean square); numbers of
        TF32 stay what they are, sums of normal numbers lean to neither side. One multiplication, where `cvt.rna` is a
        comparison, a copy and an addition, more issue slots than the products take.
        """
        out = self.out
        scaled = out.value(f"arith.mulf {x}, {out.constant(MAKES_UP_FOR_TRUNCATION, 'f32')} : f32")
        return out.value(f"llvm.bitcast {scaled} : f32 to i32")

    def _split(self, x: str) -> tuple[str, str]:
        """x = big + small + at most 2^-20 x, as i32; `big` is of TF32, the instruction truncates `small`.

        What is not finite, or might not be once rounded, goes to `small` whole and `big` is 0: so infinite factors meet
        only the other factor's big part, which has its sign, and never its small one.
        """
        out = self.out
        size = out.value(f"math.absf {x} : f32")
        is_kept = out.value(f"arith.cmpf olt, {size}, {out.constant(LARGEST, 'f32')} : f32")
        kept = out.value(f"arith.select {is_kept}, {out.name(KEPT)}, {out.name(0)} : i32")
        big = out.value(f"arith.andi {self._round(x)}, {kept} : i32")
        small = out.value(f"arith.subf {x}, {self._float(big)} : f32")
        return big, out.value(f"llvm.bitcast {small} : f32 to i32")
