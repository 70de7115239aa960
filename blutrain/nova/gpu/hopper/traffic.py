"""What an epilogue reads, computes and writes: found once for a problem, asked for every schedule."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from mlir import ir

from blutrain.nova.contract.form import Apply, Contract, Expression, loads
from blutrain.nova.kernel import ITEM_BYTES, Access, Generic

TMA_ALIGNMENT = 16  # bytes: of every stride and base address (CUDA driver API, cuTensorMapEncodeTiled)
TILED_DTYPES = ("f32", "bf16", "f16")
# Instructions of an element, and those of the special function unit among them (a quarter of the rate of the others, an
# eighth of what a warp can issue). Products and sums often fuse: 0.8 each.
ARITHMETIC = {"arith.addf": 0.8, "arith.mulf": 0.8, "arith.subf": 0.8, "arith.negf": 0.0, "arith.truncf": 0.5}
FREE = ("arith.constant", "linalg.yield", "linalg.index")
SPECIAL = {"math.exp": 1.0, "math.exp2": 0.0, "math.tanh": 0.0, "math.log": 1.0, "math.log2": 0.0, "math.rsqrt": 0.0}
LONG = {"math.erf": 20.0, "arith.divf": 8.0, "math.sqrt": 8.0, "arith.remf": 30.0, "math.powf": 30.0}


class Traffic:
    """loads: what the epilogue reads, matrices first. axes: along which of m and n an access moves, "mn" for a matrix,
    "n" or "m" for a vector, "" for a scalar. tiled: accesses that TMA can move. operations: of one element.
    """

    def __init__(self, contract: Contract):
        accesses = _all_loads(contract)
        self.axes = {a: _axes_of(contract, a) for a in (*accesses, *(s.access for s in contract.stores))}
        self.tiled = frozenset(access for access in self.axes if _is_tiled(contract, access))
        self.loads = tuple(sorted(accesses, key=lambda access: self.axes[access] != "mn"))
        self.matrices = tuple(access for access in self.loads if self.axes[access] == "mn")
        self.operations = operations(contract)


def _all_loads(contract: Contract) -> list[Access]:
    found = [contract.init.access] if contract.init is not None else []
    reductions = (*contract.reductions, *contract.row_reductions)
    for value in (*(s.value for s in contract.stores), *(a for r in reductions for a in r.arguments)):
        found += loads(value)
    return list(dict.fromkeys(found))


def _axes_of(contract: Contract, access: Access) -> str:
    return "".join(axis for axis in "mn" if contract.moves(access, axis))


def _is_tiled(contract: Contract, access: Access) -> bool:
    """Can TMA move this operand or result: a matrix, rows contiguous along n, rows and batches multiples of 16 bytes apart."""
    item = ITEM_BYTES[access.dtype]
    if _axes_of(contract, access) != "mn" or access.dtype not in TILED_DTYPES:
        return False
    batch, m, n = (step_along(contract, access, axis) for axis in ("batch", "m", "n"))
    if batch is None or m is None or n != 1 or (contract.extent("batch") > 1 and not batch):
        return False
    return min(batch, m, access.offset) >= 0 and not any(x * item % TMA_ALIGNMENT for x in (batch, m, access.offset))


def step_along(contract: Contract, access: Access, axis: str) -> int | None:
    """As `Contract.step`, 0 along an axis of one index."""
    step = contract.step(access, axis)
    return step if step is None or contract.extent(axis) > 1 else 0


@dataclass(frozen=True)
class Operations:
    """Of one element of the product."""

    issued: float
    special: float

    def __add__(self, other: Operations) -> Operations:
        return Operations(self.issued + other.issued, self.special + other.special)


def operations(contract: Contract) -> Operations:
    """What the regions of an epilogue compute for one element. What two of them compute alike counts once."""
    counter = _Counter()
    if contract.init is not None:
        counter.total += Operations(ARITHMETIC["arith.addf"], 0.0)
    for store in contract.stores:
        counter.value(store.value)
    for reduction in (*contract.reductions, *contract.row_reductions):
        counter.region(reduction.generic, [counter.value(a) for a in reduction.arguments])
    return counter.total


class _Counter:
    """Numbers the values of an epilogue: equal operations on equal values are one."""

    def __init__(self) -> None:
        self.total = Operations(0.0, 0.0)
        self._numbers: dict[Hashable, int] = {}

    def value(self, value: Expression) -> int:
        if isinstance(value, Apply):
            return self.region(value.generic, [self.value(a) for a in value.arguments])[value.result]
        return self._number(value)

    def region(self, generic: Generic, arguments: Sequence[int]) -> list[int]:
        """The numbers of what a region yields."""
        inside: dict[ir.Value, int] = dict(
            zip(generic.block.arguments, arguments)
        )  # not the outputs, which nobody reads
        for op in generic.block.operations:
            operation = op.operation
            operands = [self._number(inside.get(v, "output")) for v in operation.operands]
            if operation.name == "linalg.yield":
                return operands
            attributes = tuple((name, str(operation.attributes[name])) for name in operation.attributes)
            key, before = (operation.name, *operands, *attributes), len(self._numbers)
            number = self._number(key)
            if len(self._numbers) > before:
                self.total += _operation(op)
            inside.update((result, number) for result in operation.results)
        return []

    def _number(self, key: Hashable) -> int:
        return self._numbers.setdefault(key, len(self._numbers))


def _operation(op: ir.OpView) -> Operations:
    name = op.operation.name
    if name in FREE:
        return Operations(0.0, 0.0)
    if name == "arith.divf" and _is_constant(op.operation.operands[0]):
        return Operations(1.0, 1.0)
    if name in SPECIAL:
        return Operations(1.0 + SPECIAL[name], 1.0)
    return Operations(LONG.get(name, ARITHMETIC.get(name, 1.0)), float(name in LONG))


def _is_constant(value: ir.Value) -> bool:
    return not isinstance(value.owner, ir.Block) and value.owner.name == "arith.constant"
