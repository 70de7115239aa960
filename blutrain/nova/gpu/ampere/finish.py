"""The end of a tile: from a thread's accumulators to the results.

The layout says where each accumulator lies; the epilogue is evaluated for runs of neighbours in a row. Results that
are contiguous along m (transposed stores) leave as vectors down the columns of the same block of runs.

With ranges of k, the product phase leaves its accumulators in the workspace, and the finish phase adds the ranges in
order. There each block takes one slice (some rows of every warp's tile), so that more blocks share the work.
"""

from __future__ import annotations

from collections.abc import Sequence

from mlir import ir

from blutrain.nova.contract.combine import Combiner
from blutrain.nova.contract.form import ColumnReduction, Store
from blutrain.nova.gpu.ampere.elements import Elements, Run, run
from blutrain.nova.gpu.ampere.mainloop import Block
from blutrain.nova.gpu.ampere.tiles import VECTOR_BYTES, Tiles
from blutrain.nova.gpu.builder import Builder, Integer
from blutrain.nova.kernel import ITEM_BYTES, Operand

EXACT = ("fp32", "f64")


class Finish:
    """Emits the epilogue and the stores of one tile, or of slice `slice` of it."""

    def __init__(self, out: Builder, tiles: Tiles, block: Block, slice: Integer | None = None):
        self.out, self.tiles, self.block, self.slice = out, tiles, block, slice
        self.contract = tiles.problem.contract
        m, n = tiles.result_layout.first(out, block.lane, block.warp)
        if slice is not None:
            m = out.add(m, out.mul(slice, tiles.slice_rows))
        origin = {**block.first, "m": out.add(block.first["m"], m), "n": out.add(block.first["n"], n)}
        fast = tiles.problem.kind not in EXACT
        self.elements = Elements(out, self.contract, origin, tiles.ragged & {"m", "n"}, fast)
        self.combiners = [Combiner(r) for r in self.contract.reductions]
        self.column_in_tile = n

    def emit(self, sums: list[str]) -> None:
        """`sums` in the layout's order: all of the thread's, or a slice's."""
        sums = trade(self.out, self.block.lane, sums, self.tiles.swaps)
        place = dict(zip(self.tiles.result_layout.offsets, sums, strict=False))
        rows = sorted({m for m, _ in place})
        partial: dict[tuple[int, int], str] = {}
        for first, lanes in _runs(sorted({n for _, n in place})):
            for top, height in _runs(rows):
                self._block(place, range(top, top + height), first, lanes, partial)
        self._store_partials(partial)

    def _block(self, place: dict, rows: range, first: int, lanes: int, partial: dict) -> None:
        """Rows times neighbours. In a row every load comes before any store: a result may share an operand's memory."""
        columns_first = [s for s in self.contract.stores if self._is_transposed(s)]
        kept: dict[int, list[list[str]]] = {i: [] for i in range(len(columns_first))}
        for m in rows:
            at = run("n", lanes, m=m, n=first)
            sums = self._with_init([place[m, first + i] for i in range(lanes)], at)
            values = [self.elements.value(store.value, at, sums) for store in self.contract.stores]
            for number, (reduction, combiner) in enumerate(zip(self.contract.reductions, self.combiners, strict=True)):
                self._reduce(number, reduction, combiner, at, sums, partial)
            for store, value in zip(self.contract.stores, values, strict=True):
                if store in columns_first:
                    kept[columns_first.index(store)].append(value)
                else:
                    self.elements.store(value, store.access, at)
        for number, store in enumerate(columns_first):
            for i in range(lanes):
                at = run("m", len(rows), m=rows[0], n=first + i)
                self.elements.store([row[i] for row in kept[number]], store.access, at)

    def _is_transposed(self, store: Store) -> bool:
        """Is it worth storing along m. Not where the result may be an operand that later rows read."""
        inner = self.contract.axes["m"][-1:]
        kernel, place = self.contract.kernel, store.access.source
        assert isinstance(place, Operand)
        is_aliased = kernel.aliases[place.index - len(kernel.operands)] >= 0
        return bool(inner) and store.access.strides[inner[0]] == 1 and not is_aliased

    def _with_init(self, sums: list[str], at: Run) -> list[str]:
        if self.contract.init is None:
            return sums
        initial = self.elements.value(self.contract.init, at)
        dtype = self.contract.dtype
        return [self.out.value(f"arith.addf {i}, {s} : {dtype}") for i, s in zip(initial, sums, strict=True)]

    # --- reductions over rows

    def _reduce(self, number: int, reduction: ColumnReduction, combiner: Combiner, at: Run, sums, partial) -> None:
        """Combine the row's elements with those of the thread's rows before, in `partial`."""
        out = self.out
        inside = self.elements.inside(at, 0, ("m",))
        neutral = out.constant(combiner.neutral, combiner.dtype)
        for lane, value in enumerate(column_values(self.elements, reduction, combiner, at, sums)):
            if inside is not None:
                value = out.value(f"arith.select {inside}, {value}, {neutral} : {combiner.dtype}")
            key = (number, at.place("n", lane))
            before = partial.get(key)
            partial[key] = value if before is None else combiner.combine(out, before, value, 0)

    def _store_partials(self, partial: dict[tuple[int, int], str]) -> None:
        """Combine the lanes of each column, and write a row of partial values for every row of warps (and slice)."""
        out, tiles = self.out, self.tiles
        if not partial:
            return
        row = out.mul(self.block.first["batch"], tiles.count("m"))
        row = out.add(
            out.mul(out.add(row, self.block.tile_m), tiles.warps[0]), out.div(self.block.warp, tiles.warps[1])
        )
        if self.slice is not None:
            row = out.add(out.mul(row, tiles.slices), self.slice)
        column = out.add(self.block.first["n"], self.column_in_tile)
        start = out.value(f"arith.muli {out.widen(row)}, {out.name(tiles.partial_columns, 'i64')} : i64")
        start = out.value(f"arith.addi {start}, {out.widen(column)} : i64")
        # Lanes of one column are those that agree in n: of mma 4 g + t the ones with the same t.
        quads = self.tiles.problem.instruction.subtile["m"]
        combined = {}
        for (number, n), value in partial.items():
            for distance in (4 << i for i in range(quads.bit_length() - 1)):
                other = out.shuffle_xor(value, distance, self.combiners[number].dtype)
                value = self.combiners[number].combine(out, value, other, 0)
            combined[number, n] = value

        def write() -> None:
            for number, combiner in enumerate(self.combiners):
                base = out.pointer("%workspace", tiles.partial_offsets[number], "i8")
                base = out.pointer(base, start, combiner.dtype)
                for first, lanes in _runs([n for i, n in combined if i == number]):
                    values = [combined[number, first + i] for i in range(lanes)]
                    store_vectors(out, values, out.pointer(base, first, combiner.dtype), combiner.dtype)

        out.when(out.compare("ult", self.block.lane, 4), write)


def trade(out: Builder, lane: str, sums: list[str], swaps: Sequence[tuple[int, int]]) -> list[str]:
    """Sums from the order of `layout` to that of `result_layout`.

    For each swap, half of the registers go to the lane whose number differs in the bit, and come from it.
    """
    result = list(sums)
    for i, j in swaps:
        is_odd = out.compare("ne", out.bits("andi", lane, 1 << i), 0)
        for low in (r for r in range(len(sums)) if not r >> j & 1):
            high = low + (1 << j)
            sent = out.value(f"arith.select {is_odd}, {result[low]}, {result[high]} : f32")
            taken = out.shuffle_xor(sent, 1 << i)
            result[low], result[high] = (
                out.value(f"arith.select {is_odd}, {taken}, {result[low]} : f32"),
                out.value(f"arith.select {is_odd}, {result[high]}, {taken} : f32"),
            )
    return result


def column_values(elements: Elements, reduction: ColumnReduction, combiner: Combiner, at: Run, sums) -> list[str]:
    """What the reducing region combines, for each element of a run."""
    arguments = [elements.value(a, at, sums) for a in reduction.arguments]
    results = []
    for lane in range(at.lanes):
        names: dict[ir.Value, str] = dict(zip(combiner.inputs, (a[lane] for a in arguments), strict=True))
        coordinate = elements.coordinate(reduction.indices, at, lane)
        results.append(elements.region_value(names, combiner.element, coordinate))
    return results


def _runs(numbers: Sequence[int]) -> list[tuple[int, int]]:
    """(first, count) of consecutive numbers."""
    runs: list[tuple[int, int]] = []
    for number in sorted(numbers):
        if runs and sum(runs[-1]) == number:
            runs[-1] = (runs[-1][0], runs[-1][1] + 1)
        else:
            runs.append((number, 1))
    return runs


def store_vectors(out: Builder, values: list[str], pointer: str, dtype: str) -> None:
    """Neighbours in memory, in vectors of up to 16 bytes that are aligned where `pointer` is aligned to the run."""
    size = min(len(values), VECTOR_BYTES // ITEM_BYTES[dtype])
    for start in range(0, len(values), size):
        part = values[start : start + size]
        place = out.pointer(pointer, start, dtype)
        if len(part) == 1:
            out.store(part[0], place, dtype, ITEM_BYTES[dtype])
        else:
            type_ = f"vector<{len(part)}x{dtype}>"
            out.store(out.vector(part, dtype), place, type_, len(part) * ITEM_BYTES[dtype])


# --- ranges of k


def emit_store_sums(out: Builder, tiles: Tiles, block: Block, sums: list[str]) -> None:
    """Leave a thread's accumulators in the workspace: range, tile, vector of accumulators, thread."""
    dtype, size = tiles.problem.instruction.result, VECTOR_BYTES // tiles.result_item
    base = _sums_pointer(out, tiles, block, block.part, 0)
    for start in range(0, len(sums), size):
        place = out.pointer(base, start * tiles.threads, dtype)
        out.store(out.vector(sums[start : start + size], dtype), place, f"vector<{size}x{dtype}>", VECTOR_BYTES)


def emit_load_sums(out: Builder, tiles: Tiles, block: Block, slice: Integer) -> list[str]:
    """The accumulators of a slice, all ranges of k added in order."""
    dtype, size = tiles.problem.instruction.result, VECTOR_BYTES // tiles.result_item
    count = tiles.registers // tiles.slices
    total: list[str] = []
    for part in range(tiles.split):
        base = _sums_pointer(out, tiles, block, part, out.mul(slice, count // size))
        loaded: list[str] = []
        for start in range(0, count, size):
            place = out.pointer(base, start * tiles.threads, dtype)
            vector = out.load(place, f"vector<{size}x{dtype}>", VECTOR_BYTES)
            loaded += [out.element(vector, i, dtype, size) for i in range(size)]
        total = (
            [out.value(f"arith.addf {a}, {b} : {dtype}") for a, b in zip(total, loaded, strict=True)]
            if total
            else loaded
        )
    return total


def _sums_pointer(out: Builder, tiles: Tiles, block: Block, part: Integer, vector: Integer) -> str:
    """A thread's vector number `vector` of accumulators."""
    dtype, size = tiles.problem.instruction.result, VECTOR_BYTES // tiles.result_item
    tile = out.widen(out.add(out.mul(part, tiles.output_tiles), block.tile))
    start = out.value(f"arith.muli {tile}, {out.name(tiles.threads * tiles.registers, 'i64')} : i64")
    within = out.add(out.mul(vector, size * tiles.threads), out.mul(block.thread, size))
    start = out.value(f"arith.addi {start}, {out.widen(within)} : i64")
    return out.pointer("%workspace", start, dtype)
