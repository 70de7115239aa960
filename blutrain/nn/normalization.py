"""LayerNorm and RMSNorm over the trailing dimensions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from ..errors import message
from ..tensor.tensor import Tensor
from . import functional as F
from . import init
from .linear import size_of
from .module import Module
from .parameter import Parameter, empty_parameter


class _Norm(Module):
    """What both norms share: the normalized shape, an optional weight, an optional bias."""

    def _setup(self, normalized_shape: int | Sequence[int], weight: bool, bias: bool, device: Any, dtype: Any) -> None:
        op, shape = (
            type(self).__name__,
            normalized_shape if isinstance(normalized_shape, Iterable) else (normalized_shape,),
        )
        self.normalized_shape = shape = tuple(size_of(op, "each extent of normalized_shape", n, 1) for n in shape)
        if not shape:
            raise ValueError(message(op, "normalized_shape is empty", got=repr(normalized_shape)))
        self.weight: Parameter | None = empty_parameter(shape, device, dtype) if weight else None
        self.bias: Parameter | None = empty_parameter(shape, device, dtype) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        if self.weight is not None:
            init.ones_(self.weight)
        if self.bias is not None:
            init.zeros_(self.bias)


class LayerNorm(_Norm):
    """(x - mean) / sqrt(var + eps) * weight + bias over the last len(normalized_shape) dimensions.

    Var without Bessel's correction.
    """

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        eps: float = 1e-5,
        elementwise_affine: bool = True,
        bias: bool = True,
        device: Any = None,
        dtype: Any = None,
    ):
        super().__init__()
        self.eps = float(eps)
        self._setup(normalized_shape, elementwise_affine, elementwise_affine and bias, device, dtype)

    def forward(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, self.normalized_shape, self.weight, self.bias, self.eps)

    def extra_repr(self) -> str:
        return f"{self.normalized_shape}, eps={self.eps}, elementwise_affine={self.weight is not None}"


class RMSNorm(_Norm):
    """x / sqrt(mean(x²) + eps) * weight over the last len(normalized_shape) dimensions.

    eps: None means the machine epsilon of x's dtype, as in PyTorch.
    """

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        eps: float | None = None,
        elementwise_affine: bool = True,
        device: Any = None,
        dtype: Any = None,
    ):
        super().__init__()
        self.eps = eps
        self._setup(normalized_shape, elementwise_affine, False, device, dtype)

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, self.normalized_shape, self.weight, self.eps)

    def extra_repr(self) -> str:
        return f"{self.normalized_shape}, eps={self.eps}, elementwise_affine={self.weight is not None}"
