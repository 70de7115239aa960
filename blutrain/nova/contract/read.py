"""Reads a contract kernel: sorts its dimensions into axes and composes prologues and epilogues into expressions.

Prologue and epilogue generics have iteration spaces of their own. Walking from a use to its producer, every index is
rewritten in the contraction's dimensions (`substitute`, `solve`), so that what is left are loads with one stride for
each of these dimensions. Whatever does not fit raises `Unsupported` with the reason.
"""

from __future__ import annotations

from mlir import ir

from blutrain.nova.contract.form import (
    Accumulated,
    Apply,
    ColumnReduction,
    Constant,
    Contract,
    Expression,
    Factor,
    Load,
    Store,
    index_dims,
    loads,
)
from blutrain.nova.kernel import Access, Generic, Index, Kernel, Operand, Produced, Source, Splat, Unsupported


def read_contract(kernel: Kernel, row_reductions: bool = False) -> Contract:
    """Raises `Unsupported` with the reason where the kernel is no contraction, or more than prologues and epilogues of one.

    row_reductions: take reductions over the columns of a product without batch, too.
    """
    return _Reader(kernel, row_reductions).read()


class _Reader:
    def __init__(self, kernel: Kernel, row_reductions: bool):
        self.kernel, self.ops, self.row_reductions = kernel, kernel.generics, row_reductions
        if len(self.ops) != len(kernel.ops):
            raise Unsupported("contract: a gather or scatter beside the product")
        anchors = [i for i, op in enumerate(self.ops) if op.is_anchor]
        if len(anchors) != 1:
            raise Unsupported(f"contract: {len(anchors)} anchored generics, expected one")
        self.anchor = anchors[0]
        self.generic = self.ops[self.anchor]
        self.identity = tuple(Index(d, 1, 0) for d in range(len(self.generic.extents)))

    def read(self) -> Contract:
        generic = self.generic
        if len(generic.inputs) != 2 or len(generic.outputs) != 1:
            raise Unsupported("contract: expected two factors and one output")
        dtype = generic.types[0].dtype
        if dtype not in ("f32", "f64"):
            raise Unsupported(f"contract: accumulates in {dtype}, expected f32 or f64")
        values = [self.expression(access, self.identity) for access in generic.inputs]
        axes, order = self._axes(values)
        rows, columns = _factors(generic, values, order)
        stores, reductions = self._results(axes)
        by_column = tuple(r for r in reductions if self._kept(r) == set(axes["n"]))
        by_row = tuple(r for r in reductions if r not in by_column)
        return Contract(self.kernel, generic, axes, dtype, rows, columns, self._init(), stores, by_column, by_row)

    # --- expressions

    def expression(self, access: Access, indices: tuple[Index, ...]) -> Expression:
        """The element that `access` reads, where dimension d of its nest is `indices[d]` of the contraction's."""
        source = access.source
        if isinstance(source, Operand):
            return Load(compose(access, indices, len(self.identity)))
        if isinstance(source, Splat):
            return Constant(source.literal, source.dtype)
        if not isinstance(source, Produced):
            raise Unsupported("contract: reads an undefined tensor")
        return self.produced(source, tuple(substitute(index, indices) for index in access.indices))

    def produced(self, source: Produced, element: tuple[Index, ...]) -> Expression:
        """Element `element` (an index per tensor dimension) of another op's result."""
        generic = self.ops[source.op]
        if source.op == self.anchor:
            if element != self.generic.outputs[0].indices:
                raise Unsupported("contract: an epilogue reads the product at another element than its own")
            return Accumulated()
        if generic.is_reduction:
            raise Unsupported("contract: reads a reduced value beside the product")
        indices = solve(generic, source.result, element)
        arguments = tuple(self.expression(access, indices) for access in generic.inputs)
        return Apply(generic, indices, arguments, source.result)

    def _init(self) -> Load | None:
        """What the product is added to: nothing for a fill with zero."""
        access = self.generic.outputs[0]
        if isinstance(access.source, Splat):
            if access.source.literal.startswith("0x") or float(access.source.literal) != 0.0:
                raise Unsupported(f"contract: starts from {access.source.literal}, expected 0 or an operand")
            return None
        if not isinstance(access.source, Operand):
            raise Unsupported("contract: starts from a value that is neither 0 nor an operand")
        return Load(compose(access, self.identity, len(self.identity)))

    # --- axes

    def _axes(self, values: list[Expression]) -> tuple[dict[str, tuple[int, ...]], tuple[int, int]]:
        """Dimensions by axis, and the inputs' order: the row factor lacks the result's contiguous dimension."""
        generic = self.generic
        used = [{i.dim for access in loads(v) for i in access.indices} | index_dims(v) for v in values]
        parallel = [d for d in range(len(generic.extents)) if d not in generic.reduction_dims]
        last = generic.outputs[0].indices[-1].dim if generic.outputs[0].indices else None
        order = (1, 0) if last in used[0] and last not in used[1] else (0, 1)
        row_dims, column_dims = used[order[0]], used[order[1]]
        batch = [d for d in parallel if d in row_dims and d in column_dims]
        n = [d for d in parallel if d in column_dims and d not in row_dims]
        m = [d for d in parallel if d not in batch and d not in n]
        placed = [index.dim for index in generic.outputs[0].indices if index.dim is not None]
        if any(i.coefficient != 1 or i.offset for i in generic.outputs[0].indices) or sorted(placed) != parallel:
            raise Unsupported("contract: the output's map is not a permutation of the parallel dimensions")
        by_layout = {"batch": batch, "m": m, "n": n, "k": sorted(generic.reduction_dims)}
        for axis in ("batch", "m", "n"):
            by_layout[axis].sort(key=placed.index)
        return {axis: tuple(dims) for axis, dims in by_layout.items()}, order

    # --- results

    def _results(self, axes: dict[str, tuple[int, ...]]) -> tuple[tuple[Store, ...], tuple[ColumnReduction, ...]]:
        stores: list[Store] = []
        columns: dict[int, list[Store]] = {}
        for number, source in enumerate(self.kernel.yields):
            if not isinstance(source, Produced):
                raise Unsupported("contract: a result that is not computed here")
            reducer = self._reducer(source)
            root = self.ops[source.op]
            indices = self._place(source.op)
            target = self._target(number, root.outputs[source.result], indices)
            if reducer is None:
                element = tuple(substitute(i, indices) for i in root.outputs[source.result].indices)
                stores.append(Store(self.produced(source, element), target))
            else:
                columns.setdefault(reducer, []).append(self._column_store(source, reducer, indices, target))
        return tuple(stores), tuple(self._reduction(op, tuple(outputs), axes) for op, outputs in columns.items())

    def _target(self, number: int, access: Access, indices: tuple[Index, ...]) -> Access:
        return compose(
            Access(
                Operand(len(self.kernel.operands) + number), access.dtype, access.shape, access.strides, access.offset
            ),
            indices,
            len(self.identity),
        )

    def _reducer(self, source: Source) -> int | None:
        """The reducing generic (not the contraction) that `source` comes from, or None."""
        if not isinstance(source, Produced) or source.op == self.anchor:
            return None
        generic = self.ops[source.op]
        if generic.is_reduction:
            return source.op
        found = {self._reducer(access.source) for access in generic.inputs} - {None}
        if len(found) > 1:
            raise Unsupported("contract: a result of two reductions")
        return found.pop() if found else None

    def _place(self, op: int) -> tuple[Index, ...]:
        """Where each loop dimension of an op behind the product lies among the contraction's dimensions."""
        if op == self.anchor:
            return self.identity
        generic = self.ops[op]
        places: dict[int, Index] = {}
        for access in generic.inputs:
            if not isinstance(access.source, Produced) or not self._follows(access.source.op):
                continue
            producer = self.ops[access.source.op]
            behind = self._place(access.source.op)
            written = producer.outputs[access.source.result].indices
            for mine, theirs in zip(access.indices, written, strict=True):
                if _is_plain(mine) and mine.dim is not None and theirs.dim is not None:
                    places[mine.dim] = behind[theirs.dim]
        if len(places) != len(generic.extents) and not self._follows(op):
            places = self._beside(op)
        if len(places) != len(generic.extents):
            raise Unsupported("contract: an epilogue runs over dimensions that the product does not have")
        return tuple(places[d] for d in range(len(generic.extents)))

    def _beside(self, op: int) -> dict[int, Index]:
        """The places of a map that reads nothing of the product: from an epilogue that reads its result, or an operand of
        both.
        """
        places: dict[int, Index] = {}
        generic = self.ops[op]
        for number in (n for n in range(len(self.ops)) if n != self.anchor and self._follows(n)):
            for theirs in self.ops[number].inputs:
                source = theirs.source
                shared = [
                    access for access in generic.inputs if isinstance(source, Operand) and access.source == source
                ]
                if isinstance(source, Produced) and source.op == op:
                    shared.append(generic.outputs[source.result])
                behind = self._place(number) if shared else ()
                for access in shared:
                    for mine, their in zip(access.indices, theirs.indices, strict=True):
                        if _is_plain(mine) and _is_plain(their) and mine.dim is not None and their.dim is not None:
                            places[mine.dim] = behind[their.dim]
        return places

    def _follows(self, op: int) -> bool:
        if op == self.anchor:
            return True
        return any(isinstance(a.source, Produced) and self._follows(a.source.op) for a in self.ops[op].inputs)

    def _reduction(self, op: int, outputs: tuple[Store, ...], axes: dict[str, tuple[int, ...]]) -> ColumnReduction:
        generic = self.ops[op]
        if len(generic.outputs) != 1:
            raise Unsupported("contract: a column reduction with several results")
        indices = self._place(op)
        arguments = tuple(self.expression(access, indices) for access in generic.inputs)
        output = generic.outputs[0]
        if isinstance(output.source, Produced):
            raise Unsupported("contract: a column reduction that starts from a computed value")
        reduction = ColumnReduction(generic, indices, arguments, self.expression(output, indices), outputs)
        if self._kept(reduction) == set(axes["n"]):
            return reduction
        if not self.row_reductions or axes["batch"] or self._kept(reduction) != set(axes["m"]):
            raise Unsupported("contract: a reduction of the product that is not over all rows")
        return reduction

    def _kept(self, reduction: ColumnReduction) -> set[int | None]:
        """The contraction's dimensions that a reduction leaves."""
        reduced = reduction.generic.reduction_dims
        return {index.dim for d, index in enumerate(reduction.indices) if d not in reduced}

    def _column_store(self, source: Produced, reducer: int, indices: tuple[Index, ...], target: Access) -> Store:
        return Store(self._column_value(source, reducer, indices), target)

    def _column_value(self, source: Produced, reducer: int, indices: tuple[Index, ...]) -> Expression:
        """A map of the reduced value; `indices` place the loop dimensions of `source.op`."""
        if source.op == reducer:
            return Accumulated()
        generic = self.ops[source.op]
        arguments = []
        for access in generic.inputs:
            if isinstance(access.source, Produced) and self._reducer(access.source) is not None:
                element = tuple(substitute(i, indices) for i in access.indices)
                inner = self.ops[access.source.op]
                inner_indices = solve(inner, access.source.result, element)
                arguments.append(self._column_value(access.source, reducer, inner_indices))
            else:
                arguments.append(self.expression(access, indices))
        return Apply(generic, indices, tuple(arguments), source.result)


def _is_plain(index: Index) -> bool:
    return index.dim is not None and (index.coefficient, index.offset) == (1, 0)


def substitute(index: Index, indices: tuple[Index, ...]) -> Index:
    """`index` over an inner nest, in terms of the outer one."""
    if index.dim is None:
        return index
    inner = indices[index.dim]
    return Index(inner.dim, index.coefficient * inner.coefficient, index.coefficient * inner.offset + index.offset)


def compose(access: Access, indices: tuple[Index, ...], num_dims: int) -> Access:
    """`access` with one stride for each dimension of the outer nest."""
    strides = [0] * num_dims
    offset = access.offset
    for step, index in zip(access.strides, indices, strict=True):
        offset += step * index.offset
        if index.dim is not None:
            strides[index.dim] += step * index.coefficient
    composed = tuple(substitute(index, indices) for index in access.indices)
    return Access(access.source, access.dtype, access.shape, tuple(strides), offset, composed)


def solve(generic: Generic, result: int, element: tuple[Index, ...]) -> tuple[Index, ...]:
    """The loop indices at which `generic` writes `element` of its result: its output map inverted."""
    places: dict[int, Index] = {}
    for written, index in zip(generic.outputs[result].indices, element, strict=True):
        if written.dim is not None:
            if (written.coefficient, written.offset) != (1, 0):
                raise Unsupported("contract: a fused generic writes a strided output")
            places[written.dim] = index
    for d in range(len(generic.extents)):
        if d not in places and d not in generic.reduction_dims:
            raise Unsupported("contract: a fused generic's output map is not a permutation")
    return tuple(places.get(d, Index(None, 0, 0)) for d in range(len(generic.extents)))


def _factors(generic: Generic, values: list[Expression], order: tuple[int, int]) -> tuple[Factor, Factor]:
    """Split the region `acc + f(a) * g(b)` at its product."""
    block = generic.block
    arguments = list(block.arguments)
    total = list(block.operations)[-1].operands[0].owner
    if total.name != "arith.addf":
        raise Unsupported(f"contract: combines with {total.name}, expected arith.addf")
    terms = [v for v in total.operands if v != arguments[2]]
    product = terms[0].owner if len(terms) == 1 else None
    if product is None or isinstance(product, ir.Block) or product.name != "arith.mulf":
        raise Unsupported("contract: the region is not a product added to the accumulator")
    sides = {frozenset(_arguments_of(v)): v for v in product.operands}
    if set(sides) != {frozenset({0}), frozenset({1})}:
        raise Unsupported("contract: each factor of the product must come from one input")
    row, column = order
    return (
        Factor(values[row], arguments[row], sides[frozenset({row})], "m"),
        Factor(values[column], arguments[column], sides[frozenset({column})], "n"),
    )


def _arguments_of(value: ir.Value) -> set[int]:
    """Block arguments that a scalar value of the contraction's region depends on."""
    if isinstance(value.owner, ir.Block):
        return {ir.BlockArgument(value).arg_number}
    return set().union(*(_arguments_of(v) for v in value.owner.operands))
