"""Square tiles read along one dimension and used along the other: transposed in registers, not gathered."""

from __future__ import annotations

from blutrain.nova.cpu.emit import operand_pointer
from blutrain.nova.cpu.emit_nest import Evaluator, Point
from blutrain.nova.emitter import Emitter, lane_type, memory_dtype
from blutrain.nova.kernel import Access


def load_transposed(evaluator: Evaluator, access: Access, points: list[Point]) -> None:
    """Put the loads of `access` at `points` into their memos.

    The points follow each other along a dimension where the access is contiguous, one for each lane. Row l of the tile
    is what lane l reads at all points; transposed, row p is what all lanes read at point p.
    """
    first = points[0]
    lanes, step = first.lanes, first.lane_step(access)
    corner = evaluator.offset(access.strides, access.offset, first)
    rows = []
    for lane in range(lanes):
        offset = evaluator.integers.name(evaluator.integers.add(corner, lane * step))
        rows.append(evaluator.memory.load(operand_pointer(access.source), offset, access.dtype, lanes))
    for point, row in zip(points, transpose(evaluator.out, rows, access.dtype), strict=True):
        point.memo["load", access] = row


def transpose(out: Emitter, rows: list[str], dtype: str) -> list[str]:
    """An n x n tile, n a power of two, given and returned by rows: swap off-diagonal blocks of size n/2, n/4, ... 1."""
    n = len(rows)
    type_ = lane_type(dtype, n)
    block = n // 2
    while block:
        swapped = list(rows)
        for r in (r for r in range(n) if not r & block):
            upper, lower = rows[r], rows[r + block]
            low = [c if not c & block else n + c - block for c in range(n)]
            high = [c + block if not c & block else n + c for c in range(n)]
            for target, mask in ((r, low), (r + block, high)):
                swapped[target] = out.value(f"vector.shuffle {upper}, {lower} {mask} : {type_}, {type_}")
        rows, block = swapped, block // 2
    return rows


def is_transposed(access: Access, lane_dim: int, inner_dim: int) -> bool:
    """Contiguous along the inner loop, strided along the lanes."""
    is_turned = access.strides[inner_dim] == 1 and abs(access.strides[lane_dim]) > 1
    return is_turned and memory_dtype(access.dtype) == access.dtype
