"""Rules of canonicalize about movement and reductions: what moves nothing goes, movements of one kind in a row become
one.
"""

from __future__ import annotations

from mlir import ir

from ...tensor.aval import Aval
from ...tensor.primitive import TABLE, Indexing, Reduction
from ..dialect.graph import Graph, attributes, constant_value, producer


def rules_for(name: str) -> tuple:
    """The rules for operations called `name` (with the prefix nova.)."""
    prim = TABLE.get(name.removeprefix("nova."))
    if prim is None:
        return ()
    if isinstance(prim.nova, Indexing):
        return (_no_movement, _of_splat, *_RULES.get(prim.nova.rule, ()))
    if isinstance(prim.nova, Reduction) and not prim.nova.combiner.startswith("arg"):
        return (_reduction_of_one,)
    return ()


def _no_movement(graph: Graph, op: ir.Operation) -> ir.Value | None:
    """A movement that gives every element its own place: same shape, identity permutation, a slice of everything,
    padding by nothing.
    """
    if len(op.operands) != 1 or op.operands[0].type != op.result.type:
        return None
    rule = TABLE[op.name.removeprefix("nova.")].nova.rule
    attrs = attributes(op)
    shape = graph.aval(op.result).shape
    stays = {
        "transpose": lambda: all(d == p or (shape[d] == 1 and shape[p] == 1) for d, p in enumerate(attrs["perm"])),
        "slice": lambda: all(step == 1 or extent <= 1 for step, extent in zip(attrs["steps"], shape, strict=True)),
        "flip": lambda: all(shape[d] <= 1 for d in attrs["dims"]),
    }
    return (
        op.operands[0] if rule in ("reshape", "expand", "pad", "concat") or (rule in stays and stays[rule]()) else None
    )


def _of_splat(graph: Graph, op: ir.Operation) -> ir.Value | None:
    """Moving the elements of a splat constant gives a splat constant."""
    rule = TABLE[op.name.removeprefix("nova.")].nova.rule
    number = constant_value(op.operands[0]) if len(op.operands) == 1 else None
    if number is None or rule not in ("reshape", "transpose", "expand", "slice", "flip"):
        return None
    aval = graph.aval(op.result)
    return graph.constant(number, aval.dtype, aval.shape)


def _merge_reshapes(graph: Graph, op: ir.Operation) -> ir.Value | None:
    inner = producer(op.operands[0], op.name)
    if inner is None:
        return None
    return graph.create("reshape", inner.operands, [graph.aval(op.result)], attributes(op)).result


def _merge_transposes(graph: Graph, op: ir.Operation) -> ir.Value | None:
    inner = producer(op.operands[0], op.name)
    if inner is None:
        return None
    first, second = attributes(inner)["perm"], attributes(op)["perm"]
    perm = tuple(first[p] for p in second)
    return graph.create("transpose", inner.operands, [graph.aval(op.result)], {"perm": perm}).result


def _merge_expands(graph: Graph, op: ir.Operation) -> ir.Value | None:
    inner = producer(op.operands[0], op.name)
    if inner is None:
        return None
    return graph.create("expand", inner.operands, [graph.aval(op.result)], attributes(op)).result


def _reduction_of_one(graph: Graph, op: ir.Operation) -> ir.Value | None:
    """A sum, product, maximum or minimum over dimensions of extent 1 (or over none) is a reshape."""
    x = graph.aval(op.operands[0])
    result = graph.aval(op.result)
    if x.size != result.size or x.size == 0 or result.dtype is not x.dtype:
        return None
    return graph.create("reshape", op.operands, [Aval(result.shape, x.dtype)], {"shape": result.shape}).result


_RULES = {"reshape": (_merge_reshapes,), "transpose": (_merge_transposes,), "expand": (_merge_expands,)}
