"""Layers and the tree of modules, under PyTorch's names. Imports tensor and autograd; nova only inside Module.compile.

Reading order: module.py, tree.py, parameter.py, hooks.py, state.py (state_dict), container.py; the layers: linear.py,
normalization.py, activation.py, loss.py over functional.py (with activation_functions.py and loss_functions.py) and
init.py; checkpoint.py; utils/ (clipping of gradients, parameters as a vector).
"""

from . import checkpoint, functional, init, utils
from .activation import (
    ELU,
    GELU,
    GLU,
    Dropout,
    Flatten,
    Hardtanh,
    Identity,
    LeakyReLU,
    LogSigmoid,
    LogSoftmax,
    Mish,
    ReLU,
    ReLU6,
    Sigmoid,
    SiLU,
    Softmax,
    Softplus,
    Tanh,
)
from .container import ModuleDict, ModuleList, ParameterDict, ParameterList, Sequential
from .linear import Embedding, Linear
from .loss import (
    BCELoss,
    BCEWithLogitsLoss,
    CrossEntropyLoss,
    HuberLoss,
    KLDivLoss,
    L1Loss,
    MSELoss,
    NLLLoss,
    SmoothL1Loss,
)
from .module import Module
from .normalization import LayerNorm, RMSNorm
from .parameter import Parameter

__all__ = [
    "ELU",
    "GELU",
    "GLU",
    "BCELoss",
    "BCEWithLogitsLoss",
    "CrossEntropyLoss",
    "Dropout",
    "Embedding",
    "Flatten",
    "Hardtanh",
    "HuberLoss",
    "Identity",
    "KLDivLoss",
    "L1Loss",
    "LayerNorm",
    "LeakyReLU",
    "Linear",
    "LogSigmoid",
    "LogSoftmax",
    "MSELoss",
    "Mish",
    "Module",
    "ModuleDict",
    "ModuleList",
    "NLLLoss",
    "Parameter",
    "ParameterDict",
    "ParameterList",
    "RMSNorm",
    "ReLU",
    "ReLU6",
    "Sequential",
    "SiLU",
    "Sigmoid",
    "SmoothL1Loss",
    "Softmax",
    "Softplus",
    "Tanh",
    "checkpoint",
    "functional",
    "init",
    "utils",
]
