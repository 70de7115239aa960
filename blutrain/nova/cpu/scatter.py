"""scatter kernels: rows of updates added into a table by id (the gradient of an embedding), the same bits in every
run.

The first phase turns the ids into one list per table row, in index order: it walks them backwards and puts each
in front of its row's list. It is one task and costs a few nanoseconds an id. In the second phase tasks own parts
of the table: each row's list is followed with the sums in registers (f32 for 16-bit tables), and every element of
the result is written once, so the table needs no clearing. Ids outside the table are dropped.
"""

from __future__ import annotations

import math

from blutrain.nova.clone import NARROW, convert_float
from blutrain.nova.cpu.configure_common import LAUNCH_US, TASKS_PER_THREAD, lanes_of, round_up, time_us
from blutrain.nova.cpu.emit import (
    POINTER,
    TASK,
    WORKSPACE,
    Integers,
    Memory,
    Number,
    module_text,
    operand_pointer,
    phase_text,
    result_pointer,
)
from blutrain.nova.cpu.emit_loops import strip_loop
from blutrain.nova.emitter import Emitter, lane_type
from blutrain.nova.kernel import (
    ALIGNMENT_BYTES,
    GeneratedKernel,
    Kernel,
    Phase,
    Produced,
    ScatterAdd,
    TensorType,
    Unsupported,
    check_scatter,
)
from blutrain.nova.target import CpuFacts

ID_NS = 4.0  # the first phase, per id and per table row, measured with lists in the second-level cache
_END = -1  # the end of a list


def supports(kernel: Kernel) -> str | None:
    """None, or why this generator does not take the kernel."""
    try:
        _scatter_of(kernel)
    except Unsupported as reason:
        return str(reason)
    return None


def _scatter_of(kernel: Kernel) -> ScatterAdd:
    op = kernel.ops[0] if len(kernel.ops) == 1 else None
    if not isinstance(op, ScatterAdd) or kernel.yields != (Produced(0, 0),):
        raise Unsupported("a scatter kernel with more than its scatter_add")
    check_scatter(op)
    return op


def configure(kernel: Kernel, facts: CpuFacts) -> dict[str, int]:
    """`tasks` ranges of table rows times `splits` ranges of columns (where rows are few, one may get most ids)."""
    rows, columns = _table(_scatter_of(kernel))
    lanes = lanes_of(facts)
    wanted = TASKS_PER_THREAD * facts.threads if facts.threads > 1 else 1
    splits = min(wanted, max(1, columns // (4 * lanes))) if rows < 1024 and wanted > 1 else 1
    return {"lanes": lanes, "unroll": 4, "tasks": max(1, min(wanted, rows)), "splits": splits}


def _table(op: ScatterAdd) -> tuple[int, int]:
    """(rows, elements of a row)."""
    shape = op.types[0].shape
    return shape[0], math.prod(shape[1:])


def generate(kernel: Kernel, facts: CpuFacts, config: dict[str, int]) -> GeneratedKernel:
    op = _scatter_of(kernel)
    rows, _ = _table(op)
    lists = _Lists(op)
    first, second = Emitter(), Emitter()
    lists.build(first)
    tasks = _Sums(kernel, op, lists, second, config).emit()
    symbols = [f"{kernel.symbol}_{i}" for i in range(2)]
    texts = [phase_text(kernel, s, out) for s, out in zip(symbols, (first, second), strict=True)]
    num_bytes = op.updates_type.bytes + op.ids_type.bytes + op.types[0].bytes * (2 if op.init else 1)
    threads = min(tasks, facts.threads)
    lists_us = (op.ids_type.size + rows / 8) * ID_NS / 1e3
    return GeneratedKernel(
        text=module_text(texts, {}),
        phases=(Phase(symbols[0], 1), Phase(symbols[1], tasks)),
        workspace_bytes=lists.bytes,
        bytes=num_bytes,
        flops=op.updates_type.size,
        predicted_us=2 * LAUNCH_US + lists_us + time_us(num_bytes, op.updates_type.size, facts, threads),
    )


class _Lists:
    """`head[row]` and `next[id number]`, i32, in the workspace."""

    def __init__(self, op: ScatterAdd):
        self.op, (self.rows, _) = op, _table(op)
        self.count = op.ids_type.size
        self.next_start = round_up(self.rows * 4, ALIGNMENT_BYTES)
        self.bytes = self.next_start + round_up(self.count * 4, ALIGNMENT_BYTES)

    def pointers(self, out: Emitter) -> tuple[str, str]:
        start = out.integer(self.next_start)
        return WORKSPACE, out.value(
            f"llvm.getelementptr inbounds {WORKSPACE}[{start}] : ({POINTER}, i64) -> {POINTER}, i8"
        )

    def build(self, out: Emitter) -> None:
        """The first phase: heads cleared, then ids from the last to the first put in front of their row's list."""
        memory, ints = Memory(out), Integers(out)
        head, following = self.pointers(out)

        def clear(starts: list[Number], lanes: int, mask: str | None, _: list[str]) -> list[str]:
            end = out.constant(str(_END), lane_type("i32", lanes))
            memory.store(end, head, ints.name(starts[0]), "i32", lanes, mask)
            return []

        strip_loop(out, 0, self.rows, self.rows, 16, 1, clear)

        def link(step: str, _: list[str]) -> list[str]:
            number = ints.name(ints.sub(self.count - 1, step))
            row = memory.load(operand_pointer(self.op.ids), number, self.op.ids_type.dtype, 0)
            if self.op.ids_type.dtype != "i64":
                row = out.value(f"arith.extsi {row} : {self.op.ids_type.dtype} to i64")
            # As an unsigned number a negative id is too large as well.
            is_inside = out.value(f"arith.cmpi ult, {row}, {out.integer(self.rows)} : i64")

            def put() -> None:
                memory.store(memory.load(head, row, "i32", 0), following, number, "i32", 0)
                narrow = out.value(f"arith.trunci {number} : i64 to i32")
                memory.store(narrow, head, row, "i32", 0)

            out.when(is_inside, put)
            return []

        out.loop(ints.name(0), ints.name(self.count), ints.name(1), link)


class _Sums:
    """The second phase."""

    def __init__(self, kernel: Kernel, op: ScatterAdd, lists: _Lists, out: Emitter, config: dict[str, int]):
        self.kernel, self.op, self.lists, self.out, self.config = kernel, op, lists, out, config
        self.memory, self.ints = Memory(out), Integers(out)
        self.rows, self.columns = _table(op)
        dtype = op.types[0].dtype
        self.sum_dtype = "f32" if dtype in NARROW else dtype

    def emit(self) -> int:
        ints, config = self.ints, self.config
        per_task = max(1, math.ceil(self.rows / config["tasks"]))
        ranges = max(1, math.ceil(self.rows / per_task))
        step = config["lanes"] * config["unroll"]
        width = round_up(math.ceil(self.columns / config["splits"]), step) if config["splits"] > 1 else self.columns
        splits = max(1, math.ceil(self.columns / width)) if width else 1
        first = ints.mul(ints.div(TASK, splits), per_task) if ranges * splits > 1 else 0
        last = ints.minimum(ints.add(first, per_task), self.rows)
        lower = ints.mul(ints.rem(TASK, splits), width) if splits > 1 else 0
        upper = ints.minimum(ints.add(lower, width), self.columns) if splits > 1 else self.columns
        self.head, self.following = self.lists.pointers(self.out)
        body = lambda row, _: self._row(row, lower, upper)
        self.out.loop(ints.name(first), ints.name(last), ints.name(1), body)
        return ranges * splits

    def _row(self, row: str, lower: Number, upper: Number) -> list[str]:
        start = self.memory.load(self.head, row, "i32", 0)
        offset = self.ints.mul(row, self.columns)
        strip = lambda starts, lanes, mask, _: self._strip(start, offset, starts, lanes, mask)
        return strip_loop(self.out, lower, upper, self.columns, self.config["lanes"], self.config["unroll"], strip)

    def _strip(self, start: str, offset: Number, starts: list[Number], lanes: int, mask: str | None) -> list[str]:
        """Follow a row's list with the sums of a few vectors of columns in registers."""
        ints, type_ = self.ints, lane_type(self.sum_dtype, lanes)
        places = [ints.name(ints.add(offset, s)) for s in starts]
        sums = [self._initial(place, lanes, mask) for place in places]
        totals = self._follow(start, starts, sums, type_, lanes, mask)
        target = self.op.types[0].dtype
        for place, value in zip(places, totals, strict=True):
            narrow = convert_float(self.out, value, self.sum_dtype, target, lanes)
            self.memory.store(narrow, result_pointer(self.kernel, 0), place, target, lanes, mask)
        return []

    def _follow(
        self, start: str, starts: list[Number], sums: list[str], type_: str, lanes: int, mask: str | None
    ) -> list[str]:
        out = self.out
        names, types = [out.fresh() for _ in sums], ", ".join(["i32"] + [type_] * len(sums))
        result, at = out.fresh(), out.fresh()
        inits = ", ".join(f"{n} = {v}" for n, v in zip([at, *names], [start, *sums], strict=True))
        out.line(f"{result}:{len(sums) + 1} = scf.while ({inits}) : ({types}) -> ({types}) {{")
        more = out.value(f"arith.cmpi sge, {at}, {out.constant('0', 'i32')} : i32")
        out.line(f"scf.condition({more}) {', '.join([at, *names])} : {types}")
        inner, inner_names = out.fresh(), [out.fresh() for _ in sums]
        arguments = ", ".join(
            f"{n}: {t}" for n, t in zip([inner, *inner_names], ["i32"] + [type_] * len(sums), strict=True)
        )
        out.line("} do {")
        out.line(f"^bb0({arguments}):")
        number = out.value(f"arith.extsi {inner} : i32 to i64")
        base = self.ints.mul(number, self.columns)
        new = []
        for first, old in zip(starts, inner_names, strict=True):
            place = self.ints.name(self.ints.add(base, first))
            new.append(self._add(old, self._load_update(place, lanes, mask), type_))
        following = self.memory.load(self.following, number, "i32", 0)
        out.line(f"scf.yield {', '.join([following, *new])} : {types}")
        out.line("}")
        return [f"{result}#{i + 1}" for i in range(len(sums))]

    def _initial(self, place: str, lanes: int, mask: str | None) -> str:
        if self.op.init is None:
            return self.out.constant("0" if self.sum_dtype[0] == "i" else "0.0", lane_type(self.sum_dtype, lanes))
        dtype = self.op.types[0].dtype
        value = self.memory.load(operand_pointer(self.op.init), place, dtype, lanes, mask)
        return convert_float(self.out, value, dtype, self.sum_dtype, lanes)

    def _load_update(self, place: str, lanes: int, mask: str | None) -> str:
        type_: TensorType = self.op.updates_type
        value = self.memory.load(operand_pointer(self.op.updates), place, type_.dtype, lanes, mask)
        return convert_float(self.out, value, type_.dtype, self.sum_dtype, lanes)

    def _add(self, a: str, b: str, type_: str) -> str:
        op = "addi" if self.sum_dtype[0] == "i" else "addf"
        return self.out.value(f"arith.{op} {a}, {b} : {type_}")
