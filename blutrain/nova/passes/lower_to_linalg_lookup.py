"""Operations that read at computed places: concat, pad, slice_update, slice_scatter and general indexing, by
tensor.extract and select.

Every place is clamped into the tensor before it is read, so nothing is read out of bounds; what was clamped is then
not selected.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...tensor.dtype import bool_, int64
from .driver import PassFault
from .form_kernels_axes import Index, groups
from .form_kernels_graph import Node, Value
from .form_kernels_memory import memory_of
from .lower_to_linalg_scalar import Scalar

if TYPE_CHECKING:
    from .lower_to_linalg_generic import GenericWriter


def emit_lookup(generic: GenericWriter, node: Node, indices: tuple[Index, ...]) -> Scalar:
    """The element of the result of `node` at `indices`. Errors: PassFault for a rule without code."""
    if not node.result.size:
        return generic.region.constant(0, node.result.dtype)  # of no element
    if any(value.size == 0 for value in node.operands) and node.name != "concat":
        return _of_empty(generic, node)
    rule = _RULES.get(node.name)
    if rule is None:
        raise PassFault(node.op, f"{node.name} cannot be compiled: no kernel reads at such places")
    places = _places(generic, node.result, indices)
    return rule(generic, node, places)


def _places(generic: GenericWriter, value: Value, indices: tuple[Index, ...]) -> list[Scalar]:
    """The index along every dimension of `value` (one atom each, none for extent 1) as i64."""
    found, remaining = [], list(indices)
    for dim in range(len(value.shape)):
        atoms = generic.body.axes.axis_atoms(value, dim)
        place = generic.region.constant(0, int64)
        for extent in atoms:
            place = (
                generic.region.apply("arith.muli", place, generic.region.constant(extent, int64))
                if len(atoms) > 1
                else place
            )
            index = remaining.pop(0)
            along = generic.region.index(index.dim, index.coefficient, index.offset)
            place = generic.region.apply("arith.addi", place, along) if len(atoms) > 1 else along
        found.append(place)
    return found


def _load(generic: GenericWriter, value: Value, places: list[Scalar]) -> Scalar:
    """The element of a tensor at computed places, one for every dimension of `value`."""
    body, region = generic.body, generic.region
    memory = value if value.number in body.names else memory_of(value)
    if memory.number not in body.names:
        assert memory.node is not None  # arguments have names
        return generic.evaluate(memory.node, ())  # a splat: the same everywhere
    places = _regrouped(generic, places, value.shape, body.shapes[memory.number])
    at = [region.value(f"arith.index_cast {place.name} : i64 to index") for place in places]
    name = region.value(f"tensor.extract {body.names[memory.number]}[{', '.join(at)}] : {body.type_of(memory)}")
    return region.widen(name, body.dtypes[memory.number])


def _regrouped(
    generic: GenericWriter, places: list[Scalar], before: tuple[int, ...], after: tuple[int, ...]
) -> list[Scalar]:
    """Places along dimensions `before` as places along `after`, the same memory in other dimensions."""
    found: list[Scalar] = []
    for left, right in groups(before, after):
        sizes = [after[d] for d in right]
        wide = [d for d in left if before[d] > 1]
        if len(wide) == len([size for size in sizes if size > 1]) <= 1:
            found += [places[wide[0]] if size > 1 else generic.region.constant(0, int64) for size in sizes]
        else:
            flat = _flattened(generic, [places[d] for d in wide], [before[d] for d in wide])
            found += _unflattened(generic, flat, sizes)
    return found


def _flattened(generic: GenericWriter, places: list[Scalar], sizes: list[int]) -> Scalar:
    region, total = generic.region, places[0]
    for place, size in zip(places[1:], sizes[1:], strict=True):
        total = region.apply("arith.addi", region.apply("arith.muli", total, region.constant(size, int64)), place)
    return total


def _unflattened(generic: GenericWriter, flat: Scalar, sizes: list[int]) -> list[Scalar]:
    region, found = generic.region, []
    for size in reversed(sizes[1:]):
        width = region.constant(size, int64)
        found.append(region.apply("arith.remui", flat, width))
        flat = region.apply("arith.divui", flat, width)
    return [flat, *reversed(found)]


def _clamped(generic: GenericWriter, place: Scalar, extent: int) -> Scalar:
    region = generic.region
    low = region.apply("arith.maxsi", place, region.constant(0, int64))
    return region.apply("arith.minsi", low, region.constant(extent - 1, int64))


def _inside(generic: GenericWriter, place: Scalar, extent: int) -> Scalar:
    """0 <= place < extent, in one unsigned comparison."""
    return generic.region.compare("ult", place, generic.region.constant(extent, int64))


def _all(generic: GenericWriter, conditions: list[Scalar]) -> Scalar:
    found = generic.region.constant(True, bool_)
    for i, condition in enumerate(conditions):
        found = condition if i == 0 else generic.region.apply("arith.andi", found, condition)
    return found


def _of_empty(generic: GenericWriter, node: Node) -> Scalar:
    """The result where an operand has no elements: what surrounds it."""
    if node.name == "slice_update":
        return _load(generic, node.operands[0], _places(generic, node.result, _identity(generic)))
    value = node.attrs.get("value", 0)
    return generic.region.constant(value, node.result.dtype)


def _identity(generic: GenericWriter) -> tuple[Index, ...]:
    return tuple(Index(d) for d in range(len(generic.extents)))


def _concat(generic: GenericWriter, node: Node, places: list[Scalar]) -> Scalar:
    region, dim = generic.region, node.attrs["dim"] % len(node.result.shape)
    found, start = None, 0
    for value in node.operands:
        extent = value.shape[dim]
        if extent == 0:
            continue
        here = region.apply("arith.subi", places[dim], region.constant(start, int64))
        at = [*places[:dim], _clamped(generic, here, extent), *places[dim + 1 :]]
        element = _load(generic, value, at)
        behind = region.compare("sge", places[dim], region.constant(start, int64))
        found = element if found is None else region.select(behind, element, found)
        start += extent
    return found if found is not None else region.constant(0, node.result.dtype)


def _pad(generic: GenericWriter, node: Node, places: list[Scalar]) -> Scalar:
    (value,) = node.operands
    region, low = generic.region, node.attrs["low"]
    here = [
        region.apply("arith.subi", p, region.constant(low[d], int64)) if low[d] else p for d, p in enumerate(places)
    ]
    inside = _all(
        generic,
        [_inside(generic, p, n) for p, n, m in zip(here, value.shape, node.result.shape, strict=True) if n != m],
    )
    element = _load(generic, value, [_clamped(generic, p, n) for p, n in zip(here, value.shape, strict=True)])
    return region.select(
        inside, element, region.cast(region.constant(node.attrs["value"], node.result.dtype), node.result.dtype)
    )


def _slice_update(generic: GenericWriter, node: Node, places: list[Scalar]) -> Scalar:
    base, value = node.operands
    inside, at = _in_slice(generic, node, places, value.shape)
    return generic.region.select(inside, _load(generic, value, at), _load(generic, base, places))


def _slice_scatter(generic: GenericWriter, node: Node, places: list[Scalar]) -> Scalar:
    (value,) = node.operands
    inside, at = _in_slice(generic, node, places, value.shape)
    element = _load(generic, value, at)
    return generic.region.select(inside, element, generic.region.constant(0, node.result.dtype))


def _in_slice(
    generic: GenericWriter, node: Node, places: list[Scalar], sizes: tuple[int, ...]
) -> tuple[Scalar, list[Scalar]]:
    """Whether the element lies in the slice of `node`, and its place there, clamped."""
    region, conditions, at = generic.region, [], []
    for place, size, start, step in zip(places, sizes, node.attrs["starts"], node.attrs["steps"], strict=True):
        here = region.apply("arith.subi", place, region.constant(start, int64)) if start else place
        if step != 1:
            width = region.constant(step, int64)
            remainder = region.apply("arith.remsi", here, width)
            conditions.append(region.compare("eq", remainder, region.constant(0, int64)))
            here = region.apply("arith.divsi", here, width)
        conditions.append(_inside(generic, here, size))
        at.append(_clamped(generic, here, size))
    return _all(generic, conditions), at


def _index_rows(generic: GenericWriter, node: Node, places: list[Scalar]) -> Scalar:
    """take: dimension `dim` of the operand replaced by the dimensions of the index."""
    value, ids = node.operands
    dim = node.attrs["dim"] % len(value.shape)
    behind = dim + len(ids.shape)
    id_ = _wrapped(generic, _load(generic, ids, places[dim:behind]), value.shape[dim])
    return _load(generic, value, [*places[:dim], id_, *places[behind:]])


def _index_along(generic: GenericWriter, node: Node, places: list[Scalar]) -> Scalar:
    """gather: the index has an entry for every element of the result."""
    value, ids = node.operands
    dim = node.attrs["dim"] % len(value.shape)
    id_ = _wrapped(generic, _load(generic, ids, places), value.shape[dim])
    return _load(generic, value, [*places[:dim], id_, *places[dim + 1 :]])


def _wrapped(generic: GenericWriter, id_: Scalar, extent: int) -> Scalar:
    """An index that may count from the end, as i64 within [0, extent)."""
    region = generic.region
    wide = region.cast(id_, int64)
    negative = region.compare("slt", wide, region.constant(0, int64))
    wrapped = region.select(negative, region.apply("arith.addi", wide, region.constant(extent, int64)), wide)
    return _clamped(generic, wrapped, extent)


_RULES = {
    "concat": _concat,
    "pad": _pad,
    "slice_update": _slice_update,
    "slice_scatter": _slice_scatter,
    "take": _index_rows,
    "gather": _index_along,
}
