"""Reductions as linalg: totals (sum, product, extremum, and, or) and arguments (argmax, argmin)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...tensor.dtype import bool_, int64
from .form_kernels_axes import Loops
from .form_kernels_graph import Node
from .lower_to_linalg_generic import GenericWriter, identity
from .lower_to_linalg_scalar import Scalar, computing, extreme

if TYPE_CHECKING:
    from .lower_to_linalg_body import BodyWriter

_OPERATIONS = {
    "add": ("arith.addf", "arith.addi", "arith.ori"),
    "mul": ("arith.mulf", "arith.muli", "arith.andi"),
    "max": ("arith.maximumf", "arith.maxsi", "arith.ori"),
    "min": ("arith.minimumf", "arith.minsi", "arith.andi"),
    "and": ("", "", "arith.andi"),
    "or": ("", "", "arith.ori"),
}


def emit_total(body: BodyWriter, node: Node, loops: Loops) -> None:
    """One generic that combines into a fill with the neutral element; for a mean a second one that divides."""
    combiner = node.record.nova.combiner
    wanted = bool_ if combiner in ("and", "or") else node.result.dtype
    dtype = computing(wanted)
    generic = GenericWriter(body, loops.extents, loops.reduced)
    element = generic.region.cast(generic.read(loops.reads[0].value, loops.reads[0].indices), wanted)
    floating, integer, boolean = _OPERATIONS[combiner]
    op = floating if dtype.is_floating else boolean if dtype is bool_ else integer
    total = generic.region.apply(op, Scalar("%acc0", dtype), element)
    neutral = {"add": 0, "mul": 1, "max": extreme(dtype, -1), "min": extreme(dtype, 1), "and": True, "or": False}[
        combiner
    ]
    shape = tuple(loops.extents[d] for d in loops.result)
    init = body.filled(neutral, shape, dtype)
    name = generic.write([(total, dtype, loops.result)], inits=[init])[0]
    body.define(node.result, name, shape, dtype)
    if node.record.nova.scale == "mean":
        _divide(body, node, loops)


def _divide(body: BodyWriter, node: Node, loops: Loops) -> None:
    count = 1
    for d in loops.reduced:
        count *= loops.extents[d]
    shape, dtype = body.shapes[node.result.number], body.dtypes[node.result.number]
    generic = GenericWriter(body, shape)
    total = generic.read(node.result, identity(len(shape)))
    mean = generic.region.apply("arith.divf", total, generic.region.constant(count, dtype))
    body.define(node.result, generic.write([(mean, dtype, tuple(range(len(shape))))])[0], shape, dtype)


def emit_argument(body: BodyWriter, node: Node, loops: Loops) -> None:
    """One generic of two results, the best value and its index: the lowest index on ties, the first NaN wins."""
    sign = -1 if node.record.nova.combiner == "argmax" else 1
    generic = GenericWriter(body, loops.extents, loops.reduced)
    region = generic.region
    element = generic.read(loops.reads[0].value, loops.reads[0].indices)
    dtype = element.dtype
    best, place = Scalar("%acc0", dtype), Scalar("%acc1", int64)
    mine = region.constant(0, int64)
    for d in sorted(loops.reduced):
        mine = region.apply("arith.muli", mine, region.constant(loops.extents[d], int64))
        mine = region.apply("arith.addi", mine, region.index(d, 1, 0))
    takes = region.compare(_better(dtype, sign), element, best)
    if dtype.is_floating:
        is_nan, was_nan = region.compare("uno", element, element), region.compare("uno", best, best)
        fresh = region.select(was_nan, region.constant(False, bool_), is_nan)
        takes = region.apply("arith.ori", takes, fresh)
    results = [region.select(takes, element, best), region.select(takes, mine, place)]
    shape = tuple(loops.extents[d] for d in loops.result)
    inits = [body.filled(extreme(dtype, sign), shape, dtype), body.filled(0, shape, int64)]
    names = generic.write([(results[0], dtype, loops.result), (results[1], int64, loops.result)], inits=inits)
    body.define(node.result, names[1], shape, int64)


def _better(dtype, sign: int) -> str:
    if dtype.is_floating:
        return "ogt" if sign < 0 else "olt"
    if dtype is bool_:
        return "ugt" if sign < 0 else "ult"
    return "sgt" if sign < 0 else "slt"
