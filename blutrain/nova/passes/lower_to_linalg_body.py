"""The body of one kernel as linalg on tensors whose dimensions are atoms (see form_kernels_axes): extents of 1 and
reshapes are gone.

A node becomes an operation of its own where its result is yielded, read by several others, reduced, a product, a
gather or scatter, or is smaller than the nest that reads it; everything else is inlined into the region that reads
it, movement as indexing maps.
"""

from __future__ import annotations

from math import prod

from ...tensor.dtype import DType, bool_
from .driver import PassFault
from .form_kernels_axes import Axes, Index, Loops, Read, compose
from .form_kernels_graph import (
    CONTRACT,
    GATHER,
    LOOKUP,
    MAP,
    REDUCE,
    RESHAPE,
    SCAN,
    SCATTER,
    VIEW,
    Node,
    StepGraph,
    Value,
    widened_factors,
)
from .form_kernels_memory import is_zero, memory_of
from .lower_to_linalg_generic import GenericWriter, identity
from .lower_to_linalg_reduce import emit_argument, emit_total
from .lower_to_linalg_scalar import Scalar, computing, element_text, literal, memory_text


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
        apart = {n.number for n in self.graph.nodes if n.kind in (REDUCE, CONTRACT, GATHER, SCATTER, SCAN, LOOKUP)}
        apart |= {v.node.number for v in self.graph.outputs if v.node is not None and v.node.kind in (MAP, VIEW)}
        readers: dict[int, set[int]] = {}
        in_parts: set[int] = set()
        for node in reversed(self.graph.nodes):
            above = {node.number} if node.number in apart else readers.get(node.number, set())
            if node.number not in apart and _is_read_in_parts(node, in_parts):
                in_parts.add(node.number)
            wide = node.kind == MAP and node.operands and node.number not in apart and node.number not in in_parts
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
            if node.kind == SCAN:
                fixed[memory_of(node.operands[0]).number] = _around(node)
        for i, argument in enumerate(self.graph.arguments):
            self.names[argument.number] = f"%i{i}"
            self.dtypes[argument.number] = argument.dtype
            self.shapes[argument.number] = fixed.get(argument.number, self.axes.atoms(argument))

    def type_of(self, value: Value) -> str:
        return memory_text(self.shapes[value.number], self.dtypes[value.number])

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
        self.line(f"{name} = tensor.empty() : {memory_text(shape, dtype)}")
        return name

    def filled(self, value, shape: tuple[int, ...], dtype: DType) -> str:
        constant, empty, name = self.fresh(), self.empty(shape, dtype), self.fresh()
        element, type_ = element_text(dtype), memory_text(shape, dtype)
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
        elif node.kind == SCAN:
            self._scan(node)
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
        reads = loops.reads
        narrow = widened_factors(node)
        if narrow is not None:
            behind = [self.axes.loops(value.node).reads[0] for value in node.operands if value.node is not None]
            reads = [Read(b.value, compose(r.indices, b.indices)) for r, b in zip(reads, behind, strict=True)]
        places = [self._factor(read) for read in reads]
        if not loops.reduced <= {i.dim for _, at in places for i in at if i.coefficient == 1 and not i.offset}:
            self._store(reads[0].value)  # neither factor varies along the sum: one has to tell how long it is
            places[0] = reads[0]
        factors = [generic.load(value, at) for value, at in places]
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
        while value.number not in self.names and value.node is not None and value.node.kind in (VIEW, RESHAPE):
            if value.node.kind == VIEW:
                (behind,) = self.axes.loops(value.node).reads
                indices = compose(indices, behind.indices)
            value = value.node.operands[0]
        if value.number in self.names and (value.node is None or value.size == read.value.size):
            return value, indices
        if read.value.number not in self.names:
            self._store(read.value)
        return read.value, read.indices

    def _scan(self, node: Node) -> None:
        value = memory_of(node.operands[0])
        name, type_ = self.fresh(), self.type_of(value)
        self.line(f'{name} = "nova.cumsum"({self.names[value.number]}) {{dim = 1 : i64}} : ({type_}) -> {type_}')
        self.define(node.result, name, _around(node), node.result.dtype)

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
        self.line(f'{name} = "{op}"({held}) : ({types}) -> {memory_text(shape, dtype)}')
        self.define(node.result, name, shape, dtype)


def _around(node: Node) -> tuple[int, int, int]:
    """The shape of a scan's operand in three dimensions, the one that it runs along in the middle."""
    shape, dim = node.result.shape, node.attrs["dim"]
    return prod(shape[:dim]), shape[dim], prod(shape[dim + 1 :])


def _is_read_in_parts(node: Node, in_parts: set[int]) -> bool:
    """Do all readers look at a part of the result only, or backwards? Each then computes its own elements. `in_parts`:
    the nodes behind of which that is known.
    """
    users = node.result.users
    return bool(users) and all(user.number in in_parts or (user.kind == VIEW and user.nest.places) for user in users)
