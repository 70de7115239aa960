"""scatter kernels: rows of updates added into a table by id (the gradient of an embedding), the same bits in every
run, without atomics.

The first phase sorts the ids by row, keeping their order: every block owns a range of table rows, finds the ids in it
(warps share the ids; a warp's finds keep their order by ballots) and then lists them row by row. `start[row]` is the
number of ids below the row, `order[start[row]..]` their numbers. In the second phase a warp takes a row, or a tile of
its columns, keeps the sums in registers (f32 for 16-bit tables) and writes every element once, so the table needs no
clearing. A row with more ids than `HOT` is shared by the warps of the block in equal runs of its ids, whose sums are
added in order. Ids outside the table are dropped.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from blutrain.nova.clone import NARROW
from blutrain.nova.cpu.emit import POINTER, Number, operand_pointer, result_pointer
from blutrain.nova.cpu.emit_domain import Domain
from blutrain.nova.cpu.scatter import _scatter_of
from blutrain.nova.emitter import Emitter
from blutrain.nova.gpu.configure_common import LAUNCH_US, power_of_two, time_us
from blutrain.nova.gpu.emit import (
    BLOCK,
    SHARED_POINTER,
    THREAD,
    WORKSPACE,
    Shared,
    SimtEvaluator,
    barrier,
    convert_scalar,
    module_text,
    phase_text,
)
from blutrain.nova.gpu.emit_block import WARP, shuffle
from blutrain.nova.gpu.emit_strip import VECTOR_BYTES, load_vector, store_vector
from blutrain.nova.gpu.kernel import GpuKernel, GpuPhase
from blutrain.nova.kernel import ITEM_BYTES, Kernel, Operand, ScatterAdd, Unsupported
from blutrain.nova.target_gpu import GpuFacts

SORT_THREADS = 1024
ROUNDS_AT_ONCE = 8  # ids of a lane that are loaded together
SHARED_FINDS = 4096  # ids of one block's range that it keeps in shared memory
IDS_PER_THREAD = 8  # of a block that sorts; fewer ids, fewer threads
SUM_THREADS = 256
LANE_ELEMENTS = 16  # columns of a lane at most
HOT = 32  # ids of a row that one warp adds alone
IN_FLIGHT = 48  # elements of updates that a lane has under way
ALIGNMENT = 256


def supports(kernel: Kernel) -> str | None:
    """None, or why this generator does not take the kernel."""
    try:
        _scatter_of(kernel)
    except Unsupported as reason:
        return str(reason)
    return None


def _table(op: ScatterAdd) -> tuple[int, int]:
    """(rows, elements of a row)."""
    shape = op.types[0].shape
    return shape[0], math.prod(shape[1:])


def configure(kernel: Kernel, facts: GpuFacts) -> dict[str, int]:
    """`blocks` sort the ids; a lane sums `vectors` vectors of `width` columns."""
    op = _scatter_of(kernel)
    rows, columns = _table(op)
    most = VECTOR_BYTES // max(ITEM_BYTES[op.types[0].dtype], ITEM_BYTES[op.updates_type.dtype])
    width = math.gcd(most, columns) if columns else 1
    tiles = max(1, math.ceil(columns / (WARP * LANE_ELEMENTS)))
    vectors = max(1, math.ceil(columns / (WARP * width * tiles)))
    while vectors > 1 and rows * math.ceil(columns / (WARP * width * vectors)) < 2 * facts.sms * SUM_THREADS // WARP:
        vectors = (vectors + 1) // 2
    threads = max(4 * WARP, min(SORT_THREADS, power_of_two(op.ids_type.size // IDS_PER_THREAD)))
    return {"blocks": max(1, min(facts.sms, rows)), "threads": threads, "width": width, "vectors": vectors}


def generate(kernel: Kernel, facts: GpuFacts, config: dict[str, int]) -> GpuKernel:
    op = _scatter_of(kernel)
    symbols = [f"{kernel.symbol}_{i}" for i in range(2)]
    sort = _Sort(kernel, op, symbols[0], config)
    sums = _Sums(kernel, op, symbols[1], config)
    blocks = (sort.emit(), sums.emit())
    texts = [
        phase_text(kernel, symbols[0], sort.out, config["threads"], sort.shared),
        phase_text(kernel, symbols[1], sums.out, SUM_THREADS, sums.shared),
    ]
    num_bytes = op.updates_type.bytes + op.ids_type.bytes + op.types[0].bytes * (2 if op.init else 1)
    scanned = config["blocks"] * op.ids_type.bytes
    return GpuKernel(
        text=module_text(texts),
        target=facts.arch,
        phases=(
            GpuPhase(symbols[0], (blocks[0], 1, 1), config["threads"]),
            GpuPhase(symbols[1], (blocks[1], 1, 1), SUM_THREADS),
        ),
        workspace_bytes=sort.lists.bytes,
        bytes=num_bytes,
        flops=op.updates_type.size,
        predicted_us=2 * LAUNCH_US + time_us(num_bytes, op.updates_type.size, facts) + time_us(scanned, 0, facts),
        schedule=f"scatter, {config['blocks']} blocks sort the ids, a warp sums {config['vectors']} x {config['width']} "
        f"x {WARP} columns, {blocks[1]} blocks of {SUM_THREADS}",
    )


class _Lists:
    """Arrays of i32 in the workspace: start [rows + 1], order [ids], and for the sort found and its rows [ids]."""

    def __init__(self, op: ScatterAdd):
        rows, _ = _table(op)
        self.starts, size = {}, 0
        for name, count in (
            ("start", rows + 1),
            ("order", op.ids_type.size),
            ("found", op.ids_type.size),
            ("row", op.ids_type.size),
        ):
            self.starts[name] = size
            size += (count * 4 + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT
        self.bytes = size


class _Phase:
    """What both phases need: the workspace's arrays, warps and lanes."""

    def __init__(self, kernel: Kernel, op: ScatterAdd, symbol: str, config: dict[str, int]):
        self.kernel, self.op, self.config, self.out = kernel, op, config, Emitter()
        self.shared, self.lists = Shared(symbol, self.out), _Lists(op)
        self.evaluator = SimtEvaluator(kernel, Domain((1,), (), ()), self.out)
        self.ints, self.memory = self.evaluator.integers, self.evaluator.memory
        self.ints.is_small = False
        self.rows, self.columns = _table(op)
        self.count = op.ids_type.size
        self.warp, self.lane = self._narrow("divui"), self._narrow("remui")

    def _narrow(self, op: str) -> str:
        """Warp or lane number, from the 32-bit thread number."""
        value = self.out.value(f"arith.{op} %thread32, {self.out.constant(str(WARP), 'i32')} : i32")
        return self.out.value(f"arith.extui {value} : i32 to i64")

    def array(self, name: str) -> str:
        start = self.out.integer(self.lists.starts[name])
        with self.out.scope(0):
            return self.out.value(
                f"llvm.getelementptr inbounds {WORKSPACE}[{start}] : ({POINTER}, i64) -> {POINTER}, i8"
            )

    def _minus(self, a: str, b: str) -> str:
        return self.out.value(f"arith.subi {a}, {b} : i64")

    def read(self, name: str, index: Number) -> str:
        """An element of an array of the workspace, as i64."""
        value = self.memory.load(self.array(name), self.ints.name(index), "i32", 0)
        return self.out.value(f"arith.extsi {value} : i32 to i64")

    def write(self, name: str, index: Number, value: Number) -> None:
        narrow = self.out.value(f"arith.trunci {self.ints.name(value)} : i64 to i32")
        self.memory.store(narrow, self.array(name), self.ints.name(index), "i32", 0)

    def loop(self, lower: Number, upper: Number, step: Number, body: Callable, carried: Sequence = ()) -> list[str]:
        ints = self.ints
        return self.out.loop(ints.name(lower), ints.name(upper), ints.name(step), body, carried)


class _Sort(_Phase):
    """The first phase."""

    def emit(self) -> int:
        """Write the phase; returns its number of blocks."""
        ints, blocks = self.ints, self.config["blocks"]
        if not self.rows:
            return 0
        self.warps = self.config["threads"] // WARP
        self.per_block = math.ceil(self.rows / blocks)
        self.first = ints.name(ints.mul(BLOCK, self.per_block))
        self.last = ints.name(ints.min(ints.add(self.first, self.per_block), self.rows))
        self.size = self._minus(self.last, self.first)
        self.rounds = math.ceil(math.ceil(self.count / WARP) / self.warps)
        self.begin = ints.mul(self.warp, self.rounds)
        # Few rounds: the ids stay in registers from counting to placing.
        self.ids = [self._id(r) for r in range(self.rounds)] if self.rounds <= ROUNDS_AT_ONCE else None
        first, mine, total = self._count()
        end = ints.name(ints.add(first, total))
        self._choose_memory(first, total)
        self._find(mine)
        barrier(self.out)
        self._list(first, end)
        return math.ceil(self.rows / self.per_block)

    # --- the ids of a warp

    def _id(self, round_: Number) -> tuple[str, str, str, str]:
        """(number, row, is it in this block's range, is it below) of this lane's id in a round of the warp."""
        ints, out = self.ints, self.out
        number = ints.name(ints.add(ints.mul(ints.add(self.begin, round_), WARP), self.lane))
        there = ints.less(number, self.count)
        dtype, place = self.op.ids_type.dtype, ints.name(ints.min(number, self.count - 1))
        row = self.memory.load(operand_pointer(self.op.ids), place, dtype, 0)
        if dtype != "i64":
            row = out.value(f"arith.extsi {row} : {dtype} to i64")
        local = self._minus(row, self.first)
        inside = ints.both(there, ints.less(local, self.size))
        below = ints.both(there, ints.less(row, self.first))  # unsigned: a negative id is not below
        assert inside is not None and below is not None
        return number, local, inside, below

    def _each_round(self, body: Callable[[tuple, list[str]], list[str]], carried: list[tuple[str, str]]) -> list[str]:
        """`body(id, values)` for every round of the warp, the loads of several rounds at once."""
        values = [v for v, _ in carried]
        if self.ids is not None:
            for id_ in self.ids:
                values = body(id_, values)
            return values

        def several(round_: str, values: list[str]) -> list[str]:
            for id_ in [self._id(self.ints.add(round_, r)) for r in range(ROUNDS_AT_ONCE)]:
                values = body(id_, values)
            return values

        whole = self.rounds // ROUNDS_AT_ONCE * ROUNDS_AT_ONCE
        values = self.loop(0, whole, ROUNDS_AT_ONCE, several, carried)
        for r in range(whole, self.rounds):
            values = body(self._id(r), values)
        return values

    def _ballot(self, condition: str) -> str:
        return self.out.value(f"nvvm.vote.sync ballot {self.out.constant('-1', 'i32')}, {condition} -> i32")

    def _popcount(self, bits: str) -> str:
        return self.out.value(f"arith.extui {self.out.value(f'math.ctpop {bits} : i32')} : i32 to i64")

    def _tally(self, totals: list[str], flags: Sequence[str]) -> list[str]:
        """Totals of the warp, each with the lanes whose flag is set added."""
        counts = [self._popcount(self._ballot(flag)) for flag in flags]
        return [self.ints.name(self.ints.add(t, c)) for t, c in zip(totals, counts, strict=True)]

    def _count(self) -> tuple[str, Number, str]:
        """(number of ids below the block's range, finds of the warps before this one, finds of the block)."""
        ints = self.ints
        zero = ints.name(0)
        totals = self._each_round(lambda id_, t: self._tally(t, id_[2:]), [(zero, "i64"), (zero, "i64")])
        places = [self.shared.allocate(8 * self.warps) for _ in totals]

        def publish() -> None:
            for place, total in zip(places, totals, strict=True):
                self.shared.store(total, place, self.warp, "i64")

        self.out.when(ints.equal(self.lane, 0), publish)
        barrier(self.out)
        # Lane l has warp l's counts: sums over all lanes, and over the lanes before this warp.
        there = ints.less(self.lane, self.warps)
        index = ints.name(ints.min(self.lane, self.warps - 1))
        found, below = (ints.select(there, self.shared.load(p, index, "i64"), 0) for p in places)
        before = ints.select(ints.less(self.lane, self.warp), found, 0)
        first = self._sum(below)
        return first, self._sum(before), self._sum(found)

    def _sum(self, value: str) -> str:
        for distance in (1, 2, 4, 8, 16):
            value = self.out.value(f"arith.addi {value}, {shuffle(self.out, value, 'i64', distance)} : i64")
        return value

    # --- finds, in shared memory where they fit

    def _choose_memory(self, first: str, total: str) -> None:
        """Pointers to this block's finds: id numbers, and rows within the block."""
        out, fits = self.out, self.ints.less(total, SHARED_FINDS + 1)
        self.finds = {}
        for name in ("found", "row"):
            near = out.value(
                f"llvm.addrspacecast {self.shared.address(self.shared.allocate(4 * SHARED_FINDS), 0, 'i32')} : "
                f"{SHARED_POINTER} to {POINTER}"
            )
            far = self.memory.address(self.array(name), first, "i32")
            self.finds[name] = out.value(f"llvm.select {fits}, {near}, {far} : i1, {POINTER}")

    def _read_find(self, name: str, index: Number) -> str:
        value = self.memory.load(self.finds[name], self.ints.name(index), "i32", 0)
        return self.out.value(f"arith.extui {value} : i32 to i64")

    def _before(self) -> str:
        """The bits of the lanes before this one."""
        out, one = self.out, self.out.constant("1", "i32")
        lane = out.value(f"arith.trunci {self.lane} : i64 to i32")
        return out.value(f"arith.subi {out.value(f'arith.shli {one}, {lane} : i32')}, {one} : i32")

    def _place(self, bits: str, start: Number) -> Number:
        """Where this lane's find goes: behind those of the lanes before it."""
        return self.ints.add(start, self._popcount(self.out.value(f"arith.andi {bits}, {self.before} : i32")))

    def _find(self, start: Number) -> None:
        """Ids in the range, in their order, behind `start` finds of other warps."""
        ints = self.ints
        self.before = self._before()

        def put(id_: tuple, places: list[str]) -> list[str]:
            number, local, inside, _ = id_
            bits = self._ballot(inside)

            def write() -> None:
                place = ints.name(self._place(bits, places[0]))
                for name, value in (("found", number), ("row", local)):
                    narrow = self.out.value(f"arith.trunci {value} : i64 to i32")
                    self.memory.store(narrow, self.finds[name], place, "i32", 0)

            self.out.when(inside, write)
            return [ints.name(ints.add(places[0], self._popcount(bits)))]

        self._each_round(put, [(ints.name(start), "i64")])

    def _list(self, first: str, end: str) -> None:
        """A warp takes a row: how many finds are below it, then the finds in it."""
        ints, count, zero = self.ints, self._minus(end, first), self.ints.name(0)

        def finds(place: str, body: Callable[[str, str, str], list[str]]) -> list[str]:
            here = ints.add(place, self.lane)
            there = ints.less(here, count)
            index = ints.select(there, here, 0)
            return body(self._read_find("row", index), index, there)

        def row(index: str, _: list[str]) -> list[str]:
            def tally(found: str, there: str, totals: list[str]) -> list[str]:
                below, here = ints.less(found, index), ints.equal(found, index)
                flags = [f for f in (ints.both(there, below), ints.both(there, here)) if f is not None]
                return self._tally(totals, flags)

            add = lambda place, totals: finds(place, lambda found, _, there: tally(found, there, totals))
            below, here = self.loop(0, count, WARP, add, [(zero, "i64"), (zero, "i64")])
            start = ints.add(first, below)
            absolute = ints.add(self.first, index)
            self.out.when(ints.equal(self.lane, 0), lambda: self.write("start", absolute, start))
            is_some = self.out.value(f"arith.cmpi ne, {here}, {zero} : i64")
            self.out.when(is_some, lambda: self._order(index, start, count, finds))
            return []

        self.loop(self.warp, self.size, self.warps, row)
        is_end = ints.both(ints.equal(self.last, self.rows), ints.equal(THREAD, 0))
        assert is_end is not None
        self.out.when(is_end, lambda: self.write("start", self.rows, end))

    def _order(self, row: str, start: Number, count: str, finds: Callable) -> None:
        """The numbers of the finds in a row, in their order."""

        def put(place: str, places: list[str]) -> list[str]:
            def add(found: str, at: str, there: str) -> list[str]:
                mine = self.ints.both(there, self.ints.equal(found, row))
                assert mine is not None
                bits = self._ballot(mine)
                write = lambda: self.write("order", self._place(bits, places[0]), self._read_find("found", at))
                self.out.when(mine, write)
                return [self.ints.name(self.ints.add(places[0], self._popcount(bits)))]

            return finds(place, add)

        self.loop(0, count, WARP, put, [(self.ints.name(start), "i64")])


class _Sums(_Phase):
    """The second phase: a unit is a row's tile of columns."""

    def emit(self) -> int:
        """Write the phase; returns its number of blocks."""
        ints = self.ints
        self.width, self.vectors = self.config["width"], self.config["vectors"]
        self.tile = WARP * self.width * self.vectors
        self.dtype = self.op.types[0].dtype
        self.sum_dtype = "f32" if self.dtype in NARROW else self.dtype
        tiles, warps = math.ceil(self.columns / self.tile), SUM_THREADS // WARP
        units = self.rows * tiles
        if not units:
            return 0
        self.ints.is_small = units + warps < 1 << 31
        self.tiles, self.units = tiles, units
        self.sums_place = self.shared.allocate(SUM_THREADS * self.width * self.vectors * ITEM_BYTES[self.sum_dtype])
        self.hot_place = self.shared.allocate(4 * warps)
        unit = ints.add(ints.mul(BLOCK, warps), self.warp)
        inside = None if units % warps == 0 else ints.less(unit, units)
        unit = unit if inside is None else ints.min(unit, units - 1)
        row, first_column = self._unit(unit)
        start, end = self.read("start", row), self.read("start", ints.add(row, 1))
        hot = self.out.value(f"arith.cmpi sgt, {self._minus(end, start)}, {ints.name(HOT)} : i64")
        is_hot = ints.both(hot, inside)
        assert is_hot is not None
        self._flag(is_hot)
        calm = self.out.value(f"arith.xori {hot}, {self.out.constant('true', 'i1')} : i1")
        condition = ints.both(calm, inside)
        assert condition is not None
        self.out.when(condition, lambda: self._calm_row(row, first_column, start, end))
        self._hot_rows(warps)
        return math.ceil(units / warps)

    def _unit(self, unit: Number) -> tuple[Number, Number]:
        return self.ints.div(unit, self.tiles), self.ints.mul(self.ints.rem(unit, self.tiles), self.tile)

    def _flag(self, is_hot: str) -> None:
        word = self.out.value(f"arith.extui {is_hot} : i1 to i32")
        self.out.when(self.ints.equal(self.lane, 0), lambda: self.shared.store(word, self.hot_place, self.warp, "i32"))
        barrier(self.out)

    def _columns(self, first_column: Number) -> list[tuple[Number, str | None]]:
        """(column, is it one) of each vector of this lane."""
        ints, found = self.ints, []
        for v in range(self.vectors):
            column = ints.add(first_column, ints.mul(ints.add(self.lane, v * WARP), self.width))
            inside = None if self.columns % self.tile == 0 else ints.less(column, self.columns)
            found.append((column if inside is None else ints.min(column, self.columns - self.width), inside))
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

        length = self._minus(ints.name(end), ints.name(start))
        rest = self.out.value(f"arith.remui {length}, {ints.name(unroll)} : i64")
        middle = self._minus(ints.name(end), rest)
        types = [self.sum_dtype] * len(sums)
        sums = self.loop(start, middle, unroll, several(unroll), list(zip(sums, types, strict=True)))
        return self.loop(middle, end, 1, several(1), list(zip(sums, types, strict=True)))

    def _initial(self, row: Number, columns: list[tuple[Number, str | None]]) -> list[str]:
        if self.op.init is None:
            return self._zeros()
        assert isinstance(self.op.init, Operand)
        pointer = operand_pointer(self.op.init)
        return [x for column, _ in columns for x in self._load(pointer, row, column, self.dtype)]

    def _calm_row(self, row: Number, first_column: Number, start: str, end: str) -> None:
        columns = self._columns(first_column)
        sums = self._accumulate(columns, start, end, self._initial(row, columns))
        for v, (column, inside) in enumerate(columns):
            self._store(row, column, inside, sums[v * self.width : (v + 1) * self.width])

    def _store(self, row: Number, column: Number, inside: str | None, sums: Sequence[str]) -> None:
        values = [convert_scalar(self.out, s, self.sum_dtype, self.dtype) for s in sums]
        offset = self.ints.name(self.ints.add(self.ints.mul(row, self.columns), column))
        write = lambda: store_vector(self.evaluator, values, result_pointer(self.kernel, 0), offset, self.dtype)
        self.out.when(inside, write) if inside else write()

    def _hot_rows(self, warps: int) -> None:
        """Units with many ids, one after the other, by the whole block."""
        ints = self.ints

        def unit(index: str, _: list[str]) -> list[str]:
            flag = self.shared.load(self.hot_place, index, "i32")
            is_hot = self.out.value(f"arith.cmpi ne, {flag}, {self.out.constant('0', 'i32')} : i32")
            row, first_column = self._unit(ints.add(ints.mul(BLOCK, warps), index))
            self.out.when(is_hot, lambda: self._hot_row(row, first_column, warps))
            return []

        self.loop(0, warps, 1, unit)

    def _hot_row(self, row: Number, first_column: Number, warps: int) -> None:
        ints = self.ints
        start, end = self.read("start", row), self.read("start", ints.add(row, 1))
        share = ints.div(ints.add(self._minus(end, start), warps - 1), warps)
        first = ints.min(ints.add(start, ints.mul(self.warp, share)), end)
        last = ints.min(ints.add(first, share), end)
        columns = self._columns(first_column)
        sums = self._accumulate(columns, first, last, self._zeros())
        # [vector][element][warp][lane]: lanes side by side, whatever the width.
        for k, value in enumerate(sums):
            self.shared.store(value, self.sums_place, ints.name(ints.add(THREAD, k * SUM_THREADS)), self.sum_dtype)
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
                index = self.ints.add(self.lane, w * WARP + (v * self.width + i) * SUM_THREADS)
                part = self.shared.load(self.sums_place, self.ints.name(index), self.sum_dtype)
                totals[i] = self._add(totals[i], part)
        self._store(row, column, inside, totals)
