"""expand_integers: what kernels do with floats only, said with other operations for integers: products of matrices become
sums of elementwise products, running sums run over int64.

Before:

    %0 = "nova.matmul"(%x, %y) : (tensor<3x4xi32>, tensor<4x5xi32>) -> tensor<3x5xi32>

After (the sum is a reduction that reads x and y where they lie):

    %1 = "nova.reshape"(%x) : tensor<3x1x4xi32>
    %2 = "nova.reshape"(%y.T) : tensor<1x5x4xi32>
    %3 = "nova.mul"(%1, %2) : tensor<3x5x4xi32>
    %4 = "nova.sum"(%3) {dims = array<i64: 2>} : tensor<3x5xi64>
    %5 = "nova.cast"(%4) {dtype = i32} : tensor<3x5xi32>
"""

from __future__ import annotations

import dataclasses

from mlir import ir

from ...tensor.dtype import DType, int64
from ...tensor.ops import reduce
from ...tensor.primitive import TABLE, Primitive
from ..dialect.graph import Graph, attributes
from .decompose_composites import splice
from .template import template_of

NAME = "expand_integers"


def run(module: ir.Module, facts) -> None:
    """See the module."""
    graph = Graph(module)
    for op in graph.operations():
        operands = list(op.operands)
        expanded = _expanded(op.name, graph.aval(operands[0]).dtype) if operands else None
        if expanded is not None:
            template = template_of(expanded, tuple(graph.aval(v) for v in operands), attributes(op))
            with ir.InsertionPoint(op), op.location:
                graph.replace(op, splice(graph, template, operands))
    graph.sweep()


def _expanded(name: str, dtype: DType) -> Primitive | None:
    if name == "nova.matmul" and not dtype.is_floating:
        return _MATMUL
    return _CUMSUM if name == "nova.cumsum" and not (dtype.is_floating or dtype is int64) else None


def _product(x, y):
    terms = x.unsqueeze(-2) * y.transpose(-1, -2).unsqueeze(-3)
    return reduce.sum(terms, -1).to(x.dtype)


_MATMUL = dataclasses.replace(TABLE["matmul"], compose=_product)
_CUMSUM = dataclasses.replace(TABLE["cumsum"], compose=lambda x, *, dim: reduce.cumsum(x.to(int64), dim))
