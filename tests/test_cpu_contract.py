"""Contract kernels on the CPU against float64 NumPy.

Layouts, odd shapes, batches, dtypes, repeatability, memory bounds.
"""

from __future__ import annotations

import ctypes
import dataclasses
import mmap

import ml_dtypes
import numpy as np
import pytest
from contract_harness import (
    DTYPES,
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
from hypothesis import given, settings
from hypothesis import strategies as st
from mlir import ir

from blutrain.nova.cpu import contract, lower, orc
from blutrain.nova.cpu import generate as generator
from blutrain.nova.passes.configure import config_attribute
from blutrain.nova.target import host_cpu

LAYOUTS = ["NN", "NT", "TN", "TT"]


def check_product(layout: str, m: int, n: int, k: int, dtype: str, facts=None, **schedule) -> None:
    a, b = randoms(m + n + k, dtype, (m, k) if layout[0] == "N" else (k, m), (k, n) if layout[1] == "N" else (n, k))
    c = np.full((m, n), np.nan, DTYPES[dtype])
    run(build(product(layout, m, n, k, dtype), facts, **schedule), [a, b], [c])
    left, right = (a if layout[0] == "N" else a.T).astype(np.float64), (b if layout[1] == "N" else b.T).astype(float)
    check(c, left @ right, (np.abs(left) @ np.abs(right)).max(initial=0.0), dtype)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shape", [(37, 50, 19), (128, 64, 32)])
@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_layouts(layout, shape, dtype):
    check_product(layout, *shape, dtype)


ODD = [
    (514, 500, 130),
    (1, 1, 1),
    (9, 9, 9),
    (15, 37, 7),
    (438, 331, 513),
    (1000, 4, 512),
    (64, 48, 2044),
    (1, 300, 200),
    (300, 1, 200),
    (40, 30, 1),
    (13, 33, 1030),
]


@pytest.mark.parametrize("shape", ODD, ids=str)
def test_odd_shapes(shape):
    check_product(LAYOUTS[sum(shape) % 4], *shape, "f64" if shape[0] % 2 else "f32")


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("width", ["avx2", "neon"])
def test_other_vector_units(width, layout):
    check_product(layout, 61, 45, 67, "f32", facts_like(width))
    check_product(layout, 30, 26, 33, "f64", facts_like(width))


@pytest.mark.parametrize("shape", [(0, 5, 3), (5, 0, 3), (5, 3, 0), (0, 0, 0)], ids=str)
def test_empty(shape):
    check_product("NN", *shape, "f32")


GRIDS = [
    {"m_tasks": 3, "n_tasks": 2, "share_rows": True, "share_columns": True},
    {"m_tasks": 1, "n_tasks": 4, "share_rows": True, "share_columns": False},
    {"m_tasks": 5, "n_tasks": 1, "share_rows": False, "share_columns": True},
    {"m_tasks": 2, "n_tasks": 2, "share_rows": False, "share_columns": False},
    {"kc": 32, "m_tasks": 2, "n_tasks": 3, "share_rows": False, "share_columns": False},
    {"kc": 32, "m_tasks": 2, "n_tasks": 3, "share_rows": True, "share_columns": True},
    {"kc": 32, "split": 3, "m_tasks": 1, "n_tasks": 1, "share_rows": False, "share_columns": False},
    {"kc": 16, "split": 4, "m_tasks": 2, "n_tasks": 1, "share_rows": False, "share_columns": True},
]


@pytest.mark.parametrize("grid", GRIDS, ids=lambda g: "-".join(f"{k}{int(v)}" for k, v in g.items()))
def test_every_way_to_cut(grid):
    check_product("NT", 150, 140, 105, "f32", facts_like("avx512" if host_cpu().vector_bytes == 64 else "avx2"), **grid)


@pytest.mark.parametrize("threads", [1, 3])
def test_thread_counts(threads):
    check_product("TN", 300, 200, 300, "f32", dataclasses.replace(host_cpu(), threads=threads))


def test_bitwise_repeatable():
    a, b = randoms(5, "f32", (600, 300), (200, 600))
    executable = build(product("TT", 300, 200, 600, "f32"), kc=128, split=2, m_tasks=3, n_tasks=2)
    results = [np.empty((300, 200), np.float32) for _ in range(2)]
    run(executable, [a, b], [results[0]])
    for _ in range(100):
        run(executable, [a, b], [results[1]])
        assert results[0].tobytes() == results[1].tobytes()


@settings(max_examples=20, deadline=None, derandomize=True)
@given(
    layout=st.sampled_from(LAYOUTS),
    shape=st.tuples(st.integers(1, 90), st.integers(1, 90), st.integers(1, 90)),
    dtype=st.sampled_from(["f32", "f64"]),
    tile=st.sampled_from([(14, 2), (5, 3), (1, 1), (3, 4)]),
    grid=st.tuples(st.integers(1, 4), st.integers(1, 3), st.integers(1, 3)),
    kc=st.sampled_from([16, 32, 64]),
    shared=st.tuples(st.booleans(), st.booleans()),
)
def test_any_shape_under_any_schedule(layout, shape, dtype, tile, grid, kc, shared):
    """Right under every schedule, the configurator's or not: what it may pick on another machine."""
    (mr, nv), (m_tasks, n_tasks, split) = tile, grid
    split = min(split, -(-shape[2] // kc))
    options = {"mr": mr, "nv": nv, "m_tasks": m_tasks, "n_tasks": n_tasks, "split": split, "kc": kc}
    check_product(layout, *shape, dtype, share_rows=shared[0], share_columns=shared[1], **options)


def test_schedule_in_the_text():
    """The schedule that the IR carries is the one that is used."""
    with context(), ir.Location.unknown():
        module = ir.Module.parse(product("NN", 64, 64, 64, "f32"))
        (op,) = (o for o in module.body.operations[0].regions[0].blocks[0].operations if "nova.kernel" in str(o.name))
        schedule = {**generator.configure(op, host_cpu()), "m_tasks": 3, "mr": 7}
        anchor = next(o for o in op.regions[0].blocks[0].operations if "nova.anchor" in o.attributes)
        anchor.attributes["lowering_config"] = config_attribute(schedule)
        generated = generator.generate(op, host_cpu())
    assert [p.tasks for p in generated.phases if p.symbol.endswith("product")] == [3]
    assert generated.text.count("vector.fma") == 4 * 7 * schedule["nv"]


# --- batches and folded layouts


@pytest.mark.parametrize("batch", [1, 3, 40])
def test_batched(batch):
    text = KernelText()
    a, b = text.operand(batch, 20, 18), text.operand(batch, 18, 35)
    c = multiply(text, a, b, ("(d0, d1, d3)", "(d0, d3, d2)"), (batch, 20, 35), "pppr", "(d0, d1, d2)")
    x, y = randoms(1, "f32", (batch, 20, 18), (batch, 18, 35))
    out = np.full((batch, 20, 35), np.nan, np.float32)
    run(build(text.finish(c)), [x, y], [out])
    check(out, x.astype(float) @ y.astype(float), 18 * 4, "f32")


def test_heads_folded_into_strides():
    """q k^T straight from [B, T, H, D], as attention has it: batch (B, H), a result in [B, H, T, T]."""
    shape = (2, 24, 3, 16)
    text = KernelText()
    q, k = text.operand(*shape), text.operand(*shape)
    maps = ("(d0, d2, d1, d4)", "(d0, d3, d1, d4)")
    c = multiply(text, q, k, maps, (2, 3, 24, 24), "ppppr", "(d0, d1, d2, d3)")
    x, y = randoms(2, "f32", shape, shape)
    out = np.full((2, 3, 24, 24), np.nan, np.float32)
    run(build(text.finish(c)), [x, y], [out])
    check(out, np.einsum("bthd,bshd->bhts", x.astype(float), y.astype(float)), 100, "f32")


@pytest.mark.parametrize("heads", [(4, 16), (5, 7)], ids=str)
def test_columns_of_several_dimensions(heads):
    """A weight seen as [K, H, D] whose D is not adjacent to H in the result.

    Columns wrap inside a vector when D is odd.
    """
    h, d = heads
    text = KernelText()
    a, b = text.operand(30, 20), text.operand(20, h, d)
    c = multiply(text, a, b, ("(d0, d3)", "(d3, d1, d2)"), (h, 30, d), "pppr", "(d1, d0, d2)")
    x, y = randoms(3, "f32", (30, 20), (20, h, d))
    out = np.full((h, 30, d), np.nan, np.float32)
    run(build(text.finish(c)), [x, y], [out])
    check(out, np.einsum("mk,khd->hmd", x.astype(float), y.astype(float)), 100, "f32")


def test_weight_gradient_of_tokens():
    """x^T dy over (batch, token): two reduction dimensions."""
    text = KernelText()
    x, g = text.operand(3, 50, 40), text.operand(3, 50, 24)
    c = multiply(text, x, g, ("(d2, d3, d0)", "(d2, d3, d1)"), (40, 24), "pprr")
    a, b = randoms(4, "f32", (3, 50, 40), (3, 50, 24))
    out = np.full((40, 24), np.nan, np.float32)
    run(build(text.finish(c)), [a, b], [out])
    check(out, np.einsum("btm,btn->mn", a.astype(float), b.astype(float)), 200, "f32")


def test_matrix_vector_and_dot_products():
    """Dimensions of extent 1 do not exist in a kernel: axes may be empty."""
    text = KernelText()
    a, x = text.operand(70, 45), text.operand(45)
    y = multiply(text, a, x, ("(d0, d1)", "(d1)"), (70,), "pr", "(d0)")
    m, v = randoms(11, "f32", (70, 45), (45,))
    out = np.full(70, np.nan, np.float32)
    run(build(text.finish(y)), [m, v], [out])
    check(out, m.astype(float) @ v, 100, "f32")
    text = KernelText()
    a, x = text.operand(45), text.operand(45)
    d = multiply(text, a, x, ("(d0)", "(d0)"), (), "r", "()")
    out = np.full((), np.nan, np.float32)
    run(build(text.finish(d)), [m[0].copy(), v], [out])
    check(out, m[0].astype(float) @ v, 100, "f32")


def test_reversed_and_strided_reads():
    text = KernelText()
    a, b = text.operand(20, 30), text.operand(61, 25)
    plain = text.operand(20, 30), text.operand(30, 25)  # give the loops their extents
    a = text.map([(a, "(-d0 + 19, d1)"), (plain[0], "(d0, d1)")], (20, 30), "f32", "%a")
    b = text.map([(b, "(d0 * 2 + 1, d1)"), (plain[1], "(d0, d1)")], (30, 25), "f32", "%a")
    c = multiply(text, a, b, ("(d0, d2)", "(d2, d1)"), (20, 25))
    x, y = randoms(6, "f32", (20, 30), (61, 25))
    out = np.full((20, 25), np.nan, np.float32)
    run(build(text.finish(c)), [x, y, *randoms(7, "f32", (20, 30), (30, 25))], [out])
    check(out, x[::-1].astype(float) @ y[1::2].astype(float), 200, "f32")


@pytest.mark.parametrize("narrow", ["f16", "bf16"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_narrow_operands_and_result(narrow, layout):
    m, n, k = 30, 50, 40
    text = KernelText()
    a = text.operand(*((m, k) if layout[0] == "N" else (k, m)), dtype=narrow)
    b = text.operand(*((k, n) if layout[1] == "N" else (n, k)), dtype=narrow)
    maps = ("(d0, d2)" if layout[0] == "N" else "(d2, d0)", "(d2, d1)" if layout[1] == "N" else "(d1, d2)")
    region = f"""%x = arith.extf %a : {narrow} to f32
        %y = arith.extf %b : {narrow} to f32
        %m = arith.mulf %x, %y : f32
        %s = arith.addf %o, %m : f32
        %s"""
    inputs = list(zip((a, b), maps, strict=True))
    c = text.generic(inputs, text.fill((m, n), "f32"), "(d0, d1)", "ppr", region, anchor=True)
    d = text.map([(c, "(d0, d1)")], (m, n), narrow, f"%t = arith.truncf %a : f32 to {narrow}\n%t")
    dtype = ml_dtypes.bfloat16 if narrow == "bf16" else np.float16
    x, y = (v.astype(dtype) for v in randoms(8, "f32", a.shape, b.shape))
    out = np.empty((m, n), dtype)
    run(build(text.finish(d)), [x, y], [out])
    left = (x if layout[0] == "N" else x.T).astype(float)
    right = (y if layout[1] == "N" else y.T).astype(float)
    want = (left @ right).astype(np.float32).astype(dtype).astype(float)
    np.testing.assert_allclose(out.astype(float), want, rtol=2**-7 if narrow == "bf16" else 2**-9, atol=1e-3)


# --- memory


def guarded(array: np.ndarray) -> np.ndarray:
    """A copy that ends where an unreadable page begins: one byte too far and the process dies."""
    size = -(-array.nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
    region = mmap.mmap(-1, size + mmap.PAGESIZE)
    base = ctypes.addressof(ctypes.c_char.from_buffer(region))
    assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(base + size), ctypes.c_size_t(mmap.PAGESIZE), 0) == 0
    copy = np.frombuffer(region, np.uint8)[size - array.nbytes : size].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


@pytest.mark.parametrize("layout", LAYOUTS)
def test_stays_inside_its_memory(layout):
    m, n, k = 29, 37, 27
    a, b = randoms(9, "f32", (m, k) if layout[0] == "N" else (k, m), (k, n) if layout[1] == "N" else (n, k))
    executable = build(product(layout, m, n, k, "f32"))
    a, b, c = guarded(a), guarded(b), guarded(np.zeros((m, n), np.float32))
    run(executable, [a, b], [c])
    left, right = (a if layout[0] == "N" else a.T), (b if layout[1] == "N" else b.T)
    check(c, left.astype(float) @ right.astype(float), 200, "f32")


def test_unaligned_operands():
    a, b = randoms(10, "f32", (33, 40), (40, 31))
    shifted = []
    for array in (a, b, np.zeros((33, 31), np.float32)):
        memory = np.empty(array.size + 1, np.float32)[1:]
        memory[:] = array.ravel()
        shifted.append(memory.reshape(array.shape))
    run(build(product("NN", 33, 31, 40, "f32")), shifted[:2], shifted[2:])
    check(shifted[2], a.astype(float) @ b.astype(float), 200, "f32")


# --- what is refused


def test_refuses_integers_with_a_reason():
    text = KernelText()
    a, b = text.operand(4, 4, dtype="i32"), text.operand(4, 4, dtype="i32")
    region = "%m = arith.muli %a, %b : i32\n%s = arith.addi %o, %m : i32\n%s"
    maps = list(zip((a, b), ("(d0, d2)", "(d2, d1)"), strict=True))
    c = text.generic(maps, text.fill((4, 4), "i32", "0"), "(d0, d1)", "ppr", region, anchor=True)
    with context(), ir.Location.unknown():
        kernel, _module = parse_kernel(text.finish(c))
        assert contract.supports(kernel) == "contract: accumulates in i32, expected f32 or f64"


def test_refuses_an_epilogue_that_reads_another_element():
    text = KernelText()
    a, b = text.operand(4, 4), text.operand(4, 4)
    c = multiply(text, a, b, ("(d0, d2)", "(d2, d1)"), (4, 4))
    d = text.map([(c, "(d0, d1)"), (c, "(d1, d0)")], (4, 4), "f32", "%s = arith.addf %a, %b : f32\n%s")
    with context(), ir.Location.unknown():
        kernel, _module = parse_kernel(text.finish(d))
        assert "another element" in (contract.supports(kernel) or "")


# --- other processors, as far as a compiler can tell


@pytest.mark.parametrize("layout", LAYOUTS)
def test_compiles_for_aarch64(layout):
    facts = dataclasses.replace(facts_like("neon"), triple="aarch64-unknown-linux-gnu")
    with context(), ir.Location.unknown():
        kernel, _module = parse_kernel(product(layout, 61, 45, 67, "f32"))
        text = contract.generate(kernel, facts, contract.configure(kernel, facts)).text
    llvm_ir = lower.to_llvm_ir(text)
    code = lower.to_object(llvm_ir, facts.triple, "neoverse-n1", "", str(orc.library_path()))
    assert code[:4] == b"\x7fELF" and code[18] == 0xB7
