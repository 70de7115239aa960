"""plan_memory: a place in memory for every buffer of the step, results in place where that is legal.

Before:

    func.func @step(%p: tensor<8xf32> {nova.role = "state"}, %g: tensor<8xf32>) -> tensor<8xf32> {
      %0 = "nova.kernel"(%g) ({...}) {aliases = array<i64: -1>, anchor = "map"}
      %1:2 = "nova.kernel"(%p, %0) ({...}) {aliases = array<i64: -1, -1>, anchor = "map"}
      "nova.assign"(%p, %1#0)
      return %1#1
    }

After (the places of a launch: its operands, then its results):

    func.func @step(...) attributes {nova.arena_bytes = 64, nova.live_bytes = 32,
        nova.memory = [["input:1", "arena:0"], ["input:0", "arena:0", "input:0", "output:0"]], nova.predicated =
        array<i64: 0, 0>, ...}
      %1:2 = "nova.kernel"(%p, %0) ({...}) {aliases = array<i64: 0, -1>, anchor = "map"}

- New state goes straight to the argument's memory where every other reader of the old value has run, and the writer
  itself reads it
  nowhere but at the element it writes; otherwise to the arena, and a copy ends the step.
- A result may take over the memory of an operand that dies in its launch, under the same rule. `aliases` tells the
  generator.
- Parts of buffers (windows and joins, see form_kernels_memory) lie in them, "input:3+4096" at byte 4096 of input 3.
- Everything else lies in one arena: intervals of launches, largest first, each at the lowest free offset, 64-byte
  aligned.
- Launches that may be skipped (form_kernels_skip) have the place of their flag in nova.skips, others "".
- Where the step has checks, launches that write state are predicated on the guard's flag.
"""

from __future__ import annotations

import math

from mlir import ir

from ..dialect.definition import TERMINATOR
from ..kernel import (
    ALIGNMENT_BYTES,
    Access,
    Generic,
    Kernel,
    Operand,
    Produced,
    ScatterAdd,
    kernel_text,
    read_kernel,
    row_major_strides,
)
from ..plan import BufferRef
from .form_kernels_skip import KEEP, SKIP
from .step_launches import Buffer, Launch, StepLaunches

NAME = "plan_memory"


def run(module: ir.Module, facts) -> None:
    """See the module. Adds launches that copy state where it could not be written directly."""
    planner = _Planner(StepLaunches(module))
    planner.place_state()
    planner.place_outputs()
    planner.place_arena()
    planner.annotate()


class _Planner:
    """`places[b]` is the place of buffer b as text: "arena:64", "input:3", "output:0"."""

    def __init__(self, step: StepLaunches):
        self.step = step
        self.places: dict[int, str] = {i: f"input:{i}" for i in range(step.num_arguments)}
        self.aliases: list[list[int]] = [[-1] * len(launch.results) for launch in step.launches]
        self.copies: list[Buffer] = []
        self.shared: dict[int, int] = {}
        self.predicated: set[int] = set()
        self.arena_bytes = self.live_bytes = 0
        self._texts: dict[int, str] = {}
        self._pointwise: dict[str, list[set[int]]] = {}

    # --- state and outputs

    def place_state(self) -> None:
        for buffer in self.step.buffers:
            if buffer.state is None:
                continue
            if self._is_direct(buffer):
                assert buffer.writer is not None
                self.places[buffer.number] = f"input:{buffer.state}"
                self.predicated.add(buffer.writer)
            else:
                self.copies.append(buffer)

    def _is_direct(self, buffer: Buffer) -> bool:
        """Whether the kernel may write the state's memory itself; notes the alias if it reads it, too."""
        state, writer = buffer.state, buffer.writer
        assert state is not None
        readers = self.step.buffers[state].readers
        if writer is None or buffer.outputs or any(reader > writer for reader in readers):
            return False
        if self.step.guard is not None:
            checked = self.step.buffers[self.step.guard].writer
            assert checked is not None
            if checked >= writer:
                return False  # the checks need this kernel: they come after it
        launch = self.step.launches[writer]
        if state not in map(self.step.whole, launch.operands):
            return True
        return self._alias(writer, launch.results.index(buffer.number), state)

    def _alias(self, number: int, result: int, buffer: int) -> bool:
        """Note that `result` of a launch lies in the memory of an operand, if the kernel reads that only where it
        writes.
        """
        launch = self.step.launches[number]
        operands = [i for i, b in enumerate(launch.operands) if self.step.whole(b) == buffer]
        taken = set(self.aliases[number])
        if len(operands) != 1 or operands[0] in taken or operands[0] not in self._pointwise_operands(number)[result]:
            return False
        self.aliases[number][result] = operands[0]
        return True

    def _pointwise_operands(self, number: int) -> list[set[int]]:
        if number not in self._texts:
            self._texts[number] = kernel_text(self.step.launches[number].op)
        text = self._texts[number]
        if text not in self._pointwise:
            self._pointwise[text] = pointwise_operands(read_kernel(self.step.launches[number].op))
        return self._pointwise[text]

    def place_outputs(self) -> None:
        for buffer in self.step.buffers:
            if buffer.outputs:
                self.places[buffer.number] = f"output:{buffer.outputs[0]}"

    # --- arena

    def place_arena(self) -> None:
        """Intervals of the buffers without a place; those that share memory by an alias are one interval."""
        for number, launch in enumerate(self.step.launches):
            self._place_kept(number, launch)
        last = len(self.step.launches) + len(self.copies)
        intervals: dict[int, list[int]] = {}
        for buffer in self.step.buffers:
            if buffer.number in self.places or buffer.within is not None:
                continue
            writers = self.step.writers(buffer.number)
            end = max([*writers, *buffer.readers])
            if buffer.is_flag or buffer.state is not None:
                end = last
            intervals[buffer.number] = [min(writers), end, _rounded(buffer.bytes)]
        for number, launch in enumerate(self.step.launches):
            self._take_over(number, launch, intervals)
        self.live_bytes = _peak(list(intervals.values()))
        offsets, self.arena_bytes = color(intervals)
        for number, offset in offsets.items():
            self.places[number] = f"arena:{offset}"
        for number in self.shared:
            self.places[number] = self.places[self._owner(number)]
        for buffer in self.step.buffers:
            if buffer.within is not None:
                self.places[buffer.number] = self._place_of_part(buffer)

    def _place_kept(self, number: int, launch: Launch) -> None:
        """What a launch keeps where it is skipped, and nothing else reads, is made at the place of its result if that
        is a part of another buffer.
        """
        for position, operand in enumerate(kept_operands(launch)):
            whole, before = self.step.buffers[launch.results[position]].within, self.step.buffers[operand]
            is_plain = before.writer is not None and before.within is None and not before.parts
            is_bound = before.outputs or before.state is not None or before.is_flag
            if whole is None or not is_plain or is_bound or before.readers != [number]:
                continue
            if self._alias(number, position, operand):
                before.within = whole
                self.step.buffers[whole[0]].parts.append(operand)

    def _place_of_part(self, buffer: Buffer) -> str:
        holders = self.step.holders(buffer.number)
        starts = [within[1] for n in holders if (within := self.step.buffers[n].within) is not None]
        return place_text(place_of(self.places[holders[-1]]), sum(starts))

    def _take_over(self, number: int, launch: Launch, intervals: dict[int, list[int]]) -> None:
        """Let each result take the memory of an operand that dies here and has its size."""
        kept = kept_operands(launch)
        for position, result in enumerate(launch.results):
            if result not in intervals:
                continue
            for operand in kept[position : position + 1] or dict.fromkeys(launch.operands):
                owner = self._owner(operand)
                dies = owner in intervals and intervals[owner][1] == number and self.step.buffers[operand].bytes
                if (
                    dies
                    and self.step.buffers[operand].bytes == self.step.buffers[result].bytes
                    and self._alias(number, position, operand)
                ):
                    intervals[owner][1] = intervals.pop(result)[1]
                    self.shared[result] = owner
                    break

    def _owner(self, number: int) -> int:
        return self.shared.get(number, number)

    # --- into the IR

    def annotate(self) -> None:
        step, func = self.step, self.step.graph.func
        for launch, aliases in zip(step.launches, self.aliases, strict=True):
            if launch.bucket is None:
                launch.op.attributes["aliases"] = ir.DenseI64ArrayAttr.get(aliases)
        memory = [[self.places[b] for b in (*launch.operands, *launch.results)] for launch in step.launches]
        predicated = [int(number in self.predicated and step.guard is not None) for number in range(len(step.launches))]
        skips = [self._skip(launch, aliases) for launch, aliases in zip(step.launches, self.aliases, strict=True)]
        for buffer in self.copies:
            self._copy(buffer)
            skips.append("")
            memory.append([self.places[buffer.number], f"input:{buffer.state}"])
            predicated.append(int(step.guard is not None))
        i64 = ir.IntegerType.get_signless(64)
        rows = [ir.ArrayAttr.get([ir.StringAttr.get(place) for place in row]) for row in memory]
        func.attributes["nova.memory"] = ir.ArrayAttr.get(rows)
        if any(skips):
            func.attributes["nova.skips"] = ir.ArrayAttr.get([ir.StringAttr.get(place) for place in skips])
        func.attributes["nova.predicated"] = ir.DenseI64ArrayAttr.get(predicated)
        func.attributes["nova.arena_bytes"] = ir.IntegerAttr.get(i64, self.arena_bytes)
        func.attributes["nova.live_bytes"] = ir.IntegerAttr.get(i64, self.live_bytes)
        if step.guard is not None:
            func.attributes["nova.guard"] = ir.StringAttr.get(self.places[step.guard])
            flags = [ir.StringAttr.get(self.places[check.buffer]) for check in step.checks]
            func.attributes["nova.flags"] = ir.ArrayAttr.get(flags)

    def _skip(self, launch: Launch, aliases: list[int]) -> str:
        """The place of the flag that lets a launch be skipped, "" where it has to run."""
        held = launch.op.attributes
        if SKIP not in held or list(ir.DenseI64ArrayAttr(held[KEEP])) != aliases:
            return ""
        return self.places[launch.operands[ir.IntegerAttr(held[SKIP]).value]]

    def _copy(self, buffer: Buffer) -> None:
        """A launch behind all others that copies `buffer` to the state it is the new value of."""
        assign = next(op for op in self._assigns() if self.step._of[op.operands[0]] == buffer.state)
        value = assign.operands[1]
        module = ir.Module.parse(copy_text(str(value.type), buffer.dtype))
        func = module.body.operations[0]
        (kernel, _) = func.regions[0].blocks[0].operations
        first = next(iter(self._sinks()))
        clone = kernel.operation.clone(ip=ir.InsertionPoint(first))
        clone.operands[0] = value
        assign.operands[1] = clone.results[0]

    def _assigns(self) -> list[ir.Operation]:
        return [op for op in self.step.graph.operations() if op.name == "nova.assign"]

    def _sinks(self) -> list[ir.Operation]:
        return [op for op in self.step.graph.operations() if op.name in ("nova.check", "nova.assign", "func.return")]


def kept_operands(launch: Launch) -> list[int]:
    """For every result the buffer that it is where the launch is skipped (form_kernels_skip); empty where it never is."""
    held = launch.op.attributes
    return [launch.operands[i] for i in ir.DenseI64ArrayAttr(held[KEEP])] if KEEP in held else []


def place_of(text: str) -> BufferRef:
    """ "arena:64" as a reference into the arena, "input:3+256" as byte 256 of input number 3."""
    space, _, rest = text.partition(":")
    number, _, offset = rest.partition("+")
    if space == "arena":
        return BufferRef("arena", 0, int(number))
    return BufferRef(space, int(number), int(offset or 0))


def place_text(place: BufferRef, more: int) -> str:
    """The inverse, `more` bytes further."""
    offset = place.offset + more
    if place.space == "arena":
        return f"arena:{offset}"
    return f"{place.space}:{place.index}{f'+{offset}' if offset else ''}"


def copy_text(type_: str, dtype: str) -> str:
    """A module with one kernel that copies a tensor."""
    dims = ", ".join(f"d{i}" for i in range(type_.count("x")))
    kinds = ", ".join(['"parallel"'] * type_.count("x"))
    map_ = f"affine_map<({dims}) -> ({dims})>"
    return f"""func.func @copy(%x: {type_}) {{
  %0 = "nova.kernel"(%x) ({{
  ^bb0(%a: {type_}):
    %e = tensor.empty() : {type_}
    %r = linalg.generic {{indexing_maps = [{map_}, {map_}], iterator_types = [{kinds}]}}
        ins(%a : {type_}) outs(%e : {type_}) {{
    ^bb0(%i: {dtype}, %o: {dtype}):
      linalg.yield %i : {dtype}
    }} -> {type_}
    "{TERMINATOR}"(%r) : ({type_}) -> ()
  }}) {{anchor = "map", aliases = array<i64: -1>}} : ({type_}) -> {type_}
  func.return
}}"""


def pointwise_operands(kernel: Kernel) -> list[set[int]]:
    """For every result the operands of its size and dtype that the kernel reads only at the element which that result
    gets: in a kernel of maps or rows, in the epilogue of a product; the table that a scatter adds to, and what is read
    beside its sums.
    """
    none: list[set[int]] = [set() for _ in kernel.results]
    scatter = next((op for op in kernel.ops if isinstance(op, ScatterAdd)), None)
    generics = [op for op in kernel.ops if isinstance(op, Generic)]
    if kernel.anchor not in ("map", "row", "contract", "scatter"):
        return none
    if len(generics) + (scatter is not None) != len(kernel.ops):
        return none
    late = _epilogue(kernel) if kernel.anchor == "contract" else set(range(len(kernel.ops)))
    inputs = [a for n, op in enumerate(kernel.ops) if n in late and isinstance(op, Generic) for a in op.inputs]
    between = [access for access in inputs if isinstance(access.source, Produced)]
    if not all(_keeps_order(access) for access in (*between, *(access for g in generics for access in g.outputs))):
        return none
    places = _places_of_scatter(scatter) if scatter is not None else {}
    readers: dict[int, set[int]] = {}
    for number, generic in enumerate(kernel.ops):
        if not isinstance(generic, Generic):
            continue
        for access in generic.inputs:
            if isinstance(access.source, Operand):
                readers.setdefault(access.source.index, set()).add(number)
                pointwise = number in late and (kernel.anchor == "row" or not generic.is_reduction)
                place = (generic.extents, access.strides, access.offset) if pointwise else ()
                places.setdefault(access.source.index, set()).add(place)
        for operand in generic.extracts.values():
            places.setdefault(operand.index, set()).add(())
    fitting = [_fitting(kernel, late, places, result, source) for result, source in enumerate(kernel.yields)]
    if kernel.anchor != "row":
        return fitting
    # a row is passed over several times: what reads an operand must be done, or lead to the writer, when that writes
    needed = [_ancestors(generics, source.op) if isinstance(source, Produced) else set() for source in kernel.yields]
    return [{i for i in found if readers[i] <= before} for found, before in zip(fitting, needed, strict=True)]


def _places_of_scatter(scatter: ScatterAdd) -> dict[int, set[tuple]]:
    """Where its operands are read: the table at the element that is written, the others anywhere."""
    found: dict[int, set[tuple]] = {}
    for source, place in ((scatter.ids, ()), (scatter.updates, ()), (scatter.init, _place_in_table(scatter))):
        if isinstance(source, Operand):
            found.setdefault(source.index, set()).add(place)
    return found


def _place_in_table(scatter: ScatterAdd) -> tuple:
    shape = scatter.types[0].shape
    return shape, row_major_strides(shape), 0


def _ancestors(generics: list[Generic], number: int) -> set[int]:
    """An op and those it is made from."""
    todo, found = [number], set()
    while todo:
        op = todo.pop()
        if op not in found:
            found.add(op)
            todo += [access.source.op for access in generics[op].inputs if isinstance(access.source, Produced)]
    return found


def _keeps_order(access: Access) -> bool:
    """Whether the loops of one generic lie in those of another in order: equal extents are then the same element."""
    dims = [i.dim for i in access.indices if i.dim is not None and (i.coefficient, i.offset) == (1, 0)]
    return len(dims) == len(access.indices) and dims == sorted(dims)


def _epilogue(kernel: Kernel) -> set[int]:
    """Ops behind the product."""
    late = {number for number, op in enumerate(kernel.generics) if op.is_anchor}
    anchors = set(late)
    for number, op in enumerate(kernel.generics):
        if any(isinstance(access.source, Produced) and access.source.op in late for access in op.inputs):
            late.add(number)
    return late - anchors


def _fitting(kernel: Kernel, late: set[int], places: dict[int, set[tuple]], result: int, source) -> set[int]:
    writer = kernel.ops[source.op] if isinstance(source, Produced) and source.op in late else None
    if isinstance(writer, ScatterAdd):
        mine = {_place_in_table(writer)}
    elif isinstance(writer, Generic) and not writer.is_reduction:
        access = writer.outputs[source.result]
        mine = {(writer.extents, access.strides, access.offset)}
    else:
        return set()
    type_ = kernel.results[result]
    if type_.size == 1 and any(math.prod(op.extents) > 1 for op in kernel.generics):
        return set()  # one thread writes what the others read, none knows when
    fits = (i for i, o in enumerate(kernel.operands) if (o.size, o.dtype) == (type_.size, type_.dtype))
    return {i for i in fits if places.get(i) == mine}


def color(intervals: dict[int, list[int]]) -> tuple[dict[int, int], int]:
    """Offsets for intervals (first launch, last launch, bytes), those that meet in time apart in memory; and the
    bytes of all.
    """
    placed: list[tuple[int, int, int, int]] = []
    offsets: dict[int, int] = {}
    total = 0
    for number, (first, last, size) in sorted(intervals.items(), key=lambda item: (-item[1][2], item[1][0], item[0])):
        offset = 0
        for start, end in sorted((o, o + s) for f, e, o, s in placed if f <= last and first <= e):
            if start - offset >= size:
                break
            offset = max(offset, end)
        offsets[number] = offset
        placed.append((first, last, offset, size))
        total = max(total, offset + size)
    return offsets, total


def _rounded(num_bytes: int) -> int:
    return max(ALIGNMENT_BYTES, -(-num_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES)


def _peak(intervals: list[list[int]]) -> int:
    """The most bytes alive at one launch: what no plan can go below."""
    changes: dict[int, int] = {}
    for first, last, size in intervals:
        changes[first] = changes.get(first, 0) + size
        changes[last + 1] = changes.get(last + 1, 0) - size
    alive = peak = 0
    for _, change in sorted(changes.items()):
        alive += change
        peak = max(peak, alive)
    return peak
