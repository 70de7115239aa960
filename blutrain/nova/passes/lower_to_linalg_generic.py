"""One linalg.generic: reads of tensors as inputs, everything else inlined into its region."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...tensor.dtype import float64, int64
from .driver import PassFault
from .form_kernels_axes import Index, compose
from .form_kernels_graph import LOOKUP, MAP, REDUCE, RESHAPE, VIEW, Node, Value
from .lower_to_linalg_lookup import emit_lookup
from .lower_to_linalg_scalar import Region, Scalar, element_text, memory_text, scalar_of

if TYPE_CHECKING:
    from .lower_to_linalg_body import BodyWriter


class GenericWriter:
    """One linalg.generic over `extents`. `read` gives the scalar of a value at an element, `write` closes the
    operation.
    """

    def __init__(self, body: BodyWriter, extents: tuple[int, ...], reduced: frozenset[int] = frozenset()):
        self.body, self.extents, self.reduced = body, extents, reduced
        self.region = Region()
        self.inputs: dict[tuple, tuple[str, Value, tuple[Index, ...]]] = {}
        self._known: dict[tuple, Scalar] = {}

    def load(self, value: Value, indices: tuple[Index, ...]) -> Scalar:
        """The element of a tensor as an input of its own: a product has two factors, even where they are one tensor."""
        name = f"%in{len(self.inputs)}"
        self.inputs[len(self.inputs), value.number, indices] = (name, value, self._placed(value, indices))
        return self.region.widen(name, self.body.dtypes[value.number])

    def read(self, value: Value, indices: tuple[Index, ...]) -> Scalar:
        """The element of `value` at `indices`: loaded where it is a tensor, computed here where it is not."""
        key = (value.number, indices)
        if key in self._known:
            return self._known[key]
        if value.number in self.body.names and (value.node is None or self._is_plain(value, indices)):
            placed = self._placed(value, indices)
            name, _, _ = self.inputs.setdefault(key, (f"%in{len(self.inputs)}", value, placed))
            found = self.region.widen(name, self.body.dtypes[value.number])
        elif value.node.kind not in (MAP, VIEW, RESHAPE):
            raise PassFault(value.node.op, "a kernel reads a part of what it computes")
        else:
            assert value.node is not None  # arguments have names
            found = self.evaluate(value.node, indices)
        self._known[key] = found
        return found

    def _placed(self, value: Value, indices: tuple[Index, ...]) -> tuple[Index, ...]:
        """An index for every dimension of a tensor: the table of a gather keeps those of extent 1."""
        shape = self.body.shapes[value.number]
        if len(shape) == len(indices):
            return indices
        wide = iter(indices)
        return tuple(Index(-1, 0, 0) if extent == 1 else next(wide) for extent in shape)

    def _is_plain(self, value: Value, indices: tuple[Index, ...]) -> bool:
        """Whether all of a tensor is read in its own direction: what a kernel may do with what it computes itself."""
        return self._is_whole(value, indices) and all(
            i.dim >= 0 and i.coefficient == 1 and not i.offset for i in indices
        )

    def _is_whole(self, value: Value, indices: tuple[Index, ...]) -> bool:
        """Whether plain loops of the nest run over the whole of their dimensions: linalg demands it."""
        shape = self.body.shapes[value.number]
        return all(
            self.extents[i.dim] == extent
            for i, extent in zip(indices, shape, strict=True)
            if i.dim >= 0 and i.coefficient == 1 and not i.offset
        )

    def _tensors(self) -> list[tuple[str, str]]:
        """Name and type of every input: of an argument whose front part is read, that part."""
        found = []
        for _, value, indices in self.inputs.values():
            if self._is_whole(value, indices):
                found.append((self.body.names[value.number], self.body.type_of(value)))
            else:
                found.append(self._front(value, indices))
        return found

    def _front(self, value: Value, indices: tuple[Index, ...]) -> tuple[str, str]:
        shape = self.body.shapes[value.number]
        plain = [i.dim >= 0 and i.coefficient == 1 and not i.offset for i in indices]
        sizes = [self.extents[i.dim] if p else n for i, p, n in zip(indices, plain, shape, strict=True)]
        dtype = self.body.dtypes[value.number]
        if 0 in sizes:  # MLIR takes no part of nothing
            return self.body.filled(0, tuple(sizes), dtype), memory_text(sizes, dtype)
        name, type_ = self.body.fresh(), memory_text(sizes, dtype)
        zeros, ones = ", ".join("0" for _ in sizes), ", ".join("1" for _ in sizes)
        taken = f"[{zeros}] [{', '.join(map(str, sizes))}] [{ones}]"
        source = f"{self.body.names[value.number]}{taken} : {self.body.type_of(value)}"
        self.body.line(f"{name} = tensor.extract_slice {source} to {type_}")
        return name, type_

    def evaluate(self, node: Node, indices: tuple[Index, ...]) -> Scalar:
        """The element of the result of a map, view or reshape at `indices`."""
        if node.kind == RESHAPE:
            return self.read(node.operands[0], indices)
        if node.kind == LOOKUP:
            return emit_lookup(self, node, indices)
        operands = [self.read(r.value, compose(indices, r.indices)) for r in self.body.axes.loops(node).reads]
        if node.kind in (VIEW, REDUCE):
            return self._alone(node, operands[0])
        return self._element(node, operands, indices)

    def _alone(self, node: Node, operand: Scalar) -> Scalar:
        """A view, or a reduction over one element."""
        if node.kind == REDUCE and node.record.nova.combiner.startswith("arg"):
            return self.region.constant(0, int64)
        return self.region.cast(operand, node.result.dtype)

    def _element(self, node: Node, operands: list[Scalar], indices: tuple[Index, ...]) -> Scalar:
        dtype, name = node.result.dtype, node.name
        if name in ("constant", "full"):
            return self.region.constant(node.attrs["value"], dtype)
        if name == "cast":
            return self.region.round(operands[0], dtype)
        if name == "iota":
            return self._iota(node, indices)
        if name == "wrap_index":
            return self._wrapped(operands[0], node.attrs["size"])
        if name == "random_bits":
            return self._random_bits(node, operands, indices)
        try:
            return scalar_of(self.region, node.record.nova, operands, [v.dtype for v in node.operands], dtype)
        except ValueError as fault:
            raise PassFault(node.op, f"{name} cannot be compiled: {fault}") from fault

    def _wrapped(self, place: Scalar, size: int) -> Scalar:
        """An index, `size` added where it is negative."""
        region = self.region
        negative = region.compare("slt", place, region.constant(0, place.dtype))
        return region.select(negative, region.apply("arith.addi", place, region.constant(size, place.dtype)), place)

    def position(self, value: Value, indices: tuple[Index, ...]) -> Scalar:
        """The row-major number of an element of `value` as i64."""
        total, step = self.region.constant(0, int64), 1
        for extent, index in zip(reversed(self.body.axes.atoms(value)), reversed(indices), strict=True):
            along = self.region.index(index.dim, index.coefficient * step, index.offset * step)
            total = along if step == 1 else self.region.apply("arith.addi", total, along)
            step *= extent
        return total

    def _iota(self, node: Node, indices: tuple[Index, ...]) -> Scalar:
        """start + i * step in i64, or f64 where either is no integer."""
        start, step = node.attrs["start"], node.attrs["step"]
        place = self.position(node.result, indices)
        if isinstance(start, int) and isinstance(step, int):
            scaled = place if step == 1 else self.region.apply("arith.muli", place, self.region.constant(step, int64))
            shifted = (
                scaled if start == 0 else self.region.apply("arith.addi", scaled, self.region.constant(start, int64))
            )
            return self.region.cast(shifted, node.result.dtype)
        wide = self.region.cast(place, float64)
        scaled = self.region.apply("arith.mulf", wide, self.region.constant(step, float64))
        return self.region.cast(
            self.region.apply("arith.addf", scaled, self.region.constant(start, float64)), node.result.dtype
        )

    def _random_bits(self, node: Node, operands: list[Scalar], indices: tuple[Index, ...]) -> Scalar:
        seed, draw = (self.region.cast(x, int64) for x in operands)
        site = node.attrs.get("site", 0)
        number = self.region.apply("arith.addi", draw, self.region.constant(site, int64)) if site else draw
        place = self.position(node.result, indices)
        text = f'"nova.random_bits"({seed.name}, {number.name}, {place.name}) : (i64, i64, i64) -> i32'
        return Scalar(self.region.value(text), node.result.dtype)

    def write(
        self, results, inits: list[str] | None = None, attributes: str = "", yields: list[str] | None = None
    ) -> list[str]:
        """Emit the operation. `results`: (scalar, dtype stored, loop of every dimension of the result). Returns the
        results' names.
        """
        shapes = [tuple(self.extents[d] for d in dims) for _, _, dims in results]
        types = [memory_text(shape, dtype) for shape, (_, dtype, _) in zip(shapes, results, strict=True)]
        inits = inits or [self.body.empty(shape, dtype) for shape, (_, dtype, _) in zip(shapes, results, strict=True)]
        stored = yields or [self.region.narrow(scalar, dtype) for scalar, dtype, _ in results]
        reads = list(self.inputs.values())
        maps = [map_text(len(self.extents), indices) for _, _, indices in reads]
        maps += [map_text(len(self.extents), tuple(Index(d) for d in dims)) for _, _, dims in results]
        kinds = ", ".join('"reduction"' if d in self.reduced else '"parallel"' for d in range(len(self.extents)))
        tensors = self._tensors()
        loaded = ", ".join(name for name, _ in tensors)
        load_types = ", ".join(type_ for _, type_ in tensors)
        ins = f"ins({loaded} : {load_types}) " if reads else ""
        arguments = [f"{name}: {element_text(self.body.dtypes[v.number])}" for name, v, _ in reads]
        arguments += [f"%acc{i}: {element_text(dtype)}" for i, (_, dtype, _) in enumerate(results)]
        names = [self.body.fresh() for _ in results]
        marked = f" attrs = {{{attributes}}}" if attributes else ""
        elements = ", ".join(element_text(dtype) for _, dtype, _ in results)
        self.body.line(
            f"{', '.join(names)} = linalg.generic {{indexing_maps = [{', '.join(maps)}], iterator_types = [{kinds}]}} "
            f"{ins}outs({', '.join(inits)} : {', '.join(types)}){marked} {{"
        )
        self.body.line(f"^bb0({', '.join(arguments)}):")
        for line in self.region.lines:
            self.body.line(f"  {line}")
        self.body.line(f"  linalg.yield {', '.join(stored)} : {elements}")
        self.body.line(f"}} -> {types[0] if len(types) == 1 else '(' + ', '.join(types) + ')'}")
        return names


def identity(num_dims: int) -> tuple[Index, ...]:
    return tuple(Index(d) for d in range(num_dims))


def map_text(num_dims: int, indices: tuple[Index, ...]) -> str:
    loops = ", ".join(f"d{d}" for d in range(num_dims))
    return f"affine_map<({loops}) -> ({', '.join(_index_text(i) for i in indices)})>"


def _index_text(index: Index) -> str:
    if index.dim < 0:
        return str(index.offset)
    text = f"d{index.dim}" if index.coefficient == 1 else f"d{index.dim} * {index.coefficient}"
    return f"{text} + {index.offset}" if index.offset else text
