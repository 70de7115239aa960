"""From a `nova.kernel` to its code for a CPU: the generator of its anchor, the schedule, the text."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from blutrain.errors import NovaError
from blutrain.nova.kernel import GeneratedKernel, Kernel, Unsupported, read_kernel
from blutrain.nova.target import CpuFacts

if TYPE_CHECKING:
    from types import ModuleType

    from mlir import ir

# Generators by anchor, in the order in which they are asked. Loops of extent 1 are no loops to a generator, so what was
# formed as a column or row kernel may be a full or map kernel for the extents at hand.
_SWEEPS = ("map", "row", "column", "full")
GENERATORS = {
    **{anchor: (anchor, *(s for s in _SWEEPS if s != anchor)) for anchor in _SWEEPS},
    "gather": ("map", "row"),
    "scatter": ("scatter",),
    "scan": ("scan",),
    "contract": ("contract",),
}


def names() -> list[str]:
    """All modules that `choose` may load."""
    return sorted({name for known in GENERATORS.values() for name in known})


def choose(kernel: Kernel) -> ModuleType:
    """The first generator that takes the kernel: a module with `supports`, `configure` and `generate`.

    Raises Unsupported with the reason of the anchor's own generator where none does.
    """
    from importlib import import_module  # generators are loaded when a kernel first needs them

    if kernel.anchor not in GENERATORS:
        raise Unsupported(f"no CPU generator for anchor {kernel.anchor!r}")
    reasons = []
    for name in GENERATORS[kernel.anchor]:
        module = import_module(f"blutrain.nova.cpu.{name}")
        reason = module.supports(kernel)
        if reason is None:
            return module
        reasons.append(reason)
    raise Unsupported(reasons[0])


def supports(kernel_op: ir.Operation | ir.OpView) -> str | None:
    """None where a generator takes the kernel, else the reason why not."""
    try:
        choose(read_kernel(kernel_op))
    except Unsupported as reason:
        return str(reason)
    return None


def configure(kernel_op: ir.Operation | ir.OpView, facts: CpuFacts) -> dict[str, Any]:
    """The schedule, to be written into the IR as `#nova.lowering_config<{...}>`; analytic, deterministic."""
    kernel, module = _chosen(kernel_op)
    return module.configure(kernel, facts)


def generate(kernel_op: ir.Operation | ir.OpView, facts: CpuFacts) -> GeneratedKernel:
    """Code for the kernel under the schedule in its IR, or the one `configure` derives where it has none.

    Raises NovaError with the generator's reason for a kernel that `supports` refuses.
    """
    kernel, module = _chosen(kernel_op)
    config = kernel.config or module.configure(kernel, facts)
    schedule = " ".join(f"{name}={value}" for name, value in config.items())
    return dataclasses.replace(module.generate(kernel, facts, config), schedule=schedule)


def _chosen(kernel_op: ir.Operation | ir.OpView) -> tuple[Kernel, ModuleType]:
    try:
        kernel = read_kernel(kernel_op)
        return kernel, choose(kernel)
    except Unsupported as reason:
        message = f"no generator takes this kernel: {reason}"
        raise NovaError(message, stage="generate", op=str(kernel_op)) from reason
