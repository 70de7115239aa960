"""Training steps as users write them, from a recipe: stacks of layers of odd extents, losses, optimizers.

    recipe = draw_layers.draw(17)
    results = train(recipe, "cuda", bt.float32, precision="tf32")     # compiled; precision=EAGER: eagerly
    print(recipe.text())

A recipe is data that says all about a training of a few steps, so that it can be printed and made smaller. Results are
arrays by name: losses, gradients where they are kept, parameters behind each step.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from layer_blocks import BLOCKS, drawn

import blutrain as bt
from blutrain import nn, nova
from blutrain.nn import functional as F
from blutrain.optim import SGD, AdamW

EAGER = "eager"
IGNORED = -100


class Part(NamedTuple):
    """A block of `layer_blocks` and what it is built with beside the shape."""

    kind: str
    arguments: tuple


class Loss(NamedTuple):
    """kind: "cross entropy" (of `width` classes; tied: of the embedding), "squares" (against targets), "logits" (of
    targets that are 0 or 1), "mean".
    """

    kind: str
    width: int = 0
    bias: bool = False
    tied: bool = False
    ignored: float = 0.0
    smoothing: float = 0.0
    reduction: str = "mean"


@dataclass(frozen=True)
class Recipe:
    """source: ("ids", vocabulary, has positions, has padding) or ("numbers", form). shape: of the hidden values behind it."""

    seed: int
    source: tuple
    shape: tuple[int, ...]
    parts: tuple[Part, ...]
    losses: tuple[Loss, ...]
    optimizer: str = "sgd"
    clip: float | None = None
    micro: int = 1
    steps: int = 2
    keeps_grads: bool = True
    loss_outside: bool = False
    wants_input_grad: bool = False

    def text(self) -> str:
        rest = {n: getattr(self, n) for n in ("optimizer", "clip", "micro", "steps", "keeps_grads", "loss_outside")}
        parts = "\n".join(f"    {kind}{arguments}" for kind, arguments in self.parts)
        losses = "\n".join(f"    {loss}" for loss in self.losses)
        return f"seed {self.seed}: {self.source} {self.shape} input grad {self.wants_input_grad}\n{parts}\n{losses}\n    {rest}"


class Model(nn.Module):
    """The layers of a recipe, and its losses."""

    def __init__(self, recipe: Recipe):
        super().__init__()
        self.recipe, shape = recipe, recipe.shape
        if recipe.source[0] == "ids":
            self.table = nn.Embedding(recipe.source[1], shape[-1], padding_idx=0 if recipe.source[3] else None)
            self.positions = drawn(shape[-2] if len(shape) == 3 else 1, shape[-1]) if recipe.source[2] else None
        self.parts = nn.ModuleList()
        for kind, arguments in recipe.parts:
            self.parts.append(BLOCKS[kind](shape, *arguments))
            shape = self.parts[-1].shape
        self.hidden_shape = shape
        self.heads = nn.ModuleDict({str(i): self._head(loss, shape[-1]) for i, loss in enumerate(recipe.losses)})

    def _head(self, loss: Loss, width: int) -> nn.Module:
        if loss.kind == "mean":
            return nn.Identity()
        if loss.tied:
            return (
                nn.Linear(width, self.recipe.shape[-1], bias=False) if width != self.recipe.shape[-1] else nn.Identity()
            )
        return nn.Linear(width, loss.width, bias=loss.bias)

    def forward(self, *inputs):
        """The loss, or hidden values where it is computed outside."""
        hidden = self._source(*inputs[: self.num_inputs()])
        for part in self.parts:
            hidden = part(hidden)
        outputs = [self._output(i, loss, hidden) for i, loss in enumerate(self.recipe.losses)]
        return outputs if self.recipe.loss_outside else self.total(outputs, inputs[self.num_inputs() :])

    def num_inputs(self) -> int:
        return 2 if self.recipe.source[1] == "joined" else 1

    def _source(self, x, *more):
        form = self.recipe.source[1]
        if self.recipe.source[0] == "ids":
            return self.table(x) if self.positions is None else self.table(x) + self.positions
        if form == "joined":
            return bt.cat([x, *more], -1)
        if form == "transposed":
            return x.transpose(-1, -2)
        return x[..., 3:-2] if form == "sliced" else x

    def _output(self, number: int, loss: Loss, hidden):
        made = self.heads[str(number)](hidden)
        return F.linear(made, self.table.weight) if loss.tied else made

    def total(self, outputs, targets):
        """The sum of the losses."""
        total, targets = 0.0, list(targets)
        for loss, output in zip(self.recipe.losses, outputs, strict=True):
            if loss.kind == "mean":
                total = total + (output * output * 0.05).mean()
            elif loss.kind == "squares":
                total = total + F.mse_loss(output, targets.pop(0))
            elif loss.kind == "logits":
                total = total + F.binary_cross_entropy_with_logits(output, targets.pop(0))
            else:
                rows = output.reshape(-1, output.shape[-1])
                made = F.cross_entropy(rows, targets.pop(0).reshape(-1), ignore_index=IGNORED, reduction=loss.reduction,
                                       label_smoothing=loss.smoothing)  # fmt: skip
                total = total + (made.mean() if loss.reduction == "none" else made)
        return total


def batches(recipe: Recipe, hidden_shape: tuple[int, ...]) -> Iterator[tuple[list[np.ndarray], list[np.ndarray]]]:
    """(inputs, targets) of each micro-step; floats are f32, so that every dtype starts from the same numbers."""
    rng = np.random.default_rng(recipe.seed)
    for _ in range(recipe.steps * recipe.micro):
        yield _inputs(recipe, rng), [_targets(loss, hidden_shape, rng) for loss in recipe.losses if loss.kind != "mean"]


def _inputs(recipe: Recipe, rng: np.random.Generator) -> list[np.ndarray]:
    *rows, width = recipe.shape
    kind, form = recipe.source[:2]
    if kind == "ids":
        return [rng.integers(0, form, rows)]
    shapes = {
        "plain": [(*rows, width)],
        "joined": [(*rows, width - width // 3), (*rows, width // 3)],
        "transposed": [(*rows[:-1], width, rows[-1])],
        "sliced": [(*rows, width + 5)],
    }[form]
    return [rng.standard_normal(shape).astype(np.float32) for shape in shapes]


def _targets(loss: Loss, hidden_shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    if loss.kind == "squares":
        return rng.standard_normal((*hidden_shape[:-1], loss.width)).astype(np.float32)
    if loss.kind == "logits":
        return (rng.random((*hidden_shape[:-1], loss.width)) < 0.3).astype(np.float32)
    ids = rng.integers(0, loss.width, hidden_shape[:-1])
    ids[rng.random(ids.shape) < loss.ignored] = IGNORED
    ids.reshape(-1)[:1] = loss.width - 1  # one row counts at least
    return ids


# AdamW's eps is large: with a small one the first step is the gradient's sign, whatever rounding made of it.
OPTIMIZERS = {
    "sgd": lambda p: SGD(p, lr=0.25),
    "momentum": lambda p: SGD(p, lr=0.1, momentum=0.8, weight_decay=0.01, nesterov=True),
    "adamw": lambda p: AdamW(p, lr=0.02, eps=1e-2, weight_decay=0.1),
}


def train(
    recipe: Recipe, device: str, dtype, precision: str | None = EAGER, kept: list | None = None
) -> dict[str, np.ndarray]:
    """The results of a training, compiled from its first step unless `precision` is EAGER.

    kept: gets the model, and what its last program still reads.
    """
    bt.manual_seed(recipe.seed)
    model = Model(recipe).to(dtype).to(device)
    if precision != EAGER:
        model.compile(first_step="compiled", strict=True, precision=precision, keep_grads=recipe.keeps_grads)
    optimizer = OPTIMIZERS[recipe.optimizer](model.parameters())
    found: dict[str, Any] = {}
    data = batches(recipe, model.hidden_shape)
    for step in range(recipe.steps):
        for micro in range(recipe.micro):
            inputs, targets = ([_tensor(a, device, dtype) for a in arrays] for arrays in next(data))
            if recipe.wants_input_grad:
                inputs[0].requires_grad_()
            made = model(*inputs, *(() if recipe.loss_outside else targets))
            loss = model.total(made, targets) if recipe.loss_outside else made
            (loss / recipe.micro if recipe.micro > 1 else loss).backward()
            found[f"loss {step}.{micro}"] = loss
            if recipe.wants_input_grad:
                found[f"input grad {step}.{micro}"] = inputs[0].grad
        if recipe.clip is not None:
            found[f"norm {step}"] = nn.utils.clip_grad_norm_(model.parameters(), recipe.clip)
        optimizer.step()
        nova.flush()
        for name, p in model.named_parameters():
            found[f"{name} behind {step}"] = _array(p)
            if recipe.keeps_grads and p.grad is not None:
                found[f"{name} grad {step}"] = _array(p.grad)
        optimizer.zero_grad()
    if kept is not None:
        kept += [model, optimizer, inputs, targets, loss]
    return {name: value if isinstance(value, np.ndarray) else _array(value) for name, value in found.items()}


def _tensor(array: np.ndarray, device: str, dtype) -> bt.Tensor:
    made = bt.tensor(array)
    return (made.to(dtype) if array.dtype.kind == "f" else made).to(device)


def _array(x: bt.Tensor) -> np.ndarray:
    return x.detach().cpu().numpy().copy()
