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
    "expand_integers",
    "canonicalize",
    "choose_saved",
    "insert_buckets",
    "reduce_vectors",
)

# From simple primitives to a host program.
KERNELS = (
    "form_kernels",
    "lower_to_linalg",
    "order_launches",
    "share_device",  # kernels beside collectives
    "plan_memory",
    "dedupe_kernels",
    "configure",  # schedules depend on what is updated in place
    "generate",
    "host_program",
)

# On a GPU products have a precision of their own, and a layout that they want their factors in.
GPU_KERNELS = (
    "assign_layouts",
    "form_kernels",
    "lower_to_linalg",
    "set_precision",
    "fuse_scatter",
    "group_maps",
    *KERNELS[2:],
)

PIPELINES = {"cpu": (*GRAPH, *KERNELS), "cuda": (*GRAPH, *GPU_KERNELS)}
PRECISIONS = (None, "fp32", "tf32", "bf16")


def passes(target: str, *, precision: str | None = None) -> tuple[str, ...]:
    """The passes of `target`; `precision="bf16"` adds narrow_saved before the decomposition and mixed_precision behind
    it. Errors: ValueError for unknown ones.
    """
    if target not in PIPELINES:
        raise ValueError(f"nova has no target {target!r}, only {', '.join(sorted(PIPELINES))}")
    if precision not in PRECISIONS:
        raise ValueError(f"precision {precision!r} is not one of {', '.join(map(repr, PRECISIONS))}")
    names = PIPELINES[target]
    if precision != "bf16":
        return names
    decompose, save = names.index("decompose_linear_ce"), names.index("choose_saved")
    return (*names[:decompose], "narrow_saved", *names[decompose:save], "mixed_precision", *names[save:])
