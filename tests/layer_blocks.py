"""Parts of random models: modules that take hidden values [..., width] and give hidden values, of any extents.

Each is built from the shape that it gets and plain numbers or names; `shape` is that of what it gives. All are tame:
values stay near 1, so that a comparison of gradients says something.
"""

from __future__ import annotations

import math

import numpy as np

import blutrain as bt
from blutrain import nn
from blutrain.autograd import checkpoint
from blutrain.nn import functional as F

ACTIVATIONS = {
    "none": lambda x: x,
    "gelu": F.gelu,
    "gelu tanh": lambda x: F.gelu(x, approximate="tanh"),
    "relu": F.relu,
    "silu": F.silu,
    "tanh": bt.tanh,
    "softplus": F.softplus,
    "squared relu": lambda x: F.relu(x).square() * 0.5,
    "swish": lambda x: x * bt.sigmoid(1.7 * x),
    "bump": lambda x: bt.sin(x) * (-0.1 * x * x).exp() + 0.3 * x,
    "snake": lambda x: x + bt.sin(2.0 * x).square() * 0.5,
    "leaky": lambda x: bt.where(x > 0, x, x * 0.2),
    "hard": lambda x: x.clamp(-1.0, 1.5) + x / (1.0 + x.abs()),
}
KINKED = ("relu", "leaky", "hard")


def drawn(*shape: int, scale: float = 1.0) -> nn.Parameter:
    """A parameter of normal numbers, from the generator that `bt.manual_seed` set."""
    return nn.Parameter(bt.randn(shape) * scale)


class Dense(nn.Module):
    """Linear, activation, dropout."""

    def __init__(self, shape, width: int, bias: bool, activation: str, p: float):
        super().__init__()
        self.fc, self.activation, self.drop = nn.Linear(shape[-1], width, bias=bias), activation, nn.Dropout(p)
        self.shape = (*shape[:-1], width)

    def forward(self, x):
        return self.drop(ACTIVATIONS[self.activation](self.fc(x)))


class Norm(nn.Module):
    """LayerNorm, RMSNorm, or either without parameters."""

    def __init__(self, shape, kind: str):
        super().__init__()
        self.shape, self.kind = shape, kind
        self.weight = drawn(shape[-1]) if "plain" not in kind else None
        self.bias = drawn(shape[-1]) if kind == "layer" else None

    def forward(self, x):
        if "rms" in self.kind:
            return F.rms_norm(x, x.shape[-1:], self.weight, eps=1e-5)
        return F.layer_norm(x, x.shape[-1:], self.weight, self.bias)


class Residual(nn.Module):
    """x + dropout(linear(activation(linear(norm(x))))), the norm in front or behind."""

    def __init__(self, shape, hidden: int, norm: str, activation: str, p: float, behind: bool, bias: bool):
        super().__init__()
        self.up, self.down = Dense(shape, hidden, bias, activation, 0.0), nn.Linear(hidden, shape[-1], bias=bias)
        self.norm, self.drop, self.behind, self.shape = Norm(shape, norm), nn.Dropout(p), behind, shape

    def forward(self, x):
        made = self.drop(self.down(self.up(x if self.behind else self.norm(x))))
        return self.norm(x + made) if self.behind else x + made


class Gated(nn.Module):
    """down(activation(gate(x)) * up(x)), gate and up in one product or in two."""

    def __init__(self, shape, hidden: int, activation: str, joined: bool):
        super().__init__()
        self.up = nn.ModuleList(nn.Linear(shape[-1], n, bias=False) for n in ([2 * hidden] if joined else [hidden] * 2))
        self.down, self.activation, self.shape, self.hidden = nn.Linear(hidden, shape[-1]), activation, shape, hidden

    def forward(self, x):
        made = [layer(x) for layer in self.up]
        if len(made) == 1:
            made = [made[0][..., : self.hidden], made[0][..., self.hidden :]]
        return self.down(ACTIVATIONS[self.activation](made[0]) * made[1])


class Attention(nn.Module):
    """Heads of attention over the second last dimension. mask: "none", "causal", "random" (a buffer), "added"."""

    def __init__(self, shape, heads: int, width: int, mask: str, fused: bool, p: float):
        super().__init__()
        self.qkv, self.out = nn.Linear(shape[-1], 3 * heads * width), nn.Linear(heads * width, shape[-1], bias=False)
        self.heads, self.width, self.mask, self.fused, self.drop = heads, width, mask, fused, nn.Dropout(p)
        tokens, self.shape = shape[-2], shape
        rng = np.random.default_rng(tokens)
        allowed = np.tril(np.ones((tokens, tokens), bool)) if mask == "causal" else rng.random((tokens, tokens)) < 0.6
        self.register_buffer("allowed", bt.from_numpy(allowed | np.eye(tokens, dtype=bool)))
        if mask == "added":
            self.bias = drawn(heads, tokens, tokens, scale=0.5)

    def forward(self, x):
        x3 = x if x.ndim == 3 else x.unsqueeze(0)
        batch, tokens, _ = x3.shape
        q, k, v = self.qkv(x3).reshape(batch, tokens, 3, self.heads, self.width).permute(2, 0, 3, 1, 4)
        bias = self.bias if self.mask == "added" else self.allowed if self.mask != "none" else None
        if self.fused:
            made = F.scaled_dot_product_attention(q, k, v, bias, self.drop.p if self.training else 0.0)
        else:
            scores = q @ k.transpose(-1, -2) * (1 / math.sqrt(self.width))
            if self.mask == "added":
                scores = scores + bias
            elif bias is not None:
                scores = scores.masked_fill(~bias, -math.inf)
            made = self.drop(F.softmax(scores, -1)) @ v
        made = made.transpose(1, 2).reshape(batch, tokens, self.heads * self.width)
        return x + self.out(made).reshape(x.shape)


class Mixing(nn.Module):
    """A product along the second last dimension, through transposed views."""

    def __init__(self, shape, count: int, activation: str):
        super().__init__()
        self.weight = drawn(count, shape[-2], scale=1 / math.sqrt(shape[-2]))
        self.activation, self.shape = activation, (*shape[:-2], count, shape[-1])

    def forward(self, x):
        return ACTIVATIONS[self.activation](F.linear(x.transpose(-1, -2), self.weight).transpose(-1, -2))


class Batched(nn.Module):
    """A matrix of its own for each element of the batch, on one side or the other."""

    def __init__(self, shape, width: int, left: bool):
        super().__init__()
        batch, tokens, inner = shape
        if left:
            self.weight, self.shape = drawn(batch, width, tokens, scale=1 / math.sqrt(tokens)), (batch, width, inner)
        else:
            self.weight, self.shape = drawn(batch, inner, width, scale=1 / math.sqrt(inner)), (batch, tokens, width)
        self.left = left

    def forward(self, x):
        return self.weight @ x if self.left else x @ self.weight


class Tied(nn.Module):
    """activation(x W^T + b) W: one weight in two products."""

    def __init__(self, shape, width: int, activation: str, plain: bool):
        super().__init__()
        self.fc, self.activation, self.plain, self.shape = nn.Linear(shape[-1], width), activation, plain, shape
        self.scale = min(1.0, shape[-1] / width)

    def forward(self, x):
        made = ACTIVATIONS[self.activation](self.fc(x))
        made = made * self.scale
        return made @ self.fc.weight if self.plain else F.linear(made, self.fc.weight.t())


class Repeated(nn.Module):
    """One layer several times: its gradient is a sum."""

    def __init__(self, shape, times: int, activation: str):
        super().__init__()
        self.fc, self.times, self.activation, self.shape = nn.Linear(shape[-1], shape[-1]), times, activation, shape

    def forward(self, x):
        for _ in range(self.times):
            x = ACTIVATIONS[self.activation](self.fc(x))
        return x


class Experts(nn.Module):
    """A sum of layers, each times its share of a softmax."""

    def __init__(self, shape, count: int, width: int, activation: str):
        super().__init__()
        self.gate, self.activation, self.shape = (
            nn.Linear(shape[-1], count, bias=False),
            activation,
            (*shape[:-1], width),
        )
        self.layers = nn.ModuleList(nn.Linear(shape[-1], width) for _ in range(count))

    def forward(self, x):
        shares = F.softmax(self.gate(x), -1)
        made = [ACTIVATIONS[self.activation](layer(x)) for layer in self.layers]
        return sum(one * shares[..., i : i + 1] for i, one in enumerate(made))


class Looked(nn.Module):
    """Rows by number, some of them several times, others never."""

    def __init__(self, shape, count: int):
        super().__init__()
        numbers = np.random.default_rng(count).integers(0, shape[-2], count)
        self.register_buffer("numbers", bt.tensor(numbers))
        self.shape = (*shape[:-2], count, shape[-1])

    def forward(self, x):
        return x.index_select(-2, self.numbers)


class Recomputed(Residual):
    """A residual part whose inner values the backward makes again."""

    def forward(self, x):
        return checkpoint(super().forward, x)


class Stopped(nn.Module):
    """x + s y, where no gradient flows into y's operand, and none into its weight."""

    def __init__(self, shape, activation: str):
        super().__init__()
        self.weight, self.scale = drawn(shape[-1], shape[-1], scale=1 / math.sqrt(shape[-1])), drawn(shape[-1])
        self.weight.requires_grad_(False)
        self.activation, self.shape = activation, shape

    def forward(self, x):
        return x + self.scale * ACTIVATIONS[self.activation](F.linear(x.detach(), self.weight))


class Scaled(nn.Module):
    """x (1 + s), s one number, one a column, one a row, or one a matrix of the batch."""

    def __init__(self, shape, form: str):
        super().__init__()
        extents = {
            "one": (),
            "column": shape[-1:],
            "row": (shape[-2], 1),
            "batch": (shape[0], *(1,) * (len(shape) - 1)),
        }
        self.scale, self.shape = drawn(*extents[form], scale=0.5), shape

    def forward(self, x):
        return x * (1.0 + self.scale)


class Turned(nn.Module):
    """Columns cut in two and joined the other way round, one part through an activation."""

    def __init__(self, shape, cut: int, activation: str):
        super().__init__()
        self.cut, self.activation, self.shape = cut, activation, shape

    def forward(self, x):
        return bt.cat([ACTIVATIONS[self.activation](x[..., self.cut :]), x[..., : self.cut]], -1)


class Thinned(nn.Module):
    """Every `step`-th row from `start` on, or column."""

    def __init__(self, shape, start: int, step: int, columns: bool):
        super().__init__()
        count = len(range(start, shape[-1 if columns else -2], step))
        self.shape = (*shape[:-1], count) if columns else (*shape[:-2], count, shape[-1])
        self.part = slice(start, None, step)
        self.columns = columns

    def forward(self, x):
        return x[..., self.part] if self.columns else x[..., self.part, :]


class Pooled(nn.Module):
    """The mean over the tokens beside their largest numbers, for each element of the batch."""

    def __init__(self, shape):
        super().__init__()
        self.shape = (shape[0], shape[-1])

    def forward(self, x):
        return x.mean(1) + 0.1 * bt.logsumexp(x, 1)


BLOCKS = {c.__name__: c for c in (Dense, Norm, Residual, Gated, Attention, Mixing, Batched, Tied, Repeated, Experts,
                                  Looked, Recomputed, Stopped, Scaled, Turned, Thinned, Pooled)}  # fmt: skip
