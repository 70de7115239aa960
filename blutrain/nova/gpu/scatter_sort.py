"""The first phase of a scatter kernel: ids sorted by table row, in their order.

Every block owns a range of table rows, no more than it has threads. Its warps share the ids; each counts those in the
range and those below it, so that every warp knows where its finds go, and puts them there in order, by ballots. Then
the finds are sorted by counting: how many each row has, where it begins, and one warp puts them there in their order.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from blutrain.nova.cpu.emit import POINTER, Number, operand_pointer
from blutrain.nova.gpu.emit import BLOCK, SHARED_POINTER, THREAD, barrier
from blutrain.nova.gpu.emit_block import WARP, shuffle
from blutrain.nova.gpu.scatter_phase import ScatterPhase

ROUNDS_AT_ONCE = 8  # ids of a lane that are loaded together
SHARED_FINDS = 4096  # ids of one block's range that it keeps in shared memory


class ScatterSort(ScatterPhase):
    """The first phase."""

    def emit(self) -> int:
        """Write the phase; returns its number of blocks."""
        ints, blocks = self.ints, self.config["blocks"]
        if not self.rows:
            return 0
        self.warps = self.config["threads"] // WARP
        self.per_block = math.ceil(self.rows / blocks)
        self.first = ints.name(ints.mul(BLOCK, self.per_block))
        self.last = ints.name(ints.minimum(ints.add(self.first, self.per_block), self.rows))
        self.size = self.minus(self.last, self.first)
        self.rounds = math.ceil(math.ceil(self.count / WARP) / self.warps)
        self.begin = ints.mul(self.warp, self.rounds)
        # Few rounds: the ids stay in registers from counting to placing.
        self.ids = [self._id(r) for r in range(self.rounds)] if self.rounds <= ROUNDS_AT_ONCE else None
        self.numbers = self.shared.allocate(4 * self.per_block)
        first, mine, self.total = self._count()
        self._choose_memory(first, self.total)
        self._find(mine)
        self._clear()
        barrier(self.out)
        self._list(first, self.total)
        return math.ceil(self.rows / self.per_block)

    # --- the ids of a warp

    def _id(self, round_: Number) -> tuple[str, str, str, str]:
        """(number, row, is it in this block's range, is it below) of this lane's id in a round of the warp."""
        ints, out = self.ints, self.out
        number = ints.name(ints.add(ints.mul(ints.add(self.begin, round_), WARP), self.lane))
        there = ints.less(number, self.count)
        dtype, place = self.op.ids_type.dtype, ints.name(ints.minimum(number, self.count - 1))
        row = self.memory.load(operand_pointer(self.op.ids), place, dtype, 0)
        if dtype != "i64":
            row = out.value(f"arith.extsi {row} : {dtype} to i64")
        local = self.minus(row, self.first)
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
        index = ints.name(ints.minimum(self.lane, self.warps - 1))
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

    def _clear(self) -> None:
        """Each row's number."""
        zero = self.out.constant("0", "i32")
        mine = self.ints.less(THREAD, self.per_block)
        self.out.when(mine, lambda: self.shared.store(zero, self.numbers, THREAD, "i32"))

    def _list(self, first: str, total: str) -> None:
        """The finds by row, in their order: a count for each row, where each row begins, then every find to its place."""
        self._count_rows(total)
        self._begin_rows(first)
        self.out.when(self.ints.equal(self.warp, 0), lambda: self._order(first, total))

    def _number_in(self, row: Number) -> tuple[int, str]:
        """(place, index) of a row's number in shared memory."""
        return self.numbers, self.ints.name(row)

    def _count_rows(self, total: str) -> None:
        """Integer sums are the same in any order."""
        out, one = self.out, self.out.constant("1", "i32")

        def add(find: str, _: list[str]) -> list[str]:
            address = self.shared.address(*self._number_in(self._read_find("row", find)), "i32")
            out.value(f"llvm.atomicrmw add {address}, {one} monotonic : {SHARED_POINTER}, i32")
            return []

        self.loop(THREAD, total, self.config["threads"], add)
        barrier(out)

    def _begin_rows(self, first: str) -> None:
        """A row begins behind those before it: sums over 1, 2, 4, ... rows; a thread has a row."""
        ints, out = self.ints, self.out
        zero, mine = out.constant("0", "i32"), ints.less(THREAD, self.per_block)
        place = ints.name(ints.minimum(THREAD, self.per_block - 1))

        def before(distance: int) -> str:
            """The number `distance` rows before, 0 where there is none."""
            there = out.value(f"arith.cmpi uge, {place}, {ints.name(distance)} : i64")
            index = ints.select(there, self.minus(place, ints.name(distance)), 0)
            return out.value(f"arith.select {there}, {self.shared.load(self.numbers, index, 'i32')}, {zero} : i32")

        def put(value: str) -> None:
            barrier(out)
            out.when(mine, lambda: self.shared.store(value, self.numbers, place, "i32"))
            barrier(out)

        distance = 1
        while distance < self.per_block:
            own = self.shared.load(self.numbers, place, "i32")
            put(out.value(f"arith.addi {own}, {before(distance)} : i32"))
            distance *= 2
        start = before(1)
        put(start)
        wide = out.value(f"arith.extui {start} : i32 to i64")
        inside = ints.both(mine, ints.less(place, self.size))
        out.when(inside, lambda: self.write("start", ints.add(self.first, place), ints.add(first, wide)))
        is_end = ints.both(ints.equal(self.last, self.rows), ints.equal(THREAD, 0))
        out.when(is_end, lambda: self.write("start", self.rows, ints.add(first, self.total)))

    def _order(self, first: str, total: str) -> None:
        """One warp takes the finds in their order, 32 at a time; those of one row go behind each other by ballots."""
        ints, out = self.ints, self.out
        together = f"nvvm.bar.warp.sync {out.constant('-1', 'i32')} : i32"

        def put(place: str, _: list[str]) -> list[str]:
            here = ints.add(place, self.lane)
            there = ints.less(here, total)
            index = ints.select(there, here, 0)
            row = self._read_find("row", index)
            peers = self._peers(row, there)
            start = self.shared.load(*self._number_in(row), "i32")
            earlier = out.value(f"arith.andi {peers}, {self.before} : i32")
            wide = out.value(f"arith.extui {start} : i32 to i64")
            target = ints.add(ints.add(first, wide), self._popcount(earlier))
            out.when(there, lambda: self.write("order", target, self._read_find("found", index)))
            out.line(together)
            count = out.value(f"math.ctpop {peers} : i32")
            following = out.value(f"arith.addi {start}, {count} : i32")
            none = out.value(f"arith.cmpi eq, {earlier}, {out.constant('0', 'i32')} : i32")
            leads = ints.both(there, none)
            out.when(leads, lambda: self.shared.store(following, *self._number_in(row), "i32"))
            out.line(together)
            return []

        self.loop(0, total, WARP, put)

    def _peers(self, row: str, there: str) -> str:
        """The lanes whose find lies in the same row as this one's."""
        out, peers = self.out, self._ballot(there)
        all_lanes = out.constant("-1", "i32")
        for bit in range((self.per_block - 1).bit_length()):
            shifted = out.value(f"arith.shrui {row}, {self.ints.name(bit)} : i64")
            is_set = out.value(f"arith.trunci {shifted} : i64 to i1")
            votes = self._ballot(is_set)
            others = out.value(f"arith.xori {votes}, {all_lanes} : i32")
            same = out.value(f"arith.select {is_set}, {votes}, {others} : i32")
            peers = out.value(f"arith.andi {peers}, {same} : i32")
        return peers
