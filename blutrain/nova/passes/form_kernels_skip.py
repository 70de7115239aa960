"""Kernels that need not run: every result is `where(flag, before, again)` with one flag, read from memory.

Where the flag is set such a kernel changes nothing, provided each result lies in the memory of its `before`. It gets two
attributes for plan_memory, which sees to that and lets the launch be skipped:

    nova.skip = 3 : i64             the operand that is the flag, an i32
    nova.keep = array<i64: 0, 1>    for every result the operand that it then is
"""

from __future__ import annotations

from ...tensor.dtype import bool_, int32
from .form_kernels_graph import Node, Value
from .form_kernels_memory import memory_of

SKIP, KEEP = "nova.skip", "nova.keep"


def skip_attributes(results: list[Value], operands: list[Value]) -> dict[str, str]:
    """The attributes of a kernel with these results and operands as MLIR text; none where it has to run."""
    numbers = {value.number: i for i, value in enumerate(operands)}
    flags, kept = set(), []
    for value in results:
        found = choice(value.node)
        if found is None or any(memory_of(v).number not in numbers for v in found):
            return {}
        flag, before = (memory_of(v).number for v in found)
        flags.add(numbers[flag])
        kept.append(numbers[before])
    if len(flags) != 1 or len(set(kept)) < len(kept):
        return {}
    return {SKIP: f"{flags.pop()} : i64", KEEP: f"array<i64: {', '.join(map(str, kept))}>"}


def choice(node: Node | None) -> tuple[Value, Value] | None:
    """(flag, before) of a node that is `where(flag != 0, before, ...)` for one flag."""
    if node is None or node.name != "where":
        return None
    condition, before, _ = node.operands
    made = condition.node
    if made is None or made.name != "cast" or made.result.dtype is not bool_ or made.operands[0].dtype is not int32:
        return None
    is_one = condition.size == 1 and made.operands[0].size == 1
    same = before.shape == node.result.shape and before.dtype is node.result.dtype
    return (made.operands[0], before) if is_one and same else None
