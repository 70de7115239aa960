"""From a `nova.kernel` to its code for an NVIDIA GPU: the generator of its anchor, the schedule, the text.

Contractions go to the Hopper family (sm_90a: TMA, wgmma) where it takes them, else to the Ampere family (sm_80 and
newer: cp.async, mma.sync); everything else is plain SIMT code, the same for all targets.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from blutrain.errors import NovaError
from blutrain.nova.gpu.kernel import GpuKernel
from blutrain.nova.kernel import Kernel, Unsupported, read_kernel
from blutrain.nova.target_gpu import GpuFacts

if TYPE_CHECKING:
    from types import ModuleType

    from mlir import ir

# Generators by anchor, in the order in which they are asked. Loops of extent 1 are no loops to a generator, so what was
# formed as a column or row kernel may be a full or map kernel for the extents at hand.
_SWEEPS = ("map", "row", "column", "full")
_GENERATORS = {
    **{anchor: (anchor, *(s for s in _SWEEPS if s != anchor)) for anchor in _SWEEPS},
    "gather": ("map", "row"),
    "scatter": ("scatter",),
    "scan": ("scan",),
}
_CONTRACTIONS = {"hopper": "hopper.contract", "ampere": "ampere.contract"}


def generators(kernel: Kernel, facts: GpuFacts) -> tuple[str, ...]:
    """Module names, relative to this package, in the order in which they are asked."""
    if kernel.anchor == "contract":
        families = ("hopper", "ampere") if facts.is_hopper else ("ampere",)
        return tuple(_CONTRACTIONS[family] for family in families)
    if kernel.anchor not in _GENERATORS:
        raise Unsupported(f"no GPU generator for anchor {kernel.anchor!r}")
    return _GENERATORS[kernel.anchor]


def names(facts: GpuFacts) -> list[str]:
    """All modules that `generators` may name."""
    families = ("hopper", "ampere") if facts.is_hopper else ("ampere",)
    plain = {name for known in _GENERATORS.values() for name in known}
    return [*sorted(plain), *(_CONTRACTIONS[family] for family in families)]


def choose(kernel: Kernel, facts: GpuFacts) -> ModuleType:
    """The first generator that takes the kernel: a module with `supports`, `configure` and `generate`.

    Raises Unsupported with every generator's reason where none does.
    """
    reasons = []
    for name in generators(kernel, facts):
        module = import_module(f"blutrain.nova.gpu.{name}")  # loaded when a kernel first needs it
        reason = module.supports(kernel, facts) if kernel.anchor == "contract" else module.supports(kernel)
        if reason is None:
            return module
        reasons.append(f"{name}: {reason}")
    raise Unsupported("; ".join(reasons))


def supports(kernel_op: ir.Operation | ir.OpView, facts: GpuFacts) -> str | None:
    """None where a generator takes the kernel, else the reason why not."""
    try:
        choose(read_kernel(kernel_op), facts)
    except Unsupported as reason:
        return str(reason)
    return None


def configure(kernel_op: ir.Operation | ir.OpView, facts: GpuFacts) -> dict[str, Any]:
    """The schedule, to be written into the IR as `#nova.lowering_config<{...}>`; analytic, deterministic."""
    kernel, module, facts = _chosen(kernel_op, facts)
    return module.configure(kernel, facts)


def generate(kernel_op: ir.Operation | ir.OpView, facts: GpuFacts) -> GpuKernel:
    """Code for the kernel under the schedule in its IR, or the one `configure` derives where it has none.

    Raises NovaError with the generators' reasons for a kernel that `supports` refuses.
    """
    kernel, module, facts = _chosen(kernel_op, facts)
    return module.generate(kernel, facts, kernel.config or module.configure(kernel, facts))


def _chosen(kernel_op: ir.Operation | ir.OpView, facts: GpuFacts) -> tuple[Kernel, ModuleType, GpuFacts]:
    """The kernel, its generator, and the GPU without what the kernel leaves to others (the pass share_device)."""
    try:
        kernel = read_kernel(kernel_op)
        return kernel, choose(kernel, facts), facts.without(kernel.reserved)
    except Unsupported as reason:
        message = f"no generator takes this kernel: {reason}"
        raise NovaError(message, stage="generate", op=str(kernel_op)) from reason
