"""MLP-GPT: GPT-2 with the attention sub-layers removed.

Token and position embeddings, pre-norm MLP blocks with residuals, a final norm, and an untied head. Without attention
a token is predicted from the one before it and its position; what remains is the arithmetic of a GPT that is not
attention, which is most of it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import blutrain.nn as nn
import blutrain.nn.functional as F
from blutrain.errors import message

# name -> (n_embd, n_layer); vocabulary 50304, context 1024
PRESETS = {
    "42M": (384, 3),
    "46M": (384, 6),
    "92M": (768, 3),
    "106M": (768, 6),
    "125M": (768, 10),
    "134M": (768, 12),
    "144M": (768, 14),
}
PRESET_VOCAB_SIZE, PRESET_BLOCK_SIZE = 50304, 1024


@dataclass(frozen=True)
class Config:
    """Sizes of the model."""

    vocab_size: int = 256
    block_size: int = 256
    n_embd: int = 256
    n_layer: int = 4
    dropout: float = 0.0


class Block(nn.Module):
    """x + proj(gelu(fc(norm(x))))."""

    def __init__(self, config: Config):
        super().__init__()
        self.ln = nn.LayerNorm(config.n_embd)
        self.fc = nn.Linear(config.n_embd, 4 * config.n_embd)
        self.gelu = nn.GELU(approximate="tanh")
        self.proj = nn.Linear(4 * config.n_embd, config.n_embd)
        self.drop = nn.Dropout(config.dropout)

    def forward(self, x):
        return x + self.drop(self.proj(self.gelu(self.fc(self.ln(x)))))


class MLPGPT(nn.Module):
    """The model; `forward` gives the loss alone when targets are given, the logits otherwise."""

    def __init__(self, config: Config):
        super().__init__()
        self.config = config
        self.wte = nn.Embedding(config.vocab_size, config.n_embd)
        self.wpe = nn.Embedding(config.block_size, config.n_embd)
        self.drop = nn.Dropout(config.dropout)
        self.h = nn.ModuleList(Block(config) for _ in range(config.n_layer))
        self.ln_f = nn.LayerNorm(config.n_embd)
        self.head = nn.Linear(config.n_embd, config.vocab_size, bias=False)
        self.apply(self._initialize)

    def _initialize(self, module: nn.Module) -> None:
        """As GPT-2: normal with deviation 0.02, divided by sqrt(n_layer) for projections into the residual stream."""
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=0.02)
            if getattr(module, "bias", None) is not None:
                nn.init.zeros_(module.bias)
        if isinstance(module, Block):
            nn.init.normal_(module.proj.weight, std=0.02 / math.sqrt(self.config.n_layer))

    def forward(self, idx, targets=None, positions=None):
        """idx, targets: int64 (B, T). positions: int64 (B, T), by default 0..T-1. Logits are (B, T, vocab_size)."""
        length = idx.shape[1]
        if length > self.config.block_size:
            expected = f"at most {self.config.block_size} tokens"
            raise ValueError(
                message("MLPGPT", "the input is longer than the context", expected=expected, got=str(length))
            )
        position = self.wpe.weight[:length] if positions is None else self.wpe(positions)
        x = self.drop(self.wte(idx) + position)
        for block in self.h:
            x = block(x)
        logits = self.head(self.ln_f(x))
        if targets is None:
            return logits
        return F.cross_entropy(logits.reshape(-1, self.config.vocab_size), targets.reshape(-1))
