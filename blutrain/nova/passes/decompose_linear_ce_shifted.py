"""linear + cross-entropy and its gradients without a pass over the logits: for targets whose products sum the rows of
their results (`Capabilities.row_sums`).

The exponentials of a row are taken against its target's logit t, a product of two vectors known beforehand, so no
maximum is needed and no logit is ever stored. For a chunk of rows, with factor f the gradient of each row's loss:

    E = exp(x W^T - t), z = sum(E, 1)        one product; z is summed in its epilogue
    loss = log z
    s = f / z
    dx = s (E W) - f W[target]
    dW = E^T (s x) - the sum of f x over the rows of each target

The largest exponent is unknown, so z may overflow. A chunk where it did (z is not below LIMIT, or not a number) is
computed again from its logits, with the maximum of each row subtracted. These kernels stand in every step and run only
where the flag `fine` of their chunk is 0: each of their results is `where(fine, before, again)`, in the memory of
`before` (see nova.skip in form_kernels_skip). Ignored rows have factor 0.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING

from mlir import ir

from ...tensor.aval import Aval
from ...tensor.dispatch import apply
from ...tensor.dtype import bfloat16, bool_, float32, int32, int64
from ...tensor.ops.arithmetic import where
from ...tensor.ops.compare import eq, lt
from ...tensor.ops.composite.cross_entropy import compose_check
from ...tensor.ops.composite.linear import linear
from ...tensor.ops.gather import take
from ...tensor.primitive import TABLE, Primitive
from ..dialect.graph import Graph, producer
from .decompose_composites import splice
from .form_kernels_graph import RECOMPUTE, WITH_PRODUCT
from .template import template_of

if TYPE_CHECKING:
    from .decompose_linear_ce import Expansion

# exp(69), far below the largest f32 and bf16 (3.4e38), so that sums of products of such numbers stay finite.
LIMIT = 1e30
ALIGNMENT = 8  # elements: 16 bytes of bf16


def applies(expansion: Expansion, precision: str) -> bool:
    """Whether this form computes it: gradients are asked for, no bias, no label smoothing, f32 multiplied as TF32 or
    bf16, all rows aligned as the matrix units want them (ALIGNMENT elements).
    """
    attrs, needs = expansion.attrs, expansion.attrs["needs"]
    return (
        precision in ("tf32", "bf16")
        and expansion.width % ALIGNMENT == expansion.weight.shape[0] % ALIGNMENT == 0
        and expansion.capabilities.row_sums
        and bool(expansion.grad)
        and (needs[0] or needs[1])
        and not expansion.bias
        and not attrs["label_smoothing"]
        and expansion.dtype is float32
    )


def results(expansion: Expansion, is_narrow: bool) -> list[ir.Value]:
    """The values that replace the results of linear_ce. is_narrow: exponentials are stored in bf16."""
    return _Shifted(expansion, is_narrow).results()


class _Shifted:
    def __init__(self, expansion: Expansion, is_narrow: bool):
        self.expansion, self.graph, self.narrow = expansion, expansion.graph, is_narrow
        self.needs = expansion.attrs["needs"]

    def results(self) -> list[ir.Value]:
        e = self.expansion
        held = {"ignore_index": e.attrs["ignore_index"], "is_mean": e.attrs["reduction"] == "mean"}
        x = self._narrowed(e.x) if self.narrow else e.x
        before = self._splice(_BEFORE, [x, e.w, e.target, *e.grad], **held)
        ids, kept, rows, shift, factor = before
        parts: list[list[ir.Value]] = []
        for start, count in e.chunks(2 if self.narrow else 4):
            new = self._chunk(*(e.slice(v, start, count) for v in (x, kept, rows, shift, factor)))
            parts = [e.join(i, a, b) for i, (a, b) in enumerate(zip(parts, new))] if parts else [[v] for v in new]
        losses, *gradients = [e.concat(p) for p in parts]
        if self.needs[0] and self.narrow:
            gradients[0] = self._widened(gradients[0])
        if self.needs[1]:
            gradients[-1] = self._splice(_ADD_TARGETS, [gradients[-1], ids, x, factor])[0]
            # As large as x in f32: made when the chunks are done, not beside their exponentials.
            gradients[-1].owner.operands[2].owner.attributes[RECOMPUTE] = ir.UnitAttr.get()
        return [e.loss(self._splice(_KEEP, [kept, losses])[0]), *gradients]

    def _chunk(self, x: ir.Value, kept: ir.Value, rows: ir.Value, shift: ir.Value, factor: ir.Value) -> list[ir.Value]:
        w = self.expansion.w
        exponentials, z = self._splice(_EXPONENTIALS, [x, w, shift], is_narrow=self.narrow)
        z.owner.attributes[WITH_PRODUCT] = ir.UnitAttr.get()
        fine, losses, scale = self._splice(_TOTALS, [z, factor])
        (logits,) = self._splice(_LOGITS, [x, w, exponentials, fine])
        exponentials, losses = self._splice(_SOFTMAX, [logits, losses, shift, kept, fine])
        operands = [exponentials, scale, x, w, rows, factor]
        return [losses, *self._splice(_GRADIENTS, operands, needs=tuple(self.needs[:2]))]

    def _narrowed(self, x: ir.Value) -> ir.Value:
        """x in bf16, rounded where it is made."""
        reshape = producer(x, "nova.reshape")
        if reshape is None:
            return self.graph.cast(x, bfloat16)
        narrow = Aval(self.graph.aval(x).shape, bfloat16)
        behind = self.graph.cast(reshape.operands[0], bfloat16)
        return self.graph.create("reshape", [behind], [narrow], {"shape": narrow.shape}).result

    def _widened(self, dx: ir.Value) -> ir.Value:
        """The gradient of x in f32; where it is reshaped, behind that: what chunks are joined to stays memory."""
        graph = self.graph
        for use in list(self.expansion.op.results[1].uses):
            reader = use.owner.operation
            if reader.name == "nova.reshape":
                narrow = graph.aval(reader.result)._replace(dtype=bfloat16)
                moved = graph.create("reshape", [dx], [narrow], {"shape": narrow.shape}).result
                graph.replace(reader, [graph.cast(moved, float32)])
        return graph.cast(dx, float32)

    def _splice(self, meaning: Primitive, operands: list[ir.Value], **attrs) -> list[ir.Value]:
        graph: Graph = self.graph
        return splice(graph, template_of(meaning, tuple(graph.aval(v) for v in operands), attrs), operands)


def _column(x):
    return x.reshape(x.numel(), 1)


def _before(x, w, target, grad, *, ignore_index: int, is_mean: bool):
    """For all rows: the index into w, whether it is kept, its row of w, its target's logit, its factor."""
    kept = compose_check(target, w.shape[0], ignore_index)
    ids = where(kept, target, 0).to(int64).clamp(0, w.shape[0] - 1)
    rows = take(w, ids).to(x.dtype)
    shift = (x.to(float32) * rows.to(float32)).sum(1)
    factor = grad / kept.sum().to(grad.dtype) if is_mean else grad
    return ids, kept, rows, shift, where(kept, factor, 0)


def _exponentials(x, w, shift, *, is_narrow: bool):
    exponentials = (linear(x.to(float32), w) - _column(shift)).exp()
    return exponentials.to(bfloat16) if is_narrow else exponentials, exponentials.sum(1)


def _totals(z, factor):
    """(1 where all is fine else 0, losses, what E, or the softmax, is to be multiplied by)."""
    fine = lt(z, LIMIT).to(int32).amin()
    return fine, z.log(), where(eq(fine, 0), factor, factor / z)


def _logits(x, w, exponentials, fine):
    return where(fine.to(bool_), exponentials, linear(x.to(float32), w).to(exponentials.dtype))


def _softmax(logits, losses, shift, kept, fine):
    """(E, losses) as they are where all is fine, else the softmax and the losses from the logits."""
    is_fine, wide = fine.to(bool_), logits.to(float32)
    largest = wide.amax(1)
    lse = (wide - _column(largest)).exp().sum(1).log() + largest
    # Where a row that counts for nothing is not a number, nothing of it may reach the sums over rows.
    softmax = where(_column(kept), (wide - _column(lse)).exp(), 0).to(logits.dtype)
    return where(is_fine, logits, softmax), where(is_fine, losses, lse - shift)


def _gradients(exponentials, scale, x, w, rows, factor, *, needs: tuple[bool, bool]):
    wide, scale, found = exponentials.to(float32), _column(scale), []
    if needs[0]:
        dx = (wide @ w) * scale - _column(factor) * rows.to(float32)
        found.append(dx.to(x.dtype))  # of what was rounded, as autocast has it
    if needs[1]:
        found.append(wide.transpose(0, 1) @ (x.to(float32) * scale))
    return tuple(found)


def _add_targets(dw, ids, x, factor):
    return apply(TABLE["index_add"], dw, ids, -(x.to(float32) * _column(factor)), dim=0)


def _keep(kept, losses):
    return where(kept, losses, 0)


def _meaning(compose: Callable) -> Primitive:
    return dataclasses.replace(TABLE["cross_entropy"], compose=compose)


_BEFORE, _EXPONENTIALS, _TOTALS, _LOGITS, _SOFTMAX, _GRADIENTS, _ADD_TARGETS, _KEEP = map(
    _meaning, (_before, _exponentials, _totals, _logits, _softmax, _gradients, _add_targets, _keep)
)
