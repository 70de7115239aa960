"""What a thread holds of a tile's sums, in chunks; and which matrices TMA moves a chunk at a time.

A chunk is what a consumer finishes at once. Its results may leave, and operands of the epilogue may come, through
blocks of shared memory that TMA reads and writes (`block`).
"""

from __future__ import annotations

from dataclasses import dataclass

from blutrain.nova.contract.form import Store
from blutrain.nova.gpu.builder import Builder, Integer
from blutrain.nova.gpu.hopper.operands import fragment_row
from blutrain.nova.gpu.hopper.place import Consumer
from blutrain.nova.gpu.hopper.schedule import CONSUMER_ROWS, STAGE_ROW_BYTES
from blutrain.nova.gpu.hopper.tiles import Tiles
from blutrain.nova.gpu.hopper.traffic import step_along
from blutrain.nova.gpu.hopper.values import Origin, Run
from blutrain.nova.gpu.kernel import TensorMap
from blutrain.nova.kernel import ITEM_BYTES, Access, Operand

WARPS = 4  # of a consumer
TRANSPOSED_ROWS = 16  # of a chunk where the product is computed transposed


@dataclass(frozen=True)
class Piece:
    """A run of the result and the accumulators that hold it."""

    run: Run
    accumulators: tuple[int, ...]


def pieces(tiles: Tiles) -> list[list[Piece]]:
    """What one thread holds of a tile, in chunks that belong together: (group of columns, row block).

    The accumulators of a wgmma (PTX ISA, "Register fragments"): [block of rows][8 columns][row half][2 columns].
    """
    per_block = tiles.accumulators_per_block
    if tiles.p_axis == "n":  # transposed: a thread's rows are columns of the result, 2 * blocks neighbours
        lanes = 2 * tiles.blocks_p
        rows = [
            Piece(
                Run(8 * b + e, 0, lanes),
                tuple(i // 2 * per_block + 4 * b + 2 * (i % 2) + e for i in range(lanes)),
            )
            for b in range(tiles.q_tile // 8)
            for e in range(2)
        ]
        at_once = TRANSPOSED_ROWS // 4
        return [rows[i : i + at_once] for i in range(0, len(rows), at_once)]
    chunks = []
    columns = chunk_columns(tiles)
    for first in range(0, tiles.q_tile, columns):
        for block in range(tiles.blocks_p):
            chunk = []
            for b in range(first // 8, (first + columns) // 8):
                for half in range(2):
                    row = 2 * block + half if tiles.in_registers else CONSUMER_ROWS * block + 8 * half
                    at = block * per_block + 4 * b + 2 * half
                    chunk.append(Piece(Run(row, 8 * b, 2), (at, at + 1)))
            chunks.append(chunk)
    return chunks


def num_chunks(tiles: Tiles) -> int:
    if tiles.p_axis == "n":
        return tiles.q_tile // TRANSPOSED_ROWS
    return tiles.q_tile // chunk_columns(tiles) * tiles.blocks_p


def chunk_columns(tiles: Tiles) -> int:
    """Columns of a chunk: `chunk` bytes of the widest matrix that TMA moves, and 64 of every one; 32 where it moves none."""
    if tiles.in_registers:
        return 32
    accesses = [s.access for s in staged_stores(tiles)] + fetched_loads(tiles)
    items = [ITEM_BYTES[access.dtype] for access in accesses]
    if not items:
        return 32
    columns = max(tiles.schedule.chunk // max(items), 64 // min(items))
    return columns if tiles.q_tile % columns == 0 else 32


def thread_origin(
    out: Builder, tiles: Tiles, place_m: Integer, place_n: Integer, batch: Integer, consumer: Consumer
) -> Origin:
    """The first row and column that a thread holds of the tile at (place_m, place_n)."""
    thread = consumer.thread
    pair = out.mul(out.bits("andi", thread.lane, 3), 2)
    if tiles.in_registers:
        p = fragment_row(out, tiles, thread, consumer.slot)
    else:
        warp = out.bits("andi", thread.warp, 3)
        p = out.add(out.mul(consumer.slot, CONSUMER_ROWS * tiles.blocks_p), out.mul(warp, 16))
        p = out.add(p, out.bits("shrui", thread.lane, 2))
    m, n = (p, pair) if tiles.p_axis == "m" else (pair, p)
    ragged = frozenset(axis for axis in "mn" if tiles.is_ragged(axis))
    return Origin(out.add(place_m, m), out.add(place_n, n), batch, ragged)


# --- what TMA moves


def staged_stores(tiles: Tiles) -> list[Store]:
    """Results that leave through shared memory."""
    traffic = tiles.problem.traffic
    if not tiles.schedule.staging or (tiles.schedule.split > 1 and not tiles.clustered) or tiles.register_axis == "m":
        return []
    stores = [s for s in tiles.problem.contract.stores if s.access in traffic.tiled and traffic.axes[s.access] == "mn"]
    if tiles.clustered and sum(ITEM_BYTES[s.access.dtype] for s in stores) > 4:  # more than a chunk's own place
        return []
    return stores


def fetched_loads(tiles: Tiles) -> list[Access]:
    """Matrices that the epilogue loads through shared memory, where the schedule fetches: all that TMA can read. (Vectors
    are few loads, which the assembler moves ahead of the end of the product.)
    """
    traffic = tiles.problem.traffic
    if not tiles.schedule.fetch or tiles.schedule.split > 1 or tiles.register_axis == "m":
        return []
    return [access for access in traffic.matrices if access in traffic.tiled]


@dataclass(frozen=True)
class Tile:
    """A chunk of a matrix as TMA moves it: `count` boxes of rows x columns elements side by side, swizzled."""

    access: Access
    rows: int
    columns: int
    count: int = 1

    @property
    def row_bytes(self) -> int:
        return self.columns * ITEM_BYTES[self.access.dtype]

    @property
    def box_bytes(self) -> int:
        return self.rows * self.row_bytes

    @property
    def bytes(self) -> int:
        return self.count * self.box_bytes


def tile_of(tiles: Tiles, access: Access) -> Tile:
    if tiles.p_axis == "m":
        return Tile(access, CONSUMER_ROWS, chunk_columns(tiles))
    columns = STAGE_ROW_BYTES // ITEM_BYTES[access.dtype]
    return Tile(access, TRANSPOSED_ROWS, columns, CONSUMER_ROWS * tiles.blocks_p // columns)


def sends_by_warps(tiles: Tiles) -> bool:
    """Does each warp of a consumer send its own rows of a chunk, or all meet first. Alone they wait less for each other, which
    pays where they wait for operands too; TMA then moves smaller boxes.
    """
    return tiles.p_axis == "m" and bool(fetched_loads(tiles))


def sent_rows(tiles: Tiles) -> int:
    """Rows of a box in which a chunk leaves."""
    if tiles.p_axis == "n":
        return TRANSPOSED_ROWS
    return CONSUMER_ROWS // WARPS if sends_by_warps(tiles) else CONSUMER_ROWS


def tile_map(tiles: Tiles, access: Access, rows: int = 0) -> TensorMap:
    """The map of a matrix that is moved in boxes of its `tile_of`, or of so many `rows`."""
    contract, item, tile = tiles.problem.contract, ITEM_BYTES[access.dtype], tile_of(tiles, access)
    batched = tiles.problem.batch > 1
    strides = [step_along(contract, access, axis) for axis in ("m", *(["batch"] if batched else []))]
    assert isinstance(access.source, Operand)
    return TensorMap(
        operand=access.source.index,
        offset=access.offset * item,
        dtype=access.dtype,
        extents=(tiles.problem.n, tiles.problem.m, *([tiles.problem.batch] if batched else [])),
        strides_bytes=tuple((step or 0) * item for step in strides),
        box=(tile.columns, rows or tile.rows, *([1] if batched else [])),
        swizzle=tile.row_bytes,
    )
