"""Evaluates a contract's expressions for what one thread holds: neighbouring columns of one row of the product.

A `Run` is such a group of columns. Its place is symbolic: the thread's first row and column (known to the running
kernel) plus numbers, so that addresses become one pointer and an immediate offset. Out-of-range elements are computed
from element 0 of each operand and never stored.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mlir import ir

from blutrain.nova.clone import Coordinate
from blutrain.nova.contract.form import Accumulated, Apply, Constant, Contract, Expression, Load
from blutrain.nova.emitter import memory_dtype, zero
from blutrain.nova.gpu.builder import LARGEST_I32, Builder, Integer
from blutrain.nova.gpu.hopper.scalar import clone_region, clone_value
from blutrain.nova.kernel import ITEM_BYTES, Access, Index, Operand, linear_step

AXES = ("batch", "m", "n")
MAX_ACCESS_BYTES = 16


@dataclass(frozen=True)
class Run:
    """`lanes` neighbouring columns of one row, `row` and `column` from the thread's first ones."""

    row: int
    column: int
    lanes: int


@dataclass(frozen=True)
class Origin:
    """A thread's first element in a tile. `ragged`: axes along which the tile may reach beyond the product."""

    m: Integer
    n: Integer
    batch: Integer
    ragged: frozenset[str]


class Values:
    """Emits expressions into the block that is open now, each load and region once for a run.

    `pointers[i]` is the memory of operand or result i, `aliased` the operands whose memory results share.
    """

    def __init__(self, out: Builder, contract: Contract, origin: Origin):
        self.out, self.contract, self.origin = out, contract, origin
        self.aliased = frozenset(a for a in contract.kernel.aliases if a >= 0)
        self._known: dict[tuple, str] = {}
        self._applied: dict[tuple, list[str]] = {}

    def value(self, expression: Expression, run: Run, accumulated: str | None = None) -> str:
        """The run's elements of `expression`, a vector of its dtype; `accumulated` stands for `Accumulated`."""
        match expression:
            case Load(access):
                return self.load(access, run)
            case Constant(literal, dtype):
                return self.out.constant(literal, f"vector<{run.lanes}x{dtype}>")
            case Accumulated():
                assert accumulated is not None
                return accumulated
            case Apply():
                return self._apply(expression, run, accumulated)[expression.result]

    def _apply(self, expression: Apply, run: Run, accumulated: str | None) -> list[str]:
        generic = expression.generic
        key = (id(generic), expression.indices, run, accumulated)
        if key not in self._applied:
            arguments = [self.value(a, run, accumulated) for a in expression.arguments]
            unread = [self.out.constant(zero(a.dtype), f"vector<{run.lanes}x{a.dtype}>") for a in generic.outputs]
            coordinate = self.coordinate(expression.indices, run)
            self._applied[key] = clone_region(self.out, generic.block, arguments + unread, run.lanes, coordinate)
        return self._applied[key]

    def region_value(
        self, names: dict[ir.Value, str], value: ir.Value, lanes: int, coordinate: Coordinate | None = None
    ) -> str:
        """See `scalar.clone_value`."""
        return clone_value(self.out, names, value, lanes, coordinate)

    # --- where a run lies

    def inside(self, run: Run, lane: int = 0) -> str | None:
        """Is the element within the product (an i1); None where every tile is whole."""
        row = self._below("m", self.origin.m, run.row, self.contract.extent("m"))
        return self.out.both(row, self.column_inside(run, lane))

    def row_inside(self, run: Run) -> str | None:
        return self._below("m", self.origin.m, run.row, self.contract.extent("m"))

    def column_inside(self, run: Run, lane: int = 0) -> str | None:
        return self._below("n", self.origin.n, run.column + lane, self.contract.extent("n"))

    def _below(self, axis: str, base: Integer, offset: int, extent: int) -> str | None:
        if axis not in self.origin.ragged:
            return None
        return self._once(("below", axis, offset), lambda: self.out.compare("slt", base, extent - offset))

    def _once(self, key: tuple, emit: Callable[[], str]) -> str:
        if key not in self._known:
            self._known[key] = emit()
        return self._known[key]

    # --- memory

    def load(self, access: Access, run: Run, in_place: bool = False) -> str:
        """`in_place`: the assembler must not move the load, and what depends on it, ahead of what was stored before."""
        return self._once(self._place(access, run), lambda: self._load(access, run, in_place))

    def provide(self, access: Access, run: Run, vector: str) -> None:
        """Elements of an operand that are in registers already."""
        self._known[self._place(access, run)] = vector

    def _place(self, access: Access, run: Run) -> tuple:
        moves = tuple(self.contract.moves(access, axis) for axis in AXES)
        return "load", access, run.row if moves[1] else None, (run.column, run.lanes) if moves[2] else run.lanes

    def _load(self, access: Access, run: Run, in_place: bool) -> str:
        out, dtype, item = self.out, memory_dtype(access.dtype), ITEM_BYTES[access.dtype]
        assert isinstance(access.source, Operand)
        # A load for each element must stay behind the turn of the other consumer: ptxas moves constant ones.
        each = self.contract.moves(access, "m") and self.contract.moves(access, "n")
        constant = access.source.index not in self.aliased and not each and not in_place
        if not any(self.contract.moves(access, axis) for axis in AXES):
            with out.scope(0):  # the same for all tiles: out of their loop, where nobody waits for it
                element = out.load(self._element(access, run, 0), dtype, item, constant)
            lanes = out.vector([element] * run.lanes, dtype)
        elif not self.contract.moves(access, "n"):
            element = out.load(self._element(access, run, 0), dtype, item, constant)
            lanes = out.vector([element] * run.lanes, dtype)
        elif is_vector(self.contract, access, run.lanes):
            type_ = f"vector<{run.lanes}x{dtype}>"
            lanes = out.load(self._element(access, run, 0), type_, item * run.lanes, constant)
        else:
            pointers = [self._element(access, run, lane) for lane in range(run.lanes)]
            lanes = out.vector([out.load(p, dtype, item, constant) for p in pointers], dtype)
        if dtype == access.dtype:
            return lanes
        return out.value(f"arith.trunci {lanes} : vector<{run.lanes}xi8> to vector<{run.lanes}xi1>")

    def _element(self, access: Access, run: Run, lane: int) -> str:
        """A pointer that may be read: the element, or element 0 of the operand where it lies outside."""
        pointer = self.pointer(access, run, lane)
        row = self.row_inside(run) if self.contract.moves(access, "m") else None
        column = self.column_inside(run, lane) if self.contract.moves(access, "n") else None
        inside = self.out.both(row, column)
        if inside is None:
            return pointer
        assert isinstance(access.source, Operand)
        return self.out.value(f"llvm.select {inside}, {pointer}, %p{access.source.index} : i1, !llvm.ptr")

    def store(self, value: str, access: Access, run: Run) -> None:
        """Write the run's elements (a vector of the access's dtype) that lie within the product."""
        out, dtype, item = self.out, memory_dtype(access.dtype), ITEM_BYTES[access.dtype]
        if dtype != access.dtype:
            value = out.value(f"arith.extui {value} : vector<{run.lanes}xi1> to vector<{run.lanes}xi8>")
        if is_vector(self.contract, access, run.lanes):
            type_ = f"vector<{run.lanes}x{dtype}>"
            pointer = self.pointer(access, run, 0)
            self.out.when(self.inside(run), lambda: out.store(value, pointer, type_, item * run.lanes))
            return
        for lane in range(run.lanes):
            element, pointer = out.element(value, lane, dtype, run.lanes), self.pointer(access, run, lane)
            self.out.when(self.inside(run, lane), lambda e=element, p=pointer: out.store(e, p, dtype, item))

    def add(self, value: str, access: Access, run: Run) -> None:
        """Add the run's elements (f32) that lie within the product to what is in memory."""
        lanes = run.lanes if is_vector(self.contract, access, run.lanes) else 1
        for first in range(0, run.lanes, lanes):
            elements = [self.out.element(value, first + i, "f32", run.lanes) for i in range(lanes)]
            pointer = self.pointer(access, run, first)
            self.out.when(self.inside(run, first), lambda p=pointer, e=elements: add_to_memory(self.out, p, e))

    def pointer(self, access: Access, run: Run, lane: int) -> str:
        """The element's address: the thread's own, kept for each access, and a number."""
        constant = {"batch": 0, "m": run.row, "n": run.column + lane}
        base, offset = access.offset, 0
        terms: list[Integer] = []
        key: list = ["pointer", access]
        for axis in AXES:
            extents, steps = self.contract.steps(access, axis)
            step = linear_step(extents, steps)
            if step is not None:
                offset += step * constant[axis]
                terms.append(self._scaled(access, getattr(self.origin, axis), step) if step else 0)
            elif any(steps):
                key.append((axis, constant[axis]))
                digits = self._digits(axis, constant[axis], extents)
                terms += [self._scaled(access, d, s) for d, s in zip(digits, steps, strict=True) if s]

        def thread_pointer() -> str:
            total: Integer = base
            for term in terms:
                total = self._sum(access, total, term)
            assert isinstance(access.source, Operand)
            index = total if self._is_wide(access) or isinstance(total, int) else self.out.widen(total)
            return self.out.pointer(f"%p{access.source.index}", index, memory_dtype(access.dtype))

        return self.out.pointer(self._once(tuple(key), thread_pointer), offset, memory_dtype(access.dtype))

    def _is_wide(self, access: Access) -> bool:
        """Do offsets need 64 bits. Tiles reach beyond a tensor by less than its rows, hence the margin."""
        reach = access.offset + sum(
            abs(s) * (e + 256) for s, e in zip(access.strides, self.contract.generic.extents, strict=True)
        )
        return reach > LARGEST_I32 or access.offset < 0 or min(access.strides, default=0) < 0

    def _scaled(self, access: Access, index: Integer, step: int) -> Integer:
        if not self._is_wide(access) or isinstance(index, int):
            return self.out.mul(index, step)
        return self.out.value(f"arith.muli {self.out.widen(index)}, {self.out.name(step, 'i64')} : i64")

    def _sum(self, access: Access, a: Integer, b: Integer) -> Integer:
        if not self._is_wide(access) or (isinstance(a, int) and isinstance(b, int)):
            return self.out.add(a, b)
        return self.out.value(f"arith.addi {self.out.name(a, 'i64')}, {self.out.name(b, 'i64')} : i64")

    # --- coordinates

    def _digits(self, axis: str, offset: int, extents: Sequence[int]) -> list[Integer]:
        """Indices along the axis's dimensions of the element `offset` from the thread's first."""
        flat: Integer = self.out.add(getattr(self.origin, axis), offset)
        digits: list[Integer] = []
        for extent in reversed(extents[1:]):
            digits.insert(0, self.out.rem(flat, extent))
            flat = self.out.div(flat, extent)
        return [flat, *digits]

    def coordinate(self, indices: tuple[Index, ...], run: Run) -> Coordinate:
        """The provider of `linalg.index` for a region whose loop dimensions are `indices`."""
        out = self.out

        def lanes_of_index(loop_dim: int) -> str:
            index = indices[loop_dim]
            elements = []
            for lane in range(run.lanes):
                place: Integer = 0 if index.dim is None else self._dimension(index.dim, run, lane)
                place = out.add(out.mul(place, index.coefficient), index.offset)
                elements.append(out.name(place))
            vector = out.vector(elements, "i32")
            return out.value(f"arith.index_cast {vector} : vector<{run.lanes}xi32> to vector<{run.lanes}xindex>")

        return lanes_of_index

    def _dimension(self, dim: int, run: Run, lane: int) -> Integer:
        axis = next(a for a in AXES if dim in self.contract.axes[a])
        offset = {"batch": 0, "m": run.row, "n": run.column + lane}[axis]
        dims = self.contract.axes[axis]
        return self._digits(axis, offset, [self.contract.generic.extents[d] for d in dims])[dims.index(dim)]


def add_to_memory(out: Builder, pointer: str, elements: Sequence[str]) -> None:
    """The L2 adds f32 elements to their neighbours in memory: 1, 2 or 4, aligned to their size."""
    count = len(elements)
    registers = ",".join(f"${i + 1}" for i in range(count))
    text = f"red.global.add.v{count}.f32 [$0], {{{registers}}};" if count > 1 else "red.global.add.f32 [$0], $1;"
    constraints = ",".join(["l", *["f"] * count, "~{memory}"])
    out.asm(text, constraints, [(pointer, "!llvm.ptr"), *((e, "f32") for e in elements)])


def is_vector(contract: Contract, access: Access, lanes: int) -> bool:
    """May a run be read and written as one vector: neighbours in memory, aligned, never across the end of a row."""
    item = ITEM_BYTES[access.dtype]
    inner = contract.axes["n"][-1:]
    if not inner or access.strides[inner[0]] != 1 or item * lanes > MAX_ACCESS_BYTES:
        return False
    others = [s for d, s in enumerate(access.strides) if d != inner[0]]
    if contract.generic.extents[inner[0]] % lanes or access.offset % lanes:
        return False
    return all(s % lanes == 0 for s in others)
