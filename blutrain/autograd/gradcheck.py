"""Derivatives compared with finite differences, of any order."""

from __future__ import annotations

import numpy

from ..errors import message
from ..tensor.creation import to_device
from ..tensor.dtype import float64
from ..tensor.tensor import Tensor
from . import engine
from .mode import enable_grad


def gradcheck(
    function, inputs, *, order: int = 1, eps: float = 1e-5, atol: float = 1e-6, rtol: float = 1e-4, seed: int = 0
) -> bool:
    """Does backward through `function` agree with central differences along a random direction? Returns True or raises
    AssertionError.

    function(*inputs) -> tensor or tuple of tensors (those that are no float64 are left out). inputs: tensors; those
    that require a gradient must be float64 and are what is differentiated by; others and Python values are passed on.
    order: 2 also checks the derivative of the gradient, and so on.

    >>> x = bt.rand(3, dtype=bt.float64, requires_grad=True)
    >>> bt.autograd.gradcheck(lambda x: x.sin(), (x,), order=2)
    True
    """
    inputs = tuple(inputs)
    places = [i for i, x in enumerate(inputs) if isinstance(x, Tensor) and x.requires_grad]
    if not places or any(inputs[i].dtype is not float64 for i in places):
        got = ", ".join(str(x._aval) if isinstance(x, Tensor) else type(x).__name__ for x in inputs)
        raise ValueError(message("gradcheck", "inputs that require a gradient are needed, all float64", got=got))
    random = numpy.random.default_rng(seed)
    for n in range(1, order + 1):
        _check(function, inputs, places, n, random, eps, atol, rtol)
        function, inputs, places = _gradient_of(function, inputs, places, random)
    return True


def _check(function, inputs, places, order: int, random, eps: float, atol: float, rtol: float) -> None:
    variables = [inputs[i].detach().requires_grad_() for i in places]
    with enable_grad():
        outputs = _outputs(function, _replaced(inputs, places, variables))
    weights = [_random_like(y, random) for y in outputs]
    directions = [_random_like(x, random) for x in variables]
    roots = [(y, w) for y, w in zip(outputs, weights) if y.requires_grad]
    found = 0.0
    if roots:
        grads = engine.run_grad([y for y, _ in roots], variables, [w for _, w in roots], allow_unused=True)
        found = sum(_inner(g, d) for g, d in zip(grads, directions) if g is not None)
    sides = []
    for sign in (1, -1):
        moved = [
            from_like(x, x.detach().cpu().numpy() + sign * eps * d.cpu().numpy()).requires_grad_()
            for x, d in zip(variables, directions)
        ]
        with enable_grad():
            sides.append(
                sum(_inner(y, w) for y, w in zip(_outputs(function, _replaced(inputs, places, moved)), weights))
            )
    expected = (sides[0] - sides[1]) / (2 * eps)
    if not abs(found - expected) <= atol + rtol * abs(expected):
        raise AssertionError(
            message(
                "gradcheck", f"derivative of order {order} differs", expected=f"{expected:.10g}", got=f"{found:.10g}"
            )
        )


def _gradient_of(function, inputs, places, random):
    """The gradient as a function of the inputs and the weights of the outputs, to be checked in turn."""
    with enable_grad():
        outputs = _outputs(function, _replaced(inputs, places, [inputs[i].detach().requires_grad_() for i in places]))
    weights = [_random_like(y, random).requires_grad_() for y in outputs]
    n = len(inputs)

    def gradient(*args):
        variables = [args[i] for i in places]
        roots = [(y, w) for y, w in zip(_outputs(function, args[:n]), args[n:]) if y.requires_grad]
        grads = engine.run_grad(
            [y for y, _ in roots], variables, [w for _, w in roots], create_graph=True, allow_unused=True
        )
        return tuple([g for g in grads if g is not None])

    return gradient, (*inputs, *weights), [*places, *range(n, n + len(weights))]


def _outputs(function, args):
    result = function(*args)
    results = result if isinstance(result, tuple | list) else (result,)
    return [y for y in results if isinstance(y, Tensor) and y.dtype is float64]


def _replaced(inputs, places, tensors):
    inputs = list(inputs)
    for i, x in zip(places, tensors):
        inputs[i] = x
    return tuple(inputs)


def from_like(x: Tensor, array) -> Tensor:
    """A float64 array as a tensor on the device of x."""
    return Tensor._wrap(to_device(numpy.asarray(array, numpy.float64), x.device), x.device)


def _random_like(x: Tensor, random) -> Tensor:
    return from_like(x, random.standard_normal(x.shape))


def _inner(x: Tensor, y: Tensor) -> float:
    return float((x.detach().cpu().numpy() * y.detach().cpu().numpy()).sum())
