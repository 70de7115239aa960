"""Evaluates a contract's expressions for a vector of elements: loads by strides, scalar regions through the cloner,
stores.

A `Position` says where the vector lies: an index for each axis (batch, m, n, k), one of which advances from lane to
lane. Where the lanes are adjacent in memory a load is a vector load, where they are one element a broadcast, else a
gather.
"""

from __future__ import annotations

from dataclasses import dataclass

from mlir import ir

from blutrain.nova.clone import Coordinate, clone_block, clone_op
from blutrain.nova.contract.form import AXES, Accumulated, Apply, Constant, Contract, Expression, Load
from blutrain.nova.cpu.contract_builder import Builder, Integer
from blutrain.nova.emitter import lane_type, memory_dtype, zero
from blutrain.nova.kernel import ITEM_BYTES, Access, Index, Operand, linear_step


@dataclass(frozen=True)
class Position:
    """The elements of one vector: `index[axis]` of its first lane. Lanes that `mask` turns off are not accessed.

    `aligned`: the first lane's index along `lane_axis` is a multiple of `lanes`.
    """

    index: dict[str, Integer]
    lane_axis: str
    lanes: int
    mask: str | None = None
    aligned: bool = True

    def key(self, axes: tuple[str, ...] = AXES) -> tuple:
        """Equal for positions that agree in `axes`."""
        lane = self.lane_axis if self.lane_axis in axes else None
        return tuple((a, self.index[a]) for a in axes if a in self.index), lane, self.mask if lane else None


@dataclass(frozen=True)
class Address:
    """Where the lanes of an access are: at `pointer` and every `stride` elements, or at `offsets` (a vector of i64)."""

    pointer: str
    stride: int
    offsets: str | None


class Evaluator:
    """Emits expressions of one contract into the block that is open now, each load and region once for a position.

    What `outer`, an evaluator of an enclosing block, has loaded is not loaded again.
    """

    def __init__(self, out: Builder, contract: Contract, outer: Evaluator | None = None):
        self.out, self.contract = out, contract
        self._loaded: dict[tuple, str] = dict(outer._loaded) if outer else {}
        self._applied: dict[tuple, list[str]] = {}

    def value(self, expression: Expression, at: Position, accumulated: str | None = None) -> str:
        """The lanes of `expression`, in its own dtype; `accumulated` stands for `Accumulated`."""
        match expression:
            case Load(access):
                return self.load(access, at)
            case Constant(literal, dtype):
                return self.out.constant(literal, lane_type(dtype, at.lanes))
            case Accumulated():
                assert accumulated is not None
                return accumulated
            case Apply():
                return self._apply(expression, at, accumulated)[expression.result]

    def _apply(self, expression: Apply, at: Position, accumulated: str | None) -> list[str]:
        generic = expression.generic
        key = (id(generic), expression.indices, at.key(), accumulated)
        if key not in self._applied:
            arguments = [self.value(a, at, accumulated) for a in expression.arguments]
            # A map's outputs are block arguments too; nobody reads them.
            unread = [self.out.constant(zero(a.dtype), lane_type(a.dtype, at.lanes)) for a in generic.outputs]
            coordinate = self.coordinate(expression.indices, at)
            self._applied[key] = clone_block(self.out, generic.block, arguments + unread, at.lanes, coordinate)
        return self._applied[key]

    def region_value(
        self, names: dict[ir.Value, str], value: ir.Value, lanes: int, coordinate: Coordinate | None = None
    ) -> str:
        """A value inside a region, from the names of the block arguments that it depends on."""
        if value not in names:
            owner = value.owner
            owner = getattr(owner, "operation", owner)
            operands = [self.region_value(names, v, lanes, coordinate) for v in owner.operands]
            names.update(zip(owner.results, clone_op(self.out, owner, operands, lanes, coordinate), strict=True))
        return names[value]

    # --- memory

    def load(self, access: Access, at: Position) -> str:
        axes = tuple(a for a in AXES if any(access.strides[d] for d in self.contract.axes[a]))
        key = (access, at.key(axes))
        if key not in self._loaded:
            self._loaded[key] = self._load(access, self._address(access, at), at)
        return self._loaded[key]

    def _load(self, access: Access, address: Address, at: Position) -> str:
        out, dtype, width = self.out, memory_dtype(access.dtype), ITEM_BYTES[access.dtype]
        type_ = lane_type(dtype, at.lanes)
        if address.offsets is None and address.stride == 0:
            scalar = out.load(address.pointer, dtype, width)
            lanes = out.value(f"vector.broadcast {scalar} : {dtype} to {type_}")
        elif address.offsets is None and address.stride == 1:
            if at.mask is None:
                lanes = out.load(address.pointer, type_, width)
            else:
                lanes = out.value(
                    f"llvm.intr.masked.load {address.pointer}, {at.mask}, {out.constant(zero(dtype), type_)} "
                    f"{{alignment = {width} : i32}} : (!llvm.ptr, vector<{at.lanes}xi1>, {type_}) -> {type_}"
                )
        else:
            pointers, mask = self._pointers(address, dtype, at)
            types = f"(vector<{at.lanes}x!llvm.ptr>, vector<{at.lanes}xi1>, {type_}) -> {type_}"
            lanes = out.value(
                f"llvm.intr.masked.gather {pointers}, {mask}, {out.constant(zero(dtype), type_)} "
                f"{{alignment = {width} : i32}} : {types}"
            )
        return lanes if dtype == access.dtype else out.value(f"arith.trunci {lanes} : {type_} to vector<{at.lanes}xi1>")

    def store(self, value: str, access: Access, at: Position) -> None:
        """Write the lanes of `value` (of the access's dtype)."""
        out, dtype, width = self.out, memory_dtype(access.dtype), ITEM_BYTES[access.dtype]
        type_ = lane_type(dtype, at.lanes)
        if dtype != access.dtype:
            value = out.value(f"arith.extui {value} : vector<{at.lanes}xi1> to {type_}")
        address = self._address(access, at)
        if address.offsets is None and address.stride == 1 and at.mask is None:
            out.store(value, address.pointer, type_, width)
        elif address.offsets is None and address.stride == 1:
            out.line(
                f"llvm.intr.masked.store {value}, {address.pointer}, {at.mask} "
                f"{{alignment = {width} : i32}} : {type_}, vector<{at.lanes}xi1> into !llvm.ptr"
            )
        else:
            pointers, mask = self._pointers(address, dtype, at)
            out.line(
                f"llvm.intr.masked.scatter {value}, {pointers}, {mask} "
                f"{{alignment = {width} : i32}} : {type_}, vector<{at.lanes}xi1> into vector<{at.lanes}x!llvm.ptr>"
            )

    def _pointers(self, address: Address, dtype: str, at: Position) -> tuple[str, str]:
        """Lanes of pointers and their mask, for gathers and scatters."""
        out, type_ = self.out, f"vector<{at.lanes}xi64>"
        offsets = address.offsets
        if offsets is None:
            step = out.constant(str(address.stride), type_)
            offsets = out.value(f"arith.muli {out.lane_numbers(at.lanes)}, {step} : {type_}")
        types = f"(!llvm.ptr, {type_}) -> vector<{at.lanes}x!llvm.ptr>, {dtype}"
        pointers = out.value(f"llvm.getelementptr {address.pointer}[{offsets}] : {types}")
        return pointers, at.mask or out.constant("true", f"vector<{at.lanes}xi1>")

    def _address(self, access: Access, at: Position) -> Address:
        assert isinstance(access.source, Operand)
        out = self.out
        offset: Integer = access.offset
        stride, offsets = 0, None
        for axis in AXES:
            dims = self.contract.axes[axis]
            extents = [self.contract.generic.extents[d] for d in dims]
            steps = [access.strides[d] for d in dims]
            if not any(s and e > 1 for s, e in zip(steps, extents, strict=True)):
                continue
            step = linear_step(extents, steps)
            if step is not None:
                offset = out.add(offset, out.mul(at.index[axis], step))
                stride = step if axis == at.lane_axis else stride
            elif axis != at.lane_axis or (at.aligned and extents[-1] % at.lanes == 0):
                for digit, one in zip(out.digits(at.index[axis], extents), steps, strict=True):
                    offset = out.add(offset, out.mul(digit, one))
                stride = steps[-1] if axis == at.lane_axis else stride
            else:
                offsets = self._lane_offsets(at, extents, steps)
        return Address(out.pointer(out.operand(access.source.index), offset, access.dtype), stride, offsets)

    def _lane_offsets(self, at: Position, extents: list[int], steps: list[int]) -> str:
        total = None
        for digit, step in zip(self._lane_digits(at, extents), steps, strict=True):
            term = self._lanes("muli", digit, step, at.lanes)
            total = term if total is None else self._lanes("addi", total, term, at.lanes)
        assert total is not None
        return total

    # --- coordinates

    def coordinate(self, indices: tuple[Index, ...], at: Position) -> Coordinate:
        """The provider of `linalg.index` for a region whose loop dimensions are `indices`."""

        def lanes_of_index(loop_dim: int) -> str:
            index = indices[loop_dim]
            lanes = self._splat(0, at.lanes) if index.dim is None else self._dimension(index.dim, at)
            lanes = self._lanes("addi", self._lanes("muli", lanes, index.coefficient, at.lanes), index.offset, at.lanes)
            return self.out.value(f"arith.index_cast {lanes} : vector<{at.lanes}xi64> to vector<{at.lanes}xindex>")

        return lanes_of_index

    def _dimension(self, dim: int, at: Position) -> str:
        """Index of every lane along one contraction dimension."""
        axis = next(a for a in AXES if dim in self.contract.axes[a])
        dims = self.contract.axes[axis]
        extents = [self.contract.generic.extents[d] for d in dims]
        if axis == at.lane_axis:
            return self._lane_digits(at, extents)[dims.index(dim)]
        return self._splat(self.out.digits(at.index[axis], extents)[dims.index(dim)], at.lanes)

    def _lane_digits(self, at: Position, extents: list[int]) -> list[str]:
        """Coordinates of every lane along the dimensions of the lane axis."""
        flat = self._lanes(
            "addi", self._splat(at.index[at.lane_axis], at.lanes), self.out.lane_numbers(at.lanes), at.lanes
        )
        result: list[str] = []
        for extent in reversed(extents[1:]):
            result.append(self._lanes("remui", flat, extent, at.lanes))
            flat = self._lanes("divui", flat, extent, at.lanes)
        return [flat, *reversed(result)]

    def _splat(self, index: Integer, lanes: int) -> str:
        if isinstance(index, int):
            return self.out.constant(str(index), f"vector<{lanes}xi64>")
        return self.out.value(f"vector.broadcast {index} : i64 to vector<{lanes}xi64>")

    def _lanes(self, operation: str, a: str, b: Integer, lanes: int) -> str:
        b = self._splat(b, lanes) if isinstance(b, int) else b
        return self.out.value(f"arith.{operation} {a}, {b} : vector<{lanes}xi64>")
