"""What a kernel is, for the generators: a `nova.kernel` op in plain Python, and the generated code that comes back.

`read_kernel(op)` turns the op into a `Kernel`: its operands and results, and its body ops in order, each `Generic`,
`Gather`, `ScatterAdd` or `Scan`. Tensors are row-major and static, so an access is one stride per loop dimension plus an
offset, in elements. `GeneratedKernel` is the answer of every generator for a CPU, `gpu.kernel.GpuKernel` for a GPU.
"""

from __future__ import annotations

import hashlib
import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mlir import ir

# Unsigned integers are arguments and results of a step; kernels see them as signless ones of the same width.
ITEM_BYTES = {
    "f64": 8,
    "f32": 4,
    "f16": 2,
    "bf16": 2,
    "i64": 8,
    "i32": 4,
    "i16": 2,
    "i8": 1,
    "i1": 1,
    "ui8": 1,
    "ui16": 2,
}
ALIGNMENT_BYTES = 64


class Unsupported(Exception):
    """A kernel that a generator does not take; the message is the reason that `supports` returns."""


def refusal(read: Callable[[Kernel], object], kernel: Kernel) -> str | None:
    """Why `read` does not take a kernel: the message of the `Unsupported` that it raises, None where it raises none."""
    try:
        read(kernel)
    except Unsupported as reason:
        return str(reason)
    return None


@dataclass(frozen=True)
class Phase:
    """One function `void symbol(ptr operands, ptr workspace, i64 task, i64 worker)`, run for each of `tasks` tasks."""

    symbol: str
    tasks: int


@dataclass(frozen=True)
class GeneratedKernel:
    """An MLIR module above LLVM, and what the host program needs to run it.

    `phases` run in order with a barrier between them; all share one workspace of `workspace_bytes`, 64-byte aligned,
    contents undefined at entry. `bytes` (memory traffic, each element once), `flops` and `predicted_us` are the
    generator's model of one run; `schedule` is what the configurator chose, for people.
    """

    text: str
    phases: tuple[Phase, ...]
    workspace_bytes: int
    bytes: int
    flops: int
    predicted_us: float
    schedule: str = ""


@dataclass(frozen=True)
class TensorType:
    """Shape and dtype of a row-major tensor; dtype is one of ITEM_BYTES, i1 is one byte an element in memory."""

    shape: tuple[int, ...]
    dtype: str

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def bytes(self) -> int:
        return self.size * ITEM_BYTES[self.dtype]


@dataclass(frozen=True)
class Operand:
    """A block argument of the kernel: memory that the caller passes."""

    index: int


@dataclass(frozen=True)
class Produced:
    """Result number `result` of `kernel.ops[op]`."""

    op: int
    result: int


@dataclass(frozen=True)
class Splat:
    """One scalar everywhere: `linalg.fill` of a constant, or a splat constant. `literal` is MLIR's text of it."""

    literal: str
    dtype: str


@dataclass(frozen=True)
class Undefined:
    """`tensor.empty`: an init that nobody reads."""


Source = Operand | Produced | Splat | Undefined


@dataclass(frozen=True)
class Index:
    """Position along one tensor dimension: `coefficient * loop[dim] + offset`; dim None: the constant `offset`."""

    dim: int | None
    coefficient: int
    offset: int


@dataclass(frozen=True)
class Access:
    """A tensor read or written at one element for each point of a loop nest.

    `strides[d]` elements of memory per step of loop dimension d (0: broadcast along d), from element `offset`.
    """

    source: Source
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    indices: tuple[Index, ...] = field(default=(), compare=False)

    def over(self, dims: tuple[int, ...], num_dims: int) -> Access:
        """The same access over another nest: loop dimension d of this one is dimension `dims[d]` of the new one."""
        strides = [0] * num_dims
        for old, new in enumerate(dims):
            strides[new] = self.strides[old]
        return Access(self.source, self.dtype, self.shape, tuple(strides), self.offset)


@dataclass(frozen=True, eq=False)
class Generic:
    """A `linalg.generic`: at every point of `extents`, `block` on the elements of inputs and outputs gives new outputs.

    The block's arguments are the inputs' elements, then the outputs' (for a reduction, the accumulator).
    """

    extents: tuple[int, ...]
    iterators: tuple[str, ...]
    inputs: tuple[Access, ...]
    outputs: tuple[Access, ...]
    types: tuple[TensorType, ...]
    block: ir.Block
    is_anchor: bool
    block_ops: tuple[str, ...]  # names of the region's ops
    uses_index: frozenset[int]  # loop dimensions that the region asks for with linalg.index
    extracts: dict[ir.Value, Operand]  # operands that the region reads with tensor.extract

    @cached_property
    def reduction_dims(self) -> frozenset[int]:
        return frozenset(d for d, kind in enumerate(self.iterators) if kind == "reduction")

    @property
    def is_reduction(self) -> bool:
        return bool(self.reduction_dims)


@dataclass(frozen=True, eq=False)
class Gather:
    """`nova.gather`: row `ids[i...]` of `table` (V x C) for each id; ids outside [0, V) are clamped."""

    table: Source
    ids: Source
    table_type: TensorType
    ids_type: TensorType
    types: tuple[TensorType, ...]


@dataclass(frozen=True, eq=False)
class ScatterAdd:
    """`nova.scatter_add`: the V x C sum of rows of `updates` by id, onto `init`; ids outside [0, V) are dropped."""

    ids: Source
    updates: Source
    init: Source | None
    ids_type: TensorType
    updates_type: TensorType
    types: tuple[TensorType, ...]


@dataclass(frozen=True, eq=False)
class Scan:
    """`nova.cumsum` of an A x N x C operand along its middle dimension, in the operand's type."""

    operand: Source
    type: TensorType

    @property
    def types(self) -> tuple[TensorType, ...]:
        return (self.type,)


BodyOp = Generic | Gather | ScatterAdd | Scan


@dataclass(frozen=True, eq=False)
class Kernel:
    """A `nova.kernel` in Python. Result i is `yields[i]`, in the memory of operand `aliases[i]` or its own (-1).
    `reserved`: multiprocessors that something else holds while it runs.
    """

    anchor: str
    operands: tuple[TensorType, ...]
    results: tuple[TensorType, ...]
    aliases: tuple[int, ...]
    ops: tuple[BodyOp, ...]
    yields: tuple[Source, ...]
    config: dict[str, Any]
    text: str
    reserved: int = 0

    @property
    def generics(self) -> tuple[Generic, ...]:
        return tuple(op for op in self.ops if isinstance(op, Generic))

    @cached_property
    def symbol(self) -> str:
        """Equal for equal kernels, different for different ones; phases are called `<symbol>_<phase>`."""
        return f"{self.anchor}_{hashlib.sha256(self.text.encode()).hexdigest()[:16]}"

    @property
    def bytes(self) -> int:
        """Memory traffic with every operand read once (of a table the rows gathered) and every result written once."""
        gathers = [op for op in self.ops if isinstance(op, Gather)]
        tables = {op.table.index: op.types[0].bytes for op in gathers if isinstance(op.table, Operand)}
        reads = sum(min(t.bytes, tables.get(i, t.bytes)) for i, t in enumerate(self.operands))
        return reads + sum(t.bytes for t in self.results)

    @cached_property
    def flops(self) -> int:
        """One per arithmetic op of a region and element; a math function counts as its polynomial, about 20."""
        return sum(math.prod(generic.extents) * region_flops(generic.block_ops) for generic in self.generics)


def region_flops(op_names: tuple[str, ...]) -> int:
    computing = [name for name in op_names if name.startswith(("arith.", "math.")) and name != "arith.constant"]
    draws = 100 * op_names.count("nova.random_bits")
    return draws + sum(20 if name.startswith("math.") else 1 for name in computing)


def read_kernel(op: ir.Operation | ir.OpView) -> Kernel:
    """Read a `nova.kernel` op. Raises `Unsupported` with the reason where the body is outside the kernel contract."""
    from blutrain.nova import kernel_reader  # MLIR is loaded only where a kernel is read

    return kernel_reader.read(op)


def kernel_text(op: ir.Operation | ir.OpView) -> str:
    """The kernel's text without locations and outside names, SSA names numbered in order: equal for equal kernels."""
    from blutrain.nova import kernel_reader

    return kernel_reader.kernel_text(op)


def row_major_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(math.prod(shape[i + 1 :]) for i in range(len(shape)))


def collapse(
    extents: tuple[int, ...], strides: list[tuple[int, ...]], keep: frozenset[int] = frozenset()
) -> list[list[int]]:
    """Groups of adjacent loop dimensions that act as one in every access: merging them leaves each access affine.

    `strides` holds one tuple per access; dimensions in `keep` stay alone; those of extent 1 vanish. Neighbours d, e
    merge where stride[d] == stride[e] * extent[e] everywhere; together they have e's strides.

    >>> collapse((2, 3, 4), [(12, 4, 1), (0, 4, 1)])
    [[0], [1, 2]]
    """
    groups: list[list[int]] = []
    for d, extent in enumerate(extents):
        if extent == 1 and d not in keep:
            continue
        last = groups[-1][-1] if groups else None
        if last is not None and not keep & {last, d} and all(s[last] == s[d] * extent for s in strides):
            groups[-1].append(d)
        else:
            groups.append([d])
    return groups


def linear_step(extents: list[int], steps: list[int]) -> int | None:
    """Elements per step of the flat index where the dimensions act as one, else None."""
    kept = [(e, s) for e, s in zip(extents, steps, strict=True) if e > 1]
    if all(outer[1] == inner[0] * inner[1] for outer, inner in itertools.pairwise(kept)):
        return kept[-1][1] if kept else 0
    return None


def check_scatter(op: ScatterAdd) -> None:
    """Errors: Unsupported for a scatter_add that no generator takes."""
    if not all(isinstance(s, Operand) for s in (op.ids, op.updates)) or not isinstance(op.init, Operand | None):
        raise Unsupported("a scatter_add of values that are no operands")
    if op.types[0].dtype[0] == "i" and op.types[0].dtype != op.updates_type.dtype:
        raise Unsupported("a scatter_add of integers into another dtype")
    if op.ids_type.size >= 1 << 31:
        raise Unsupported("a scatter_add of 2^31 ids or more")
