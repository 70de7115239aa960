"""How the tile of one factor gets into shared memory and into wgmma: tensor map, TMA boxes, descriptor, fragments."""

from __future__ import annotations

from dataclasses import dataclass, replace

from blutrain.nova.gpu.builder import Builder, Integer, struct
from blutrain.nova.gpu.hopper.machine import K_STEP_BYTES, Thread
from blutrain.nova.gpu.hopper.problem import Side
from blutrain.nova.gpu.hopper.schedule import STAGE_ROW_BYTES
from blutrain.nova.gpu.hopper.tiles import Tiles
from blutrain.nova.gpu.kernel import TensorMap

UNIT = 16  # bytes that descriptors count in
SWIZZLE_MODE = {128: 1, 64: 2}  # of a wgmma descriptor, bits 62-63
ATOM_ROWS = 8  # rows of a swizzle pattern
# In a cluster launch a shared address carries the block's rank in the bits above.
SHARED_ADDRESS_MASK = 0x3FFFF
BOTH_BLOCKS = 3  # multicast mask of a cluster of two
REGISTER_BLOCK = 32  # f32 elements of a 128-byte row


@dataclass(frozen=True)
class Copies:
    """TMA copies of one tile: (bytes into the tile, coordinates of the box by dimension).

    A coordinate is a step along "k" or "row" (the factor's own axis), or "" for none, plus an offset in elements,
    divided by a unit. `half`: the bytes and rows that the second block of a pair skips, each block
    copying a half of the tile to both.
    """

    map: TensorMap
    boxes: tuple[tuple[int, tuple[tuple[str, int, int], ...]], ...]
    batch: tuple[int, ...]  # which batch digits follow
    half: tuple[int, int] | None = None


def copies(tiles: Tiles, axis: str) -> Copies:
    side, rows, item = tiles.side(axis), tiles.tile(axis), tiles.problem.item
    parts = tiles.pair if axis == tiles.schedule.multicast else 1
    if side.k_major:
        rows //= parts
        boxes = ((0, (("k", 0, 1), ("row", 0, 1))),)
        what = _copies(tiles, side, (tiles.problem.k, side.extent), (side.stride,), (tiles.k_tile, rows), 128, boxes)
        return what if parts == 1 else replace(what, half=(rows * STAGE_ROW_BYTES, rows))
    if axis == tiles.register_axis:
        what = _register_copies(tiles, side, rows // parts)
        return what if parts == 1 else replace(what, half=(rows // 2 * STAGE_ROW_BYTES, rows // 2))
    width = own_block(tiles, axis)
    k, step, block_bytes = tiles.problem.k, side.k_stride, width * item * tiles.k_tile
    num_blocks = rows // width // parts
    if side.extent % width == 0:  # all blocks in one copy
        boxes = ((0, (("", 0, 1), ("k", 0, 1), ("row", 0, width))),)
        extents, box = (width, k, side.extent // width), (width, tiles.k_tile, num_blocks)
        what = _copies(tiles, side, extents, (step, width), box, width * item, boxes)
    else:
        boxes = tuple((i * block_bytes, (("row", i * width, 1), ("k", 0, 1))) for i in range(num_blocks))
        what = _copies(tiles, side, (side.extent, k), (step,), (width, tiles.k_tile), width * item, boxes)
    return what if parts == 1 else replace(what, half=(num_blocks * block_bytes, rows // 2))


def own_block(tiles: Tiles, axis: str) -> int:
    """Elements along its own axis of a block of a factor that is contiguous along it: 128 bytes, or 64."""
    return 64 if tiles.tile(axis) % 64 == 0 else 32


def _register_copies(tiles: Tiles, side: Side, rows: int) -> Copies:
    """Blocks of 32 elements along the axis by 32 along k.

    Where k allows it, its rows 0-3 and 4-7 of each 8 alternate in shared memory, which spreads the fragment loads of
    a warp over all banks.
    """
    k, step = tiles.problem.k, side.k_stride
    block_bytes = REGISTER_BLOCK * STAGE_ROW_BYTES
    if not is_interleaved(tiles):
        boxes = tuple((i * block_bytes, (("row", i * 32, 1), ("k", 0, 1))) for i in range(rows // 32))
        return _copies(tiles, side, (side.extent, k), (step,), (32, 32), 128, boxes)
    if side.extent % 32 == 0 and not any(b.stride for b in side.batch):
        extents = (32, 2, 4, k // 8, side.extent // 32)
        boxes = ((0, (("", 0, 1), ("", 0, 1), ("", 0, 1), ("k", 0, 8), ("row", 0, 32))),)
        return _copies(tiles, side, extents, (4 * step, step, 8 * step, 32), (32, 2, 4, 4, rows // 32), 128, boxes)
    boxes = tuple(
        (i * block_bytes, (("row", i * 32, 1), ("", 0, 1), ("", 0, 1), ("k", 0, 8))) for i in range(rows // 32)
    )
    return _copies(tiles, side, (side.extent, 2, 4, k // 8), (4 * step, step, 8 * step), (32, 2, 4, 4), 128, boxes)


def is_interleaved(tiles: Tiles) -> bool:
    side = tiles.side(tiles.register_axis)
    return tiles.problem.k % 8 == 0 and sum(b.stride > 0 for b in side.batch) <= 1


def _copies(tiles: Tiles, side: Side, extents, strides, box, swizzle: int, boxes) -> Copies:
    """A map over `extents` (strides in elements), with the batch dimensions that the factor has behind them."""
    item = tiles.problem.item
    batch = tuple(i for i, b in enumerate(side.batch) if b.stride and b.extent > 1)
    shape = tuple(side.batch[i].extent for i in reversed(batch))
    steps = tuple(side.batch[i].stride for i in reversed(batch))
    map_ = TensorMap(
        operand=side.operand,
        offset=side.offset * item,
        dtype=tiles.problem.dtype,
        extents=(*extents, *shape),
        strides_bytes=tuple(s * item for s in (*strides, *steps)),
        box=(*box, *(1 for _ in batch)),
        swizzle=swizzle,
        l2="256",
    )
    return Copies(map_, boxes, tuple(reversed(batch)))


def emit_copies(
    out: Builder,
    what: Copies,
    map_name: str,
    target: Integer,
    barrier: Integer,
    k: Integer,
    row: Integer,
    digits: tuple[Integer, ...],
    rank: Integer,
) -> None:
    """Start the copies of one tile at element (row, k) of batch `digits` into shared address `target`."""
    multicast = ""
    if what.half is not None:
        bytes_, rows = (out.mul(rank, step) for step in what.half)
        target, row = out.add(target, bytes_), out.add(row, rows)
        multicast = f" multicast_mask = {out.name(BOTH_BLOCKS, 'i16')}"
    at = {"k": k, "row": row, "": 0}
    for offset, coordinates in what.boxes:
        places = [out.div(out.add(at[name], extra), unit) for name, extra, unit in coordinates]
        places += [digits[i] for i in what.batch]
        pointer = out.shared_pointer(out.add(target, offset))
        pointer = out.value(f"llvm.addrspacecast {pointer} : !llvm.ptr<3> to !llvm.ptr<7>")
        box = ", ".join(out.name(x) for x in places)
        out.line(
            f"nvvm.cp.async.bulk.tensor.shared.cluster.global {pointer}, {map_name}, {out.shared_pointer(barrier)}, "
            f"box[{box}]{multicast} : !llvm.ptr<7>, !llvm.ptr"
        )


@dataclass(frozen=True)
class Descriptor:
    """wgmma's view of a tile (PTX ISA, "Matrix descriptor"): `leading` and `stride` byte offsets, swizzle mode.

    `k_step`: units from the k of one wgmma to the next.
    """

    leading: int
    stride: int
    mode: int
    k_step: int
    transposed: bool

    def emit(self, out: Builder, address: Integer) -> str:
        low = out.bits("shrui", out.bits("andi", address, SHARED_ADDRESS_MASK), 4)
        high = self.leading // UNIT << 16 | self.stride // UNIT << 32 | self.mode << 62
        return out.value(f"arith.ori {out.widen(low)}, {out.name(high, 'i64')} : i64")


def descriptor(tiles: Tiles, axis: str) -> Descriptor:
    if tiles.side(axis).k_major:
        return Descriptor(UNIT, ATOM_ROWS * STAGE_ROW_BYTES, SWIZZLE_MODE[128], K_STEP_BYTES // UNIT, False)
    width = own_block(tiles, axis) * tiles.problem.item
    block_bytes = width * tiles.k_tile
    return Descriptor(block_bytes, ATOM_ROWS * width, SWIZZLE_MODE[width], 16 * width // UNIT, True)


class Fragments:
    """Loads of the register operand. A thread holds 2 * blocks neighbours along the axis, from row
    `warp * 16 * blocks + lane / 4 * 2 * blocks` of its warpgroup's share: its 16-byte (or 8-byte) pieces of a row.
    """

    def __init__(self, out: Builder, tiles: Tiles, thread: Thread, slot: Integer):
        self.out, self.blocks = out, tiles.blocks_p
        self.width = 2 * self.blocks
        first = fragment_row(out, tiles, thread, slot)
        block, within = out.div(first, REGISTER_BLOCK), out.rem(first, REGISTER_BLOCK)
        column = out.bits("andi", thread.lane, 3)
        piece, rest = out.div(within, 4), out.rem(within, 4)
        self.offsets = []
        for half in range(2):
            row = out.add(out.mul(column, 2), half) if is_interleaved(tiles) else out.add(column, 4 * half)
            swizzled = out.mul(out.bits("xori", piece, row), 16)
            place = out.add(out.add(out.mul(row, STAGE_ROW_BYTES), swizzled), out.mul(rest, 4))
            self.offsets.append(out.add(place, out.mul(block, REGISTER_BLOCK * STAGE_ROW_BYTES)))

    def load(self, tile: Integer, steps: range) -> list[str]:
        """[k-step][block][4] registers, of some wgmmas' k, of the tile at shared address `tile`."""
        out, width = self.out, self.width
        registers = ", ".join(f"${i}" for i in range(width))
        constraints = ",".join(["=r"] * width + ["r", "~{memory}"])
        addresses = [out.name(out.add(tile, offset)) for offset in self.offsets]
        result: list[str] = []
        for step in steps:
            text = f"ld.shared.v{width}.b32 {{{registers}}}, [${width}+{step * ATOM_ROWS * STAGE_ROW_BYTES}];"
            halves = [
                out.unpack(out.asm(text, constraints, [(a, "i32")], struct("i32", width)), "i32", width)
                for a in addresses
            ]
            for block in range(self.blocks):
                result += [half[2 * block + i] for half in halves for i in range(2)]
        return result


def fragment_row(out: Builder, tiles: Tiles, thread: Thread, slot: Integer) -> Integer:
    """First row, within the tile, of the register operand that a thread holds."""
    warp = out.bits("andi", thread.warp, 3)
    rows = out.add(out.mul(slot, 64 * tiles.blocks_p), out.mul(warp, 16 * tiles.blocks_p))
    return out.add(rows, out.mul(out.bits("shrui", thread.lane, 2), 2 * tiles.blocks_p))
