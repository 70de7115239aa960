"""Layers without weights: activations, Identity, Dropout."""

from __future__ import annotations

from ..errors import message
from ..tensor.tensor import Tensor
from . import functional as F
from .module import Module


class Identity(Module):
    """Returns its input; stands where a layer is switched off."""

    def __init__(self, *args, **kwargs):
        super().__init__()

    def forward(self, x: Tensor) -> Tensor:
        return x


class ReLU(Module):
    """max(x, 0)."""

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(x)


class GELU(Module):
    """x * Phi(x); approximate="tanh" is the form of GPT-2, "none" the exact one."""

    def __init__(self, approximate: str = "none"):
        super().__init__()
        if approximate not in ("none", "tanh"):
            raise ValueError(message("GELU", "unknown approximate", expected="'none' or 'tanh'", got=repr(approximate)))
        self.approximate = approximate

    def forward(self, x: Tensor) -> Tensor:
        return F.gelu(x, approximate=self.approximate)

    def extra_repr(self) -> str:
        return f"approximate={self.approximate!r}"


class SiLU(Module):
    """x * sigmoid(x)."""

    def forward(self, x: Tensor) -> Tensor:
        return F.silu(x)


class Tanh(Module):
    def forward(self, x: Tensor) -> Tensor:
        return F.tanh(x)


class Sigmoid(Module):
    def forward(self, x: Tensor) -> Tensor:
        return F.sigmoid(x)


class Dropout(Module):
    """In training: each element is zeroed with probability p, the others are scaled by 1/(1-p). In evaluation: the
    input.

    The mask comes from the counter-based default generator: reproducible from its seed, the same eager and compiled.
    """

    def __init__(self, p: float = 0.5):
        super().__init__()
        if not 0.0 <= p <= 1.0:
            raise ValueError(message("Dropout", "p must be a probability", expected="0 <= p <= 1", got=repr(p)))
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        return F.dropout(x, self.p, self.training)

    def extra_repr(self) -> str:
        return f"p={self.p}"
