"""The passes of each target, in order."""

from __future__ import annotations

# From the imported trace to simple primitives: the same for every target.
GRAPH = (
    "canonicalize",
    "cse",
    "recognise_composites",
    "decompose_linear_ce",
    "decompose_composites",
    "expand_indices",
    "canonicalize",
    "choose_saved",
)

# From simple primitives to a host program.
KERNELS = (
    "form_kernels",
    "lower_to_linalg",
    "configure",
    "order_launches",
    "plan_memory",
    "dedupe_kernels",
    "generate",
    "host_program",
)

PIPELINES = {"cpu": (*GRAPH, *KERNELS)}


def passes(target: str, *, precision: str | None = None) -> tuple[str, ...]:
    """The passes of `target`; `precision="bf16"` adds mixed_precision behind the decomposition. Errors: ValueError for
    unknown ones.
    """
    if target not in PIPELINES:
        raise ValueError(f"nova has no target {target!r}, only {', '.join(sorted(PIPELINES))}")
    if precision not in (None, "bf16"):
        raise ValueError(f"precision {precision!r} is not one of None, 'bf16'")
    names = PIPELINES[target]
    if precision is None:
        return names
    at = names.index("choose_saved")
    return (*names[:at], "mixed_precision", *names[at:])
