"""Elements side by side: the scalar points of one thread that share vector loads and stores of up to 16 bytes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from blutrain.nova.cpu.emit import POINTER, Number, operand_pointer
from blutrain.nova.cpu.emit_domain import Placed
from blutrain.nova.cpu.emit_nest import Point
from blutrain.nova.emitter import Emitter, lane_type, memory_dtype
from blutrain.nova.gpu.emit import SimtEvaluator
from blutrain.nova.kernel import ITEM_BYTES, Access, Gather, Operand, Produced

VECTOR_BYTES = 16  # the widest load and store of a thread; every operand is aligned to it


class LanePoint(Point):
    """One element of a strip."""

    strip: Strip


class Strip:
    """Elements side by side along `lane_dim` (None: one element), the first at a multiple of their number.

    `place` numbers the first one among those that `SimtEvaluator.staged` holds.
    """

    def __init__(self, evaluator: SimtEvaluator, points: list[LanePoint], lane_dim: int | None, place: Number = 0):
        self.evaluator, self.out, self.points, self.lane_dim, self.place = (
            evaluator,
            evaluator.out,
            points,
            lane_dim,
            place,
        )
        self.width = len(points)
        for point in points:
            point.strip = self

    @staticmethod
    def along(
        evaluator: SimtEvaluator, outer: Point, lane_dim: int, start: Number, width: int, place: Number = 0
    ) -> Strip:
        """`width` elements under `outer`, from index `start`."""
        indices = [{lane_dim: evaluator.integers.add(start, i)} for i in range(width)]
        depth = evaluator.out.innermost
        return Strip(evaluator, [LanePoint(own, depth, outer) for own in indices], lane_dim, place)

    @staticmethod
    def one(evaluator: SimtEvaluator, outer: Point) -> Strip:
        """The only element of a nest without loops."""
        return Strip(evaluator, [LanePoint({}, evaluator.out.innermost, outer)], None)

    def at(self, indices: dict[int, Number]) -> Strip:
        """The same elements under further indices."""
        points = [LanePoint(indices, self.out.innermost, point) for point in self.points]
        return Strip(self.evaluator, points, self.lane_dim, self.place)

    def load(self, access: Access) -> bool:
        """Put the elements of `access` into the points' memos by vector loads; False where they need single ones."""
        if access in self.evaluator.staged:
            with self.out.scope(self.points[0].depth):
                self._remember(("load", access), self.evaluator.staged[access](self))
            return True
        if not self._is_wide(access):
            return False
        offset = self.evaluator.offset(access.strides, access.offset, self.points[0])
        self._fill(("load", access), operand_pointer(access.source), offset, access.dtype)
        return True

    def _is_wide(self, access: Access) -> bool:
        return self.lane_dim is not None and self.width > 1 and is_wide(access, self.lane_dim, self.width)

    def gathered(self, placed: Placed) -> Produced:
        return Produced(self.evaluator.domain.ops.index(placed), 0)

    def gather(self, placed: Placed) -> bool:
        """The same for the row of a table that the points lie in."""
        op = placed.op
        assert isinstance(op, Gather) and isinstance(op.table, Operand)
        if self.width == 1 or self.lane_dim is None or placed.dims[-1] != self.lane_dim:
            return False
        if op.table_type.shape[-1] % self.width:
            return False
        (ids,) = placed.inputs
        home = self.points[0].home(frozenset(d for d, s in enumerate(ids.strides) if s))
        key = ("row", op.table, ids)
        if key not in home.memo:
            with self.out.scope(home.depth):
                home.memo[key] = self.evaluator._row_offset(op, self.evaluator.read(ids, home), 0)
        ints = self.evaluator.integers
        offset = ints.name(ints.add(home.memo[key], self.points[0].index(self.lane_dim)))
        self._fill(self.gathered(placed), operand_pointer(op.table), offset, op.table_type.dtype)
        return True

    def store(self, values: Sequence[str], access: Access, pointer: str) -> None:
        """Write one value for each point where `access` says."""
        evaluator = self.evaluator
        if not self._is_wide(access):
            for point, value in zip(self.points, values, strict=True):
                evaluator.store(value, access, pointer, point)
            return
        offset = evaluator.offset(access.strides, access.offset, self.points[0])
        store_vector(evaluator, values, pointer, offset, access.dtype)

    def _fill(self, key: object, pointer: str, offset: str, dtype: str) -> None:
        with self.out.scope(self.points[0].depth):
            self._remember(key, load_vector(self.evaluator, pointer, offset, dtype, self.width))

    def _remember(self, key: object, values: Sequence[str]) -> None:
        for point, value in zip(self.points, values, strict=True):
            point.memo[key] = value


def is_wide(access: Access, lane_dim: int, width: int) -> bool:
    """Do `width` elements from a multiple of it lie side by side, aligned to their size?"""
    rest = [s for d, s in enumerate(access.strides) if d != lane_dim]
    return access.strides[lane_dim] == 1 and all(s % width == 0 for s in (*rest, access.offset))


def _pieces(width: int, dtype: str) -> list[tuple[int, int]]:
    """(first lane, lanes) of each vector."""
    most = min(width, VECTOR_BYTES // ITEM_BYTES[dtype])
    return [(i, most) for i in range(0, width, most)]


def _lane(out: Emitter, lane: int) -> str:
    return f"{out.constant(str(lane), 'i32')} : i32"


Address = Callable[[int], str]  # element number in the strip -> its address


def load_pieces(out: Emitter, address: Address, dtype: str, width: int, pointer: str = POINTER) -> list[str]:
    """`width` scalars side by side, by vector loads; the first one's address is aligned to all of them."""
    values = []
    for first, lanes in _pieces(width, dtype):
        type_ = lane_type(memory_dtype(dtype), lanes if lanes > 1 else 0)
        loaded = out.value(f"llvm.load {address(first)} {_alignment(lanes, dtype)} : {pointer} -> {type_}")
        elements = [loaded]
        if lanes > 1:
            elements = [out.value(f"llvm.extractelement {loaded}[{_lane(out, i)}] : {type_}") for i in range(lanes)]
        values += [_from_memory(out, e, dtype) for e in elements]
    return values


def store_pieces(out: Emitter, address: Address, values: Sequence[str], dtype: str, pointer: str = POINTER) -> None:
    """Write scalars side by side, by vector stores."""
    for first, lanes in _pieces(len(values), dtype):
        bare = [_to_memory(out, v, dtype) for v in values[first : first + lanes]]
        type_ = lane_type(memory_dtype(dtype), lanes if lanes > 1 else 0)
        vector = bare[0] if lanes == 1 else out.value(f"llvm.mlir.undef : {type_}")
        for lane, value in enumerate(bare if lanes > 1 else ()):
            vector = out.value(f"llvm.insertelement {value}, {vector}[{_lane(out, lane)}] : {type_}")
        out.line(f"llvm.store {vector}, {address(first)} {_alignment(lanes, dtype)} : {type_}, {pointer}")


def _alignment(lanes: int, dtype: str) -> str:
    return f"{{alignment = {lanes * ITEM_BYTES[dtype]} : i64}}"


def load_vector(evaluator: SimtEvaluator, pointer: str, offset: str, dtype: str, width: int) -> list[str]:
    """`width` scalars of global memory from element `offset`, a multiple of the width."""
    return load_pieces(evaluator.out, _global(evaluator, pointer, offset, dtype), dtype, width)


def store_vector(evaluator: SimtEvaluator, values: Sequence[str], pointer: str, offset: str, dtype: str) -> None:
    """Write scalars side by side from element `offset`, a multiple of their number."""
    store_pieces(evaluator.out, _global(evaluator, pointer, offset, dtype), values, dtype)


def _global(evaluator: SimtEvaluator, pointer: str, offset: str, dtype: str) -> Address:
    ints = evaluator.integers
    return lambda first: evaluator.memory.address(pointer, ints.name(ints.add(offset, first)), dtype)


def _from_memory(out: Emitter, value: str, dtype: str) -> str:
    if dtype != "i1":
        return value
    return out.value(f"arith.cmpi ne, {value}, {out.constant('0', 'i8')} : i8")


def _to_memory(out: Emitter, value: str, dtype: str) -> str:
    return out.value(f"arith.extui {value} : i1 to i8") if dtype == "i1" else value
