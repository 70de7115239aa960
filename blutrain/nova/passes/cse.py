"""Common subexpressions: of two operations with the same name, operands, attributes and result types the second goes.

    %0 = "nova.exp"(%arg0) : (tensor<4xf32>) -> tensor<4xf32>
    %1 = "nova.exp"(%arg0) : (tensor<4xf32>) -> tensor<4xf32>
    %2 = "nova.add"(%0, %1) : ...

becomes

    %0 = "nova.exp"(%arg0) : (tensor<4xf32>) -> tensor<4xf32>
    %1 = "nova.add"(%0, %0) : ...

Every operation of a step is a pure function of its operands (random numbers have key and draw number as operands),
except assigns and checks, which stay. It runs before composites are decomposed: afterwards it would merge parts of a
backward with parts of the forward, and what costs little to compute twice would be kept in memory from one to the
other.
"""

from __future__ import annotations

from mlir import ir

from ..dialect.graph import Graph, has_effect

NAME = "cse"


def run(module: ir.Module, facts) -> None:
    graph = Graph(module)
    seen: dict[tuple, ir.Operation] = {}
    for op in graph.operations():
        if has_effect(op):
            continue
        first = seen.setdefault(operation_key(op), op)
        if first is not op:
            graph.replace(op, first.results)
    graph.sweep()


def operation_key(op: ir.Operation) -> tuple:
    """Equal for operations that compute the same."""
    attributes = op.attributes
    return (
        op.name,
        tuple(op.operands),
        tuple((name, attributes[name]) for name in attributes),
        tuple(r.type for r in op.results),
    )
