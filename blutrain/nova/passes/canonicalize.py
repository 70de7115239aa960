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

Equal constants become one, and so does equal arithmetic on run-time numbers (1 - beta1 of fifty parameters).
"""

from __future__ import annotations

from mlir import ir

from ..dialect.graph import Graph, has_effect
from . import dce
from .canonicalize_arithmetic import rules_for as arithmetic_rules
from .canonicalize_movement import rules_for as movement_rules
from .cse import operation_key

NAME = "canonicalize"


def run(module: ir.Module, facts) -> None:
    walk = _Walk(Graph(module))
    for op in walk.graph.operations():
        walk.simplify(op)
    walk.graph.sweep()
    dce.run(module, facts)


class _Walk:
    """The rules of every name met so far, and the numbers: constants and arithmetic on run-time scalars, by what they
    compute.
    """

    def __init__(self, graph: Graph):
        self.graph = graph
        self.rules: dict[str, tuple] = {}
        self.numbers: dict[tuple, ir.Operation] = {}

    def simplify(self, op: ir.Operation | None) -> None:
        """Apply rules to `op`, then to what stands in its place, until none fits."""
        while op is not None and not has_effect(op):
            rules = self.rules.get(op.name)
            if rules is None:
                rules = self.rules[op.name] = (*movement_rules(op.name), *arithmetic_rules(op.name), self._known_number)
            op = self._apply(op, rules)

    def _apply(self, op: ir.Operation, rules: tuple) -> ir.Operation | None:
        """The operation that the first fitting rule puts in place of `op`; None if none fits or an argument stands
        there.
        """
        with ir.InsertionPoint(op), op.location:
            value = next((value for rule in rules if (value := rule(self.graph, op)) is not None), None)
        if value is None:
            return None
        self.graph.replace(op, [value])
        owner = value.owner
        return None if isinstance(owner, ir.Block) else owner.operation

    def _known_number(self, graph: Graph, op: ir.Operation) -> ir.Value | None:
        """The equal number that was computed before `op`."""
        if len(op.results) != 1 or (op.name != "nova.constant" and not self._is_number(op)):
            return None
        first = self.numbers.setdefault(operation_key(op), op)
        return None if first == op else first.result

    def _is_number(self, op: ir.Operation) -> bool:
        operands = op.operands
        return not self.graph.aval(op.result).shape and len(operands) > 0 and all(map(self.graph.is_weak, operands))
