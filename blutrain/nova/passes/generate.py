"""generate: code for every distinct kernel.

Before: kernels in linalg, each with its schedule.

After: the same, and what the generators made of them in a list on the function; the code itself is kept by text in
memory (`generated`).

    func.func @step(...) attributes {nova.generated = [{bytes = 98304, flops = 16384, predicted_us = 1.7, symbols =
    ["map_..._run"]}, ...]}
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

from mlir import ir

from ..capabilities import generators
from ..dialect.graph import Graph
from ..kernel import GeneratedKernel, kernel_text
from .dedupe_kernels import distinct_kernels
from .kernel_jobs import ask

if TYPE_CHECKING:
    from ..gpu.kernel import GpuKernel

NAME = "generate"
_CAPACITY = 4096
_known: OrderedDict[tuple, GeneratedKernel | GpuKernel] = OrderedDict()


def run(module: ir.Module, facts) -> None:
    """See the module. Errors: NovaError from a generator that refuses a kernel."""
    kernels = distinct_kernels(module)
    missing = {key: op for op in kernels if (key := (kernel_text(op), facts)) not in _known}
    for key, code in zip(missing, ask(code_of, list(missing.values()), facts), strict=True):
        _remember(key, code)
    made = [generated(op, facts) for op in kernels]
    Graph(module).func.attributes["nova.generated"] = ir.ArrayAttr.get([_summary(kernel) for kernel in made])


def generated(op: ir.Operation, facts) -> GeneratedKernel | GpuKernel:
    """The code of a kernel, made once for equal text and facts."""
    key = (kernel_text(op), facts)
    return _known[key] if key in _known else _remember(key, code_of(op, facts))


def code_of(op: ir.Operation, facts) -> GeneratedKernel | GpuKernel:
    """What the target's generators make of a kernel. Errors: NovaError where they refuse it."""
    return generators(facts).generate(op)


def _remember(key: tuple, code: GeneratedKernel | GpuKernel) -> GeneratedKernel | GpuKernel:
    _known[key] = code
    if len(_known) > _CAPACITY:
        _known.popitem(last=False)
    return code


def _summary(kernel: GeneratedKernel | GpuKernel) -> ir.Attribute:
    i64 = ir.IntegerType.get_signless(64)
    return ir.DictAttr.get(
        {
            "bytes": ir.IntegerAttr.get(i64, kernel.bytes),
            "flops": ir.IntegerAttr.get(i64, kernel.flops),
            "predicted_us": ir.FloatAttr.get(ir.F64Type.get(), kernel.predicted_us),
            "symbols": ir.ArrayAttr.get([ir.StringAttr.get(phase.symbol) for phase in kernel.phases]),
        }
    )
