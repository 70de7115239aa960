"""form_kernels: partition a step of simple operations into kernels.

Before:

    %0 = "nova.transpose"(%w) {perm = array<i64: 1, 0>} : (tensor<4x8xf32>) -> tensor<8x4xf32>
    %1 = "nova.matmul"(%x, %0) : (tensor<2x8xf32>, tensor<8x4xf32>) -> tensor<2x4xf32>
    %2 = "nova.add"(%1, %b) : (tensor<2x4xf32>, tensor<4xf32>) -> tensor<2x4xf32>
    return %2

After:

    %0 = "nova.kernel"(%x, %w, %b) ({
    ^bb0(%i0: tensor<2x8xf32>, %i1: tensor<4x8xf32>, %i2: tensor<4xf32>):
      %1 = "nova.transpose"(%i1) ...
      %2 = "nova.matmul"(%i0, %1) ...
      %3 = "nova.add"(%2, %i2) ...
      "gpu.yield"(%3)
    }) {anchor = "contract"}
    return %0

Three decisions, each in a file of its own: axes (form_kernels_axes: reshapes dissolve), roots (form_kernels_roots:
what exists as a tensor; the rest is recomputed where it is read), groups (form_kernels_groups: which roots share a
kernel). Between kernels only `nova.reshape` of memory is left; checks and assigns end the step. Every output and
every assign gets memory of its own.
"""

from __future__ import annotations

from math import prod

from mlir import ir

from ..capabilities import Capabilities, capabilities
from ..dialect.graph import Graph
from .form_kernels_axes import Axes, Read
from .form_kernels_emit import StepWriter
from .form_kernels_graph import CONTRACT, GATHER, PLACED, StepGraph
from .form_kernels_groups import COLUMN, MAP, ROW, SMALL, Group, Groups, Root
from .form_kernels_roots import Roots

NAME = "form_kernels"
MAX_RESULTS = 24  # of a kernel of small parts: each has up to three operands, and all are arguments of a launch

# Merges in order of what they save: (anchor that grows, anchor that is taken in).
_MERGES = (
    (CONTRACT, ROW),
    (ROW, ROW),
    (ROW, MAP),
    (ROW, COLUMN),
    (ROW, GATHER),
    (CONTRACT, COLUMN),
    (CONTRACT, MAP),
    (GATHER, MAP),
    (COLUMN, COLUMN),
    (COLUMN, MAP),
    (MAP, MAP),
)


def run(module: ir.Module, facts) -> None:
    """See the module. Errors: PassFault for an operation that no kernel computes, with its line."""
    step = Graph(module)
    graph = StepGraph(step.block)
    body = StepWriter(graph, form_groups(graph, capabilities(facts))).body()
    del graph
    replace_step(module, step, body)


def form_groups(graph: StepGraph, target: Capabilities) -> Groups:
    """The partition of `graph`."""
    roots = Roots(graph, Axes(graph), target)
    groups = Groups(roots.roots, target)
    _take_epilogues(groups, roots)
    holders = _holders(roots.roots)
    for large, small in _MERGES:
        # A merge can open the way for another: what lay between two groups is then part of one.
        while sum(_merge_readers(groups, readers, large, small) for readers in holders):
            pass
    if target.is_wide:
        _merge_small(groups)
    return groups


def _merge_small(groups: Groups) -> None:
    """Small maps that nobody waits for (updates of biases and of the weights of norms) share kernels, and so do small
    totals (the squares of their gradients): a launch costs more than they do.
    """
    open_: dict[tuple, Group] = {}
    for group in groups.in_order():
        extents = group.extents
        is_update = group.anchor == MAP and not groups.after[group.number]
        is_total = group.anchor == ROW and len(group.reduced) == len(extents)
        if not extents or prod(extents) > SMALL or not (is_update or is_total):
            continue
        key = group.anchor, extents, _shapes(group)
        into = open_.get(key)
        if into is not None and len(into.roots) + len(group.roots) > MAX_RESULTS:
            into = None
        if into is None or not groups.try_merge(into, group, tuple(range(len(extents)))):
            open_[key] = group


def _shapes(group: Group) -> frozenset[tuple[int, ...]]:
    """The shapes of what a group goes over: the same loops may be one dimension of one tensor and two of another."""
    size = prod(group.extents)
    values = [value for root in group.roots for value in (root.node.result, *(read.value for read in root.leaves))]
    return frozenset(value.shape for value in values if value.size == size)


def _take_epilogues(groups: Groups, roots: Roots) -> None:
    """Each product and gather with its waist: the waist reads the anchor's result at its own element."""
    for anchor, waist in sorted(roots.waists.items()):
        if anchor not in groups.of or waist not in groups.of:
            continue
        group, other = groups.of[anchor], groups.of[waist]
        root = next(r for r in other.roots if r.node.number == waist)
        result = group.roots[0].node.result
        for read in root.leaves:
            if read.value is result and root.spans(read):
                place = [0] * len(root.loops.extents)
                for index, loop in zip(read.indices, group.roots[0].loops.result, strict=True):
                    place[index.dim] = loop
                groups.try_merge(group, other, tuple(place), is_waist=True)
                break


def _holders(roots: list[Root]) -> list[list[tuple[Root, tuple[int, ...]]]]:
    """For every value that several roots make or read element by element: those roots, and the loop of each atom of
    the value.
    """
    found: dict[int, list[tuple[Root, tuple[int, ...]]]] = {}
    for root in roots:
        found.setdefault(root.node.result.number, []).append((root, root.loops.result))
        for read in root.leaves if root.node.kind not in PLACED else ():
            loops = _loops_of(read)
            if loops is not None:
                found.setdefault(read.value.number, []).append((root, loops))
    return [readers for _, readers in sorted(found.items()) if len(readers) > 1]


def _loops_of(read: Read) -> tuple[int, ...] | None:
    """The loop of each atom where the read is plain; None where it skips, reverses or stands still, or reads a number
    from outside.
    """
    if (not read.indices and read.value.node is None) or any(
        i.dim < 0 or i.coefficient != 1 or i.offset for i in read.indices
    ):
        return None
    loops = tuple(index.dim for index in read.indices)
    return loops if len(set(loops)) == len(loops) else None


def _merge_readers(groups: Groups, readers: list, large: str, small: str) -> bool:
    """Merge groups that see one value, a `small` one into a `large` one. Returns whether any did."""
    merged = False
    growing = [reader for reader in readers if groups.of[reader[0].node.number].anchor == large]
    if not growing:
        return False
    for other, other_loops in readers:
        b = groups.of[other.node.number]
        if b.anchor != small or len(b.extents) > len(other_loops):
            continue
        for root, loops in growing:
            a = groups.of[root.node.number]
            if a is not b and (large != small or a.number < b.number):
                place = _place(a, root, loops, b, other, other_loops)
                if place is not None and groups.try_merge(a, b, place):
                    merged = True
                    break
    return merged


def _place(a: Group, root: Root, loops, b: Group, other: Root, other_loops) -> tuple[int, ...] | None:
    """Where the loops of `b` lie among those of `a`, from a value that both see; None unless it tells all of them."""
    mine, theirs = a.places[root.node.number], b.places[other.node.number]
    place: list[int] = [-1] * len(b.extents)
    for loop, other_loop in zip(loops, other_loops, strict=True):
        place[theirs[other_loop]] = mine[loop]
    return None if -1 in place else tuple(place)


def replace_step(module: ir.Module, step: Graph, body: str) -> None:
    """Put a function with the same arguments and results and `body` in place of the step."""
    func = step.func
    arguments = ", ".join(f"%arg{i}: {a.type}{_role(step, i)}" for i, a in enumerate(step.arguments))
    type_ = ir.TypeAttr(func.attributes["function_type"]).value
    results = ", ".join(str(t) for t in ir.FunctionType(type_).results)
    text = f"func.func @step({arguments}) -> ({results}) {{\n{body}\n}}"
    new = ir.Module.parse(text, module.context)
    func.erase()
    module.body.append(new.body.operations[0])


def _role(step: Graph, index: int) -> str:
    attributes = step.func.attributes
    if "arg_attrs" not in attributes:
        return ""
    return f" {attributes['arg_attrs'][index]}"
