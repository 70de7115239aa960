"""Evaluates a contract's expressions for a thread: loads by strides, scalar regions through the cloner, stores.

A `Run` is a few neighbours along one axis. Its place is the thread's origin, an index along each axis that only the
running kernel knows, plus numbers known now: the coordinate provider of the cloner, and addresses that are one pointer
and an immediate. Values are lists of scalars, one for each element. What lies outside the product reads as
zero and is never stored.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from mlir import ir

from blutrain.nova.clone import Coordinate
from blutrain.nova.contract.form import AXES, Accumulated, Apply, Constant, Contract, Expression, Load
from blutrain.nova.emitter import memory_dtype, zero
from blutrain.nova.gpu.ampere.predicated import load_if
from blutrain.nova.gpu.ampere.region import cloner
from blutrain.nova.gpu.builder import Builder, Integer
from blutrain.nova.gpu.emit_region import convert
from blutrain.nova.kernel import ITEM_BYTES, Access, Index, Operand, linear_step

MAX_ACCESS_BYTES = 16


@dataclass(frozen=True)
class Run:
    """`lanes` neighbours along `axis`; `at`: the first one's distance from the origin along batch, m, n, k."""

    at: tuple[int, int, int, int]
    axis: str
    lanes: int

    def place(self, axis: str, lane: int) -> int:
        return self.at[AXES.index(axis)] + (lane if axis == self.axis else 0)


def run(axis: str, lanes: int, *, m: int = 0, n: int = 0, k: int = 0) -> Run:
    return Run((0, m, n, k), axis, lanes)


class Elements:
    """Emits into the block that is open now, each load and region once for a run.

    `origin`: index of the thread's first element along each axis; `ragged`: axes along which elements may lie outside.
    `fast`: regions may use the GPU's approximate functions.
    """

    def __init__(
        self, out: Builder, contract: Contract, origin: dict[str, Integer], ragged: frozenset[str], fast: bool
    ):
        self.out, self.contract, self.origin, self.ragged, self.fast = out, contract, origin, ragged, fast
        self.aliased = frozenset(a for a in contract.kernel.aliases if a >= 0)
        self._known: dict[tuple, str] = {}
        self._values: dict[tuple, list] = {}

    def value(self, expression: Expression, run: Run, accumulated: list[str] | None = None) -> list[str]:
        """The run's elements, in the expression's own dtype; `accumulated` stands for `Accumulated`."""
        match expression:
            case Load(access):
                return self.load(access, run)
            case Constant(literal, dtype):
                return [self.out.constant(literal, dtype)] * run.lanes
            case Accumulated():
                assert accumulated is not None
                return accumulated
            case Apply():
                return [results[expression.result] for results in self._apply(expression, run, accumulated)]

    def _apply(self, expression: Apply, run: Run, accumulated: list[str] | None) -> list[list[str]]:
        """For each element, what the region yields."""
        generic = expression.generic
        key = ("apply", id(generic), expression.indices, run, tuple(accumulated or ()))
        if key not in self._values:
            arguments = [self.value(a, run, accumulated) for a in expression.arguments]
            unread = [self.out.constant(zero(a.dtype), a.dtype) for a in generic.outputs]
            self._values[key] = [
                cloner(self.out, generic.block, self.fast, self.coordinate(expression.indices, run, lane)).clone(
                    generic.block, [*(a[lane] for a in arguments), *unread]
                )
                for lane in range(run.lanes)
            ]
        return self._values[key]

    def region_value(self, names: dict[ir.Value, str], value: ir.Value, coordinate: Coordinate | None = None) -> str:
        """A value inside a region, from the names of the block arguments that it depends on."""
        if value not in names:
            owner = getattr(value.owner, "operation", value.owner)
            operands = [self.region_value(names, v, coordinate) for v in owner.operands]
            names.update(
                zip(owner.results, cloner(self.out, None, self.fast, coordinate).op(owner, operands), strict=True)
            )
        return names[value]

    # --- where an element lies

    def inside(self, run: Run, lane: int, axes: tuple[str, ...] = AXES) -> str | None:
        """Is it within the product along `axes` (an i1); None where that is known."""
        result = None
        for axis in axes:
            if axis in self.ragged:
                result = self.out.both(result, self._below(axis, run.place(axis, lane)))
        return result

    def _below(self, axis: str, number: int) -> str:
        limit = self.contract.extent(axis) - number
        return self._once(("below", axis, number), lambda: self.out.compare("slt", self.origin[axis], limit))

    def _once(self, key: tuple, emit: Callable[[], str]) -> str:
        if key not in self._known:
            self._known[key] = emit()
        return self._known[key]

    # --- memory

    def load(self, access: Access, run: Run) -> list[str]:
        moving = tuple(axis for axis in AXES if self.contract.moves(access, axis))
        if run.axis not in moving:
            return self._load_piece(access, run, 0, 1) * run.lanes
        key = ("load", access, tuple(run.place(a, 0) for a in moving), run.axis, run.lanes)
        if key not in self._values:
            piece = self.piece(access, run)
            starts = range(0, run.lanes, piece)
            self._values[key] = [x for start in starts for x in self._load_piece(access, run, start, piece)]
        return self._values[key]

    def _load_piece(self, access: Access, run: Run, start: int, piece: int) -> list[str]:
        moving = tuple(axis for axis in AXES if self.contract.moves(access, axis))
        key = ("piece", access, tuple(run.place(a, start) for a in moving), run.axis, piece)
        if key not in self._values:
            self._values[key] = self._emit_load(access, run, start, piece, moving)
        return self._values[key]

    def _emit_load(self, access: Access, run: Run, start: int, piece: int, moving: tuple[str, ...]) -> list[str]:
        out, dtype = self.out, memory_dtype(access.dtype)
        assert isinstance(access.source, Operand)
        constant = access.source.index not in self.aliased
        inside = self.inside(run, start, moving)
        if inside is not None:
            base, offset = self._address(access, run, start)
            elements = load_if(out, inside, base, offset, dtype, piece, constant)
        else:
            pointer = self.pointer(access, run, start)
            type_ = f"vector<{piece}x{dtype}>" if piece > 1 else dtype
            loaded = out.load(pointer, type_, piece * ITEM_BYTES[access.dtype], constant)
            elements = [out.element(loaded, i, dtype, piece) for i in range(piece)] if piece > 1 else [loaded]
        return elements if dtype == access.dtype else [out.value(f"arith.trunci {x} : i8 to i1") for x in elements]

    def store(self, values: list[str], access: Access, run: Run) -> None:
        """Write the elements (of the access's dtype) that lie within the product."""
        out, dtype = self.out, memory_dtype(access.dtype)
        if dtype != access.dtype:
            values = [out.value(f"arith.extui {x} : i1 to i8") for x in values]
        piece = self.piece(access, run)
        for start in range(0, run.lanes, piece):
            part = values[start : start + piece]
            vector = out.vector(part, dtype) if piece > 1 else part[0]
            type_ = f"vector<{piece}x{dtype}>" if piece > 1 else dtype
            pointer = self.pointer(access, run, start)
            size = piece * ITEM_BYTES[access.dtype]
            out.when(self.inside(run, start), lambda v=vector, p=pointer, t=type_, s=size: out.store(v, p, t, s))

    def piece(self, access: Access, run: Run) -> int:
        """Elements of the run that can be one vector: neighbours, aligned, all inside or all outside the product."""
        inner = self.contract.axes[run.axis][-1:]
        if not inner or access.strides[inner[0]] != 1:
            return 1
        others = [s for d, s in enumerate(access.strides) if d != inner[0]]
        numbers = [access.offset, self.contract.generic.extents[inner[0]], *others, run.place(run.axis, 0)]
        piece = min(run.lanes, MAX_ACCESS_BYTES // ITEM_BYTES[access.dtype])
        while piece > 1 and (run.lanes % piece or any(x % piece for x in numbers)):
            piece //= 2
        return max(1, piece)

    def pointer(self, access: Access, run: Run, lane: int) -> str:
        """The element's address."""
        base, offset = self._address(access, run, lane)
        return self.out.pointer(base, offset, memory_dtype(access.dtype))

    def _address(self, access: Access, run: Run, lane: int) -> tuple[str, int]:
        """The thread's own pointer, emitted once for each access, and the element's distance from it in elements."""
        offset = access.offset
        terms: list[tuple[Integer, int]] = []
        key: list = ["pointer", access]
        for axis in AXES:
            extents, steps = self.contract.steps(access, axis)
            number, step = run.place(axis, lane), linear_step(extents, steps)
            if step is not None:
                offset += step * number
                terms.append((self.origin.get(axis, 0), step))
            else:
                key.append((axis, number))
                terms += zip(self._digits(axis, number), steps, strict=True)
        return self._once(tuple(key), lambda: self._thread_pointer(access, terms)), offset

    def _thread_pointer(self, access: Access, terms: list[tuple[Integer, int]]) -> str:
        out, total, constant = self.out, None, 0
        for index, step in terms:
            if step == 0:
                continue
            if isinstance(index, int):
                constant += index * step
                continue
            term = out.widen(index)
            if step != 1:
                term = out.value(f"arith.muli {term}, {out.name(step, 'i64')} : i64")
            total = term if total is None else out.value(f"arith.addi {total}, {term} : i64")
        assert isinstance(access.source, Operand)
        base = f"%p{access.source.index}"
        if total is not None:
            base = out.pointer(base, total, memory_dtype(access.dtype))
        return out.pointer(base, constant, memory_dtype(access.dtype))

    # --- coordinates

    def _digits(self, axis: str, number: int) -> list[Integer]:
        """Indices along the axis's dimensions of the element `number` behind the origin."""
        key = ("digits", axis, number)
        if key not in self._values:
            flat: Integer = self.out.add(self.origin.get(axis, 0), number)
            digits: list[Integer] = []
            for dim in reversed(self.contract.axes[axis][1:]):
                extent = self.contract.generic.extents[dim]
                digits.insert(0, self.out.rem(flat, extent))
                flat = self.out.div(flat, extent)
            self._values[key] = [flat, *digits]
        return self._values[key]

    def coordinate(self, indices: tuple[Index, ...], run: Run, lane: int) -> Coordinate:
        """The provider of `linalg.index` for a region whose loop dimensions are `indices`."""
        out = self.out

        def index_of(loop_dim: int) -> str:
            index = indices[loop_dim]
            place = 0 if index.dim is None else self._dimension(index.dim, run, lane)
            if isinstance(place, int):
                wide = out.name(place * index.coefficient + index.offset, "i64")
            else:
                wide = out.value(f"arith.muli {out.widen(place)}, {out.name(index.coefficient, 'i64')} : i64")
                wide = out.value(f"arith.addi {wide}, {out.name(index.offset, 'i64')} : i64")
            return out.value(f"arith.index_cast {wide} : i64 to index")

        return index_of

    def _dimension(self, dim: int, run: Run, lane: int) -> Integer:
        axis = next(a for a in AXES if dim in self.contract.axes[a])
        return self._digits(axis, run.place(axis, lane))[self.contract.axes[axis].index(dim)]


def converted(out: Builder, values: list[str], source: str, target: str) -> list[str]:
    """Floats in another dtype."""
    return [convert(out, x, source, target) for x in values]
