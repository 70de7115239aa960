"""Microseconds of Python per operation: blutrain beside NumPy on the same arrays, interleaved.

    python benchmarks/dispatch.py [--rounds 200]

The arrays are tiny, so that what is measured is overhead; of all rounds the least counts, as other processes only add.
`tape` is the same operation with a tensor that requires a gradient, `backward` the backward of a chain of 100
multiplications, per multiplication. With torch installed its numbers stand beside ours.
"""

from __future__ import annotations

import argparse
import time

import numpy as np
from record import save

import blutrain as bt


def per_call_us(function, calls: int) -> float:
    start = time.perf_counter()
    for _ in range(calls):
        function()
    return (time.perf_counter() - start) / calls * 1e6


def operations(module, make):
    """name -> function without arguments, for a module with PyTorch's names."""
    x, y, m = make((4,)), make((4,)), make((4, 4))
    return {
        "x + y": lambda: x + y,
        "x * 2.0": lambda: x * 2.0,
        "x.exp()": lambda: module.exp(x),
        "x.sum()": lambda: x.sum(),
        "m @ m": lambda: m @ m,
        "m.reshape(16)": lambda: m.reshape(16),
        "m.T": lambda: m.T,
        "m[1]": lambda: m[1],
    }


def chain(module, make):
    x = make((4,)).requires_grad_()

    def run():
        y = x
        for _ in range(100):
            y = y * 1.0009765625
        y.sum().backward()

    return run


def sides() -> dict[str, tuple]:
    found = {
        "numpy": (np, lambda shape: np.ones(shape, np.float32)),
        "blutrain": (bt, lambda shape: bt.ones(shape)),
        "tape": (bt, lambda shape: bt.ones(shape, requires_grad=True)),
    }
    try:
        import torch
    except ImportError:
        return found
    torch.set_num_threads(1)
    found["torch"] = (torch, lambda shape: torch.ones(shape))
    found["torch tape"] = (torch, lambda shape: torch.ones(shape, requires_grad=True))
    return found


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--calls", type=int, default=100)
    parser.add_argument("--json", metavar="FILE")
    options = parser.parse_args(argv)
    functions = {side: operations(*pair) for side, pair in sides().items()}
    times: dict = {op: {side: [] for side in functions} for op in functions["numpy"]}
    for _ in range(options.rounds):
        for side, table in functions.items():
            for op, function in table.items():
                times[op][side].append(per_call_us(function, options.calls))
    results = [{"operation": op, "us": {s: min(t) for s, t in row.items()}} for op, row in times.items()]
    print(f"{'us per call':16}" + "".join(f"{side:>12}" for side in functions) + f"{'overhead':>12}")
    for result in results:
        us = result["us"]
        cells = "".join(f"{us[side]:12.2f}" for side in functions)
        print(f"{result['operation']:16}{cells}{us['blutrain'] - us['numpy']:12.2f}")
    for side, (module, make) in sides().items():
        if "tape" in side:
            run = chain(module, make)
            least = min(per_call_us(run, 1) for _ in range(options.rounds)) / 100
            print(f"{side:16}{least:12.2f} us per multiplication, forward and backward")
            results.append({"operation": "forward and backward of *", "us": {side: least}})
    if options.json:
        save(options.json, __file__, results, argv)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
