"""Composites become the simple primitives that their records' `compose` says they mean, on the composite's user line.

    %0 = "nova.relu"(%arg0) : (tensor<4xf32>) -> tensor<4xf32>

becomes

    %0 = "nova.constant"() {value = 0.0 : f32} : () -> tensor<f32>
    %1 = "nova.lt"(%arg0, %0) : (tensor<4xf32>, tensor<f32>) -> tensor<4xi1>
    %2 = "nova.where"(%1, %0, %arg0) : (tensor<4xi1>, tensor<f32>, tensor<4xf32>) -> tensor<4xf32>

`compose` runs on tensors without values (template.py), once for every distinct composite: twelve equal layers are one
run. Equal steps inside one composite are merged there. Python numbers stay float64 until they meet a tensor, as in the
eager rule. An operation with the attribute nova.checked brings none of its value checks: they were made before.
"""

from __future__ import annotations

import dataclasses

from mlir import ir

from ...tensor.primitive import TABLE
from ..dialect.graph import Graph, attributes
from .template import Template, template_of

NAME = "decompose_composites"
CHECKED = "nova.checked"


def run(module: ir.Module, facts) -> None:
    graph = Graph(module)
    for op in graph.operations():
        prim = TABLE.get(op.name.removeprefix("nova."))
        if prim is None or prim.compose is None:
            continue
        operands = list(op.operands)
        template = template_of(prim, tuple(graph.aval(v) for v in operands), attributes(op))
        if CHECKED in op.attributes:
            steps = tuple(step for step in template.steps if step.prim.name != "check")
            template = dataclasses.replace(template, steps=steps)
        with ir.InsertionPoint(op), op.location:
            graph.replace(op, splice(graph, template, operands))
    graph.sweep()
    graph.number_checks()


def splice(graph: Graph, template: Template, operands: list[ir.Value]) -> list[ir.Value]:
    """Create the steps of `template` at the insertion point; returns its results."""
    values = list(operands)
    for step in template.steps:
        items = [values[x] if isinstance(x, int) else x.value for x in step.operands]
        attrs = {**step.attrs, "index": 0} if step.prim.name == "check" else step.attrs
        op = graph.create(step.prim.name, graph.as_operands(step.prim, items), step.results, attrs)
        values.extend(op.results)
    return [values[i] for i in template.outputs]
