"""nova.linear_ce: rows in chunks, each chunk's logits used up before the next one's are made.

    %loss, %dx, %dw = "nova.linear_ce"(%x, %w, %target, %grad) {reduction = "mean", needs = [true, true, false], ...}

becomes a check of all targets and then, for every chunk of rows,

    %x0 = "nova.slice"(%x) {starts = [0, 0], sizes = [512, 64], ...}
    %t0 = "nova.slice"(%target) {starts = [0], sizes = [512], ...}
    %l0 = "nova.linear"(%x0, %w)
    %loss0, %lse0 = "nova.cross_entropy"(%l0, %t0) {reduction = "none", nova.checked, ...}
    %g0 = "nova.cross_entropy_backward"(%scale0, %l0, %t0, %lse0) {reduction = "none", ...}
    %dx0, %dw0 = "nova.linear_backward"(%g0, %x0, %w)

then %dx is the %dx0, %dx1, ... one behind the other, %dw their sum in order, and the loss the sum of all rows' losses,
divided by the number of rows kept where the reduction is "mean". The values are those of the four operations it came
from (the maximum of each row is subtracted, ignored rows count for nothing, a target out of range sets the check's
flag); sums over rows are added in another order.

Chunk size: `chunk_rows`. Where the target can, the form of decompose_linear_ce_shifted is taken instead.
"""

from __future__ import annotations

import dataclasses
import math

from mlir import ir

from ...tensor.aval import Aval
from ...tensor.ops.composite.cross_entropy import compose_check
from ...tensor.primitive import TABLE
from ..capabilities import Capabilities, capabilities
from ..dialect.graph import Graph, attributes
from . import decompose_linear_ce_shifted as shifted
from .decompose_composites import CHECKED, splice
from .set_precision import PRECISION
from .template import template_of

NAME = "decompose_linear_ce"


def chunk_rows(num_rows: int, num_classes: int, itemsize: int, target: Capabilities) -> int:
    """Rows per chunk: `logits_bytes` of logits, at least `min_chunk_rows`; equal chunks where a divisor of `num_rows`
    is near (equal kernels).
    """
    wanted = max(target.min_chunk_rows, target.logits_bytes // (num_classes * itemsize))
    if num_rows <= wanted:
        return num_rows
    for rows in range(wanted, wanted // 2, -1):
        if num_rows % rows == 0:
            return rows
    even = math.ceil(num_rows / math.ceil(num_rows / wanted))
    return min(num_rows, (even + 15) // 16 * 16)


def run(module: ir.Module, facts) -> None:
    graph = Graph(module)
    held = module.operation.attributes
    precision = ir.StringAttr(held[PRECISION]).value if PRECISION in held else "fp32"
    for op in graph.operations():
        if op.name == "nova.linear_ce":
            with ir.InsertionPoint(op), op.location:
                expansion = Expansion(graph, op, capabilities(facts))
                if shifted.applies(expansion, precision):
                    graph.replace(op, shifted.results(expansion, precision == "bf16"))
                else:
                    graph.replace(op, expansion.results())
    graph.sweep()


def _compose_check(target, *, num_classes: int, ignore_index: int):
    compose_check(target, num_classes, ignore_index)
    return target


_CHECK = dataclasses.replace(TABLE["cross_entropy"], compose=_compose_check)


class Expansion:
    """One linear_ce: its operands, and the operations created for it at the current insertion point."""

    def __init__(self, graph: Graph, op: ir.Operation, capabilities: Capabilities):
        self.graph, self.op, self.capabilities = graph, op, capabilities
        self.attrs = attributes(op)
        operands = list(op.operands)
        self.x, self.w = operands[:2]
        self.bias = operands[2:3] if self.attrs["has_bias"] else []
        self.target, *self.grad = operands[2 + len(self.bias) :]
        self.rows, self.width = graph.aval(self.x).shape
        self.weight = graph.aval(self.w)
        self.dtype = self.weight.dtype
        self.loss_attrs = {k: self.attrs[k] for k in ("ignore_index", "label_smoothing")} | {"reduction": "none"}

    def results(self) -> list[ir.Value]:
        """The values that replace the results. Sums are added up chunk by chunk: none outlives its chunk."""
        self._check()
        scale = self._scale()
        parts: list[list[ir.Value]] = []
        for start, count in self.chunks(self.dtype.itemsize):
            new = self._chunk(start, count, scale)
            parts = [self.join(i, a, b) for i, (a, b) in enumerate(zip(parts, new))] if parts else [[v] for v in new]
        losses, *gradients = [self.concat(p) for p in parts]
        return [self.loss(losses), *gradients]

    def chunks(self, itemsize: int) -> list[tuple[int, int]]:
        """First row and number of rows of every chunk, where a logit takes `itemsize` bytes."""
        size = chunk_rows(self.rows, self.weight.shape[0], itemsize, self.capabilities)
        return [(start, min(size, self.rows - start)) for start in range(0, self.rows, size)]

    def join(self, result: int, parts: list[ir.Value], part: ir.Value) -> list[ir.Value]:
        """Result `result` of the chunks so far and one more: rows (losses, dx) one behind the other, the rest added."""
        is_rows = result == 0 or (result == 1 and self.attrs["needs"][0])
        return [*parts, part] if is_rows else [self._make("add", [parts[0], part])]

    def loss(self, losses: ir.Value) -> ir.Value:
        """The losses of all rows, reduced."""
        if self.attrs["reduction"] == "none":
            return losses
        total = self._make("sum", [losses], {"dims": (0,), "keepdim": False})
        if self.attrs["reduction"] == "sum":
            return total
        # Counted again: one count for scale and loss would make the first chunk's backward wait for the last loss.
        return self._make("div", [total, self._rows_kept()])

    def _make(self, name: str, operands: list[ir.Value], attrs: dict | None = None):
        """The results of primitive `name`, shaped by its own rule."""
        prim, attrs = TABLE[name], attrs or {}
        avals = prim.infer(*[self.graph.aval(v) for v in operands], **attrs)
        results = self.graph.create(name, operands, [avals] if isinstance(avals, Aval) else avals, attrs).results
        return results[0] if prim.num_results == 1 else list(results)

    def _chunk(self, start: int, count: int, scale: ir.Value | None) -> list[ir.Value]:
        """The losses of `count` rows, and the gradients asked for."""
        x = self.slice(self.x, start, count)
        target = self.slice(self.target, start, count)
        logits = self._make("linear", [x, self.w, *self.bias])
        losses, lse = self._make("cross_entropy", [logits, target], self.loss_attrs)
        losses.owner.attributes[CHECKED] = ir.UnitAttr.get()
        if scale is None:
            return [losses]
        rows = self.slice(scale, start, count) if self.attrs["reduction"] == "none" else self._expand(scale, count)
        g = self._make("cross_entropy_backward", [rows, logits, target, lse], self.loss_attrs)
        return [losses, *self._make("linear_backward", [g, x, self.w], {"needs": self.attrs["needs"]})]

    def _check(self) -> None:
        attrs = {"num_classes": self.weight.shape[0], "ignore_index": self.attrs["ignore_index"]}
        splice(self.graph, template_of(_CHECK, (self.graph.aval(self.target),), attrs), [self.target])

    def _scale(self) -> ir.Value | None:
        """The gradient of each row's loss; None where no gradient is asked for."""
        if not self.grad:
            return None
        return (
            self._make("div", [self.grad[0], self._rows_kept()]) if self.attrs["reduction"] == "mean" else self.grad[0]
        )

    def _rows_kept(self) -> ir.Value:
        ignored = self.graph.constant(self.attrs["ignore_index"], self.graph.aval(self.target).dtype)
        kept = self._make("ne", [self.target, ignored])
        count = self._make("sum", [kept], {"dims": (0,), "keepdim": False})
        return self._make("cast", [count], {"dtype": self.dtype})

    def slice(self, value: ir.Value, start: int, count: int) -> ir.Value:
        shape = self.graph.aval(value).shape
        if count == shape[0]:
            return value
        rest = len(shape) - 1
        attrs = {"starts": (start, *(0,) * rest), "sizes": (count, *shape[1:]), "steps": (1,) * len(shape)}
        return self._make("slice", [value], attrs)

    def _expand(self, value: ir.Value, count: int) -> ir.Value:
        return self._make("expand", [value], {"shape": (count,)})

    def concat(self, parts: list[ir.Value]) -> ir.Value:
        return parts[0] if len(parts) == 1 else self._make("concat", parts, {"dim": 0})
