"""Layers and the tree of modules, under PyTorch's names. Imports tensor and autograd; nova only inside Module.compile.

Reading order: module.py, tree.py, parameter.py, hooks.py, state.py (state_dict), container.py; the layers: linear.py,
normalization.py, activation.py, loss.py over functional.py and init.py; checkpoint.py; utils/ (gradient clipping).
"""

from . import checkpoint, functional, init, utils
from .activation import GELU, Dropout, Identity, ReLU, Sigmoid, SiLU, Tanh
from .container import ModuleDict, ModuleList, Sequential
from .linear import Embedding, Linear
from .loss import CrossEntropyLoss, MSELoss
from .module import Module
from .normalization import LayerNorm, RMSNorm
from .parameter import Parameter

__all__ = [
    "GELU",
    "CrossEntropyLoss",
    "Dropout",
    "Embedding",
    "Identity",
    "LayerNorm",
    "Linear",
    "MSELoss",
    "Module",
    "ModuleDict",
    "ModuleList",
    "Parameter",
    "RMSNorm",
    "ReLU",
    "Sequential",
    "SiLU",
    "Sigmoid",
    "Tanh",
    "checkpoint",
    "functional",
    "init",
    "utils",
]
