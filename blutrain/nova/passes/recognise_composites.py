"""Linear + cross-entropy whose logits nobody else reads becomes one operation, forward and backward together.

    %logits = "nova.linear"(%x, %w) : (tensor<8192x64xf32>, tensor<50304x64xf32>) -> tensor<8192x50304xf32>
    %loss, %lse = "nova.cross_entropy"(%logits, %target) {ignore_index = -100, label_smoothing = 0.0, reduction =
    "mean"} : ... %g = "nova.cross_entropy_backward"(%grad, %logits, %target, %lse) {...} : ... %dx, %dw =
    "nova.linear_backward"(%g, %x, %w) {needs = [true, true, false]} : ...

becomes

    %loss, %dx, %dw = "nova.linear_ce"(%x, %w, %target, %grad) {has_bias = false, needs = [true, true, false],
        ignore_index = -100, label_smoothing = 0.0, reduction = "mean"} : ...

so that a target may compute it without ever holding all logits (CPU: decompose_linear_ce). Reshapes between the four
are looked through. Left alone: logits or logsumexp that something else reads, a gradient that depends on the loss
itself, narrow floats (their per-row losses would be rounded before the mean), and logits too small to matter
(LARGE_BYTES).
"""

from __future__ import annotations

from dataclasses import dataclass

from mlir import ir

from ...tensor.aval import Aval
from ..dialect.graph import Graph, attributes, producer
from . import dce

NAME = "recognise_composites"

# Below this the logits are no burden: one product over all rows is then the faster way.
LARGE_BYTES = 128 << 20


@dataclass
class Match:
    """The operations of one occurrence; `rows` and `drows` are reshapes of logits and of their gradient, where there
    are any.
    """

    linear: ir.Operation
    loss: ir.Operation
    loss_backward: ir.Operation | None
    linear_backward: ir.Operation | None


def run(module: ir.Module, facts) -> None:
    graph = Graph(module)
    for op in graph.operations():
        match = _match(graph, op) if op.name == "nova.cross_entropy" else None
        if match is not None and _hoist_gradient(graph, match):
            _rewrite(graph, match)
    graph.sweep()
    dce.run(module, facts)


def _match(graph: Graph, loss: ir.Operation) -> Match | None:
    """The occurrence around cross_entropy `loss`, or None."""
    logits, lse = loss.operands[0], loss.results[1]
    aval = graph.aval(logits)
    if aval.dtype.is_narrow or aval.size * aval.dtype.itemsize < LARGE_BYTES:
        return None
    linear = producer(_before_reshape(logits), "nova.linear")
    if linear is None:
        return None
    readers = _readers(linear.result)
    backward = [op for op in readers if op.name == "nova.cross_entropy_backward"]
    if len(backward) > 1 or any(op not in (loss, *backward) for op in readers):
        return None
    if any(op not in backward for op in _readers(lse)):
        return None
    if not backward:
        return Match(linear, loss, None, None)
    gradient_readers = _readers(backward[0].result)
    if len(gradient_readers) != 1 or gradient_readers[0].name != "nova.linear_backward":
        return None
    linear_backward = gradient_readers[0]
    if list(linear_backward.operands)[1:] != list(linear.operands)[:2]:
        return None
    same = list(backward[0].operands)[2:] == [loss.operands[1], lse] and attributes(backward[0]) == attributes(loss)
    return Match(linear, loss, backward[0], linear_backward) if same else None


def _before_reshape(value: ir.Value) -> ir.Value:
    while (op := producer(value, "nova.reshape")) is not None:
        value = op.operands[0]
    return value


def _readers(value: ir.Value) -> list[ir.Operation]:
    """The operations that read `value`, those behind reshapes instead of the reshapes, each once."""
    found: dict[ir.Operation, None] = {}
    for use in value.uses:
        op = use.owner.operation
        if op.name == "nova.reshape":
            found.update(dict.fromkeys(_readers(op.result)))
        else:
            found[op] = None
    return list(found)


def _hoist_gradient(graph: Graph, match: Match) -> bool:
    """Move what computes the loss's incoming gradient in front of the loss. False if it depends on the loss."""
    if match.loss_backward is None:
        return True
    order = {op: i for i, op in enumerate(graph.operations())}
    place, pending, moved = order[match.loss], [match.loss_backward.operands[0]], []
    while pending:
        owner = pending.pop().owner
        if isinstance(owner, ir.Block) or order[owner.operation] < place:
            continue
        if owner.operation == match.loss:
            return False
        moved.append(owner.operation)
        pending.extend(owner.operands)
    for op in sorted(set(moved), key=order.__getitem__):
        op.move_before(match.loss)
    return True


def _rewrite(graph: Graph, match: Match) -> None:
    x, w, *bias = match.linear.operands
    target = match.loss.operands[1]
    needs = attributes(match.linear_backward)["needs"] if match.linear_backward else (False, False, False)
    gradient = [match.loss_backward.operands[0]] if match.loss_backward else []
    matrix = _as_matrix(graph.aval(x))
    attrs = {**attributes(match.loss), "has_bias": bool(bias), "needs": needs}
    weight = graph.aval(w)
    wanted = [a for a, need in zip((matrix, weight, Aval(weight.shape[:1], weight.dtype)), needs, strict=True) if need]
    with ir.InsertionPoint(match.loss), match.loss.location:
        rows = _reshape(graph, x, matrix)
        results = [graph.aval(match.loss.results[0]), *wanted]
        op = graph.create("linear_ce", [rows, w, *bias, target, *gradient], results, attrs)
        loss, *gradients = op.results
        if needs[0]:
            gradients[0] = _reshape(graph, gradients[0], graph.aval(x))
    if match.linear_backward is not None:
        graph.replace(match.linear_backward, gradients)
    match.loss.results[0].replace_all_uses_with(loss)


def _as_matrix(aval: Aval) -> Aval:
    rows = 1
    for extent in aval.shape[:-1]:
        rows *= extent
    return Aval((rows, aval.shape[-1]), aval.dtype)


def _reshape(graph: Graph, value: ir.Value, aval: Aval) -> ir.Value:
    if graph.aval(value).shape == aval.shape:
        return value
    return graph.create("reshape", [value], [aval], {"shape": aval.shape}).result
