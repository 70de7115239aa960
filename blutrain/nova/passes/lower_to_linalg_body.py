"""The body of one kernel as linalg on tensors whose dimensions are atoms (see form_kernels_axes): extents of 1 and
reshapes are gone.

A node becomes an operation of its own where its result is yielded, read by several others, reduced, a product, a
gather or scatter, or is smaller than the nest that reads it; everything else is inlined into the region that reads
it, movement as indexing maps.
"""

from __future__ import annotations

from ...tensor.dtype import DType, bool_, int64
from .driver import PassFault
from .form_kernels_axes import Axes, Index, Loops, Read, compose
from .form_kernels_graph import (
    CONTRACT,
    GATHER,
    LOOKUP,
    MAP,
    REDUCE,
    RESHAPE,
    SCATTER,
    VIEW,
    Node,
    StepGraph,
    Value,
    tensor_text,
)
from .form_kernels_roots import memory_of
from .lower_to_linalg_lookup import emit_lookup
from .lower_to_linalg_reduce import emit_argument, emit_total
from .lower_to_linalg_scalar import Region, Scalar, computing, element_text, literal, scalar_of


class BodyWriter:
    """Writes the body. Afterwards `lines` is its text and `argument_shapes`, `result_shapes` are the shapes of the
    kernel's operands and results inside (their memory in row-major order, as outside)."""

    def __init__(self, graph: StepGraph):
        self.graph, self.axes = graph, Axes(graph)
        self.lines: list[str] = []
        self.shapes: dict[int, tuple[int, ...]] = {}
        self.names: dict[int, str] = {}
        self.dtypes: dict[int, DType] = {}
        self._count = 0
        if self.axes.opaque:
            node = graph.nodes[min(self.axes.opaque)]
            raise PassFault(node.op, "a reshape inside a kernel regroups dimensions that have no common refinement")
        self.apart = self._nodes_apart()
        self._arguments()
        for node in graph.nodes:
            if node.number in self.apart:
                self._node(node)
        self.results = [self._yielded(value, i) for i, value in enumerate(graph.outputs)]
        self.argument_shapes = [self.shapes[a.number] for a in graph.arguments]
        self.result_shapes = [self.shapes[v.number] for v in graph.outputs]

    # --- which nodes are operations of their own

    def _nodes_apart(self) -> set[int]:
        apart = {n.number for n in self.graph.nodes if n.kind in (REDUCE, CONTRACT, GATHER, SCATTER, LOOKUP)}
        apart |= {v.node.number for v in self.graph.outputs if v.node is not None and v.node.kind in (MAP, VIEW)}
        readers: dict[int, set[int]] = {}
        for node in reversed(self.graph.nodes):
            above = {node.number} if node.number in apart else readers.get(node.number, set())
            wide = node.kind == MAP and node.operands and node.number not in apart
            if wide and ((len(above) > 1 and node.name != "cast") or self._is_read_wider(node)):
                apart.add(node.number)
                above = {node.number}
            for value in node.operands:
                if value.node is not None:
                    readers.setdefault(value.node.number, set()).update(above)
        return apart

    def _is_read_wider(self, node: Node) -> bool:
        """Is the result broadcast by a reader, and more than a rearrangement of an argument?"""
        if not self._computes(node):
            return False
        pending = [(user, node.result) for user in node.result.users]
        while pending:
            user, value = pending.pop()
            size = user.result.size if user.results else 0
            if user.kind in (MAP, VIEW, RESHAPE) and size > value.size:
                return True
            if user.kind in (VIEW, RESHAPE):
                pending += [(next_, user.result) for next_ in user.result.users]
        return False

    def _computes(self, node: Node) -> bool:
        """Does anything happen between arguments and this node but casts and movement?"""
        if node.kind == MAP and node.name not in ("cast", "constant", "full"):
            return True
        return any(
            v.node is not None and v.node.kind in (MAP, VIEW, RESHAPE) and self._computes(v.node) for v in node.operands
        )

    # --- values

    def _arguments(self) -> None:
        fixed: dict[int, tuple[int, ...]] = {}
        for node in self.graph.nodes:
            whole = node.operands if node.kind == SCATTER else node.operands[:1] if node.kind == GATHER else ()
            fixed |= {memory_of(value).number: value.shape for value in whole}
        for i, argument in enumerate(self.graph.arguments):
            self.names[argument.number] = f"%i{i}"
            self.dtypes[argument.number] = argument.dtype
            self.shapes[argument.number] = fixed.get(argument.number, self.axes.atoms(argument))

    def type_of(self, value: Value) -> str:
        return tensor_text(self.shapes[value.number], self.dtypes[value.number])

    def fresh(self) -> str:
        self._count += 1
        return f"%t{self._count}"

    def define(self, value: Value, name: str, shape: tuple[int, ...], dtype: DType) -> None:
        """`value` is the tensor `name` from here on."""
        self.names[value.number], self.shapes[value.number], self.dtypes[value.number] = name, shape, dtype

    def line(self, text: str) -> None:
        self.lines.append(text)

    def empty(self, shape: tuple[int, ...], dtype: DType) -> str:
        name = self.fresh()
        self.line(f"{name} = tensor.empty() : {tensor_text(shape, dtype)}")
        return name

    def filled(self, value, shape: tuple[int, ...], dtype: DType) -> str:
        constant, empty, name = self.fresh(), self.empty(shape, dtype), self.fresh()
        element, type_ = element_text(dtype), tensor_text(shape, dtype)
        self.line(f"{constant} = arith.constant {literal(value, dtype)}{'' if dtype is bool_ else f' : {element}'}")
        self.line(f"{name} = linalg.fill ins({constant} : {element}) outs({empty} : {type_}) -> {type_}")
        return name

    def _yielded(self, value: Value, position: int) -> str:
        """The name of a result of the kernel: computed here, in its own dtype, and no other result's."""
        earlier = any(other is value for other in self.graph.outputs[:position])
        source = value
        while source.number not in self.names and source.node.kind == RESHAPE:
            source = source.node.operands[0]
        computed = source.number in self.names and source.node is not None
        if computed and not earlier and self.dtypes[source.number] is value.dtype:
            if source is not value:
                self.define(value, self.names[source.number], self.shapes[source.number], value.dtype)
            return self.names[value.number]
        atoms = self.axes.atoms(value)
        generic = GenericWriter(self, atoms)
        result = generic.read(value, identity(len(atoms)))
        name = generic.write([(result, value.dtype, tuple(range(len(atoms))))])[0]
        if value.number not in self.shapes:
            self.shapes[value.number] = atoms
        return name

    # --- nodes

    def _node(self, node: Node) -> None:
        if node.kind in (GATHER, SCATTER):
            self._rows_by_index(node)
        elif node.kind == CONTRACT:
            self._product(node)
        elif node.kind == REDUCE and self.axes.loops(node).reduced:
            self._reduction(node)
        else:
            self._map(node)

    def _map(self, node: Node) -> None:
        """A generic without reductions. It keeps the computing dtype if anything else here reads it, so that nothing
        is rounded between.
        """
        atoms = self.axes.atoms(node.result)
        inside = any(user.kind != LOOKUP for user in node.result.users)
        dtype = computing(node.result.dtype) if inside else node.result.dtype
        if any(user.kind == CONTRACT for user in node.result.users):
            dtype = node.result.dtype
        generic = GenericWriter(self, atoms)
        result = generic.evaluate(node, identity(len(atoms)))
        self.define(node.result, generic.write([(result, dtype, tuple(range(len(atoms))))])[0], atoms, dtype)

    def _reduction(self, node: Node) -> None:
        loops = self._plain_reads(node)
        if node.record.nova.combiner in ("argmax", "argmin"):
            emit_argument(self, node, loops)
        else:
            emit_total(self, node, loops)

    def _plain_reads(self, node: Node) -> Loops:
        """The loops of a reduction, its operand stored first where no read tells the extent of every loop."""
        loops = self.axes.loops(node)
        generic = GenericWriter(self, loops.extents)
        generic.read(loops.reads[0].value, loops.reads[0].indices)
        plain = {
            i.dim for _, _, indices in generic.inputs.values() for i in indices if i.coefficient == 1 and not i.offset
        }
        if not loops.reduced <= plain:
            self._store(loops.reads[0].value)
        return loops

    def _store(self, value: Value) -> None:
        """Make an inlined value a tensor of its own."""
        atoms = self.axes.atoms(value)
        generic = GenericWriter(self, atoms)
        result = generic.read(value, identity(len(atoms)))
        self.define(value, generic.write([(result, value.dtype, tuple(range(len(atoms))))])[0], atoms, value.dtype)

    def _product(self, node: Node) -> None:
        loops = self.axes.loops(node)
        dtype = computing(node.result.dtype)
        generic = GenericWriter(self, loops.extents, loops.reduced)
        factors = [generic.load(*self._factor(read)) for read in loops.reads]
        atoms = self.axes.atoms(node.result)
        total = Scalar("%acc0", dtype)
        a, b = (generic.region.cast(x, dtype) for x in factors)
        kind = "f" if dtype.is_floating else "i"
        product = generic.region.apply(f"arith.mul{kind}", a, b)
        result = generic.region.apply(f"arith.add{kind}", total, product)
        init = self.filled(0, atoms, dtype)
        name = generic.write([(result, dtype, loops.result)], inits=[init], attributes="nova.anchor")[0]
        self.define(node.result, name, atoms, dtype)

    def _factor(self, read: Read) -> tuple[Value, tuple[Index, ...]]:
        """What a product reads: an argument behind views, or the prologue, in the dtype that the product takes."""
        value, indices = read
        while value.number not in self.names and value.node.kind in (VIEW, RESHAPE):
            if value.node.kind == VIEW:
                (behind,) = self.axes.loops(value.node).reads
                indices = compose(indices, behind.indices)
            value = value.node.operands[0]
        if value.number in self.names and (value.node is None or value.size == read.value.size):
            return value, indices
        if read.value.number not in self.names:
            self._store(read.value)
        return read.value, read.indices

    def _rows_by_index(self, node: Node) -> None:
        """nova.gather, nova.scatter_add: take and index_add along the first of two dimensions."""
        name = self.fresh()
        if node.kind == GATHER:
            table, ids = node.operands
            shape, dtype = (*self.axes.atoms(ids), table.shape[1]), table.dtype
            operands = [table, ids]
        else:
            base, ids, updates = node.operands
            shape, dtype = node.result.shape, node.result.dtype
            operands = [ids, updates] if is_zero(base) else [ids, updates, base]
        operands = [memory_of(v) for v in operands]
        types = ", ".join(self.type_of(v) for v in operands)
        held = ", ".join(self.names[v.number] for v in operands)
        op = "nova.gather" if node.kind == GATHER else "nova.scatter_add"
        self.line(f'{name} = "{op}"({held}) : ({types}) -> {tensor_text(shape, dtype)}')
        self.define(node.result, name, shape, dtype)


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
        self.inputs[len(self.inputs), value.number, indices] = (name, value, indices)
        return self.region.widen(name, self.body.dtypes[value.number])

    def read(self, value: Value, indices: tuple[Index, ...]) -> Scalar:
        """The element of `value` at `indices`: loaded where it is a tensor, computed here where it is not."""
        key = (value.number, indices)
        if key in self._known:
            return self._known[key]
        if value.number in self.body.names and (value.node is None or self._is_whole(value, indices)):
            name, _, _ = self.inputs.setdefault(key, (f"%in{len(self.inputs)}", value, indices))
            found = self.region.widen(name, self.body.dtypes[value.number])
        elif value.node.kind not in (MAP, VIEW, RESHAPE):
            raise PassFault(value.node.op, "a kernel reads a part of what it computes")
        else:
            found = self.evaluate(value.node, indices)
        self._known[key] = found
        return found

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
        name, type_ = self.body.fresh(), tensor_text(sizes, self.body.dtypes[value.number])
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
            return self.region.cast(operands[0], dtype)
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
        from ...tensor.dtype import float64

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
        types = [tensor_text(shape, dtype) for shape, (_, dtype, _) in zip(shapes, results, strict=True)]
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


def is_zero(value: Value) -> bool:
    """Is `value` a splat of zero?"""
    node = value.node
    while node is not None and node.kind in (VIEW, RESHAPE):
        node = node.operands[0].node
    return (
        node is not None
        and node.name in ("constant", "full")
        and not node.attrs["value"]
        and node.result.dtype is not bool_
    )
