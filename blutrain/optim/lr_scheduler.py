"""PyTorch's learning-rate schedules, under its names; each is a function of the step's number (see schedule.py), so changes
of `lr` by hand in between do not last.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Iterable

from ..errors import message
from .optimizer import Optimizer
from .schedule import LambdaLR, LRScheduler, StepLR, check_positive

__all__ = [
    "ConstantLR",
    "CosineAnnealingLR",
    "ExponentialLR",
    "LRScheduler",
    "LambdaLR",
    "LinearLR",
    "MultiStepLR",
    "OneCycleLR",
    "StepLR",
]


class ExponentialLR(LRScheduler):
    """The rate times gamma every step."""

    def __init__(self, optimizer: Optimizer, gamma: float):
        self.gamma = gamma
        super().__init__(optimizer)

    def factor(self, n: int, group_index: int) -> float:
        return self.gamma**n


class MultiStepLR(LRScheduler):
    """The rate times gamma at each of the steps `milestones`."""

    def __init__(self, optimizer: Optimizer, milestones: Iterable[int], gamma: float = 0.1):
        self.milestones, self.gamma = sorted(milestones), gamma
        super().__init__(optimizer)

    def factor(self, n: int, group_index: int) -> float:
        return self.gamma ** bisect.bisect_right(self.milestones, n)


class LinearLR(LRScheduler):
    """start_factor to end_factor times the rate, evenly over total_iters steps, and end_factor after."""

    def __init__(
        self, optimizer: Optimizer, start_factor: float = 1 / 3, end_factor: float = 1.0, total_iters: int = 5
    ):
        check_positive("LinearLR", "total_iters", total_iters)
        self.start_factor, self.end_factor, self.total_iters = start_factor, end_factor, total_iters
        super().__init__(optimizer)

    def factor(self, n: int, group_index: int) -> float:
        return self.start_factor + (self.end_factor - self.start_factor) * min(n, self.total_iters) / self.total_iters


class ConstantLR(LRScheduler):
    """`factor` times the rate for total_iters steps, then the rate itself."""

    def __init__(self, optimizer: Optimizer, factor: float = 1 / 3, total_iters: int = 5):
        self._factor, self.total_iters = factor, total_iters
        super().__init__(optimizer)

    def factor(self, n: int, group_index: int) -> float:
        return self._factor if n < self.total_iters else 1.0


class CosineAnnealingLR(LRScheduler):
    """From the rate to eta_min in T_max steps along half a cosine, and back in as many."""

    def __init__(self, optimizer: Optimizer, T_max: int, eta_min: float = 0.0):
        check_positive("CosineAnnealingLR", "T_max", T_max)
        self.T_max, self.eta_min = T_max, eta_min
        super().__init__(optimizer)

    def factor(self, n: int, group_index: int) -> float:
        base = self.base_lrs[group_index]
        rate = self.eta_min + (base - self.eta_min) * (1 + math.cos(math.pi * n / self.T_max)) / 2
        return rate / base if base else 0.0


class OneCycleLR(LRScheduler):
    """Up from max_lr / div_factor to max_lr in the first part `pct_start` of total_steps, then down to 1 / final_div_factor
    of where it began, along cosines (or lines). Momentum stays as it is.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        max_lr: float,
        total_steps: int,
        pct_start: float = 0.3,
        anneal_strategy: str = "cos",
        div_factor: float = 25.0,
        final_div_factor: float = 1e4,
    ):
        check_positive("OneCycleLR", "total_steps", total_steps)
        if anneal_strategy not in ("cos", "linear"):
            got = repr(anneal_strategy)
            raise ValueError(message("OneCycleLR", "unknown anneal_strategy", expected="'cos' or 'linear'", got=got))
        self.total_steps, self.is_linear = total_steps, anneal_strategy == "linear"
        self.peak = pct_start * total_steps - 1
        self.div_factor, self.final_div_factor = div_factor, final_div_factor
        for group in optimizer.param_groups:
            group["initial_lr"] = max_lr / div_factor
        super().__init__(optimizer)

    def factor(self, n: int, group_index: int) -> float:
        top, bottom, last = self.div_factor, 1 / self.final_div_factor, self.total_steps - 1
        n = min(n, last)
        if n <= self.peak:
            return self._between(1.0, top, n / self.peak if self.peak else 1.0)
        return self._between(top, bottom, (n - self.peak) / (last - self.peak))

    def _between(self, start: float, end: float, part: float) -> float:
        if self.is_linear:
            return start + (end - start) * part
        return end + (start - end) / 2 * (1 + math.cos(math.pi * part))
