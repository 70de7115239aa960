"""expand_indices: reading and writing by index tensors becomes what kernels do: gathers and scatters of rows by
checked i64 indices.

Before:

    %0 = "nova.take"(%x, %index) {dim = 0 : i64} : (tensor<9x4xf32>, tensor<3xi32>) -> tensor<3x4xf32>

After (the index counts from the front, a flag says whether one was out of range):

    %1 = "nova.cast"(%index) ... tensor<3xi64>
    %2 = "nova.where"(%is_negative, %plus_9, %1)
    "nova.check"(%flag) {message = "take: the index is out of range ..."}
    %3 = "nova.take"(%x, %2) {dim = 0 : i64} : (tensor<9x4xf32>, tensor<3xi64>) -> tensor<3x4xf32>

index_add and index_copy along other dimensions go through transposes; scatter_add through the row-major number of
each element; index_copy finds for every row the last entry that names it. Written with the operations themselves, as
the `compose` of composites is.
"""

from __future__ import annotations

import dataclasses

from mlir import ir

from ...tensor.dispatch import apply
from ...tensor.dtype import bool_, int64
from ...tensor.ops.arithmetic import where
from ...tensor.ops.compare import eq, ge, logical_or, lt
from ...tensor.ops.composite.check import check_none
from ...tensor.ops.create import iota
from ...tensor.primitive import TABLE, Primitive
from ..dialect.graph import Graph, attributes
from .decompose_composites import splice
from .template import template_of

NAME = "expand_indices"


def run(module: ir.Module, facts) -> None:
    """See the module."""
    graph = Graph(module)
    _accumulate_tables(graph)
    wrapped: dict[tuple[ir.Value, int], ir.Value] = {}
    for op in graph.operations():
        name = op.name.removeprefix("nova.")
        if name not in _INDEXED:
            continue
        operands, held = list(op.operands), attributes(op)
        position, size = _INDEXED[name](operands, held)
        with ir.InsertionPoint(op), op.location:
            operands[position] = _counted_from_front(graph, wrapped, operands[position], size)
            graph.replace(op, _splice(graph, _EXPANDED[name], operands, held))
    graph.sweep()


def _splice(graph: Graph, prim: Primitive, operands: list[ir.Value], held: dict) -> list[ir.Value]:
    return splice(graph, template_of(prim, tuple(graph.aval(v) for v in operands), held), operands)


def _counted_from_front(graph: Graph, wrapped: dict, index: ir.Value, size: int) -> ir.Value:
    """`index` as checked int64 from the front; once for every index and size."""
    key = (index, size)
    if key not in wrapped:
        (wrapped[key],) = _splice(graph, _CHECKED, [index], {"size": size})
    return wrapped[key]


def _accumulate_tables(graph: Graph) -> None:
    """`y + index_add(zeros, ...)` becomes `index_add(y, ...)`: gradients of a tied embedding add up in one table."""
    gone = [scatter for op in graph.operations() if (scatter := _accumulate(graph, op)) is not None]
    graph.sweep()
    for scatter in gone:
        scatter.erase()


def _accumulate(graph: Graph, op: ir.Operation) -> ir.Operation | None:
    """Replace the addition `op` if it is such; returns the index_add that nothing reads any more."""
    if op.name != "nova.add":
        return None
    for mine, other in ((0, 1), (1, 0)):
        scatter, base = op.operands[mine].owner, op.operands[other]
        is_scatter = not isinstance(scatter, ir.Block) and scatter.name == "nova.index_add"
        if is_scatter and base.type == op.result.type and _is_read_once(scatter) and _is_zero(scatter.operands[0]):
            operands = [base, *list(scatter.operands)[1:]]
            with ir.InsertionPoint(op), scatter.location:
                made = graph.create("index_add", operands, [graph.aval(op.result)], attributes(scatter))
            graph.replace(op, list(made.results))
            return scatter
    return None


def _is_read_once(op: ir.Operation) -> bool:
    return len(list(op.results[0].uses)) == 1


def _is_zero(value: ir.Value) -> bool:
    owner = value.owner
    return (
        not isinstance(owner, ir.Block)
        and owner.name in ("nova.constant", "nova.full")
        and not owner.attributes["value"].value
    )


def _checked(index, *, size):
    """`index` as int64 counted from the front; a check reports the largest one out of range."""
    index = index.to(int64)
    outside = logical_or(lt(index, -size), ge(index, size))
    rule = "an index is out of range"
    text = f"index: {rule}\n  expected: {-size} <= index < {size}\n  got: {{flag}}"
    check_none(outside, index + (0 if size else 1), text)
    return where(lt(index, 0), index + size, index)


def _unchanged(prim: Primitive):
    def compose(*operands, **held):
        return apply(prim, *operands, **held)

    return compose


def _rows_first(x, dim: int):
    """x with dimension `dim` first and the others flattened into one."""
    order = (dim, *(d for d in range(x.ndim) if d != dim))
    return x.permute(*order).reshape(x.shape[dim], _size(x.shape[:dim]) * _size(x.shape[dim + 1 :]))


def _rows_back(rows, shape, dim: int):
    """The inverse of `_rows_first`."""
    moved = rows.reshape(shape[dim], *shape[:dim], *shape[dim + 1 :])
    return moved.permute(*range(1, dim + 1), 0, *range(dim + 1, len(shape)))


def _source_rows(src, index, dim: int):
    """src [before, index, behind] as [elements of the index, before * behind]."""
    behind = dim + index.ndim
    order = (*range(dim, behind), *range(dim), *range(behind, src.ndim))
    width = _size(src.shape[:dim]) * _size(src.shape[behind:])
    return src.permute(*order).reshape(index.numel(), width) if src.ndim else src.reshape(1, 1)


def _index_add(x, index, src, *, dim):
    if x.dtype is bool_:
        return _index_add(x.to(int64), index, src.to(int64), dim=dim).to(bool_)
    ids = index.reshape(index.numel())
    rows = apply(TABLE["index_add"], _rows_first(x, dim), ids, _source_rows(src, index, dim), dim=0)
    return _rows_back(rows, x.shape, dim)


def _index_copy(x, index, src, *, dim):
    size, count = x.shape[dim], index.numel()
    ids = index.reshape(count)
    if not count:
        return x
    names = eq(iota(size, x.device, int64).reshape(size, 1), ids.reshape(1, count))
    last = where(names, iota(count, x.device, int64).reshape(1, count), -1).amax(1)
    written = apply(TABLE["take"], _source_rows(src, index, dim), last.clamp(min=0), dim=0)
    rows = where(ge(last, 0).reshape(size, 1), written, _rows_first(x, dim))
    return _rows_back(rows, x.shape, dim)


def _scatter_add(x, index, src, *, dim):
    if x.dtype is bool_:
        return _scatter_add(x.to(int64), index, src.to(int64), dim=dim).to(bool_)
    total, stride = index * 0, 1
    for d in reversed(range(x.ndim)):
        shape = [1] * x.ndim
        shape[d] = index.shape[d]
        along = index if d == dim else iota(index.shape[d], x.device, int64).reshape(*shape)
        total = total + along * stride
        stride *= x.shape[d]
    count = index.numel()
    flat = apply(TABLE["index_add"], x.reshape(x.numel(), 1), total.reshape(count), src.reshape(count, 1), dim=0)
    return flat.reshape(*x.shape)


def _size(shape) -> int:
    total = 1
    for extent in shape:
        total *= extent
    return total


def _expanded(name: str, compose=None) -> Primitive:
    return dataclasses.replace(TABLE[name], compose=compose or _unchanged(TABLE[name]))


def _along(operands: list[ir.Value], held: dict) -> tuple[int, int]:
    return 1, operands[0].type.shape[held["dim"]]


# Which operand is the index, and the extent that it indexes.
_INDEXED = {
    "wrap_index": lambda operands, held: (0, held["size"]),
    **dict.fromkeys(("take", "gather", "index_add", "index_copy", "scatter_add"), _along),
}
_CHECKED = dataclasses.replace(TABLE["wrap_index"], compose=_checked)
_EXPANDED = {
    "wrap_index": _expanded("wrap_index", lambda index, *, size: index),
    "take": _expanded("take"),
    "gather": _expanded("gather"),
    "index_add": _expanded("index_add", _index_add),
    "index_copy": _expanded("index_copy", _index_copy),
    "scatter_add": _expanded("scatter_add", _scatter_add),
}
