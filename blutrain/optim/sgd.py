"""Stochastic gradient descent, with momentum and weight decay."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ..tensor.tensor import Tensor
from .optimizer import Bucket, Optimizer, check_number, zero_state


class SGD(Optimizer):
    """d = g + weight_decay p; buffer = momentum buffer + (1 - dampening) d; p -= lr buffer (nesterov: lr (d + momentum
    buffer)).

    As in PyTorch the first step is not dampened. Without momentum there is no buffer and p -= lr d.
    """

    def __init__(
        self,
        params: Iterable,
        lr: float = 1e-3,
        momentum: float = 0.0,
        dampening: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
    ):
        defaults = {
            "lr": lr,
            "momentum": momentum,
            "dampening": dampening,
            "weight_decay": weight_decay,
            "nesterov": nesterov,
        }
        super().__init__(params, defaults)

    def _check_group(self, group: dict[str, Any]) -> None:
        for name in ("lr", "momentum", "weight_decay"):
            check_number(self, group, name, 0.0)
        check_number(self, group, "dampening", float("-inf"))
        if group["nesterov"] and (group["momentum"] == 0 or group["dampening"] != 0):
            got = f"momentum {group['momentum']}, dampening {group['dampening']}"
            self._fail("nesterov needs momentum and no dampening", got=got)

    def _init_state(self, group: dict[str, Any], p: Tensor) -> dict[str, Tensor]:
        return {"momentum_buffer": zero_state(p)} if group["momentum"] else {}

    def _rule(self, bucket: Bucket) -> tuple[str, dict[str, Any]]:
        if "momentum_buffer" in self.state[bucket.params[0]]:
            return "sgd_momentum", {"nesterov": bool(bucket.group["nesterov"])}
        return "sgd", {}

    def _scalars(self, bucket: Bucket) -> tuple[float, ...]:
        group = bucket.group
        if self._rule(bucket)[0] == "sgd_momentum":
            dampening = 0.0 if bucket.count.value == 1 else group["dampening"]
            return group["lr"], group["momentum"], dampening, group["weight_decay"]
        if group["momentum"]:
            help = "give the momentum when the optimizer is made"
            got = f"momentum {group['momentum']}"
            self._fail("momentum was 0 when these parameters first stepped", got=got, help=help)
        return group["lr"], group["weight_decay"]
