"""Axes of a graph: factored so that reshapes become changes of grouping, and reads as affine maps.

A reshape [8, 256, 64] -> [2048, 64] merges two axes. If the axis of 2048 is everywhere thought of as the pair 8 x
256, both sides are the same nest and fusion passes through. So: axes that run together (operand and result of an
addition, rows of a product) form one class; every reshape asks its classes to split where the other side is split;
after that each class is a list of *atoms*, extents of 1 vanish, and any read is one `Index` per atom of the value
read. A reshape whose two sides have no common refinement ([6, 4] -> [4, 6]) stays *opaque*: its operand is stored in
memory and viewed from there.
"""

from __future__ import annotations

import itertools
from typing import NamedTuple

from .form_kernels_graph import GATHER, IDENTITY, PLACED, RESHAPE, SCATTER, SINK, Node, StepGraph, Value


class Index(NamedTuple):
    """Where a read stands along one atom: `coefficient * loop[dim] + offset`; dim -1: the constant `offset`."""

    dim: int
    coefficient: int = 1
    offset: int = 0


class Read(NamedTuple):
    """An element of `value` for every point of a nest, one Index per atom of the value."""

    value: Value
    indices: tuple[Index, ...]


class Loops(NamedTuple):
    """The nest of a node in atoms: extents, the reads of its operands, the loop of every atom of its result, the
    reduced loops.
    """

    extents: tuple[int, ...]
    reads: tuple[Read, ...]
    result: tuple[int, ...]
    reduced: frozenset[int]


class Axes:
    """Atoms of every value and loops of every node of `graph`; `opaque` are the reshapes (numbers of nodes) that stay
    views of memory.
    """

    def __init__(self, graph: StepGraph):
        self.first: list[int] = []
        self.extent: list[int] = []
        for value in graph.values:
            self.first.append(len(self.extent))
            self.extent.extend(value.shape)
        self.parent = list(range(len(self.extent)))
        self.cuts: list[set[int]] = [set() for _ in self.extent]
        self.solid: set[int] = set()
        self.opaque: set[int] = set()
        reshapes = []
        for node in graph.nodes:
            if node.kind == RESHAPE and 0 in node.result.shape:
                self.opaque.add(node.number)
            elif node.kind == RESHAPE:
                reshapes.append((node, groups(node.operands[0].shape, node.result.shape)))
            elif node.kind != SINK:
                self._unite(node)
        self.solid = {self._find(axis) for axis in self.solid}
        self._split(reshapes)
        self._atoms: dict[int, tuple[int, ...]] = {}
        self._loops: dict[int, Loops] = {}

    # --- classes

    def _find(self, axis: int) -> int:
        while self.parent[axis] != axis:
            self.parent[axis] = self.parent[self.parent[axis]]
            axis = self.parent[axis]
        return axis

    def _unite(self, node: Node) -> None:
        """Axes of operands and results that run along one axis of the nest are one class; places in a slice keep an
        axis whole.
        """
        nest = node.nest
        owner: dict[int, int] = {}
        for result in node.results:
            first = self.first[result.number]
            for dim, axis in enumerate(nest.result):
                if axis is not None:
                    self._join(owner, axis, first + dim)
        for position, (operand, axes) in enumerate(zip(node.operands, nest.operands, strict=True)):
            first = self.first[operand.number]
            for dim, axis in enumerate(axes):
                if node.kind in PLACED or (
                    (position, dim) in nest.places and not nest.is_flip(position, dim, operand.shape[dim])
                ):
                    self.solid.add(first + dim)
                    if axis is not None and axis in owner:
                        self.solid.add(owner[axis])
                elif axis is not None:
                    self._join(owner, axis, first + dim)
        if node.kind in PLACED:
            self.solid.update(owner.values())
        elif node.kind in (GATHER, SCATTER):
            self.solid.update(self.first[node.operands[0].number] + dim for dim in range(2))

    def _join(self, owner: dict[int, int], axis: int, mine: int) -> None:
        other = owner.setdefault(axis, mine)
        self.parent[self._find(mine)] = self._find(other)

    # --- cuts

    def _split(self, reshapes: list[tuple[Node, list]]) -> None:
        """Refine classes until both sides of every reshape have the same atoms; one that cannot be refined becomes
        opaque.
        """
        changed = True
        while changed:
            changed = False
            for node, pairs in reshapes:
                if node.number in self.opaque:
                    continue
                for left, right in pairs:
                    sides = self._axes(node.operands[0], left), self._axes(node.result, right)
                    outcome = self._refine(sides)
                    if outcome is None:
                        self.opaque.add(node.number)
                        break
                    changed |= outcome

    def _axes(self, value: Value, dims: range) -> list[int]:
        return [self.first[value.number] + d for d in dims]

    def _refine(self, sides: tuple[list[int], list[int]]) -> bool | None:
        """Give both sides the union of their cuts. Returns whether anything changed, None where the union is no chain
        of divisors.
        """
        points = {1}
        for side in sides:
            scale = 1
            for axis in reversed(side):
                points.update(scale * cut for cut in self.cuts[self._find(axis)])
                scale *= self.extent[axis]
                points.add(scale)
        chain = sorted(points)
        if any(b % a for a, b in itertools.pairwise(chain)):
            return None
        wanted: list[tuple[int, set[int]]] = []
        for side in sides:
            scale = 1
            for axis in reversed(side):
                end = scale * self.extent[axis]
                cuts = {point // scale for point in chain if scale < point < end}
                root = self._find(axis)
                if not cuts <= self.cuts[root]:
                    if root in self.solid or not _is_chain(cuts | self.cuts[root]):
                        return None
                    wanted.append((root, cuts))
                scale = end
        for root, cuts in wanted:
            self.cuts[root] |= cuts
            if not _is_chain(self.cuts[root]):
                self.cuts[root] -= cuts
                return None
        return bool(wanted)

    # --- answers

    def axis_atoms(self, value: Value, dim: int) -> tuple[int, ...]:
        """Extents of the atoms of one dimension, outermost first; none for extent 1."""
        axis = self.first[value.number] + dim
        extent = self.extent[axis]
        if extent == 1:
            return ()
        points = [extent, *sorted(self.cuts[self._find(axis)], reverse=True), 1]
        return tuple(a // b for a, b in itertools.pairwise(points))

    def atoms(self, value: Value) -> tuple[int, ...]:
        """Extents of all atoms of a value, outermost first."""
        found = self._atoms.get(value.number)
        if found is None:
            found = tuple(a for dim in range(len(value.shape)) for a in self.axis_atoms(value, dim))
            self._atoms[value.number] = found
        return found

    def loops(self, node: Node) -> Loops:
        """The nest of a node (not of a reshape or sink) in atoms."""
        found = self._loops.get(node.number)
        if found is None:
            found = self._loops[node.number] = self._make_loops(node)
        return found

    def _make_loops(self, node: Node) -> Loops:
        nest = node.nest
        atoms: list[tuple[int, ...] | None] = [None] * len(nest.extents)
        for dim, axis in enumerate(nest.result):
            if axis is not None:
                atoms[axis] = self.axis_atoms(node.result, dim)
        for position, axes in enumerate(nest.operands):
            for dim, axis in enumerate(axes):
                if axis is not None and atoms[axis] is None:
                    atoms[axis] = self.axis_atoms(node.operands[position], dim)
        dims: list[tuple[int, ...]] = []
        count = 0
        for parts in atoms:
            dims.append(tuple(range(count, count + len(parts or ()))))
            count += len(parts or ())
        extents = tuple(e for parts in atoms for e in parts or ())
        reads = tuple(self._read(node, position, dims) for position in range(len(node.operands)))
        result = tuple(d for axis in nest.result if axis is not None for d in dims[axis])
        return Loops(extents, reads, result, frozenset(d for axis in nest.reduced for d in dims[axis]))

    def _read(self, node: Node, position: int, dims: list[tuple[int, ...]]) -> Read:
        operand, axes = node.operands[position], node.nest.operands[position]
        if node.kind in PLACED:
            return Read(operand, ())
        indices: list[Index] = []
        for dim, axis in enumerate(axes):
            parts = self.axis_atoms(operand, dim)
            coefficient, offset = node.nest.places.get((position, dim), IDENTITY)
            mine = dims[axis] if axis is not None else ()
            if node.nest.is_flip(position, dim, operand.shape[dim]):
                indices += [Index(d, -1, extent - 1) for d, extent in zip(mine, parts, strict=True)]
            elif (position, dim) in node.nest.places:
                indices += [Index(mine[0], coefficient, offset) if mine else Index(-1, 0, offset)] if parts else []
            else:
                indices += [Index(d) for d in mine] if mine else [Index(-1, 0, 0)] * len(parts)
        return Read(operand, tuple(indices))


def _is_chain(cuts: set[int]) -> bool:
    ordered = sorted(cuts)
    return all(b % a == 0 for a, b in itertools.pairwise(ordered))


def groups(before: tuple[int, ...], after: tuple[int, ...]) -> list[tuple[range, range]]:
    """The finest pairs of runs of dimensions with equal products: [8, 256, 64] to [2048, 64] gives (0..2, 0..1),
    (2..3, 1..2).
    """
    pairs, i, j = [], 0, 0
    while i < len(before) or j < len(after):
        start_i, start_j, left, right = i, j, 1, 1
        while (i == start_i and j == start_j) or left != right:
            if (left <= right and i < len(before)) or j == len(after):
                left *= before[i]
                i += 1
            else:
                right *= after[j]
                j += 1
        pairs.append((range(start_i, i), range(start_j, j)))
    return pairs


def compose(outer: tuple[Index, ...], inner: tuple[Index, ...]) -> tuple[Index, ...]:
    """`inner`, indices over the atoms of a value, where that value itself is read at `outer`."""
    result = []
    for index in inner:
        if index.dim < 0:
            result.append(index)
            continue
        place = outer[index.dim]
        coefficient = index.coefficient * place.coefficient
        result.append(
            Index(place.dim, coefficient if place.dim >= 0 else 0, index.coefficient * place.offset + index.offset)
        )
    return tuple(result)
