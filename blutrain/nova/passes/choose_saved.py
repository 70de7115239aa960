"""Values that are cheap to compute again are computed again where the backward pass wants them, instead of being kept
from the forward.

    %0 = "nova.mul"(%arg0, %arg1) : (tensor<512x1024xf32>, tensor<1024xf32>) -> tensor<512x1024xf32>
    ... the forward pass reads %0, then the rest of the step ...
    %9 = "nova.matmul"(%8, %0) : ...

becomes

    %0 = "nova.mul"(%arg0, %arg1) : ...
    ...
    %9 = "nova.mul"(%arg0, %arg1) {nova.recompute} : ...
    %10 = "nova.matmul"(%8, %9) : ...

so that %0 is free after the forward pass and form_kernels can make the copy a prologue of its reader.

A value is *saved* where at least FAR matrix products lie between two touches of it. Where most bytes are saved (in a
training step: around the loss), each saved value of MIN_BYTES or more is looked at. It is recomputed if elementwise
operations and movements alone make it (norm outputs from x and row statistics, relu, masks, casts) from what is kept
anyway: arguments, values that the backward needs for itself, anything below a sixteenth of its size; and if that costs
no more than CHEAP of work an element. With the attribute nova.memory_limit (bytes) on the module and more saved than
that, and wherever only memory counts (`Capabilities.is_wide`), up to DEAR (gelu, softmax, the random bits of dropout).
Then the same at the new maximum, until nothing changes. Who reads a view touches what it is a view of.

Where products read their operands as they lie in memory (no `Capabilities.prologues`), a rounded copy of an argument (a
weight in bf16) is kept: made again it takes a kernel that reads twice what it saves. Beyond nova.memory_limit it is not.
"""

from __future__ import annotations

from itertools import pairwise

from mlir import ir

from ...tensor.primitive import TABLE, Indexing, Scalar
from ..capabilities import capabilities
from ..dialect.graph import Graph
from .form_kernels_graph import RECOMPUTE

NAME = "choose_saved"

MIN_BYTES = 1 << 20
FAR = 2
CHEAP, DEAR = 24, 200
MEMORY_LIMIT = "nova.memory_limit"
MAX_ROUNDS = 16
_VIEWS = frozenset(("reshape", "transpose", "expand", "slice", "flip"))


def run(module: ir.Module, facts) -> None:
    found = module.operation.attributes
    limit = ir.IntegerAttr(found[MEMORY_LIMIT]).value if MEMORY_LIMIT in found else None
    target = capabilities(facts)
    for _ in range(MAX_ROUNDS):
        lives = _Lives(Graph(module))
        peak, num_bytes = lives.peak()
        is_scarce = limit is not None and num_bytes > limit
        max_work = DEAR if target.is_wide or is_scarce else CHEAP
        keeps_copies = not target.prologues and not is_scarce
        if num_bytes < MIN_BYTES or not _recompute_across(lives, peak, max_work, keeps_copies):
            return


class _Lives:
    """The operations of a step by position, and for every value of some size where it is made and read."""

    def __init__(self, graph: Graph):
        self.ops = graph.operations()
        self.position = {op: i for i, op in enumerate(self.ops)}
        self.operands = [list(op.operands) for op in self.ops]
        self.bytes: dict[ir.Value, int] = {}
        self.touches: dict[ir.Value, list[int]] = {}
        self.viewed: dict[ir.Value, ir.Value] = {}
        self.num_products = [0]
        for i, op in enumerate(self.ops):
            for value in self.operands[i]:
                self._touch(value, i)
            for value in op.results:
                aval = graph.aval(value)
                self.bytes[value], self.touches[value] = aval.size * aval.dtype.itemsize, [i]
            if _is_view(op):
                self.viewed[op.result] = self.operands[i][0]
            self.num_products.append(self.num_products[-1] + (op.name == "nova.matmul"))

    def _touch(self, value: ir.Value | None, position: int) -> None:
        while value in self.touches:
            self.touches[value].append(position)
            value = self.viewed.get(value)

    def gaps(self, value: ir.Value) -> list[tuple[int, int]]:
        """The stretches between two touches of `value` over which it is saved."""
        touches = self.touches[value]
        between = self.num_products
        return [(a, b) for a, b in pairwise(touches) if between[b] - between[a + 1] >= FAR]

    def peak(self) -> tuple[int, int]:
        """The first position behind which the most bytes are saved, and how many."""
        change = [0] * (len(self.ops) + 1)
        for value in self.touches.keys() - self.viewed.keys():
            for start, stop in self.gaps(value):
                change[start] += self.bytes[value]
                change[stop] -= self.bytes[value]
        best, where, total = 0, 0, 0
        for i, step in enumerate(change):
            total += step
            if total > best:
                best, where = total, i
        return where, best

    def alive_at(self, peak: int) -> set[ir.Value]:
        """Values read behind position `peak` and made before."""
        return {v for v, touches in self.touches.items() if touches[0] <= peak < touches[-1]}

    def saved_across(self, peak: int) -> list[ir.Value]:
        """Values saved behind position `peak`, in the order they are made."""
        return [v for v in self.touches if any(start <= peak < stop for start, stop in self.gaps(v))]


def _recompute_across(lives: _Lives, peak: int, max_work: int, keeps_copies: bool) -> bool:
    """Recompute behind `peak` what is worth it of the values saved there. Returns whether anything was."""
    kept: set[ir.Value] = set()
    chains: dict[ir.Value, list[int]] = {}
    saved = lives.saved_across(peak)
    kept.update(lives.alive_at(peak).difference(saved))
    for value in saved:
        chain = _chain(lives, value, kept) if lives.bytes[value] >= MIN_BYTES else None
        if (
            chain is None
            or sum(_work(lives.ops[i]) for i in chain) > max_work
            or (keeps_copies and _is_copy_of_argument(lives, chain))
        ):
            kept.add(value)
        else:
            chains[value] = chain
    made = [_duplicate(lives, peak, value, chain) for value, chain in chains.items()]
    return any(made)


def _chain(lives: _Lives, value: ir.Value, kept: set[ir.Value]) -> list[int] | None:
    """Positions of the operations that make `value` from what is kept, in order; None where something expensive is in
    the way.
    """
    small = lives.bytes[value] // 16
    chain: set[int] = set()
    pending = [value]
    while pending:
        current = pending.pop()
        if current not in lives.touches or lives.touches[current][0] in chain:
            continue
        place = lives.touches[current][0]
        is_leaf = current in kept or (lives.bytes[current] <= small and not _is_free(lives.ops[place]))
        if current != value and is_leaf:
            continue
        if not _is_cheap(lives.ops[place]):
            return None
        chain.add(place)
        pending.extend(lives.operands[place])
    return sorted(chain)


def _is_copy_of_argument(lives: _Lives, chain: list[int]) -> bool:
    """Whether a chain only rounds and rearranges what the step was given."""
    inner = {result for i in chain for result in lives.ops[i].results}
    leaves = [value for i in chain for value in lives.operands[i] if value not in inner]
    only_copies = all(lives.ops[i].name == "nova.cast" or _is_view(lives.ops[i]) for i in chain)
    return only_copies and all(isinstance(value.owner, ir.Block) for value in leaves)


def _is_free(op: ir.Operation) -> bool:
    return op.name == "nova.constant"


def _is_view(op: ir.Operation) -> bool:
    """Whether `op` brings no tensor of its own: it moves elements, or widens narrow floats."""
    if op.name == "nova.cast":
        return str(op.operands[0].type.element_type) in ("bf16", "f16") and str(op.result.type.element_type) == "f32"
    prim = TABLE.get(op.name.removeprefix("nova."))
    return prim is not None and isinstance(prim.nova, Indexing) and prim.nova.rule in _VIEWS


def _is_cheap(op: ir.Operation) -> bool:
    """Whether `op` computes each element from few elements of its operands, in place."""
    if _is_free(op) or _is_view(op):
        return True
    prim = TABLE.get(op.name.removeprefix("nova."))
    if prim is None:
        return False
    return isinstance(prim.nova, Scalar) or prim.name in ("cast", "random_bits", "iota")


def _work(op: ir.Operation) -> int:
    """Roughly the instructions an element of the result costs."""
    prim = TABLE.get(op.name.removeprefix("nova."))
    if prim is None or isinstance(prim.nova, Indexing):
        return 0
    if prim.name == "random_bits":
        return 40
    text = (prim.nova.floating or "") if isinstance(prim.nova, Scalar) else ""
    return 1 + 15 * text.count("math.") + 4 * text.count("div")


def _duplicate(lives: _Lives, peak: int, value: ir.Value, chain: list[int]) -> bool:
    """Make `value` again in front of its first reader behind `peak`; all readers there take the copy. False where only
    views made before are read there: each is made again on its own.
    """
    # Operations repeated in this round are not in `position`: the next round looks at them.
    uses = [(lives.position.get(use.owner.operation, -1), use) for use in value.uses]
    uses = [(position, use) for position, use in uses if position > peak]
    if not uses:
        return False
    copies: dict[ir.Value, ir.Value] = {}
    with ir.InsertionPoint(lives.ops[min(position for position, _ in uses)]):
        for i in chain:
            copy = lives.ops[i].clone().operation
            copy.attributes[RECOMPUTE] = ir.UnitAttr.get()
            for n, operand in enumerate(lives.operands[i]):
                if operand in copies:
                    copy.operands[n] = copies[operand]
            copies.update(zip(lives.ops[i].results, copy.results, strict=True))
    for position, use in uses:
        lives.ops[position].operands[use.operand_number] = copies[value]
    return True
