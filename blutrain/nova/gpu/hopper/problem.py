"""Reads a contract kernel for the tensor cores: extents, operand type, and how TMA may walk each factor."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

from blutrain.nova.contract.form import Contract, Factor, Load, unwidened
from blutrain.nova.contract.read import read_contract
from blutrain.nova.gpu.hopper.addition import added_in_place
from blutrain.nova.gpu.hopper.traffic import TMA_ALIGNMENT, Traffic
from blutrain.nova.gpu.kernel import MAX_EXTENT
from blutrain.nova.kernel import ITEM_BYTES, Access, Kernel, Operand, Unsupported, collapse

OPERAND_BYTES = {"bf16": 2, "f16": 2, "tf32": 4}


@dataclass(frozen=True)
class BatchDim:
    """One loop of the batch: `stride` elements of a factor a step, 0 where the factor is shared."""

    extent: int
    stride: int


@dataclass(frozen=True)
class Side:
    """One factor as a matrix of `extent` rows (its own axis) by k, once for each batch index.

    `stride` and `k_stride` in elements; one of them is 1. `operand` is the kernel's operand, WORKSPACE (-1) for a
    copy at `offset` elements of it.
    """

    axis: str
    operand: int
    extent: int
    stride: int
    k_stride: int
    offset: int
    batch: tuple[BatchDim, ...]

    @property
    def k_major(self) -> bool:
        return self.k_stride == 1


@dataclass(frozen=True, eq=False)
class Problem:
    """`batch` products of (m x k) and (k x n) with operands of `dtype` (bf16, f16, tf32), accumulated in f32. `adds`: the
    result is added to what its memory holds.
    """

    contract: Contract
    dtype: str
    m: int
    n: int
    k: int
    batch: int
    rows: Side
    columns: Side
    adds: bool = False

    @cached_property
    def traffic(self) -> Traffic:
        return Traffic(self.contract)

    @property
    def item(self) -> int:
        return OPERAND_BYTES[self.dtype]

    @property
    def written_bytes(self) -> int:
        """Of an element: of all results."""
        return sum(ITEM_BYTES[store.access.dtype] for store in self.contract.stores)

    @property
    def read_bytes(self) -> int:
        """Of an element: of all matrices that the epilogue reads."""
        return sum(ITEM_BYTES[access.dtype] for access in self.traffic.matrices)

    def side(self, axis: str) -> Side:
        return self.rows if axis == "m" else self.columns


def read_problem(kernel: Kernel) -> Problem:
    """Raises `Unsupported` with the reason where the kernel is not one for this family."""
    contract = read_contract(kernel, row_reductions=True)
    if contract.dtype != "f32":
        raise Unsupported(f"hopper: accumulates in {contract.dtype}, expected f32")
    m, n, k, batch = (contract.extent(axis) for axis in ("m", "n", "k", "batch"))
    if 0 in (m, n, k, batch):
        raise Unsupported("hopper: an empty product")
    if max(m, n, k, batch) > MAX_EXTENT:
        raise Unsupported(f"hopper: an axis of {max(m, n, k, batch)} elements")
    dtypes = {_operand(f).access.dtype for f in (contract.rows, contract.columns)}
    if len(dtypes) > 1:
        raise Unsupported(f"hopper: factors of different types: {', '.join(sorted(dtypes))}")
    dtype = _multiplied_as(contract, dtypes.pop())
    factors = (contract.rows, contract.columns)
    batches = _batches(contract, [_operand(f).access for f in factors])
    rows, columns = (_side(contract, f, dtype, k, b) for f, b in zip(factors, batches, strict=True))
    product = added_in_place(contract)
    return Problem(product or contract, dtype, m, n, k, batch, rows, columns, product is not None)


def _multiplied_as(contract: Contract, dtype: str) -> str:
    if dtype in ("bf16", "f16"):
        return dtype
    if dtype != "f32":
        raise Unsupported(f"hopper: factors of {dtype}")
    if contract.precision != "tf32":
        raise Unsupported(f"hopper: f32 factors at precision {contract.precision}; wgmma multiplies TF32")
    return "tf32"


def _operand(factor: Factor) -> Load:
    """The load behind a factor."""
    value = unwidened(factor)
    if value is None:
        raise Unsupported("hopper: a factor computed inside the product's region")
    if not isinstance(value, Load) or not isinstance(value.access.source, Operand):
        raise Unsupported("hopper: a factor that is computed here; TMA copies operands as they are")
    return value


def _side(contract: Contract, factor: Factor, dtype: str, k: int, batch: tuple[BatchDim, ...]) -> Side:
    access = _operand(factor).access
    assert isinstance(access.source, Operand)
    item = OPERAND_BYTES[dtype]
    stride, k_stride = (_step(contract, access, axis) for axis in (factor.axis, "k"))
    extent = contract.extent(factor.axis)
    if k_stride == 1 and (extent == 1 or stride * item % TMA_ALIGNMENT == 0):
        stride = stride if extent > 1 else _aligned(k, item)
    elif stride == 1 and (k == 1 or k_stride * item % TMA_ALIGNMENT == 0):
        k_stride = k_stride if k > 1 else _aligned(extent, item)
    else:
        raise Unsupported(f"hopper: strides of {stride} and {k_stride} elements; TMA needs 1 and multiples of 16 bytes")
    if access.offset * item % TMA_ALIGNMENT or any(b.stride * item % TMA_ALIGNMENT for b in batch):
        raise Unsupported("hopper: an offset or batch stride that is not a multiple of 16 bytes, as TMA needs")
    if stride <= 0 or k_stride <= 0 or any(b.stride < 0 for b in batch):
        raise Unsupported("hopper: a broadcast or reversed factor")
    if sum(b.stride > 0 for b in batch) > 2:
        raise Unsupported("hopper: more than two separate batch dimensions")
    return Side(factor.axis, access.source.index, extent, stride, k_stride, access.offset, batch)


def _aligned(extent: int, item: int) -> int:
    """A stride that TMA takes, for a dimension of extent 1 that it never steps along; not 1, which would be k-major."""
    unit = TMA_ALIGNMENT // item
    return -(-extent // unit) * unit


def _step(contract: Contract, access: Access, axis: str) -> int:
    step = contract.step(access, axis)
    if step is None:
        raise Unsupported(f"hopper: dimensions of axis {axis} that do not act as one")
    return step if contract.extent(axis) > 1 else 1


def _batches(contract: Contract, accesses: list[Access]) -> list[tuple[BatchDim, ...]]:
    """Per factor its batch dimensions, outermost first; neighbours that act as one in both factors are one."""
    dims = contract.axes["batch"]
    extents = tuple(contract.generic.extents[d] for d in dims)
    strides = [tuple(access.strides[d] for d in dims) for access in accesses]
    groups = collapse(extents, strides)
    return [tuple(BatchDim(math.prod(extents[i] for i in g), s[g[-1]]) for g in groups) for s in strides]
