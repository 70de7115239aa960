"""The phase before a TF32 product whose factors both run along their own axis: a k-major copy of one of them."""

from __future__ import annotations

import math

from blutrain.nova.gpu.builder import Builder, Integer
from blutrain.nova.gpu.hopper.problem import Side
from blutrain.nova.gpu.hopper.tiles import Tiles

TILE = 64  # rows and columns of a block
THREADS = 256
PITCH = TILE + 1  # of the shared tile: columns of it fall into different banks
WIDTH = 4  # elements of one access


def blocks(tiles: Tiles) -> int:
    return math.prod(_counts(tiles))


def _counts(tiles: Tiles) -> tuple[int, int, int]:
    """Blocks along the rows, along k and of batches: fastest first in a grid of one dimension, the only one that is not
    limited to 65535.
    """
    side = tiles.problem.side(tiles.schedule.repack)
    batches = math.prod(b.extent for b in side.batch if b.stride)
    return -(-side.extent // TILE), -(-tiles.problem.k // TILE), batches


def shared_bytes() -> int:
    return TILE * PITCH * 4


def emit_repack(out: Builder, tiles: Tiles, symbol: str) -> None:
    """copy[row, k] = factor[k, row], f32; rows of the copy padded to 16 bytes, the padding left unwritten."""
    source, copy = tiles.problem.side(tiles.schedule.repack), tiles.repacked
    assert copy is not None
    thread = out.value("nvvm.read.ptx.sreg.tid.x : i32")
    number: Integer = out.value("nvvm.read.ptx.sreg.ctaid.x : i32")
    along_rows, along_k, _ = _counts(tiles)
    row0, number = out.mul(out.rem(number, along_rows), TILE), out.div(number, along_rows)
    k0, batch = out.mul(out.rem(number, along_k), TILE), out.div(number, along_k)
    shared = out.value(f"llvm.mlir.addressof @{symbol}_shared : !llvm.ptr<3>")
    base = out.value(f"llvm.ptrtoint {shared} : !llvm.ptr<3> to i32")
    across, down = out.mul(out.bits("andi", thread, 15), WIDTH), out.bits("shrui", thread, 4)
    of_source, of_copy = _batch_offsets(out, source, copy, batch)
    k, rows = tiles.problem.k, source.extent

    for i in range(TILE // 16):
        y = out.add(down, 16 * i)
        place = out.name(out.add(base, out.mul(out.add(out.mul(y, PITCH), across), 4)))
        inside = out.both(out.compare("slt", out.add(k0, y), k), out.compare("slt", out.add(row0, across), rows))

        def read(y=y, place=place) -> None:
            at = _at(out, of_source, out.add(k0, y), source.k_stride, out.add(row0, across))
            vector = out.load(out.pointer(f"%p{source.operand}", at, "f32"), "vector<4xf32>", 16, constant=True)
            for j in range(WIDTH):
                element = out.element(vector, j, "f32", WIDTH)
                out.asm(f"st.shared.f32 [$0+{4 * j}], $1;", "r,f,~{memory}", [(place, "i32"), (element, "f32")])

        out.when(inside, read)
    out.line("nvvm.barrier0")
    for i in range(TILE // 16):
        y = out.add(down, 16 * i)
        place = out.name(out.add(base, out.mul(out.add(out.mul(across, PITCH), y), 4)))
        inside = out.both(out.compare("slt", out.add(row0, y), rows), out.compare("slt", out.add(k0, across), k))

        def write(y=y, place=place) -> None:
            elements = [
                out.asm(f"ld.shared.f32 $0, [$1+{4 * PITCH * j}];", "=f,r,~{memory}", [(place, "i32")], "f32")
                for j in range(WIDTH)
            ]
            at = _at(out, of_copy, out.add(row0, y), copy.stride, out.add(k0, across))
            out.store(out.vector(elements, "f32"), out.pointer("%workspace", at, "f32"), "vector<4xf32>", 16)

        out.when(inside, write)


def _batch_offsets(out: Builder, source: Side, copy: Side, batch: Integer) -> tuple[str, str]:
    """Elements from the start of the factor and of the copy to a batch, i64."""
    of_source, of_copy = out.name(source.offset, "i64"), out.name(0, "i64")
    rest = batch
    for theirs, ours in reversed(list(zip(source.batch, copy.batch, strict=True))):
        if not theirs.stride:
            continue
        digit, rest = out.widen(out.rem(rest, theirs.extent)), out.div(rest, theirs.extent)
        of_source = _plus(out, of_source, digit, theirs.stride)
        of_copy = _plus(out, of_copy, digit, ours.stride)
    return of_source, of_copy


def _at(out: Builder, base: str, row: Integer, pitch: int, column: Integer) -> str:
    return _plus(out, _plus(out, base, out.widen(row), pitch), out.widen(column), 1)


def _plus(out: Builder, base: str, index: str, step: int) -> str:
    scaled = out.value(f"arith.muli {index}, {out.name(step, 'i64')} : i64") if step != 1 else index
    return out.value(f"arith.addi {base}, {scaled} : i64")
