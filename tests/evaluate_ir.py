"""Evaluates a step of nova IR with NumPy, operation by operation, by the eager rules of the table: what a graph pass
must not change.
"""

from __future__ import annotations

import numpy

from blutrain.nova.dialect.convert import dtype_of
from blutrain.nova.dialect.graph import Graph, attributes
from blutrain.tensor.device import cpu
from blutrain.tensor.dispatch import execute
from blutrain.tensor.primitive import TABLE, Scalar


def evaluate(module, inputs: list) -> tuple[list, dict[int, numpy.ndarray], list[int]]:
    """(outputs, new values of state arguments by number, flags of the checks in order) for arrays or Python numbers
    `inputs`.
    """
    graph = Graph(module)
    values = {}
    for argument, role, x in zip(graph.arguments, graph.roles, inputs, strict=True):
        values[argument] = x if role == "scalar" else numpy.asarray(x)
    updates, flags = {}, []
    for op in graph.operations():
        operands = [values[v] for v in op.operands]
        name = op.name.removeprefix("nova.")
        if op.name == "func.return":
            return operands, updates, flags
        if name == "assign":
            updates[op.operands[0].arg_number] = operands[1]
        elif name == "check":
            flags.append(int(operands[0]))
        elif name == "constant":
            values[op.result] = _constant(op)
        else:
            results = execute(TABLE[name], cpu, _numbers(TABLE[name], operands), attributes(op))
            results = results if isinstance(results, tuple) else (results,)
            for value, result in zip(op.results, results, strict=True):
                values[value] = result
                _check_type(op, value, result)
    raise AssertionError("no func.return")


def _constant(op):
    value = op.attributes["value"].value
    if "nova.weak" in op.attributes:
        return value
    type_ = op.result.type
    return numpy.full(tuple(type_.shape), value, dtype_of(type_.element_type).numpy)


def _numbers(prim, operands):
    """Python numbers among themselves as 0-d arrays: nova computes them in float64 or int64."""
    alone = all(isinstance(x, (bool, int, float)) for x in operands)
    return (
        [numpy.asarray(x) for x in operands]
        if alone and (isinstance(prim.nova, Scalar) or prim.name == "cast")
        else operands
    )


def _check_type(op, value, result):
    shape, dtype = tuple(value.type.shape), dtype_of(value.type.element_type).numpy
    if isinstance(result, (int, float)):
        return
    got = numpy.asarray(result)
    assert (got.shape, got.dtype) == (shape, dtype), f"{op}: eager gives {got.dtype}{list(got.shape)}"
