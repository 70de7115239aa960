"""map and gather kernels for GPUs: the cases of the CPU's generators, on the GPU or emulated; tiles; random numbers."""

import gpu_kernels
import numpy as np
import pytest
import test_cpu_gather
import test_cpu_map
from cpu_kernels import NUMPY, Body, parsed, random, region
from gpu_emulator import Emulated
from test_cpu_gather import *  # noqa: F403
from test_cpu_map import *  # noqa: F403

from blutrain.nova.gpu import generate as gpu
from blutrain.nova.kernel import read_kernel
from blutrain.nova.passes.plan_memory import pointwise_operands
from blutrain.nova.target_gpu import ARCHITECTURES, gpu_facts
from blutrain.tensor.ops.philox import philox_blocks


@pytest.fixture(autouse=True)
def on_gpu(monkeypatch):
    for module in (test_cpu_map, test_cpu_gather):
        monkeypatch.setattr(module, "run", gpu_kernels.run)
        monkeypatch.setattr(module, "supports", gpu_kernels.supports, raising=False)


def turned(shape, source, target, in_place=False):
    """A transposed copy of x times a row factor and a column factor, and beside it a plain result."""
    rows, cols = shape
    body = Body("map")
    x, r, c = body.operand(cols, rows, dtype=source), body.operand(rows), body.operand(cols)
    wide = "%i0" if source == "f32" else "%x"
    widen = [] if source == "f32" else [f"%x = arith.extf %i0 : {source} to f32"]
    narrow = [] if target == "f32" else [f"%z = arith.truncf %q : f32 to {target}"]
    text = region(
        *widen,
        f"%p = arith.mulf {wide}, %i1 : f32",
        "%q = arith.mulf %p, %i2 : f32",
        *narrow,
        f"{'%q' if target == 'f32' else '%z'}, %q : {target}, f32",
    )
    outputs = [(body.empty(shape, target), "d0, d1"), (body.empty((cols, rows), "f32"), "d1, d0")]
    for value in body.generic([(x, "d1, d0"), (r, "d0"), (c, "d1")], outputs, "pp", text):
        body.result(value)
    return body


@pytest.mark.parametrize("source, target", [("f32", "f32"), ("f32", "bf16"), ("bf16", "f32"), ("bf16", "bf16")])
@pytest.mark.parametrize("shape", [(64, 128), (33, 100), (8, 200), (130, 9), (96, 70)])
def test_tiles_turn_operands_and_results(shape, source, target):
    rng = np.random.default_rng(0)
    x, r, c = random(rng, shape[::-1], source), random(rng, shape[0], "f32"), random(rng, shape[1], "f32")
    body = turned(shape, source, target)
    assert "tiles" in gpu_kernels.generate(body).schedule
    straight, back = gpu_kernels.run(body, x, r, c)
    want = x.astype(np.float32).T * r[:, None] * c
    np.testing.assert_array_equal(straight, want.astype(NUMPY[target]))
    np.testing.assert_array_equal(back, want.T)


def test_tiles_of_a_batch():
    """[B, T, H, D] to [B, H, D, T]."""
    body = Body("map")
    x = body.operand(2, 40, 3, 16)
    negate = region("%z = arith.negf %i0 : f32", "%z : f32")
    body.result(body.map([(x, "d0, d3, d1, d2")], (2, 3, 16, 40), negate))
    a = random(np.random.default_rng(0), (2, 40, 3, 16), "f32")
    np.testing.assert_array_equal(gpu_kernels.run(body, a)[0], -a.transpose(0, 2, 3, 1))


@pytest.mark.parametrize("shape", [(12, 20), (5, 7)])
def test_random_bits_are_those_of_the_table(shape):
    body = Body("map")
    seed, draw = body.operand(dtype="i64"), body.operand(dtype="i64")
    text = region(
        "%i = linalg.index 0 : index",
        "%j = linalg.index 1 : index",
        "%a = arith.index_cast %i : index to i64",
        "%b = arith.index_cast %j : index to i64",
        f"%n = arith.constant {shape[1]} : i64",
        "%c = arith.muli %a, %n : i64",
        "%d = arith.addi %c, %b : i64",
        '%r = "nova.random_bits"(%i0, %i1, %d) : (i64, i64, i64) -> i32',
        "%r : i32",
    )
    body.result(body.map([(seed, ""), (draw, "")], shape, text, "i32"))
    (got,) = gpu_kernels.run(body, np.array(-(1 << 62) + 12345), np.array((3 << 32) + 7))
    words = np.concatenate([w.copy() for _, w in philox_blocks((1 << 64) - (1 << 62) + 12345, (3 << 32) + 7, got.size)])
    np.testing.assert_array_equal(got.reshape(-1).view(np.uint32), words)


RARE = {
    "math.sin": (np.sin, [0.0, 1.0, -2.5, 100.0, 1e6, -7e9, np.pi, np.inf, np.nan]),
    "math.cos": (np.cos, [0.0, 1.0, -2.5, 100.0, 1e6, -7e9, np.pi / 2, np.inf, np.nan]),
    "math.tan": (np.tan, [0.0, -0.0, 1.0, -2.5, 100.0, 1e6, np.inf, np.nan]),
    "math.atan": (np.arctan, [0.0, -0.0, 1.0, -1.0, 0.26, 0.27, 1e-9, 1e9, -np.inf, np.inf, np.nan]),
    "math.log2": (np.log2, [0.0, -0.0, 1.0, 8.0, 1e-30, -1.0, np.inf, np.nan]),
}


@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize("name", RARE)
def test_rare_functions(name, dtype):
    function, edges = RARE[name]
    x = np.array([*edges, *np.linspace(-40, 40, 501)], NUMPY[dtype])
    body = Body("map")
    a = body.operand(x.size, dtype=dtype)
    body.result(body.map([(a, "d0")], (x.size,), region(f"%r = {name} %i0 : {dtype}", f"%r : {dtype}"), dtype))
    with np.errstate(all="ignore"):
        want = function(x.astype(np.float64))
    rtol, atol = (1e-7, 1e-9) if dtype == "f32" else (3e-14 if name == "math.tan" else 2e-15, 1e-15)
    np.testing.assert_allclose(gpu_kernels.run(body, x)[0], want, rtol=rtol, atol=atol)


@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize("name, function", [("math.powf", np.power), ("arith.remf", np.fmod)])
def test_power_and_remainder(name, function, dtype):
    special = [0.0, -0.0, 1.0, -1.0, 2.0, 3.0, -3.0, 0.5, -0.5, np.inf, -np.inf, np.nan, 6.0, 0.1, 1e-3, 77.25]
    x, y = (g.reshape(-1).astype(NUMPY[dtype]) for g in np.meshgrid(special, special))
    body = Body("map")
    a, b = body.operand(x.size, dtype=dtype), body.operand(x.size, dtype=dtype)
    text = region(f"%r = {name} %i0, %i1 : {dtype}", f"%r : {dtype}")
    body.result(body.map([(a, "d0"), (b, "d0")], (x.size,), text, dtype))
    with np.errstate(all="ignore"):
        want = function(x, y)
    (got,) = gpu_kernels.run(body, x, y)
    np.testing.assert_allclose(got, want, rtol=1e-6 if dtype == "f32" else 2e-13)
    np.testing.assert_array_equal(np.signbit(got[~np.isnan(want)]), np.signbit(want[~np.isnan(want)]))


def test_an_index_beyond_31_bits_is_compared_whole():
    """One block of a kernel over 3 * 2^30 elements: the one in which they reach 2^31."""
    size, place = 3 << 30, (1 << 31) + 5
    body = Body("map")
    target = body.operand(dtype="i64")
    lines = ("%k = linalg.index 0 : index", "%i = arith.index_cast %k : index to i64")
    text = region(*lines, "%e = arith.cmpi eq, %i, %i0 : i64", "%e : i1")
    body.result(body.map([(target, "")], (size,), text, "i1"))
    kernel = gpu_kernels.generate(body, width=8, items=1, block=32)
    (phase,) = kernel.phases
    emulated, per_block = Emulated(kernel), size // phase.grid[0]
    found, wanted = np.zeros(per_block, np.bool_), np.array(place)
    first = place // per_block * per_block
    emulated.run_block(phase, place // per_block, [wanted.ctypes.data, found.ctypes.data - first, 0, 0])
    assert list(np.flatnonzero(found) + first) == [place]


@pytest.mark.parametrize("size, op", [(1 << 30, "i32"), (3 << 30, "i64")])
def test_division_is_as_wide_as_the_nest(size, op):
    body = Body("map")
    x, row = body.operand(size // 1000 // 4 * 4, 1000), body.operand(1000)
    add = region("%a = arith.addf %i0, %i1 : f32", "%a : f32")
    body.result(body.map([(x, "d0, d1"), (row, "d1")], x.shape, add))
    divisions = [line for line in gpu_kernels.generate(body).text.splitlines() if "arith.divui" in line]
    assert divisions and all(line.endswith(f": {op}") for line in divisions)


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_schedules_are_for_the_target(arch):
    body = turned((64, 64), "f32", "bf16")
    assert gpu_kernels.generate(body, gpu_facts(arch)).target == arch


def test_anchors_without_a_generator_are_refused():
    body = Body("map")
    x = body.operand(4)
    body.result(body.map([(x, "d0")], (4,), region("%a = math.sinh %i0 : f32", "%a : f32")))
    assert "math.sinh" in gpu_kernels.supports(body)
    body.anchor = "attention"
    assert "no GPU generator" in gpu_kernels.supports(body)
    assert gpu.generators  # contractions: tests of the two families


def side_by_side() -> Body:
    """Parts that share a 0-d operation alone: an update in place, a cast, rows of a table, that operation."""
    body = Body("map")
    rate, p, g = body.operand(dtype="f64"), body.operand(33, 20), body.operand(33, 20)
    w, t, ids = body.operand(700), body.operand(9, 8), body.operand(5, dtype="i64")
    narrow = body.map([(rate, "")], (), region("%s = arith.truncf %i0 : f64 to f32", "%s : f32"))
    step = region("%m = arith.mulf %i1, %i2 : f32", "%d = arith.subf %i0, %m : f32", "%d : f32")
    body.result(body.map([(p, "d0, d1"), (g, "d0, d1"), (narrow, "")], (33, 20), step), alias=1)
    body.result(body.map([(w, "d0")], (700,), region("%h = arith.truncf %i0 : f32 to bf16", "%h : bf16"), dtype="bf16"))
    rows = body.op("nova.gather", [t, ids], (5, 8), "f32")
    twice = region("%m = arith.mulf %i0, %i1 : f32", "%m : f32")
    body.result(body.map([(rows, "d0, d1"), (narrow, "")], (5, 8), twice))
    body.result(narrow)
    return body


def test_parts_that_share_nothing_have_blocks_of_their_own():
    rng = np.random.default_rng(0)
    p, g, w, t = (random(rng, shape, "f32") for shape in ((33, 20), (33, 20), (700,), (9, 8)))
    ids, rate, body = rng.integers(0, 9, 5), np.array(0.3), side_by_side()
    generated = gpu_kernels.generate(body)
    assert "4 parts" in generated.schedule and generated.phases[0].grid[0] >= 4
    updated, rounded, rows, narrow = gpu_kernels.run(body, rate, p, g, w, t, ids)
    np.testing.assert_array_equal(updated, p - g * np.float32(0.3))
    np.testing.assert_array_equal(rounded, w.astype(NUMPY["bf16"]))
    np.testing.assert_array_equal(rows, t[ids] * np.float32(0.3))
    assert narrow == np.float32(0.3)


def test_parts_that_read_one_tensor_are_one():
    body = Body("map")
    x = body.operand(100)
    for name in ("negf", "absf"):
        dialect = "arith" if name == "negf" else "math"
        body.result(body.map([(x, "d0")], (100,), region(f"%n = {dialect}.{name} %i0 : f32", "%n : f32")))
    assert "parts" not in gpu_kernels.generate(body).schedule
    values = random(np.random.default_rng(0), 100, "f32")
    for got, want in zip(gpu_kernels.run(body, values), (-values, np.abs(values)), strict=True):
        np.testing.assert_array_equal(got, want)


def test_a_number_that_all_threads_read_is_not_written_in_place():
    """It would be written by one thread, while others read it."""
    body = Body("map")
    count, x = body.operand(), body.operand(400)
    more = body.map([(count, "")], (), region("%n = arith.addf %i0, %i0 : f32", "%n : f32"))
    body.result(more)
    body.result(body.map([(x, "d0"), (more, "")], (400,), region("%n = arith.mulf %i0, %i1 : f32", "%n : f32")))
    with parsed(body) as op:
        assert pointwise_operands(read_kernel(op)) == [set(), {1}]
    assert "parts" not in gpu_kernels.generate(body).schedule
    values = random(np.random.default_rng(0), 400, "f32")
    number, scaled = gpu_kernels.run(body, np.float32(3.0).reshape(()), values)
    assert number == 6.0
    np.testing.assert_array_equal(scaled, 6 * values)
