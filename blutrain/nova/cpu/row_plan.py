"""Which value of a row kernel is computed when: passes over a row, what is kept between them, sums over the rows.

A row is swept in passes. A reduction over the columns is complete after its pass, so a value that depends on it
belongs to a later one: `level` of a value is the first pass that can compute it. Values that several passes need
are computed again, or kept in a row buffer where that costs more than a load (exponentials). Reductions over the
rows become partial sums of each task, and everything behind them is left to a second phase.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from blutrain.nova.clone import check_block
from blutrain.nova.cpu.emit_domain import Domain, Placed, Store, build_domain
from blutrain.nova.cpu.emit_reduce import Reduction, as_reduction
from blutrain.nova.kernel import Gather, Generic, Kernel, Operand, Produced, Unsupported, region_flops

KEEP_FLOPS = 16  # a value that costs more than this to compute again is kept between passes


@dataclass
class Pass:
    """One sweep over the columns: reductions to complete, sums over the rows to add to, results to write."""

    reductions: list[Reduction] = field(default_factory=list)
    sums: list[Reduction] = field(default_factory=list)
    stores: list[Store] = field(default_factory=list)
    keeps: list[Produced] = field(default_factory=list)  # values to put into row buffers
    flops: int = 0


@dataclass
class RowPlan:
    domain: Domain
    row_dims: tuple[int, ...]
    column_dims: tuple[int, ...]
    passes: list[Pass]
    row_stores: list[Store]  # one element a row
    row_sums: list[Reduction]  # over the rows, of values that are one a row
    sums: list[Reduction]  # all reductions over the rows, in body order
    post_stores: list[Store]  # results of the second phase
    kept: list[Produced]

    @property
    def lane_dim(self) -> int | None:
        return self.column_dims[-1] if self.column_dims else None


def plan_rows(kernel: Kernel) -> RowPlan:
    """Raises `Unsupported` with the reason where the kernel is no row kernel."""
    domain = build_domain(kernel)
    for placed in domain.ops:
        if isinstance(placed.op, Generic):
            check_block(placed.op.block, has_extract=True)
        elif not isinstance(placed.op, Gather) or not isinstance(placed.op.table, Operand):
            raise Unsupported("an op that is neither a generic nor a gather from an operand")
    if not any(isinstance(op, Generic) and op.is_reduction for op in kernel.ops):
        raise Unsupported("no reduction in a row kernel")
    try:
        return _plan(kernel, domain)
    except Unsupported:
        turned = _turned(kernel, domain)
        if turned is None:
            raise
        return _plan(kernel, turned)


def _plan(kernel: Kernel, domain: Domain) -> RowPlan:
    columns = _column_dims(domain)
    rows = tuple(d for d in range(len(domain.extents)) if d not in columns)
    return _Planner(kernel, domain, rows, columns).plan()


def _turned(kernel: Kernel, domain: Domain) -> Domain | None:
    """The nest as the first reduction has it, where its loops are all there are and others reduce over other ones; else
    the kernel is a column kernel, whichever way its rows lie.
    """
    reductions = [i for i, placed in enumerate(domain.ops) if placed.reduced]
    if len({domain.ops[i].reduced for i in reductions}) < 2 or domain.ops[reductions[0]].nest_dims != frozenset(
        range(len(domain.extents))
    ):
        return None
    return build_domain(kernel, reductions[0])


def _column_dims(domain: Domain) -> tuple[int, ...]:
    """The trailing dimensions that a row's reductions sweep: the smallest reduced set with the last dimension in it."""
    last = len(domain.extents) - 1
    sets = [p.reduced for p in domain.ops if last in p.reduced]
    if not sets:
        return ()  # rows of one element, or of none: every value is one a row
    columns = min(sets, key=len)
    if columns != frozenset(range(len(domain.extents) - len(columns), len(domain.extents))):
        raise Unsupported("a reduction along the last dimension and others that are not next to it")
    return tuple(sorted(columns))


class _Planner:
    def __init__(self, kernel: Kernel, domain: Domain, rows: tuple[int, ...], columns: tuple[int, ...]):
        self.kernel, self.domain, self.rows, self.columns = kernel, domain, frozenset(rows), frozenset(columns)
        self.levels: dict[int, int] = {}  # op -> level of its results
        self.posts: set[int] = set()  # ops that the second phase computes
        self.result = RowPlan(domain, rows, columns, [], [], [], [], [], [])

    def plan(self) -> RowPlan:
        for index, placed in enumerate(self.domain.ops):
            self._place(index, placed)
        self._place_stores()
        self._choose_kept()
        return self.result

    def _pass(self, level: int) -> Pass:
        while len(self.result.passes) <= level:
            self.result.passes.append(Pass())
        return self.result.passes[level]

    def _producers(self, placed: Placed) -> list[int]:
        return [a.source.op for a in (*placed.inputs, *placed.outputs) if isinstance(a.source, Produced)]

    def _place(self, index: int, placed: Placed) -> None:
        producers = self._producers(placed)
        level = max((self.levels[p] for p in producers if p not in self.posts), default=0)
        self.levels[index] = level
        if any(p in self.posts for p in producers):
            if placed.nest_dims & self.rows or placed.reduced:
                raise Unsupported("a sum over the rows that the rows themselves need: two kernels")
            self.posts.add(index)
            return
        reduced = placed.reduced
        if not reduced:
            return
        reduction = as_reduction(index, placed)
        if reduced <= self.columns:
            if reduced != self.columns & placed.nest_dims or placed.nest_dims & self.rows != self.rows:
                raise Unsupported("a reduction over a part of the row, or over some rows only")
            self._pass(level).reductions.append(reduction)
            self.levels[index] = level + 1
            return
        self._place_sum(reduction, placed, level)

    def _place_sum(self, reduction: Reduction, placed: Placed, level: int) -> None:
        """A reduction over the rows, of columns (column sums), of whole rows (a total) or of values one a row."""
        if reduction.is_ordered:
            raise Unsupported("a reduction over the rows without a known combiner")
        if placed.reduced & self.rows != self.rows:
            raise Unsupported("a reduction over some of the row dimensions")
        in_columns, own_columns = placed.reduced & self.columns, placed.nest_dims & self.columns
        if own_columns not in (frozenset(), self.columns) or in_columns not in (frozenset(), self.columns):
            raise Unsupported("a reduction over the rows and a part of the columns")
        if not own_columns:
            self.result.row_sums.append(reduction)
        else:
            self._pass(level).sums.append(reduction)
        self.result.sums.append(reduction)
        self.posts.add(reduction.index)

    def _place_stores(self) -> None:
        over_all = [s for s in self.domain.stores if s.dims & self.columns and s.producer not in self.posts]
        last = max([len(self.result.passes) - 1, *(self.levels[s.producer] for s in over_all)])
        for store in self.domain.stores:
            op = store.producer
            if op in self.posts:
                if store.dims & self.rows:
                    raise Unsupported("a result over the rows that depends on a sum over the rows")
                self.result.post_stores.append(store)
            elif store.dims & self.columns:
                if store.dims != self.rows | self.columns:
                    raise Unsupported("a result over the columns only that is no sum over the rows")
                # In an operand's own memory: not before the last pass has read the operand.
                in_place = self.kernel.aliases[store.result] >= 0
                self._pass(last if in_place else self.levels[op]).stores.append(store)
            elif store.dims != self.rows:
                raise Unsupported("a result over some of the row dimensions")
            else:
                self.result.row_stores.append(store)

    # --- values kept between passes

    def _needed(self, pass_: Pass, kept: set[Produced]) -> tuple[set[Produced], set[Produced]]:
        """(values over the columns computed in a pass, kept values read in it)."""
        computed: set[Produced] = set()
        read: set[Produced] = set()
        stack = [s.source for s in pass_.stores]
        for reduction in (*pass_.reductions, *pass_.sums):
            stack += [a.source for a in (*reduction.placed.inputs, *reduction.placed.outputs)]
        while stack:
            source = stack.pop()
            if not isinstance(source, Produced) or source in computed or source in read:
                continue
            placed = self.domain.ops[source.op]
            if placed.reduced or not placed.nest_dims & self.columns:
                continue
            if source in kept:
                read.add(source)
                continue
            computed.add(source)
            stack += [a.source for a in (*placed.inputs, *placed.outputs)]
        return computed, read

    def _choose_kept(self) -> None:
        kept: set[Produced] = set()
        for index, placed in enumerate(self.domain.ops):
            if (
                not isinstance(placed.op, Generic)
                or placed.reduced
                or self._cost(Produced(index, 0), kept) <= KEEP_FLOPS
            ):
                continue
            for i in range(len(placed.op.types)):
                value = Produced(index, i)
                if sum(value in self._needed(p, kept)[0] for p in self.result.passes) >= 2:
                    kept.add(value)
        done: set[Produced] = set()
        read: set[Produced] = set()
        for pass_ in self.result.passes:
            computed, loaded = self._needed(pass_, done)
            read |= loaded
            pass_.keeps = sorted(computed & kept - done, key=lambda v: (v.op, v.result))
            done |= computed & kept
            ops = {v.op for v in computed} | {r.index for r in (*pass_.reductions, *pass_.sums)}
            pass_.flops = sum(self._own_cost(op) for op in ops)
        for pass_ in self.result.passes:
            pass_.keeps = [v for v in pass_.keeps if v in read]
        self.result.kept = [v for pass_ in self.result.passes for v in pass_.keeps]

    def _own_cost(self, op: int) -> int:
        body = self.domain.ops[op].op
        return region_flops(body.block_ops) if isinstance(body, Generic) else 1

    def _cost(self, value: Produced, kept: set[Produced]) -> int:
        """Operations to compute a value over the columns again from memory."""
        placed = self.domain.ops[value.op]
        if value in kept or placed.reduced or not placed.nest_dims & self.columns:
            return 0
        sources = {a.source for a in placed.inputs if isinstance(a.source, Produced)}
        return self._own_cost(value.op) + sum(self._cost(s, kept) for s in sources)
