"""What a generator of GPU kernels returns: an MLIR module with the kernel functions, and how each is launched.

Parameters of every kernel function, in order:

    its tensor maps     each `!llvm.ptr {llvm.align = 64 : i64, llvm.byval = !llvm.array<128 x i8>, nvvm.grid_constant}`
    operand pointers    one per operand of the nova.kernel, then one per result (global memory, 0-d tensors too)
    workspace           a pointer, 256-byte aligned, contents undefined at entry, shared by the phases of one launch
    predicate           a pointer to an i32, or null; a kernel returns at once where it is not null and holds nonzero

A result that aliases an operand gets the same pointer twice. Phases run in stream order.
"""

from __future__ import annotations

from dataclasses import dataclass

WORKSPACE = -1
SWIZZLES = (0, 32, 64, 128)
L2_PROMOTIONS = ("none", "64", "128", "256")
TENSOR_MAP_BYTES = 128
TENSOR_MAP_TYPES = {"i8": 1, "i16": 2, "i32": 4, "i64": 8, "f16": 2, "bf16": 2, "f32": 4, "f64": 8, "tf32": 4}
MAX_BOX = 256
MAX_RANK = 5
MAX_EXTENT = 2**31 - 2**16  # of an axis of a product: the places of its tiles are i32


@dataclass(frozen=True)
class TensorMap:
    """One TMA descriptor: a tiled view of an operand.

    operand: number of the operand or result, WORKSPACE for the workspace; offset: bytes from its base.
    dtype: a key of TENSOR_MAP_TYPES; "tf32" rounds f32 on load. extents and box: elements, innermost first.
    strides_bytes: of all dimensions but the innermost, multiples of 16. swizzle: bytes of the pattern, 0 for none.
    l2: bytes that a miss brings into the L2 ("none", "64", "128", "256"). element_strides: steps of the box, 1 each
    where left empty. Elements out of range read as zero.
    """

    operand: int
    offset: int
    dtype: str
    extents: tuple[int, ...]
    strides_bytes: tuple[int, ...]
    box: tuple[int, ...]
    swizzle: int = 0
    l2: str = "128"
    element_strides: tuple[int, ...] = ()

    def problem(self) -> str:
        """What cuTensorMapEncodeTiled would refuse, "" where nothing is wrong."""
        rank = len(self.extents)
        item = TENSOR_MAP_TYPES.get(self.dtype, 0)
        inner_bytes = self.box[0] * item if self.box else 0
        rules = (
            (item == 0, f"dtype {self.dtype!r} is not one of {', '.join(TENSOR_MAP_TYPES)}"),
            (not 1 <= rank <= MAX_RANK, f"{rank} dimensions; 1 to {MAX_RANK} are possible"),
            (len(self.strides_bytes) != rank - 1, f"{len(self.strides_bytes)} strides for {rank} dimensions"),
            (len(self.box) != rank, f"a box of {len(self.box)} dimensions for {rank}"),
            (self.element_strides and len(self.element_strides) != rank, "element_strides differ from extents in rank"),
            (any(not 1 <= extent <= 1 << 32 for extent in self.extents), f"extents {self.extents} outside 1..2^32"),
            (any(not 1 <= side <= MAX_BOX for side in self.box), f"box {self.box} outside 1..{MAX_BOX}"),
            (any(stride % 16 or stride <= 0 for stride in self.strides_bytes), f"strides {self.strides_bytes} % 16"),
            (self.offset % 16, f"offset {self.offset} is not a multiple of 16"),
            (inner_bytes % 16, f"innermost box of {inner_bytes} bytes is not a multiple of 16"),
            (self.swizzle not in SWIZZLES, f"swizzle {self.swizzle} is not one of {SWIZZLES}"),
            (self.swizzle and inner_bytes > self.swizzle, f"innermost box of {inner_bytes} bytes > {self.swizzle=}"),
            (self.l2 not in L2_PROMOTIONS, f"l2 {self.l2!r} is not one of {L2_PROMOTIONS}"),
        )
        return next((message for is_broken, message in rules if is_broken), "")


@dataclass(frozen=True)
class GpuPhase:
    """One kernel function and its launch: blocks, threads a block, blocks a cluster (along x), dynamic shared bytes."""

    symbol: str
    grid: tuple[int, int, int]
    block: int
    cluster: int = 1
    shared_bytes: int = 0
    tensor_maps: tuple[TensorMap, ...] = ()


@dataclass(frozen=True)
class GpuKernel:
    """An MLIR module with one `gpu.module @kernels`, and what the runtime needs to launch it.

    `phases` run in order and share one workspace. `bytes` (memory traffic, each element once), `flops` and
    `predicted_us` are the generator's model of one launch; `schedule` says in a line how it is done, for `explain`;
    `unit` ("f32", "tf32" or "bf16") names the arithmetic whose rate bounds the flops.
    """

    text: str
    target: str
    phases: tuple[GpuPhase, ...]
    workspace_bytes: int
    bytes: int
    flops: int
    predicted_us: float
    schedule: str
    unit: str = "f32"
