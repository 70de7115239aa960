"""Kernels whose operands or results have more than 2^31 elements, on a device with the memory for them.

Offsets beyond 32 bits show at the end of such arrays and at the multiples of 2^31 and 2^32 elements and bytes: the
expectation is computed there, from the same operands, and the whole is compared with itself where that says something.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import ampere_support
import fire_cases
import hopper_kernels
import numpy as np
import pytest
import row_bodies
from cpu_kernels import Body, region
from gpu import is_there, needs_gpu
from gpu_device import OnDevice
from test_gpu_hopper_large import column_sums

pytestmark = needs_gpu
COLUMNS = 1024
ROWS = (1 << 21) + 3  # 2^31 + 3072 elements


@pytest.fixture(autouse=True)
def _memory():
    """Room for the largest case, freed behind it: other tests share the device."""
    if not is_there():
        return
    import cupy

    if cupy.cuda.runtime.memGetInfo()[0] < 40 << 30:
        pytest.skip("needs 40 GiB of free memory")
    yield
    cupy.get_default_memory_pool().free_all_blocks()


# CuPy's own kernels are not all right beyond 2^31 elements: here they see a part at a time.
def parts(count: int, step: int = 1 << 26) -> Iterator[slice]:
    return (slice(start, min(count, start + step)) for start in range(0, count, step))


def filled(count: int, dtype, content: Callable) -> Any:
    """An array of `content(numbers of the elements)`."""
    import cupy

    made = cupy.empty(count, dtype)
    for part in parts(count):
        made[part] = content(cupy.arange(part.start, part.stop, dtype=cupy.uint64))
    return made


def scattered(number) -> Any:
    """Numbers of 24 bits that look random, of the numbers of elements."""
    return (number * 0x1E3779B97F4A7C15 >> 40).astype("u4")


def normal(count: int) -> Any:
    """f32 numbers around 0, as good as different in each row."""
    return filled(count, "f4", lambda i: (scattered(i).astype("f4") / (1 << 23) - 1) * 1.7)


def all_equal(got, want: Callable) -> bool:
    """Is every element what `want(numbers of the elements)` says."""
    import cupy

    return all(
        bool((got[part] == want(cupy.arange(part.start, part.stop, dtype=cupy.uint64))).all())
        for part in parts(got.size)
    )


def as_bytes(array) -> Any:
    import cupy

    return array.reshape(-1).view(cupy.uint8)


def edges(rows: int, width: int, count: int = 8) -> list[slice]:
    """Rows of `width` elements where 32-bit arithmetic on elements, bytes or signed numbers goes wrong; both ends."""
    marks = [0, rows - count, *((1 << bits) // width - count // 2 for bits in range(28, 33))]
    return [slice(mark, mark + count) for mark in marks if 0 <= mark <= rows - count]


def test_map():
    """y = -x in bf16, 2^32 + 5 elements."""
    import cupy

    count = (1 << 32) + 5
    made = Body("map")
    x = made.operand(count, dtype="bf16")
    text = region("%w = arith.extf %i0 : bf16 to f32", "%n = arith.negf %w : f32", "%r = arith.truncf %n : f32 to bf16",
                  "%r : bf16")  # fmt: skip
    made.result(made.map([(x, "d0")], (count,), text, "bf16"))
    bits = lambda i: (scattered(i) & 0x7F7F).astype("u2")  # no NaN, no infinity
    (got,) = OnDevice(fire_cases.body(lambda: made)().plan()).run([as_bytes(filled(count, "u2", bits))])
    assert all_equal(got.view(cupy.uint16), lambda i: bits(i) ^ 0x8000)


def test_map_that_divides_its_index():
    """x + row[j]: the column of an element comes from a division of a 64-bit number."""
    import cupy

    made = Body("map")
    x, row = made.operand(ROWS, COLUMNS - 1, dtype="f32"), made.operand(COLUMNS - 1)
    add = region("%a = arith.addf %i0, %i1 : f32", "%a : f32")
    made.result(made.map([(x, "d0, d1"), (row, "d1")], x.shape, add), 0)
    x = filled(ROWS * (COLUMNS - 1), "f4", lambda i: (scattered(i) & 0xFFF).astype("f4"))
    row = cupy.arange(COLUMNS - 1, dtype=cupy.float32)
    (got,) = OnDevice(fire_cases.body(lambda: made)().plan()).run([as_bytes(x), as_bytes(row)])
    want = lambda i: (scattered(i) & 0xFFF).astype("f4") + (i % (COLUMNS - 1)).astype("f4")
    assert all_equal(got.view(cupy.float32), want)


def test_turned():
    """A transposed copy of 2^31 + elements through shared memory."""
    import cupy

    made = Body("map")
    x = made.operand(COLUMNS, ROWS, dtype="bf16")
    text = region("%w = arith.extf %i0 : bf16 to f32", "%n = arith.negf %w : f32", "%r = arith.truncf %n : f32 to bf16",
                  "%r : bf16")  # fmt: skip
    made.result(made.map([(x, "d1, d0")], (ROWS, COLUMNS), text, "bf16"))
    bits = lambda i: (scattered(i) & 0x7F7F).astype("u2")
    x = filled(ROWS * COLUMNS, "u2", bits)
    (got,) = OnDevice(fire_cases.body(lambda: made)().plan()).run([as_bytes(x)])
    assert all_equal(got.view(cupy.uint16), lambda i: bits(i % COLUMNS * ROWS + i // COLUMNS) ^ 0x8000)


@pytest.mark.parametrize("name", ["layer_norm", "softmax"])
def test_rows(name):
    import cupy

    case = fire_cases.body(getattr(row_bodies, name), ROWS, COLUMNS)()
    x = normal(ROWS * COLUMNS)
    rest = [cupy.asarray(a) for a in case_arrays(case.operands[1:])]
    y = OnDevice(case.plan()).run([as_bytes(x), *map(as_bytes, rest)])[0].view(cupy.float32).reshape(ROWS, COLUMNS)
    x = x.reshape(ROWS, COLUMNS)
    for at in edges(ROWS, COLUMNS):
        a = cupy.asnumpy(x[at]).astype(np.float64)
        if name == "softmax":
            e = np.exp(a - a.max(1, keepdims=True))
            want = e / e.sum(1, keepdims=True)
        else:
            w, b = (cupy.asnumpy(v).astype(np.float64) for v in rest)
            want = (a - a.mean(1, keepdims=True)) / np.sqrt(a.var(1, keepdims=True) + 1e-5) * w + b
        np.testing.assert_allclose(cupy.asnumpy(y[at]), want, rtol=2e-5, atol=2e-5)
    assert all(bool(cupy.isfinite(y[part]).all()) for part in parts(ROWS, 1 << 16))


def test_columns_and_all():
    """Sums over 2^31 + elements, by columns and whole."""
    import cupy

    case = fire_cases.body(fire_cases.column_sums, ROWS, COLUMNS)()
    g, x = filled(ROWS * COLUMNS, "f4", lambda i: 2.0), normal(ROWS * COLUMNS)
    product, sums = OnDevice(case.plan()).run([as_bytes(g), as_bytes(x)])
    product, x = product.view(cupy.float32), x.reshape(ROWS, COLUMNS)
    assert all(bool((product[part] == 2 * x.reshape(-1)[part]).all()) for part in parts(x.size))
    want = 2 * sum(x[part].sum(0, dtype=cupy.float64) for part in parts(ROWS, 1 << 16))
    np.testing.assert_allclose(cupy.asnumpy(sums.view(cupy.float32)), cupy.asnumpy(want), rtol=1e-4, atol=5.0)
    del product, sums, g
    case = fire_cases.body(fire_cases.norm, ROWS, COLUMNS)()
    (root,) = OnDevice(case.plan()).run([as_bytes(x)])
    exact = np.sqrt(float(sum((x[part] * x[part]).sum(dtype=cupy.float64) for part in parts(ROWS, 1 << 16))))
    assert abs(float(root.view(cupy.float32)[0]) / exact - 1) < 1e-4


def test_gather_and_scatter():
    """Rows far into a table of 2^31 + elements, and 2^31 + elements of rows; then added back to their places."""
    import cupy

    table = normal(ROWS * COLUMNS)
    ids = cupy.asarray(np.array([0, ROWS - 1, 1 << 20, (1 << 20) - 1, ROWS - 2, 5, 1 << 19, ROWS - 1]))
    case = fire_cases.body(fire_cases.embedding, ROWS, COLUMNS, 8)()
    nothing = cupy.zeros((8, COLUMNS), cupy.float32)
    (rows,) = OnDevice(case.plan()).run([as_bytes(table), as_bytes(ids), as_bytes(nothing)])
    assert bool((rows.view(cupy.float32).reshape(8, COLUMNS) == table.reshape(ROWS, COLUMNS)[ids]).all())
    small = normal(500 * COLUMNS)
    many = cupy.arange(ROWS, dtype=cupy.int64) * 7919 % 500
    del table
    case = fire_cases.body(fire_cases.embedding, 500, COLUMNS, ROWS)()
    zeros = filled(ROWS * COLUMNS, "f4", lambda i: 0.0)
    (wide,) = OnDevice(case.plan()).run([as_bytes(small), as_bytes(many), as_bytes(zeros)])
    wide, rows = wide.view(cupy.float32).reshape(ROWS, COLUMNS), small.reshape(500, COLUMNS)
    assert all(bool((wide[part] == rows[many[part]]).all()) for part in parts(ROWS, 1 << 16))
    del zeros, rows
    case = fire_cases.body(fire_cases.scatter, 500, COLUMNS, ROWS)()
    (back,) = OnDevice(case.plan()).run([as_bytes(many), as_bytes(wide)])
    count = cupy.bincount(many, minlength=500).astype(cupy.float32)[:, None]
    want = small.reshape(500, COLUMNS) * count
    assert bool((cupy.abs(back.view(cupy.float32).reshape(500, COLUMNS) - want) <= 2e-3 * cupy.abs(want) + 1e-3).all())


@pytest.mark.parametrize("family", ["hopper", "ampere"])
@pytest.mark.parametrize("m, n, k", [(ROWS - 3 + 8, 64, COLUMNS), (ROWS - 3 + 8, COLUMNS, 64)], ids=["A", "C"])
def test_products(family, m, n, k):
    """A factor, or a result, of 2^31 + elements."""
    import cupy

    plain = hopper_kernels.plain("NT", m, n, k, "bf16")
    case = (fire_cases.hopper if family == "hopper" else fire_cases.ampere)(lambda: plain)()
    bits = filled(m * k, "u2", lambda i: (0x3C00 + scattered(i) % 0x380).astype("u2"))  # bf16, 2^-7 to 1
    b = np.random.default_rng(1).standard_normal((n, k)).astype(ampere_support.NUMPY["bf16"])
    (c,) = OnDevice(case.plan()).run([as_bytes(bits), cupy.asarray(b.view(np.uint16).reshape(-1).view(np.uint8))])
    c = c.view(cupy.uint16).reshape(m, n)
    a = bits.reshape(m, k)
    for at in edges(m, max(n, k)):
        left = cupy.asnumpy(a[at]).view(ampere_support.NUMPY["bf16"]).astype(np.float64)
        got = cupy.asnumpy(c[at]).view(ampere_support.NUMPY["bf16"]).astype(np.float64)
        want = left @ b.astype(np.float64).T
        assert np.abs(got - want).max() <= 8e-3 * np.abs(want).max()
    assert not any(bool((c[part] == 0xFFFF).any()) for part in parts(m, 1 << 16)), "poison is left"


def matrices(count: int, rows: int, columns: int) -> Any:
    return normal(count * rows * columns).reshape(count, rows, columns)


def is_close(got, want, limit: float = 2e-3) -> bool:
    """Relative to the largest one: factors are rounded to TF32, or sums of many in f32."""
    return bool(abs(got - want).max() <= limit * abs(want).max())


def test_many_copied_factors():
    """TN in TF32: a phase makes a k-major copy of one factor, here for more batches than a grid's last side has blocks."""
    import cupy

    count, side = 70_000, 64
    case = fire_cases.hopper(hopper_kernels.plain, "TN", side, side, side, "tf32", "", (count,))()
    a, b = matrices(count, side, side), matrices(count, side, side)
    (c,) = OnDevice(case.plan()).run([as_bytes(a), as_bytes(b)])
    c = c.view(cupy.float32).reshape(count, side, side)
    for part in parts(count, 10_000):
        assert is_close(c[part], cupy.matmul(a[part].transpose(0, 2, 1), b[part]))


def test_a_long_copied_factor():
    """Copied in more pieces along k than a grid's second side has blocks, to 5 GB; partial sums lie behind."""
    import cupy

    k, side = 5_000_000, 256
    case = fire_cases.hopper(hopper_kernels.plain, "TN", side, side, k, "tf32")()
    (a,), (b,) = matrices(1, k, side), matrices(1, k, side)
    (c,) = OnDevice(case.plan()).run([as_bytes(a), as_bytes(b)])
    want = sum(a[part].T.astype("f8") @ b[part].astype("f8") for part in parts(k, 1 << 18))
    # The tensor cores truncate each of 41,667 sums in a row: of as many terms of one sign 0.25 % are lost.
    assert is_close(c.view(cupy.float32).reshape(side, side), want, 5e-3)


@pytest.mark.parametrize("layout, dtype", [("NN", "tf32"), ("NT", "tf32")])
@pytest.mark.parametrize("family", ["hopper", "ampere"])
def test_long_rows(family, layout, dtype):
    """256 rows of 2^24 + 8: a thread's results lie further apart than the text of an address can say."""
    import cupy

    m, n, k = 256, (1 << 24) + 8, 32
    case = (fire_cases.hopper if family == "hopper" else fire_cases.ampere)(
        hopper_kernels.plain, layout, m, n, k, dtype
    )()
    (a,), (b,) = matrices(1, m, k), matrices(1, *((k, n) if layout == "NN" else (n, k)))
    (c,) = OnDevice(case.plan()).run([as_bytes(a), as_bytes(b)])
    c = c.view(cupy.float32).reshape(m, n)
    for part in parts(n, 1 << 20):
        right = b[:, part] if layout == "NN" else b[part].T
        assert is_close(c[:, part], a @ right)


def test_partial_sums():
    """Sums over the rows of 2^21 x 196608 results, in 2^31 + partial ones; the results themselves are stored nowhere."""
    import cupy

    m, n, k = 1 << 21, 3 << 16, 64
    case = fire_cases.hopper(lambda: column_sums(m, n, k))()
    assert case.kernel.workspace_bytes >= 4 << 31
    bits = filled(m * k, "u2", lambda i: (0x3C00 + scattered(i) % 0x380).astype("u2"))  # bf16, 2^-7 to 1
    b = (0.25 * np.random.default_rng(1).standard_normal((n, k))).astype(ampere_support.NUMPY["bf16"])
    (sums,) = OnDevice(case.plan()).run([as_bytes(bits), cupy.asarray(b.view(np.uint16).reshape(-1).view(np.uint8))])
    places = np.r_[0:8, n // 2 : n // 2 + 8, n - 8 : n]
    right, want = cupy.asarray(b[places].astype(np.float32)).T, cupy.zeros(len(places))
    for part in parts(m, 1 << 16):
        left = (bits.reshape(m, k)[part].astype("u4") << 16).view(cupy.float32)
        want += cupy.exp(left @ right).sum(0, dtype=cupy.float64)
    assert bool((abs(sums.view(cupy.float32)[places] / want - 1) < 1e-3).all())


def case_arrays(operands) -> list[np.ndarray]:
    """Random f32 arrays."""
    rng = np.random.default_rng(2)
    return [rng.standard_normal(shape).astype(np.float32) for shape, _ in operands]
