"""The other side of benchmarks/step.py: the same model and step in torch, eager and torch.compile."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn


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
    """examples/gpt_mlp/model.py in torch."""

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


def peer_subject(options: argparse.Namespace, name: str, batches: list) -> tuple[Callable[[], None], dict[str, Any]]:
    """A function that makes one step of "torch" or "torch.compile", warmed up, and what is known of it so far."""
    device = options.device
    torch.manual_seed(options.seed)
    torch.backends.cuda.matmul.allow_tf32 = options.precision in ("tf32", "bf16")
    model = Net(options).to(device, torch.float64 if options.precision == "fp64" else torch.float32)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)
    run = torch.compile(model) if name == "torch.compile" else model
    inputs = [[torch.from_numpy(a).to(device) for a in pair] for pair in batches]
    autocast = torch.autocast(device.split(":")[0], torch.bfloat16, enabled=options.precision == "bf16")

    def step() -> None:
        for x, y in inputs:
            with autocast:
                loss = run(x, y)
            (loss if len(inputs) == 1 else loss / len(inputs)).backward()
        if options.clip:
            nn.utils.clip_grad_norm_(model.parameters(), options.clip)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if device != "cpu":
            torch.cuda.synchronize()

    began = time.perf_counter()
    step()
    record: dict[str, Any] = {"first_step_s": {"step": time.perf_counter() - began}}
    for _ in range(3):
        step()
    if device != "cpu":
        record["peak_memory_bytes"] = torch.cuda.max_memory_allocated()
    return step, record
