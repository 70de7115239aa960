"""Which roots share a kernel: groups that grow by merging, never into a cycle, never across a change of the parallel
row mapping.

A result that is complete only when all rows are done (bias gradients, column outputs) is *late*: nothing that runs
over the rows of the kernel may read it in the same kernel.

A *root* is a node whose result exists as a tensor (see form_kernels); everything between roots is recomputed where it
is read. Two groups can merge only where both read (or one makes) some value at every point of their nests, which
tells how the loops of one lie in the loops of the other, and where the anchor of the merged group takes every member:

| anchor | loops | members |
|---|---|---|
| row | rows x cols | reductions over cols; maps of rows x cols or of rows; rows of tables; reductions over rows (column outputs) |
| column | rows x cols | reductions over rows; maps of their results |
| contract | batch, m, n | maps of all three; sums over batch and m (bias gradients), or over n (`with_product`) |
| gather | result | maps of it |
| map | result | maps of it |
"""

from __future__ import annotations

from math import prod

from ..capabilities import Capabilities
from .form_kernels_axes import Index, Loops, Read
from .form_kernels_graph import CONTRACT, GATHER, LOOKUP, REDUCE, SCAN, SCATTER, Node
from .form_kernels_memory import memory_of
from .form_kernels_skip import choice

ROW, COLUMN, MAP = "row", "column", "map"
SMALL = 8192  # elements that one block goes over in no time
MAX_CHAIN = 150  # operations on each other's results in a kernel: generators nest as deep, and a step has some 40


class Root:
    """A node with a stored result: its loops, and its leaves, the values of memory and of other roots that it reads.
    `factors`: of a product, the loops that each factor varies along.
    """

    __slots__ = ("factors", "inner", "leaves", "loops", "node")

    def __init__(self, node: Node, loops: Loops, leaves: list[Read], inner: list[Node], factors=()):
        self.node, self.loops, self.leaves, self.inner = node, loops, leaves, inner
        self.factors: tuple[frozenset[int], ...] = tuple(factors)

    def spans(self, read: Read) -> bool:
        """Whether `read` names every loop of this root once, with nothing skipped or reversed: its element tells the
        point of the nest.
        """
        dims = [index.dim for index in read.indices]
        return len(dims) == len(set(dims)) == len(self.loops.extents) and all(
            _is_plain(index) for index in read.indices
        )

    def covers(self, read: Read) -> bool:
        """Like `spans`, over the loops of the result only: what an epilogue of a contraction sees."""
        dims = [index.dim for index in read.indices]
        return (
            len(dims) == len(set(dims))
            and set(dims) == set(self.loops.result)
            and all(_is_plain(i) for i in read.indices)
        )


def _is_plain(index: Index) -> bool:
    return index.dim >= 0 and index.coefficient == 1 and index.offset == 0


def anchor_of(root: Root) -> str:
    """The anchor of a root on its own. A reduction is `row` where the loop that is contiguous in memory is reduced."""
    kind = root.node.kind
    if kind in (CONTRACT, GATHER, SCATTER, SCAN):
        return kind
    if kind != REDUCE or not root.loops.reduced:
        return MAP
    spanning = [read for read in root.leaves if root.spans(read) and read.indices]
    fastest = spanning[0].indices[-1].dim if spanning else len(root.loops.extents) - 1
    return ROW if fastest in root.loops.reduced else COLUMN


class Group:
    """Roots that become one kernel. `places[number]` says for every loop of a root which loop of the group it is."""

    __slots__ = (
        "anchor",
        "columns",
        "extents",
        "has_choice",
        "is_memory",
        "number",
        "places",
        "reduced",
        "roots",
        "rows",
    )

    def __init__(self, number: int, root: Root):
        self.number, self.roots, self.anchor = number, [root], anchor_of(root)
        self.places: dict[int, tuple[int, ...]] = {root.node.number: tuple(range(len(root.loops.extents)))}
        self.is_memory, self.has_choice = root.node.is_memory, choice(root.node) is not None
        self.extents = root.loops.extents
        self.reduced = root.loops.reduced
        # Of a product: the loops that are left where its columns are summed, or its rows.
        self.columns = _columns(root) if self.anchor == CONTRACT else frozenset()
        self.rows = frozenset(root.loops.result) - self.columns

    def takes(self, root: Root, place: tuple[int, ...]) -> bool:
        """Whether the anchor's generator takes `root` with its loops at `place`."""
        loops, reduced = set(place), {place[d] for d in root.loops.reduced}
        everything = set(range(len(self.extents)))
        is_map = not reduced and root.node.kind not in (CONTRACT, GATHER, SCATTER, SCAN, LOOKUP)
        parallel = everything - self.reduced
        if self.anchor == ROW:
            if is_map:
                return loops in (everything, parallel)
            if root.node.kind == GATHER:
                return loops == everything
            if root.node.kind != REDUCE or loops != everything:
                return False
            in_any_order = not root.node.record.nova.combiner.startswith("arg")
            return reduced == self.reduced or (reduced == parallel and in_any_order)
        if self.anchor == COLUMN:
            if is_map:
                return loops == parallel and self._makes_all(root)
            return root.node.kind == REDUCE and loops == everything and reduced == self.reduced
        if self.anchor == CONTRACT:
            if is_map:
                return loops == parallel
            is_sum = root.node.kind == REDUCE and root.node.record.nova.combiner == "add"
            kept = self.rows if root.node.with_product else self.columns
            return is_sum and loops == parallel and loops - reduced == kept
        if self.anchor == GATHER:
            return is_map and loops == everything
        return self.anchor == MAP and (is_map or root.node.kind == LOOKUP) and loops == everything

    def is_late(self, root: Root, place: tuple[int, ...]) -> bool:
        """Whether the result of `root` is complete only when all rows are done: nothing over the rows may read it
        here.
        """
        if root.node.kind != REDUCE:
            return False
        return self.anchor in (CONTRACT, COLUMN) or {place[d] for d in root.loops.reduced} != self.reduced

    def _makes_all(self, root: Root) -> bool:
        """Whether all tensors (not single numbers) that `root` reads are made here."""
        made = {member.node.result.number for member in self.roots}
        return all(read.value.number in made for read in root.leaves if read.indices)


def _columns(root: Root) -> frozenset[int]:
    """Loops of the columns of a product: those of the factor that has the last loop of the result, unless both have
    them. As `contract.read` sorts them into axes.
    """
    last = root.loops.result[-1] if root.loops.result else None
    first, second = root.factors
    column, row = (first, second) if last in first and last not in second else (second, first)
    return frozenset(d for d in root.loops.result if d in column and d not in row)


class Groups:
    """All groups, who depends on whom, and merging."""

    def __init__(self, roots: list[Root], target: Capabilities):
        self.target = target
        self.groups = [Group(i, root) for i, root in enumerate(roots)]
        self.of: dict[int, Group] = {group.roots[0].node.number: group for group in self.groups}
        # For every root the number of the last one that it needs, -1 where it needs none.
        self.waits: dict[int, int] = {}
        self.readers: dict[int, list[Root]] = {}
        for root in roots:
            sources = [s.number for read in root.leaves if (s := source_node(read)) is not None]
            self.waits[root.node.number] = max((max(n, self.waits[n]) for n in sources), default=-1)
            for number in set(sources):
                self.readers.setdefault(number, []).append(root)
        self._refused: set[tuple] = set()  # attempts to merge that failed
        direct = [self._sources(root) for root in roots]
        self.before = [0] * len(roots)
        self.after = [0] * len(roots)
        self._merged = [1 << number for number in range(len(roots))]  # a group, and those that became part of it
        for number, sources in enumerate(direct):
            for source in _bits(sources):
                self.before[number] |= self.before[source] | 1 << source
        for number in reversed(range(len(roots))):
            for source in _bits(direct[number]):
                self.after[source] |= self.after[number] | 1 << number

    def _sources(self, root: Root) -> int:
        """Groups that `root` reads, as a bit set."""
        sources = 0
        for read in root.leaves:
            source = source_node(read)
            if source is not None:
                sources |= 1 << self.of[source.number].number
        return sources

    def can_merge(self, a: Group, b: Group) -> bool:
        """No third group lies on a path from one to the other."""
        return not (self.after[a.number] & self.before[b.number] or self.after[b.number] & self.before[a.number])

    def try_merge(self, a: Group, b: Group, place: tuple[int, ...], is_waist: bool = False) -> bool:
        """Merge `b` into `a`, loop d of b being loop place[d] of a, if the anchor of `a` takes every root of `b` and
        no cycle arises. is_waist: `b` is what becomes of the product or gather `a`; else the merge must save loads.
        """
        if a is b or a.is_memory or b.is_memory or not self.can_merge(a, b):
            return False
        attempt = a.number, len(a.roots), b.number, len(b.roots), place, is_waist
        if attempt in self._refused:  # groups only grow, so it is the same question
            return False
        moved = {
            r.node.number: tuple(place[d] if d < len(place) else -1 for d in b.places[r.node.number]) for r in b.roots
        }
        if not self._fits(a, b, place, moved, is_waist):
            self._refused.add(attempt)
            return False
        if self._delays(a, b) or self._delays(b, a):
            return False
        a.has_choice |= b.has_choice
        a.places.update(moved)
        a.roots = sorted(a.roots + b.roots, key=lambda root: root.node.number)
        for root in b.roots:
            self.of[root.node.number] = a
        self._join(a.number, b.number)
        b.roots = []
        return True

    def _fits(self, a: Group, b: Group, place: tuple[int, ...], moved: dict, is_waist: bool) -> bool:
        """What `try_merge` asks of the two groups alone. moved: the loops of b's roots among those of a."""
        if _chain([*a.roots, *b.roots]) > MAX_CHAIN or not self._run_together(a, b):
            return False
        is_plain = list(place) == sorted(place) or (a.anchor == CONTRACT and self.target.is_wide)
        if not is_plain and not (_reads(a, b) or _reads(b, a)):
            return False  # only a value that one gives the other shows a generator how permuted loops belong together
        if len(set(place)) != len(place) or any(a.extents[p] != b.extents[d] for d, p in enumerate(place)):
            return False
        if not all(a.takes(root, moved[root.node.number]) for root in b.roots):
            return False
        roots, places = [*a.roots, *b.roots], a.places | moved
        if not _reads_in_place(roots, places) or _reads_late(a, roots, places) or not _is_timely(a, b):
            return False
        return is_waist or self._is_worthwhile(a, b, places)

    def _is_worthwhile(self, a: Group, b: Group, places: dict[int, tuple[int, ...]]) -> bool:
        """An epilogue reads the product. A map joins the reductions it computes with or makes the operand of, not any
        that read the same tensor. Where all loops are reduced, what needs the total runs after it: only single numbers
        join then. Where only memory counts, a map also joins products and reductions that load all it reads.
        """
        if b.anchor == MAP and a.anchor in (CONTRACT, ROW) and self.target.is_wide:
            is_small = prod(a.extents) <= SMALL
            if is_small and (_reads(a, b) or _reads(b, a)):
                return True
            if _loads_nothing_new(a, b, places) and (is_small or len(a.reduced) < len(a.extents)):
                return True
        if a.anchor == CONTRACT and b.anchor == MAP:
            return False
        if a.anchor in (CONTRACT, GATHER):
            return _reads(b, a)
        if a.anchor != ROW or b.anchor != MAP:
            return True
        if _reads(a, b):
            return True
        return _reads(b, a) and (len(a.reduced) < len(a.extents) or not b.extents)

    def _run_together(self, a: Group, b: Group) -> bool:
        """Whether all that leaves `a` and `b` is needed under the same condition: always, or where one flag is not set
        (form_kernels_skip). What only such values read is needed with them.
        """
        if not a.has_choice and not b.has_choice:
            return True
        needed = set()
        for root in (*a.roots, *b.roots):
            outside = [r for r in self.readers.get(root.node.number, ()) if self.of[r.node.number] not in (a, b)]
            if choice(root.node) is not None:
                needed.add(_flag(root))
            else:
                needed.update(map(_flag, outside))
        return len(needed) == 1

    def _delays(self, a: Group, b: Group) -> bool:
        """Whether kernels that only wait for `a`, and come before what `b` waits for, would have to wait for that."""
        last, mine = (self._waits_for(group, (a, b)) for group in (b, a))
        if last <= mine:
            return False
        users = (self.groups[n] for n in _bits(self.after[a.number] & ~(1 << b.number)))
        return any(user.roots and user.roots[0].node.number < last for user in users)

    def _waits_for(self, group: Group, inside: tuple[Group, Group]) -> int:
        """The number of the last root that `group` needs, but for those of `inside`."""
        sources = (source_node(read) for root in group.roots for read in root.leaves)
        numbers = {s.number for s in sources if s is not None and self.of[s.number] not in inside}
        return max((max(n, self.waits[n]) for n in numbers), default=-1)

    def _join(self, a: int, b: int) -> None:
        """Group b is now group a: everything before either is before everything after either. What is after (before)
        both already knew of both, and keeps the bit of b beside that of a.
        """
        self._merged[a] |= self._merged[b]
        outside = ~self._merged[a]
        before = (self.before[a] | self.before[b]) & outside
        after = (self.after[a] | self.after[b]) & outside
        for number in _bits((self.after[a] ^ self.after[b]) & after):
            self.before[number] |= before | 1 << a | 1 << b
        for number in _bits((self.before[a] ^ self.before[b]) & before):
            self.after[number] |= after | 1 << a | 1 << b
        self.before[a], self.after[a] = before, after
        self.before[b], self.after[b] = 0, 0

    def in_order(self) -> list[Group]:
        """Living groups, each after those it depends on, otherwise by their first root."""
        alive = [g for g in self.groups if g.roots]
        living = sum(1 << g.number for g in alive)
        return sorted(alive, key=lambda g: ((self.before[g.number] & living).bit_count(), g.roots[0].node.number))


def _reads(a: Group, b: Group) -> bool:
    """Whether a root of `a` reads one of `b`."""
    made = {root.node.number for root in b.roots}
    sources = (source_node(read) for root in a.roots for read in root.leaves)
    return any(source is not None and source.number in made for source in sources)


def _chain(roots: list[Root]) -> int:
    """How many operations of these roots wait for each other at most, two more counted for each root."""
    behind: dict[int, int] = {}
    for root in sorted(roots, key=lambda r: r.node.number):
        sources = (source_node(read) for read in root.leaves)
        before = max((behind.get(s.number, 0) for s in sources if s is not None), default=0)
        behind[root.node.number] = before + len(root.inner) + 2
    return max(behind.values())


def _flag(root: Root) -> int:
    """The number of the flag under which `root` is needed, -1 where it always is."""
    found = choice(root.node)
    return memory_of(found[0]).number if found is not None else -1


def _is_timely(a: Group, b: Group) -> bool:
    """Whether what is to be computed late (`Node.is_late`) gets into no kernel that runs early."""
    late = [[root.node.number for root in group.roots if root.node.is_late] for group in (a, b)]
    last = [max(root.node.number for root in group.roots) for group in (a, b)]
    return all(number <= last[1 - i] for i in (0, 1) for number in late[i])


def _loads_nothing_new(a: Group, b: Group, places: dict[int, tuple[int, ...]]) -> bool:
    """Whether `a` makes or reads, at the same point of its loops, every large tensor that `b` reads."""

    def place(read: Read, root: Root) -> tuple:
        loops = places[root.node.number]
        return read.value.number, tuple(i if i.dim < 0 else i._replace(dim=loops[i.dim]) for i in read.indices)

    known = {place(read, root) for root in a.roots for read in root.leaves}
    for root in a.roots:
        known.add(place(Read(root.node.result, tuple(Index(loop) for loop in root.loops.result)), root))
    large = ((read, root) for root in b.roots for read in root.leaves if read.value.size * 2 > root.node.result.size)
    return all(place(read, root) in known for read, root in large)


def _reads_in_place(roots: list[Root], places: dict[int, tuple[int, ...]]) -> bool:
    """Whether every root reads the results of the others at the point of the loops where they are made: the
    parallel rows of a kernel see nothing of each other.
    """
    by_number = {root.node.number: root for root in roots}
    for root in roots:
        place = places[root.node.number]
        for read in root.leaves:
            source = source_node(read)
            if source is None or source.number not in by_number:
                continue
            if root.node.kind in (CONTRACT, GATHER, SCATTER, SCAN, LOOKUP):
                return False  # they read memory
            made = places[source.number]
            wanted = [made[loop] for loop in by_number[source.number].loops.result]
            found = [place[index.dim] if _is_plain(index) else -1 for index in read.indices]
            if read.value is not source.result or found != wanted:
                return False
    return True


def _reads_late(group: Group, roots: list[Root], places: dict[int, tuple[int, ...]]) -> bool:
    """Whether one of `roots` reads a late result of another; maps of a column's results may."""
    late = {root.node.number for root in roots if group.is_late(root, places[root.node.number])}
    if not late:
        return False
    readers = [root for root in roots if group.anchor != COLUMN or root.node.kind == REDUCE]
    sources = (source_node(read) for root in readers for read in root.leaves)
    return any(source is not None and source.number in late for source in sources)


def source_node(read: Read) -> Node | None:
    """The root that a leaf comes from, behind reshapes of memory; None for an argument."""
    node = read.value.node
    while node is not None and node.kind == "reshape":
        node = node.operands[0].node
    return node


def _bits(mask: int):
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low
