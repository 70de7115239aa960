"""What backward keeps of the forward pass, and checks that it was not changed since."""

from __future__ import annotations

from ..errors import message
from ..tensor.tensor import Tensor
from .mode import state


class Saved:
    """One tensor kept for backward, or what `saved_tensors_hooks` made of it.

    own: the number of the node's result that this is (a node must not hold its own result: that would be a cycle), None for operands.
    """

    __slots__ = ("hooks", "own", "tensor", "version")

    def __init__(self, tensor: Tensor, own: int | None = None):
        self.own = own
        if state.saver is not None:
            self.hooks, self.version = state.saver, 0
            self.tensor = self.hooks.pack(tensor if own is None else tensor._alias())
            return
        self.hooks = None
        self.tensor = tensor if own is None else tensor._alias()
        self.version = 0 if self.tensor._version is None else self.tensor._version.value

    def unpack(self, node, edge) -> Tensor:
        """The tensor, in its place in the graph: a result of `node`, or made at `edge`. Errors: RuntimeError if written in place since."""
        tensor = self.tensor if self.hooks is None else self.hooks.unpack(self.tensor)
        if self.hooks is None and tensor._version is not None and tensor._version.value != self.version:
            what = "its result" if self.own is not None else "an operand"
            rule = f"{what} {tensor._aval}, needed for its gradient, was changed in place after the forward pass"
            help = "use the operation without _, or clone the tensor first"
            raise RuntimeError(message(node.name, rule, location=node.location, help=help))
        if self.own is not None:
            return placed(tensor, node, self.own)
        if self.hooks is not None and edge is not None:
            return (
                tensor
                if isinstance(edge, Tensor) and tensor is edge
                else placed(tensor, *edge)
                if isinstance(edge, tuple)
                else edge
            )
        return tensor


def placed(tensor: Tensor, node, index: int) -> Tensor:
    """An alias of `tensor` that is result `index` of `node`."""
    twin = tensor._alias()
    twin.requires_grad, twin.grad_fn, twin._index = True, node, index
    return twin


class saved_tensors_hooks:
    """`with saved_tensors_hooks(pack, unpack):` operations recorded inside keep pack(tensor), and backward uses unpack(of that).

    As torch.autograd.graph.saved_tensors_hooks: to keep what backward needs elsewhere (another device, disk).
    """

    def __init__(self, pack, unpack):
        self.pack, self.unpack, self._before = pack, unpack, []

    def __enter__(self):
        self._before.append(state.saver)
        state.saver = self
        return self

    def __exit__(self, *exc) -> None:
        state.saver = self._before.pop()
