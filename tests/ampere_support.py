"""Contract kernels for sm_80 and newer in tests: text, schedule, simulated runs, assembly."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
from contract_harness import KernelText, Value, context, parse_kernel
from gpu_simulator import simulate
from mlir import ir

from blutrain.nova.gpu.ampere import contract
from blutrain.nova.gpu.kernel import GpuKernel
from blutrain.nova.target_gpu import gpu_facts

NUMPY = {"bf16": ml_dtypes.bfloat16, "f16": np.float16, "f32": np.float32, "f64": np.float64}
KINDS = {"bf16": ("bf16", ""), "f16": ("f16", ""), "tf32": ("f32", "tf32"), "fp32": ("f32", "fp32"), "f64": ("f64", "")}
LAYOUTS = ("NN", "NT", "TN", "TT")
# Of the largest result: 16-bit factors are exact, TF32 rounds them at 2^-11.
TOLERANCE = {"bf16": 2e-6, "f16": 2e-6, "tf32": 1.5e-3, "fp32": 2e-6, "f64": 1e-14}


def sum_dtype(dtype: str) -> str:
    return "f64" if dtype == "f64" else "f32"


def multiply(k: KernelText, a: Value, b: Value, maps, shape, iterators="ppr", out_map="(d0, d1)", init=None) -> Value:
    """The anchor: factors widened in its region where they are 16 bits."""
    dtype = sum_dtype(a.dtype)
    if a.dtype != dtype or b.dtype != dtype:
        widen = [
            f"%{w} = arith.extf %{x} : {v.dtype} to {dtype}" if v.dtype != dtype else f"%{w} = arith.addf %{x}, %{x}"
            for w, x, v in (("x", "a", a), ("y", "b", b))
        ]
        region = "\n".join([*widen, f"%m = arith.mulf %x, %y : {dtype}", f"%s = arith.addf %o, %m : {dtype}", "%s"])
    else:
        region = f"%m = arith.mulf %a, %b : {dtype}\n%s = arith.addf %o, %m : {dtype}\n%s"
    return k.generic(
        list(zip((a, b), maps, strict=True)), init or k.fill(shape, dtype), out_map, iterators, region, anchor=True
    )


def product(k: KernelText, layout: str, m: int, n: int, depth: int, dtype: str, init: Value | None = None) -> Value:
    a = k.operand(*((m, depth) if layout[0] == "N" else (depth, m)), dtype=dtype)
    b = k.operand(*((depth, n) if layout[1] == "N" else (n, depth)), dtype=dtype)
    maps = ("(d0, d2)" if layout[0] == "N" else "(d2, d0)", "(d2, d1)" if layout[1] == "N" else "(d1, d2)")
    return multiply(k, a, b, maps, (m, n), init=init)


def narrowed(k: KernelText, z: Value, dtype: str) -> Value:
    dims = ", ".join(f"d{i}" for i in range(len(z.shape)))
    return k.map([(z, f"({dims})")], z.shape, dtype, f"%s = arith.truncf %a : {z.dtype} to {dtype}\n%s")


def plain(layout: str, m: int, n: int, depth: int, kind: str, out: str = "") -> str:
    """A product alone; `out`: narrowed to that type."""
    dtype, precision = KINDS[kind]
    text = KernelText()
    z = product(text, layout, m, n, depth, dtype)
    return with_precision(text.finish(narrowed(text, z, out) if out else z), precision)


def with_precision(text: str, precision: str) -> str:
    return text.replace("{nova.anchor}", f'{{nova.anchor, precision = "{precision}"}}') if precision else text


def generate(text: str, arch: str = "sm_80", **schedule: Any) -> GpuKernel:
    """The kernel; `schedule` overrides parts of the configurator's."""
    with context(), ir.Location.unknown():
        kernel, _module = parse_kernel(text)
        facts = gpu_facts(arch)
        reason = contract.supports(kernel, facts)
        assert reason is None, reason
        return contract.generate(kernel, facts, {**contract.configure(kernel, facts), **schedule})


def randoms(seed: int, dtype: str, *shapes: tuple[int, ...]) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(shape).astype(NUMPY[dtype]) for shape in shapes]


def poisoned(shape: tuple[int, ...], dtype: str) -> np.ndarray:
    return np.full(shape, np.nan, NUMPY[dtype])


def run(text: str, operands: list[np.ndarray], results: list[np.ndarray], arch: str = "sm_80", **schedule: Any):
    """Simulate; returns the counts of shared-memory accesses by wavefronts."""
    return simulate(generate(text, arch, **schedule), operands, results)


def check(got: np.ndarray, want: np.ndarray, tolerance: float) -> None:
    assert got.shape == want.shape
    if want.size:
        error = np.abs(got.astype(np.float64) - want).max() / max(np.abs(want).max(), 1e-30)
        assert error <= tolerance, f"error {error:.2e} of the largest result, allowed {tolerance:.2e}"


def check_product(layout: str, m: int, n: int, depth: int, kind: str, out: str = "", **schedule: Any):
    dtype, _ = KINDS[kind]
    a, b = randoms(
        m + n + depth,
        dtype,
        (m, depth) if layout[0] == "N" else (depth, m),
        (depth, n) if layout[1] == "N" else (n, depth),
    )
    c = poisoned((m, n), out or sum_dtype(dtype))
    accesses = run(plain(layout, m, n, depth, kind, out), [a, b], [c], **schedule)
    left, right = ((x if l == "N" else x.T).astype(np.float64) for x, l in zip((a, b), layout, strict=True))
    check(c, left @ right, 5e-3 if out == "bf16" else TOLERANCE[kind])
    return accesses
