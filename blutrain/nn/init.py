"""Filling parameters before training. Each function writes its tensor in place, without history, and returns it.

Random ones draw from the default generator (blutrain.manual_seed): the same numbers on every device.
"""

from __future__ import annotations

import math

import numpy

from ..autograd import no_grad
from ..errors import message
from ..tensor.creation import eye, from_numpy, full_like
from ..tensor.dtype import float64
from ..tensor.ops import random
from ..tensor.ops.arithmetic import where
from ..tensor.tensor import Tensor

# Factor by which an activation shrinks the deviation, as in torch.nn.init.calculate_gain.
GAINS = {"linear": 1.0, "sigmoid": 1.0, "tanh": 5.0 / 3.0, "relu": math.sqrt(2.0)}


def constant_(tensor: Tensor, value: float) -> Tensor:
    """Every element `value`."""
    return _write(tensor, full_like(tensor, value))


def zeros_(tensor: Tensor) -> Tensor:
    """Every element 0."""
    return constant_(tensor, 0)


def ones_(tensor: Tensor) -> Tensor:
    """Every element 1."""
    return constant_(tensor, 1)


def zero_row_(tensor: Tensor, row: int) -> Tensor:
    """Row `row` becomes 0, the others stay."""
    with no_grad():
        tensor[row] = 0.0
    return tensor


def uniform_(tensor: Tensor, low: float = 0.0, high: float = 1.0) -> Tensor:
    """Uniform in [low, high)."""
    return _write(tensor, random.uniform(tensor.shape, low, high, dtype=tensor.dtype, device=tensor.device))


def normal_(tensor: Tensor, mean: float = 0.0, std: float = 1.0) -> Tensor:
    """Normal with the given mean and deviation."""
    return _write(tensor, random.normal(tensor.shape, mean, std, dtype=tensor.dtype, device=tensor.device))


def trunc_normal_(tensor: Tensor, mean: float = 0.0, std: float = 1.0, a: float = -2.0, b: float = 2.0) -> Tensor:
    """Normal within [a, b]: what falls outside is drawn again."""
    if not a < b or mean + 6 * std < a or mean - 6 * std > b:
        expected, got = "an interval [a, b] within 6 std of mean", f"[{a}, {b}], {mean=}, {std=}"
        raise ValueError(
            message("trunc_normal_", "hardly a number falls into the interval", expected=expected, got=got)
        )
    options = {"dtype": tensor.dtype, "device": tensor.device}
    value = random.normal(tensor.shape, mean, std, **options)
    while ((value < a) | (value > b)).any():
        value = where((value < a) | (value > b), random.normal(tensor.shape, mean, std, **options), value)
    return _write(tensor, value)


def orthogonal_(tensor: Tensor, gain: float = 1.0) -> Tensor:
    """A matrix (further dimensions belong to the second) with orthonormal rows or columns, times gain (Saxe et al., 2013)."""
    rows, columns = tensor.shape[0], math.prod(tensor.shape[1:])
    if tensor.ndim < 2 or not rows or not columns:
        raise ValueError(message("orthogonal_", "needs a weight of two or more dimensions", got=str(tensor._aval)))
    drawn = random.normal((max(rows, columns), min(rows, columns)), dtype=float64).numpy()
    q, r = numpy.linalg.qr(drawn)
    q = q * numpy.where(numpy.diag(r) < 0, -1.0, 1.0)  # makes the distribution uniform
    q = q.T if rows < columns else q
    return _write(tensor, from_numpy(numpy.ascontiguousarray(q * gain)).reshape(tensor.shape).to(tensor.device))


def eye_(tensor: Tensor) -> Tensor:
    """Ones on the diagonal of a matrix, zeros elsewhere."""
    if tensor.ndim != 2:
        raise ValueError(message("eye_", "needs a matrix", got=str(tensor._aval)))
    return _write(tensor, eye(*tensor.shape, dtype=tensor.dtype, device=tensor.device))


def xavier_uniform_(tensor: Tensor, gain: float = 1.0) -> Tensor:
    """Uniform in ±gain sqrt(6 / (fan_in + fan_out)) (Glorot and Bengio, 2010)."""
    bound = gain * math.sqrt(6.0 / max(1, sum(_fans(tensor))))
    return uniform_(tensor, -bound, bound)


def xavier_normal_(tensor: Tensor, gain: float = 1.0) -> Tensor:
    """Normal with deviation gain sqrt(2 / (fan_in + fan_out))."""
    return normal_(tensor, 0.0, gain * math.sqrt(2.0 / max(1, sum(_fans(tensor)))))


def kaiming_uniform_(tensor: Tensor, a: float = 0.0, mode: str = "fan_in", nonlinearity: str = "leaky_relu") -> Tensor:
    """Uniform in ±gain sqrt(3 / fan) (He et al., 2015); `a` is leaky_relu's slope."""
    bound = calculate_gain(nonlinearity, a) * math.sqrt(3.0 / max(1, _fan(tensor, mode)))
    return uniform_(tensor, -bound, bound)


def kaiming_normal_(tensor: Tensor, a: float = 0.0, mode: str = "fan_in", nonlinearity: str = "leaky_relu") -> Tensor:
    """Normal with deviation gain / sqrt(fan)."""
    return normal_(tensor, 0.0, calculate_gain(nonlinearity, a) / math.sqrt(max(1, _fan(tensor, mode))))


def calculate_gain(nonlinearity: str, a: float = 0.01) -> float:
    """The factor that keeps the deviation through an activation. Errors: ValueError for an unknown one."""
    if nonlinearity == "leaky_relu":
        return math.sqrt(2.0 / (1 + a * a))
    if nonlinearity not in GAINS:
        expected = ", ".join([*GAINS, "leaky_relu"])
        raise ValueError(message("calculate_gain", "unknown nonlinearity", expected=expected, got=repr(nonlinearity)))
    return GAINS[nonlinearity]


def _write(tensor: Tensor, value: Tensor) -> Tensor:
    with no_grad():
        return tensor.copy_(value)


def _fans(tensor: Tensor) -> tuple[int, int]:
    """(fan_in, fan_out) of a weight (out, in, ...)."""
    if tensor.ndim < 2:
        raise ValueError(message("init", "needs a weight of two or more dimensions", got=str(tensor._aval)))
    receptive = math.prod(tensor.shape[2:])
    return tensor.shape[1] * receptive, tensor.shape[0] * receptive


def _fan(tensor: Tensor, mode: str) -> int:
    if mode not in ("fan_in", "fan_out"):
        raise ValueError(message("init", "unknown mode", expected="'fan_in' or 'fan_out'", got=repr(mode)))
    return _fans(tensor)[mode == "fan_out"]
