"""What a contract kernel computes, as expressions over the loop dimensions of its contraction.

A `Contract` (made by `read`) has the dimensions sorted into axes (batch, m, n, k), the two factors as expressions (the
prologues), the stores as expressions of the accumulator (the epilogues), and the reductions. Prologue and epilogue generics
disappear here: each operand access inside them is composed down to one stride for each contraction dimension, so the
emitters see loads, scalar regions and stores, and never a second iteration space.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from mlir import ir

from blutrain.nova.kernel import Access, Generic, Index, Kernel, linear_step

AXES = ("batch", "m", "n", "k")


@dataclass(frozen=True)
class Load:
    """An operand's element; `access` has a stride for every contraction dimension."""

    access: Access


@dataclass(frozen=True)
class Constant:
    """A splat: the same literal everywhere."""

    literal: str
    dtype: str


@dataclass(frozen=True)
class Accumulated:
    """The finished sum of the contraction (init included) at the current element."""


@dataclass(frozen=True)
class Apply:
    """Result `result` of a generic's region on `arguments`.

    `indices[d]` is its loop dimension d in contraction dimensions.
    """

    generic: Generic
    indices: tuple[Index, ...]
    arguments: tuple[Expression, ...]
    result: int


Expression = Load | Constant | Accumulated | Apply


@dataclass(frozen=True)
class Store:
    """Result `access.source` of the kernel (numbered after its operands) gets `value` for every batch, m, n."""

    value: Expression
    access: Access


@dataclass(frozen=True)
class ColumnReduction:
    """A reduction of an epilogue's value over batch and m: one value for each n. (Of `row_reductions`: over n, one value
    for each m.)

    What is reduced is the region of `generic` up to its combiner, on `arguments`; `indices` as those of `Apply`. `outputs`
    are stores of maps of the reduced value, in which `Accumulated` stands for it.
    """

    generic: Generic
    indices: tuple[Index, ...]
    arguments: tuple[Expression, ...]
    init: Expression
    outputs: tuple[Store, ...]


@dataclass(frozen=True)
class Factor:
    """One factor of the product: `value` enters the contraction's region as `argument` and the mulf as `product`."""

    value: Expression
    argument: ir.BlockArgument
    product: ir.Value
    axis: str


@dataclass(frozen=True, eq=False)
class Contract:
    """A contract kernel.

    `axes[name]` lists contraction dimensions, outermost first; `rows` varies along m, `columns` along n. There are
    `row_reductions` only where the reader was asked for them.
    """

    kernel: Kernel
    generic: Generic
    axes: dict[str, tuple[int, ...]]
    dtype: str
    rows: Factor
    columns: Factor
    init: Load | None
    stores: tuple[Store, ...]
    reductions: tuple[ColumnReduction, ...]
    row_reductions: tuple[ColumnReduction, ...] = ()

    @property
    def precision(self) -> str:
        """Of f32 factors: "tf32", or "fp32" where the anchor does not say so."""
        attributes = self.generic.block.owner.attributes
        return ir.StringAttr(attributes["precision"]).value if "precision" in attributes else "fp32"

    def extent(self, axis: str) -> int:
        return math.prod(self.generic.extents[d] for d in self.axes[axis])

    def steps(self, access: Access, axis: str) -> tuple[list[int], list[int]]:
        """Extents of an axis's dimensions, and what one index of each is for an access, in elements."""
        dims = self.axes[axis]
        return [self.generic.extents[d] for d in dims], [access.strides[d] for d in dims]

    def step(self, access: Access, axis: str) -> int | None:
        """Elements from one index of an axis to the next; None where there is no such number."""
        return linear_step(*self.steps(access, axis))

    def moves(self, access: Access, axis: str) -> bool:
        """Does an access read other elements along an axis."""
        return any(step and extent > 1 for extent, step in zip(*self.steps(access, axis), strict=True))


def loads(value: Expression) -> list[Access]:
    """Every operand access in an expression."""
    if isinstance(value, Load):
        return [value.access]
    if isinstance(value, Apply):
        return [access for argument in value.arguments for access in loads(argument)]
    return []


def unwidened(factor: Factor) -> Expression | None:
    """A factor without widening to f32, which tensor cores do by themselves; None where the product's region does more."""
    if factor.product != factor.argument:
        owner = factor.product.owner
        if owner.name != "arith.extf" or owner.operands[0] != factor.argument:
            return None
    value = factor.value
    while isinstance(value, Apply) and value.generic.block_ops == ("arith.extf", "linalg.yield"):
        value = value.arguments[0]
    return value


def index_dims(value: Expression) -> set[int]:
    """Contraction dimensions whose index the expression's regions ask for (`linalg.index`)."""
    if not isinstance(value, Apply):
        return set()
    asked = (value.indices[d].dim for d in value.generic.uses_index)
    return {d for d in asked if d is not None}.union(*(index_dims(argument) for argument in value.arguments))
