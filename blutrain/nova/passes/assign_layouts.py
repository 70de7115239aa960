"""assign_layouts: an operand of a TF32 product is made in the layout that the product wants.

Before (a gradient of weights: both factors run along their own axis, not along the rows that are summed):

    %0 = "nova.mul"(%x, %s) : (tensor<1024x384xf32>, tensor<1024x1xf32>) -> tensor<1024x384xf32>
    %1 = "nova.transpose"(%e) {perm = array<i64: 1, 0>} : (tensor<1024x512xf32>) -> tensor<512x1024xf32>
    %2 = "nova.matmul"(%1, %0) : (tensor<512x1024xf32>, tensor<1024x384xf32>) -> tensor<512x384xf32>

After (what multiplies x writes its result transposed, and nothing else):

    %0 = "nova.mul"(%x, %s) ...
    %1 = "nova.transpose"(%e) ...
    %2 = "nova.transpose"(%0) {nova.store, perm = array<i64: 1, 0>} : ... -> tensor<384x1024xf32>
    %3 = "nova.transpose"(%2) {perm = array<i64: 1, 0>} : ... -> tensor<1024x384xf32>
    %4 = "nova.matmul"(%1, %3) ...

The matrix units of sm_90a multiply TF32 from memory that is contiguous along the summed axis (k-major); one of the two
factors may run along its own axis instead, in registers. Where neither is k-major, one that elementwise operations make
for this product alone is stored transposed, at no cost; of two such the smaller one. Where there is none the generator
copies one (its repack phase). Other products are left alone: a copy made once a step would cost more than it saves.
`nova.store` tells form_kernels to store the transposed tensor.
"""

from __future__ import annotations

from mlir import ir

from ...tensor.aval import Aval
from ...tensor.dtype import float32
from ...tensor.primitive import TABLE, Scalar
from ..capabilities import capabilities
from ..dialect.graph import Graph, attributes
from .form_kernels_graph import RECOMPUTE, STORE
from .set_precision import PRECISION

NAME = "assign_layouts"
_VIEWS = ("nova.transpose", "nova.reshape")


def run(module: ir.Module, facts) -> None:
    """See the module."""
    held = module.operation.attributes
    is_tf32 = PRECISION in held and ir.StringAttr(held[PRECISION]).value == "tf32"
    if not is_tf32 or not capabilities(facts).k_major_tf32:
        return
    graph = Graph(module)
    for op in graph.operations():
        if op.name == "nova.matmul" and all(graph.aval(v).dtype is float32 for v in op.operands):
            _assign(graph, op)


def _assign(graph: Graph, product: ir.Operation) -> None:
    left, right = (_Factor(graph, product, i) for i in range(2))
    if min(left.rank, right.rank) < 2 or left.is_k_major() or right.is_k_major():
        return
    free = [factor for factor in (left, right) if factor.is_made_for_it()]
    if free:
        min(free, key=lambda factor: factor.size).store_transposed()


class _Factor:
    """Operand `number` of a product."""

    def __init__(self, graph: Graph, product: ir.Operation, number: int):
        self.graph, self.product, self.number = graph, product, number
        self.value = product.operands[number]
        aval = graph.aval(self.value)
        self.rank, self.size, self.shape = len(aval.shape), aval.size, aval.shape

    def is_k_major(self) -> bool:
        """Whether memory runs along the summed axis: the last one of the left factor, the last but one of the right."""
        return _fastest(self.graph, self.value) == self.rank - 1 - self.number

    def is_made_for_it(self) -> bool:
        """Whether elementwise operations make the operand, and nobody else reads it."""
        value, reader = self.value, self.product
        while True:
            if any(use.owner.operation != reader for use in value.uses) or isinstance(value.owner, ir.Block):
                return False
            made = value.owner.operation
            if made.name not in _VIEWS:
                break
            value, reader = made.operands[0], made
        prim = TABLE.get(made.name.removeprefix("nova."))
        return prim is not None and (isinstance(prim.nova, Scalar) or prim.name == "cast")

    def store_transposed(self) -> None:
        graph = self.graph
        perm = (*range(self.rank - 2), self.rank - 1, self.rank - 2)
        turned = Aval((*self.shape[:-2], self.shape[-1], self.shape[-2]), float32)
        with ir.InsertionPoint(self.product), self.product.location:
            stored = graph.create("transpose", [self.value], [turned], {"perm": perm})
            back = graph.create("transpose", [stored.result], [Aval(self.shape, float32)], {"perm": perm})
        stored.attributes[STORE] = ir.UnitAttr.get()
        if _is_repeated(self.value):
            stored.attributes[RECOMPUTE] = ir.UnitAttr.get()
        self.product.operands[self.number] = back.result


def _is_repeated(value: ir.Value) -> bool:
    """Whether choose_saved put what makes `value` where it is."""
    while value.owner.operation.name in _VIEWS:
        value = value.owner.operation.operands[0]
    return RECOMPUTE in value.owner.operation.attributes


def _fastest(graph: Graph, value: ir.Value) -> int:
    """The dimension of `value` along which its memory is contiguous. A reshape of a transposed tensor is a copy."""
    last = len(graph.aval(value).shape) - 1
    if isinstance(value.owner, ir.Block) or value.owner.operation.name != "nova.transpose":
        return last
    op = value.owner.operation
    return list(attributes(op)["perm"]).index(_fastest(graph, op.operands[0]))
