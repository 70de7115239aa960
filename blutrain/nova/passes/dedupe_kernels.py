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
    step.func.attributes["nova.kernels"] = ir.DenseI64ArrayAttr.get(kernel_numbers(step, kernels_of(step)))


def kernels_of(step: Graph) -> list[ir.Operation]:
    """All launches of kernels, in order."""
    return [op for op in step.operations() if op.name == "nova.kernel"]


def kernel_numbers(step: Graph, kernels: list[ir.Operation]) -> list[int]:
    """The number of each launch's kernel: those that this pass left, or found now."""
    if "nova.kernels" in step.func.attributes:
        return list(ir.DenseI64ArrayAttr(step.func.attributes["nova.kernels"]))
    numbers: dict[str, int] = {}
    return [numbers.setdefault(kernel_text(op), len(numbers)) for op in kernels]


def distinct_kernels(module: ir.Module) -> list[ir.Operation]:
    """The first launch of every distinct kernel, in the order of their numbers."""
    step = Graph(module)
    kernels = kernels_of(step)
    return first_launches(kernels, kernel_numbers(step, kernels))


def first_launches(kernels: list[ir.Operation], numbers: list[int]) -> list[ir.Operation]:
    """Of every number, in order, the first of the launches that have it."""
    first = dict(reversed(list(zip(numbers, kernels, strict=True))))
    return [first[number] for number in range(len(first))]
