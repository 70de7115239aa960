"""Random numbers on a GPU are the CPU's; updates of many parameters in one launch are those of the primitives."""

from __future__ import annotations

import numpy as np
import pytest
from composite_cases import CASES, Source
from gpu import needs_gpu

import blutrain as bt
from blutrain.tensor import dispatch
from blutrain.tensor.generator import Generator
from blutrain.tensor.ops import composite, random
from blutrain.tensor.ops.composite.update import NUM_TENSORS
from blutrain.tensor.primitive import TABLE

pytestmark = needs_gpu
GPU = bt.device("cuda:0")
CPU = bt.device("cpu")


def test_bits_are_the_same():
    for shape in ((), (1,), (5, 7), (100_003,)):
        attrs = {"shape": shape, "site": 3}
        found = dispatch.apply(random.RANDOM_BITS, 2**63 + 5, 2**40, device=GPU, **attrs)
        wanted = dispatch.apply(random.RANDOM_BITS, 2**63 + 5, 2**40, device=CPU, **attrs)
        np.testing.assert_array_equal(found.cpu().numpy(), wanted.numpy())


@pytest.mark.parametrize("p", [0.0, 0.1, 0.5, 1.0])
def test_dropout_masks_are_the_same(p):
    x = np.random.default_rng(0).standard_normal((33, 77)).astype(np.float32)
    found = composite.dropout(bt.tensor(x, device=GPU), p, 5, 6, site=1).cpu().numpy()
    np.testing.assert_array_equal(found, composite.dropout(bt.tensor(x), p, 5, 6, site=1).numpy())


def test_distributions_are_the_same():
    for make in (bt.rand, bt.randn):
        for dtype in (bt.float32, bt.float64, bt.bfloat16):
            both = [make(1000, generator=Generator(3), dtype=dtype, device=d).cpu().to(bt.float64) for d in (GPU, CPU)]
            np.testing.assert_allclose(
                both[0].numpy(), both[1].numpy(), rtol=1e-5, atol=1e-2 if dtype.itemsize == 2 else 1e-6
            )
    both = [bt.randint(-4, 9, (1000,), generator=Generator(3), device=d).cpu().numpy() for d in (GPU, CPU)]
    np.testing.assert_array_equal(*both)
    both = [bt.randperm(1000, generator=Generator(3), device=d).cpu().numpy() for d in (GPU, CPU)]
    np.testing.assert_array_equal(*both)


SIZES = [(5,), (), (0,), (16384,), (16385,), (300, 200), (7, 3)]


@pytest.mark.parametrize("case", [c for c in CASES if c.name in NUM_TENSORS], ids=lambda c: c.name)
@pytest.mark.parametrize("dtype", [bt.float32, bt.float64, bt.bfloat16])
def test_many_parameters(case, dtype):
    source, count = Source(np.float64), NUM_TENSORS[case.name]
    scalars = case.operands(source)[count:]
    rows = []
    for i, shape in enumerate(SIZES):
        p, g = (bt.tensor(source.floats(*shape), dtype=dtype) for _ in range(2))
        state_dtype = bt.float32 if dtype is bt.bfloat16 and i % 2 else dtype  # two combinations of types
        state = [bt.tensor(np.abs(source.floats(*shape)), dtype=state_dtype) for _ in range(count - 2)]
        rows.append([p, g, *state])
    ours = [[t.to(GPU) for t in row] for row in rows]
    ours[-1][0] = ours[-1][0].t().contiguous().t()  # a parameter that is not contiguous is written in its own memory
    memory = ours[-1][0].data_ptr()
    for params in (rows, ours):
        states = [tuple(row[2:]) for row in params]
        composite.update_in_place(
            case.name, [r[0] for r in params], [r[1] for r in params], states, scalars, **case.attrs
        )
    assert ours[-1][0].data_ptr() == memory
    tolerance = {8: 1e-12, 4: 2e-6, 2: 1e-2}[dtype.itemsize]
    for wanted, found in zip(rows, ours):
        for a, b in zip(wanted, found):
            a, b = a.to(bt.float64).numpy(), b.cpu().to(bt.float64).numpy()
            assert np.linalg.norm(a - b) <= tolerance * max(np.linalg.norm(a), 1e-30)


def test_in_place_gives_the_bits_of_the_pure_update():
    source = Source(np.float32)
    p, g, m, v = (bt.tensor(np.abs(source.floats(5000)), device=GPU) for _ in range(4))
    scalars = (1e-2, 0.9, 0.999, 1e-8, 0.1, 0.1, 0.001)
    pure = dispatch.apply(TABLE["adamw"], p, g, m, v, *scalars)
    composite.update_in_place("adamw", [p], [g], [(m, v)], scalars)
    for a, b in zip((p, m, v), pure):
        assert a.cpu().numpy().tobytes() == b.cpu().numpy().tobytes()
