"""fuse_scatter: a table's sums and the one element-wise kernel that reads them are one kernel.

Before: the gradient of an embedding goes to memory, and its optimizer's update reads it.

    %0 = "nova.kernel"(%ids, %rows) ({
      %g = "nova.scatter_add"(%i, %r) : (tensor<8xi64>, tensor<8x4xf32>) -> tensor<9x4xf32>
      "nova.yield"(%g)
    }) {aliases = array<i64: -1>, anchor = "scatter"}
    %1 = "nova.kernel"(%p, %0) ({
      %n = linalg.generic {...} ins(%q, %h : tensor<9x4xf32>, tensor<9x4xf32>) ...
      "nova.yield"(%n)
    }) {aliases = array<i64: -1>, anchor = "map"}

After: the update is made where the sums are.

    %1 = "nova.kernel"(%ids, %rows, %p) ({
      %g = "nova.scatter_add"(%i, %r) : (tensor<8xi64>, tensor<8x4xf32>) -> tensor<9x4xf32>
      %n = linalg.generic {...} ins(%q, %g : tensor<9x4xf32>, tensor<9x4xf32>) ...
      "nova.yield"(%n)
    }) {aliases = array<i64: -1>, anchor = "scatter"}

A table that somebody else reads too (the norm that clips, a bucket of gradients, an output) stays one of its own, and so
does what the target's generators would not take as one kernel.
"""

from __future__ import annotations

from mlir import ir

from ..capabilities import generators
from ..dialect.graph import Graph
from .form_kernels_skip import SKIP
from .join_kernels import join

NAME = "fuse_scatter"


def run(module: ir.Module, facts) -> None:
    """See the module."""
    graph, target, fused_ones = Graph(module), generators(facts), []
    for scatter in graph.operations():
        reader = _only_reader(scatter)
        if reader is None:
            continue
        fused = join([scatter, reader], [reader], place=reader)
        if target.supports(fused) is not None:
            fused.erase()
            continue
        graph.replace(reader, list(fused.results))
        fused_ones.append(scatter)
    graph.sweep()
    for scatter in fused_ones:
        scatter.erase()


def _anchor(op: ir.Operation) -> str:
    """The anchor of a kernel that always runs, "" for everything else."""
    always_runs = op.name == "nova.kernel" and SKIP not in op.attributes
    return ir.StringAttr(op.attributes["anchor"]).value if always_runs else ""


def _only_reader(scatter: ir.Operation) -> ir.Operation | None:
    """The map kernel that alone reads the table of a scatter kernel."""
    if _anchor(scatter) != "scatter" or len(scatter.results) != 1:
        return None
    uses = list(scatter.results[0].uses)
    reader = uses[0].owner.operation if len(uses) == 1 else None
    return reader if reader is not None and _anchor(reader) == "map" else None
