"""What backward keeps of the forward pass, and checks that it was not changed since."""

from __future__ import annotations

from ..errors import message
from ..tensor.tensor import Tensor
from .mode import state


def save(tensor: Tensor, own: int | None = None):
    """What a node keeps of a tensor: (tensor, its version), or a _Packed where saved_tensors_hooks are active.

    own: the number of the node's result that this is. A node must not hold its own result, that would be a cycle: it
    holds an alias.
    """
    if own is not None:
        tensor = tensor._alias()
    if state.saver is not None:
        return _Packed(state.saver, tensor)
    version = tensor._version
    return tensor, 0 if version is None else version.value


def outdated(kept, versions: set[int]):
    """`kept`, or, where it is a tensor of memory with one of these versions (their ids), the same as changed since."""
    if type(kept) is not tuple or id(kept[0]._versions()) not in versions:
        return kept
    return kept[0], -1


def renewed(kept, ids: set[int]):
    """`kept`, or, where it is one of these tensors (their ids), the same with the version that it has now."""
    if type(kept) is not tuple or id(kept[0]) not in ids:
        return kept
    return kept[0], kept[0]._versions().value


class _Packed:
    """What `saved_tensors_hooks` made of a tensor."""

    __slots__ = ("content", "unpack")

    def __init__(self, hooks, tensor: Tensor):
        self.content, self.unpack = hooks.pack(tensor), hooks.unpack


def restore(saved, node, edge) -> Tensor:
    """The tensor that was saved, in its place in the graph: what stands at `edge` (see tape.edge_of; None: outside of
    the graph).

    Errors: RuntimeError if it was written in place since.
    """
    if type(saved) is tuple:
        tensor, version = saved
        if tensor._version is not None and tensor._version.value != version:
            _raise_changed(tensor, node)
        if edge is None or tensor.grad_fn is not None or tensor is edge:
            return tensor
    else:
        tensor = saved.unpack(saved.content)
    if edge is None:
        return tensor
    return placed(tensor, *edge) if type(edge) is tuple else edge


def _raise_changed(tensor: Tensor, node):
    rule = f"a tensor {tensor._aval}, needed for its gradient, was changed in place after the forward pass"
    help = "use the operation without _, or clone the tensor first"
    raise RuntimeError(message(node.name, rule, location=node.location, help=help))


def placed(tensor: Tensor, node, index: int) -> Tensor:
    """An alias of `tensor` that is result `index` of `node`."""
    twin = tensor._alias()
    twin._requires_grad, twin.grad_fn, twin._index = True, node, index
    return twin


class saved_tensors_hooks:
    """`with saved_tensors_hooks(pack, unpack):` operations recorded inside keep pack(tensor), and backward uses
    unpack(of that).

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
