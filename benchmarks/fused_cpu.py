"""Matrix products of an MLP-GPT with what is fused into them, on this CPU: one generated kernel against torch's separate
operations, with preallocated outputs where torch offers them, interleaved in one run. (matmul.py has bare products.)

    python benchmarks/fused_cpu.py [--rounds 7] [--only gelu] [--json FILE]

For each case: median milliseconds and GFLOP/s of both sides, and `speedup`, torch's time by ours.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
import torch
from contract_harness import KernelText, compiled, context, parse_kernel
from gelu_regions import gelu, gelu_gradient_region, gelu_region, gelu_slope
from mlir import ir
from record import save

from blutrain.nova.cpu import contract
from blutrain.nova.target import host_cpu

PRODUCT = "%m = arith.mulf %a, %b : f32\n%s = arith.addf %o, %m : f32\n%s"


def product(k: KernelText, layout: str, m: int, n: int, steps: int):
    a = k.operand(*((m, steps) if layout[0] == "N" else (steps, m)))
    b = k.operand(*((steps, n) if layout[1] == "N" else (n, steps)))
    return multiply(k, a, b, layout, m, n)


def multiply(k: KernelText, a, b, layout: str, m: int, n: int):
    maps = ("(d0, d2)" if layout[0] == "N" else "(d2, d0)", "(d2, d1)" if layout[1] == "N" else "(d1, d2)")
    inputs = list(zip((a, b), maps, strict=True))
    return k.generic(inputs, k.fill((m, n), "f32"), "(d0, d1)", "ppr", PRODUCT, anchor=True)


def build(text: str):
    """(executable, bind) of one kernel; operands and results are bound by address once."""
    facts = host_cpu()
    start = time.perf_counter()
    with context(), ir.Location.unknown():
        kernel, _module = parse_kernel(text)
        reason = contract.supports(kernel)
        if reason:
            raise SystemExit(reason)
        config = contract.configure(kernel, facts)
        generated = contract.generate(kernel, facts, config)
    executable = compiled(kernel, generated)
    seconds = time.perf_counter() - start

    def bind(arrays: list[np.ndarray]) -> Callable[[], None]:
        inputs = len(kernel.operands)
        for i, array in enumerate(arrays):
            (executable.bind if i < inputs else executable.bind_output)(
                i if i < inputs else i - inputs, array.ctypes.data
            )
        executable.keep = arrays
        return executable.launch

    return bind, config, seconds, generated


def random(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape, np.float32)


def interleave(contenders: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Median seconds a call, in rounds of 20 ms each; the pause outlasts the spinning of the others' idle threads."""
    counts = {}
    for name, function in contenders.items():
        function()
        start = time.perf_counter()
        function()
        counts[name] = max(1, int(0.02 / max(time.perf_counter() - start, 1e-7)))
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(rounds):
        for name, function in contenders.items():
            time.sleep(0.06)
            function()
            start = time.perf_counter()
            for _ in range(counts[name]):
                function()
            times[name].append((time.perf_counter() - start) / counts[name])
    return {name: statistics.median(values) for name, values in times.items()}


def bias_gelu_case(m: int, n: int, steps: int):
    """gelu(x W^T + b), the sum stored too, as the forward of a hidden layer."""
    k = KernelText()
    z = product(k, "NT", m, n, steps)
    b = k.operand(n)
    add = "%s = arith.addf %a, %b : f32\n%s"
    s = k.map([(z, "(d0, d1)"), (b, "(d1)")], (m, n), "f32", add)
    g = k.map([(s, "(d0, d1)")], (m, n), "f32", gelu_region("%a"))
    x, w, bias = random(m, steps), random(n, steps), random(n)
    arrays = [x, w, bias, np.empty((m, n), np.float32), np.empty((m, n), np.float32)]
    tx, tw, tb, out = (torch.from_numpy(v) for v in (x, w, bias, np.empty((m, n), np.float32)))

    def separate():
        torch.addmm(tb, tx, tw.T, out=out)
        return torch.nn.functional.gelu(out, approximate="tanh")

    pre = x @ w.T + bias
    return k.finish(s, g), arrays, separate, [pre, gelu(pre)]


def residual_case(m: int, n: int, steps: int):
    """x + h W^T + b, the end of a residual block."""
    k = KernelText()
    z = product(k, "NT", m, n, steps)
    b, r = k.operand(n), k.operand(m, n)
    region = "%s = arith.addf %a, %b : f32\n%t = arith.addf %s, %c : f32\n%t"
    y = k.map([(z, "(d0, d1)"), (b, "(d1)"), (r, "(d0, d1)")], (m, n), "f32", region)
    h, w, bias, x = random(m, steps), random(n, steps), random(n), random(m, n)
    th, tw, tb, tx, out = (torch.from_numpy(v) for v in (h, w, bias, x, np.empty((m, n), np.float32)))
    separate = lambda: torch.add(torch.addmm(tb, th, tw.T, out=out), tx, out=out)
    return k.finish(y), [h, w, bias, x, np.empty((m, n), np.float32)], separate, [h @ w.T + bias + x]


def gelu_backward_case(m: int, n: int, steps: int):
    """dz = (dy W) gelu'(z) and its sum over rows, the bias gradient of the layer before."""
    k = KernelText()
    dh = product(k, "NN", m, n, steps)
    z = k.operand(m, n)
    dz = k.map([(dh, "(d0, d1)"), (z, "(d0, d1)")], (m, n), "f32", gelu_gradient_region("%a", "%b"))
    db = k.generic([(dz, "(d0, d1)")], k.fill((n,), "f32"), "(d1)", "rp", "%s = arith.addf %o, %a : f32\n%s")
    dy, w, pre = random(m, steps), random(steps, n), random(m, n)
    arrays = [dy, w, pre, np.empty((m, n), np.float32), np.empty(n, np.float32)]
    tdy, tw, tz, out = (torch.from_numpy(v) for v in (dy, w, pre, np.empty((m, n), np.float32)))

    def separate():
        torch.mm(tdy, tw, out=out)
        return torch.ops.aten.gelu_backward(out, tz, approximate="tanh").sum(0)

    want = (dy @ w) * gelu_slope(pre)
    return k.finish(dz, db), arrays, separate, [want, want.sum(0)]


def gelu_weight_gradient_case(m: int, n: int, steps: int):
    """gelu(z)^T dy: the activation is recomputed while packing."""
    k = KernelText()
    z, g = k.operand(steps, m), k.operand(steps, n)
    act = k.map([(z, "(d0, d1)")], (steps, m), "f32", gelu_region("%a"))
    c = multiply(k, act, g, "TN", m, n)
    pre, dy = random(steps, m), random(steps, n)
    tz, tdy, out = (torch.from_numpy(v) for v in (pre, dy, np.empty((m, n), np.float32)))
    separate = lambda: torch.mm(torch.nn.functional.gelu(tz, approximate="tanh").T, tdy, out=out)
    return k.finish(c), [pre, dy, np.empty((m, n), np.float32)], separate, [gelu(pre).T @ dy]


def layer_norm_case(m: int, n: int, steps: int):
    """((x - mean) rstd w + b) W^T: the normalisation is applied while packing, from row statistics that exist."""
    k = KernelText()
    x, mean, rstd, scale, shift = k.operand(m, steps), k.operand(m), k.operand(m), k.operand(steps), k.operand(steps)
    region = """%p = arith.subf %a, %b : f32
%q = arith.mulf %p, %c : f32
%r = arith.mulf %q, %d : f32
%s = arith.addf %r, %e : f32
%s"""
    inputs = [(x, "(d0, d1)"), (mean, "(d0)"), (rstd, "(d0)"), (scale, "(d1)"), (shift, "(d1)")]
    norm = k.map(inputs, (m, steps), "f32", region)
    c = multiply(k, norm, k.operand(n, steps), "NT", m, n)
    x, w, scale, shift = random(m, steps), random(n, steps), random(steps), random(steps)
    mean, rstd = x.mean(1), 1 / np.sqrt(x.var(1) + 1e-5)
    tx, tw, ts, tb, out = (torch.from_numpy(v) for v in (x, w, scale, shift, np.empty((m, n), np.float32)))
    separate = lambda: torch.mm(torch.nn.functional.layer_norm(tx, (steps,), ts, tb), tw.T, out=out)
    want = ((x - mean[:, None]) * rstd[:, None] * scale + shift) @ w.T
    return k.finish(c), [x, mean, rstd, scale, shift, w, np.empty((m, n), np.float32)], separate, [want]


def cases():
    for make, shapes in FUSED.items():
        for shape in shapes:
            name = f"{make.__name__.removesuffix('_case')}_{'x'.join(map(str, shape))}"
            yield name, shape, lambda m=make, s=shape: m(*s)


FUSED = {
    bias_gelu_case: ((2048, 1024, 256), (1024, 512, 128)),
    residual_case: ((2048, 256, 1024), (1024, 128, 512)),
    gelu_backward_case: ((2048, 1024, 256), (1024, 512, 128)),
    gelu_weight_gradient_case: ((1024, 256, 2048), (512, 128, 1024)),
    layer_norm_case: ((2048, 1024, 256), (1024, 512, 128)),
}


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--only", default="", help="cases whose name contains this")
    parser.add_argument("--json", metavar="FILE")
    options = parser.parse_args(argv)
    torch.set_num_threads(host_cpu().threads)
    results = []
    for name, shape, make in cases():
        if options.only in name:
            results.append(measure(name, shape, make(), options.rounds))
            print(json.dumps(results[-1]), flush=True)
    if options.json:
        save(options.json, __file__, results, argv)
    return 0


def measure(name: str, shape: tuple[int, int, int], case: tuple, rounds: int) -> dict[str, Any]:
    """The result of a case. Errors: SystemExit where our result is wrong."""
    (m, n, steps), (text, arrays, separate, expected) = shape, case
    bind, config, seconds, generated = build(text)
    ours = bind(arrays)
    ours()
    for got, want in zip(arrays[-len(expected) :], expected, strict=True):
        error = np.abs(got - want).max() / np.abs(want).max()
        if not error < 1e-5:
            raise SystemExit(f"{name}: relative error {error}")
    times = interleave({"blutrain": ours, "torch": separate}, rounds)
    return {
        "case": name,
        "ms": {key: round(value * 1e3, 4) for key, value in times.items()},
        "gflops": {key: round(2 * m * n * steps / value / 1e9, 1) for key, value in times.items()},
        "speedup": round(times["torch"] / times["blutrain"], 2),
        "predicted_ms": round(generated.predicted_us / 1e3, 4),
        "build_s": round(seconds, 2),
        "schedule": config,
    }


if __name__ == "__main__":
    raise SystemExit(main())
