"""The arguments of every launch of a plan, laid out in host memory as the driver reads them.

    words     one 64-bit word per pointer: for each launch its operands and results, the workspace, the predicate
    maps      128 bytes per tensor map of each phase, 64-byte aligned
    params    for each phase the addresses of its maps, then of its launch's words: what cuLaunchKernel takes

All three stay where they are for life. Every pointer is the base of a buffer plus an offset; a base that moves changes
the words that use it at once, and its tensor maps when `take_changes` is called, which names the phases concerned.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ...errors import NovaError
from ..plan import SPACES, BufferRef, Callback, Launch, ProgramPlan
from .kernel import TENSOR_MAP_BYTES, WORKSPACE, GpuKernel, TensorMap

_MAP_ALIGNMENT = 64
_WORKSPACE_SPACE = "workspace"

Encoder = Callable[[TensorMap, int, int], None]


@dataclass(frozen=True)
class PhaseLaunch:
    """One phase of one launch: its place in the plan, and the address of its array of pointers to arguments."""

    launch: int
    kernel: int
    phase: int
    params: int


@dataclass(frozen=True)
class _Map:
    """A tensor map of a phase: the descriptor at `address` covers memory from `base` + `offset` on."""

    spec: TensorMap
    base: int
    offset: int
    address: int
    phase: int


class ArgumentTable:
    """The arguments of a plan. `phases`: every phase to launch, in order. `unbound`: inputs without an address.

    encode(spec, address, out) writes a tensor map, as `Driver.encode_tensor_map` does. The workspace is the buffer
    ("workspace", 0).
    Errors: NovaError for a tensor map that the driver would refuse.
    """

    def __init__(self, plan: ProgramPlan, encode: Encoder):
        self._plan, self._encode = plan, encode
        self.unbound = set(range(len(plan.inputs)))
        self._first_base, num_bases = _number_bases(plan)
        self._bases = [0] * num_bases
        self._uses: list[list[tuple[int, int]]] = [[] for _ in range(num_bases)]  # (word, offset)
        self._maps_of: list[list[_Map]] = [[] for _ in range(num_bases)]
        self._phases_of: list[list[int]] = [[] for _ in range(num_bases)]
        self._moved: set[int] = set()
        self.phases: list[PhaseLaunch] = []
        starts = _word_starts(plan)
        self._words = np.zeros(max(1, starts[-1]), np.uint64)
        self._map_memory, maps = _aligned(TENSOR_MAP_BYTES * sum(len(p.tensor_maps) for *_, p in _phases(plan)))
        self._params = np.zeros(_num_params(plan), np.uint64)
        self._fill(starts, maps)

    def _fill(self, starts: list[int], map_address: int) -> None:
        words, params = _address(self._words), _address(self._params)
        for index, launch in _launches(self._plan):
            for word, ref in enumerate(_refs(launch), starts[index]):
                if ref is not None:
                    self._uses[self._base_number(ref)].append((word, ref.offset))
        cursor = 0
        for index, launch, number, phase in _phases(self._plan):
            position = len(self.phases)
            addresses = []
            for spec in phase.tensor_maps:
                self._add_map(launch, spec, map_address, position)
                addresses.append(map_address)
                map_address += TENSOR_MAP_BYTES
            addresses += [words + 8 * word for word in range(starts[index], starts[index + 1])]
            self._params[cursor : cursor + len(addresses)] = addresses
            self.phases.append(PhaseLaunch(index, launch.kernel, number, params + 8 * cursor))
            cursor += len(addresses)
            for base in {self._base_number(ref) for ref in _refs(launch) if ref is not None}:
                self._phases_of[base].append(position)

    def _add_map(self, launch: Launch, spec: TensorMap, address: int, phase: int) -> None:
        count = len(launch.operands)
        problem = spec.problem() or ("" if WORKSPACE <= spec.operand < count else f"no operand {spec.operand}")
        if problem:
            raise launch_error(launch, f"tensor map of operand {spec.operand}: {problem}")
        ref = _WORKSPACE_REF if spec.operand == WORKSPACE else launch.operands[spec.operand]
        base = self._base_number(ref)
        self._maps_of[base].append(_Map(spec, base, ref.offset + spec.offset, address, phase))

    def _base_number(self, ref: BufferRef) -> int:
        return self._first_base[ref.space] + ref.index

    # -- binding

    def base(self, space: str, index: int) -> int:
        """The address of a buffer, 0 where it is not bound."""
        return self._bases[self._first_base[space] + index]

    def set_base(self, space: str, index: int, address: int) -> None:
        """Points a buffer, and all words that use it, at `address`."""
        base = self._first_base[space] + index
        if self._bases[base] == address:
            return
        self._bases[base] = address
        words = self._words
        for word, offset in self._uses[base]:
            words[word] = address + offset
        self._moved.add(base)

    def bind(self, index: int, address: int) -> None:
        """Points one input at `address`."""
        self.set_base("input", index, address)
        self.unbound.discard(index)

    def take_changes(self) -> Sequence[int]:
        """Encodes the tensor maps over bases that moved since the last call; the phases whose arguments changed."""
        if not self._moved:
            return ()
        changed: set[int] = set()
        for base in self._moved:
            for record in self._maps_of[base]:
                self._encode_map(record)
            changed.update(self._phases_of[base])
        self._moved.clear()
        return sorted(changed)

    def _encode_map(self, record: _Map) -> None:
        address = self._bases[record.base] + record.offset
        try:
            self._encode(record.spec, address, record.address)
        except Exception as fault:
            launch = self._plan.launches[self.phases[record.phase].launch]
            assert isinstance(launch, Launch)
            rule = f"tensor map of operand {record.spec.operand} at {address:#x}: {fault}"
            raise launch_error(launch, rule) from fault


_WORKSPACE_REF = BufferRef(_WORKSPACE_SPACE, 0)


def launch_error(launch: Launch, rule: str) -> NovaError:
    """An error of a launch, with its label and the user's line."""
    location = launch.locations[0] if launch.locations else ""
    return NovaError(rule, stage="launch", op=launch.label, location=location)


def gpu_kernel(plan: ProgramPlan, launch: Launch) -> GpuKernel:
    """The kernel of a launch. Errors: NovaError for one that was generated for a CPU."""
    kernel = plan.kernels[launch.kernel]
    if not isinstance(kernel, GpuKernel):
        raise launch_error(launch, f"expected a kernel for a GPU, got {type(kernel).__name__}")
    return kernel


def _launches(plan: ProgramPlan) -> Iterator[tuple[int, Launch]]:
    for index, launch in enumerate(plan.launches):
        if not isinstance(launch, Callback):
            yield index, launch


def _phases(plan: ProgramPlan) -> Iterator[tuple]:
    """(number of the launch, launch, number of the phase, phase) of every phase that has blocks."""
    for index, launch in _launches(plan):
        for number, phase in enumerate(gpu_kernel(plan, launch).phases):
            if 0 not in phase.grid:
                yield index, launch, number, phase


def _refs(launch: Launch) -> tuple[BufferRef | None, ...]:
    """What the words of a launch point at; None stays null."""
    return (*launch.operands, _WORKSPACE_REF, launch.predicate)


def _word_starts(plan: ProgramPlan) -> list[int]:
    """The word where each launch's pointers begin, and the number of all words."""
    starts = [0]
    for launch in plan.launches:
        starts.append(starts[-1] + (0 if isinstance(launch, Callback) else len(_refs(launch))))
    return starts


def _num_params(plan: ProgramPlan) -> int:
    return max(1, sum(len(phase.tensor_maps) + len(_refs(launch)) for _, launch, _, phase in _phases(plan)))


def _number_bases(plan: ProgramPlan) -> tuple[dict[str, int], int]:
    """The number of each space's first buffer, and of all buffers; the workspace is the last."""
    first, total = {}, 0
    for space in SPACES:
        first[space] = total
        total += len(plan.sizes(space))
    first[_WORKSPACE_SPACE] = total
    return first, total + 1


def _aligned(num_bytes: int) -> tuple[np.ndarray, int]:
    memory = np.zeros(num_bytes + _MAP_ALIGNMENT, np.uint8)
    return memory, _address(memory) + -_address(memory) % _MAP_ALIGNMENT


def _address(array: np.ndarray) -> int:
    return array.__array_interface__["data"][0]
