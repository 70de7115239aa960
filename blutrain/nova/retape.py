"""The tape of recorded steps, made when something needs it.

A replay makes no tape. Where an event that was never recorded follows replayed ones, or a backward comes after the
flush, the operations of their steps are put on a tape again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from ..tensor import dispatch
from ..tensor.tensor import Tensor
from .steps import FunctionCall, Leaf, Step, Taped, map_tree
from .trace import Constant


def rebuild(steps: Iterable[Step], tensors: dict, make: Callable) -> None:
    """Put the taped operations of `steps` on a tape of `tensors` (value -> tensor, or number for a run-time scalar).

    make(value): what stands for a value that is missing there; it is entered.
    """

    def get(value: int):
        if value not in tensors:
            tensors[value] = make(value)
        return tensors[value]

    frozen: list[Tensor] = []
    with dispatch.tape.enable_grad():
        for step in steps:
            for entry in step.taped:
                _put_on_tape(entry, get, frozen)
            for value in step.freed:
                if value in tensors:
                    dispatch.tape.release(tensors[value])
    for leaf in frozen:
        leaf._requires_grad = False


def _put_on_tape(entry: Taped, get: Callable, frozen: list[Tensor]) -> None:
    """frozen: leaves that wanted gradients when the operation was recorded and do no more; they are noted and get one."""
    item, operands = entry.item, []
    for value, wanted in zip(entry.item.operands, entry.wants, strict=True):
        if value is None or isinstance(value, Constant):
            operands.append(None if value is None else value.value)
            continue
        operand = get(value)
        if wanted and isinstance(operand, Tensor) and not operand._requires_grad:
            operand._requires_grad = True
            frozen.append(operand)
        operands.append(operand if wanted or not isinstance(operand, Tensor) else operand._alias())
    results = tuple([get(v) for v in item.results])
    if isinstance(item, FunctionCall):
        saved, attributes = (map_tree(x, Leaf, lambda leaf: get(leaf.value)) for x in (item.saved, item.attributes))
        dispatch.tape.relink(item.node, operands, results, item.linked, saved, attributes)
    else:
        dispatch.tape.record(item.prim, operands, results, item.attrs, item.location)


class OpenValues(NamedTuple):
    """kept: the values that a backward from some tensors would read, and the tensors brought in that it would reach;
    made: those that are results of nodes; is_open: whether there is anything left to walk.
    """

    kept: tuple[int, ...]
    made: frozenset[int]
    is_open: bool


def open_values(steps: list[Step], held: frozenset[int], used: tuple[int, ...] = ()) -> OpenValues:
    """What a backward from the values `held`, after `steps` and backwards from `used`, would read. Remembered."""
    known, key = steps[-1].graphs, (held, used)
    found = known.get(key)
    if found is None:
        found = known[key] = _open_values(steps, held, used)
    return found


def _open_values(steps: list[Step], held: frozenset[int], used: tuple[int, ...]) -> OpenValues:
    makers: dict[int, Taped] = {}
    freed: set[int] = set()
    for step in steps:
        for entry in step.taped:
            makers.update(dict.fromkeys(entry.item.results, entry))
        for root in step.freed:
            freed.update(map(id, _reachable(makers, [root], frozenset())))
    for root in used:
        freed.update(map(id, _reachable(makers, [root], frozenset())))
    entries = _reachable(makers, held, freed)
    kept = {v for entry in entries for v in entry.kept}
    kept |= {v for entry in entries for v in _wanted(entry)} & {v for step in steps for v in step.operands}
    made = kept & {v for step in steps for node in step.nodes for v in node.results}
    return OpenValues(tuple(sorted(kept)), frozenset(made), bool(entries))


def _reachable(makers: dict[int, Taped], roots: Iterable[int], stop: set[int] | frozenset[int]) -> list[Taped]:
    """The entries that made `roots`, without those in `stop` and what only they lead to."""
    todo, found = list(roots), {}
    while todo:
        entry = makers.get(todo.pop())
        if entry is None or id(entry) in found or id(entry) in stop:
            continue
        found[id(entry)] = entry
        todo += _wanted(entry)
    return list(found.values())


def _wanted(entry: Taped) -> list[int]:
    """The operands that a gradient flows to."""
    return [v for v, wanted in zip(entry.item.operands, entry.wants, strict=True) if wanted and type(v) is int]
