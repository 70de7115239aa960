"""From shared memory to the registers of a multiply instruction: one factor's subtiles for a step of k.

The route follows from the factor's layout and precision:

    factor in shared memory      16 bits             32 bits                      64 bits
    contiguous along k           ldmatrix            ldmatrix                     ld.shared
    contiguous along m or n      ldmatrix.trans      ld.shared.v4 / v2 / b32      ld.shared

ldmatrix moves rows of 16 bytes, so two 32-bit elements pass as one of its pairs, but its transposition would tear them
apart. There a lane reads its elements of `run` interleaved subtiles (see `layout`) as one vector.
"""

from __future__ import annotations

from blutrain.nova.gpu.ampere.instruction import Fragment
from blutrain.nova.gpu.ampere.tiles import Tiles
from blutrain.nova.gpu.builder import Builder, Integer, struct


class Fragments:
    """One side's fragments for the warp whose first element along the side's own axis is `first`."""

    def __init__(self, out: Builder, tiles: Tiles, axis: str, lane: str, first: Integer, base: int):
        self.out, self.base, self.axis = out, base, axis
        self.instruction = tiles.problem.instruction
        self.shared, self.run = tiles.shared[axis], tiles.run(axis)
        self.k_major = tiles.problem.sides[axis].is_k_major
        self.item, self.width = tiles.problem.item, self.instruction.subtile[axis]
        self.subtiles = tiles.warp_tile(axis) // self.width
        self.quad, self.row = out.rem(lane, 4), out.div(lane, 4)
        self._emit = self._route()
        self.offset = self._first(lane, first)

    def _route(self):
        if not self.instruction.is_mma:
            return self._scalars
        if self.k_major or self.item == 2:
            return self._matrices
        return self._vectors

    def load(self, stage: Integer, step: int) -> list[Fragment]:
        """The subtiles' fragments at step `step` of k (in instructions) of the stage at shared address `stage`."""
        return self._emit(stage, step)

    def _first(self, lane: str, first: Integer) -> Integer:
        """Offset of what this lane reads (or, for ldmatrix, names) of the first subtiles at k = 0."""
        out, item = self.out, self.item
        if self._emit == self._matrices:
            # Lane i names row i mod 8 of matrix i div 8.
            subtile, half = self._matrix_of(out.rem(out.div(lane, 8), 2), out.div(lane, 16))
            own, k = out.mul(subtile, self.width), out.mul(half, self.instruction.k // 2)
            if self.k_major:
                line = out.add(first, out.add(out.rem(lane, 8), own))
                return self.shared.offset(out, line, out.mul(k, item))
            return self.shared.offset(out, out.add(out.rem(lane, 8), k), out.mul(out.add(first, own), item))
        if self._emit == self._vectors:
            return self.shared.offset(out, self.quad, out.mul(out.add(first, out.mul(self.row, self.run)), item))
        element = out.add(first, self.row if self.axis == "m" else self.quad)
        return (
            self.shared.offset(out, element, 0) if self.k_major else self.shared.offset(out, 0, out.mul(element, item))
        )

    def _matrix_of(self, low: Integer, high: Integer) -> tuple[Integer, Integer]:
        """(subtile, half of k) of ldmatrix's matrix 2 high + low.

        What one instruction takes must lie in neighbouring registers: of rows both subtiles, k low before k high; of
        columns one subtile's k low and k high.
        """
        return (low, high) if self.axis == "m" else (high, low)

    def _at(self, stage: Integer, line: int, byte: int) -> tuple[str, int]:
        """Address and immediate, from this lane's first."""
        place, immediate = self.shared.moved(self.out, self.offset, line, byte)
        return self.out.name(self.out.add(stage, place)), immediate + self.base

    def _matrices(self, stage: Integer, step: int) -> list[Fragment]:
        k = step * self.instruction.k
        trans = "" if self.k_major else ".trans"
        result: list[Fragment] = []
        for q in range(0, self.subtiles, 2):
            line, byte = (q * self.width, k * self.item) if self.k_major else (k, q * self.width * self.item)
            address, immediate = self._at(stage, line, byte)
            text = f"ldmatrix.sync.aligned.m8n8.x4{trans}.shared.b16 {{$0,$1,$2,$3}}, [$4+{immediate}];"
            loaded = self.out.asm(text, "=r,=r,=r,=r,r,~{memory}", [(address, "i32")], struct("i32", 4))
            words = self.out.unpack(loaded, "i32", 4)
            order = {self._matrix_of(i % 2, i // 2): words[i] for i in range(4)}
            result += [[order[subtile, half] for half in (0, 1)] for subtile in (0, 1)]
        return result

    def _vectors(self, stage: Integer, step: int) -> list[Fragment]:
        result: list[Fragment] = []
        for q in range(0, self.subtiles, self.run):
            halves = []
            for k in (0, self.instruction.k // 2):
                address, immediate = self._at(stage, step * self.instruction.k + k, q * self.width * self.item)
                halves.append(self._vector(address, immediate))
            result += [list(pair) for pair in zip(*halves, strict=True)]
        return result

    def _vector(self, address: str, immediate: int) -> list[str]:
        registers = ",".join(f"${i}" for i in range(self.run))
        constraints = ",".join([*["=r"] * self.run, "r", "~{memory}"])
        if self.run == 1:
            return [self.out.asm(f"ld.shared.b32 $0, [$1+{immediate}];", constraints, [(address, "i32")], "i32")]
        text = f"ld.shared.v{self.run}.b32 {{{registers}}}, [${self.run}+{immediate}];"
        loaded = self.out.asm(text, constraints, [(address, "i32")], struct("i32", self.run))
        return self.out.unpack(loaded, "i32", self.run)

    def _scalars(self, stage: Integer, step: int) -> list[Fragment]:
        result: list[Fragment] = []
        for q in range(self.subtiles):
            line, byte = (q * self.width, step * self.item) if self.k_major else (step, q * self.width * self.item)
            address, immediate = self._at(stage, line, byte)
            text = f"ld.shared.f64 $0, [$1+{immediate}];"
            result.append([self.out.asm(text, "=d,r,~{memory}", [(address, "i32")], "f64")])
        return result
