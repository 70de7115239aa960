"""Opt-in (`precision="bf16"`): what a product hands to an activation is stored in bf16.

    %0 = "nova.linear"(%x, %w, %b) : ... -> tensor<4x8xf32>
    %1 = "nova.gelu"(%0) {approximate = "tanh"} : ...
    ... %9 = "nova.gelu_backward"(%8, %0) {approximate = "tanh"} : ...

becomes

    %0 = "nova.linear"(%x, %w, %b) : ... -> tensor<4x8xf32>
    %1 = "nova.cast"(%0) {dtype = bf16} : ...
    %2 = "nova.cast"(%1) {dtype = f32} : ...
    %3 = "nova.gelu"(%2) {approximate = "tanh"} : ...
    ... %9 = "nova.gelu_backward"(%8, %2) {approximate = "tanh"} : ...

Kept for the backward, it is the largest tensor of a layer; here it takes half the memory. Everything is still computed
in f32. Left alone: values that anything else reads (residual sums, norms), and f64.
"""

from __future__ import annotations

from mlir import ir

from ...tensor.dtype import bfloat16, float32
from ...tensor.primitive import TABLE, Scalar
from ..dialect.graph import Graph, attributes
from .template import template_of

NAME = "narrow_saved"
_PRODUCTS = ("nova.linear", "nova.matmul")
_BACKWARD = "_backward"


def run(module: ir.Module, facts) -> None:
    graph = Graph(module)
    for op in graph.operations():
        if op.name not in _PRODUCTS or graph.aval(op.result).dtype is not float32:
            continue
        readers = [use.owner.operation for use in op.result.uses]
        if not any(r.name.endswith(_BACKWARD) for r in readers) or not all(_is_activation(graph, r) for r in readers):
            continue
        uses = [(use.owner.operation, use.operand_number) for use in op.result.uses]
        with ir.InsertionPoint(uses_begin(graph, op)), op.location:
            rounded = graph.cast(graph.cast(op.result, bfloat16), float32)
        for reader, number in uses:
            reader.operands[number] = rounded


def uses_begin(graph: Graph, op: ir.Operation) -> ir.Operation:
    """The operation behind `op`."""
    operations = graph.operations()
    return operations[operations.index(op) + 1]


def _is_activation(graph: Graph, op: ir.Operation) -> bool:
    """Whether `op` is an elementwise composite that has a backward of its own, or such a backward."""
    name = op.name.removeprefix("nova.")
    forward = name.removesuffix(_BACKWARD)
    prim = TABLE.get(name)
    if prim is None or prim.compose is None or forward not in TABLE or forward + _BACKWARD not in TABLE:
        return False
    template = template_of(prim, tuple(graph.aval(v) for v in op.operands), attributes(op))
    return all(isinstance(step.prim.nova, Scalar) or step.prim.name == "cast" for step in template.steps)
