"""Draws recipes of trainings (`random_layers`) from seeds, and makes one that fails smaller."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from layer_blocks import ACTIVATIONS, BLOCKS, KINKED
from random_layers import OPTIMIZERS, Loss, Model, Part, Recipe


class Limits(NamedTuple):
    """Most rows, width and classes; `products`: multiplications of all products of a forward. kinks: an activation with
    a kink is taken of so many elements at least: of few, rounding moves one or none over it, and no sample says which.
    """

    rows: int = 700
    width: int = 520
    classes: int = 3000
    products: float = 1.5e8
    blocks: int = 5
    kinks: int = 1 << 14


WIDE = Limits()


class Drawer:
    """Draws a recipe; `rows` and `width` are those of the hidden values so far."""

    def __init__(self, seed: int, limits: Limits):
        self.rng, self.seed, self.limits, self.products = np.random.default_rng([seed, 7]), seed, limits, 0.0

    def number(self, n: int) -> int:
        return int(self.rng.integers(n))

    def flip(self, chance: float = 0.5) -> bool:
        return bool(self.rng.random() < chance)

    def one_of(self, items) -> Any:
        items = list(items)
        return items[self.number(len(items))]

    def extent(self, most: int, least: int = 1) -> int:
        """Tiny, any, multiples of 8, 16 and 64, and their neighbours."""
        near = lambda unit: unit * (1 + self.number(max(1, most // unit)))
        made = [
            lambda: 1 + self.number(9),
            lambda: 1 + self.number(most),
            lambda: near(8),
            lambda: near(16),
            lambda: near(64),
            lambda: near(self.one_of((8, 16, 64))) + self.one_of((-1, 1)),
        ][self.number(6)]()
        return min(max(made, least), most)

    def activation(self, count: int) -> str:
        """For so many elements."""
        name = self.one_of([*ACTIVATIONS, "gelu", "gelu tanh", "relu", "silu"])
        return "squared relu" if name in KINKED and count < self.limits.kinks else name

    def recipe(self) -> Recipe:
        shape, source = self._shape(), self._source()
        parts: list[Part] = []
        now = shape
        for _ in range(1 + self.number(self.limits.blocks)):
            part = self._part(now)
            if part is not None:
                parts.append(part)
                now = shape_behind(now, part)
        losses = tuple(self._loss(source, shape, now) for _ in range(1 + self.flip(0.2)))
        return Recipe(
            self.seed, source, shape, tuple(parts), losses,
            optimizer=self.one_of(OPTIMIZERS), clip=self.one_of((None, None, 0.05, 1.0)), micro=self.one_of((1, 1, 1, 2)),
            steps=2 + self.flip(0.3), keeps_grads=self.flip(0.7), loss_outside=self.flip(0.2),
            wants_input_grad=source[0] == "numbers" and self.flip(0.2),
        )  # fmt: skip

    def _shape(self) -> tuple[int, ...]:
        width = self.extent(self.limits.width)
        if self.flip(0.4):
            return self.extent(self.limits.rows), width
        batch = self.one_of((1, 2, 3, 4, 5, 8))
        return batch, self.extent(max(1, self.limits.rows // batch)), width

    def _source(self) -> tuple:
        if self.flip(0.4):
            return "ids", self.extent(self.limits.classes), self.flip(), self.flip(0.3)
        return "numbers", self.one_of(("plain", "joined", "transposed", "sliced"))

    def _fits(self, *products: float) -> bool:
        """Whether there is room for products of so many multiplications; takes it."""
        if self.products + sum(products) > self.limits.products:
            return False
        self.products += sum(products)
        return True

    def _dropout(self) -> float:
        return self.one_of((0.0, 0.0, 0.1, 0.5))

    def _part(self, shape: tuple[int, ...]) -> Part | None:
        kind = self.one_of([*BLOCKS, "Dense", "Dense", "Residual", "Residual", "Attention"])
        rows, width, most = math.prod(shape[:-1]), shape[-1], self.limits.width
        arguments: Any = None
        if kind == "Dense":
            out = self.extent(most)
            arguments = (
                (out, self.flip(0.7), self.activation(rows * out), self._dropout())
                if self._fits(rows * width * out)
                else None
            )
        elif kind == "Norm":
            arguments = (self._norm(),)
        elif kind in ("Residual", "Recomputed"):
            out = self.extent(most)
            if self._fits(2 * rows * width * out):
                arguments = (
                    out,
                    self._norm(),
                    self.activation(rows * out),
                    self._dropout(),
                    self.flip(0.3),
                    self.flip(0.7),
                )
        elif kind == "Gated":
            out = self.extent(most // 2)
            arguments = (out, self.activation(rows * out), self.flip()) if self._fits(3 * rows * width * out) else None
        elif kind == "Attention":
            heads, inner = self.one_of((1, 2, 3, 4)), self.extent(96)
            if self._fits(4 * rows * width * heads * inner, 2 * rows * shape[-2] * heads * inner):
                mask = self.one_of(("none", "causal", "random", "added"))
                arguments = heads, inner, mask, self.flip(0.3), self._dropout()
        elif kind == "Mixing":
            out = self.extent(max(1, min(most, self.limits.rows * shape[-2] // rows)))
            arguments = (out, self.activation(rows * out)) if self._fits(rows * width * out) else None
        elif kind == "Batched" and len(shape) == 3:
            left = self.flip()
            out = self.extent(max(1, min(most, self.limits.rows // shape[0] if left else most)))
            arguments = (out, left) if self._fits(rows * width * out) else None
        elif kind == "Tied":
            out = self.extent(most)
            arguments = (out, self.activation(rows * out), self.flip()) if self._fits(2 * rows * width * out) else None
        elif kind == "Repeated":
            times = self.one_of((2, 3))
            arguments = (times, self.activation(rows * width)) if self._fits(times * rows * width * width) else None
        elif kind == "Experts":
            count, out = self.one_of((1, 2, 3)), self.extent(most // 2)
            arguments = (count, out, self.activation(rows * out)) if self._fits(count * rows * width * out) else None
        elif kind == "Looked":
            arguments = (self.extent(max(1, self.limits.rows * shape[-2] // rows)),)
        elif kind == "Stopped":
            arguments = (self.activation(rows * width),) if self._fits(rows * width * width) else None
        elif kind == "Scaled":
            arguments = (self.one_of(("one", "column", "row", "batch")),)
        elif kind == "Turned" and width > 1:
            cut = 1 + self.number(width - 1)
            arguments = cut, self.activation(rows * (width - cut))
        elif kind == "Thinned":
            columns = self.flip()
            extent = shape[-1 if columns else -2]
            arguments = self.number(min(4, extent)), 1 + self.number(2), columns
        elif kind == "Pooled" and len(shape) == 3:
            arguments = ()
        return None if arguments is None else Part(kind, arguments)

    def _norm(self) -> str:
        return self.one_of(("layer", "layer", "rms", "plain layer", "plain rms"))

    def _loss(self, source: tuple, shape: tuple[int, ...], now: tuple[int, ...]) -> Loss:
        rows, width = math.prod(now[:-1]), now[-1]
        kind = self.one_of(("cross entropy", "cross entropy", "cross entropy", "squares", "logits", "mean"))
        if kind == "mean":
            return Loss(kind)
        if kind in ("squares", "logits"):
            out = self.extent(self.limits.width)
            return Loss(kind, out, self.flip()) if self._fits(rows * width * out) else Loss("mean")
        tied = source[0] == "ids" and self.flip()
        classes = source[1] if tied else self.extent(self.limits.classes, 2)
        if classes < 2 or not self._fits(rows * classes * (shape[-1] if tied else width)):
            return Loss("mean")
        reduction = self.one_of(("mean", "mean", "mean", "none"))
        smoothing, ignored = self.one_of((0.0, 0.0, 0.1)), self.one_of((0.0, 0.0, 0.2, 0.9))
        return Loss(kind, classes, not tied and self.flip(), tied, ignored, smoothing, reduction)


def shape_behind(shape: tuple[int, ...], part: Part) -> tuple[int, ...]:
    return BLOCKS[part.kind](shape, *part.arguments).shape


def draw(seed: int, limits: Limits = WIDE) -> Recipe:
    """The recipe of a seed; it has parameters."""
    recipe = Drawer(seed, limits).recipe()
    if not list(Model(recipe).parameters()):
        return replace(recipe, parts=(*recipe.parts, Part("Norm", ("layer",))))
    return recipe


# -------------------------------------------------------------------- smaller ones


def smaller(recipe: Recipe) -> Iterator[Recipe]:
    """Simpler recipes, for the search of the least one that fails."""
    for i in range(len(recipe.parts)):
        yield replace(recipe, parts=(*recipe.parts[:i], *recipe.parts[i + 1 :]))
    if len(recipe.losses) > 1:
        yield from (replace(recipe, losses=(loss,)) for loss in recipe.losses)
    plain = {"steps": 1, "micro": 1, "clip": None, "optimizer": "sgd", "keeps_grads": True, "loss_outside": False,
             "wants_input_grad": False}  # fmt: skip
    for name, value in plain.items():
        if getattr(recipe, name) != value:
            yield replace(recipe, **{name: value})
    if recipe.source[0] == "numbers" and recipe.source[1] != "plain":
        yield replace(recipe, source=("numbers", "plain"))
    for i, extent in enumerate(recipe.shape):
        if extent > 1:
            yield replace(recipe, shape=(*recipe.shape[:i], extent // 2, *recipe.shape[i + 1 :]))
    for i, part in enumerate(recipe.parts):
        for j, value in enumerate(part.arguments):
            less = _less(value)
            if less != value:
                made = Part(part.kind, (*part.arguments[:j], less, *part.arguments[j + 1 :]))
                yield replace(recipe, parts=(*recipe.parts[:i], made, *recipe.parts[i + 1 :]))
    for i, loss in enumerate(recipe.losses):
        for change in ({"width": max(1, loss.width // 2)}, {"bias": False}, {"ignored": 0.0}, {"smoothing": 0.0}):
            made = loss._replace(**change)
            if made != loss and not (loss.tied and "width" in change):
                yield replace(recipe, losses=(*recipe.losses[:i], made, *recipe.losses[i + 1 :]))


def _less(value):
    if isinstance(value, bool):
        return False
    if isinstance(value, int):
        return max(1, value // 2)
    return 0.0 if isinstance(value, float) else "none" if value in ACTIVATIONS else value


def smallest(recipe: Recipe, fails: Callable[[Recipe], bool], budget: int = 60) -> Recipe:
    """A recipe that `fails(recipe)` as this one does, and none of whose smaller ones does; so many are tried."""
    for _ in range(budget):
        for candidate in smaller(recipe):
            if _is_one(candidate) and fails(candidate):
                recipe = candidate
                break
        else:
            return recipe
    return recipe


def _is_one(recipe: Recipe) -> bool:
    with contextlib.suppress(Exception):
        return bool(list(Model(recipe).parameters()))
    return False
