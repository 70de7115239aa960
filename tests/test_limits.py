"""Values at the ends of their range, rows without elements or with infinities: eager against compiled, gradients too.

All cases are one program. What each result should be is tested where its operation is (test_composite_limits.py, ...).
"""

from __future__ import annotations

import math

import numpy as np
import pytest

import blutrain as bt
from blutrain import nn, nova
from blutrain.nn import functional as F

INF, NAN = math.inf, math.nan
ENDS = [0, 1, -1, 10, -10, 50, -50, 1e4, -1e4, INF, NAN, 1e-30, -0.0, 3e38, -3e38, -INF]
ROWS = [[-INF, 0, 0], [-INF, -INF, -INF], [INF, 0, 1], [1e14, 1e14, 0], [NAN, 1, 2], [1, 2, 3]]
TIES = [[1, 5, 5], [NAN, 9, NAN], [2, 2, 2], [1, 1, 5]]
UNARY = (
    "exp expm1 log log1p log2 sqrt rsqrt reciprocal sin cos tan atan erf abs square floor ceil round trunc sign neg "
    "tanh sigmoid"
).split()


def normal(*shape, scale=1.0, offset=0.0):
    return np.random.default_rng(0).standard_normal(shape) * scale + offset


def masked_rows():
    logits = normal(4, 3)
    logits[1] = NAN
    return logits


CASES = {
    **{name: (getattr(bt.Tensor, name), ENDS) for name in UNARY},
    **{name: (getattr(F, name), ENDS) for name in ("relu", "gelu", "silu")},
    "gelu_tanh": (lambda x: F.gelu(x, approximate="tanh"), ENDS),
    "powers": (lambda x: x**2 + x**3 + x**0, ENDS),
    "square roots as powers": (lambda x: x**0.5, ENDS),
    "division by zero": (lambda x: x / 0.0, ENDS),
    "remainder": (lambda x: x % 2.5, ENDS),
    "clamp": (lambda x: x.clamp(-1, 1), ENDS),
    "maximum": (lambda x: x.maximum(0.0), ENDS),
    "where": (lambda x: bt.where(x > 0, x.log(), 0.0), ENDS),
    "softmax": (lambda x: F.softmax(x, 1), ROWS),
    "log_softmax": (lambda x: F.log_softmax(x, 1), ROWS),
    "logsumexp": (lambda x: x.logsumexp(1), ROWS),
    "amax": (lambda x: x.amax(1), ROWS),
    "cross_entropy of infinities": (
        lambda x: F.cross_entropy(x, bt.zeros(6, dtype=bt.int64), reduction="none"),
        ROWS,
    ),
    "argmax": (lambda x: x.argmax(1) * x.detach().amax() + x.sum(), TIES),
    "argmin": (lambda x: x.argmin(1) * x.detach().amin() + x.sum(), TIES),
    "max": (lambda x: x.max(1).values, [[1, 5, 5], [2, 2, 2]]),
    "layer_norm of large rows": (lambda x: F.layer_norm(x, (8,)), normal(4, 8, scale=1e37)),
    "layer_norm with an offset": (lambda x: F.layer_norm(x, (256,)), normal(4, 256, offset=1e4)),
    "layer_norm of constants": (lambda x: F.layer_norm(x, (8,)), np.full((2, 8), 8.5e37)),
    "layer_norm fused with what follows": (lambda x: F.relu(F.layer_norm(x, (8,))) + x, normal(4, 8)),
    "rms_norm of large rows": (lambda x: F.rms_norm(x, (8,)), normal(4, 8, scale=1e18)),
    "ignored rows": (
        lambda x: F.cross_entropy(x, bt.arange(4) * bt.arange(4) % 3 - (bt.arange(4) == 1) * 101, label_smoothing=0.2),
        masked_rows(),
    ),
    "all rows ignored": (lambda x: F.cross_entropy(x, bt.full((2,), -100)), normal(2, 3)),
    "large logits": (lambda x: F.cross_entropy(x, bt.arange(2)), normal(2, 3, scale=1e14)),
    "variance with an offset": (lambda x: x.var(1), normal(3, 1000, offset=1e4)),
    "deviation of constants": (lambda x: x.std(1), np.ones((3, 4))),
    "norm of zeros": (lambda x: x.norm(dim=1), np.zeros((3, 4))),
    "product with zeros": (lambda x: x.prod(1), [[0, 2, 3], [0, 0, 4], [1, 2, 3]]),
    "mean of nothing": (lambda x: x.mean() + x.sum(), np.zeros((0, 3))),
    "sum of nothing": (lambda x: x.sum(0), np.zeros((0, 3))),
    "layer_norm of nothing": (lambda x: F.layer_norm(x, (3,)), np.zeros((0, 3))),
}


class All(nn.Module):
    def __init__(self):
        super().__init__()
        self.unused = nn.Parameter(bt.ones(1))

    def forward(self, *inputs):
        return tuple([function(x) for (function, _), x in zip(CASES.values(), inputs, strict=True)])


def results(compiled: bool, dtype) -> dict[str, list[np.ndarray]]:
    """Value and gradient of each case, by the program's second run where compiled."""
    model = All()
    if compiled:
        model.compile(strict=True)
    for _ in range(3 if compiled else 1):
        inputs = [bt.tensor(np.array(values, np.float32)).to(dtype).requires_grad_() for _, values in CASES.values()]
        outputs = model(*inputs)
        grads = bt.autograd.grad(outputs, inputs, [bt.full_like(y, 0.75) for y in outputs])
        found = [[t.detach().float().numpy().copy() for t in pair] for pair in zip(outputs, grads)]
    nova.flush()
    return dict(zip(CASES, found))


@pytest.mark.parametrize(("dtype", "tolerance"), [(bt.float32, 2e-5), (bt.bfloat16, 2e-2)])
def test_eager_and_compiled_agree(dtype, tolerance):
    eager, compiled = results(False, dtype), results(True, dtype)
    for name in CASES:
        for what, expected, got in zip(("value", "gradient"), eager[name], compiled[name]):
            np.testing.assert_allclose(
                got, expected, rtol=tolerance, atol=tolerance * 1e-2, err_msg=f"{what} of {name}"
            )


class Chain(nn.Module):
    """Many operations, each on the result of the one before."""

    def __init__(self, length: int):
        super().__init__()
        self.length, self.scale = length, nn.Parameter(bt.ones(3))

    def forward(self, x):
        for _ in range(self.length // 2):
            x = x * self.scale + 0.001
        return x.sum()


@pytest.mark.parametrize("grad", [True, False])
def test_long_chains_compile(grad):
    """No stack overflows, and compiling takes seconds: kernels are bounded (mlx#946)."""
    seen = []
    for compiled in (False, True):
        model = Chain(400 if grad else 2000)
        optimizer = bt.optim.SGD(model.parameters(), lr=1e-6)
        if compiled:
            model.compile(strict=True)
        for _ in range(3):
            with bt.set_grad_enabled(grad):
                loss = model(bt.ones(3))
            if grad:
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
            seen.append(loss.item())
    np.testing.assert_allclose(seen[3:], seen[:3], rtol=1e-5)


def test_ten_thousand_operations_are_recorded(interpreted):
    model = Chain(10_000)
    model.compile(strict=True)
    for _ in range(2):
        loss = model(bt.ones(3))
        loss.backward()
        assert loss.item() == pytest.approx(3 * 6, rel=1e-3)
