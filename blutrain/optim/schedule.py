"""Learning-rate schedules: each `step()` sets the rate of the next optimizer step.

A rate is a function of the step's number alone, so a schedule is resumed by that number.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from ..errors import message
from .optimizer import Optimizer


class LRScheduler:
    """Base: `factor(n, group_index)` times the rate that the group had at first is the rate of step n (from 0).

    Call `optimizer.step()` and then `scheduler.step()`.
    """

    def __init__(self, optimizer: Optimizer):
        if not isinstance(optimizer, Optimizer):
            got = type(optimizer).__name__
            raise TypeError(message(type(self).__name__, "not an optimizer", expected="an Optimizer", got=got))
        self.optimizer = optimizer
        self.last_epoch = 0
        self.base_lrs = [group.setdefault("initial_lr", group["lr"]) for group in optimizer.param_groups]
        self._set()

    def factor(self, n: int, group_index: int) -> float:
        raise NotImplementedError

    def step(self) -> None:
        """Go on to the next step's rate."""
        self.last_epoch += 1
        self._set()

    def get_last_lr(self) -> list[float]:
        """The rates now, one a group."""
        return [group["lr"] for group in self.optimizer.param_groups]

    def state_dict(self) -> dict[str, Any]:
        return {"last_epoch": self.last_epoch, "base_lrs": list(self.base_lrs)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Errors: those of check_state."""
        self.check_state(state)
        self.last_epoch, self.base_lrs = int(state["last_epoch"]), list(state["base_lrs"])
        self._set()

    def check_state(self, state: dict[str, Any]) -> None:
        """Errors: ValueError if it is no state of a schedule, or has another number of groups."""
        if not isinstance(state, dict) or not isinstance(state.get("base_lrs"), list) or "last_epoch" not in state:
            expected = "a dict of last_epoch and base_lrs"
            raise ValueError(message(type(self).__name__, "not a state", expected=expected, got=repr(state)[:80]))
        if len(state["base_lrs"]) != len(self.base_lrs):
            expected, got = f"{len(self.base_lrs)} groups", f"{len(state['base_lrs'])}"
            raise ValueError(message(type(self).__name__, "the state has other groups", expected=expected, got=got))
        if type(state["last_epoch"]) is not int or not all(isinstance(rate, int | float) for rate in state["base_lrs"]):
            expected, got = "a number of steps and rates", repr(state)[:80]
            raise ValueError(message(type(self).__name__, "the state holds no numbers", expected=expected, got=got))

    def _set(self) -> None:
        for i, (group, base) in enumerate(zip(self.optimizer.param_groups, self.base_lrs)):
            group["lr"] = base * self.factor(self.last_epoch, i)


class LambdaLR(LRScheduler):
    """lr_lambda(n), or one function a group, times the first rate."""

    def __init__(self, optimizer: Optimizer, lr_lambda: Callable[[int], float] | Sequence[Callable[[int], float]]):
        groups = len(optimizer.param_groups)
        self._lambdas = list(lr_lambda) if isinstance(lr_lambda, Sequence) else [lr_lambda] * groups
        if len(self._lambdas) != groups:
            raise ValueError(
                message("LambdaLR", "one function a group", expected=str(groups), got=str(len(self._lambdas)))
            )
        super().__init__(optimizer)

    def factor(self, n: int, group_index: int) -> float:
        return self._lambdas[group_index](n)


class StepLR(LRScheduler):
    """The rate times gamma every step_size steps."""

    def __init__(self, optimizer: Optimizer, step_size: int, gamma: float = 0.1):
        check_positive("StepLR", "step_size", step_size)
        self.step_size, self.gamma = step_size, gamma
        super().__init__(optimizer)

    def factor(self, n: int, group_index: int) -> float:
        return self.gamma ** (n // self.step_size)


class WarmupCosineLR(LRScheduler):
    """Linear up to 1 over warmup_steps, half a cosine down to min_ratio at total_steps, constant after.

    >>> optimizer = bt.optim.SGD([nn.Parameter(bt.ones(1))], lr=1.0)
    >>> schedule = WarmupCosineLR(optimizer, warmup_steps=2, total_steps=4)
    >>> [(round(optimizer.param_groups[0]["lr"], 2), schedule.step())[0] for _ in range(6)]
    [0.5, 1.0, 1.0, 0.55, 0.1, 0.1]
    """

    def __init__(self, optimizer: Optimizer, warmup_steps: int, total_steps: int, min_ratio: float = 0.1):
        if not 0 <= warmup_steps <= total_steps:
            got = f"warmup_steps {warmup_steps}, total_steps {total_steps}"
            raise ValueError(
                message("WarmupCosineLR", "warm-up must fit", expected="0 <= warmup_steps <= total_steps", got=got)
            )
        self.warmup_steps, self.total_steps, self.min_ratio = warmup_steps, total_steps, min_ratio
        super().__init__(optimizer)

    def factor(self, n: int, group_index: int) -> float:
        if n < self.warmup_steps:
            return (n + 1) / self.warmup_steps
        progress = min(1.0, (n - self.warmup_steps) / max(1, self.total_steps - self.warmup_steps))
        return self.min_ratio + (1 - self.min_ratio) * 0.5 * (1 + math.cos(math.pi * progress))


def check_positive(op: str, name: str, value: int) -> None:
    """Errors: ValueError for a number of steps below 1."""
    if value < 1:
        raise ValueError(message(op, f"{name} must be at least 1", got=repr(value)))
