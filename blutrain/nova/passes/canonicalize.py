"""Local simplifications, each of them exact: the step computes the same bits (a NaN stays a NaN).

    %0 = "nova.constant"() {value = 1.0 : f32} : () -> tensor<f32>
    %1 = "nova.mul"(%arg0, %0) : (tensor<4x8xf32>, tensor<f32>) -> tensor<4x8xf32>
    %2 = "nova.transpose"(%1) {perm = array<i64: 1, 0>} : (tensor<4x8xf32>) -> tensor<8x4xf32>
    %3 = "nova.transpose"(%2) {perm = array<i64: 1, 0>} : (tensor<8x4xf32>) -> tensor<4x8xf32>
    %4 = "nova.exp"(%3) : (tensor<4x8xf32>) -> tensor<4x8xf32>

becomes

    %0 = "nova.exp"(%arg0) : (tensor<4x8xf32>) -> tensor<4x8xf32>

Rules stand with what they are about: canonicalize_movement.py (reshapes, transposes, reductions over nothing),
canonicalize_arithmetic.py (casts, neutral elements, constants). A rule returns a value to use instead of the
operation's result, or None. Operands are simplified before their users, and what a rule creates is simplified in turn,
so one walk suffices.
"""

from __future__ import annotations

from mlir import ir

from ..dialect.graph import EFFECTS, Graph
from . import dce
from .canonicalize_arithmetic import rules_for as arithmetic_rules
from .canonicalize_movement import rules_for as movement_rules

NAME = "canonicalize"


def run(module: ir.Module, facts) -> None:
    graph = Graph(module)
    rules: dict[str, tuple] = {}
    for op in graph.operations():
        simplify(graph, op, rules)
    graph.sweep()
    dce.run(module, facts)


def simplify(graph: Graph, op: ir.Operation, rules: dict[str, tuple]) -> None:
    """Apply rules to `op`, then to what stands in its place, until none fits. `rules` remembers the rules of each
    name.
    """
    while op is not None and op.name not in EFFECTS:
        found = rules.get(op.name)
        if found is None:
            found = rules[op.name] = (*movement_rules(op.name), *arithmetic_rules(op.name))
        op = _apply(graph, op, found)


def _apply(graph: Graph, op: ir.Operation, rules: tuple) -> ir.Operation | None:
    """The operation the first fitting rule puts in place of `op`; None if none fits or an argument stands there."""
    for rule in rules:
        with ir.InsertionPoint(op), op.location:
            value = rule(graph, op)
        if value is not None:
            graph.replace(op, [value])
            owner = value.owner
            return None if isinstance(owner, ir.Block) else owner.operation
    return None
