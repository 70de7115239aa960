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


class _WithNumbers(Module):
    """An activation with numbers that its class names in `NUMBERS`, attributes of PyTorch's names."""

    NUMBERS: tuple[str, ...] = ()

    def extra_repr(self) -> str:
        return ", ".join(f"{name}={getattr(self, name)}" for name in self.NUMBERS)


class Softmax(_WithNumbers):
    """softmax along `dim`."""

    NUMBERS = ("dim",)

    def __init__(self, dim: int = -1):
        super().__init__()
        self.dim = dim

    def forward(self, x: Tensor) -> Tensor:
        return F.softmax(x, self.dim)


class LogSoftmax(Softmax):
    """log(softmax) along `dim`."""

    def forward(self, x: Tensor) -> Tensor:
        return F.log_softmax(x, self.dim)


class LeakyReLU(_WithNumbers):
    """x, times negative_slope where it is negative."""

    NUMBERS = ("negative_slope",)

    def __init__(self, negative_slope: float = 0.01):
        super().__init__()
        self.negative_slope = negative_slope

    def forward(self, x: Tensor) -> Tensor:
        return F.leaky_relu(x, self.negative_slope)


class ELU(_WithNumbers):
    """x where it is positive, alpha * (exp(x) - 1) elsewhere."""

    NUMBERS = ("alpha",)

    def __init__(self, alpha: float = 1.0):
        super().__init__()
        self.alpha = alpha

    def forward(self, x: Tensor) -> Tensor:
        return F.elu(x, self.alpha)


class Softplus(_WithNumbers):
    """log(1 + exp(beta x)) / beta, x where beta x is above the threshold."""

    NUMBERS = ("beta", "threshold")

    def __init__(self, beta: float = 1.0, threshold: float = 20.0):
        super().__init__()
        self.beta, self.threshold = beta, threshold

    def forward(self, x: Tensor) -> Tensor:
        return F.softplus(x, self.beta, self.threshold)


class LogSigmoid(Module):
    """log(sigmoid(x))."""

    def forward(self, x: Tensor) -> Tensor:
        return F.logsigmoid(x)


class Hardtanh(_WithNumbers):
    """x between min_val and max_val."""

    NUMBERS = ("min_val", "max_val")

    def __init__(self, min_val: float = -1.0, max_val: float = 1.0):
        super().__init__()
        self.min_val, self.max_val = min_val, max_val

    def forward(self, x: Tensor) -> Tensor:
        return F.hardtanh(x, self.min_val, self.max_val)


class ReLU6(Module):
    """x between 0 and 6."""

    def forward(self, x: Tensor) -> Tensor:
        return F.relu6(x)


class Mish(Module):
    """x * tanh(softplus(x))."""

    def forward(self, x: Tensor) -> Tensor:
        return F.mish(x)


class GLU(_WithNumbers):
    """The first half of `dim` times the sigmoid of the second."""

    NUMBERS = ("dim",)

    def __init__(self, dim: int = -1):
        super().__init__()
        self.dim = dim

    def forward(self, x: Tensor) -> Tensor:
        return F.glu(x, self.dim)


class Flatten(_WithNumbers):
    """Dimensions start_dim to end_dim as one: all but the first, unless given."""

    NUMBERS = ("start_dim", "end_dim")

    def __init__(self, start_dim: int = 1, end_dim: int = -1):
        super().__init__()
        self.start_dim, self.end_dim = start_dim, end_dim

    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(self.start_dim, self.end_dim)


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
