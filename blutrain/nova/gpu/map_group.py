"""map kernels of several parts that share nothing: each part has blocks of its own, as if it were a kernel.

Parts are what is left of the body's operations when operations of one element (a learning rate's correction, computed
by every thread) are left out: those that read each other, or the same tensor, are one part.
"""

from __future__ import annotations

import dataclasses

from blutrain.nova.cpu.emit_domain import Domain, build_domain
from blutrain.nova.kernel import Access, BodyOp, Gather, Generic, Kernel, Operand, Produced, Source


def parts_of(kernel: Kernel) -> list[tuple[Kernel, Domain]]:
    """The parts: kernels of some of the operations, the nests of which store some of the results; none where there are
    not several.
    """
    single = {t for t in kernel.operands if t.size == 1}
    # A result of one element may take the place of an operand that the operations of one element of all parts read.
    if any(t in single for t in kernel.results) or not all(isinstance(source, Produced) for source in kernel.yields):
        return []
    groups = _grouped(kernel)
    return [_part(kernel, numbers, results) for numbers, results in groups] if len(groups) > 1 else []


def _grouped(kernel: Kernel) -> list[tuple[list[int], list[int]]]:
    """Numbers of the operations of each part, those of one element that they need included, and of its results."""
    owner: dict[object, int] = {}
    parent = list(range(len(kernel.ops)))

    def find(number: int) -> int:
        while parent[number] != number:
            number = parent[number]
        return number

    for number, op in enumerate(kernel.ops):
        if _is_scalar(op):
            continue
        for source in _tensors_of(kernel, op):
            first = owner.setdefault(source, number) if isinstance(source, Operand) else source.op
            parent[find(number)] = find(first)
    results: dict[int, list[int]] = {}
    for result, source in enumerate(kernel.yields):
        assert isinstance(source, Produced)
        results.setdefault(find(source.op), []).append(result)
    members = {
        root: [n for n, op in enumerate(kernel.ops) if not _is_scalar(op) and find(n) == root] for root in results
    }
    return [(_with_scalars(kernel, numbers or [root]), results[root]) for root, numbers in members.items()]


def _is_scalar(op: BodyOp) -> bool:
    return isinstance(op, Generic) and all(extent == 1 for extent in op.extents)


def _inputs(op: BodyOp) -> list[Source]:
    if isinstance(op, Generic):
        return [*(a.source for a in (*op.inputs, *op.outputs)), *op.extracts.values()]
    return [op.table, op.ids] if isinstance(op, Gather) else []


def _tensors_of(kernel: Kernel, op: BodyOp) -> list[Operand | Produced]:
    """What an operation reads of more than one element."""
    found = []
    for source in _inputs(op):
        if isinstance(source, Operand) and kernel.operands[source.index].size > 1:
            found.append(source)
        elif isinstance(source, Produced) and not _is_scalar(kernel.ops[source.op]):
            found.append(source)
    return found


def _with_scalars(kernel: Kernel, numbers: list[int]) -> list[int]:
    found, todo = set(), list(numbers)
    while todo:
        number = todo.pop()
        if number not in found:
            found.add(number)
            todo += [source.op for source in _inputs(kernel.ops[number]) if isinstance(source, Produced)]
    return sorted(found)


def _part(kernel: Kernel, numbers: list[int], mine: list[int]) -> tuple[Kernel, Domain]:
    place = {number: i for i, number in enumerate(numbers)}
    part = dataclasses.replace(
        kernel,
        results=tuple(kernel.results[i] for i in mine),
        aliases=tuple(kernel.aliases[i] for i in mine),
        ops=tuple(_renumbered(kernel.ops[number], place) for number in numbers),
        yields=tuple(_moved(kernel.yields[i], place) for i in mine),
    )
    domain = build_domain(part)
    stores = tuple(dataclasses.replace(store, result=mine[store.result]) for store in domain.stores)
    return dataclasses.replace(kernel, ops=part.ops), dataclasses.replace(domain, stores=stores)


def _renumbered(op: BodyOp, place: dict[int, int]) -> BodyOp:
    if not isinstance(op, Generic):
        return op
    over = lambda access: _access(access, place)
    return dataclasses.replace(op, inputs=tuple(map(over, op.inputs)), outputs=tuple(map(over, op.outputs)))


def _access(access: Access, place: dict[int, int]) -> Access:
    return dataclasses.replace(access, source=_moved(access.source, place))


def _moved(source: Source, place: dict[int, int]) -> Source:
    return Produced(place[source.op], source.result) if isinstance(source, Produced) else source
