"""insert_buckets: gradients that processes average together lie in one flat vector, which is reduced in place.

Before:

    %1:2 = "nova.reduce_bucket"(%g0, %g1) {blocks = 4 : i64, bucket = 3 : i64, offsets = array<i64: 0, 64>,
        reducer = 0 : i64, size = 128 : i64} : (tensor<10xf32>, tensor<8x8xf32>) -> (tensor<10xf32>, tensor<8x8xf32>)

After:

    %2 = "nova.reshape"(%g1) {shape = array<i64: 64>} : (tensor<8x8xf32>) -> tensor<64xf32>
    %3 = "nova.bucket_ready"(%g0, %2) {blocks = 4 : i64, bucket = 3 : i64, offsets = array<i64: 0, 64>,
        primitive = "reduce_bucket", reducer = 0 : i64} : (tensor<10xf32>, tensor<64xf32>) -> tensor<128xf32>
    %4 = "nova.bucket_wait"(%3) : (tensor<128xf32>) -> tensor<128xf32>
    %5 = "nova.slice"(%4) {sizes = array<i64: 10>, starts = array<i64: 0>, steps = array<i64: 1>} : ...
    %6 = "nova.slice"(%4) {sizes = array<i64: 64>, starts = array<i64: 64>, steps = array<i64: 1>} : ...
    %7 = "nova.reshape"(%6) {shape = array<i64: 8, 8>} : (tensor<64xf32>) -> tensor<8x8xf32>

Between kernels all of these are memory: the kernels that make the gradients write them to their places in the vector,
`bucket_ready` and `bucket_wait` become calls of the host program, and the readers of the averages read the vector. The
plan (which gradients, in which order, where) is that of distributed/buckets.py; nothing is decided here. A gradient
that somebody else reads too, or that is no kernel's own result, is copied into the vector. Every other collective of the
table (`primitive.Collective`) has such a vector, too, of which its record says the parts.
"""

from __future__ import annotations

from mlir import ir

from ...tensor.aval import Aval
from ...tensor.primitive import TABLE, Collective
from ..dialect.graph import Graph, attributes

NAME = "insert_buckets"
# What a kernel does not write as a tensor of its own.
_SHARED = ("nova.constant", "nova.full", "nova.slice", "nova.concat", "nova.bucket_ready", "nova.bucket_wait")


def run(module: ir.Module, facts) -> None:
    """See the module."""
    graph = Graph(module)
    for op in graph.operations():
        prim = TABLE.get(op.name.removeprefix("nova."))
        if prim is not None and isinstance(prim.nova, Collective):
            with ir.InsertionPoint(op), op.location:
                graph.replace(op, _reduced(graph, op))
    graph.sweep()


def _reduced(graph: Graph, op: ir.Operation) -> list[ir.Value]:
    """What stands for the results of `op`."""
    name, attrs = op.name.removeprefix("nova."), attributes(op)
    avals = [graph.aval(value) for value in op.operands]
    parts = TABLE[name].nova.parts(avals, attrs)
    kept = {key: value for key, value in attrs.items() if key not in Collective.PLACES}
    vector = Aval((parts.size,), avals[0].dtype)
    operands = [_flat(graph, _own(graph, value)) for value in op.operands]
    ready = graph.create("bucket_ready", operands, [vector], {**kept, "offsets": parts.offsets, "primitive": name})
    done = graph.create("bucket_wait", [ready.result], [vector]).result
    return [_part(graph, done, offset, result) for offset, result in zip(parts.results, op.results, strict=True)]


def _own(graph: Graph, value: ir.Value) -> ir.Value:
    """`value` where a kernel may write it to its place in the vector, else a copy."""
    below = value
    while True:
        maker = below.owner
        if isinstance(maker, ir.Block) or maker.name in _SHARED or len(list(below.uses)) > 1:
            return graph.create("copy", [value], [graph.aval(value)]).result
        if maker.name != "nova.reshape":
            return value
        below = maker.operands[0]


def _flat(graph: Graph, value: ir.Value) -> ir.Value:
    return _reshaped(graph, value, (graph.aval(value).size,))


def _part(graph: Graph, vector: ir.Value, offset: int, like: ir.Value) -> ir.Value:
    aval = graph.aval(like)
    attrs = {"starts": (offset,), "sizes": (aval.size,), "steps": (1,)}
    part = graph.create("slice", [vector], [Aval((aval.size,), aval.dtype)], attrs).result
    return _reshaped(graph, part, aval.shape)


def _reshaped(graph: Graph, value: ir.Value, shape: tuple[int, ...]) -> ir.Value:
    aval = graph.aval(value)
    if aval.shape == shape:
        return value
    return graph.create("reshape", [value], [Aval(shape, aval.dtype)], {"shape": shape}).result
