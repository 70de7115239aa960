"""Parameters as one vector, and back; gradients bounded element by element."""

from __future__ import annotations

from collections.abc import Iterable

from ...autograd import no_grad
from ...errors import message
from ...tensor.ops.arrange import cat
from ...tensor.tensor import Tensor


def parameters_to_vector(parameters: Iterable[Tensor]) -> Tensor:
    """All elements of all parameters, one behind the other."""
    return cat([p.reshape(-1) for p in parameters])


def vector_to_parameters(vec: Tensor, parameters: Iterable[Tensor]) -> None:
    """Write the elements of a vector into the parameters, in their order. Errors: ValueError unless there are as many."""
    parameters = list(parameters)
    sizes = [p.numel() for p in parameters]
    if vec.ndim != 1 or vec.numel() != sum(sizes):
        expected = f"a vector of {sum(sizes)} elements"
        raise ValueError(
            message("vector_to_parameters", "the vector does not fit", expected=expected, got=str(vec._aval))
        )
    with no_grad():
        for p, part in zip(parameters, vec.detach().split(sizes), strict=True):
            p.copy_(part.reshape(p.shape))


def clip_grad_value_(parameters: Iterable[Tensor] | Tensor, clip_value: float) -> None:
    """Bound each element of the gradients to [-clip_value, clip_value], in place."""
    for p in [parameters] if isinstance(parameters, Tensor) else parameters:
        if p.grad is not None:
            p.grad.clamp_(-clip_value, clip_value)
