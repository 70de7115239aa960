"""Reading and editing the step function of a module: what importer, verifier and graph passes share.

A module holds one `func.func @step` of one block: operations of the primitive table, splat constants, `nova.assign`,
`nova.check`. Values are weak where they stand for a Python number (run-time scalars, constants marked `nova.weak`, and
what is computed from such alone): they take the dtype of the tensors they meet, and their own arithmetic is in
float64, as Python's.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property

from mlir import ir

from ...tensor.aval import Aval
from ...tensor.dtype import BOOL, FLOATING, INTEGER, DType, bool_, float64, float_dtype, int64, promote
from ...tensor.primitive import TABLE, Primitive, Scalar
from .convert import attribute_of, aval_of, python_of, scalar_attribute, tensor_type

_EFFECTS = frozenset(("nova.assign", "nova.check", "func.return", "nova.bucket_ready", "nova.bucket_wait"))
WEAK = "nova.weak"
ROLE = "nova.role"


def has_effect(op: ir.Operation) -> bool:
    """Whether `op` stays though nobody reads a result: other processes take part in collectives."""
    if op.name in _EFFECTS:
        return True
    prim = TABLE.get(op.name.removeprefix("nova."))
    return prim is not None and "collective" in prim.tags


class Graph:
    """The step function of `module`. Methods that create operations do so at the current insertion point and location.

    Errors: ValueError if the module has no function `step` of one block.
    """

    def __init__(self, module: ir.Module):
        self.module = module
        for op in module.body.operations:
            if op.operation.name == "func.func" and ir.StringAttr(op.attributes["sym_name"]).value == "step":
                self.func = op.operation
                break
        else:
            raise ValueError("the module has no func.func @step")
        (self.block,) = self.func.regions[0].blocks
        self._dead: list[ir.Operation] = []
        self._avals: dict[ir.Type, Aval] = {}
        self._weak: dict[ir.Value, bool] = {}

    @cached_property
    def arguments(self) -> tuple[ir.Value, ...]:
        return tuple(self.block.arguments)

    @cached_property
    def roles(self) -> tuple[str, ...]:
        """The role of every argument: "state", "input" or "scalar"."""
        attributes = ir.ArrayAttr(self.func.attributes["arg_attrs"]) if "arg_attrs" in self.func.attributes else ()
        found = tuple(ir.StringAttr(a[ROLE]).value if ROLE in a else "input" for a in map(ir.DictAttr, attributes))
        return found or ("input",) * len(self.arguments)

    def operations(self) -> list[ir.Operation]:
        """The operations in order, the closing func.return included: a copy of the list, safe to edit under."""
        return [op.operation for op in self.block.operations]

    def aval(self, value: ir.Value) -> Aval:
        """Shape and dtype of a value, weak where it stands for a Python number."""
        type_ = value.type
        aval = self._avals.get(type_)
        if aval is None:
            aval = self._avals[type_] = aval_of(type_)
        return aval._replace(weak=True) if not aval.shape and self.is_weak(value) else aval

    def is_weak(self, value: ir.Value) -> bool:
        """Whether `value` stands for a Python number."""
        found = self._weak.get(value)
        if found is None:
            found = self._weak[value] = self._find_weak(value)
        return found

    def _find_weak(self, value: ir.Value) -> bool:
        owner = value.owner
        if isinstance(owner, ir.Block):
            return self.roles[value.arg_number] == "scalar"
        if owner.name == "nova.constant":
            return WEAK in owner.attributes
        prim = TABLE.get(owner.name.removeprefix("nova."))
        if prim is None or not isinstance(prim.nova, Scalar) or prim.name == "cast":
            return False
        operands = list(owner.operands)
        return bool(operands) and all(not ir.RankedTensorType(v.type).shape and self.is_weak(v) for v in operands)

    def replace(self, op: ir.Operation, values: Sequence[ir.Value]) -> None:
        """Every use of the results of `op` becomes a use of `values`. `op` itself stays until `sweep`, for values are
        keys of dictionaries by address: an operation freed under a pass would give its address to the next one
        created."""
        for old, new in zip(op.results, values, strict=True):
            old.replace_all_uses_with(new)
        self._dead.append(op)

    def sweep(self) -> None:
        """Erase what `replace` left behind."""
        while self._dead:
            self._dead.pop().erase()

    def number_checks(self) -> None:
        """Give every nova.check its number in the order of the step."""
        checks = [op for op in self.operations() if op.name == "nova.check"]
        for index, op in enumerate(checks):
            op.attributes["index"] = attribute_of(index)

    def create(
        self, name: str, operands: Sequence[ir.Value], results: Iterable[Aval], attributes: dict | None = None
    ) -> ir.Operation:
        """Create `nova.<name>`; `attributes` are Python values."""
        return ir.Operation.create(
            f"nova.{name}",
            results=[tensor_type(a.shape, a.dtype) for a in results],
            operands=operands,
            attributes={k: attribute_of(v) for k, v in attributes.items()} if attributes else None,
        )

    def constant(
        self, value: bool | int | float, dtype: DType, shape: tuple[int, ...] = (), weak: bool = False
    ) -> ir.Value:
        """A splat of `value`, rounded to `dtype`."""
        attributes = {"value": scalar_attribute(value, dtype)}
        if weak:
            attributes[WEAK] = ir.UnitAttr.get()
        return ir.Operation.create("nova.constant", results=[tensor_type(shape, dtype)], attributes=attributes).result

    def as_operands(self, prim: Primitive, items: Sequence[ir.Value | bool | int | float]) -> list[ir.Value]:
        """Values and Python numbers as operands of `prim`. Where an elementwise one mixes numbers and tensors, the
        numbers (weak values too) become tensors of the common dtype; elsewhere a Python number becomes a weak
        constant."""
        avals = [self.aval(x) if isinstance(x, ir.Value) else _number_aval(x) for x in items]
        dtype = _common_dtype(prim, avals)
        if dtype is None:
            wide = _wide_dtype(avals) if isinstance(prim.nova, Scalar) else None
            return [
                x if isinstance(x, ir.Value) else self.constant(x, wide or a.dtype, weak=True)
                for x, a in zip(items, avals, strict=True)
            ]
        return [self._number(x, dtype) if a.weak else x for x, a in zip(items, avals, strict=True)]

    def _number(self, item: ir.Value | bool | int | float, dtype: DType) -> ir.Value:
        return self.cast(item, dtype) if isinstance(item, ir.Value) else self.constant(item, dtype)

    def cast(self, value: ir.Value, dtype: DType) -> ir.Value:
        """`value` as `dtype`; itself where it already is."""
        aval = self.aval(value)
        if aval.dtype is dtype and not aval.weak:
            return value
        number = constant_value(value)
        if number is not None:
            return self.constant(number, dtype, aval.shape)
        return self.create("cast", [value], [Aval(aval.shape, dtype)], {"dtype": dtype}).result


def _number_aval(number: bool | int | float) -> Aval:
    """The aval of a Python number, in the dtype that holds it exactly."""
    return Aval((), bool_ if isinstance(number, bool) else int64 if isinstance(number, int) else float64, True)


def _wide_dtype(avals: Sequence[Aval]) -> DType:
    """The dtype that holds every one of some Python numbers."""
    return {BOOL: bool_, INTEGER: int64, FLOATING: float64}[max(a.dtype.category for a in avals)]


def _common_dtype(prim: Primitive, avals: Sequence[Aval]) -> DType | None:
    """The dtype that numbers take among tensors in elementwise `prim`; None where `prim` is no such mixture."""
    if not isinstance(prim.nova, Scalar) or not any(a.weak for a in avals) or all(a.weak for a in avals):
        return None
    if prim.nova.compute == "select":
        return promote(avals[1:])
    dtype = promote(avals)
    return float_dtype(dtype) if prim.nova.compute == "result" else dtype


def attributes(op: ir.Operation) -> dict:
    """The attributes of a record's operation as Python values; annotations of the compiler (names with a dot) are left
    out.
    """
    found = op.attributes
    return {name: python_of(found[name]) for name in found if "." not in name}


def constant_value(value: ir.Value) -> bool | int | float | None:
    """The number that a `nova.constant` splats; None for any other value."""
    owner = value.owner
    if isinstance(owner, ir.Block) or owner.name != "nova.constant":
        return None
    return python_of(owner.attributes["value"])


def producer(value: ir.Value, name: str) -> ir.Operation | None:
    """The operation called `name` (with its prefix) that made `value`; None where something else did."""
    owner = value.owner
    return None if isinstance(owner, ir.Block) or owner.name != name else owner.operation
