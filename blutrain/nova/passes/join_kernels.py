"""Several kernels as one: what passes that merge kernels share."""

from __future__ import annotations

from collections.abc import Sequence

from mlir import ir

from ..dialect.definition import TERMINATOR
from .form_kernels_emit import MAX_LINES


def join(kernels: Sequence[ir.Operation], kept: Sequence[ir.Operation], place: ir.Operation) -> ir.Operation:
    """A kernel in front of `place` with the bodies of `kernels`, copied in order, and the results of those `kept`.

    What a kernel reads of an earlier one stays inside. The anchor is the first one's; `kernels` themselves stay.
    """
    inside = {result for kernel in kernels for result in kernel.results}
    operands = list(dict.fromkeys(v for kernel in kernels for v in kernel.operands if v not in inside))
    with ir.InsertionPoint(place), ir.Location.fused(_locations(kernels)):
        joined = ir.Operation.create(
            "nova.kernel",
            results=[result.type for kernel in kept for result in kernel.results],
            operands=operands,
            attributes={
                "anchor": kernels[0].attributes["anchor"],
                "aliases": ir.DenseI64ArrayAttr.get([-1] * sum(len(kernel.results) for kernel in kept)),
            },
            regions=1,
        )
        types = [v.type for v in operands]
        block = joined.regions[0].blocks.append(*types, arg_locs=[ir.Location.unknown()] * len(types))
        known = dict(zip(operands, block.arguments, strict=True))
        for kernel in kernels:
            known.update(zip(kernel.results, _copy_body(kernel, known, block), strict=True))
    with ir.InsertionPoint(block), ir.Location.unknown():
        ir.Operation.create(TERMINATOR, operands=[known[result] for kernel in kept for result in kernel.results])
    return joined


def _locations(kernels: Sequence[ir.Operation]) -> list[ir.Location]:
    found = {str(kernel.location): kernel.location for kernel in kernels}
    return list(found.values())[:MAX_LINES]


def _copy_body(kernel: ir.Operation, known: dict[ir.Value, ir.Value], target: ir.Block) -> list[ir.Value]:
    """A copy of the body at the end of `target`, what is `known` of the kernel's operands in place of its arguments;
    what it yields.
    """
    copy = kernel.clone()
    (block,) = copy.regions[0].blocks
    for argument, operand in zip(block.arguments, kernel.operands, strict=True):
        argument.replace_all_uses_with(known[operand])
    *body, last = [op.operation for op in block.operations]
    for op in body:
        target.append(op)
    yielded = list(last.operands)
    copy.erase()
    return yielded
