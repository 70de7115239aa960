"""Operations that are memory, not computation: no kernel runs for them.

- A *window*: whole rows cut from a tensor that is stored, `x[a:b]`. Readers get the address of row a; kernels that read
  equal windows have one text, whatever a is.
- A *bucket* (insert_buckets): a vector whose parts kernels write, reduced in place by calls of the host program.
- A *join*: tensors one behind the other along the first dimension, each of which a kernel makes for this alone. They are
  written to their places in the result.

Both begin at multiples of 64 bytes (ALIGNMENT_BYTES), as every buffer does; others are read and written element by
element in kernels.
"""

from __future__ import annotations

import itertools
from math import prod

from ...tensor.dtype import bool_
from ..kernel import ALIGNMENT_BYTES
from .form_kernels_graph import RESHAPE, SINK, VIEW, Node, StepGraph, Value

BUCKET = ("bucket_ready", "bucket_wait")


def memory_of(value: Value) -> Value:
    """The value whose memory `value` is: itself, or what it is a reshape of."""
    while value.node is not None and value.node.kind == RESHAPE:
        value = value.node.operands[0]
    return value


def is_splat(value: Value) -> bool:
    """Is `value` a constant that needs no memory?"""
    node = memory_of(value).node
    return node is not None and node.name in ("constant", "full")


def is_zero(value: Value) -> bool:
    """Is `value` a splat of zero?"""
    node = value.node
    while node is not None and node.kind in (VIEW, RESHAPE):
        node = node.operands[0].node
    return (
        node is not None
        and node.name in ("constant", "full")
        and not node.attrs["value"]
        and node.result.dtype is not bool_
    )


def mark_memory(graph: StepGraph, roots: set[int]) -> None:
    """Set `is_memory` on buckets, windows and joins, and make them roots. `roots` are the numbers of all others."""
    taken: set[int] = set()
    for node in graph.nodes:
        if node.name in BUCKET or _is_average(graph, node):
            node.is_memory = True
            roots.add(node.number)
        if node.name in BUCKET:
            taken.update(memory_of(value).number for value in node.operands)
    windows = [node for node in graph.nodes if node.number not in roots and _is_window(node)]
    cuts: dict[int, int] = {}
    for node in windows:
        number = memory_of(node.operands[0]).number
        cuts[number] = cuts.get(number, 0) + 1
    for node in windows:
        made = memory_of(node.operands[0])
        if made.node is not None and made.node.number not in roots and cuts[made.number] > 1:
            roots.add(made.node.number)  # cut into blocks: each block's kernels then read memory, and have one text
        if made.node is None or made.node.number in roots:
            node.is_memory = True
            roots.add(node.number)
    for node in graph.nodes:
        if node.name == "concat" and _is_join(graph, node, roots, taken):
            node.is_memory = True
            taken.update(memory_of(value).number for value in node.operands)


def window_offset(attrs: dict, shape: tuple[int, ...], itemsize: int) -> int:
    """The byte at which a window into a tensor of `shape` begins."""
    strides = [prod(shape[dim + 1 :]) for dim in range(len(shape))]
    return itemsize * sum(start * stride for start, stride in zip(attrs["starts"], strides, strict=True))


def _is_window(node: Node) -> bool:
    """Whether a slice is one run of memory: an index or a range in front of whole dimensions."""
    if node.name != "slice" or not node.result.size or any(step != 1 for step in node.attrs["steps"]):
        return False
    shape, taken = node.operands[0].shape, node.result.shape
    cut = max((dim for dim in range(len(shape)) if shape[dim] != taken[dim]), default=0)
    if any(extent != 1 for extent in taken[:cut]):
        return False
    return window_offset(node.attrs, shape, node.result.dtype.itemsize) % ALIGNMENT_BYTES == 0


def _is_average(graph: StepGraph, node: Node) -> bool:
    """Whether a slice is a gradient in its reduced bucket, of no use outside of the step."""
    made = memory_of(node.operands[0]).node if node.name == "slice" else None
    return made is not None and made.name == "bucket_wait" and not _leaves(graph, node.result)


def _is_join(graph: StepGraph, node: Node, roots: set[int], taken: set[int]) -> bool:
    if node.attrs["dim"] or not node.result.size or node.number not in roots or _leaves(graph, node.result):
        return False
    ends = itertools.accumulate(value.bytes for value in node.operands)
    parts = [memory_of(value) for value in node.operands]
    if any(end % ALIGNMENT_BYTES for end in ends) or len({part.number for part in parts}) < len(parts):
        return False
    return all(
        part.node is not None
        and part.node.number in roots
        and not part.node.is_memory
        and part.node.name != "concat"
        and part.number not in taken
        and not _leaves(graph, part)
        for part in parts
    )


def _leaves(graph: StepGraph, value: Value) -> bool:
    """Whether the step returns or assigns `value`, or a check reads it."""
    if any(memory_of(output) is value for output in graph.outputs):
        return True
    pending = list(value.users)
    while pending:
        user = pending.pop()
        if user.kind == SINK:
            return True
        if user.kind == RESHAPE:
            pending += user.result.users
    return False
