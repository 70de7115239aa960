"""From a `nova.kernel` to its code for a CPU: the generator of its anchor, the schedule, the text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from blutrain.errors import NovaError
from blutrain.nova.kernel import GeneratedKernel, Kernel, Unsupported, read_kernel
from blutrain.nova.target import CpuFacts

if TYPE_CHECKING:
    from types import ModuleType

    from mlir import ir

ANCHORS = ("map", "gather", "row", "full", "column", "scatter", "contract")


def generator(anchor: str) -> ModuleType:
    """The module with `supports`, `configure` and `generate` for an anchor; loaded when first asked for."""
    from importlib import import_module

    if anchor not in ANCHORS:
        raise NovaError(f"no CPU generator for anchor {anchor!r}", stage="generate")
    return import_module(f"blutrain.nova.cpu.{'map' if anchor == 'gather' else anchor}")


def supports(kernel_op: ir.Operation | ir.OpView) -> str | None:
    """None where a generator takes the kernel, else the reason why not."""
    try:
        kernel = read_kernel(kernel_op)
    except Unsupported as reason:
        return str(reason)
    return generator(kernel.anchor).supports(kernel)


def configure(kernel_op: ir.Operation | ir.OpView, facts: CpuFacts) -> dict[str, Any]:
    """The schedule, to be written into the IR as `#nova.lowering_config<{...}>`; analytic, deterministic."""
    kernel = _read(kernel_op)
    return generator(kernel.anchor).configure(kernel, facts)


def generate(kernel_op: ir.Operation | ir.OpView, facts: CpuFacts) -> GeneratedKernel:
    """Code for the kernel under the schedule in its IR, or the one `configure` derives where it has none.

    Raises NovaError with the generator's reason for a kernel that `supports` refuses.
    """
    kernel = _read(kernel_op)
    module = generator(kernel.anchor)
    try:
        return module.generate(kernel, facts, kernel.config or module.configure(kernel, facts))
    except Unsupported as reason:
        raise _refused(kernel.text, str(reason)) from reason


def _read(kernel_op: ir.Operation | ir.OpView) -> Kernel:
    try:
        return read_kernel(kernel_op)
    except Unsupported as reason:
        raise _refused(str(kernel_op), str(reason)) from reason


def _refused(text: str, reason: str) -> NovaError:
    return NovaError(f"no generator takes this kernel: {reason}", stage="generate", op=text)
