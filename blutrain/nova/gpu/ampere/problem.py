"""Reads a contract kernel for the tensor cores: extents, the multiply instruction, and how each factor can travel."""

from __future__ import annotations

from dataclasses import dataclass

from blutrain.nova.contract.combine import Combiner
from blutrain.nova.contract.form import Apply, Contract, Expression, Factor, Load, loads, unwidened
from blutrain.nova.contract.read import read_contract
from blutrain.nova.gpu.ampere.instruction import INSTRUCTIONS, Instruction
from blutrain.nova.gpu.emit_region import check_regions
from blutrain.nova.gpu.kernel import MAX_EXTENT
from blutrain.nova.kernel import ITEM_BYTES, Access, Kernel, Operand, Unsupported

PIECES = (16, 8, 4)  # bytes that one cp.async copies


@dataclass(frozen=True, eq=False)
class Side:
    """One factor: a line of elements for each index of its own axis (m or n) and of k.

    `value` gives an element, in its own dtype; `region` says that the product's region computes on it first. `major`
    is the axis along which elements are neighbours in memory and will be in shared memory. `piece` is the bytes of a
    cp.async, 0 where the factor travels through registers; then `step` are elements an index of each axis.
    """

    axis: str
    value: Expression
    factor: Factor
    region: bool
    dtype: str
    major: str
    piece: int
    step: dict[str, int]

    @property
    def is_k_major(self) -> bool:
        return self.major == "k"

    @property
    def access(self) -> Access:
        """The operand that cp.async copies."""
        assert isinstance(self.value, Load)
        return self.value.access


@dataclass(frozen=True, eq=False)
class Problem:
    """`batch` products of (m x k) and (k x n), multiplied as `kind`, a key of INSTRUCTIONS."""

    contract: Contract
    kind: str
    extent: dict[str, int]
    sides: dict[str, Side]

    @property
    def instruction(self) -> Instruction:
        return INSTRUCTIONS[self.kind]

    @property
    def item(self) -> int:
        """Bytes of a factor's element in shared memory."""
        return ITEM_BYTES[self.instruction.dtype]

    @property
    def is_empty(self) -> bool:
        return 0 in (self.extent["batch"], self.extent["m"], self.extent["n"])


def read_problem(kernel: Kernel) -> Problem:
    """Raises `Unsupported` with the reason where the kernel is no contraction, or uses what has no GPU code."""
    contract = read_contract(kernel)
    check_regions(kernel.ops)
    for reduction in contract.reductions:
        Combiner(reduction)
    extent = {axis: contract.extent(axis) for axis in ("batch", "m", "n", "k")}
    if max(extent.values()) > MAX_EXTENT:
        raise Unsupported(f"ampere: an axis of {max(extent.values())} elements")
    kind = multiplied_as(contract)
    sides = {f.axis: _side(contract, f, INSTRUCTIONS[kind].dtype) for f in (contract.rows, contract.columns)}
    return Problem(contract, kind, extent, sides)


def multiplied_as(contract: Contract) -> str:
    """16-bit factors of one type as they are, f32 by the contract's precision, f64 as f64."""
    if contract.dtype == "f64":
        return "f64"
    values = [unwidened(factor) for factor in (contract.rows, contract.columns)]
    dtypes = {"f32" if value is None else dtype_of(value) for value in values}
    if len(dtypes) == 1 and dtypes <= {"bf16", "f16"}:
        return dtypes.pop()
    return "tf32" if contract.precision == "tf32" else "fp32"


def dtype_of(value: Expression) -> str:
    match value:
        case Load(access):
            return access.dtype
        case Apply():
            return value.generic.types[value.result].dtype
    return value.dtype  # type: ignore[union-attr]


def _side(contract: Contract, factor: Factor, dtype: str) -> Side:
    bare = unwidened(factor)
    value, region = (factor.value, True) if bare is None else (bare, False)
    if dtype_of(value) not in ("bf16", "f16", "f32", "f64"):
        raise Unsupported(f"ampere: a factor of {dtype_of(value)}")
    major = _major(contract, factor.axis, value)
    access = value.access if isinstance(value, Load) and not region and dtype_of(value) == dtype else None
    if access is None or not isinstance(access.source, Operand):
        return Side(factor.axis, value, factor, region, dtype, major, 0, {})
    steps = {axis: contract.step(access, axis) for axis in (factor.axis, "k")}
    step = {axis: number for axis, number in steps.items() if number is not None}
    piece = _piece(contract, access, step, major) if len(step) == len(steps) else 0
    return Side(factor.axis, value, factor, region, dtype, major, piece, step)


def _major(contract: Contract, axis: str, value: Expression) -> str:
    """The axis along which the factor's largest operand is contiguous; k where it is neither."""
    for access in sorted(loads(value), key=lambda a: -sum(s != 0 for s in a.strides)):
        inner = {a: contract.axes[a][-1:] for a in (axis, "k")}
        unit = {a for a in inner for d in inner[a] if access.strides[d] == 1 and contract.generic.extents[d] > 1}
        if "k" in unit:
            return "k"
        if axis in unit:
            return axis
    return "k"


def _piece(contract: Contract, access: Access, step: dict[str, int], major: str) -> int:
    """The longest piece that all strides keep aligned; 0 for elements that are not neighbours."""
    if step[major] != 1 and contract.extent(major) > 1:
        return 0
    item = ITEM_BYTES[access.dtype]
    (other,) = (a for a in step if a != major)
    strides = [access.offset, step[other], *(access.strides[d] for d in contract.axes["batch"])]
    fits = [p for p in PIECES if p >= item and all(s * item % p == 0 for s in strides)]
    return fits[0] if fits else 0
