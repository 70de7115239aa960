"""Contract kernels with prologues, epilogues, several stores, accumulation and column reductions, against float64
NumPy.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from contract_harness import (
    KernelText,
    build,
    check,
    context,
    facts_like,
    multiply,
    parse_kernel,
    product,
    randoms,
    run,
)
from gelu_regions import gelu, gelu_gradient_region, gelu_region, gelu_slope
from mlir import ir

from blutrain.nova.cpu import contract
from blutrain.nova.cpu.configure_contract import K_UNROLL
from blutrain.nova.target import host_cpu

NT = ("(d0, d2)", "(d1, d2)")
NN = ("(d0, d2)", "(d2, d1)")
TN = ("(d2, d0)", "(d2, d1)")


# Sums what stands in the row %a of a column: %b there.
PICK_A_ROW = """%i = linalg.index 1 : index
    %r = arith.index_cast %i : index to i64
    %p = arith.cmpi eq, %r, %a : i64
    %zero = arith.constant 0.0 : f32
    %e = arith.select %p, %b, %zero : f32
    %s = arith.addf %o, %e : f32
    %s"""


def binary(op: str, dtype: str = "f32") -> str:
    return f"%s = arith.{op} %a, %b : {dtype}\n%s"


def f64(*arrays):
    return [a.astype(np.float64) for a in arrays]


@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize("shape", [(45, 70, 33), (64, 64, 48)], ids=str)
def test_bias_and_gelu_both_stored(shape, dtype):
    m, n, k = shape
    text = KernelText()
    x, w, b = text.operand(m, k, dtype=dtype), text.operand(n, k, dtype=dtype), text.operand(n, dtype=dtype)
    z = multiply(text, x, w, NT, (m, n), dtype=dtype)
    s = text.map([(z, "(d0, d1)"), (b, "(d1)")], (m, n), dtype, binary("addf", dtype))
    g = text.map([(s, "(d0, d1)")], (m, n), dtype, gelu_region("%a", dtype))
    arrays = randoms(1, dtype, (m, k), (n, k), (n,))
    out = [np.full((m, n), np.nan, arrays[0].dtype) for _ in range(2)]
    run(build(text.finish(s, g)), arrays, out)
    a, b_, c = f64(*arrays)
    want = a @ b_.T + c
    check(out[0], want, 100, dtype)
    check(out[1], gelu(want), 100, dtype)


@pytest.mark.parametrize("layout", ["NN", "NT"])
def test_layer_norm_prologue(layout):
    """(x - mean) * rstd * w + b while packing: row factors and column factors of the left operand."""
    m, n, k = 50, 40, 36
    text = KernelText()
    x, mean, rstd = text.operand(m, k), text.operand(m), text.operand(m)
    weight, bias = text.operand(k), text.operand(k)
    b = text.operand(*((k, n) if layout[1] == "N" else (n, k)))
    region = """%p = arith.subf %a, %b : f32
        %q = arith.mulf %p, %c : f32
        %r = arith.mulf %q, %d : f32
        %s = arith.addf %r, %e : f32
        %s"""
    inputs = [(x, "(d0, d1)"), (mean, "(d0)"), (rstd, "(d0)"), (weight, "(d1)"), (bias, "(d1)")]
    norm = text.map(inputs, (m, k), "f32", region)
    c = multiply(text, norm, b, NN if layout == "NN" else NT, (m, n))
    arrays = randoms(2, "f32", (m, k), (m,), (m,), (k,), (k,), b.shape)
    out = np.full((m, n), np.nan, np.float32)
    run(build(text.finish(c)), arrays, [out])
    x, mean, rstd, weight, bias, b = f64(*arrays)
    want = ((x - mean[:, None]) * rstd[:, None] * weight + bias) @ (b if layout == "NN" else b.T)
    check(out, want, 400, "f32")


def test_gelu_prologue_of_a_weight_gradient():
    """gelu(x)^T dy: both factors contiguous along their own axis, k = tokens, a tail in every dimension."""
    k, m, n = 70, 33, 50
    text = KernelText()
    x, g = text.operand(k, m), text.operand(k, n)
    act = text.map([(x, "(d0, d1)")], (k, m), "f32", gelu_region("%a"))
    c = multiply(text, act, g, TN, (m, n))
    arrays = randoms(3, "f32", (k, m), (k, n))
    out = np.full((m, n), np.nan, np.float32)
    run(build(text.finish(c)), arrays, [out])
    check(out, gelu(arrays[0].astype(float)).T @ arrays[1], 200, "f32")


def test_prologue_that_is_not_zero_at_zero():
    """exp(x) of the padding would be 1: what lies past k must not count."""
    m, n, k = 20, 21, 13
    text = KernelText()
    x, w = text.operand(m, k), text.operand(n, k)
    e = text.map([(x, "(d0, d1)")], (m, k), "f32", "%y = math.exp %a : f32\n%y")
    f = text.map([(w, "(d0, d1)")], (n, k), "f32", "%y = math.exp %a : f32\n%y")
    c = multiply(text, e, f, NT, (m, n))
    arrays = randoms(4, "f32", (m, k), (n, k))
    out = np.full((m, n), np.nan, np.float32)
    run(build(text.finish(c)), arrays, [out])
    a, b = f64(*arrays)
    check(out, np.exp(a) @ np.exp(b).T, 200, "f32")


@pytest.mark.parametrize("cut", [{}, {"split": 2, "kc": 16}], ids=["whole", "split"])
def test_gelu_backward_with_bias_gradient(cut):
    """dz = (dy w) * gelu'(z) with its column sums, the sums added to what is there."""
    m, n, k = 75, 53, 40
    text = KernelText()
    dy, w, z, bias_grad = text.operand(m, k), text.operand(k, n), text.operand(m, n), text.operand(n)
    dh = multiply(text, dy, w, NN, (m, n))
    dz = text.map([(dh, "(d0, d1)"), (z, "(d0, d1)")], (m, n), "f32", gelu_gradient_region("%a", "%b"))
    db = text.generic([(dz, "(d0, d1)")], bias_grad, "(d1)", "rp", "%s = arith.addf %o, %a : f32\n%s")
    arrays = randoms(5, "f32", (m, k), (k, n), (m, n), (n,))
    out = [np.full((m, n), np.nan, np.float32), arrays[3].copy()]
    want_start = arrays[3].astype(float)
    arrays[3] = out[1]  # the result lies in the operand's memory
    run(build(text.finish(dz, db, aliases=(-1, 3)), **cut), arrays, out)
    dy, w, z, _ = f64(*arrays)
    want = dy @ w * gelu_slope(z)
    check(out[0], want, 100, "f32")
    check(out[1], want.sum(0) + want_start, np.abs(want).sum(0).max(), "f32")


@pytest.mark.parametrize("shape", [(70, 45, 20), (0, 45, 20), (70, 45, 0)], ids=str)
def test_column_reductions_of_several_values(shape):
    """Two reductions of different values, one rounded to f16 behind; empty rows give the neutral element."""
    m, n, k = shape
    text = KernelText()
    x, w, b = text.operand(m, k), text.operand(n, k), text.operand(n)
    z = multiply(text, x, w, NT, (m, n))
    s = text.map([(z, "(d0, d1)"), (b, "(d1)")], (m, n), "f32", binary("addf"))
    first = text.generic([(s, "(d0, d1)")], text.fill((n,), "f32"), "(d1)", "rp", "%s = arith.addf %o, %a : f32\n%s")
    square = "%q = arith.mulf %a, %a : f32\n%s = arith.addf %o, %q : f32\n%s"
    second = text.generic([(s, "(d0, d1)")], text.fill((n,), "f32"), "(d1)", "rp", square)
    narrow = text.map([(second, "(d0)")], (n,), "f16", "%t = arith.truncf %a : f32 to f16\n%t")
    arrays = randoms(6, "f32", (m, k), (n, k), (n,))
    out = [np.full((m, n), np.nan, np.float32), np.full(n, np.nan, np.float32), np.full(n, np.nan, np.float16)]
    run(build(text.finish(s, first, narrow)), arrays, out)
    a, w_, b_ = f64(*arrays)
    want = a @ w_.T + b_
    check(out[0], want, 100, "f32")
    check(out[1], want.sum(0), 500, "f32")
    np.testing.assert_allclose(out[2].astype(float), (want**2).sum(0), rtol=2e-3)


def test_column_reduction_that_asks_for_its_row():
    """What cross-entropy reads of transposed logits: the element of each column whose row its target names."""
    m, n, k = 70, 45, 20
    text = KernelText()
    x, w, rows = text.operand(m, k), text.operand(n, k), text.operand(n, dtype="i64")
    z = multiply(text, x, w, NT, (m, n))
    inputs = [(rows, "(d0)"), (z, "(d1, d0)")]
    picked = text.generic(inputs, text.fill((n,), "f32"), "(d0)", "pr", PICK_A_ROW)
    targets = np.random.default_rng(1).integers(0, m, n)
    arrays = [*randoms(6, "f32", (m, k), (n, k)), targets]
    out = [np.full((m, n), np.nan, np.float32), np.full(n, np.nan, np.float32)]
    run(build(text.finish(z, picked)), arrays, out)
    want = arrays[0].astype(float) @ arrays[1].T.astype(float)
    check(out[0], want, 100, "f32")
    check(out[1], want[targets, np.arange(n)], 100, "f32")


def test_residual_in_place():
    """x + h w^T + b written over x."""
    m, n, k = 44, 39, 28
    text = KernelText()
    h, w, b, x = text.operand(m, k), text.operand(n, k), text.operand(n), text.operand(m, n)
    z = multiply(text, h, w, NT, (m, n))
    region = "%s = arith.addf %a, %b : f32\n%t = arith.addf %s, %c : f32\n%t"
    y = text.map([(z, "(d0, d1)"), (b, "(d1)"), (x, "(d0, d1)")], (m, n), "f32", region)
    arrays = randoms(7, "f32", (m, k), (n, k), (n,), (m, n))
    h, w, b, x = f64(*arrays)
    run(build(text.finish(y, aliases=(3,))), arrays, [arrays[3]])
    check(arrays[3], x + h @ w.T + b, 100, "f32")


@pytest.mark.parametrize("kc", [16, 512])
def test_accumulates_onto_an_operand(kc):
    m, n, k = 31, 47, 60
    text = KernelText()
    x, g, acc = text.operand(k, m), text.operand(k, n), text.operand(m, n)
    c = multiply(text, x, g, TN, (m, n), init=acc)
    arrays = randoms(8, "f32", (k, m), (k, n), (m, n))
    x, g, acc = f64(*arrays)
    executable = build(text.finish(c, aliases=(2,)), kc=kc)
    run(executable, arrays, [arrays[2]])
    run(executable, arrays, [arrays[2]])
    check(arrays[2], acc + 2 * (x.T @ g), 400, "f32")


@pytest.mark.parametrize("shape", [(64, 32, 20), (45, 37, 20)], ids=str)
def test_transposed_and_plain_stores(shape):
    m, n, k = shape
    text = KernelText()
    a, b = text.operand(m, k), text.operand(k, n)
    c = multiply(text, a, b, NN, (m, n))
    t = text.map([(c, "(d1, d0)")], (n, m), "f32", "%a")
    arrays = randoms(9, "f32", (m, k), (k, n))
    out = [np.full((m, n), np.nan, np.float32), np.full((n, m), np.nan, np.float32)]
    run(build(text.finish(c, t)), arrays, out)
    want = arrays[0].astype(float) @ arrays[1].astype(float)
    check(out[0], want, 100, "f32")
    check(out[1], want.T, 100, "f32")


def test_scalar_operand_mask_and_index():
    """scale * acc where the column is not past the row, minus infinity elsewhere; the mask itself is stored as i1."""
    m, n, k = 40, 40, 17
    text = KernelText()
    a, b, scale = text.operand(m, k), text.operand(n, k), text.operand()
    c = multiply(text, a, b, NT, (m, n))
    mask = text.map(
        [],
        (m, n),
        "i1",
        "%i = linalg.index 0 : index\n%j = linalg.index 1 : index\n%p = arith.cmpi sle, %j, %i : index\n%p",
    )
    region = """%low = arith.constant 0xFF800000 : f32
        %s = arith.mulf %a, %b : f32
        %r = arith.select %c, %s, %low : f32
        %r"""
    y = text.map([(c, "(d0, d1)"), (scale, "()"), (mask, "(d0, d1)")], (m, n), "f32", region)
    flag = text.map(
        [(y, "(d0, d1)")], (m, n), "i1", "%z = arith.constant 0.0 : f32\n%p = arith.cmpf olt, %a, %z : f32\n%p"
    )
    arrays = [*randoms(10, "f32", (m, k), (n, k)), np.array(0.25, np.float32)]
    out = [np.full((m, n), np.nan, np.float32), np.full((m, n), 7, np.uint8)]
    run(build(text.finish(y, flag)), arrays, out)
    want = np.where(np.tri(m, dtype=bool), 0.25 * (arrays[0].astype(float) @ arrays[1].T.astype(float)), -np.inf)
    finite = np.isfinite(want)
    assert np.array_equal(np.isfinite(out[0]), finite)
    check(np.where(finite, out[0], 0), np.where(finite, want, 0), 50, "f32")
    assert np.array_equal(out[1], (out[0] < 0).astype(np.uint8))


def test_epilogue_on_other_vector_units_and_threads():
    m, n, k = 61, 45, 30
    text = KernelText()
    x, w, b = text.operand(m, k), text.operand(n, k), text.operand(n)
    z = multiply(text, x, w, NT, (m, n))
    s = text.map([(z, "(d0, d1)"), (b, "(d1)")], (m, n), "f32", binary("addf"))
    g = text.map([(s, "(d0, d1)")], (m, n), "f32", gelu_region("%a"))
    sums = text.generic([(g, "(d0, d1)")], text.fill((n,), "f32"), "(d1)", "rp", "%s = arith.addf %o, %a : f32\n%s")
    source = text.finish(g, sums)
    arrays = randoms(11, "f32", (m, k), (n, k), (n,))
    a, w_, b_ = f64(*arrays)
    want = gelu(a @ w_.T + b_)
    for facts in (facts_like("avx2"), facts_like("neon"), dataclasses.replace(host_cpu(), threads=3)):
        out = [np.full((m, n), np.nan, np.float32), np.full(n, np.nan, np.float32)]
        run(build(source, facts), arrays, out)
        check(out[0], want, 100, "f32")
        check(out[1], want.sum(0), 500, "f32")


def test_text_has_one_micro_kernel():
    """Compile time: edges and tails must not multiply the unrolled code."""
    with context(), ir.Location.unknown():
        kernel, _module = parse_kernel(product("NT", 438, 331, 513, "f32"))
        schedule = contract.configure(kernel, host_cpu())
        text = contract.generate(kernel, host_cpu(), schedule).text
    assert text.count("vector.fma") == K_UNROLL * schedule["mr"] * schedule["nv"]


def test_dropout_mask_and_stored_mask():
    """Random bits by logical element index: the same on every vector unit; a boolean operand is read as bytes."""
    m, n, k = 33, 45, 20
    text = KernelText()
    a, b = text.operand(m, k), text.operand(n, k)
    seed, draw = text.operand(dtype="i64"), text.operand(dtype="i64")
    keep = text.operand(m, n, dtype="i1")
    c = multiply(text, a, b, NT, (m, n))
    region = f"""%i = linalg.index 0 : index
        %j = linalg.index 1 : index
        %i64 = arith.index_cast %i : index to i64
        %j64 = arith.index_cast %j : index to i64
        %width = arith.constant {n} : i64
        %row = arith.muli %i64, %width : i64
        %e = arith.addi %row, %j64 : i64
        %r = "nova.random_bits"(%b, %c, %e) : (i64, i64, i64) -> i32
        %zero = arith.constant 0 : i32
        %p = arith.cmpi slt, %r, %zero : i32
        %both = arith.andi %p, %d : i1
        %off = arith.constant 0.0 : f32
        %y = arith.select %both, %a, %off : f32
        %y"""
    inputs = [(c, "(d0, d1)"), (seed, "()"), (draw, "()"), (keep, "(d0, d1)")]
    source = text.finish(text.map(inputs, (m, n), "f32", region))
    x, y = randoms(12, "f32", (m, k), (n, k))
    mask = np.random.default_rng(3).random((m, n)) < 0.8
    operands = [x, y, np.array(7, np.int64), np.array(3, np.int64), mask]
    want = x.astype(float) @ y.T.astype(float)
    kept = None
    for facts in (host_cpu(), facts_like("avx2"), facts_like("neon")):
        out = np.full((m, n), np.nan, np.float32)
        run(build(source, facts), operands, [out])
        check(out[out != 0], want[out != 0], 50, "f32")
        assert kept is None or np.array_equal(kept, out != 0)
        kept = out != 0
    assert not kept[~mask].any() and 0.4 < kept[mask].mean() < 0.6
