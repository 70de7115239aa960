"""set_precision: how the products of f32 operands are computed stands on them.

Before, in a module with nova.precision = "tf32":

    %2 = linalg.generic {...} ins(%x, %w : tensor<2x8xf32>, tensor<4x8xf32>) outs(%1) attrs = {nova.anchor} {...}

After:

    %2 = linalg.generic {...} ins(%x, %w : ...) outs(%1) attrs = {nova.anchor, precision = "tf32"} {...}

"tf32" rounds the operands to 10 bits of mantissa; "fp32", also where nothing was chosen, is full precision. Products of
other types are computed in the types that they have.
"""

from __future__ import annotations

from mlir import ir

from ..dialect.graph import Graph

NAME = "set_precision"
PRECISION = "nova.precision"


def run(module: ir.Module, facts) -> None:
    """See the module."""
    held = module.operation.attributes
    chosen = ir.StringAttr(held[PRECISION]).value if PRECISION in held else "fp32"
    attribute = ir.StringAttr.get("tf32" if chosen == "tf32" else "fp32")
    for kernel in Graph(module).operations():
        if kernel.name == "nova.kernel" and ir.StringAttr(kernel.attributes["anchor"]).value == "contract":
            for op in kernel.regions[0].blocks[0].operations:
                if "nova.anchor" in op.attributes and _factors_are_f32(op.operation):
                    op.attributes["precision"] = attribute


def _factors_are_f32(product: ir.Operation) -> bool:
    return all(str(ir.ShapedType(v.type).element_type) == "f32" for v in list(product.operands)[:-1])
