"""Which values of a step become tensors in memory (roots), decided by bytes and cost before anything is grouped.

Anchors (products, reductions, gathers, scatters) and whatever leaves the step always do. Between them only
elementwise operations and views are left, which can be evaluated again wherever they are read. Three more kinds of
value are made roots:

- the *waist* of a product or gather: the last elementwise value through which all uses of its result pass, if it is
  no larger. The chain up
  to it becomes the epilogue, and the product itself is never stored. For `z = x @ w.T + b`, with gelu(z) and gelu'(z)
  read elsewhere, that is z: one store, and both are recomputed where they are read;
- what a product reads, if it costs more to compute again than to store and load (`PROLOGUE_FLOPS`), or if the target's
  products read memory only (`Capabilities.prologues`);
- a value that several read and that takes more bytes to compute again for each than to store and load (a residual sum:
  without this each layer would read what all layers before it added);
- a small value that a larger nest reads broadcast (1 / sqrt(variance) of a row): computed once, not once per element.

Some need no kernel: see form_kernels_memory.
"""

from __future__ import annotations

from collections.abc import Iterable

from ...tensor.primitive import Scalar
from ..capabilities import Capabilities
from .form_kernels_axes import Axes, Index, Read, compose
from .form_kernels_graph import (
    CONTRACT,
    GATHER,
    LOOKUP,
    MAP,
    REDUCE,
    RESHAPE,
    SCAN,
    SCATTER,
    SINK,
    VIEW,
    Node,
    StepGraph,
    Value,
    widened_factors,
)
from .form_kernels_groups import Root
from .form_kernels_memory import BUCKET, is_splat, is_zero, mark_memory, memory_of
from .form_kernels_skip import choice

# A prologue is evaluated about once per read of an element, in registers. Storing and loading four bytes costs a core
# about 1.5 ns of memory time, 30 to 100 vectorised operations per element: gelu (28) is recomputed, chains much
# longer are not.
PROLOGUE_FLOPS = 64
PROLOGUE_LEAVES = 2
# Operations on each other's results without a store: a step has some 40, and what walks their tree nests as deep.
MAX_CHAIN = 100
# Arithmetic on run-time scalars that every kernel may repeat: it is loop-invariant there.
SCALAR_FLOPS = 40

_EXIT = -1
_PLACED = ("iota", "random_bits")  # what depends on the place of the element
_ANCHORS = (REDUCE, CONTRACT, GATHER, SCATTER, SCAN, LOOKUP)


class Roots:
    """The roots of `graph`, in program order, and `waists`: number of an anchor -> number of its waist."""

    def __init__(self, graph: StepGraph, axes: Axes, target: Capabilities):
        self.graph, self.axes, self.target = graph, axes, target
        self.numbers: set[int] = set()
        self.waists: dict[int, int] = {}
        self._flops = {node.number: _flops(node) for node in graph.nodes}
        self._costs: dict[int, int] = {}
        self._anchors_and_sinks()
        self._waists()
        self._choices()
        self._narrowed()
        self._small_values()
        self._shared_values()
        self._products_operands()
        self._long_chains()
        mark_memory(self.graph, self.numbers)
        self.roots = self._collect()

    # --- what must be stored

    def _anchors_and_sinks(self) -> None:
        for node in self.graph.nodes:
            if (node.kind in _ANCHORS or node.is_stored) and node.result.users:
                self.numbers.add(node.number)
            if node.kind in (SINK, GATHER, SCATTER, SCAN, LOOKUP) or node.number in self.axes.opaque:
                for value in node.operands:
                    if self._reads_memory(node, value):
                        self.store(value)
        for value in self.graph.outputs:
            self.store(value)

    def _reads_memory(self, node: Node, value: Value) -> bool:
        """Whether `node` wants `value` in memory, also if it is the same number everywhere."""
        if node.kind == SCATTER and value is node.operands[0]:
            return not is_zero(value)
        return node.kind in (SINK, SCAN, GATHER, SCATTER) or not is_splat(value)

    def store(self, value: Value) -> None:
        """Make the node behind `value` a root; a reshape is a view of its operand's memory."""
        node = memory_of(value).node
        if node is not None:
            self.numbers.add(node.number)

    # --- waists

    def _waists(self) -> None:
        dominators, latest = self._dominators(), self._latest_anchors()
        for anchor in self.graph.nodes:
            if anchor.kind not in (CONTRACT, GATHER) or anchor.number not in self.numbers:
                continue
            waist, bytes_ = anchor.number, anchor.result.bytes
            following = dominators.get(waist, _EXIT)
            while following != _EXIT:
                node = self.graph.nodes[following]
                if latest[following] != anchor.number or node.result.size != anchor.result.size:
                    break
                if node.kind == MAP and node.result.bytes <= bytes_:
                    waist, bytes_ = following, node.result.bytes
                following = dominators.get(following, _EXIT)
            if waist != anchor.number:
                self.waists[anchor.number] = waist
                self.numbers.add(waist)

    def _choices(self) -> None:
        """What a kernel that may be skipped keeps has to be in memory before."""
        for node in self.graph.nodes:
            if (found := choice(node)) is not None:
                self.numbers.add(node.number)
                for value in found:
                    self.store(value)

    def _narrowed(self) -> None:
        """What is stored and narrowed is stored narrow; where nothing else reads it wide, not wide."""
        for node in self.graph.nodes:
            if node.name == "cast" and node.result.size > 1 and node.operands[0].node is not None:
                wide = node.operands[0]
                is_narrower = wide.dtype.is_floating and node.result.dtype.itemsize < wide.dtype.itemsize
                if is_narrower and wide.node.number in self.numbers and wide.node.kind == MAP:
                    self.numbers.add(node.number)

    def _latest_anchors(self) -> list[int]:
        """For every node the last anchor that it needs. An epilogue never waits for a later one: that would keep the
        operands of its product alive until then, and of two products that are added only the second can do it."""
        latest: list[int] = []
        for node in self.graph.nodes:
            before = max((latest[v.node.number] for v in node.operands if v.node is not None), default=-1)
            latest.append(node.number if node.kind in _ANCHORS else before)
        return latest

    def _dominators(self) -> dict[int, int]:
        """For every node the next one through which all uses of its result pass; _EXIT where there is none, or where
        one use is no elementwise operation of the same size."""
        nodes, found, depth = self.graph.nodes, {}, {_EXIT: 0}
        leaving = {v.node.number for v in self.graph.outputs if v.node is not None}
        for node in reversed(nodes):
            if node.kind == SINK:
                continue
            following = _EXIT if node.number in leaving or len(node.results) != 1 or not node.result.users else None
            for user in node.result.users if following is None else ():
                target = user.number if self._continues(user, node.result) else _EXIT
                following = target if following is None else _common(following, target, found, depth)
                if following == _EXIT:
                    break
            assert following is not None  # a result that nobody uses leaves at once
            found[node.number] = following
            depth[node.number] = depth[following] + 1
        return found

    def _continues(self, user: Node, value: Value) -> bool:
        if user.number in self.axes.opaque or (user.number in self.numbers and user.kind != MAP):
            return False
        return user.kind in (MAP, RESHAPE, VIEW) and user.result.size == value.size

    # --- values that are worth storing

    def _small_values(self) -> None:
        for node in self.graph.nodes:
            if (
                node.kind == MAP
                and node.number not in self.numbers
                and self.cost(node)
                and self._is_read_wider(node.result)
            ):
                if node.result.size > 1 or self.cost(node) > SCALAR_FLOPS or self._reads_roots(node):
                    self.numbers.add(node.number)

    def _reads_roots(self, node: Node) -> bool:
        """Whether a kernel before makes something that `node` needs: it can make `node`, too."""
        return any(read.value.node is not None for read in self.leaves(node)[0])

    def _is_read_wider(self, value: Value) -> bool:
        for user in value.users:
            if user.kind in (VIEW, RESHAPE):
                if user.result.size > value.size or self._is_read_wider(user.result):
                    return True
            elif user.kind == MAP and user.result.size > value.size:
                return True
        return False

    def _shared_values(self) -> None:
        for node in self.graph.nodes:
            if (
                node.kind == MAP
                and node.result.size > 1
                and node.number not in self.numbers
                and len(node.result.users) > 1
            ):
                readers = self._num_readers(node)
                if readers > 1 and self._is_dearer_again(node, readers):
                    self.numbers.add(node.number)

    def _is_dearer_again(self, node: Node, readers: int) -> bool:
        """Whether `readers` take more bytes to compute `node` from what is stored than to store and load it."""
        leaves, _ = self.leaves(node)
        values = {read.value.number: read.value for read in leaves}.values()
        size = node.result.size
        again = sum(min(v.size, size) * v.dtype.itemsize for v in values if v.size * 2 > size)
        return readers * again > (1 + readers) * node.result.bytes

    def _products_operands(self) -> None:
        for node in self.graph.nodes:
            if node.kind != CONTRACT or node.number not in self.numbers:
                continue
            for operand in widened_factors(node) or node.operands:
                source = operand
                while (
                    source.node is not None
                    and source.node.kind in (VIEW, RESHAPE)
                    and source.node.number not in self.numbers
                ):
                    source = source.node.operands[0]
                made = source.node
                if (
                    made is not None
                    and made.kind == MAP
                    and made.number not in self.numbers
                    and not (self.target.prologues and self._is_prologue(made))
                ):
                    self.numbers.add(made.number)

    def _long_chains(self) -> None:
        length: dict[int, int] = {}
        for node in self.graph.nodes:
            if node.kind not in (MAP, VIEW, RESHAPE) or node.number in self.numbers:
                continue
            inner = [length.get(v.node.number, 0) for v in node.operands if v.node is not None]
            length[node.number] = 1 + max(inner, default=0)
            if node.kind == MAP and length[node.number] > MAX_CHAIN:
                self.numbers.add(node.number)
                del length[node.number]

    def _is_prologue(self, node: Node) -> bool:
        """Whether products may evaluate `node` as they read: cheap, and no more bytes than storing it once and
        loading it.
        """
        leaves, _ = self.leaves(node)
        values = {read.value.number: read.value for read in leaves}.values()
        num_heavy = sum(v.size * 2 > node.result.size for v in values)
        is_cheap = self.cost(node) <= PROLOGUE_FLOPS and num_heavy <= PROLOGUE_LEAVES
        return is_cheap and not self._is_dearer_again(node, self._num_readers(node))

    def _num_readers(self, node: Node) -> int:
        """How many products, reductions and other roots read `node` if it is no root."""
        found: set[int] = set()
        visited = {node.number}
        pending = [node]
        while pending:
            for user in pending.pop().result.users:
                if user.number in visited:
                    continue
                visited.add(user.number)
                if user.kind in (MAP, VIEW, RESHAPE) and user.number not in self.numbers:
                    pending.append(user)
                else:
                    found.add(user.number)
        return max(1, len(found))

    def cost(self, node: Node) -> int:
        """Operations per element to compute `node` from roots and arguments; shared parts count once per use."""
        found = self._costs.get(node.number)
        if found is None:
            found = self._flops[node.number]
            for value in node.operands:
                inner = value.node
                if inner is not None and inner.number not in self.numbers and inner.kind in (MAP, VIEW, RESHAPE):
                    found += self.cost(inner)
            self._costs[node.number] = found = min(found, 1 << 20)
        return found

    # --- leaves

    def leaves(self, node: Node) -> tuple[list[Read], list[Node]]:
        """What `node` reads from memory and from other roots, and the nodes evaluated on the way (views and reshapes
        included).
        """
        found, evaluated = self._behind(self.axes.loops(node).reads)
        return found, list({source.number: source for source, _ in evaluated}.values())

    def _behind(self, reads: Iterable[Read]) -> tuple[list[Read], list[tuple[Node, tuple[Index, ...]]]]:
        """What `reads` come to in memory and other roots, and every node evaluated on the way with the element of it."""
        found: dict[tuple, Read] = {}
        evaluated: list[tuple[Node, tuple[Index, ...]]] = []
        visited: set[tuple] = set()
        pending = list(reversed(tuple(reads)))
        while pending:
            read = pending.pop()
            key = (read.value.number, read.indices)
            if key in visited:
                continue
            visited.add(key)
            source = read.value.node
            if source is None or source.number in self.numbers or source.number in self.axes.opaque:
                found[key] = read
                continue
            evaluated.append((source, read.indices))
            if source.kind == RESHAPE:
                pending.append(Read(source.operands[0], read.indices))
                continue
            for behind in reversed(self.axes.loops(source).reads):
                pending.append(Read(behind.value, compose(read.indices, behind.indices)))
        return list(found.values()), evaluated

    def _varies_along(self, read: Read) -> frozenset[int]:
        """The loops that a factor of a product depends on: what it reads, and where it computes with its own place."""
        found, evaluated = self._behind([read])
        places = [r.indices for r in found] + [at for source, at in evaluated if source.name in _PLACED]
        return frozenset(index.dim for indices in places for index in indices if index.dim >= 0)

    def _collect(self) -> list[Root]:
        """Roots that something needs, in program order."""
        nodes = self.graph.nodes
        made: dict[int, Root] = {}
        needed = [v for node in nodes if node.kind == SINK for v in node.operands] + self.graph.outputs
        needed += [node.result for node in nodes if node.name in BUCKET]
        pending = [memory_of(v).node for v in needed]
        while pending:
            node = pending.pop()
            if node is None or node.number in made:
                continue
            leaves, inner = self.leaves(node)
            loops = self.axes.loops(node)
            factors = map(self._varies_along, loops.reads) if node.kind == CONTRACT else ()
            made[node.number] = Root(node, loops, leaves, inner, factors)
            pending += [memory_of(read.value).node for read in leaves]
        return [made[number] for number in sorted(made)]


def _common(a: int, b: int, above: dict[int, int], depth: dict[int, int]) -> int:
    """The first node that follows both."""
    while a != b:
        if depth[a] >= depth[b]:
            a = above[a]
        else:
            b = above[b]
    return a


_EXPENSIVE = {
    "arith.divf": 4,
    "arith.divsi": 20,
    "arith.remsi": 20,
    "math.sqrt": 6,
    "math.rsqrt": 8,
    "math.absf": 1,
    "math.floor": 1,
}
_FLOPS: dict[tuple, int] = {}


def _flops(node: Node) -> int:
    """Operations per element of one node; a function of math counts as its polynomial, about 20."""
    lowering = node.record.nova if node.record is not None else None
    if node.kind != MAP:
        return 0
    if not isinstance(lowering, Scalar):
        return 40 if node.name == "random_bits" else 0
    category = node.operands[0].dtype.category if node.operands else 2
    key = (node.name, category)
    if key not in _FLOPS:
        text = (lowering.boolean, lowering.integer, lowering.floating)[category] or lowering.floating or ""
        names = [
            name for name in text.replace("(", " ").replace(",", " ").split() if name.startswith(("arith.", "math."))
        ]
        _FLOPS[key] = sum(_EXPENSIVE.get(name, 20 if name.startswith("math.") else 1) for name in names)
    return _FLOPS[key]
