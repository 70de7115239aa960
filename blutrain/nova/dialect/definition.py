"""The operations of the nova dialect: one `nova.<name>` per record of the primitive table, and the structural
operations below.

The dialect is not registered with MLIR. IRDL, the way to define a dialect from Python, gives operations neither traits
nor groups of operands of different types, so it can express no terminator for a kernel's block and no kernel, concat
or linear_backward at all (MLIR 22.1). So operations are in generic form, and verify.py holds them to what stands here
and to the records' own shape rules.

Attributes: `#nova.lowering_config<{...}>` (a schedule), `#nova.layout<...>`; an attribute whose name has a dot
(`nova.recompute`) is an annotation that changes no result.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from mlir import ir

from ...tensor.primitive import TABLE

TERMINATOR = "nova.yield"


@dataclass(frozen=True)
class Structural:
    """An operation without a record. `operands`, `results`: how many there may be, None for any number; `attributes`:
    those it must have, by kind; `num_regions`."""

    doc: str
    operands: tuple[int, ...] | None
    results: tuple[int, ...] | None
    attributes: dict[str, type] = field(default_factory=dict)
    num_regions: int = 0


_LOSS = {
    "ignore_index": ir.IntegerAttr,
    "label_smoothing": ir.FloatAttr,
    "reduction": ir.StringAttr,
    "has_bias": ir.BoolAttr,
    "needs": ir.ArrayAttr,
}

STRUCTURAL = {
    "constant": Structural("A splat of the scalar `value`.", (0,), (1,), {"value": ir.Attribute}),
    "assign": Structural("(state, value): from the next step on the argument `state` is `value`.", (2,), (0,)),
    "check": Structural(
        "(flag: tensor<i32>): `message` is raised and nothing assigned where the flag is not zero.",
        (1,),
        (0,),
        {"message": ir.StringAttr, "index": ir.IntegerAttr},
    ),
    "linear_ce": Structural(
        "(x[n, k], w[v, k], b[v] if has_bias, target[n], and if any of `needs` the gradient of the loss): "
        "the cross-entropy of the logits x @ w.T + b, then those of (dx, dw, db) that `needs` asks for.",
        (3, 4, 5),
        (1, 2, 3, 4),
        _LOSS,
    ),
    "bits": Structural("(tensor): the same memory in another shape, its integers without or with a sign.", (1,), (1,)),
    "bucket_ready": Structural(
        "(tensors...): they are parts of the result, a vector that the host program starts to reduce (by the "
        "collective `primitive` with the other attributes) once they are there; part i begins at `offsets[i]`.",
        None,
        (1,),
        {"primitive": ir.StringAttr, "offsets": ir.DenseI64ArrayAttr},
    ),
    "bucket_wait": Structural("(vector of bucket_ready): the same memory, once it is reduced.", (1,), (1,)),
    "kernel": Structural(
        "A kernel: a block, isolated from above.", None, None, {"anchor": ir.StringAttr}, num_regions=1
    ),
    "yield": Structural("Ends the block of a kernel: its results.", None, (0,)),
}


def operation_names() -> list[str]:
    """Names of every operation of the dialect, without the `nova.` prefix."""
    return sorted({*TABLE, *STRUCTURAL})
