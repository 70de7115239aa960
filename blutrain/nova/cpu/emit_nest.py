"""Values of a kernel at a point of its loop nest, computed on demand, each in the outermost loop that knows its
indices.

A `Point` is one open loop level (or a strip of lanes in the innermost one) and the chain of those around it.
`Evaluator` answers "the value of this access here": loads, constants, and regions cloned by the one cloner. A
value that does not depend on the inner loops is emitted before them, as a scalar, and broadcast.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mlir import ir

from blutrain.nova.clone import clone_block
from blutrain.nova.cpu.emit import Integers, Memory, Number, operand_pointer
from blutrain.nova.cpu.emit_domain import Domain, Placed
from blutrain.nova.emitter import Emitter, lane_type
from blutrain.nova.kernel import Access, Gather, Generic, Kernel, Operand, Produced, Source, Splat, Unsupported


class Point:
    """Indices of some nest dimensions: `own` those this level adds (names or ints), the rest in `outer`.

    With `lanes`, `own[lane_dim]` is the index of the first lane, and lanes outside `mask` hold nothing.
    """

    def __init__(
        self,
        own: dict[int, Number],
        depth: int,
        outer: Point | None = None,
        lane_dim: int | None = None,
        lanes: int = 0,
        mask: str | None = None,
    ):
        self.own, self.depth, self.outer = own, depth, outer
        self.lane_dim, self.lanes, self.mask = lane_dim, lanes, mask
        self.memo: dict[object, str] = {}
        self.dims: frozenset[int] = frozenset(own) | (outer.dims if outer else frozenset())

    def home(self, dims: frozenset[int]) -> Point:
        """The outermost level that knows all of `dims`."""
        if self.outer is not None and dims <= self.outer.dims:
            return self.outer.home(dims)
        return self

    def lane_step(self, access: Access) -> int:
        """Elements of memory from one lane's element of `access` to the next lane's."""
        assert self.lane_dim is not None
        return access.strides[self.lane_dim]

    def index(self, dim: int) -> Number:
        if dim in self.own:
            return self.own[dim]
        assert self.outer is not None
        return self.outer.index(dim)


class Evaluator:
    """Emits the values of one kernel into one function body."""

    def __init__(self, kernel: Kernel, domain: Domain, out: Emitter):
        self.kernel, self.domain, self.out = kernel, domain, out
        self.memory, self.integers = Memory(out), Integers(out)
        # Values that come from elsewhere than their op's region: a row buffer, partial sums of another phase.
        self.providers: dict[Produced, Callable[[Point], str]] = {}

    # --- values

    def read(self, access: Access, point: Point) -> str:
        """The element(s) of `access` at `point`, at its lanes."""
        return self.source(access.source, access, point)

    def source(self, source: Source, access: Access | None, point: Point) -> str:
        if isinstance(source, Splat):
            return self.out.constant(source.literal, lane_type(source.dtype, point.lanes))
        if isinstance(source, Operand):
            assert access is not None
            return self._hoisted(self._access_dims(access), access.dtype, point, ("load", access), self._load)
        if isinstance(source, Produced):
            placed = self.domain.ops[source.op]
            return self._hoisted(placed.result_dims, self.dtype(source), point, source, self._produce)
        raise Unsupported("a region that reads an uninitialised tensor")

    def dtype(self, source: Produced) -> str:
        return self.kernel.ops[source.op].types[source.result].dtype

    def _access_dims(self, access: Access) -> frozenset[int]:
        return frozenset(d for d, s in enumerate(access.strides) if s and self.domain.extents[d] != 1)

    def _hoisted(
        self, dims: frozenset[int], dtype: str, point: Point, key: object, emit: Callable[[object, Point], str]
    ) -> str:
        home = point.home(dims)
        if key not in home.memo:
            with self.out.scope(home.depth):
                home.memo[key] = emit(key, home)
        if home.lanes or not point.lanes:
            return home.memo[key]
        return self.broadcast(home.memo[key], dtype, home, point.lanes)

    def broadcast(self, scalar: str, dtype: str, home: Point, lanes: int) -> str:
        """A scalar known at `home` as lanes, made there."""
        key = ("broadcast", scalar, lanes)
        if key not in home.memo:
            with self.out.scope(home.depth):
                home.memo[key] = self.out.value(f"vector.broadcast {scalar} : {dtype} to {lane_type(dtype, lanes)}")
        return home.memo[key]

    def _produce(self, key: object, point: Point) -> str:
        assert isinstance(key, Produced)
        if key in self.providers:
            return self.providers[key](point)
        placed = self.domain.ops[key.op]
        if isinstance(placed.op, Gather):
            return self._gather(placed, point)
        if not isinstance(placed.op, Generic) or placed.reduced:
            raise Unsupported("a reduction whose result is needed before it is complete")
        results = self.region(placed, point)
        for i, name in enumerate(results):
            point.memo[Produced(key.op, i)] = name
        return results[key.result]

    def region(self, placed: Placed, point: Point, accumulators: Sequence[str] | None = None) -> list[str]:
        """The op's region at `point`; `accumulators` stand for the elements of its outputs, else they are read."""
        op = placed.op
        assert isinstance(op, Generic)
        arguments = [self.read(a, point) for a in placed.inputs]
        for i, access in enumerate(placed.outputs):
            is_read = len(list(op.block.arguments[len(arguments)].uses)) > 0
            if accumulators is not None:
                arguments.append(accumulators[i])
            elif is_read:
                arguments.append(self.read(access, point))
            else:
                zero = "false" if access.dtype == "i1" else "0" if access.dtype[0] == "i" else "0.0"
                arguments.append(self.out.constant(zero, lane_type(access.dtype, point.lanes)))
        coordinate = lambda d: self.coordinate(placed.dims[d], point)
        extract = lambda tensor, indices: self._extract(op, tensor, indices, point)
        return self.clone(op.block, arguments, point, coordinate, extract)

    def clone(self, block: ir.Block, arguments: Sequence[str], point: Point, coordinate, extract) -> list[str]:
        """A region at the point's lanes: what a generator for another kind of processor replaces."""
        return clone_block(self.out, block, arguments, point.lanes, coordinate, extract, point.mask)

    def coordinate(self, dim: int | None, point: Point) -> str:
        """The index along a nest dimension, of type `index`."""
        lanes_type = lane_type("index", point.lanes)
        if dim is None:
            return self.out.constant("0", lanes_type)
        home = point.home(frozenset({dim}))
        if not home.lanes or dim != home.lane_dim:
            index = self.integers.name(home.index(dim))
            scalar = self.out.value(f"arith.index_cast {index} : i64 to index")
            return self.broadcast(scalar, "index", point, point.lanes) if point.lanes else scalar
        lanes = self.lane_indices(point)
        return self.out.value(f"arith.index_cast {lanes} : {lane_type('i64', point.lanes)} to {lanes_type}")

    def lane_indices(self, point: Point) -> str:
        """Indices along the lane dimension, as i64 lanes."""
        assert point.lane_dim is not None
        if "lanes" not in point.memo:
            with self.out.scope(point.depth):
                first = self._splat(point.index(point.lane_dim), point.lanes)
                type_ = lane_type("i64", point.lanes)
                point.memo["lanes"] = self.out.value(f"arith.addi {first}, {self._iota(point.lanes)} : {type_}")
        return point.memo["lanes"]

    def _iota(self, lanes: int) -> str:
        return self.out.constant("[" + ", ".join(map(str, range(lanes))) + "]", lane_type("i64", lanes))

    def _splat(self, number: Number, lanes: int) -> str:
        if isinstance(number, int):
            return self.out.constant(str(number), lane_type("i64", lanes))
        return self.out.value(f"vector.broadcast {number} : i64 to {lane_type('i64', lanes)}")

    # --- memory

    def offset(self, strides: tuple[int, ...], start: int, point: Point) -> str:
        """Element offset at `point`, as an i64 name; each level adds its own dimensions."""
        return self.integers.name(self._offset(strides, start, point))

    def _offset(self, strides: tuple[int, ...], start: int, point: Point) -> Number:
        key = ("offset", strides, start)
        if key not in point.memo:
            total: Number = self._offset(strides, start, point.outer) if point.outer else start
            with self.out.scope(point.depth):
                for dim, index in point.own.items():
                    total = self.integers.add(total, self.integers.mul(index, strides[dim]))
            point.memo[key] = total  # type: ignore[assignment]
        return point.memo[key]

    def _load(self, key: object, point: Point) -> str:
        _, access = key  # type: ignore[misc]
        pointer = operand_pointer(access.source)
        offset = self.offset(access.strides, access.offset, point)
        if not point.lanes:
            return self.memory.load(pointer, offset, access.dtype, 0)
        step = point.lane_step(access)
        if step == 0:
            scalar = self.memory.load(pointer, offset, access.dtype, 0)
            return self.out.value(
                f"vector.broadcast {scalar} : {access.dtype} to {lane_type(access.dtype, point.lanes)}"
            )
        if step == 1:
            return self.memory.load(pointer, offset, access.dtype, point.lanes, point.mask)
        return self.memory.load_at(
            pointer, self._strided(offset, step, point.lanes), access.dtype, point.lanes, point.mask
        )

    def _strided(self, offset: str, step: int, lanes: int) -> str:
        type_ = lane_type("i64", lanes)
        steps = self.out.constant("[" + ", ".join(str(i * step) for i in range(lanes)) + "]", type_)
        return self.out.value(f"arith.addi {self._splat(offset, lanes)}, {steps} : {type_}")

    def store(self, value: str, access: Access, pointer: str, point: Point) -> None:
        """Write lanes (or a scalar) where `access` says."""
        offset = self.offset(access.strides, access.offset, point)
        step = point.lane_step(access) if point.lanes else 1
        if step == 1:
            self.memory.store(value, pointer, offset, access.dtype, point.lanes, point.mask)
        else:
            offsets = self._strided(offset, step, point.lanes)
            self.memory.store_at(value, pointer, offsets, access.dtype, point.lanes, point.mask)

    def _extract(self, op: Generic, tensor: ir.Value, indices: list[str], point: Point) -> str:
        """`tensor.extract`: a gather whose every index is clamped into the tensor."""
        type_ = self.kernel.operands[op.extracts[tensor].index]
        wide, index_type = lane_type("i64", point.lanes), lane_type("index", point.lanes)
        total = self.out.constant("0", wide)
        if type_.size == 0:
            raise Unsupported("tensor.extract of an empty tensor")
        for index, size in zip(indices, type_.shape, strict=True):
            position = self.out.value(f"arith.index_cast {index} : {index_type} to {wide}")
            for bound, op_name in ((0, "maxsi"), (size - 1, "minsi")):
                position = self.out.value(f"arith.{op_name} {position}, {self.out.constant(str(bound), wide)} : {wide}")
            scaled = self.out.value(f"arith.muli {total}, {self.out.constant(str(size), wide)} : {wide}")
            total = self.out.value(f"arith.addi {scaled}, {position} : {wide}")
        pointer = operand_pointer(op.extracts[tensor])
        return self.memory.load_at(pointer, total, type_.dtype, point.lanes, point.mask)

    def _gather(self, placed: Placed, point: Point) -> str:
        """A row of the table by lanes; where lanes lie along the ids, one element of each lane's row."""
        op = placed.op
        assert isinstance(op, Gather) and isinstance(op.table, Operand)
        (ids,) = placed.inputs
        home = point.home(self._access_dims(ids))
        key = ("row", op.table, ids)
        if key not in home.memo:
            with self.out.scope(home.depth):
                home.memo[key] = self._row_offset(op, self.read(ids, home), home.lanes)
        column = point.index(placed.dims[-1]) if placed.dims[-1] is not None else 0
        pointer, dtype = operand_pointer(op.table), op.table_type.dtype
        if not home.lanes:
            offset = self.integers.name(self.integers.add(home.memo[key], column))
            return self.memory.load(pointer, offset, dtype, point.lanes, point.mask)
        wide = lane_type("i64", point.lanes)
        offsets = self.out.value(f"arith.addi {home.memo[key]}, {self._splat(column, point.lanes)} : {wide}")
        return self.memory.load_at(pointer, offsets, dtype, point.lanes, point.mask)

    def _row_offset(self, op: Gather, row: str, lanes: int) -> str:
        """First element of the row of an id, the id clamped into the table."""
        wide = lane_type("i64", lanes)
        if op.ids_type.dtype != "i64":
            row = self.out.value(f"arith.extsi {row} : {lane_type(op.ids_type.dtype, lanes)} to {wide}")
        rows, columns = op.table_type.shape
        for name, number in (("maxsi", 0), ("minsi", rows - 1), ("muli", columns)):
            row = self.out.value(f"arith.{name} {row}, {self.out.constant(str(number), wide)} : {wide}")
        return row
