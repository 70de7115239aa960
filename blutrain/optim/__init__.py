"""Optimizers and learning-rate schedules. Imports tensor and autograd only.

Reading order: optimizer.py (the protocol that nova relies on), sgd.py and adam.py (the rules), schedule.py,
lr_scheduler.py (PyTorch's schedules).
"""

from . import lr_scheduler
from .adam import Adam, AdamW
from .optimizer import Bucket, Optimizer, StepCount
from .schedule import LambdaLR, LRScheduler, StepLR, WarmupCosineLR
from .sgd import SGD

__all__ = [
    "SGD",
    "Adam",
    "AdamW",
    "Bucket",
    "LRScheduler",
    "LambdaLR",
    "Optimizer",
    "StepCount",
    "StepLR",
    "WarmupCosineLR",
    "lr_scheduler",
]
