"""Regions as device code (hopper/scalar.py): exp takes its factor log2 e from constants where it can, and stays exact."""

import ctypes
import re

import numpy as np
import pytest
from contract_harness import KernelText, context, parse_kernel
from hopper_kernels import factors, finished, generate, multiply, narrowed
from mlir import ir

from blutrain.nova.cpu import lower, orc
from blutrain.nova.gpu.assemble import AssembleJob, assemble
from blutrain.nova.gpu.builder import Builder
from blutrain.nova.gpu.hopper.scalar import clone_region

# 1 / (1 + exp(-x (a x^2 + b))), as the tanh form of GELU has it.
SIGMOID = """
  %one = arith.constant 1.0 : f32
  %p = arith.constant 0.0713548139 : f32
  %q = arith.constant 1.59576917 : f32
  %u = arith.mulf %a, %a : f32
  %v = arith.mulf %u, %p : f32
  %w = arith.addf %v, %q : f32
  %s = arith.mulf %a, %w : f32
  %n = arith.negf %s : f32
  %e = math.exp %n : f32
  %d = arith.addf %one, %e : f32
  %r = arith.divf %one, %d : f32
  %r"""
GAUSS = "%h = arith.constant -0.5 : f32\n%u = arith.mulf %a, %a : f32\n%v = arith.mulf %u, %h : f32\n%e = math.exp %v : f32\n%e"
PLAIN = "%u = arith.mulf %a, %a : f32\n%e = math.exp %u : f32\n%e"
CONSTANT = "%h = arith.constant 1.5 : f32\n%e = math.exp %h : f32\n%s = arith.mulf %a, %e : f32\n%s"
INFINITE = "%h = arith.constant 0x7F800000 : f32\n%u = arith.mulf %a, %h : f32\n%e = math.exp %u : f32\n%e"


def cloned(region: str) -> tuple[Builder, str]:
    """The body for two elements, %x to the returned name."""
    text = KernelText()
    x = text.operand(8, 8, dtype="f32")
    made = text.map([(x, "(d0, d1)")], (8, 8), "f32", region)
    with context(), ir.Location.unknown():
        kernel, _module = parse_kernel(text.finish(made))
        out = Builder()
        (name,) = clone_region(out, kernel.generics[0].block, ["%x", "%x"], 2)
    return out, name


def multiplications(region: str) -> int:
    """Those that something needs."""
    out, name = cloned(region)
    lines = dict(line.split(" = ", 1) for line in out.function_body().replace("  ", "").splitlines())
    needed, pending = set(), [name]
    while pending:
        name = pending.pop()
        if name in lines and name not in needed:
            needed.add(name)
            pending += re.findall(r"%\w+", lines[name])
    return sum("mulf" in lines[name] for name in needed)


@pytest.mark.parametrize(
    "region, count",
    [(SIGMOID, 3), (GAUSS, 2), (PLAIN, 2), (CONSTANT, 1)],
    ids=["sigmoid", "gauss", "plain", "constant"],
)
def test_log2_e_costs_a_multiplication_only_where_no_constant_takes_it(region, count):
    assert multiplications(region) == count


@pytest.mark.parametrize(
    "region, reference",
    [
        (SIGMOID, lambda x: 1 / (1 + np.exp(-x * (0.0713548139 * x * x + 1.59576917)))),
        (GAUSS, lambda x: np.exp(-0.5 * x * x)),
        (PLAIN, lambda x: np.exp(x * x)),
        (CONSTANT, lambda x: x * np.exp(1.5)),
    ],
    ids=["sigmoid", "gauss", "plain", "constant"],
)
def test_values(region, reference):
    out, name = cloned(region)
    body = re.sub(
        r'llvm\.inline_asm [^"]*"ex2[^"]*", "=f,f" (%\w+) : \(f32\) -> f32', r"math.exp2 \1 : f32", out.function_body()
    )
    body = re.sub(
        r'llvm\.inline_asm [^"]*"rcp[^"]*", "=f,f" (%\w+) : \(f32\) -> f32', r"arith.divf %unit, \1 : f32", body
    )
    text = f"""module {{ llvm.func @f(%from: !llvm.ptr, %to: !llvm.ptr) {{
  %unit = arith.constant 1.0 : f32
  %x = llvm.load %from : !llvm.ptr -> vector<2xf32>
{body}
  llvm.store {name}, %to : vector<2xf32>, !llvm.ptr
  llvm.return
}} }}"""
    loaded = orc.load_object(lower.compile_text(text, "", "", "", str(orc.library_path())), ["f"])
    function = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)(loaded.addresses["f"])
    x = np.linspace(-6, 6, 242, dtype=np.float32).reshape(-1, 2)
    found = np.empty_like(x)
    for pair, to in zip(x, found, strict=True):
        function(pair.ctypes.data, to.ctypes.data)
    wanted = reference(x.astype(np.float64))
    np.testing.assert_allclose(found, wanted, rtol=6e-6)  # 2 ulp, and 2^-24 of exponents up to 36 times log2 e


def test_infinite_constants_stay():
    out, _ = cloned(INFINITE)
    assert "inf" not in out.function_body() and multiplications(INFINITE) == 2


@pytest.mark.parametrize("dims, kinds", [("(d1)", "rp"), ("(d0)", "pr")], ids=["columns", "rows"])
def test_what_a_reduction_computes_first_is_device_code_too(dims, kinds):
    """The sum of exp(-s^2 / 2) + sin(s): as in a region of its own, and no function of a C library."""
    text, a, b = factors("NT", 200, 328, 96, "bf16")
    y = multiply(text, "NT", a, b)
    region = (
        GAUSS.removesuffix("%e")
        + "%s = math.sin %a : f32\n%t = arith.addf %e, %s : f32\n%q = arith.addf %o, %t : f32\n%q"
    )
    sums = text.generic([(y, "(d0, d1)")], text.fill((328 if kinds == "rp" else 200,), "f32"), dims, kinds, region)
    kernel = generate(finished(text, narrowed(text, y, "bf16"), sums, dtype="bf16"))
    assert "ex2.approx" in kernel.text
    (code,) = assemble([AssembleJob(kernel.text, kernel.target)])
    assert set(code.functions) == {phase.symbol for phase in kernel.phases}
