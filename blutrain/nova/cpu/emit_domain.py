"""One loop nest for all ops of a kernel: which loop of one op is which loop of another.

Ops of a kernel are linked where one reads what another produced: the tensor dimension they share makes their
loops one. Loops left over (an op that reads only operands) take the kernel's dimensions of the same extent in
order. Neighbouring dimensions that act as one in every access are merged, those of extent 1 vanish; then every
op's loops are nest dimensions and every access has one stride per nest dimension.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from blutrain.nova.kernel import (
    Access,
    BodyOp,
    Gather,
    Generic,
    Index,
    Kernel,
    Operand,
    Produced,
    ScatterAdd,
    Source,
    Splat,
    Undefined,
    Unsupported,
    collapse,
    row_major_strides,
)


@dataclass(frozen=True)
class Placed:
    """A body op in the nest. `dims[d]` is the nest dimension of its loop d, None where that loop has extent 1.

    `inputs` and `outputs` are its accesses with strides over the nest; of a Gather, `inputs` is the ids.
    """

    op: BodyOp
    dims: tuple[int | None, ...]
    inputs: tuple[Access, ...]
    outputs: tuple[Access, ...]

    @property
    def nest_dims(self) -> frozenset[int]:
        return frozenset(d for d in self.dims if d is not None)

    @property
    def reduced(self) -> frozenset[int]:
        """Nest dimensions that this op sums over."""
        if not isinstance(self.op, Generic):
            return frozenset()
        dims = (self.dims[d] for d in self.op.reduction_dims)
        return frozenset(d for d in dims if d is not None)

    @property
    def result_dims(self) -> frozenset[int]:
        return self.nest_dims - self.reduced


@dataclass(frozen=True)
class Store:
    """Result `result` of the kernel is `source`, laid out by `access` (strides over the nest)."""

    result: int
    source: Source
    access: Access
    dims: frozenset[int]

    @property
    def producer(self) -> int:
        """Number of the op that computes it."""
        assert isinstance(self.source, Produced)
        return self.source.op


@dataclass(frozen=True)
class Domain:
    extents: tuple[int, ...]
    ops: tuple[Placed, ...]
    stores: tuple[Store, ...]

    @property
    def size(self) -> int:
        return math.prod(self.extents)


def build_domain(kernel: Kernel, main: int | None = None) -> Domain:
    """The kernel's nest: the loops of op number `main`, or of the first of the largest ones. Raises `Unsupported` where no
    single nest serves all ops.
    """
    loops = [_op_extents(op) for op in kernel.ops]
    links = _Links(loops)
    for consumer, op in enumerate(kernel.ops):
        for access in _op_inputs(op):
            if isinstance(access.source, Produced):
                links.read(kernel, consumer, access)
    size = lambda i: (math.prod(max(e, 1) for e in loops[i]), len(loops[i]))
    if not loops:
        return _flat_domain(kernel)
    main = max(range(len(loops)), key=size) if main is None else main
    links.join_leftovers(main)
    nest = links.nest(main)
    placed = [_place(op, nest[i], len(loops[main])) for i, op in enumerate(kernel.ops)]
    stores = [_store(kernel, placed, i, source, len(loops[main])) for i, source in enumerate(kernel.yields)]
    return _collapsed(loops[main], placed, stores)


def _op_extents(op: BodyOp) -> tuple[int, ...]:
    if isinstance(op, Generic):
        return op.extents
    return op.types[0].shape


def _op_inputs(op: BodyOp) -> tuple[Access, ...]:
    """Everything the op reads by position, outputs included where the region uses them."""
    if isinstance(op, Generic):
        return op.inputs + tuple(a for a in op.outputs if not isinstance(a.source, Undefined))
    if isinstance(op, Gather):
        dims = range(len(op.ids_type.shape))
        strides = row_major_strides(op.ids_type.shape) + (0,) * (len(op.types[0].shape) - len(dims))
        indices = tuple(Index(d, 1, 0) for d in dims)
        return (Access(op.ids, op.ids_type.dtype, op.ids_type.shape, strides, 0, indices),)
    return ()


def _output_indices(op: BodyOp, result: int) -> tuple[Index, ...]:
    if isinstance(op, Generic):
        return op.outputs[result].indices
    return tuple(Index(d, 1, 0) for d in range(len(op.types[0].shape)))


class _Links:
    """Union-find over (op, loop)."""

    def __init__(self, loops: list[tuple[int, ...]]):
        self.loops = loops
        self.parent = {(i, d): (i, d) for i, extents in enumerate(loops) for d in range(len(extents))}

    def find(self, node: tuple[int, int]) -> tuple[int, int]:
        while self.parent[node] != node:
            node = self.parent[node]
        return node

    def join(self, a: tuple[int, int], b: tuple[int, int]) -> None:
        if self.loops[a[0]][a[1]] != self.loops[b[0]][b[1]]:
            raise Unsupported("an intermediate value that is read over another extent than it was made over")
        self.parent[self.find(a)] = self.find(b)

    def read(self, kernel: Kernel, consumer: int, access: Access) -> None:
        """The consumer reads an intermediate: its loops are those of the producer."""
        source = access.source
        assert isinstance(source, Produced)
        written = _output_indices(kernel.ops[source.op], source.result)
        for theirs, ours in zip(written, access.indices, strict=True):
            if theirs.dim is not None and ours.dim is not None:
                if (theirs.coefficient, theirs.offset, ours.coefficient, ours.offset) != (1, 0, 1, 0):
                    raise Unsupported("a slice or flip of an intermediate value")
                self.join((source.op, theirs.dim), (consumer, ours.dim))
            elif theirs.dim is not None and self.loops[source.op][theirs.dim] != 1:
                raise Unsupported("one element of an intermediate value")

    def join_leftovers(self, main: int) -> None:
        """Loops not linked to the main op take its dimensions of the same extent, in order where that is possible: nothing
        says how they belong together, so any way will do.
        """
        for i, extents in enumerate(self.loops):
            mine = {self.find((i, d)) for d in range(len(extents))}
            for d, extent in enumerate(extents):
                if extent == 1 or any(self.find((i, d)) == self.find((main, e)) for e in range(len(self.loops[main]))):
                    continue
                there = enumerate(self.loops[main])
                alike = [e for e, size in there if size == extent and self.find((main, e)) not in mine]
                free = [e for e in alike if not self._taken_before(i, d, main, e)] or alike
                if not free:
                    raise Unsupported("ops of one kernel over different loops")
                self.join((i, d), (main, free[0]))
                mine = {self.find((i, k)) for k in range(len(extents))}

    def _taken_before(self, op: int, loop: int, main: int, dim: int) -> bool:
        """Order is kept: a later loop does not take a dimension in front of an earlier loop's."""
        for d in range(loop):
            for e in range(len(self.loops[main])):
                if self.find((op, d)) == self.find((main, e)) and e >= dim:
                    return True
        return False

    def nest(self, main: int) -> list[tuple[int | None, ...]]:
        """For every op the main op's dimension of each of its loops."""
        dims = {self.find((main, e)): e for e in range(len(self.loops[main]))}
        if len(dims) != len(self.loops[main]):
            raise Unsupported("an intermediate value that is read at two positions at once")
        nests = []
        for i, extents in enumerate(self.loops):
            found = [dims.get(self.find((i, d))) for d in range(len(extents))]
            real = [f for f, extent in zip(found, extents, strict=True) if extent != 1]
            if None in real or len(set(real)) != len(real):
                raise Unsupported("an intermediate value that is read at two positions at once")
            nests.append(tuple(None if extent == 1 else f for f, extent in zip(found, extents, strict=True)))
        return nests


def _place(op: BodyOp, dims: tuple[int | None, ...], num_dims: int) -> Placed:
    outputs = op.outputs if isinstance(op, Generic) else ()
    inputs = op.inputs if isinstance(op, Generic) else _op_inputs(op)
    over = lambda a: _over(a, dims, num_dims)
    return Placed(op, dims, tuple(over(a) for a in inputs), tuple(over(a) for a in outputs))


def _over(access: Access, dims: tuple[int | None, ...], num_dims: int) -> Access:
    strides = [0] * num_dims
    for d, stride in zip(dims, access.strides, strict=True):
        if d is not None:
            strides[d] = stride
    return Access(access.source, access.dtype, access.shape, tuple(strides), access.offset)


def _store(kernel: Kernel, placed: list[Placed], result: int, source: Source, num_dims: int) -> Store:
    if not isinstance(source, Produced):
        raise Unsupported("a result that is an operand or a constant beside computed ones")
    producer = placed[source.op]
    type_ = kernel.results[result]
    if isinstance(producer.op, Generic):
        layout = producer.outputs[source.result]
    else:
        plain = Access(Undefined(), type_.dtype, type_.shape, row_major_strides(type_.shape), 0)
        layout = _over(plain, producer.dims, num_dims)
    access = Access(source, type_.dtype, type_.shape, layout.strides, layout.offset)
    return Store(result, source, access, producer.result_dims)


def _collapsed(extents: tuple[int, ...], placed: list[Placed], stores: list[Store]) -> Domain:
    """Merge neighbours where every operand access, every store, every op and every index allow it."""
    strides, keep = [s.access.strides for s in stores], set()
    for p in placed:
        strides += [a.strides for a in (*p.inputs, *p.outputs) if isinstance(a.source, Operand)]
        if isinstance(p.op, Generic):
            keep |= {p.dims[d] for d in p.op.uses_index if p.dims[d] is not None}
            if p.op.extracts:
                keep |= set(range(len(extents)))
        elif isinstance(p.op, Gather | ScatterAdd):
            keep.add(p.dims[-1])
        # An op that has only one of two neighbours, or reduces only one of them, keeps them apart.
        strides += [_signature(p.nest_dims, extents), _signature(p.reduced, extents)]
    groups = collapse(extents, strides, frozenset(keep))
    number = {d: g for g, group in enumerate(groups) for d in group}

    def over(access: Access) -> Access:
        merged = tuple(access.strides[group[-1]] for group in groups)
        return Access(access.source, access.dtype, access.shape, merged, access.offset)

    def renumber(p: Placed) -> Placed:
        dims = tuple(None if d is None else number.get(d) for d in p.dims)
        return Placed(p.op, dims, tuple(map(over, p.inputs)), tuple(map(over, p.outputs)))

    return Domain(
        extents=tuple(math.prod(extents[d] for d in group) for group in groups),
        ops=tuple(map(renumber, placed)),
        stores=tuple(
            Store(s.result, s.source, over(s.access), frozenset(number[d] for d in s.dims if d in number))
            for s in stores
        ),
    )


def _signature(dims: frozenset[int], extents: tuple[int, ...]) -> tuple[int, ...]:
    """Strides of a row-major tensor over `dims`, 0 elsewhere: dims merge where both or neither is in `dims`."""
    strides, step = [0] * len(extents), 1
    for d in reversed(range(len(extents))):
        if d in dims:
            strides[d] = step
            step *= extents[d]
    return tuple(strides)


def _flat_domain(kernel: Kernel) -> Domain:
    """A kernel without ops: every result is a constant or a copy of an operand."""
    sizes = {t.size for t in kernel.results}
    if len(sizes) != 1:
        raise Unsupported("constants and copies of different sizes in one kernel")
    (size,) = sizes
    stores = []
    for i, source in enumerate(kernel.yields):
        type_ = kernel.results[i]
        if not isinstance(source, Splat | Operand):
            raise Unsupported("a result that nothing writes")
        stores.append(Store(i, source, Access(source, type_.dtype, type_.shape, (1,), 0), frozenset({0})))
    return Domain((size,), (), tuple(stores))
