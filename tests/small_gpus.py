"""GPUs with fewer multiprocessors, and without Hopper's instructions: other schedules for the same device.

A product too small for a whole GPU gets there the tiles, clusters and loops over tiles that larger ones get here. What
is made for such a GPU is right on the one that it is a part of.
"""

from __future__ import annotations

from dataclasses import replace

from blutrain.nova.target_gpu import GpuFacts

VARIANTS = 4


def variant(facts: GpuFacts, number: int) -> GpuFacts:
    """The whole, 24 of its multiprocessors, 6, or 24 that know nothing newer than sm_80 does."""
    number %= VARIANTS
    if number == 3 and facts.is_hopper:
        facts = replace(facts, arch="sm_90")
    return smaller(facts, (facts.sms, 24, 6, 24)[number])


def smaller(facts: GpuFacts, sms: int) -> GpuFacts:
    """So many multiprocessors, with their share of all rates."""
    share = sms / facts.sms
    rates = {name: getattr(facts, name) * share for name in ("f32_tflops", "tf32_tflops", "bf16_tflops", "mem_gb_s")}
    clusters = tuple((size, int(count * share)) for size, count in facts.max_clusters if count * share >= 1)
    return replace(facts, sms=sms, max_clusters=clusters, **rates)
