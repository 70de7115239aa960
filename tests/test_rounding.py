"""A cast to a narrow float rounds wherever it stands: inside a compiled kernel as between eager operations."""

from __future__ import annotations

import numpy as np
import pytest

import blutrain as bt
from blutrain import nn


class Quantized(nn.Module):
    """Weights and their products go through a narrow dtype and back, as where quantization is simulated."""

    def __init__(self, wide, narrow):
        super().__init__()
        self.narrow = narrow
        self.weight = nn.Parameter(bt.from_numpy(np.linspace(-1.1, 1.3, 24).astype(wide.numpy).reshape(4, 6)))

    def forward(self, x):
        there_and_back = (x * self.weight).to(self.narrow).to(x.dtype)
        return ((there_and_back * x).to(self.narrow).to(x.dtype) - there_and_back).square().sum()


@pytest.mark.parametrize("wide", [bt.float32, bt.float64], ids=str)
@pytest.mark.parametrize("narrow", [bt.float16, bt.bfloat16], ids=str)
def test_casts_there_and_back_round(wide, narrow):
    x = bt.from_numpy((np.arange(24).reshape(4, 6) / 7.3 - 1.5).astype(wide.numpy))
    seen = []
    for is_compiled in (False, True):
        model = Quantized(wide, narrow)
        if is_compiled:
            model.compile(strict=True, first_step="compiled")
        optimizer = bt.optim.SGD(model.parameters(), lr=0.1)
        losses = []
        for _ in range(3):
            loss = model(x)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        seen.append((losses, model.weight.detach().numpy().copy()))
    (eager, eager_weight), (compiled, compiled_weight) = seen
    # Unrounded products would be off by the narrow dtype's steps, 1e-3 to 1e-2.
    np.testing.assert_allclose(compiled, eager, rtol=1e-6)
    np.testing.assert_allclose(compiled_weight, eager_weight, rtol=1e-6, atol=1e-7)
