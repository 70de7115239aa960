"""The product of one tile: a ring of stages that copies fill while the warps multiply what has arrived.

    fill stages 0 .. stages-2, wait for the first, read its first fragments
    for each step of k:
        start the copies of the step stages-1 ahead, into the stage that everyone has left
        multiply, an instruction's k at a time, while the next fragments are read
        before the last: wait for the next stage, meet at a barrier, so that its first fragments are read meanwhile

Factors that travel through registers are read where the copies start and written before the barrier, so that the
memory's latency passes meanwhile.
"""

from __future__ import annotations

from dataclasses import dataclass

from blutrain.nova.gpu.ampere.fragments import Fragments
from blutrain.nova.gpu.ampere.instruction import LANES, Fragment, Multiplier
from blutrain.nova.gpu.ampere.stage import Stager
from blutrain.nova.gpu.ampere.tiles import Tiles
from blutrain.nova.gpu.builder import SHARED, Builder, Integer


@dataclass(frozen=True)
class Block:
    """Where a block works: range of k, tile, and the product's index of the tile's first element along each axis."""

    part: Integer
    tile: Integer
    tile_m: Integer
    tile_n: Integer
    first: dict[str, Integer]
    thread: str
    lane: str
    warp: str


def locate(out: Builder, tiles: Tiles, index: Integer | None = None, part: Integer = 0) -> Block:
    """The tile of block `index`, ranges of k outermost, tiles in groups along m so that a group shares columns."""
    thread = out.value("nvvm.read.ptx.sreg.tid.x : i32")
    lane = out.bits("andi", thread, LANES - 1)
    # The same in all lanes, which the compiler cannot know: addresses that follow from it stay uniform.
    warp = out.value(
        f"nvvm.shfl.sync idx {out.name(-1)}, {out.div(thread, LANES)}, {out.name(0)}, {out.name(31)} : i32 -> i32"
    )
    if index is None:
        block: Integer = out.value("nvvm.read.ptx.sreg.ctaid.x : i32")
        part = out.div(block, tiles.output_tiles) if tiles.split > 1 else 0
        index = out.rem(block, tiles.output_tiles) if tiles.split > 1 else block
    count_m, count_n = tiles.count("m"), tiles.count("n")
    batch, number = out.div(index, count_m * count_n), out.rem(index, count_m * count_n)
    tile_m, tile_n = _grouped(out, number, count_m, count_n, min(tiles.schedule.group, count_m))
    first = {
        "batch": batch if tiles.problem.extent["batch"] > 1 else 0,
        "m": out.mul(tile_m, tiles.tile("m")),
        "n": out.mul(tile_n, tiles.tile("n")),
    }
    return Block(part, index, tile_m, tile_n, first, thread, str(lane), warp)


def _grouped(out: Builder, number: Integer, count_m: int, count_n: int, group: int) -> tuple[Integer, Integer]:
    first = out.mul(out.div(number, group * count_n), group)
    within = out.rem(number, group * count_n)
    size = group if count_m % group == 0 else out.minimum(out.sub(count_m, first), group)
    return out.add(first, out.rem(within, size)), out.quotient(within, size)


class Product:
    """Emits the product of a block's tile."""

    def __init__(self, out: Builder, tiles: Tiles, block: Block):
        self.out, self.tiles, self.block = out, tiles, block
        self.multiplier = Multiplier(out, tiles.problem.kind)
        self.reads_ahead = tiles.problem.instruction.products == 1
        self.shared = out.value(
            f"llvm.ptrtoint {out.value(f'llvm.mlir.addressof @shared : {SHARED}')} : {SHARED} to i32"
        )
        bases = {"m": 0, "n": tiles.shared["m"].bytes}
        sides = tiles.problem.sides
        self.stagers = [Stager(out, tiles, sides[a], block.thread, block.first, bases[a]) for a in "mn"]
        warp = {"m": out.div(block.warp, tiles.warps[1]), "n": out.rem(block.warp, tiles.warps[1])}
        first = {a: out.mul(warp[a], tiles.warp_tile(a)) for a in "mn"}
        self.fragments = {a: Fragments(out, tiles, a, block.lane, first[a], bases[a]) for a in "mn"}

    def emit(self) -> list[str]:
        """The accumulators, in the layout's order of registers."""
        out, tiles = self.out, self.tiles
        dtype = tiles.problem.instruction.result
        sums = [out.constant("0.0", dtype)] * tiles.registers
        if tiles.problem.extent["k"] == 0:
            return sums
        self.begin = out.mul(self.block.part, tiles.steps * tiles.tile("k"))
        self.steps = self._steps()
        ahead = tiles.schedule.stages - 1
        self._fill(ahead)
        self._arrive(ahead)
        # Factors in two parts fill the registers: there no fragments are read ahead.
        loaded = self._flat(self._load(str(self.shared), 0)) if self.reads_ahead else []
        last = out.add(self.shared, ahead * tiles.stage_bytes)

        def step(index: str, carried: list[str]) -> list[str]:
            # ptxas would unroll a loop of few steps whole, and keep fragments of several until registers spill.
            out.asm(".pragma \\22nounroll\\22;", "")
            read, write = carried[:2]
            loaded, sums = carried[2 : 2 + num_loaded], carried[2 + num_loaded :]
            following = self._next(read, last)
            loaded, sums = self._step(index, ahead, (read, write, following), loaded, sums)
            return [following, self._next(write, last), *loaded, *sums]

        num_loaded = len(loaded)
        kind = "i32" if tiles.problem.instruction.is_mma else "f64"
        carried = [(self.shared, "i32"), (str(last), "i32"), *((x, kind) for x in loaded), *((x, dtype) for x in sums)]
        return out.repeat(0, self.steps, 1, step, carried)[2 + num_loaded :]

    def _step(
        self, index: str, ahead: int, stages: tuple[str, str, str], loaded: list[str], sums: list[str]
    ) -> tuple[list[str], list[str]]:
        """One stage: (fragments of the stage that follows, sums)."""
        read, write, following = stages
        count = self.tiles.tile("k") // self.tiles.problem.instruction.k
        arriving = self._start(self.out.add(index, ahead), write)
        present = self._nested(loaded) if self.reads_ahead else self._load(read, 0)
        for step in range(count):
            is_last, current = step + 1 == count, present
            if is_last:
                for stager, pieces in arriving:
                    stager.store(write, pieces)
            if not self.reads_ahead:
                sums = self._outer(current, sums)
            if is_last:
                self._arrive(ahead)
            if self.reads_ahead or not is_last:
                present = self._load(following, 0) if is_last else self._load(read, step + 1)
            if self.reads_ahead:
                sums = self._outer(current, sums)
        return (self._flat(present) if self.reads_ahead else []), sums

    def _arrive(self, ahead: int) -> None:
        """Wait for the next stage's copies: the thread's own, then everyone's."""
        self.out.asm(f"cp.async.wait_group {ahead - 1};", "~{memory}")
        self.out.line("nvvm.barrier0")

    def _flat(self, loaded: dict[str, list[Fragment]]) -> list[str]:
        return [x for a in "mn" for fragment in loaded[a] for x in fragment]

    def _nested(self, flat: list[str]) -> dict[str, list[Fragment]]:
        size = 2 if self.tiles.problem.instruction.is_mma else 1
        fragments = [flat[i : i + size] for i in range(0, len(flat), size)]
        count = self.fragments["m"].subtiles
        return {"m": fragments[:count], "n": fragments[count:]}

    def _steps(self) -> Integer:
        tiles = self.tiles
        if tiles.count("k") % tiles.split == 0:
            return tiles.steps
        begin = self.out.mul(self.block.part, tiles.steps)
        left = self.out._binary("maxsi", self.out.sub(tiles.count("k"), begin), 0)
        return self.out.minimum(left, tiles.steps)

    def _next(self, stage: str, last: Integer) -> str:
        out = self.out
        following = out.add(stage, self.tiles.stage_bytes)
        return str(out.select(out.compare("eq", stage, last), self.shared, following))

    # --- copies

    def _fill(self, ahead: int) -> None:
        """Start the copies of the first `ahead` steps. A loop: unrolled, each copy's address would stay in registers."""
        out = self.out

        def copy(index: str, stage: str) -> None:
            k = out.add(self.begin, out.mul(index, self.tiles.tile("k")))
            for stager in self.stagers:
                if stager.in_registers:
                    stager.store(stage, stager.load(k))
                else:
                    stager.issue(stage, k)

        def step(index: str, carried: list[str]) -> list[str]:
            out.when(out.compare("slt", index, self.steps), lambda: copy(index, carried[0]))
            out.asm("cp.async.commit_group;", "~{memory}")
            return [str(out.add(carried[0], self.tiles.stage_bytes))]

        out.repeat(0, ahead, 1, step, [(self.shared, "i32")])

    def _start(self, index: Integer, stage: str) -> list[tuple[Stager, list[list[str]]]]:
        """Begin to bring step `index`; what passes through registers is on its way there when this returns."""
        out = self.out
        is_wanted = out.compare("slt", index, self.steps)
        k = out.add(self.begin, out.mul(index, self.tiles.tile("k")))
        copied = [s for s in self.stagers if not s.in_registers]

        def issue() -> None:
            for stager in copied:
                stager.issue(stage, k)

        if copied:
            out.when(is_wanted, issue)
        out.asm("cp.async.commit_group;", "~{memory}")
        # Behind the last step the last one is read again, into a stage that nobody reads.
        last = out.sub(self.steps, 1)
        again = out.add(self.begin, out.mul(out.minimum(index, last), self.tiles.tile("k")))
        return [(s, s.load(again)) for s in self.stagers if s.in_registers]

    # --- products

    def _load(self, stage: str, step: int) -> dict[str, list[Fragment]]:
        return {a: self.fragments[a].load(stage, step) for a in "mn"}

    def _outer(self, fragments: dict[str, list[Fragment]], sums: list[str]) -> list[str]:
        """Every tile of the instruction: rows of tiles outermost, as the layout counts registers."""
        instruction, multiplier = self.tiles.problem.instruction, self.multiplier
        per_tile = instruction.m // instruction.subtile["m"]
        size, result, position = instruction.registers, [], 0
        columns = [multiplier.prepare(column) for column in fragments["n"]]
        for m in range(0, len(fragments["m"]), per_tile):
            rows = [multiplier.prepare(fragment) for fragment in fragments["m"][m : m + per_tile]]
            for column in columns:
                result += multiplier.multiply(sums[position : position + size], rows, column)
                position += size
        return result
