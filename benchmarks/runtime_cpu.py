"""The CPU runtime by itself: compiling, starting from the cache, launching, forking and joining.

    python benchmarks/runtime_cpu.py [--json FILE]

One JSON line a figure. `cold`: seconds to compile 20 matrix-product kernels and a host program, in fresh workers with
an empty cache. `warm`: seconds of a new process from its first import of nova to a loaded program, all objects in the
cache (and whether MLIR was imported). `launch`: microseconds of a program without launches (Python alone), and of 60
launches of four tiny tasks. `fork_join`: microseconds by which a launch of two equal tasks on two threads exceeds
half the time of one thread. `replay`: microseconds of Python in a replayed training step of 89 parameters, by what the
user's loop calls, the launch of its kernels left out (medians).
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import pickle
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
import numpy as np
from runtime_support import chain_plan, count_kernel, ramp, run_script

import blutrain as bt
from blutrain import config
from blutrain.nova.cpu.compile_workers import shared_workers
from blutrain.nova.cpu.executable import build_executable
from blutrain.nova.explain import programs_of
from blutrain.nova.plan import BufferRef, Launch, ProgramPlan
from blutrain.nova.target import host_cpu
from blutrain.optim import AdamW
from examples.gpt_mlp.model import MLPGPT, Config

SHAPES = [(m, n, k) for m in (64, 256, 512, 1024, 2048) for n, k in ((256, 256), (1024, 256), (256, 1024), (128, 512))]
WARM = """
    import pickle, sys, time
    start = time.perf_counter()
    from blutrain.nova.cpu.executable import build_executable
    from blutrain.nova.target import host_cpu
    plan = pickle.load(open({file!r}, "rb"))
    executable = build_executable(plan, host_cpu())
    print(time.perf_counter() - start, executable.report.compile_seconds, executable.report.load_seconds)
    print(executable.report.compiled, "mlir" in sys.modules)
"""


def product_plan() -> ProgramPlan:
    """A launch of each of 20 contract kernels; it is never run."""
    from contract_harness import KernelText, context, parse_kernel
    from fused_cpu import product
    from mlir import ir

    from blutrain.nova.cpu import contract

    kernels = []
    with context(), ir.Location.unknown():
        for m, n, k in SHAPES:
            text = KernelText()
            kernel, _module = parse_kernel(text.finish(product(text, "NT", m, n, k)))
            kernels.append(contract.generate(kernel, host_cpu(), contract.configure(kernel, host_cpu())))
    launches = tuple(Launch(number, (BufferRef("arena", 0),) * 3) for number in range(len(kernels)))
    return ProgramPlan(tuple(kernels), launches, 16 << 20)


def compiling(folder: Path) -> dict[str, object]:
    plan = product_plan()
    file = folder / "plan"
    file.write_bytes(pickle.dumps(plan))
    shared_workers(host_cpu().threads).close()
    start = time.perf_counter()
    executable = build_executable(plan, host_cpu())
    cold = time.perf_counter() - start
    runs = [run_script(WARM.format(file=str(file)), cache=config.get("NOVA_CACHE")) for _ in range(3)]
    lines = [run.stdout.split() for run in runs]
    warm, lookup, load = (statistics.median(float(line[i]) for line in lines) for i in range(3))
    return {
        "objects": executable.report.compiled,
        "cold_s": round(cold, 2),
        "warm_s": round(warm, 3),
        "warm_lookup_s": round(lookup, 4),
        "warm_load_s": round(load, 4),
        "warm_compiled_and_mlir": lines[0][3:],
    }


def launching() -> dict[str, object]:
    empty = build_executable(ProgramPlan((), (), 0), host_cpu())
    x, chain = ramp(), build_executable(chain_plan(60), host_cpu())
    addresses = [x.ctypes.data]
    chain.run(addresses)
    empty.launch()
    return {
        "empty_us": round(median_us(empty.launch, 20_000), 2),
        "launches_60_us": round(median_us(chain.launch, 500), 1),
        "run_60_us": round(median_us(lambda: chain.run(addresses), 500), 1),
    }


def forking() -> dict[str, object]:
    facts = host_cpu()
    refs = (BufferRef("arena", 0), BufferRef("arena", 0, 2048))
    launches = (Launch(0, refs),) * 50
    pair = []
    for threads in (1, 2):
        plan = ProgramPlan((count_kernel(2, 8000, stride=64),), launches, 4096)
        pair.append(build_executable(plan, dataclasses.replace(facts, threads=threads)))
    one, two = ([] for _ in range(2))
    for _ in range(100):
        for executable, times in zip(pair, (one, two), strict=True):
            start = time.perf_counter()
            executable.launch()
            times.append((time.perf_counter() - start) * 1e6 / len(launches))
    alone, together = statistics.median(one), statistics.median(two)
    figures = {"one_thread_us": alone, "two_threads_us": together, "over_us": together - alone / 2}
    return {name: round(value, 2) for name, value in figures.items()}


def replaying(steps: int = 2000) -> dict[str, object]:
    bt.manual_seed(0)
    model = MLPGPT(Config(vocab_size=64, block_size=8, n_embd=8, n_layer=14))
    optimizer = AdamW(model.parameters(), lr=3e-4)
    x, y = (bt.tensor(np.random.default_rng(i).integers(0, 64, (2, 8))) for i in range(2))
    model.compile(first_step="compiled")
    times: dict[str, list[float]] = {name: [] for name in ("call", "backward", "step", "zero_grad", "all")}

    def step() -> None:
        marks = [time.perf_counter()]
        loss = model(x, y)
        marks.append(time.perf_counter())
        loss.backward()
        marks.append(time.perf_counter())
        optimizer.step()
        marks.append(time.perf_counter())
        optimizer.zero_grad()
        marks.append(time.perf_counter())
        for name, start, end in zip(times, marks, marks[1:], strict=False):
            times[name].append(end - start)
        times["all"].append(marks[-1] - marks[0])

    for _ in range(10):
        step()
    (program,) = programs_of(model)
    program.executable.launch = lambda *context: None  # shadows the method
    for values in times.values():
        values.clear()
    for _ in range(steps):
        step()
    figures = {f"{name}_us": round(statistics.median(values) * 1e6, 1) for name, values in times.items()}
    return {"parameters": len(list(model.parameters())), **figures}


def median_us(function: Callable[[], object], count: int) -> float:
    times = []
    for _ in range(9):
        start = time.perf_counter()
        for _ in range(count):
            function()
        times.append((time.perf_counter() - start) / count * 1e6)
    return statistics.median(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="also write the lines to this file")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        config.set(NOVA_CACHE=os.path.join(folder, "cache"))
        figures = {
            "compile": compiling(Path(folder)),
            "launch": launching(),
            "fork_join": forking(),
            "replay": replaying(),
        }
    lines = [json.dumps({"case": name, **values}) for name, values in figures.items()]
    print("\n".join(lines))
    if options.json:
        options.json.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
