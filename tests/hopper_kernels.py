"""Contract kernels for the tests of the sm_90a family: products in every layout, with and without epilogues."""

from __future__ import annotations

from contract_harness import KernelText, Value, context, parse_kernel
from mlir import ir

from blutrain.nova.gpu.hopper import contract
from blutrain.nova.gpu.kernel import GpuKernel
from blutrain.nova.target_gpu import gpu_facts

H200 = gpu_facts("sm_90a")
LAYOUTS = ("NT", "NN", "TN", "TT")
OPERAND = {"tf32": "f32", "fp32": "f32", "bf16": "bf16", "f16": "f16"}


def factors(
    layout: str, m: int, n: int, k: int, dtype: str, batch: tuple[int, ...] = ()
) -> tuple[KernelText, Value, Value]:
    text = KernelText()
    a = text.operand(*batch, *((m, k) if layout[0] == "N" else (k, m)), dtype=OPERAND[dtype])
    b = text.operand(*batch, *((k, n) if layout[1] == "N" else (n, k)), dtype=OPERAND[dtype])
    return text, a, b


def multiply(text: KernelText, layout: str, a: Value, b: Value, init: Value | None = None) -> Value:
    """The anchored product, f32."""
    batch = a.shape[:-2]
    m, n = a.shape[-2 if layout[0] == "N" else -1], b.shape[-1 if layout[1] == "N" else -2]
    outer = "".join(f"d{i}, " for i in range(len(batch)))
    dm, dn, dk = (f"d{len(batch) + i}" for i in range(3))
    maps = (
        f"({outer}{dm}, {dk})" if layout[0] == "N" else f"({outer}{dk}, {dm})",
        f"({outer}{dk}, {dn})" if layout[1] == "N" else f"({outer}{dn}, {dk})",
    )
    if a.dtype == "f32":
        product = "%m = arith.mulf %a, %b : f32"
    else:
        product = f"%x = arith.extf %a : {a.dtype} to f32\n%y = arith.extf %b : {a.dtype} to f32\n%m = arith.mulf %x, %y : f32"
    region = f"{product}\n%s = arith.addf %o, %m : f32\n%s"
    return text.generic(
        list(zip((a, b), maps, strict=True)),
        init or text.fill((*batch, m, n), "f32"),
        f"({outer}{dm}, {dn})",
        "p" * len(batch) + "ppr",
        region,
        anchor=True,
    )


def narrowed(text: KernelText, value: Value, dtype: str) -> Value:
    if dtype == "f32":
        return value
    at = f"({', '.join(f'd{i}' for i in range(len(value.shape)))})"
    return text.map([(value, at)], value.shape, dtype, f"%z = arith.truncf %a : f32 to {dtype}\n%z")


def finished(text: KernelText, *results: Value, dtype: str, aliases: tuple[int, ...] | None = None) -> str:
    precision = "fp32" if dtype == "fp32" else "tf32"
    whole = text.finish(*results, aliases=aliases)
    return whole.replace("attrs = {nova.anchor}", f'attrs = {{nova.anchor, precision = "{precision}"}}')


def plain(layout: str, m: int, n: int, k: int, dtype: str, out: str = "", batch: tuple[int, ...] = ()) -> str:
    text, a, b = factors(layout, m, n, k, dtype, batch)
    return finished(text, narrowed(text, multiply(text, layout, a, b), out or a.dtype), dtype=dtype)


def bias_gelu(layout: str, m: int, n: int, k: int, dtype: str) -> str:
    """gelu(a b + bias), the tanh form."""
    text, a, b = factors(layout, m, n, k, dtype)
    bias = text.operand(n)
    region = """%v = arith.addf %a, %b : f32
    %w1 = arith.constant 0.0356774081 : f32
    %w0 = arith.constant 0.7978845608 : f32
    %half = arith.constant 0.5 : f32
    %square = arith.mulf %v, %v : f32
    %inner = arith.mulf %square, %w1 : f32
    %factor = arith.addf %inner, %w0 : f32
    %u = arith.mulf %factor, %v : f32
    %t = math.tanh %u : f32
    %h = arith.mulf %v, %half : f32
    %ht = arith.mulf %h, %t : f32
    %g = arith.addf %h, %ht : f32
    %g"""
    y = text.map([(multiply(text, layout, a, b), "(d0, d1)"), (bias, "(d1)")], (m, n), "f32", region)
    return finished(text, narrowed(text, y, a.dtype), dtype=dtype)


def gated(layout: str, m: int, n: int, k: int, dtype: str) -> str:
    """y = a b * tanh(h) + s, s a row factor; results y, its transpose, and its column sums."""
    text, a, b = factors(layout, m, n, k, dtype)
    h, s = text.operand(m, n, dtype=a.dtype), text.operand(m)
    wide = "" if a.dtype == "f32" else f"%hh = arith.extf %b : {a.dtype} to f32\n"
    gate = "%b" if a.dtype == "f32" else "%hh"
    region = f"{wide}%t = math.tanh {gate} : f32\n%y = arith.mulf %a, %t : f32\n%w = arith.addf %y, %c : f32\n%w"
    inputs = [(multiply(text, layout, a, b), "(d0, d1)"), (h, "(d0, d1)"), (s, "(d0)")]
    y = text.map(inputs, (m, n), "f32", region)
    sums = text.generic([(y, "(d0, d1)")], text.fill((n,), "f32"), "(d1)", "rp", "%q = arith.addf %o, %a : f32\n%q")
    turned = text.map([(y, "(d1, d0)")], (n, m), "f32", "%a")
    return finished(text, narrowed(text, y, a.dtype), narrowed(text, turned, a.dtype), sums, dtype=dtype)


def accumulated(layout: str, m: int, n: int, k: int, dtype: str) -> str:
    """c + a b in the memory of c."""
    text, a, b = factors(layout, m, n, k, dtype)
    c = text.operand(m, n)
    return finished(text, multiply(text, layout, a, b, init=c), dtype=dtype, aliases=(2,))


def supports(text: str, facts=H200) -> str | None:
    with context(), ir.Location.unknown():
        kernel, _module = parse_kernel(text)
        return contract.supports(kernel, facts)


def configure(text: str, facts=H200) -> dict:
    with context(), ir.Location.unknown():
        kernel, _module = parse_kernel(text)
        return contract.configure(kernel, facts)


def generate(text: str, facts=H200, **schedule) -> GpuKernel:
    """The kernel's code; `schedule` replaces entries of the configurator's."""
    with context(), ir.Location.unknown():
        kernel, _module = parse_kernel(text)
        return contract.generate(kernel, facts, {**contract.configure(kernel, facts), **schedule})
