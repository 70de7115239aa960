"""Reads a `nova.kernel` op into `kernel.Kernel`: one walk over the body, affine maps turned into strides."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from typing import Any

from mlir import ir

from blutrain.nova.kernel import (
    Access,
    BodyOp,
    Gather,
    Generic,
    Index,
    Kernel,
    Operand,
    Produced,
    Scan,
    ScatterAdd,
    Source,
    Splat,
    TensorType,
    Undefined,
    Unsupported,
    row_major_strides,
)


def kernel_text(op: ir.Operation | ir.OpView) -> str:
    """See `kernel.kernel_text`."""
    # A detached copy: printed in place, MLIR would number the values of the whole step for every kernel.
    copy = op.operation.clone(ip=False)
    return _normal(str(copy.get_asm(enable_debug_info=False, print_generic_op_form=True, use_local_scope=True)))


@functools.lru_cache(maxsize=1024)  # equal layers print the same, and every pass asks again
def _normal(text: str) -> str:
    text = text[text.index('"nova.kernel"(') :]
    text = re.sub(r'^"nova\.kernel"\([^)]*\)', '"nova.kernel"()', text)
    names: dict[str, str] = {}
    text = re.sub(r"%[\w$.-]+", lambda m: names.setdefault(m.group(), f"%{len(names)}"), text)
    return "\n".join(line.strip() for line in text.splitlines())


def read(op: ir.Operation | ir.OpView) -> Kernel:
    """Read a `nova.kernel` op. Raises `Unsupported` with the reason where the body is outside the kernel contract."""
    op = op.operation
    (block,) = op.regions[0].blocks
    reader = _Reader(block)
    for body_op in block.operations:
        reader.read(body_op.operation)
    results = tuple(tensor_type(r.type) for r in op.results)
    reserved = ir.IntegerAttr(op.attributes["reserved"]).value if "reserved" in op.attributes else 0
    aliases = (
        tuple(ir.DenseI64ArrayAttr(op.attributes["aliases"])) if "aliases" in op.attributes else (-1,) * len(results)
    )
    return Kernel(
        anchor=ir.StringAttr(op.attributes["anchor"]).value,
        operands=tuple(tensor_type(a.type) for a in block.arguments),
        results=results,
        aliases=aliases,
        ops=tuple(reader.ops),
        yields=reader.yields,
        config=reader.config,
        reserved=reserved,
        text=kernel_text(op),
    )


def tensor_type(type_: ir.Type) -> TensorType:
    tensor = ir.RankedTensorType(type_)
    return TensorType(tuple(tensor.shape), str(tensor.element_type))


@dataclass(frozen=True)
class _View:
    """Memory of `source` under strides and an offset of its own, in elements."""

    source: Source
    strides: tuple[int, ...]
    offset: int


def _layout(value: ir.Value) -> tuple[tuple[int, ...], int]:
    return row_major_strides(tensor_type(value.type).shape), 0


def _kept_dims(sizes: tuple[int, ...], shape: tuple[int, ...]) -> list[int]:
    """Which dimensions of a slice its result keeps: a rank-reducing slice drops some of extent 1."""
    kept: list[int] = []
    for d, size in enumerate(sizes):
        if len(kept) < len(shape) and size == shape[len(kept)]:
            kept.append(d)
    return kept


class _Reader:
    """Walks the body once; `sources` says for every tensor value what it is."""

    def __init__(self, block: ir.Block):
        self.sources: dict[ir.Value, Source] = {a: Operand(i) for i, a in enumerate(block.arguments)}
        self.views: dict[ir.Value, _View] = {a: _View(Operand(i), *_layout(a)) for i, a in enumerate(block.arguments)}
        self.scalars: dict[ir.Value, str] = {}
        self.ops: list[BodyOp] = []
        self.yields: tuple[Source, ...] = ()
        self.config: dict[str, Any] = {}

    def read(self, op: ir.Operation) -> None:
        match op.name:
            case "tensor.empty":
                self.sources[op.results[0]] = Undefined()
            case "arith.constant":
                self._read_constant(op)
            case "linalg.fill":
                self.sources[op.results[0]] = Splat(self._scalar(op.operands[0]), tensor_type(op.results[0].type).dtype)
            case "tensor.extract_slice" | "tensor.collapse_shape" | "tensor.expand_shape":
                self.views[op.results[0]] = self._view(op)
            case "linalg.generic":
                self._append(op, self._generic(op))
            case "nova.gather":
                self._append(op, self._gather(op))
            case "nova.scatter_add":
                self._append(op, self._scatter_add(op))
            case "nova.cumsum":
                self._append(op, Scan(self.sources[op.operands[0]], tensor_type(op.operands[0].type)))
            case "nova.yield":
                self.yields = tuple(self.sources[v] for v in op.operands)
            case name:
                raise Unsupported(f"{name} in a kernel body")

    def _append(self, op: ir.Operation, body_op: BodyOp) -> None:
        for i, result in enumerate(op.results):
            self.sources[result] = Produced(len(self.ops), i)
        self.ops.append(body_op)
        if "lowering_config" in op.attributes:
            self.config = read_config(op.attributes["lowering_config"])

    def _read_constant(self, op: ir.Operation) -> None:
        value = op.attributes["value"]
        result = op.results[0]
        if not isinstance(result.type, ir.RankedTensorType):
            self.scalars[result] = literal(value)
            return
        dense = ir.DenseElementsAttr(value)
        if not dense.is_splat:
            raise Unsupported("a tensor constant that is not a splat: pass it as an operand")
        self.sources[result] = Splat(literal(dense.get_splat_value()), tensor_type(result.type).dtype)

    def _scalar(self, value: ir.Value) -> str:
        if value not in self.scalars:
            raise Unsupported("linalg.fill of a value that is not a constant")
        return self.scalars[value]

    def _generic(self, op: ir.Operation) -> Generic:
        iterators = tuple(str(a).removeprefix("#linalg.iterator_type<")[:-1] for a in op.attributes["iterator_types"])
        maps = [ir.AffineMapAttr(a).value for a in op.attributes["indexing_maps"]]
        block = op.regions[0].blocks[0]
        num_inputs = ir.DenseI32ArrayAttr(op.attributes["operandSegmentSizes"])[0]
        accesses = [self._access(v, m) for v, m in zip(op.operands, maps, strict=True)]
        return Generic(
            extents=_loop_extents(accesses, len(iterators)),
            iterators=iterators,
            inputs=tuple(accesses[:num_inputs]),
            outputs=tuple(accesses[num_inputs:]),
            types=tuple(tensor_type(r.type) for r in op.results),
            block=block,
            is_anchor="nova.anchor" in op.attributes,
            block_ops=tuple(o.operation.name for o in block.operations),
            uses_index=frozenset(
                ir.IntegerAttr(o.attributes["dim"]).value
                for o in block.operations
                if o.operation.name == "linalg.index"
            ),
            extracts=self._extracts(block),
        )

    def _extracts(self, block: ir.Block) -> dict[ir.Value, Operand]:
        found: dict[ir.Value, Operand] = {}
        for op in block.operations:
            if op.operation.name == "tensor.extract":
                tensor = op.operation.operands[0]
                source = self.sources.get(tensor)
                if not isinstance(source, Operand):
                    raise Unsupported("tensor.extract of a value that is not an operand of the kernel")
                found[tensor] = source
        return found

    def _view(self, op: ir.Operation) -> _View:
        """A slice or reshape of an operand: the same memory under another shape."""
        if op.operands[0] not in self.views:
            raise Unsupported(f"{op.name} of a value that is not an operand of the kernel")
        base = self.views[op.operands[0]]
        if op.name == "tensor.extract_slice":
            offsets, sizes, steps = (
                tuple(ir.DenseI64ArrayAttr(op.attributes[f"static_{n}"])) for n in ("offsets", "sizes", "strides")
            )
            if len(op.operands) > 1:
                raise Unsupported("tensor.extract_slice at a dynamic position")
            offset = base.offset + sum(o * s for o, s in zip(offsets, base.strides, strict=True))
            strides = [o * s for o, s in zip(steps, base.strides, strict=True)]
            kept = _kept_dims(sizes, tensor_type(op.results[0].type).shape)
            return _View(base.source, tuple(strides[d] for d in kept), offset)
        if base.strides != row_major_strides(tensor_type(op.operands[0].type).shape):
            raise Unsupported(f"{op.name} of a slice")
        return _View(base.source, row_major_strides(tensor_type(op.results[0].type).shape), base.offset)

    def _access(self, value: ir.Value, map_: ir.AffineMap) -> Access:
        type_ = tensor_type(value.type)
        view = self.views.get(value) or _View(self.sources[value], *_layout(value))
        indices = tuple(read_index(e) for e in map_.results)
        strides = [0] * map_.n_dims
        offset = view.offset
        for index, step in zip(indices, view.strides, strict=True):
            offset += index.offset * step
            if index.dim is not None:
                strides[index.dim] += index.coefficient * step
        return Access(view.source, type_.dtype, type_.shape, tuple(strides), offset, indices)

    def _gather(self, op: ir.Operation) -> Gather:
        table, ids = op.operands
        types = tuple(tensor_type(r.type) for r in op.results)
        return Gather(self.sources[table], self.sources[ids], tensor_type(table.type), tensor_type(ids.type), types)

    def _scatter_add(self, op: ir.Operation) -> ScatterAdd:
        ids, updates, *init = op.operands
        return ScatterAdd(
            self.sources[ids],
            self.sources[updates],
            self.sources[init[0]] if init else None,
            tensor_type(ids.type),
            tensor_type(updates.type),
            tuple(tensor_type(r.type) for r in op.results),
        )


def literal(attribute: ir.Attribute) -> str:
    """MLIR's text of a scalar attribute without its type: `1.000000e+00`, `0x7F800000`, `true`."""
    return str(attribute).split(" : ")[0]


def read_index(expr: ir.AffineExpr) -> Index:
    """`c*d + k` as an Index. Raises `Unsupported` for anything else (mod, division, two dims)."""
    if isinstance(expr, ir.AffineConstantExpr):
        return Index(None, 0, ir.AffineConstantExpr(expr).value)
    if isinstance(expr, ir.AffineDimExpr):
        return Index(ir.AffineDimExpr(expr).position, 1, 0)
    if isinstance(expr, ir.AffineAddExpr):
        binary = ir.AffineAddExpr(expr)
        left, right = read_index(binary.lhs), read_index(binary.rhs)
        if left.dim is not None and right.dim is not None:
            raise Unsupported(f"indexing map result {expr} adds two loop dimensions")
        dim, coefficient = (left.dim, left.coefficient) if left.dim is not None else (right.dim, right.coefficient)
        return Index(dim, coefficient, left.offset + right.offset)
    if isinstance(expr, ir.AffineMulExpr):
        binary = ir.AffineMulExpr(expr)
        left, right = read_index(binary.lhs), read_index(binary.rhs)
        if right.dim is not None:
            left, right = right, left
        return Index(left.dim, left.coefficient * right.offset, left.offset * right.offset)
    raise Unsupported(f"indexing map result {expr}")


def _loop_extents(accesses: list[Access], num_dims: int) -> tuple[int, ...]:
    """Extent of every loop: a tensor's extent where a map has the plain dimension (the verifier: all agree)."""
    extents: list[int | None] = [None] * num_dims
    for access in accesses:
        for index, size in zip(access.indices, access.shape, strict=True):
            if index.dim is not None and index.coefficient == 1 and index.offset == 0:
                extents[index.dim] = size
    if None in extents:
        raise Unsupported("a loop dimension that no indexing map has on its own")
    return tuple(e for e in extents if e is not None)


def read_config(attribute: ir.Attribute) -> dict[str, Any]:
    """`#nova.lowering_config<{...}>` (or a plain dictionary) as Python ints, strings, bools and tuples of them."""
    if not isinstance(attribute, ir.DictAttr):
        attribute = ir.Attribute.parse(re.sub(r"^#nova\.lowering_config<(.*)>$", r"\1", str(attribute), flags=re.S))
    return {named.name: _python(named.attr) for named in _items(ir.DictAttr(attribute))}


def _items(dictionary: ir.DictAttr) -> list[ir.NamedAttribute]:
    return [dictionary[i] for i in range(len(dictionary))]


def _python(attribute: ir.Attribute) -> Any:
    if isinstance(attribute, ir.BoolAttr | ir.StringAttr | ir.IntegerAttr | ir.FloatAttr):
        return attribute.value
    if isinstance(attribute, ir.ArrayAttr | ir.DenseI64ArrayAttr | ir.DenseI32ArrayAttr):
        return tuple(_python(a) if isinstance(a, ir.Attribute) else a for a in attribute)
    raise Unsupported(f"lowering_config value {attribute}")
