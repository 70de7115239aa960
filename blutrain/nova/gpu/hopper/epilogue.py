"""From a tile's sums to the results: expressions on accumulators, then stores.

Results whose rows TMA can write leave through staging buffers in shared memory, in blocks of 64 rows; all others
straight from registers. Column reductions leave one row of partial sums of each share of rows in the workspace.
"""

from __future__ import annotations

from collections.abc import Callable

from blutrain.nova.contract.combine import Combiner
from blutrain.nova.gpu.builder import Builder
from blutrain.nova.gpu.hopper import machine
from blutrain.nova.gpu.hopper.column_sums import ColumnSums
from blutrain.nova.gpu.hopper.fetch import FIRST_MAP, Fetch
from blutrain.nova.gpu.hopper.pieces import (
    Piece,
    fetched_loads,
    pieces,
    staged_stores,
    thread_origin,
)
from blutrain.nova.gpu.hopper.place import Consumer, Place
from blutrain.nova.gpu.hopper.row_sums import RowSums
from blutrain.nova.gpu.hopper.schedule import CONSUMER_ROWS
from blutrain.nova.gpu.hopper.shape import WARPGROUP
from blutrain.nova.gpu.hopper.staging import Staging, leader
from blutrain.nova.gpu.hopper.tiles import Tiles
from blutrain.nova.gpu.hopper.values import Origin, Run, Values
from blutrain.nova.kernel import ITEM_BYTES

LINE_BYTES = 128  # of the L2
ENOUGH_PIECES = 8  # of a chunk: the work on fewer is too little for a thread that cannot go on to the next


class Epilogue:
    """Emits the end of a tile; an instance may be called once for each place in the code."""

    def __init__(self, out: Builder, tiles: Tiles):
        self.out, self.tiles, self.contract = out, tiles, tiles.problem.contract
        self.staged = staged_stores(tiles)
        self.direct = [s for s in self.contract.stores if s not in self.staged]
        self.combiners = [Combiner(r) for r in self.contract.reductions]
        self.fetched = fetched_loads(tiles)
        self.loads = [access for access in tiles.problem.traffic.loads if access not in self.fetched]
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
        for access in self.tiles.problem.traffic.matrices:
            if access in self.fetched:
                continue
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
        first_map = FIRST_MAP + len(self.fetched)
        staging = Staging(out, tiles, self.staged, first_map, place, consumer) if self.staged else None
        fetch = Fetch(out, tiles, consumer.thread, consumer.number) if self.fetched else None
        chunks = pieces(tiles)
        ahead = Values(out, self.contract, origin)
        for number, chunk in enumerate(chunks, 1):
            values, ahead = ahead, Values(out, self.contract, origin)
            if tiles.has_few_registers and len(chunk) >= ENOUGH_PIECES:
                for later in chunks[number : number + 1]:
                    self._load_vectors(ahead, later)
            if fetch is not None:
                fetch.take(place, chunk, values)
            self.chunk(values, chunk, lambda i: sums[i], staging, partial, fetch)
            if partial is not None and tiles.p_axis == "m" and number % tiles.blocks_p == 0:
                partial.flush()  # these columns do not come again
            if self.rows is not None and tiles.p_axis == "n":
                self.rows.finish()  # nor do these rows
        if staging is not None:
            staging.finish()
        if partial is not None:
            partial.finish()
        if self.rows is not None:
            self.rows.finish()

    def _load_vectors(self, values: Values, chunk: list[Piece]) -> None:
        """Loads of vectors along n for the next chunk, while this one is computed: nobody waits for them. In front of it the
        assembler cannot compute anything of the next chunk, as it likes to where it has the registers.
        """
        for access in self.loads:
            if self.tiles.problem.traffic.axes[access] == "n":
                for piece in chunk:
                    values.load(access, piece.run, in_place=True)

    def chunk(
        self,
        values: Values,
        chunk: list[Piece],
        accumulator: Callable[[int], str],
        staging: Staging | None = None,
        partial: ColumnSums | None = None,
        fetch: Fetch | None = None,
    ) -> None:
        """`accumulator(i)` names the sum in register i. All loads come first, so that many are under way at once and a
        result may alias an operand; all stores last, behind the one point where the threads of a consumer meet.
        """
        for access in self.loads:
            for piece in chunk:
                values.load(access, piece.run)
        results = [self._results(values, piece, accumulator, partial) for piece in chunk]
        if staging is not None:
            staging.open()
            for i, store in enumerate(self.staged):
                staging.write(store, chunk, [row[i] for row in results])
            staging.close(chunk[0].run)
        elif fetch is not None:
            machine.proxy_fence(self.out)
            machine.warp_barrier(self.out)
        leave = values.add if self.tiles.problem.adds else values.store
        for piece, row in zip(chunk, results, strict=True):
            for value, store in zip(row[len(self.staged) :], self.direct, strict=True):
                leave(value, store.access, piece.run)
        if fetch is not None:
            fetch.release()

    def _results(self, values: Values, piece: Piece, accumulator: Callable[[int], str], partial: ColumnSums | None):
        """The piece's elements of each result: the staged ones, then the direct ones."""
        out = self.out
        total = out.vector([accumulator(i) for i in piece.accumulators], "f32")
        if self.contract.init is not None:
            type_ = f"vector<{piece.run.lanes}xf32>"
            total = out.value(f"arith.addf {values.value(self.contract.init, piece.run)}, {total} : {type_}")
        results = [values.value(s.value, piece.run, total) for s in (*self.staged, *self.direct)]
        if partial is not None:
            partial.add(values, piece, total)
        if self.rows is not None:
            self.rows.add(values, piece.run, total)
        return results

    def finish(self, consumer: Consumer) -> None:
        """No block may end while TMA still reads its shared memory."""
        if self.staged:
            leads = leader(self.out, self.tiles, consumer)
            self.out.when(leads, lambda: self.out.line("nvvm.cp.async.bulk.wait_group 0"))
