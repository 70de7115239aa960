"""Contract kernels for sm_80 and newer with prologues, epilogues, several stores, accumulation, batches and column
reductions, against float64 NumPy, run by the simulator.
"""

from __future__ import annotations

import numpy as np
import pytest
from ampere_support import KINDS, check, multiply, narrowed, poisoned, product, randoms, run, with_precision
from contract_harness import KernelText
from gelu_regions import gelu, gelu_region
from test_cpu_contract_fused import PICK_A_ROW, binary

SHAPES = [(45, 70, 33), (64, 64, 48)]
TOLERANCE = {"bf16": 1e-3, "tf32": 2e-3, "fp32": 3e-6}  # bf16 and TF32 kernels use approximate functions


def f64(*arrays):
    return [a.astype(np.float64) for a in arrays]


@pytest.mark.parametrize("kind", TOLERANCE)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_bias_and_gelu_stored_wide_and_narrow(shape, kind):
    (m, n, k), (dtype, precision) = shape, KINDS[kind]
    text = KernelText()
    z = product(text, "NT", m, n, k, dtype)
    bias = text.operand(n)
    s = text.map([(z, "(d0, d1)"), (bias, "(d1)")], (m, n), "f32", binary("addf"))
    g = narrowed(text, text.map([(s, "(d0, d1)")], (m, n), "f32", gelu_region("%a")), "bf16")
    operands = [*randoms(1, dtype, (m, k), (n, k)), *randoms(2, "f32", (n,))]
    out = [poisoned((m, n), "f32"), poisoned((m, n), "bf16")]
    run(with_precision(text.finish(s, g), precision), operands, out)
    x, w, b = f64(*operands)
    check(out[0], x @ w.T + b, TOLERANCE[kind])
    check(out[1], gelu(x @ w.T + b), 5e-3)


@pytest.mark.parametrize("kind", TOLERANCE)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("out", ["f32", "bf16"])
def test_transposed_store(shape, kind, out):
    (m, n, k), (dtype, precision) = shape, KINDS[kind]
    text = KernelText()
    z = product(text, "NT", m, n, k, dtype)
    if out == "bf16":
        t = text.map([(z, "(d0, d1)")], (n, m), out, "%s = arith.truncf %a : f32 to bf16\n%s", "(d1, d0)")
    else:
        t = text.map([(z, "(d0, d1)")], (n, m), out, "%s = arith.addf %a, %a : f32\n%s", "(d1, d0)")
    x, w = randoms(1, dtype, (m, k), (n, k))
    results = [poisoned((m, n), "f32"), poisoned((n, m), out)]
    run(with_precision(text.finish(z, t), precision), [x, w], results)
    want = x.astype(np.float64) @ w.astype(np.float64).T
    check(results[0], want, TOLERANCE[kind])
    check(results[1], want.T if out == "bf16" else 2 * want.T, 5e-3 if out == "bf16" else TOLERANCE[kind])


@pytest.mark.parametrize("split", [1, 2])
@pytest.mark.parametrize("kind", ["bf16", "tf32", "fp32", "f64"])
@pytest.mark.parametrize("shape", [(45, 70, 64), (130, 33, 80)], ids=str)
def test_column_sums_of_an_epilogue(shape, kind, split):
    (m, n, k), (dtype, precision) = shape, KINDS[kind]
    sums = "f64" if kind == "f64" else "f32"
    text = KernelText()
    z = product(text, "NN", m, n, k, dtype)
    g = text.operand(m, n, dtype=sums)
    p = text.map([(z, "(d0, d1)"), (g, "(d0, d1)")], (m, n), sums, binary("mulf", sums))
    c = text.generic([(p, "(d1, d0)")], text.fill((n,), sums), "(d0)", "pr", f"%s = arith.addf %a, %o : {sums}\n%s")
    operands = [*randoms(1, dtype, (m, k), (k, n)), *randoms(2, sums, (m, n))]
    results = [poisoned((m, n), sums), poisoned((n,), sums)]
    run(with_precision(text.finish(p, c), precision), operands, results, split=split, reduction=16)
    x, w, y = f64(*operands)
    tolerance = 1e-13 if kind == "f64" else TOLERANCE[kind]
    check(results[0], (x @ w) * y, tolerance)
    check(results[1], ((x @ w) * y).sum(0), tolerance)


def test_column_reduction_that_asks_for_its_row():
    m, n, k = 45, 70, 33
    text = KernelText()
    z = product(text, "NT", m, n, k, "f32")
    rows = text.operand(n, dtype="i64")
    inputs = [(rows, "(d0)"), (z, "(d1, d0)")]
    picked = text.generic(inputs, text.fill((n,), "f32"), "(d0)", "pr", PICK_A_ROW)
    operands = [*randoms(1, "f32", (m, k), (n, k)), np.random.default_rng(1).integers(0, m, n)]
    results = [poisoned((m, n), "f32"), poisoned((n,), "f32")]
    run(text.finish(z, picked), operands, results)
    x, w = f64(*operands[:2])
    check(results[1], (x @ w.T)[operands[2], np.arange(n)], 3e-6)


def test_column_sums_without_rows():
    text = KernelText()
    z = product(text, "NN", 0, 8, 4, "f32")
    c = text.generic([(z, "(d1, d0)")], text.fill((8,), "f32"), "(d0)", "pr", "%s = arith.addf %a, %o : f32\n%s")
    results = [np.zeros((0, 8), np.float32), poisoned((8,), "f32")]
    run(text.finish(z, c), [np.zeros((0, 4), np.float32), np.ones((4, 8), np.float32)], results)
    assert (results[1] == 0).all()


@pytest.mark.parametrize("split", [1, 3])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_accumulates_in_place(shape, split):
    m, n, k = shape
    text = KernelText()
    base = text.operand(m, n)
    z = product(text, "TN", m, n, k, "f32", init=base)
    c, a, b = randoms(1, "f32", (m, n), (k, m), (k, n))
    before = c.astype(np.float64)
    run(text.finish(z, aliases=(0,)), [c, a, b], [c], split=split, reduction=16)
    check(c, before + a.T.astype(np.float64) @ b.astype(np.float64), 3e-6)


@pytest.mark.parametrize("layout", ["NT", "TN"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_prologue(shape, layout):
    """x r + q on the row factor, with r along m and q along k; in a TN product it is contiguous along m."""
    m, n, k = shape
    text = KernelText()
    rows = (m, k) if layout[0] == "N" else (k, m)
    x, r, q = text.operand(*rows), text.operand(m), text.operand(k)
    w = text.operand(*((n, k) if layout[1] == "T" else (k, n)))
    r_map, q_map = ("(d0)", "(d1)") if layout[0] == "N" else ("(d1)", "(d0)")
    scaled = text.map(
        [(x, "(d0, d1)"), (r, r_map), (q, q_map)],
        rows,
        "f32",
        "%s = arith.mulf %a, %b : f32\n%u = arith.addf %s, %c : f32\n%u",
    )
    maps = ("(d0, d2)" if layout[0] == "N" else "(d2, d0)", "(d2, d1)" if layout[1] == "N" else "(d1, d2)")
    z = multiply(text, scaled, w, maps, (m, n))
    operands = randoms(1, "f32", rows, (m,), (k,), w.shape)
    c = poisoned((m, n), "f32")
    run(text.finish(z), operands, [c])
    xs, rs, qs, ws = f64(*operands)
    left = (xs if layout[0] == "N" else xs.T) * rs[:, None] + qs
    check(c, left @ (ws if layout[1] == "N" else ws.T), 3e-6)


@pytest.mark.parametrize("kind", ["bf16", "tf32"])
def test_batches_and_a_shared_factor(kind):
    dtype, precision = KINDS[kind]
    text = KernelText()
    x, w = text.operand(3, 2, 20, 24, dtype=dtype), text.operand(2, 24, 40, dtype=dtype)
    z = multiply(
        text,
        x,
        w,
        ("(d0, d1, d2, d4)", "(d1, d4, d3)"),
        (3, 2, 20, 40),
        iterators="ppppr",
        out_map="(d0, d1, d2, d3)",
    )
    a, b = randoms(1, dtype, (3, 2, 20, 24), (2, 24, 40))
    c = poisoned((3, 2, 20, 40), "f32")
    run(with_precision(text.finish(z), precision), [a, b], [c])
    check(c, a.astype(np.float64) @ b.astype(np.float64), TOLERANCE[kind])


@pytest.mark.parametrize("kind", TOLERANCE)
def test_an_outer_product_of_a_column_and_a_row(kind):
    """No axis to sum over: neither factor moves along k, and nothing may be added for the k beyond the first one."""
    dtype, precision = KINDS[kind]
    text = KernelText()
    x, w = text.operand(3, 50, 7, dtype=dtype), text.operand(3, 45, dtype=dtype)
    z = multiply(text, x, w, ("(d0, d1, 4)", "(d0, d2)"), (3, 50, 45), iterators="ppp", out_map="(d0, d1, d2)")
    a, b = randoms(1, dtype, (3, 50, 7), (3, 45))
    c = poisoned((3, 50, 45), "f32")
    run(with_precision(text.finish(z), precision), [a, b], [c])
    check(c, a[:, :, 4, None].astype(np.float64) * b[:, None].astype(np.float64), TOLERANCE[kind])


def test_axes_that_do_not_act_as_one():
    """m is (d0, d2) of a [d0, k, d2] operand: no single stride, so the factor travels through registers."""
    text = KernelText()
    x, w = text.operand(5, 24, 6), text.operand(24, 40)
    z = multiply(text, x, w, ("(d0, d3, d1)", "(d3, d2)"), (5, 6, 40), iterators="pppr", out_map="(d0, d1, d2)")
    a, b = randoms(1, "f32", (5, 24, 6), (24, 40))
    c = poisoned((5, 6, 40), "f32")
    run(text.finish(z), [a, b], [c])
    check(c, np.einsum("akb,kn->abn", *f64(a, b)), 3e-6)


def test_coordinates():
    """Keep what lies on or below the diagonal: the epilogue asks for row and column."""
    text = KernelText()
    z = product(text, "NT", 50, 50, 20, "f32")
    masked = text.map(
        [(z, "(d0, d1)")],
        (50, 50),
        "f32",
        "%i = linalg.index 0 : index\n%j = linalg.index 1 : index\n%k = arith.cmpi sge, %i, %j : index\n"
        "%n = arith.constant 0.0 : f32\n%s = arith.select %k, %a, %n : f32\n%s",
    )
    a, b = randoms(1, "f32", (50, 20), (50, 20))
    c = poisoned((50, 50), "f32")
    run(text.finish(masked), [a, b], [c])
    check(c, np.tril(a.astype(np.float64) @ b.astype(np.float64).T), 3e-6)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_map_beside_a_product_that_only_reads_its_result(shape):
    """m = x + y shares no operand with the epilogue z m, which tells where its rows and columns lie."""
    m, n, k = shape
    text = KernelText()
    x, y = text.operand(m, n), text.operand(m, n)
    beside = text.map([(x, "(d0, d1)"), (y, "(d0, d1)")], (m, n), "f32", binary("addf"))
    z = product(text, "NN", m, n, k, "f32")
    r = text.map([(z, "(d0, d1)"), (beside, "(d0, d1)")], (m, n), "f32", binary("mulf"))
    operands = randoms(1, "f32", (m, n), (m, n), (m, k), (k, n))
    results = [poisoned((m, n), "f32"), poisoned((m, n), "f32")]
    run(text.finish(beside, r), operands, results)
    a, b, left, right = f64(*operands)
    check(results[0], a + b, 1e-6)
    check(results[1], (a + b) * (left @ right), 3e-6)
