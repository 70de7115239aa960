"""From global to shared memory: a factor's next tile, by cp.async or through registers.

A tile is cut into pieces; thread i takes pieces i, i + threads, ... Where a piece lies follows from its number, a
power-of-two digit arithmetic, so that each thread keeps one global pointer and one shared offset, and the rest are
immediates. Rows and columns beyond the product are not copied: what they leave in shared memory reaches only results
that are not stored. Steps beyond k are zeros.
"""

from __future__ import annotations

from dataclasses import dataclass

from blutrain.nova.contract.form import Contract, Load
from blutrain.nova.gpu.ampere.elements import Elements, converted, run
from blutrain.nova.gpu.ampere.layout import interleaved
from blutrain.nova.gpu.ampere.problem import Side, dtype_of
from blutrain.nova.gpu.ampere.shared import CHUNK
from blutrain.nova.gpu.ampere.tiles import Tiles
from blutrain.nova.gpu.builder import Builder, Integer

PREFETCH = {16: "cp.async.cg.shared.global.L2::128B", 8: "cp.async.ca.shared.global", 4: "cp.async.ca.shared.global"}


@dataclass(frozen=True)
class Place:
    """What a pass adds to the thread's first piece: lines, and elements along the line."""

    line: int
    element: int


class Stager:
    """One side's copies. `first`: index of the block's first element along batch, m and n."""

    def __init__(self, out: Builder, tiles: Tiles, side: Side, thread: str, first: dict[str, Integer], base: int):
        self.out, self.tiles, self.side, self.first = out, tiles, side, first
        self.shared = tiles.shared[side.axis]
        self.width = tiles.problem.instruction.subtile[side.axis]
        self.lanes = (side.piece or CHUNK) // self.shared.item
        per_line = self.shared.width // self.lanes
        self.pieces = self.shared.lines * per_line
        numbers = range(0, max(self.pieces, tiles.threads), tiles.threads)
        self.places = [Place(i // per_line, i % per_line * self.lanes) for i in numbers]
        piece = out.rem(thread, self.pieces) if self.pieces < tiles.threads else thread
        self.line = out.div(piece, per_line)
        self.element = out.mul(out.rem(piece, per_line), self.lanes)
        self.thread = thread
        offset = self.shared.offset(out, self.line, out.mul(self.element, self.shared.item))
        self.shared_offset = out.add(offset, base)
        self.base = base
        self.source = self._source() if side.piece else ""

    @property
    def in_registers(self) -> bool:
        return self.side.piece == 0

    # --- where pieces lie

    def _own(self, line: Integer) -> Integer:
        """Index along the side's own axis that a line holds (k-major): subtiles interleave."""
        return interleaved(line, self.tiles.run(self.side.axis), self.width, self.out)

    def _number(self, place: Place) -> dict[str, int]:
        """What a pass adds to the thread's first indices."""
        if self.side.is_k_major:
            return {self.side.axis: int(self._own(place.line)), "k": place.element}
        return {self.side.axis: place.element, "k": place.line}

    def _thread_index(self) -> dict[str, Integer]:
        """The thread's first indices, from the tile's."""
        if self.side.is_k_major:
            return {self.side.axis: self._own(self.line), "k": self.element}
        return {self.side.axis: self.element, "k": self.line}

    def _shared_place(self, place: Place) -> tuple[Integer, int]:
        """Offset in a stage: a name or number, and an immediate."""
        return self.shared.moved(self.out, self.shared_offset, place.line, place.element * self.shared.item)

    # --- cp.async

    def _source(self) -> str:
        """The thread's first element at k = 0."""
        index = self._thread_index()
        own = self.out.add(self.first[self.side.axis], index[self.side.axis])
        origin = {**self.first, self.side.axis: own, "k": index["k"]}
        elements = Elements(self.out, self.tiles.problem.contract, origin, frozenset(), False)
        return elements.pointer(self.side.access, run("k", 1), 0)

    def issue(self, stage: Integer, k: Integer) -> None:
        """Start copying the tile at k (an i32) into the stage at shared address `stage`."""
        out, item = self.out, self.shared.item
        source = out.pointer(self.source, self._bytes(k, self.side.step["k"] * item), "i8")
        for place in self.places:
            number = self._number(place)
            constant = sum(number[axis] * self.side.step[axis] for axis in number) * item
            pointer = source
            if not -(2**31) <= constant < 2**31:
                pointer, constant = out.pointer(source, constant, "i8"), 0
            offset, immediate = self._shared_place(place)
            target = out.add(stage, offset)
            size = self._size(k, place)
            self._copy(target, immediate, pointer, constant, size, self._guards(number))

    def _bytes(self, k: Integer, step: int) -> int | str:
        if isinstance(k, int):
            return k * step
        return self.out.value(f"arith.muli {self.out.widen(k)}, {self.out.name(step, 'i64')} : i64")

    def _guards(self, number: dict[str, int]) -> list[tuple[str, int]]:
        """Conditions `name < limit` under which a piece is copied."""
        axis, guards = self.side.axis, []
        if axis in self.tiles.ragged and (self.side.is_k_major or self._is_whole(axis)):
            own = self.out.add(self.first[axis], self._thread_index_own())
            guards.append((self.out.name(own), self.tiles.problem.extent[axis] - number[axis]))
        if self.pieces < self.tiles.threads:
            guards.append((self.thread, self.pieces))
        return guards

    def _thread_index_own(self) -> Integer:
        return self._thread_index()[self.side.axis]

    def _is_whole(self, axis: str) -> bool:
        """Pieces along `axis` are inside the product or outside, never both."""
        return self.tiles.problem.extent[axis] % self.lanes == 0

    def _size(self, k: Integer, place: Place) -> Integer | None:
        """Bytes of a piece that lie inside; the rest becomes zeros. None: all."""
        out, side, extent = self.out, self.side, self.tiles.problem.extent
        number, index = self._number(place), self._thread_index()
        if side.is_k_major:
            if "k" not in self.tiles.ragged:
                return None
            return self._clamped(extent["k"] - number["k"], out.add(k, index["k"]))
        size: Integer | None = None
        if side.axis in self.tiles.ragged and not self._is_whole(side.axis):
            own = out.add(self.first[side.axis], index[side.axis])
            size = self._clamped(extent[side.axis] - number[side.axis], own)
        if "k" in self.tiles.ragged:
            inside = out.compare("slt", out.add(k, index["k"]), extent["k"] - number["k"])
            size = out.select(inside, side.piece if size is None else size, 0)
        return size

    def _clamped(self, end: int, index: Integer) -> Integer:
        """Bytes from `index` to `end`, at least 0 and at most a piece."""
        out = self.out
        room = out.mul(out.sub(end, index), self.shared.item)
        return out.minimum(out.maximum(room, 0), self.side.piece)

    def _copy(
        self,
        target: Integer,
        immediate: int,
        pointer: str,
        constant: int,
        size: Integer | None,
        guards: list[tuple[str, int]],
    ) -> None:
        arguments = [(self.out.name(target), "i32"), (pointer, "!llvm.ptr")]
        constraints = ["r", "l"]
        copy = f"{PREFETCH[self.side.piece]} [$0+{immediate}], [$1+{constant}], {self.side.piece}"
        if size is not None:
            copy += f", ${len(arguments)}"
            arguments.append((self.out.name(size), "i32"))
            constraints.append("r")
        lines = [f"{copy};"]
        if guards:
            tests = [f"setp.lt.and.s32 p, ${len(arguments) + i}, {limit}, p;" for i, (_, limit) in enumerate(guards)]
            tests[0] = tests[0].replace(".and", "").replace(", p;", ";")
            lines = ["{", ".reg .pred p;", *tests, f"@p {copy};", "}"]
            arguments += [(name, "i32") for name, _ in guards]
            constraints += ["r"] * len(guards)
        self.out.asm("\n".join(lines), ",".join([*constraints, "~{memory}"]), arguments)

    # --- through registers

    def load(self, k: Integer) -> list[list[str]]:
        """The thread's pieces of the tile at k, computed: elements in the type of shared memory."""
        out, side = self.out, self.side
        index = self._thread_index()
        origin = {
            **self.first,
            side.axis: out.add(self.first[side.axis], index[side.axis]),
            "k": out.add(k, index["k"]),
        }
        contract: Contract = self.tiles.problem.contract
        elements = Elements(out, contract, origin, self.tiles.ragged, False)
        return [self._piece(elements, self._number(place)) for place in self.places]

    def _piece(self, elements: Elements, number: dict[str, int]) -> list[str]:
        side, out, contract = self.side, self.out, self.tiles.problem.contract
        at = run(side.major, self.lanes, **number)
        values, dtype = elements.value(side.value, at), dtype_of(side.value)
        if side.region:
            argument = side.factor.argument
            values = [elements.region_value({argument: x}, side.factor.product) for x in values]
            dtype = contract.dtype
        values = converted(out, values, dtype, side.dtype)
        if isinstance(side.value, Load) and not side.region and contract.moves(side.value.access, "k"):
            return values  # zero beyond k already; a factor of one k is read anew at each
        zero = out.constant("0.0", side.dtype)
        for lane, x in enumerate(values):
            inside = elements.inside(at, lane, ("k",))
            if inside is not None:
                values[lane] = out.value(f"arith.select {inside}, {x}, {zero} : {side.dtype}")
        return values

    def store(self, stage: Integer, pieces: list[list[str]]) -> None:
        """Write computed pieces into the stage at shared address `stage`."""
        if self.pieces < self.tiles.threads:
            self.out.when(self.out.compare("slt", self.thread, self.pieces), lambda: self._store(stage, pieces))
        else:
            self._store(stage, pieces)

    def _store(self, stage: Integer, pieces: list[list[str]]) -> None:
        out, dtype = self.out, self.side.dtype
        for place, values in zip(self.places, pieces, strict=True):
            offset, immediate = self._shared_place(place)
            pointer = out.shared_pointer(out.add(out.add(stage, offset), immediate))
            vector = out.vector(values, dtype)
            out.line(
                f"llvm.store {vector}, {pointer} {{alignment = {CHUNK} : i64}} : "
                f"vector<{len(values)}x{dtype}>, !llvm.ptr<3>"
            )
