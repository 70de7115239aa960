"""share_device: kernels beside a collective are made for the multiprocessors that it leaves them.

Before:

    %b0 = "nova.bucket_ready"(%g0) {blocks = 16 : i64, ...} : ...
    %g1 = "nova.kernel"(...) ({...}) {anchor = "contract"} : ...

After:

    %g1 = "nova.kernel"(...) ({...}) {anchor = "contract", reserved = 16 : i64} : ...

A product that fills the GPU takes one block a multiprocessor, each its share of the tiles: where others hold some of
them, the last blocks start when the first end, and the product takes twice its time. Beside one that leaves them room a
collective starts at once, and is over soon. Maps and gathers have many short blocks, which come to lie where there is
room. `blocks` is what the collective holds at most, one each (0: not known, or it runs elsewhere).

Which kernels: those that start while it runs, by an estimate of their times; collectives run one after the other. The
attribute is a part of the kernel's text: where others like it run alone, they are another kernel.
"""

from __future__ import annotations

from math import prod

from mlir import ir

from ..dialect.graph import Graph
from ..kernel import ITEM_BYTES, Generic, read_kernel

NAME = "share_device"
_SHORT = ("map", "gather")  # anchors
# Of a collective on two H200s beside kernels: 16 blocks took 210 us for 19 MB, of which 100 waiting, and 757 for 155 MB.
START_US, BLOCK_GB_S = 10.0, 12.0
EFFICIENCY = 0.6  # of a kernel: of the peak rate or the bandwidth; of those of a training step 0.46 to 0.8


def run(module: ir.Module, facts) -> None:
    """See the module."""
    operations = Graph(module).operations()
    if not any(map(_blocks, operations)):
        return
    now, begin, end, blocks = 0.0, 0.0, 0.0, 0  # of the collectives so far the last one
    for op in operations:
        if op.name == "nova.bucket_ready":
            begin, blocks = max(now, end), _blocks(op)
            end = begin + _collective_us(op) if blocks else begin
        elif op.name == "nova.kernel":
            if now < end and ir.StringAttr(op.attributes["anchor"]).value not in _SHORT:
                op.attributes["reserved"] = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), blocks)
            now += _kernel_us(op, facts)


def _blocks(op: ir.Operation) -> int:
    return ir.IntegerAttr(op.attributes["blocks"]).value if "blocks" in op.attributes else 0


def _collective_us(op: ir.Operation) -> float:
    vector = ir.RankedTensorType(op.results[0].type)
    return START_US + prod(vector.shape) * ITEM_BYTES[str(vector.element_type)] / (_blocks(op) * BLOCK_GB_S * 1e3)


def _kernel_us(op: ir.Operation, facts) -> float:
    kernel = read_kernel(op)
    us = kernel.bytes / (facts.mem_gb_s * EFFICIENCY * 1e3)
    for body in kernel.ops if kernel.anchor == "contract" else ():
        if isinstance(body, Generic) and body.is_anchor:
            us = max(us, 2 * prod(body.extents) / (_tflops(body, facts) * EFFICIENCY * 1e6))
    return us


def _tflops(product: Generic, facts) -> float:
    held = product.block.owner.attributes
    if any(access.dtype in ("bf16", "f16") for access in product.inputs):
        return facts.bf16_tflops
    is_tf32 = "precision" in held and ir.StringAttr(held["precision"]).value == "tf32"
    return facts.tf32_tflops if is_tf32 else facts.f32_tflops
