"""A factor's tile in shared memory: lines of neighbours along its major axis, with the XOR swizzle.

Line l is `pitch` bytes behind the one before; its 16-byte chunk c lies at place c ^ s(l). Copies write whole lines.
s spreads what one instruction reads over all banks: ldmatrix reads one chunk of eight lines, and so do the f64 loads;
the vector loads of 32-bit factors that are contiguous along m or n read chunks g of lines t = 0..3, eight lanes at a
time two g of each t, so there s = 2 t. Every s is linear in the bits of l, and tiles are powers of two, so that an
offset known now enters an address that only the thread knows by one XOR and an immediate.
"""

from __future__ import annotations

from dataclasses import dataclass

from blutrain.nova.gpu.builder import Builder, Integer

CHUNK = 16  # bytes


@dataclass(frozen=True)
class SharedTile:
    """`lines` of `width` elements of `item` bytes. `reads_vectors`: as 32-bit factors along m or n are."""

    lines: int
    width: int
    item: int
    reads_vectors: bool

    @property
    def pitch(self) -> int:
        return self.width * self.item

    @property
    def chunks(self) -> int:
        return self.pitch // CHUNK

    @property
    def bytes(self) -> int:
        return self.lines * self.pitch

    def _swizzle_bits(self) -> tuple[int, int, int]:
        """(right shift, mask, left shift) that make s(l) of l."""
        if self.reads_vectors and self.chunks >= 8:
            return 0, 3, 1
        # Narrower lines: 128 bytes hold several, which differ in banks already.
        return {1: (0, 0, 0), 2: (2, 1, 0), 4: (1, 3, 0)}.get(self.chunks, (0, 7, 0))

    def swizzle(self, line: int) -> int:
        right, mask, left = self._swizzle_bits()
        return (line >> right & mask) << left

    def offset(self, out: Builder, line: Integer, byte: Integer) -> Integer:
        """Byte offset of byte `byte` of a line."""
        if isinstance(line, int) and isinstance(byte, int):
            return self._constant(line, byte)
        right, mask, left = self._swizzle_bits()
        start = out.mul(line, self.pitch)
        if mask == 0:
            return out.add(start, byte)
        place = out.mul(out.rem(out.div(line, 1 << right), mask + 1), CHUNK << left)
        return out.add(start, byte if place == 0 else out.bits("xori", byte, place))

    def _constant(self, line: int, byte: int) -> int:
        return line * self.pitch + (byte ^ self.swizzle(line) * CHUNK)

    def moved(self, out: Builder, offset: Integer, line: int, byte: int) -> tuple[Integer, int]:
        """`offset` moved by constants whose bits its line and byte do not have: what to XOR it to, and to add."""
        flip = (byte // CHUNK ^ self.swizzle(line)) * CHUNK
        place = offset if flip == 0 else out.bits("xori", offset, flip)
        return place, line * self.pitch + byte % CHUNK
