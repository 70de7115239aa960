"""Elements side by side: the scalar points of one thread that share vector loads and stores of up to 16 bytes."""

from __future__ import annotations

from collections.abc import Sequence

from blutrain.nova.cpu.emit import POINTER, Number, memory_type, operand_pointer
from blutrain.nova.cpu.emit_domain import Placed
from blutrain.nova.cpu.emit_nest import Point
from blutrain.nova.emitter import Emitter
from blutrain.nova.gpu.emit import SimtEvaluator
from blutrain.nova.kernel import ITEM_BYTES, Access, Gather, Operand, Produced

VECTOR_BYTES = 16  # the widest load and store of a thread; every operand is aligned to it


class LanePoint(Point):
    """One element of a strip."""

    strip: Strip


class Strip:
    """`width` elements along `lane_dim` from index `start`, a multiple of the width; None: `outer` is the one element."""

    def __init__(self, evaluator: SimtEvaluator, outer: Point, lane_dim: int | None, start: Number, width: int):
        self.evaluator, self.out, self.lane_dim, self.width = evaluator, evaluator.out, lane_dim, width
        self.points: list[Point] = []
        for i in range(width):
            own = {} if lane_dim is None else {lane_dim: evaluator.integers.add(start, i)}
            point = LanePoint(own, self.out.innermost, outer)
            point.strip = self
            self.points.append(point)

    def load(self, access: Access) -> bool:
        """Put the elements of `access` into the points' memos by vector loads; False where they need single ones."""
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
        if self.width == 1 or placed.dims[-1] != self.lane_dim or op.table_type.shape[-1] % self.width:
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
            for point, value in zip(
                self.points, load_vector(self.evaluator, pointer, offset, dtype, self.width), strict=True
            ):
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


def load_vector(evaluator: SimtEvaluator, pointer: str, offset: str, dtype: str, width: int) -> list[str]:
    """`width` scalars from element `offset`, a multiple of the width."""
    out, ints, element, values = evaluator.out, evaluator.integers, memory_type(dtype), []
    for first, lanes in _pieces(width, dtype):
        address = evaluator.memory.address(pointer, ints.name(ints.add(offset, first)), dtype)
        if lanes == 1:
            vector = out.value(
                f"llvm.load {address} {{alignment = {ITEM_BYTES[dtype]} : i64}} : {POINTER} -> {element}"
            )
            values.append(_from_memory(out, vector, dtype))
            continue
        align = f"{{alignment = {lanes * ITEM_BYTES[dtype]} : i64}}"
        type_ = f"vector<{lanes}x{element}>"
        vector = out.value(f"llvm.load {address} {align} : {POINTER} -> {type_}")
        for lane in range(lanes):
            value = out.value(f"llvm.extractelement {vector}[{_lane(out, lane)}] : {type_}")
            values.append(_from_memory(out, value, dtype))
    return values


def store_vector(evaluator: SimtEvaluator, values: Sequence[str], pointer: str, offset: str, dtype: str) -> None:
    """Write scalars side by side from element `offset`, a multiple of their number."""
    out, ints, element = evaluator.out, evaluator.integers, memory_type(dtype)
    for first, lanes in _pieces(len(values), dtype):
        address = evaluator.memory.address(pointer, ints.name(ints.add(offset, first)), dtype)
        bare = [_to_memory(out, v, dtype) for v in values[first : first + lanes]]
        type_ = element if lanes == 1 else f"vector<{lanes}x{element}>"
        vector = bare[0] if lanes == 1 else out.value(f"llvm.mlir.undef : {type_}")
        for lane, value in enumerate(bare if lanes > 1 else ()):
            vector = out.value(f"llvm.insertelement {value}, {vector}[{_lane(out, lane)}] : {type_}")
        align = f"{{alignment = {lanes * ITEM_BYTES[dtype]} : i64}}"
        out.line(f"llvm.store {vector}, {address} {align} : {type_}, {POINTER}")


def _from_memory(out: Emitter, value: str, dtype: str) -> str:
    if dtype != "i1":
        return value
    return out.value(f"arith.cmpi ne, {value}, {out.constant('0', 'i8')} : i8")


def _to_memory(out: Emitter, value: str, dtype: str) -> str:
    return out.value(f"arith.extui {value} : i1 to i8") if dtype == "i1" else value
