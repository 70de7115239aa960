"""The second phase of a scatter kernel: a warp sums a row's tile of columns, or the warps of a block one after the other
the tiles of rows with many ids."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from blutrain.nova.clone import NARROW
from blutrain.nova.cpu.emit import Number, operand_pointer
from blutrain.nova.cpu.emit_nest import Point
from blutrain.nova.gpu.configure_common import operand_accesses
from blutrain.nova.gpu.emit import BLOCK, THREAD, barrier, convert_scalar
from blutrain.nova.gpu.emit_block import WARP
from blutrain.nova.gpu.emit_strip import Strip, load_vector
from blutrain.nova.gpu.map import write_all
from blutrain.nova.gpu.scatter_phase import ScatterPhase
from blutrain.nova.kernel import ITEM_BYTES, Operand, Produced

HOT = 32  # ids of a row that one warp adds alone
_WORDS = {1: "i8", 2: "i16", 4: "i32", 8: "i64"}  # by bytes
IN_FLIGHT = 48  # elements of updates that a lane has under way


class ScatterSums(ScatterPhase):
    """The second phase: a unit is a row's tile of columns."""

    @property
    def is_in_place(self) -> bool:
        """Whether rows without ids are already as they shall be."""
        init = self.op.init
        return len(self.kernel.ops) == 1 and isinstance(init, Operand) and self.kernel.aliases == (init.index,)

    def emit(self) -> int:
        """Write the phase; returns its number of blocks."""
        ints = self.ints
        self.width, self.vectors, self.block = (self.config[name] for name in ("width", "vectors", "block"))
        self.tile = WARP * self.width * self.vectors
        self.dtype = self.op.types[0].dtype
        self.sum_dtype = "f32" if self.dtype in NARROW else self.dtype
        tiles, warps = math.ceil(self.columns / self.tile), self.block // WARP
        units = self.rows * tiles
        if not units:
            return 0
        self.ints.is_small = units + warps < 1 << 31
        self.top = Point({}, 0)
        self.tiles, self.units = tiles, units
        self.sums_place = self.shared.allocate(self.block * self.width * self.vectors * ITEM_BYTES[self.sum_dtype])
        self.hot_place = self.shared.allocate(warps)
        unit = ints.add(ints.mul(BLOCK, warps), self.warp)
        inside = None if units % warps == 0 else ints.less(unit, units)
        unit = unit if inside is None else ints.minimum(unit, units - 1)
        row, first_column = self._unit(unit)
        # What the sums do not depend on is under way while they are made; rows of a table in place may need nothing.
        columns = self._columns(first_column)
        loaded = [self._strip(row, column) for column, _ in columns]
        initial = [] if self.is_in_place else self._initial(row, columns)
        start, end = self.read("start", row), self.read("start", ints.add(row, 1))
        hot = self.out.value(f"arith.cmpi sgt, {self.minus(end, start)}, {ints.name(HOT)} : i64")
        is_hot = ints.both(hot, inside)
        assert is_hot is not None
        self._flag(is_hot)
        calm = self.out.value(f"arith.xori {hot}, {self.out.constant('true', 'i1')} : i1")
        condition = ints.both(calm, inside, ints.less(start, end) if self.is_in_place else None)

        def calm_row() -> None:
            sums = self._accumulate(columns, start, end, initial or self._initial(row, columns))
            for v, (column, inside) in enumerate(columns):
                strip = self._strip(row, column, loaded[v])
                self._write(strip, inside, sums[v * self.width : (v + 1) * self.width])

        self.out.when(condition, calm_row)
        flags = self.shared.load(self.hot_place, 0, _WORDS[warps])  # of all warps
        is_any = self.out.value(f"arith.cmpi ne, {flags}, {self.out.constant('0', _WORDS[warps])} : {_WORDS[warps]}")
        self.out.when(is_any, lambda: self._hot_rows(warps))
        return math.ceil(units / warps)

    def _unit(self, unit: Number) -> tuple[Number, Number]:
        return self.ints.div(unit, self.tiles), self.ints.mul(self.ints.rem(unit, self.tiles), self.tile)

    def _flag(self, is_hot: str) -> None:
        flag = self.out.value(f"arith.extui {is_hot} : i1 to i8")
        self.out.when(self.ints.equal(self.lane, 0), lambda: self.shared.store(flag, self.hot_place, self.warp, "i8"))
        barrier(self.out)  # loads ahead of it stay ahead of it

    def _columns(self, first_column: Number) -> list[tuple[Number, str | None]]:
        """(column, is it one) of each vector of this lane."""
        ints, found = self.ints, []
        for v in range(self.vectors):
            column = ints.add(first_column, ints.mul(ints.add(self.lane, v * WARP), self.width))
            inside = None if self.columns % self.tile == 0 else ints.less(column, self.columns)
            found.append((column if inside is None else ints.minimum(column, self.columns - self.width), inside))
        return found

    def _zeros(self) -> list[str]:
        zero = self.out.constant("0" if self.sum_dtype[0] == "i" else "0.0", self.sum_dtype)
        return [zero] * (self.vectors * self.width)

    def _add(self, a: str, b: str) -> str:
        return self.out.value(f"arith.{'addi' if self.sum_dtype[0] == 'i' else 'addf'} {a}, {b} : {self.sum_dtype}")

    def _load(self, pointer: str, row: Number, column: Number, dtype: str) -> list[str]:
        """A vector of a table, in the sums' dtype."""
        offset = self.ints.name(self.ints.add(self.ints.mul(row, self.columns), column))
        values = load_vector(self.evaluator, pointer, offset, dtype, self.width)
        return [convert_scalar(self.out, v, dtype, self.sum_dtype) for v in values]

    def _accumulate(
        self, columns: list[tuple[Number, str | None]], start: Number, end: Number, sums: Sequence[str]
    ) -> list[str]:
        """Add the updates order[start], ..., order[end - 1], several at a time, then singly."""
        unroll = max(1, min(4, IN_FLIGHT // len(sums)))
        ints, pointer, dtype = self.ints, operand_pointer(self.op.updates), self.op.updates_type.dtype

        def several(count: int) -> Callable[[str, list[str]], list[str]]:
            def add(index: str, values: list[str]) -> list[str]:
                numbers = [self.read("order", ints.add(index, u)) for u in range(count)]
                loaded = [[x for c, _ in columns for x in self._load(pointer, n, c, dtype)] for n in numbers]
                for update in loaded:
                    values = [self._add(v, x) for v, x in zip(values, update, strict=True)]
                return values

            return add

        length = self.minus(ints.name(end), ints.name(start))
        rest = self.out.value(f"arith.remui {length}, {ints.name(unroll)} : i64")
        middle = self.minus(ints.name(end), rest)
        types = [self.sum_dtype] * len(sums)
        sums = self.loop(start, middle, unroll, several(unroll), list(zip(sums, types, strict=True)))
        return self.loop(middle, end, 1, several(1), list(zip(sums, types, strict=True)))

    def _initial(self, row: Number, columns: list[tuple[Number, str | None]]) -> list[str]:
        if self.op.init is None:
            return self._zeros()
        assert isinstance(self.op.init, Operand)
        pointer = operand_pointer(self.op.init)
        return [x for column, _ in columns for x in self._load(pointer, row, column, self.dtype)]

    def _strip(self, row: Number, column: Number, loaded: Strip | None = None) -> Strip:
        """A vector of the table, what is read beside its sums under way; or as `loaded`, the same vector, has it."""
        (row_dim, column_dim), depth = self.domain.ops[0].dims, self.out.innermost
        # A table of one element has no loops: its sum must not be taken for a value of the whole function.
        top = self.top if self.domain.extents else Point({}, depth)
        outer = top if row_dim is None else Point({row_dim: row}, depth, top)
        if column_dim is None:
            strip = Strip.one(self.evaluator, outer)
        else:
            strip = Strip.along(self.evaluator, outer, column_dim, column, self.width)
        evaluator = self.evaluator
        for access in operand_accesses(self.domain):
            for point, known in zip(strip.points, (loaded or strip).points, strict=True):
                home = point.home(evaluator._access_dims(access))
                home.memo["load", access] = evaluator.read(access, known)
        return strip

    def _write(self, strip: Strip, inside: str | None, sums: Sequence[str]) -> None:
        """The results at a vector whose sums are complete."""
        for point, value in zip(strip.points, sums, strict=True):
            home = point.home(self.domain.ops[0].result_dims)
            home.memo[Produced(0, 0)] = convert_scalar(self.out, value, self.sum_dtype, self.dtype)
        write = lambda: write_all(self.kernel, self.evaluator, [strip], self.domain.stores)
        self.out.when(inside, write)

    def _hot_rows(self, warps: int) -> None:
        """Units with many ids, one after the other, by the whole block."""
        ints = self.ints

        def unit(index: str, _: list[str]) -> list[str]:
            flag = self.shared.load(self.hot_place, index, "i8")
            is_hot = self.out.value(f"arith.cmpi ne, {flag}, {self.out.constant('0', 'i8')} : i8")
            row, first_column = self._unit(ints.add(ints.mul(BLOCK, warps), index))
            self.out.when(is_hot, lambda: self._hot_row(row, first_column, warps))
            return []

        self.loop(0, warps, 1, unit)

    def _hot_row(self, row: Number, first_column: Number, warps: int) -> None:
        ints = self.ints
        start, end = self.read("start", row), self.read("start", ints.add(row, 1))
        share = ints.div(ints.add(self.minus(end, start), warps - 1), warps)
        first = ints.minimum(ints.add(start, ints.mul(self.warp, share)), end)
        last = ints.minimum(ints.add(first, share), end)
        columns = self._columns(first_column)
        sums = self._accumulate(columns, first, last, self._zeros())
        # [vector][element][warp][lane]: lanes side by side, whatever the width.
        for k, value in enumerate(sums):
            self.shared.store(value, self.sums_place, ints.name(ints.add(THREAD, k * self.block)), self.sum_dtype)
        barrier(self.out)
        for v in range(self.vectors):
            mine = self.out.value(f"arith.cmpi eq, {self.warp}, {ints.name(v % warps)} : i64")
            self.out.when(mine, lambda v=v: self._join(row, columns, v, warps))
        barrier(self.out)

    def _join(self, row: Number, columns: list[tuple[Number, str | None]], v: int, warps: int) -> None:
        """One vector of columns: the init and every warp's sum, in order."""
        column, inside = columns[v]
        totals = self._initial(row, [columns[v]])[: self.width]
        for w in range(warps):
            for i in range(self.width):
                index = self.ints.add(self.lane, w * WARP + (v * self.width + i) * self.block)
                part = self.shared.load(self.sums_place, self.ints.name(index), self.sum_dtype)
                totals[i] = self._add(totals[i], part)
        self._write(self._strip(row, column), inside, totals)
