"""dedupe_kernels: kernels with one text are one kernel; the step launches it many times.

Before: twelve equal layers, twelve kernels of each kind.

After: the function says which of the distinct kernels each launch runs, numbered by first appearance.

    func.func @step(...) attributes {nova.kernels = array<i64: 0, 1, 2, 1, 2, ...>, ...}

Locations, names of values and places in memory are no part of a kernel's text.
"""

from __future__ import annotations

from mlir import ir

from ..dialect.graph import Graph
from ..kernel import kernel_text

NAME = "dedupe_kernels"


def run(module: ir.Module, facts) -> None:
    """See the module."""
    step = Graph(module)
    numbers: dict[str, int] = {}
    launches = [
        numbers.setdefault(kernel_text(op), len(numbers)) for op in step.operations() if op.name == "nova.kernel"
    ]
    step.func.attributes["nova.kernels"] = ir.DenseI64ArrayAttr.get(launches)


def distinct_kernels(module: ir.Module) -> list[ir.Operation]:
    """The first launch of every distinct kernel, in the order of their numbers."""
    step = Graph(module)
    launches = tuple(ir.DenseI64ArrayAttr(step.func.attributes["nova.kernels"]))
    kernels = [op for op in step.operations() if op.name == "nova.kernel"]
    first = dict(reversed(list(zip(launches, kernels, strict=True))))
    return [first[number] for number in range(len(first))]
