"""How far a training may lie from float64: as far as rounding carries it, measured on the training itself.

The judge is the eager training in float64. Beside it stand samples: the same in float64 with every operand and result
of a product moved at random by the unit roundoff of the precision (2^-9 for bf16, 2^-11 for TF32; for fp32 those of
every operation, by 2^-24 sqrt(n) where it adds n numbers, one after the other at worst), and eager ones in float32. A
result may be FACTOR times as far from the judge as the farthest sample, in the 2-norm and in the largest element; and a
unit roundoff of its own size, for what is stored.

Of few numbers all samples may lie close by luck: for the norms of n independent normal errors, and the largest of four
samples, a factor 4 (36/n^2 where that is more) is passed by less than one in a million. Errors of a narrow network are
not independent: before a result is complained about, more samples are taken.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator

import numpy as np
from random_layers import EAGER, Recipe, train

import blutrain as bt
from blutrain import config
from blutrain.tensor.primitive import TABLE

UNIT = {"bf16": 2.0**-9, "tf32": 2.0**-11, "fp32": 2.0**-24, None: 2.0**-24}
PRODUCTS = ("matmul", "linear", "linear_backward", "scaled_dot_product_attention")
COMPUTING = ("elementwise", "reduce", "contract", "composite", "scatter")
FACTOR, FACTOR_OF_LARGEST = 4.0, 8.0
FEW, MANY = 3, 12


@contextlib.contextmanager
def shaken(precision: str | None, seed: int) -> Iterator[None]:
    """Inside, operations in float64 round as those of the precision do, at random."""
    unit, rng = UNIT[precision], np.random.default_rng(seed)
    is_full = unit == UNIT[None]
    prims = [p for p in TABLE.values() if (p.kind in COMPUTING if is_full else p.name in PRODUCTS)]
    before = [(p, p.eager, p.prepare) for p in prims]
    for prim, _, _ in before:
        _set(prim, _moved(prim, unit, rng, is_full), None)
    try:
        yield
    finally:
        for record in before:
            _set(*record)


def _set(prim, eager, prepare) -> None:
    object.__setattr__(prim, "eager", eager)
    object.__setattr__(prim, "prepare", prepare)
    prim.plan.cache_clear()


def _moved(prim, unit: float, rng: np.random.Generator, is_full: bool):
    eager = prim.eager

    def move(xp, x, by: float):
        if getattr(x, "dtype", None) != np.float64 or not x.size:
            return x
        return x * (1.0 + by * xp.asarray(rng.uniform(-1, 1, x.shape)))

    def rule(xp, *arrays, **attrs):
        by = unit
        if is_full:
            by *= math.sqrt(_summed(prim, arrays, eager(xp, *arrays, **attrs)))
        made = eager(xp, *(move(xp, a, by) for a in arrays), **attrs)
        return tuple(move(xp, m, by) for m in made) if isinstance(made, tuple) else move(xp, made, by)

    return rule


def _summed(prim, arrays, made) -> float:
    """How many numbers a result adds up, at most."""
    if prim.kind == "elementwise":
        return 1.0
    given = [a for a in arrays if getattr(a, "ndim", 0)]
    largest = max((a.size for a in given), default=1)
    results = made if isinstance(made, tuple) else (made,)
    rows = max((a.shape[-1] for a in given), default=1)
    return max(1.0, rows, *(largest / r.size for r in results if getattr(r, "size", 0)))


def samples(
    recipe: Recipe, device: str, precision: str | None, seeds: range = range(FEW)
) -> list[dict[str, np.ndarray]]:
    """Trainings as right as the precision lets them be: of these seeds, and an eager one on the device."""
    found = []
    for seed in seeds:
        with shaken(precision, seed):
            found.append(train(recipe, "cpu", bt.float64))
    if precision != "bf16":
        with config.scope(matmul_precision="tf32" if precision == "tf32" else "f32"):
            found.append(train(recipe, device, bt.float32))
    return found


def complaints(
    got: dict[str, np.ndarray], judge: dict[str, np.ndarray], beside: list[dict[str, np.ndarray]], precision: str | None
) -> list[str]:
    """What lies farther from the judge than rounding carries it, worst first."""
    assert got.keys() == judge.keys(), got.keys() ^ judge.keys()
    found = []
    for name, wanted in judge.items():
        assert got[name].shape == wanted.shape, name
        if not wanted.size:
            continue
        for kind, norm, factor in (("norm", np.linalg.norm, FACTOR), ("largest", _largest, FACTOR_OF_LARGEST)):
            errors = [float(norm((x[name].astype(np.float64) - wanted).reshape(-1))) for x in (got, *beside)]
            size = float(norm(wanted.reshape(-1)))
            count = max(1.0, 9.0 / wanted.size**2)
            size = max(size, 1.0) if name.startswith("loss") else size  # a difference of numbers of that size
            allowed = factor * count * max(errors[1:]) + _stored(name, precision) * size + 1e-12
            if not errors[0] <= allowed:
                found.append((errors[0] / allowed, f"{name} {wanted.shape}: {kind} of the error {errors[0]:.2e} of {size:.2e}, "
                              f"allowed {allowed:.2e}; samples {' '.join(f'{e:.1e}' for e in errors[1:])}"))  # fmt: skip
    return [text for _, text in sorted(found, key=lambda entry: -entry[0])]


def _stored(name: str, precision: str | None) -> float:
    """To what part of its size a result is rounded: parameters and moments stay in float32, over an update's operations."""
    return 4 * UNIT["fp32"] if "behind" in name or name.startswith("state") else UNIT[precision]


def judged(recipe: Recipe, device: str, precision: str | None, got: dict[str, np.ndarray] | None = None) -> list[str]:
    """The complaints about a compiled training on `device`; what it gave may be given."""
    got = train(recipe, device, bt.float32, precision) if got is None else got
    judge = train(recipe, "cpu", bt.float64, EAGER)
    beside = samples(recipe, device, precision)
    if complaints(got, judge, beside, precision):
        beside += samples(recipe, "cpu", precision, range(FEW, MANY))
    return complaints(got, judge, beside, precision)


def _largest(x: np.ndarray) -> float:
    return np.abs(x).max()
