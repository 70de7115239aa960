"""generate: code for every distinct kernel.

Before: kernels in linalg, each with its schedule.

After: the same, and what the generators made of them in a list on the function; the code itself is kept by its key in
memory (`generated`).

    func.func @step(...) attributes {nova.generated = [{bytes = 98304, flops = 16384, key = "5f3a...", predicted_us = 1.7,
    symbols = ["map_..._run"]}, ...]}
"""

from __future__ import annotations

import hashlib
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
_known: OrderedDict[str, GeneratedKernel | GpuKernel] = OrderedDict()


def run(module: ir.Module, facts) -> None:
    """See the module. Errors: NovaError from a generator that refuses a kernel."""
    kernels = distinct_kernels(module)
    keys = [code_key(op, facts) for op in kernels]
    missing = {key: op for key, op in zip(keys, kernels, strict=True) if key not in _known}
    for key, code in zip(missing, ask(code_of, list(missing.values()), facts), strict=True):
        remember(key, code)
    summaries = [_summary(key, _known[key]) for key in keys]
    Graph(module).func.attributes["nova.generated"] = ir.ArrayAttr.get(summaries)


def generated(module: ir.Module, facts) -> tuple[GeneratedKernel | GpuKernel, ...]:
    """The code of every distinct kernel of a step that went through this pass."""
    summaries = ir.ArrayAttr(Graph(module).func.attributes["nova.generated"])
    keys = [ir.StringAttr(ir.DictAttr(summary)["key"]).value for summary in summaries]
    if all(key in _known for key in keys):
        return tuple(_known[key] for key in keys)
    return tuple(code_of(op, facts) for op in distinct_kernels(module))


def code_key(op: ir.Operation, facts) -> str:
    """What the code of a kernel depends on, hashed: its text and the facts."""
    return hashlib.sha256(f"{facts}\n{kernel_text(op)}".encode()).hexdigest()


def code_of(op: ir.Operation, facts) -> GeneratedKernel | GpuKernel:
    """What the target's generators make of a kernel. Errors: NovaError where they refuse it."""
    return generators(facts).generate(op)


def remember(key: str, code: GeneratedKernel | GpuKernel) -> None:
    """Keeps the code of a kernel, by its `code_key`, for this step and later ones."""
    _known[key] = code
    _known.move_to_end(key)
    if len(_known) > _CAPACITY:
        _known.popitem(last=False)


def _summary(key: str, kernel: GeneratedKernel | GpuKernel) -> ir.Attribute:
    i64 = ir.IntegerType.get_signless(64)
    return ir.DictAttr.get(
        {
            "bytes": ir.IntegerAttr.get(i64, kernel.bytes),
            "flops": ir.IntegerAttr.get(i64, kernel.flops),
            "key": ir.StringAttr.get(key),
            "predicted_us": ir.FloatAttr.get(ir.F64Type.get(), kernel.predicted_us),
            "symbols": ir.ArrayAttr.get([ir.StringAttr.get(phase.symbol) for phase in kernel.phases]),
        }
    )
