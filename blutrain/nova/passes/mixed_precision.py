"""Opt-in (`precision="bf16"`): the operands of matrix products are rounded to bf16; everything else stays as it is.

    %0 = "nova.matmul"(%arg0, %arg1) : (tensor<4x8xf32>, tensor<8x2xf32>) -> tensor<4x2xf32>

becomes

    %0 = "nova.cast"(%arg0) {dtype = bf16} : (tensor<4x8xf32>) -> tensor<4x8xbf16>
    %1 = "nova.cast"(%0) {dtype = f32} : (tensor<4x8xbf16>) -> tensor<4x8xf32>
    %2 = "nova.cast"(%arg1) {dtype = bf16} : (tensor<8x2xf32>) -> tensor<8x2xbf16>
    %3 = "nova.cast"(%2) {dtype = f32} : (tensor<8x2xbf16>) -> tensor<8x2xf32>
    %4 = "nova.matmul"(%1, %3) : (tensor<4x8xf32>, tensor<8x2xf32>) -> tensor<4x2xf32>

The product is exact in f32 and accumulates there: that is what a matrix unit with bf16 operands computes, so a
generator may drop the casts back and feed it the bf16 tensors. Accumulators, elementwise operations, norms, the loss
and the master weights stay f32. A tensor that several products read is rounded once. Products of f64 and of integers
are left alone.
"""

from __future__ import annotations

from mlir import ir

from ...tensor.aval import Aval
from ...tensor.dtype import bfloat16, float32
from ..dialect.graph import Graph

NAME = "mixed_precision"


def run(module: ir.Module, facts) -> None:
    graph = Graph(module)
    rounded: dict[ir.Value, ir.Value] = {}
    for op in graph.operations():
        if op.name != "nova.matmul" or graph.aval(op.result).dtype is not float32:
            continue
        for i, operand in enumerate(list(op.operands)):
            if operand not in rounded:
                with ir.InsertionPoint(op), op.location:
                    rounded[operand] = _round(graph, operand)
            op.operands[i] = rounded[operand]


def _round(graph: Graph, value: ir.Value) -> ir.Value:
    """`value` through bf16 and back."""
    shape = graph.aval(value).shape
    narrow = graph.create("cast", [value], [Aval(shape, bfloat16)], {"dtype": bfloat16}).result
    return graph.create("cast", [narrow], [Aval(shape, float32)], {"dtype": float32}).result
