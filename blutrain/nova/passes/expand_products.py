"""expand_products: products of integers become sums of elementwise products; the units that multiply matrices take
floats.

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

from ...tensor.ops import reduce
from ...tensor.primitive import TABLE
from ..dialect.graph import Graph, attributes
from .decompose_composites import splice
from .template import template_of

NAME = "expand_products"


def run(module: ir.Module, facts) -> None:
    """See the module."""
    graph = Graph(module)
    for op in graph.operations():
        if op.name == "nova.matmul" and not graph.aval(op.result).dtype.is_floating:
            operands = list(op.operands)
            template = template_of(_MATMUL, tuple(graph.aval(v) for v in operands), attributes(op))
            with ir.InsertionPoint(op), op.location:
                graph.replace(op, splice(graph, template, operands))
    graph.sweep()


def _product(x, y):
    terms = x.unsqueeze(-2) * y.transpose(-1, -2).unsqueeze(-3)
    return reduce.sum(terms, -1).to(x.dtype)


_MATMUL = dataclasses.replace(TABLE["matmul"], compose=_product)
