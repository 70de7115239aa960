"""A chunk of a matrix in shared memory as TMA leaves or finds it: rows of up to 128 bytes, swizzled, and how the pieces
of a consumer's threads lie in it. Every access of a warp falls into different banks, but for f32 pairs (two ways).
"""

from __future__ import annotations

from blutrain.nova.gpu.builder import Builder, Integer, struct
from blutrain.nova.gpu.hopper.machine import Thread
from blutrain.nova.gpu.hopper.pieces import Piece, tile_of
from blutrain.nova.gpu.hopper.schedule import CONSUMER_ROWS, STAGE_ROW_BYTES
from blutrain.nova.gpu.hopper.tiles import Tiles
from blutrain.nova.kernel import ITEM_BYTES, Access

PIECES_AT_ONCE = 4  # what one stmatrix or ldmatrix takes


class Block:
    """The places of a thread's pieces in a chunk of a matrix."""

    def __init__(self, out: Builder, tiles: Tiles, thread: Thread, access: Access):
        self.out, self.tiles, self.thread, self.dtype = out, tiles, thread, access.dtype
        self.tile, self.item = tile_of(tiles, access), ITEM_BYTES[access.dtype]
        self.row_bytes = self.tile.row_bytes

    def write(self, at: Integer, skipped: int, chunk: list[Piece], values: list[str]) -> None:
        """All pieces of a chunk into the block that lies `skipped` bytes from shared address `at`: a number that goes into
        the instructions, so that all blocks of a ring share the registers of addresses.
        """
        if self.tiles.p_axis == "n":
            self._write_rows(at, skipped, chunk, values)
        elif self.item == 4:
            self._write_pairs(at, skipped, chunk, values)
        else:
            self._write_matrices(at, skipped, chunk, values)

    def read(self, at: Integer, skipped: int, chunk: list[Piece]) -> list[str]:
        """All pieces of a chunk from the block that lies `skipped` bytes from shared address `at`: a vector each."""
        if self.tiles.p_axis == "n":
            return self._read_rows(at, skipped, chunk)
        if self.item == 4:
            return self._read_pairs(at, skipped, chunk)
        return self._read_matrices(at, skipped, chunk)

    # --- f32: two neighbours of a row

    def _pairs(self, at: Integer, chunk: list[Piece]) -> list[tuple[str, int]]:
        """Address of each piece: a name and a number."""
        out, thread, first = self.out, self.thread, chunk[0].run
        row, pair = out.bits("shrui", thread.lane, 2), out.bits("andi", thread.lane, 3)
        base = out.add(out.add(at, out.mul(self._row(), self.row_bytes)), out.mul(out.bits("andi", pair, 1), 8))
        column = out.mul(out.bits("xori", out.bits("shrui", pair, 1), self._swizzle(row)), 16)
        places = []
        for piece in chunk:
            block = (piece.run.column - first.column) // 8
            address = out.name(out.add(base, out.bits("xori", column, 32 * block)))
            places.append((address, (piece.run.row - first.row) * self.row_bytes))
        return places

    def _write_pairs(self, at: Integer, skipped: int, chunk: list[Piece], values: list[str]) -> None:
        out = self.out
        for (address, offset), value in zip(self._pairs(at, chunk), values, strict=True):
            elements = [(out.element(value, lane, "f32", 2), "f32") for lane in range(2)]
            text = f"st.shared.v2.f32 [$0+{skipped + offset}], {{$1,$2}};"
            out.asm(text, "r,f,f,~{memory}", [(address, "i32"), *elements])

    def _read_pairs(self, at: Integer, skipped: int, chunk: list[Piece]) -> list[str]:
        return [self._words(address, skipped + offset, 2) for address, offset in self._pairs(at, chunk)]

    # --- 16-bit: four 8 x 8 matrices, (columns 0-7, 8-15) x (rows 0-7, 8-15)

    def _matrices(self, at: Integer, chunk: list[Piece]) -> list[str]:
        """What a lane passes for each four pieces: the address of one row of their four matrices."""
        out, thread = self.out, self.thread
        eight = out.bits("andi", thread.lane, 7)
        row = out.add(eight, out.mul(out.bits("andi", out.bits("shrui", thread.lane, 3), 1), 8))
        warp_row = out.add(out.mul(out.bits("andi", thread.warp, 3), 16), row)
        base = out.add(at, out.mul(warp_row, self.row_bytes))
        column = out.mul(out.bits("xori", out.bits("shrui", thread.lane, 4), self._swizzle(eight)), 16)
        steps = [2 * (piece.run.column - chunk[0].run.column) for piece in chunk[::PIECES_AT_ONCE]]
        return [out.name(out.add(base, out.bits("xori", column, step))) for step in steps]

    def _write_matrices(self, at: Integer, skipped: int, chunk: list[Piece], values: list[str]) -> None:
        out = self.out
        words = [(out.value(f"llvm.bitcast {v} : vector<2x{self.dtype}> to i32"), "i32") for v in values]
        text = f"stmatrix.sync.aligned.m8n8.x4.shared.b16 [$0+{skipped}], {{$1,$2,$3,$4}};"
        for i, address in enumerate(self._matrices(at, chunk)):
            four = words[PIECES_AT_ONCE * i : PIECES_AT_ONCE * (i + 1)]
            out.asm(text, "r,r,r,r,r,~{memory}", [(address, "i32"), *four])

    def _read_matrices(self, at: Integer, skipped: int, chunk: list[Piece]) -> list[str]:
        out, vectors = self.out, []
        text = f"ldmatrix.sync.aligned.m8n8.x4.shared.b16 {{$0,$1,$2,$3}}, [$4+{skipped}];"
        for address in self._matrices(at, chunk):
            loaded = out.asm(text, "=r,=r,=r,=r,r,~{memory}", [(address, "i32")], struct("i32", 4))
            words = out.unpack(loaded, "i32", 4)
            vectors += [out.value(f"llvm.bitcast {w} : i32 to vector<2x{self.dtype}>") for w in words]
        return vectors

    # --- transposed: 2 * blocks neighbours of rows 2 * (lane % 4), in boxes side by side

    def _rows(self, at: Integer, chunk: list[Piece]) -> list[tuple[str, int]]:
        """Address of each piece: a name and a number."""
        out, lanes, first = self.out, chunk[0].run.lanes, chunk[0].run.row
        column = out.mul(self._column(lanes), self.item)
        box, within = out.div(column, STAGE_ROW_BYTES), out.rem(column, STAGE_ROW_BYTES)
        row = self._row()
        base = out.add(at, out.mul(box, self.tile.box_bytes))
        base = out.add(out.add(base, out.rem(within, 16)), out.mul(row, STAGE_ROW_BYTES))
        addresses = []
        for e in range(2):
            unit = out.bits("xori", out.div(within, 16), out.add(row, e))
            addresses.append(out.name(out.add(base, out.mul(unit, 16))))
        return [(addresses[(p.run.row - first) % 2], (p.run.row - first) * STAGE_ROW_BYTES) for p in chunk]

    def _read_rows(self, at: Integer, skipped: int, chunk: list[Piece]) -> list[str]:
        count = chunk[0].run.lanes * self.item // 4
        return [self._words(address, skipped + offset, count) for address, offset in self._rows(at, chunk)]

    def _write_rows(self, at: Integer, skipped: int, chunk: list[Piece], values: list[str]) -> None:
        out, lanes = self.out, chunk[0].run.lanes
        count = lanes * self.item // 4
        registers = ",".join(f"${i + 1}" for i in range(count))
        text = f"st.shared.v{count}.b32 [$0+%d], {{{registers}}};" if count > 1 else "st.shared.b32 [$0+%d], $1;"
        for (address, offset), value in zip(self._rows(at, chunk), values, strict=True):
            words = out.value(f"llvm.bitcast {value} : vector<{lanes}x{self.dtype}> to vector<{count}xi32>")
            elements = [(out.element(words, i, "i32", count), "i32") for i in range(count)]
            out.asm(
                text % (skipped + offset), ",".join(["r"] * (1 + count) + ["~{memory}"]), [(address, "i32"), *elements]
            )

    # --- where a thread's first piece lies in a chunk

    def _column(self, lanes: int) -> Integer:
        """Transposed: its column within the consumer's share."""
        out = self.out
        warp = out.mul(out.bits("andi", self.thread.warp, 3), CONSUMER_ROWS * self.tiles.blocks_p // 4)
        return out.add(warp, out.mul(out.bits("shrui", self.thread.lane, 2), lanes))

    def _row(self) -> Integer:
        out, thread = self.out, self.thread
        if self.tiles.p_axis == "n":
            return out.mul(out.bits("andi", thread.lane, 3), 2)
        warp = out.mul(out.bits("andi", thread.warp, 3), 16)
        return out.add(warp, out.bits("shrui", thread.lane, 2))

    def _words(self, address: str, offset: int, count: int) -> str:
        """A vector of the elements in `count` words of shared memory."""
        out = self.out
        registers = f"{{{','.join(f'${i}' for i in range(count))}}}" if count > 1 else "$0"
        text = f"ld.shared{f'.v{count}' if count > 1 else ''}.b32 {registers}, [${count}+{offset}];"
        result = struct("i32", count) if count > 1 else "i32"
        loaded = out.asm(text, ",".join(["=r"] * count + ["r", "~{memory}"]), [(address, "i32")], result)
        words = out.vector(out.unpack(loaded, "i32", count) if count > 1 else [loaded], "i32")
        return out.value(f"llvm.bitcast {words} : vector<{count}xi32> to vector<{4 * count // self.item}x{self.dtype}>")

    def _swizzle(self, row: Integer) -> Integer:
        """What the 16-byte column of a row is xored with (128- and 64-byte patterns)."""
        if self.row_bytes == STAGE_ROW_BYTES:
            return self.out.bits("andi", row, 7)
        return self.out.bits("andi", self.out.bits("shrui", row, 1), 3)
