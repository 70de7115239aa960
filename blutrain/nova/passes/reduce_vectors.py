"""reduce_vectors: a product of a matrix and a vector becomes a sum of elementwise products.

Such a product is as fast as its matrix can be read: packing that for tiles would read it twice. Row and column kernels
read it once, on all cores, and what is done with the result is done there. An outer product is a map.

Before:

    %1 = "nova.transpose"(%w) {perm = array<i64: 1, 0>} : (tensor<8x4xf32>) -> tensor<4x8xf32>
    %2 = "nova.matmul"(%x, %1) : (tensor<1x4xf32>, tensor<4x8xf32>) -> tensor<1x8xf32>

After:

    %2 = "nova.reshape"(%x) : tensor<1x1x4xf32>
    %3 = "nova.reshape"(%w) : tensor<1x8x4xf32>
    %4 = "nova.mul"(%2, %3) : tensor<1x8x4xf32>
    %5 = "nova.sum"(%4) {dims = array<i64: 2>} : tensor<1x8xf32>

Not on targets whose units multiply matrices faster than they read memory (`Capabilities.vector_sums`).
"""

from __future__ import annotations

import dataclasses

from mlir import ir

from ...tensor.dtype import compute_dtype
from ...tensor.ops import reduce
from ...tensor.primitive import TABLE
from ..capabilities import capabilities
from ..dialect.graph import Graph, attributes
from .decompose_composites import splice
from .template import template_of

NAME = "reduce_vectors"


def run(module: ir.Module, facts) -> None:
    """See the module."""
    if not capabilities(facts).vector_sums:
        return
    graph = Graph(module)
    for op in graph.operations():
        if op.name != "nova.matmul":
            continue
        operands = list(op.operands)
        avals = tuple(graph.aval(v) for v in operands)
        (*_, m, k), n = avals[0].shape, avals[1].shape[-1]
        if min(m, n, k) == 1 and avals[0].dtype.is_floating:
            with ir.InsertionPoint(op), op.location:
                graph.replace(op, splice(graph, template_of(_MATMUL, avals, attributes(op)), operands))
    graph.sweep()


def _product(x, y):
    """Narrow floats are summed in f32 and rounded once."""
    dtype = x.dtype
    x, y = (v.to(compute_dtype(dtype)) for v in (x, y))
    terms = x.unsqueeze(-2) * y.transpose(-1, -2).unsqueeze(-3)
    return reduce.sum(terms, -1).to(dtype)


_MATMUL = dataclasses.replace(TABLE["matmul"], compose=_product)
