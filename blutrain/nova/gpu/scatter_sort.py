"""The first phase of a scatter kernel: ids sorted by table row, in their order.

Every block owns a range of table rows. Its warps share the ids; each counts those in the range and those below it, so
that every warp knows where its finds go, and puts them there in order, by ballots. Then a warp takes a row, counts the
finds below it and lists those in it.
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
        self.last = ints.name(ints.min(ints.add(self.first, self.per_block), self.rows))
        self.size = self.minus(self.last, self.first)
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
        ints, count, zero = self.ints, self.minus(end, first), self.ints.name(0)

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
