"""The interpreter: runs a trace with the eager rules of the table, node by node. The first of its two executors.

It holds a value only until its last use, and writes state at the earliest point where no later node reads the old value
and no later check can fail, so a step that raises leaves everything as it was.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy

from ..errors import CheckError
from ..tensor.dispatch import execute
from .trace import Constant, Node, Trace

_NEVER = 1 << 60


class OutOfMemory(MemoryError):
    """The interpreter found no memory for a result. is_whole: no state has been written yet."""

    def __init__(self, text: str, is_whole: bool):
        super().__init__(text)
        self.is_whole = is_whole


def interpret(trace: Trace, bindings: dict[int, Any]) -> dict[int, Any]:
    """Run `trace` on arrays and Python numbers by value number; returns the arrays of `trace.outputs` and updates state in
    place.

    Errors: what the eager rules raise, with a note that names the user's line.
    """
    values = dict(bindings)
    last_use = _last_uses(trace)
    pending_updates = dict(trace.updates)
    unwritten = set(pending_updates.values())
    last_check = max((i for i, n in enumerate(trace.nodes) if n.prim.name == "check"), default=-1)
    if _share_memory(bindings.values()):
        last_check = len(trace.nodes)  # all writes at the end
    for i, node in enumerate(trace.nodes):
        operands = [x.value if isinstance(x, Constant) else values[x] for x in node.operands]
        try:
            results = execute(node.prim, trace.device, operands, node.attrs)
        except CheckError as error:
            raise CheckError(error.text, node.location) from None
        except MemoryError as error:
            raise OutOfMemory(str(error), is_whole=len(pending_updates) == len(trace.updates)) from error
        except Exception as error:
            if sys.version_info >= (3, 11):
                error.add_note(f"in {node.prim.name}, recorded at {node.location}")
            raise
        if node.prim.num_results == 1:
            values[node.results[0]] = results
        elif node.results:
            values.update(zip(node.results, results, strict=True))
        written = _write_ready(values, pending_updates, unwritten, last_use, i) if i >= last_check else ()
        for v in (*node.operands, *node.results, *written):
            if isinstance(v, Constant) or v in bindings or v in unwritten:
                continue
            if last_use.get(v, -1) <= i:
                values.pop(v, None)
    for state, value in pending_updates.items():
        values[state][...] = values[value]
    return {v: _own(values[v], v in bindings) for v in trace.outputs}


def _last_uses(trace: Trace) -> dict[int, int]:
    """Value -> index of the last node that reads its memory. A view's readers read its operand's memory too."""
    last = dict.fromkeys(trace.outputs, _NEVER)
    for i in range(len(trace.nodes) - 1, -1, -1):
        node = trace.nodes[i]
        until = max([i, *[last.get(r, i) for r in node.results]]) if _may_be_view(node) else i
        for x in node.operands:
            if not isinstance(x, Constant):
                last[x] = max(last.get(x, -1), until)
    return last


def _may_be_view(node: Node) -> bool:
    return node.prim.kind == "movement" or node.prim.name == "cast"


def _write_ready(values, pending: dict[int, int], unwritten: set[int], last_use, now: int) -> list[int]:
    """Write the states whose new value exists and whose old value nothing reads any more; returns the new values."""
    ready = [s for s, v in pending.items() if v in values and last_use.get(s, -1) <= now]
    written = [pending.pop(state) for state in ready]
    for state, value in zip(ready, written, strict=True):
        values[state][...] = values[value]
    unwritten.difference_update(written)
    unwritten.update(pending.values())
    return written


def _share_memory(arrays) -> bool:
    """Whether two arrays are, or are views of, one."""
    roots = []
    for array in arrays:
        if hasattr(array, "base"):
            while getattr(array, "base", None) is not None:
                array = array.base
            roots.append(id(array))
    return len(roots) != len(set(roots))


def _own(array, is_bound: bool):
    """The array itself, or a copy where it is bound to the trace or a view: a result never shares memory with state."""
    if isinstance(array, numpy.generic):  # what NumPy makes of a 0-d result; nobody could write it in place
        return numpy.asarray(array)
    return array.copy() if is_bound or array.base is not None else array


def peak_bytes(trace: Trace) -> int:
    """Bytes of intermediate values that the interpreter holds at its worst moment (inputs and views not counted)."""
    last_use = _last_uses(trace)
    inputs = {x.value for x in trace.inputs}
    keep = set(trace.updates.values())
    live: dict[int, int] = {}
    peak = 0
    for i, node in enumerate(trace.nodes):
        for v in node.results:
            aval = trace.avals[v]
            live[v] = 0 if _may_be_view(node) else aval.size * aval.dtype.itemsize
        peak = max(peak, sum(live.values()))
        for v in (*node.operands, *node.results):
            if not isinstance(v, Constant) and v not in inputs and v not in keep and last_use.get(v, -1) <= i:
                live.pop(v, None)
    return peak
