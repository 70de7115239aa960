"""map kernels against NumPy: layouts, dtypes, tails, in-place updates, constants."""

import numpy as np
import pytest
from cpu_kernels import Body, random, region, run

ADD = region("%a = arith.addf %i0, %i1 : f32", "%a : f32")


def rng():
    return np.random.default_rng(0)


@pytest.mark.parametrize("shape", [(), (1,), (5,), (16,), (17,), (1000,), (3, 4), (7, 65), (2, 3, 33), (0,), (3, 0)])
def test_add_of_any_shape(shape):
    body = Body("map")
    x, y = body.operand(*shape), body.operand(*shape)
    loops = ", ".join(f"d{d}" for d in range(len(shape)))
    body.result(body.map([(x, loops), (y, loops)], shape, ADD))
    a, b = random(rng(), shape, "f32"), random(rng(), shape, "f32")
    np.testing.assert_array_equal(run(body, a, b)[0], a + b)
