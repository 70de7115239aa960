"""Opt-in (`precision="bf16"`): the operands of matrix products are rounded to bf16; everything else stays as it is.

    %0 = "nova.transpose"(%arg1) {perm = array<i64: 1, 0>} : (tensor<2x8xf32>) -> tensor<8x2xf32>
    %1 = "nova.matmul"(%arg0, %0) : (tensor<4x8xf32>, tensor<8x2xf32>) -> tensor<4x2xf32>

becomes

    %0 = "nova.cast"(%arg0) {dtype = bf16} : (tensor<4x8xf32>) -> tensor<4x8xbf16>
    %1 = "nova.cast"(%0) {dtype = f32} : (tensor<4x8xbf16>) -> tensor<4x8xf32>
    %2 = "nova.cast"(%arg1) {dtype = bf16} : (tensor<2x8xf32>) -> tensor<2x8xbf16>
    %3 = "nova.transpose"(%2) {perm = array<i64: 1, 0>} : (tensor<2x8xbf16>) -> tensor<8x2xbf16>
    %4 = "nova.cast"(%3) {dtype = f32} : (tensor<8x2xbf16>) -> tensor<8x2xf32>
    %5 = "nova.matmul"(%1, %4) : (tensor<4x8xf32>, tensor<8x2xf32>) -> tensor<4x2xf32>

The product is exact in f32 and accumulates there: that is what a matrix unit with bf16 operands computes, so kernels
drop the casts back and read the bf16 tensors. Accumulators, elementwise operations, norms, the loss and the master
weights stay f32. A tensor that several products read, through whatever views, is rounded once, and what is rounded
already is not rounded again. Products of f64 and of integers are left alone.
"""

from __future__ import annotations

from mlir import ir

from ...tensor.aval import Aval
from ...tensor.dtype import bfloat16, float32
from ...tensor.primitive import TABLE, Indexing
from ..dialect.graph import Graph, attributes, producer

NAME = "mixed_precision"
# Views that only rearrange: as many elements as their operand, or fewer.
_VIEWS = frozenset(("reshape", "transpose", "slice", "flip"))


def run(module: ir.Module, facts) -> None:
    graph = Graph(module)
    narrow: dict[ir.Value, ir.Value] = {}
    wide: dict[ir.Value, ir.Value] = {}
    for op in graph.operations():
        if op.name != "nova.matmul" or graph.aval(op.result).dtype is not float32:
            continue
        for i, operand in enumerate(list(op.operands)):
            with ir.InsertionPoint(op), op.location:
                rounded = _rounded(graph, operand, narrow)
                if rounded not in wide:
                    wide[rounded] = graph.cast(rounded, float32)
            op.operands[i] = wide[rounded]


def _rounded(graph: Graph, value: ir.Value, known: dict[ir.Value, ir.Value]) -> ir.Value:
    """`value` in bf16: the views that lead to it, of the rounded tensor behind them."""
    if value in known:
        return known[value]
    owner = None if isinstance(value.owner, ir.Block) else value.owner.operation
    cast = producer(value, "nova.cast")
    if cast is not None and graph.aval(cast.operands[0]).dtype is bfloat16:
        found = cast.operands[0]
    elif owner is not None and _is_view(owner):
        behind = _rounded(graph, owner.operands[0], known)
        shape = Aval(graph.aval(value).shape, bfloat16)
        found = graph.create(owner.name.removeprefix("nova."), [behind], [shape], attributes(owner)).result
    else:
        found = graph.cast(value, bfloat16)
    known[value] = found
    return found


def _is_view(op: ir.Operation) -> bool:
    prim = TABLE.get(op.name.removeprefix("nova."))
    return prim is not None and isinstance(prim.nova, Indexing) and prim.nova.rule in _VIEWS
