"""The matrix products of MLP-GPT: generated kernels against torch (cuBLAS on a GPU, MKL on a CPU), interleaved.

    python benchmarks/matmul.py [--device cuda] [--precision tf32,bf16] [--shapes NT:8192x1536x384,...]
                                [--family ampere] [--json FILE]

Forward (NT), input gradient (NN) and weight gradient (TN) of c_fc, c_proj and lm_head at widths 384 and 768 for 8192
rows, and 512^3, 1024^3 and 5120^3 in all three layouts; on a CPU those of models with 256 and 128 channels. Operands and
results are of one type on both sides. On a GPU each side replays a graph of several products, so that no launch is timed.
Per case:

us, tflops        medians over rounds, of blutrain and of torch
speedup           torch's time by ours
error             max |C - C64| / max |C64| over 64 rows, C64 in float64
predicted_us      what the configurator expected; schedule: what it picked

The summary says for each precision: least speedup, share of cases at 1.0 or above, geometric mean, largest error of
ours, and the largest ratio of our error to torch's.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import product  # first: it puts the checkout on the path
import torch
from product import Product
from record import save

from blutrain.nova.target import host_cpu
from examples.gpt_mlp.precision import pick_device

ROWS, VOCABULARY, WIDTHS, SQUARES = 8192, 50304, (384, 768), (512, 1024, 5120)
CPU_CASES = (
    "NT:2048x1024x256,NT:2048x256x1024,NT:2048x256x256,NN:2048x256x1024,NN:2048x1024x256,TN:1024x256x2048,TN:256x1024x2048,"
    "NT:1024x512x128,NT:1024x128x512,TN:512x128x1024,TN:128x512x1024,NN:1024x1024x1024,NT:1x1024x1024"
)
REPLAY_US = 8000.0  # of one timed call: many launches of a small product, one of a large one
MAX_LAUNCHES = 200


def cases() -> Iterator[tuple[str, tuple[str, int, int, int]]]:
    """Name, and (layout, m, n, k)."""
    for width in WIDTHS:
        layers = {"c_fc": (width, 4 * width), "c_proj": (4 * width, width), "lm_head": (width, VOCABULARY)}
        for layer, (fan_in, fan_out) in layers.items():
            yield f"{layer} {width} forward", ("NT", ROWS, fan_out, fan_in)
            yield f"{layer} {width} dX", ("NN", ROWS, fan_in, fan_out)
            yield f"{layer} {width} dW", ("TN", fan_out, fan_in, ROWS)
    for size in SQUARES:
        for layout in ("NN", "NT", "TN"):
            yield f"{size}^3 {layout}", (layout, size, size, size)


def main(argv: list[str] | None = None) -> int:
    options = parse(argv)
    work = [(name, Product(*shape, p)) for p in options.precision for name, shape in options.cases]
    kernels = generate([p for _, p in work], options.device, options.family)
    results = []
    for (name, case), kernel in zip(work, kernels, strict=True):
        results.append({"case": name, **measure(case, kernel, options)})
        print(line(results[-1]), flush=True)
    summary = {p: summarize([r for r in results if r["precision"] == p]) for p in options.precision}
    for precision, figures in summary.items():
        print(precision, " ".join(f"{key} {value:.3g}" for key, value in figures.items()))
    if options.json:
        save(options.json, __file__, results, argv, summary=summary, rounds=options.rounds)
    return 0


def parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Time matrix products.", allow_abbrev=False)
    add = parser.add_argument
    add("--device", choices=["cpu", "cuda", "auto"], default="auto")
    add("--precision", help="some of fp32, tf32, bf16 (a GPU: tf32,bf16; a CPU: fp32)")
    add("--shapes", help="these instead, like NT:8192x1536x384,TN:512x512x512")
    add("--only", default="", help="cases whose name contains this")
    add("--family", choices=["hopper", "ampere"], default="", help="of GPU kernels (the first that takes a product)")
    add("--rounds", type=int, default=5)
    add("--json", metavar="FILE")
    options = parser.parse_args(argv)
    options.device = pick_device(options.device)
    options.precision = (options.precision or ("fp32" if options.device == "cpu" else "tf32,bf16")).split(",")
    shapes = options.shapes or (CPU_CASES if options.device == "cpu" else "")
    named = [(text, Product.parse(text, "fp32")) for text in shapes.split(",") if text]
    given = [(text, (p.layout, p.m, p.n, p.k)) for text, p in named]
    options.cases = [(name, shape) for name, shape in given or cases() if options.only in name]
    return options


def generate(products: list[Product], device: str, family: str) -> list[Any]:
    """The kernel of each product; on a GPU their machine code too, all cores at it, in the cache."""
    if device == "cpu":
        return [product.pick(p, host_cpu()) for p in products]
    from blutrain.nova.gpu.assemble import AssembleJob, assemble
    from blutrain.nova.target_gpu import device_facts

    kernels = [product.pick(p, device_facts(), family) for p in products]
    assemble([AssembleJob(k.text, k.target, op=str(p)) for p, k in zip(products, kernels, strict=True)], strict=False)
    return kernels


def measure(case: Product, kernel: Any, options: argparse.Namespace) -> dict[str, Any]:
    """Everything about one product."""
    torch.backends.cuda.matmul.allow_tf32 = case.precision == "tf32"
    launches = 1 if options.device == "cpu" else max(1, min(MAX_LAUNCHES, round(REPLAY_US / kernel.predicted_us)))
    ours, theirs = case.operands(options.device), case.operands(options.device)
    left, right = case.factors(*theirs[:2])
    sides = {
        "blutrain": product.bind(executable(case, kernel, launches, options.device), ours),
        "torch": repeated(lambda: torch.mm(left, right, out=theirs[2]), launches, options.device),
    }
    microseconds = interleave(sides, options.rounds, options.device)
    us = {name: value / launches for name, value in microseconds.items()}
    reference = case.reference(ours)
    return {
        **{key: getattr(case, key) for key in ("layout", "m", "n", "k", "precision")},
        "us": us,
        "tflops": {name: case.flops / value / 1e6 for name, value in us.items()},
        "speedup": us["torch"] / us["blutrain"],
        "error": {"blutrain": product.error(ours[2], reference), "torch": product.error(theirs[2], reference)},
        "predicted_us": kernel.predicted_us,
        "schedule": str(kernel.schedule),
    }


def executable(case: Product, kernel: Any, launches: int, device: str) -> Any:
    plan = case.plan(kernel, launches)
    if device == "cpu":
        from blutrain.nova.cpu.executable import build_executable

        return build_executable(plan, host_cpu())
    from blutrain.nova.gpu.executable import build_executable as build_for_gpu
    from blutrain.tensor.device import Device

    return build_for_gpu(plan, Device(device))


def repeated(function: Callable[[], object], launches: int, device: str) -> Callable[[], object]:
    """`launches` calls as one: on a GPU a graph of them."""
    if device == "cpu":
        return function
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            function()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(launches):
            function()
    return graph.replay


def interleave(sides: dict[Any, Callable[[], object]], rounds: int, device: str, calls: int = 3) -> dict[Any, float]:
    """Median microseconds a call: of the rounds, each the median of some calls; the order turns from round to round."""
    times: dict[Any, list[float]] = {name: [] for name in sides}
    for turn in range(rounds):
        names = list(sides)
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            if device == "cpu":
                time.sleep(0.06)  # outlasts the spinning of the other side's idle threads
            sides[name]()
            times[name].append(statistics.median(timed(sides[name], device) for _ in range(calls)))
    return {name: statistics.median(values) for name, values in times.items()}


def timed(call: Callable[[], object], device: str) -> float:
    """Microseconds of one call; on a GPU by events, behind an earlier call that keeps it busy while the host is."""
    if device == "cpu":
        began = time.perf_counter()
        call()
        return (time.perf_counter() - began) * 1e6
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    call()
    start.record()
    call()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) * 1e3


def summarize(results: list[dict[str, Any]]) -> dict[str, float]:
    speedups = [r["speedup"] for r in results]
    return {
        "least": min(speedups),
        "share_at_least_1": sum(s >= 1 for s in speedups) / len(speedups),
        "geometric_mean": statistics.geometric_mean(speedups),
        "largest_error": max(r["error"]["blutrain"] for r in results),
        "largest_error_ratio": max(r["error"]["blutrain"] / max(r["error"]["torch"], 1e-30) for r in results),
    }


def line(result: dict[str, Any]) -> str:
    us, error = result["us"], result["error"]
    return (
        f"{result['precision']} {result['case']:20} {us['blutrain']:9.2f} us  torch {us['torch']:9.2f}"
        f"  {result['speedup']:5.2f}x  {result['tflops']['blutrain']:6.1f} TFLOP/s  predicted {result['predicted_us']:8.1f}"
        f"  error {error['blutrain']:.1e} ({error['torch']:.1e})  {result['schedule'][:60]}"
    )


if __name__ == "__main__":
    raise SystemExit(main())
