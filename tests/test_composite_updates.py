"""Optimizer updates: against their papers' formulas in float64, in place against pure, numbers against 0-d tensors."""

from __future__ import annotations

import numpy as np
import pytest
from composite_cases import CASES, Source

import blutrain as bt
from blutrain.tensor import dispatch
from blutrain.tensor.ops import composite
from blutrain.tensor.ops.composite.update import NUM_TENSORS
from blutrain.tensor.primitive import TABLE
from blutrain.tensor.tensor import Tensor, write_epoch

UPDATES = [case for case in CASES if case.name in NUM_TENSORS]


def test_adamw_follows_its_definition():
    rng = np.random.default_rng(0)
    p, m, v = rng.standard_normal(50), np.zeros(50), np.zeros(50)
    state = [bt.tensor(a) for a in (p, m, v)]
    lr, b1, b2, eps, decay = 0.1, 0.9, 0.99, 1e-3, 0.2
    for t in range(1, 6):
        g = rng.standard_normal(50)
        p = p * (1 - lr * decay)
        m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g * g
        p = p - lr * (m / (1 - b1**t)) / (np.sqrt(v / (1 - b2**t)) + eps)
        state = composite.adamw(state[0], bt.tensor(g), *state[1:], lr, b1, b2, eps, decay, 1 - b1**t, 1 - b2**t)
        for found, wanted in zip(state, (p, m, v)):
            np.testing.assert_allclose(found.numpy(), wanted, rtol=1e-12)


def test_sgd_with_momentum_follows_pytorch():
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    for nesterov in (False, True):
        start = rng.standard_normal(20)
        theirs = torch.tensor(start, requires_grad=True)
        optimizer = torch.optim.SGD([theirs], 0.1, momentum=0.9, weight_decay=0.01, nesterov=nesterov)
        p, buffer = bt.tensor(start), bt.zeros(20, dtype=bt.float64)
        for _ in range(4):
            g = rng.standard_normal(20)
            theirs.grad = torch.tensor(g)
            optimizer.step()
            p, buffer = composite.sgd_momentum(p, bt.tensor(g), buffer, 0.1, 0.9, 0.0, 0.01, nesterov)
        np.testing.assert_allclose(p.numpy(), theirs.detach().numpy(), rtol=1e-12)


def split(case, dtype, device=None):
    """(tensors, scalars) of one update."""
    operands = [bt.tensor(x, device=device) if isinstance(x, np.ndarray) else x for x in case.operands(Source(dtype))]
    return operands[: NUM_TENSORS[case.name]], operands[NUM_TENSORS[case.name] :]


@pytest.mark.parametrize("case", UPDATES, ids=lambda c: c.name)
@pytest.mark.parametrize("strided", [False, True])
def test_in_place_gives_the_bits_of_the_pure_update(case, strided):
    tensors, scalars = split(case, np.float32)
    if strided:
        tensors = [x.t().contiguous().t() for x in tensors]
    pure = dispatch.apply(TABLE[case.name], *tensors, *scalars, **case.attrs)
    p, g, *state = [x.clone() if not strided else x.t().clone().t() for x in tensors]
    assert p.is_contiguous() is not strided
    memory, before = p.data_ptr(), write_epoch.value
    composite.update_in_place(
        case.name, [p, p.clone()], [g, g], [tuple(state), tuple(s.clone() for s in state)], scalars, **case.attrs
    )
    assert p.data_ptr() == memory and p._versions().value > before
    for found, wanted in zip((p, *state), pure if isinstance(pure, tuple) else (pure,), strict=True):
        assert found.numpy().tobytes() == wanted.numpy().tobytes()


@pytest.mark.parametrize("case", UPDATES, ids=lambda c: c.name)
def test_scalars_as_tensors(case):
    """A compiled step hands the scalars in as 0-d float64 tensors: the same numbers come out."""
    tensors, scalars = split(case, np.float32)
    as_numbers = TABLE[case.name].compose(*tensors, *scalars, **case.attrs)
    as_tensors = TABLE[case.name].compose(*tensors, *[bt.tensor(s, dtype=bt.float64) for s in scalars], **case.attrs)
    for a, b in zip(*[r if isinstance(r, tuple) else (r,) for r in (as_numbers, as_tensors)], strict=True):
        assert a.dtype is b.dtype is bt.float32
        assert a.numpy().tobytes() == b.numpy().tobytes()


def test_narrow_parameters_keep_wide_moments():
    p, g = bt.ones(8, dtype=bt.bfloat16), bt.ones(8, dtype=bt.bfloat16)
    m, v = bt.zeros(8), bt.zeros(8)
    composite.update_in_place("adamw", [p], [g], [(m, v)], (0.01, 0.9, 0.999, 1e-8, 0.0, 0.1, 0.001))
    assert m.numpy()[0] == np.float32(0.1) and p.dtype is bt.bfloat16 and isinstance(p, Tensor)


def test_bad_shapes_change_nothing():
    p, q = bt.ones(3), bt.ones(3)
    with pytest.raises(ValueError, match="sgd: gradient and state have the parameter's shape"):
        composite.update_in_place("sgd", [p, q], [bt.ones(3), bt.ones(4)], [(), ()], (0.1, 0.0))
    np.testing.assert_array_equal(p.numpy(), 1)
