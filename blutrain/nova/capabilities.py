"""What a target's generators can do, for the passes that decide by it: asked here, derived from facts alone.

    target = capabilities(facts)
    target.prologues            # a product may compute its operands as it reads them
    generators(facts).supports(kernel_op)

Facts are a CpuFacts or a GpuFacts; None stands for a CPU.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from .kernel import GeneratedKernel
from .target_gpu import GpuFacts

if TYPE_CHECKING:
    from .gpu.kernel import GpuKernel

_MIB = 1 << 20


@dataclass(frozen=True)
class Capabilities:
    """name: of the pipeline.

    prologues: operands of products pass through registers, so elementwise operations on them cost no memory; else
    products read tensors as they lie in memory.
    row_sums: products may sum the rows of their results, too, not the columns alone.
    vector_sums: a product with a vector is better made as a sum, by row and column kernels.
    is_wide: arithmetic on elements costs next to nothing beside loading them; whatever saves a load is worth it.
    k_major_tf32: TF32 products want operands that are contiguous along the summed axis; one of the two may run along
    its own axis at some cost, not both.
    logits_bytes: what the logits of one chunk of linear + cross-entropy take; min_chunk_rows: and its rows at least.
    """

    name: str
    prologues: bool
    row_sums: bool
    vector_sums: bool
    is_wide: bool
    k_major_tf32: bool
    logits_bytes: int
    min_chunk_rows: int


# 64 MiB of logits leave a CPU's cache on the way from product to softmax and back, whatever the chunk; with 512 rows a
# weight of 4 bytes is read three times for 3 * 1024 operations. On a GPU 2048 rows of 50304 classes fill the device with
# whole waves of tiles and keep the passes over the gradient of the weights few: on an H200, width 384, TF32, the loss and
# its gradients take 2.96 ms, with 1024 rows 3.52. Half the rows where the memory is smaller, as a rule. On sm_90a, where
# products are fast, twice: a pass that adds to the gradient takes longer than one that writes it, by 45 us of 254 in
# bf16 and 80 of 510 in TF32 (width 768); steps hold 5 and 9 % more.
_CPU = Capabilities("cpu", True, False, True, False, False, 64 * _MIB, 512)
_GPU = Capabilities("cuda", False, False, False, True, False, 200 * _MIB, 1024)
_HOPPER = Capabilities("cuda", False, True, False, True, True, 200 * _MIB, 4096)


def capabilities(facts) -> Capabilities:
    """Of the target that `facts` describe."""
    if not isinstance(facts, GpuFacts):
        return _CPU
    return _HOPPER if facts.is_hopper else _GPU


@dataclass(frozen=True)
class Generators:
    """The three questions to a target's generators about one `nova.kernel` op; see nova/cpu/generate.py."""

    supports: Callable[[Any], str | None]
    configure: Callable[[Any], dict[str, Any]]
    generate: Callable[[Any], GeneratedKernel | GpuKernel]


def generators(facts) -> Generators:
    """Of the target that `facts` describe. Loads them."""
    if isinstance(facts, GpuFacts):
        from .gpu import generate as gpu

        return Generators(
            partial(gpu.supports, facts=facts), partial(gpu.configure, facts=facts), partial(gpu.generate, facts=facts)
        )
    from .cpu import generate as cpu

    return Generators(cpu.supports, partial(cpu.configure, facts=facts), partial(cpu.generate, facts=facts))


def generator_modules(facts) -> list[str]:
    """Names of all modules that `generators` may load, and of the passes that ask them."""
    passes = ["blutrain.nova.passes.configure", "blutrain.nova.passes.generate"]
    if isinstance(facts, GpuFacts):
        from .gpu import generate as gpu

        return [*passes, *(f"blutrain.nova.gpu.{name}" for name in gpu.names(facts))]
    from .cpu import generate as cpu

    return [*passes, *(f"blutrain.nova.cpu.{name}" for name in cpu.names())]
