"""Opt-in (`precision="bf16"`): what a product hands to an activation, or its gradient to a norm, is stored in bf16.

    %0 = "nova.linear"(%x, %w, %b) : ... -> tensor<4x8xf32>
    %1 = "nova.gelu"(%0) {approximate = "tanh"} : ...
    ... %9 = "nova.gelu_backward"(%8, %0) {approximate = "tanh"} : ...

becomes

    %0 = "nova.linear"(%x, %w, %b) : ... -> tensor<4x8xf32>
    %1 = "nova.cast"(%0) {dtype = bf16} : ...
    %2 = "nova.cast"(%1) {dtype = f32} : ...
    %3 = "nova.gelu"(%2) {approximate = "tanh"} : ...
    ... %9 = "nova.gelu_backward"(%8, %2) {approximate = "tanh"} : ...

Kept for the backward, it is the largest tensor of a layer; here it takes half the memory. Likewise the gradient of a
product's operand (`nova.linear_backward`) that backwards of norms alone read: it is as long as a row, so it goes through
memory. The operand was rounded to bf16, and autocast rounds the gradient of what it rounds, too. Everything is still
computed in f32. Left alone: values that anything else reads (residual sums, norms), and f64.
"""

from __future__ import annotations

from mlir import ir

from ...tensor.dtype import bfloat16, float32
from ...tensor.primitive import TABLE, Scalar
from ..dialect.graph import Graph, attributes
from .template import template_of

NAME = "narrow_saved"
_PRODUCTS = ("nova.linear", "nova.matmul")
_GRADIENTS = "nova.linear_backward"
_NORM_BACKWARDS = frozenset(("nova.layer_norm_backward", "nova.rms_norm_backward"))
_BACKWARD = "_backward"


def run(module: ir.Module, facts) -> None:
    graph = Graph(module)
    for op in graph.operations():
        if op.name in _PRODUCTS and _feeds_activations(graph, op):
            _round(graph, op.result)
        elif op.name == _GRADIENTS and _feeds_norms(graph, op):
            _round(graph, _split(graph, op).results[0])
    graph.sweep()


def _feeds_activations(graph: Graph, op: ir.Operation) -> bool:
    readers = [use.owner.operation for use in op.result.uses]
    is_saved = any(reader.name.endswith(_BACKWARD) for reader in readers)
    return _is_f32(graph, op) and is_saved and all(_is_activation(graph, reader) for reader in readers)


def _feeds_norms(graph: Graph, op: ir.Operation) -> bool:
    readers = [use.owner.operation.name for use in op.results[0].uses]
    return attributes(op)["needs"][0] and _is_f32(graph, op) and bool(readers) and set(readers) <= _NORM_BACKWARDS


def _is_f32(graph: Graph, op: ir.Operation) -> bool:
    return graph.aval(op.results[0]).dtype is float32


def _split(graph: Graph, op: ir.Operation) -> ir.Operation:
    """The gradient of the operand on its own, in front of the others: its rounding waits for none of them."""
    needs = attributes(op)["needs"]
    if not any(needs[1:]):
        return op
    operands, avals = list(op.operands), [graph.aval(result) for result in op.results]
    name = _GRADIENTS.removeprefix("nova.")
    with ir.InsertionPoint(op), op.location:
        first = graph.create(name, operands, avals[:1], {"needs": (True, False, False)})
        rest = graph.create(name, operands, avals[1:], {"needs": (False, *needs[1:])})
    graph.replace(op, [*first.results, *rest.results])
    return first


def _round(graph: Graph, value: ir.Value) -> None:
    """What reads `value` reads it rounded to bf16."""
    uses = [(use.owner.operation, use.operand_number) for use in value.uses]
    operations = graph.operations()
    behind = operations[operations.index(value.owner.operation) + 1]
    with ir.InsertionPoint(behind), value.owner.operation.location:
        rounded = graph.cast(graph.cast(value, bfloat16), float32)
    for reader, number in uses:
        reader.operands[number] = rounded


def _is_activation(graph: Graph, op: ir.Operation) -> bool:
    """Whether `op` is an elementwise composite that has a backward of its own, or such a backward."""
    name = op.name.removeprefix("nova.")
    forward = name.removesuffix(_BACKWARD)
    prim = TABLE.get(name)
    if prim is None or prim.compose is None or forward not in TABLE or forward + _BACKWARD not in TABLE:
        return False
    template = template_of(prim, tuple(graph.aval(v) for v in op.operands), attributes(op))
    return all(isinstance(step.prim.nova, Scalar) or step.prim.name == "cast" for step in template.steps)
