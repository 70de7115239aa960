"""Dead code: operations whose results nobody reads go.

    %0 = "nova.exp"(%arg0) : (tensor<4xf32>) -> tensor<4xf32>
    %1 = "nova.neg"(%arg0) : (tensor<4xf32>) -> tensor<4xf32>
    return %1

becomes

    %0 = "nova.neg"(%arg0) : (tensor<4xf32>) -> tensor<4xf32>
    return %0

Outputs, assigns and checks keep what they need alive. Arguments stay: they are the program's interface.
"""

from __future__ import annotations

from mlir import ir

from ..dialect.graph import Graph, has_effect

NAME = "dce"


def run(module: ir.Module, facts) -> None:
    live: set[ir.Value] = set()
    dead: list[ir.Operation] = []
    for op in reversed(Graph(module).operations()):
        if has_effect(op) or any(r in live for r in op.results):
            live.update(op.operands)
        else:
            dead.append(op)
    for op in dead:
        op.erase()
