"""The program plan: everything the host program of one compiled step is made of, as data.

`plan_memory` and `host_program` fill it in; a runtime (`cpu/executable.py`, `gpu/executable.py`) turns it into
something that runs. It holds generated kernels, the launches in order, and for every operand the place of its memory:
`BufferRef(space, index, offset)`. No address stands in it, so one plan serves any arguments.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple

from ..errors import NovaError
from .kernel import ITEM_BYTES

SPACES = ("arena", "input", "output", "const")


@dataclass(frozen=True)
class BufferRef:
    """A place in memory: `offset` bytes into the arena (index 0), or into input, output or constant number `index`."""

    space: str
    index: int
    offset: int = 0


@dataclass(frozen=True)
class Launch:
    """Runs kernel number `kernel` on its operands, then its results; skipped where the i32 `predicate` is not 0."""

    kernel: int
    operands: tuple[BufferRef, ...]
    predicate: BufferRef | None = None
    locations: tuple[str, ...] = ()
    label: str = ""


@dataclass(frozen=True)
class Callback:
    """A call of `void symbol(i64 argument)` between launches; `Executable.set_callback` gives its address."""

    symbol: str
    argument: int
    label: str = ""


@dataclass(frozen=True)
class InputSpec:
    """An argument of the program, row-major contiguous. role: "state" (updated in place), "input" or "scalar"."""

    shape: tuple[int, ...]
    dtype: str
    role: str = "input"


@dataclass(frozen=True)
class OutputSpec:
    """A result of the program, row-major contiguous."""

    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True)
class Check:
    """A value check: the i32 at `flag` is not 0 after a run in which it failed (and all state updates were skipped)."""

    flag: BufferRef
    message: str
    location: str = ""


@dataclass(frozen=True)
class Bucket:
    """A vector of `size` elements at `place` that a collective reduces: the lowering (`primitive.Collective`) of the
    record `primitive`, called with `attributes`, by the callbacks READY (it is whole) and WAIT (it has to be reduced),
    whose argument is its number."""

    place: BufferRef
    size: int
    dtype: str
    primitive: str
    attributes: dict[str, Any]


READY, WAIT = "nova_ddp_bucket_ready", "nova_ddp_bucket_wait"


class CheckFailure(NamedTuple):
    """A value check that failed in a run: its number, the flag's value, and what the run was given as its context."""

    check: int
    flag: int
    context: Any = None


@dataclass(frozen=True)
class ProgramPlan:
    """Kernels, launches in order, and the sizes of all memory they touch. Frozen; `check()` before use."""

    kernels: tuple[Any, ...]  # `kernel.GeneratedKernel` for a CPU, `gpu.kernel.GpuKernel` for a GPU
    launches: tuple[Launch | Callback, ...]
    arena_bytes: int
    inputs: tuple[InputSpec, ...] = ()
    outputs: tuple[OutputSpec, ...] = ()
    constants: tuple[bytes, ...] = ()
    checks: tuple[Check, ...] = ()
    buckets: tuple[Bucket, ...] = ()
    guard: BufferRef | None = None  # the i32 that launches which write state are predicated on, where there are checks

    def check(self) -> None:
        """Raises NovaError unless every launch names an existing kernel and every reference lies inside its buffer."""
        sizes = {space: self.sizes(space) for space in SPACES}
        for launch in self.launches:
            if isinstance(launch, Callback):
                continue
            if not 0 <= launch.kernel < len(self.kernels):
                raise _fault(launch, f"kernel {launch.kernel} does not exist (the plan has {len(self.kernels)})")
            for ref in launch.operands:
                _check_ref(launch, ref, 0, sizes)
            if launch.predicate is not None:
                _check_ref(launch, launch.predicate, ITEM_BYTES["i32"], sizes)
        for check in self.checks:
            _check_ref(check, check.flag, ITEM_BYTES["i32"], sizes)

    def predicted_us(self, launch: Launch | Callback) -> float:
        """What a launch is expected to take: nothing, where a flag of its own lets it be skipped (form_kernels_skip: a
        fallback, such as that of a cross-entropy whose sums left their range).
        """
        if isinstance(launch, Callback) or self.is_fallback(launch):
            return 0.0
        return self.kernels[launch.kernel].predicted_us

    def is_fallback(self, launch: Launch) -> bool:
        """Whether a launch is skipped in most runs: it depends on a flag that is not that of the value checks."""
        return launch.predicate is not None and launch.predicate != self.guard

    def sizes(self, space: str) -> tuple[int, ...]:
        """Bytes of every buffer of a space."""
        if space == "arena":
            return (self.arena_bytes,)
        if space == "const":
            return tuple(len(constant) for constant in self.constants)
        specs = self.inputs if space == "input" else self.outputs
        return tuple(prod(spec.shape) * ITEM_BYTES[spec.dtype] for spec in specs)


def _check_ref(owner: Launch | Check, ref: BufferRef, num_bytes: int, sizes: dict[str, tuple[int, ...]]) -> None:
    if ref.space not in sizes:
        raise _fault(owner, f"unknown space {ref.space!r} in {ref}")
    buffers = sizes[ref.space]
    if not 0 <= ref.index < len(buffers):
        raise _fault(owner, f"{ref} does not exist (the plan has {len(buffers)} of this space)")
    if not 0 <= ref.offset <= buffers[ref.index] - num_bytes:
        raise _fault(owner, f"{ref} lies outside its buffer of {buffers[ref.index]} bytes")


def _fault(owner: Launch | Check, rule: str) -> NovaError:
    if isinstance(owner, Check):
        return NovaError(rule, stage="host_program", op="value check", location=owner.location)
    location = owner.locations[0] if owner.locations else ""
    return NovaError(rule, stage="host_program", op=owner.label, location=location)
