"""Adam and AdamW: steps scaled by running moments of the gradient."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ..tensor.tensor import Tensor
from .optimizer import Bucket, Optimizer, check_number, zero_state


class _Adam(Optimizer):
    """What Adam and AdamW share: all but where the weight decay goes."""

    update: str

    def __init__(self, params: Iterable, lr: float, betas: tuple[float, float], eps: float, weight_decay: float):
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})

    def _check_group(self, group: dict[str, Any]) -> None:
        for name in ("lr", "eps", "weight_decay"):
            check_number(self, group, name, 0.0)
        betas = group["betas"]
        if not isinstance(betas, tuple | list) or len(betas) != 2:
            self._fail("betas is not a pair", got=repr(betas))
        for i, beta in enumerate(betas):
            check_number(self, {f"betas[{i}]": beta}, f"betas[{i}]", 0.0, 1.0)

    def _init_state(self, group: dict[str, Any], p: Tensor) -> dict[str, Tensor]:
        return {"exp_avg": zero_state(p), "exp_avg_sq": zero_state(p)}

    def _rule(self, bucket: Bucket) -> tuple[str, dict[str, Any]]:
        return self.update, {}

    def _scalars(self, bucket: Bucket) -> tuple[float, ...]:
        group, t = bucket.group, bucket.count.value
        beta1, beta2 = group["betas"]
        return group["lr"], beta1, beta2, group["eps"], group["weight_decay"], 1.0 - beta1**t, 1.0 - beta2**t


class Adam(_Adam):
    """Kingma and Ba, 2015 (arXiv 1412.6980); `weight_decay` times the parameter is added to the gradient."""

    update = "adam"

    def __init__(
        self,
        params: Iterable,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
    ):
        super().__init__(params, lr, betas, eps, weight_decay)


class AdamW(_Adam):
    """Loshchilov and Hutter, 2019 (arXiv 1711.05101): the parameter first shrinks by lr * weight_decay, then takes
    Adam's step.

    eps is added outside of the bias-corrected root, as in PyTorch. Moments of float16 and bfloat16 parameters are
    float32.

    >>> model = nn.Linear(2, 2)
    >>> decayed, others = [model.weight], [model.bias]
    >>> AdamW([{"params": decayed}, {"params": others, "weight_decay": 0.0}], lr=1e-3, weight_decay=0.1)
    AdamW (
      group 0: 1 parameters  lr: 0.001  betas: (0.9, 0.999)  eps: 1e-08  weight_decay: 0.1
      group 1: 1 parameters  lr: 0.001  betas: (0.9, 0.999)  eps: 1e-08  weight_decay: 0.0
    )
    """

    update = "adamw"

    def __init__(
        self,
        params: Iterable,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.01,
    ):
        super().__init__(params, lr, betas, eps, weight_decay)
