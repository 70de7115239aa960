"""The other side of the benchmarks: the same model and step in torch, eager and compiled."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from trainers import LEARNING_RATE


class Block(nn.Module):
    def __init__(self, width: int, dropout: float):
        super().__init__()
        self.ln = nn.LayerNorm(width)
        self.fc = nn.Linear(width, 4 * width)
        self.proj = nn.Linear(4 * width, width)
        self.drop = nn.Dropout(dropout)

    def forward(self, x):
        return x + self.drop(self.proj(F.gelu(self.fc(self.ln(x)), approximate="tanh")))


class Net(nn.Module):
    """examples/gpt_mlp/model.py in torch, its parameters by the same names."""

    def __init__(self, options: argparse.Namespace):
        super().__init__()
        width = options.n_embd
        self.wte = nn.Embedding(options.vocab_size, width)
        self.wpe = nn.Embedding(options.block_size, width)
        self.drop = nn.Dropout(options.dropout)
        self.h = nn.ModuleList(Block(width, options.dropout) for _ in range(options.n_layer))
        self.ln_f = nn.LayerNorm(width)
        self.head = nn.Linear(width, options.vocab_size, bias=False)

    def forward(self, idx, targets):
        x = self.drop(self.wte(idx) + self.wpe.weight[: idx.shape[1]])
        for block in self.h:
            x = block(x)
        return F.cross_entropy(self.head(self.ln_f(x)).flatten(0, 1), targets.flatten())


class TorchTrainer:
    """ "torch": eager with the fused AdamW. "torch.compile": the model compiled, the same optimizer.

    "torch.compile(reduce-overhead)": the model and the optimizer's step compiled into CUDA graphs.
    """

    def __init__(self, name: str, options: argparse.Namespace, weights: dict[str, np.ndarray] | None = None):
        device = self.device = options.device
        torch.manual_seed(options.seed)
        set_tf32(options.precision)
        with torch.device(device):  # weights drawn there, not on the host
            self.model = Net(options)
        if weights is not None:
            self.model.load_state_dict({key: torch.from_numpy(w) for key, w in weights.items()})
        self.model.to(device, torch.float64 if options.precision == "fp64" else torch.float32)
        self.clip, self.update_s = options.clip, 0.0
        self.autocast = torch.autocast(device.split(":")[0], torch.bfloat16, enabled=options.precision == "bf16")
        self.in_graphs = name == "torch.compile(reduce-overhead)"
        mode = "reduce-overhead" if self.in_graphs else "default"
        self.run: Callable = self.model if name == "torch" else torch.compile(self.model, mode=mode)
        kind = {"capturable": device != "cpu"} if self.in_graphs else {"fused": True}
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=LEARNING_RATE, **kind)
        self.update = torch.compile(self.optimizer.step, mode=mode) if self.in_graphs else self.optimizer.step
        # A gradient that a graph made is overwritten by the next micro-batch's: accumulate into memory of our own.
        self.keeps_gradients = self.in_graphs and options.grad_accum > 1
        if self.keeps_gradients:
            for p in self.model.parameters():
                p.grad = torch.zeros_like(p)

    def put(self, array: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(array).to(self.device)

    def step(self, batches: Sequence[tuple[Any, Any]]) -> torch.Tensor:
        if self.in_graphs:
            torch.compiler.cudagraph_mark_step_begin()
        for x, y in batches:
            with self.autocast:
                loss = self.run(x, y)
            (loss if len(batches) == 1 else loss / len(batches)).backward()
        if self.clip:
            nn.utils.clip_grad_norm_(self.model.parameters(), self.clip)
        began = time.perf_counter()
        self.update()
        self.update_s = time.perf_counter() - began
        self.optimizer.zero_grad(set_to_none=not self.keeps_gradients)
        return loss.detach()

    def synchronize(self) -> None:
        if self.device != "cpu":
            torch.cuda.synchronize()


def set_tf32(precision: str) -> None:
    """Whether f32 products may be TF32, for the whole process."""
    torch.backends.cuda.matmul.allow_tf32 = precision in ("tf32", "bf16")


def forget_compiled() -> None:
    """Drop compiled code and graphs: sizes that come later are compiled as if they were the first."""
    torch._dynamo.reset()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
