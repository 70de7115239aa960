"""From a tile's sums to the results: expressions on accumulators, then stores.

Results whose rows TMA can write leave through staging buffers in shared memory, in blocks of 64 rows; all others
straight from registers. Column reductions leave one row of partial sums of each share of rows in the workspace.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from blutrain.nova.contract.combine import Combiner
from blutrain.nova.contract.form import Contract, Store, loads
from blutrain.nova.gpu.hopper import machine
from blutrain.nova.gpu.hopper.builder import SHARED, Builder, Integer
from blutrain.nova.gpu.hopper.column_sums import ColumnSums
from blutrain.nova.gpu.hopper.mainloop import Consumer, Place
from blutrain.nova.gpu.hopper.operands import fragment_row
from blutrain.nova.gpu.hopper.problem import TMA_ALIGNMENT
from blutrain.nova.gpu.hopper.row_sums import RowSums
from blutrain.nova.gpu.hopper.schedule import CONSUMER_ROWS
from blutrain.nova.gpu.hopper.tiles import WARPGROUP, Tiles
from blutrain.nova.gpu.hopper.values import Origin, Run, Values
from blutrain.nova.gpu.kernel import TensorMap
from blutrain.nova.kernel import ITEM_BYTES, Access, Operand, linear_step

STAGED_DTYPES = ("f32", "bf16", "f16")
LINE_BYTES = 128  # of the L2
PIECES_AT_ONCE = 4  # what one stmatrix takes


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
        return [rows[i : i + 8] for i in range(0, len(rows), 8)]
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


def staging_bytes(tiles: Tiles, store: Store) -> int:
    """Of the buffer for a chunk of one result."""
    return CONSUMER_ROWS * chunk_columns(tiles) * ITEM_BYTES[store.access.dtype]


def chunk_columns(tiles: Tiles) -> int:
    """Columns of a chunk: 128 bytes of the widest staged result, 32 where none is staged."""
    items = [ITEM_BYTES[s.access.dtype] for s in staged_stores(tiles)]
    wide = 64 if items and max(items) == 2 else 32
    return wide if tiles.q_tile % wide == 0 else 32


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


def staged_stores(tiles: Tiles) -> list[Store]:
    if tiles.in_registers or tiles.schedule.split > 1:
        return []
    return [s for s in tiles.problem.contract.stores if is_staged(tiles.problem.contract, s)]


def is_staged(contract: Contract, store: Store) -> bool:
    """Can TMA write this result: rows contiguous along n, rows and batches 16 bytes apart."""
    access, item = store.access, ITEM_BYTES[store.access.dtype]
    if access.dtype not in STAGED_DTYPES or access.offset * item % TMA_ALIGNMENT:
        return False
    steps = []
    for axis in ("n", "m", "batch"):
        dims = contract.axes[axis]
        step = linear_step([contract.generic.extents[d] for d in dims], [access.strides[d] for d in dims])
        if step is None:
            return False
        steps.append(step if contract.extent(axis) > 1 else 0)
    n, m, batch = steps
    if n != 1 and contract.extent("n") > 1:
        return False
    return m * item % TMA_ALIGNMENT == 0 and batch * item % TMA_ALIGNMENT == 0 and m >= 0 and batch >= 0


def store_map(tiles: Tiles, store: Store) -> TensorMap:
    contract, access = tiles.problem.contract, store.access
    item = ITEM_BYTES[access.dtype]
    row_bytes = chunk_columns(tiles) * item

    def stride(axis: str, least: int) -> int:
        dims = contract.axes[axis]
        step = linear_step([contract.generic.extents[d] for d in dims], [access.strides[d] for d in dims]) or 0
        return step * item if contract.extent(axis) > 1 else -(-least // TMA_ALIGNMENT) * TMA_ALIGNMENT

    m_stride = stride("m", tiles.problem.n * item)
    batched = tiles.problem.batch > 1
    assert isinstance(access.source, Operand)
    return TensorMap(
        operand=access.source.index,
        offset=access.offset * item,
        dtype=access.dtype,
        extents=(tiles.problem.n, tiles.problem.m, *([tiles.problem.batch] if batched else [])),
        strides_bytes=(m_stride, *([stride("batch", 0)] if batched else [])),
        box=(chunk_columns(tiles), CONSUMER_ROWS, *([1] if batched else [])),
        swizzle=row_bytes,
    )


class Epilogue:
    """Emits the end of a tile; an instance may be called once for each place in the code."""

    def __init__(self, out: Builder, tiles: Tiles):
        self.out, self.tiles, self.contract = out, tiles, tiles.problem.contract
        self.staged = staged_stores(tiles)
        self.direct = [s for s in self.contract.stores if s not in self.staged]
        self.combiners = [Combiner(r) for r in self.contract.reductions]
        self.loads = all_loads(self.contract)
        self.rows: RowSums | None = None

    def prefetch(self, place: Place, consumer: Consumer) -> None:
        """Brings what the epilogue will load for each element of this consumer's share into the L2, a line a thread at
        a time, while the product is under way.
        """
        out, tiles = self.out, self.tiles
        share, whole = CONSUMER_ROWS * tiles.blocks_p, tiles.q_tile
        rows, columns = (share, whole) if tiles.p_axis == "m" else (whole, share)
        skipped = out.mul(consumer.slot, share)
        m0, n0 = place.along("m"), place.along("n")
        m0, n0 = (out.add(m0, skipped), n0) if tiles.p_axis == "m" else (m0, out.add(n0, skipped))
        for access in full_loads(self.contract):
            per_line = min(columns, LINE_BYTES // ITEM_BYTES[access.dtype])
            lines = -(-columns // per_line)
            for first in range(0, rows * lines, WARPGROUP):
                line = out.add(consumer.lane_in_group, first)
                row = out.minimum(out.add(m0, out.div(line, lines)), tiles.problem.m - 1)
                column = out.minimum(out.add(n0, out.mul(out.rem(line, lines), per_line)), tiles.problem.n - 1)
                values = Values(out, self.contract, Origin(row, column, place.batch, frozenset()))
                pointer = values.pointer(access, Run(0, 0, 1), 0)
                out.asm("prefetch.global.L2 [$0];", "l", [(pointer, "!llvm.ptr")])

    def __call__(self, sums: list[str], place: Place, consumer: Consumer) -> None:
        out, tiles = self.out, self.tiles
        origin = thread_origin(out, tiles, place.m, place.n, place.batch, consumer)
        partial = ColumnSums(self, place, consumer, origin) if self.combiners else None
        self.rows = RowSums(self, place, consumer, origin) if self.contract.row_reductions else None
        staging = _Staging(out, tiles, self.staged, place, consumer) if self.staged else None
        for number, chunk in enumerate(pieces(tiles), 1):
            self.chunk(chunk, lambda i: sums[i], origin, staging, partial)
            if partial is not None and tiles.p_axis == "m" and number % tiles.blocks_p == 0:
                partial.flush()  # these columns do not come again
            if self.rows is not None and tiles.p_axis == "n":
                self.rows.finish()  # nor do these rows
        if partial is not None:
            partial.finish()
        if self.rows is not None:
            self.rows.finish()

    def chunk(
        self,
        chunk: list[Piece],
        accumulator: Callable[[int], str],
        origin: Origin,
        staging: _Staging | None = None,
        partial: ColumnSums | None = None,
    ) -> None:
        """`accumulator(i)` names the sum in register i. All loads come first: so many are under way at once, and a
        result may alias an operand. The rest is done for four pieces at a time, to hold few values.
        """
        values = Values(self.out, self.contract, origin)
        for access in self.loads:
            for piece in chunk:
                values.load(access, piece.run)
        if staging is not None:
            staging.open()
        for first in range(0, len(chunk), PIECES_AT_ONCE):
            self._some(values, chunk[first : first + PIECES_AT_ONCE], chunk[0].run, accumulator, staging, partial)
        if staging is not None:
            staging.close(chunk[0].run)

    def _some(self, values: Values, chunk: list[Piece], first: Run, accumulator, staging, partial) -> None:
        out = self.out
        stored = []
        for piece in chunk:
            total = out.vector([accumulator(i) for i in piece.accumulators], "f32")
            if self.contract.init is not None:
                type_ = f"vector<{piece.run.lanes}xf32>"
                total = out.value(f"arith.addf {values.value(self.contract.init, piece.run)}, {total} : {type_}")
            stored.append([values.value(s.value, piece.run, total) for s in (*self.staged, *self.direct)])
            if partial is not None:
                partial.add(values, piece, total)
            if self.rows is not None:
                self.rows.add(values, piece.run, total)
        for i, store in enumerate(self.staged):
            staging.write(store, chunk, first, [row[i] for row in stored])
        for piece, row in zip(chunk, stored, strict=True):
            for value, store in zip(row[len(self.staged) :], self.direct, strict=True):
                values.store(value, store.access, piece.run)

    def finish(self, consumer: Consumer) -> None:
        """No block may end while TMA still reads its shared memory."""
        if self.staged:
            leads = self.out.compare("eq", consumer.lane_in_group, 0)
            self.out.when(leads, lambda: self.out.line("nvvm.cp.async.bulk.wait_group 0"))


def all_loads(contract: Contract) -> list[Access]:
    """What the epilogue loads."""
    found = [contract.init.access] if contract.init is not None else []
    for value in (*(s.value for s in contract.stores), *(a for r in contract.reductions for a in r.arguments)):
        found += loads(value)
    return list(dict.fromkeys(found))


def full_loads(contract: Contract) -> list[Access]:
    """Those of them that move along both m and n: a load for each element."""

    def moves(access: Access, axis: str) -> bool:
        return any(access.strides[d] and contract.generic.extents[d] > 1 for d in contract.axes[axis])

    return [access for access in all_loads(contract) if moves(access, "m") and moves(access, "n")]


class _Staging:
    """Blocks of 64 rows on their way from a consumer's registers to memory: a ring of sets of buffers of its own, a
    buffer in each for every staged result.
    """

    def __init__(self, out: Builder, tiles: Tiles, stores: list[Store], place: Place, consumer: Consumer):
        self.out, self.tiles, self.stores, self.place, self.consumer = out, tiles, stores, place, consumer
        self.sets = tiles.schedule.staging
        self.columns = chunk_columns(tiles)
        self.total = len(pieces(tiles))
        self.count = 0
        first = out.add(consumer.thread.shared, tiles.staging_offset)
        self.base = out.add(first, out.mul(consumer.number, self.sets * tiles.staging_set_bytes))
        self.barrier = out.add(consumer.number, machine.CONSUMER_BARRIER)
        self.leads = out.compare("eq", consumer.lane_in_group, 0)

    def open(self) -> None:
        """Waits until TMA has read what lay in the next set."""
        out, pending = self.out, self._still_reading()
        out.when(self.leads, lambda: out.line(f"nvvm.cp.async.bulk.wait_group {pending} {{read}}"))
        machine.named_barrier(out, self.barrier, WARPGROUP)

    def write(self, store: Store, chunk: list[Piece], first: Run, values: list[str]) -> None:
        """Some pieces of the chunk that begins at `first`, into the store's buffer."""
        write = self._write_pairs if ITEM_BYTES[store.access.dtype] == 4 else self._write_matrices
        write(self._buffer(store), chunk, first, values, store.access.dtype)

    def close(self, first: Run) -> None:
        """Sends the set, as the chunk that begins at `first`."""
        out = self.out
        out.line("nvvm.fence.proxy { kind = #nvvm.proxy_kind<async.shared>, space = #nvvm.shared_space<cta>}")
        machine.named_barrier(out, self.barrier, WARPGROUP)
        out.when(self.leads, lambda: self._send(first))
        self.count += 1

    def _buffer(self, store: Store) -> Integer:
        offset = self.count % self.sets * self.tiles.staging_set_bytes
        before = self.stores[: self.stores.index(store)]
        return self.out.add(self.base, offset + sum(staging_bytes(self.tiles, s) for s in before))

    def _still_reading(self) -> int:
        """Groups committed after the one that last used this set (in this tile or the one before): they may run."""
        if self.count >= self.sets:
            return self.sets - 1
        last = max(range(self.count, self.total, self.sets), default=self.count)
        return max(0, self.total - 1 - last + self.count)

    def _send(self, first: Run) -> None:
        out = self.out
        row = out.add(self.place.m, out.mul(self.consumer.slot, CONSUMER_ROWS * self.tiles.blocks_p))
        coordinates = [out.add(self.place.n, first.column), out.add(row, first.row)]
        if self.tiles.problem.batch > 1:
            coordinates.append(self.place.batch)
        box = ", ".join(out.name(c) for c in coordinates)
        for number, store in enumerate(self.stores, 2):
            buffer = out.shared_pointer(self._buffer(store))
            out.line(
                f"nvvm.cp.async.bulk.tensor.global.shared.cta %map{number}, {buffer}, box[{box}] : !llvm.ptr, {SHARED}"
            )
        out.line("nvvm.cp.async.bulk.commit.group")

    def _swizzle(self, row: Integer, row_bytes: int) -> Integer:
        """What the 16-byte column of a row is xored with (128- and 64-byte patterns)."""
        if row_bytes == 128:
            return self.out.bits("andi", row, 7)
        return self.out.bits("andi", self.out.bits("shrui", row, 1), 3)

    def _write_pairs(self, buffer: Integer, chunk: list[Piece], first: Run, values: list[str], dtype: str) -> None:
        """f32: two neighbours a store."""
        out, thread = self.out, self.consumer.thread
        row_bytes = self.columns * 4
        row, pair = out.bits("shrui", thread.lane, 2), out.bits("andi", thread.lane, 3)
        warp_row = out.add(out.mul(out.bits("andi", thread.warp, 3), 16), row)
        base = out.add(out.add(buffer, out.mul(warp_row, row_bytes)), out.mul(out.bits("andi", pair, 1), 8))
        column = out.mul(out.bits("xori", out.bits("shrui", pair, 1), self._swizzle(row, row_bytes)), 16)
        for piece, value in zip(chunk, values, strict=True):
            block = (piece.run.column - first.column) // 8
            address = out.name(out.add(base, out.bits("xori", column, 32 * block)))
            offset = (piece.run.row - first.row) * row_bytes
            elements = [(out.element(value, lane, dtype, 2), "f32") for lane in range(2)]
            out.asm(f"st.shared.v2.f32 [$0+{offset}], {{$1,$2}};", "r,f,f,~{memory}", [(address, "i32"), *elements])

    def _write_matrices(self, buffer: Integer, chunk: list[Piece], first: Run, values: list[str], dtype: str) -> None:
        """16-bit: stmatrix, four 8 x 8 blocks: (columns 0-7, 8-15) x (rows 0-7, 8-15)."""
        out, thread = self.out, self.consumer.thread
        row_bytes = self.columns * 2
        eight = out.bits("andi", thread.lane, 7)
        row = out.add(eight, out.mul(out.bits("andi", out.bits("shrui", thread.lane, 3), 1), 8))
        warp_row = out.add(out.mul(out.bits("andi", thread.warp, 3), 16), row)
        base = out.add(buffer, out.mul(warp_row, row_bytes))
        column = out.mul(out.bits("xori", out.bits("shrui", thread.lane, 4), self._swizzle(eight, row_bytes)), 16)
        words = [(out.value(f"llvm.bitcast {v} : vector<2x{dtype}> to i32"), "i32") for v in values]
        step = 2 * (chunk[0].run.column - first.column)
        address = out.name(out.add(base, out.bits("xori", column, step)))
        text = "stmatrix.sync.aligned.m8n8.x4.shared.b16 [$0], {$1,$2,$3,$4};"
        out.asm(text, "r,r,r,r,r,~{memory}", [(address, "i32"), *words])
