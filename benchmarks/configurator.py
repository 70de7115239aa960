"""The configurator's pick against a sweep of the schedules that a product can have, on shapes that nothing was fitted on.

    python benchmarks/configurator.py --json FILE                           # build and measure, on a machine with a GPU
    python benchmarks/configurator.py --build DIR [--target sm_90a]         # without a GPU: all machine code into DIR
    python benchmarks/configurator.py --measure DIR --json FILE             # elsewhere: no compiler is needed for this

`schedule_space.py` enumerates the legal schedules of a family. --limit N takes N of them for each shape: half are those
with the least predicted time, the others are the pick in other orders of tiles, or spread evenly over the rest; without it
all are taken. Each is run and its result checked against float64; all that are right are timed, interleaved in orders drawn
by lot, five times; then the pick and the five fastest again, nine times. (One after another they would find the chip at
another clock than products that follow each other.) A kernel that does not end ends the process; --resume then goes on with
the shapes that the JSON file lacks. In it, for each shape (SHAPES in tf32 and bf16 unless --shapes says otherwise):

legal, swept      schedules that exist, and that were timed; failed: that ptxas refused, wrong: whose result was wrong
ratio             the pick's median by the least of the six medians
best_schedule     of that one; predicted_us: of the pick; final: of the six [schedule, measured]
correlation       of predicted and measured time over the sweep, by rank
table             with --table: of all that were timed [schedule, predicted, measured]

The summary has geometric mean and maximum of the ratios, of shapes above 500 us (limited by power) apart.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import pickle
import random
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import product
from matmul import interleave
from product import Product
from record import save
from schedule_build import Built, build, read, refresh_pick, write

from blutrain import config
from blutrain.nova.cpu.objects import object_cache
from blutrain.nova.gpu.assemble import assembly_key
from blutrain.nova.target_gpu import ARCHITECTURES, gpu_facts

SEED = 2038  # of the lot: 20:38 on 2026-11-30, drawn before any of them was priced; none that constants were fitted to
LAYOUTS, GRAINS = ("NT", "NN", "TN"), (128, 64, 32, 8)  # of a drawn shape, whose extents are multiples of a grain
EXTENTS, FLOPS = (256, 12288), (2e9, 1e11)


def drawn(seed: int) -> tuple[str, ...]:
    """A product of each layout and grain, its extents by lot, again where it is too short or too long."""
    lot, shapes = random.Random(seed), []
    for grain, layout in itertools.product(GRAINS, LAYOUTS):
        while True:
            m, n, k = (round(math.exp(lot.uniform(*map(math.log, EXTENTS))) / grain) * grain for _ in range(3))
            if FLOPS[0] <= 2 * m * n * k <= FLOPS[1]:
                break
        shapes.append(f"{layout}:{m}x{n}x{k}")
    return tuple(shapes)


SHAPES = drawn(SEED)
TOP, MEDIANS, SWEEP_ROUNDS, LONG_US = 5, 9, 5, 500.0
HANG_S = 20.0
SWEEP_US, FINAL_US, MAX_LAUNCHES = 300.0, 1000.0, 200  # of one timed call, by predicted time


def main(argv: list[str] | None = None) -> int:
    options = parse(argv)
    deadline = time.monotonic() + options.minutes * 60
    if options.build:
        facts = gpu_facts(options.target)
        for number, each in enumerate(options.products):
            write(Path(options.build) / f"{number:02}.xz", build(each, options.family, options.limit, facts))
        return 0
    earlier = Path(options.json) if options.resume else None
    results = json.loads(earlier.read_text())["results"] if earlier and earlier.exists() else []
    done = {r["shape"] for r in results}

    def keep(result: dict[str, Any]) -> None:
        results.append(result)
        print(line(result), flush=True)
        if options.json:
            save(options.json, __file__, results, argv, summary=summarize(results))

    config.set(NOVA_CACHE="0")  # in memory only: kernels of a sweep are not worth keeping
    for built in source(options):
        if str(built.product) in done:
            continue
        if time.monotonic() > deadline:
            print(f"stopped after {options.minutes} minutes", flush=True)
            break
        keep(measure(built, options.table, keep))
    for name, figures in summarize(results).items():
        print(name, " ".join(f"{key} {value:.4g}" for key, value in figures.items()))
    return 0


def parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Sweep the schedules of matrix products.", allow_abbrev=False)
    add = parser.add_argument
    add("--target", choices=ARCHITECTURES, default="sm_90a", help="for --build; else the device's")
    add("--family", choices=["hopper", "ampere"], help="of generators (the first that serves the target)")
    add("--precision", default="tf32,bf16")
    add("--shapes", default=",".join(SHAPES), help="like NT:4096x2048x1024,TN:512x512x16384")
    add("--limit", type=int, help="schedules of a shape (all)")
    add("--minutes", type=float, default=60.0, help="no other shape is begun after so many")
    add("--build", metavar="DIR")
    add("--measure", metavar="DIR")
    add("--table", action="store_true", help="keep every schedule's times")
    add("--json", metavar="FILE")
    add("--resume", action="store_true", help="leave out shapes that the JSON file has")
    options = parser.parse_args(argv)
    options.products = [Product.parse(s, p) for p in options.precision.split(",") for s in options.shapes.split(",")]
    return options


def source(options: argparse.Namespace) -> Iterator[Built]:
    """What is to be measured: from a folder, or built now."""
    if options.measure:
        for path in sorted(Path(options.measure).glob("*.xz")):
            built = read(path)
            refresh_pick(built, gpu_facts(built.arch))
            yield built
        return
    from blutrain.nova.target_gpu import device_facts

    for each in options.products:
        yield build(each, options.family, options.limit, device_facts())


# ---------------------------------------------------------------- measuring


class Sweep:
    """A product's operands and the result it should have, on the device, and its kernels' times."""

    device = "cuda"

    def __init__(self, built: Built):
        self.built, self.operands = built, built.product.operands(self.device)
        self.reference = built.product.reference(self.operands)
        self.limit = 4e-3 if built.product.precision == "bf16" else 5e-4

    def call(self, number: int, launches: int) -> Any:
        """A call that runs schedule `number` that often."""
        from blutrain.nova.gpu.executable import build_executable
        from blutrain.tensor.device import Device

        kernel = self.built.kernels[number]
        assembled = pickle.dumps(("", self.built.cubins[number], ""))  # found in the cache, nothing is compiled
        object_cache().put(assembly_key(kernel.text, kernel.target), assembled)
        return product.bind(
            build_executable(self.built.product.plan(kernel, launches), Device(self.device)), self.operands
        )

    def time(self, numbers: Iterable[int], microseconds: float, rounds: int) -> dict[int, float]:
        """Microseconds of each, interleaved; a call runs a kernel for about so many microseconds."""
        predicted = {number: self.built.kernels[number].predicted_us for number in numbers}
        launches = {n: max(1, min(MAX_LAUNCHES, round(microseconds / us))) for n, us in predicted.items()}
        calls = {n: self.call(n, launches[n]) for n in predicted}
        order, times = random.Random(0), []
        for _ in range(rounds):  # what a kernel follows matters, and whether it comes first or last
            turn = order.sample(list(calls), len(calls))
            times.append(interleave({n: calls[n] for n in turn}, 1, self.device))
        return {n: statistics.median(t[n] for t in times) / launches[n] for n in calls}

    def is_right(self, number: int) -> bool:
        """Is the result, written to poisoned memory, that of the reference."""
        self.operands[2].fill_(float("nan"))
        self.call(number, 1)()
        return product.error(self.operands[2], self.reference) < self.limit


def measure(
    built: Built, keep_table: bool, keep: Callable[[dict[str, Any]], None], make_sweep: type[Sweep] = Sweep
) -> dict[str, Any]:
    """A shape's result. A kernel that never ends cannot be stopped: then `keep` is told, and the process ends."""
    sweep, right = make_sweep(built), []
    for number, entry in enumerate(built.configs):
        watchdog = threading.Timer(HANG_S, give_up, (str(built.product), compact(entry), keep))
        watchdog.daemon = True
        watchdog.start()
        if sweep.is_right(number):
            right.append(number)
        watchdog.cancel()
    swept = sweep.time(right, SWEEP_US, SWEEP_ROUNDS)
    us = sweep.time(sorted({0, *sorted(swept, key=swept.__getitem__)[:TOP]} & swept.keys()), FINAL_US, MEDIANS)
    best = min(us, key=us.__getitem__)
    predicted = [built.kernels[number].predicted_us for number in swept]
    table = [[compact(built.configs[n]), built.kernels[n].predicted_us, value] for n, value in swept.items()]
    return {
        "shape": str(built.product),
        "family": built.family,
        "legal": built.legal,
        "swept": len(swept),
        "failed": built.failed,
        "wrong": [compact(built.configs[n]) for n in range(len(built.kernels)) if n not in swept],
        "ratio": us[0] / us[best] if 0 in us else None,
        "pick_us": us.get(0),
        "best_us": us[best],
        "predicted_us": built.kernels[0].predicted_us,
        "pick_schedule": built.kernels[0].schedule,
        "best_schedule": f"{built.kernels[best].schedule} {compact(built.configs[best])}",
        "final": [[compact(built.configs[n]), value] for n, value in us.items()],
        "correlation": rank_correlation(predicted, list(swept.values())),
        **({"table": table} if keep_table else {}),
    }


def give_up(shape: str, schedule: str, keep: Callable[[dict[str, Any]], None]) -> None:
    keep({"shape": shape, "ratio": None, "error": f"did not end in {HANG_S:.0f} s: {schedule}"})
    os._exit(3)


def rank_correlation(a: list[float], b: list[float]) -> float:
    """Spearman's, 0 for fewer than three."""
    first, second = (np.argsort(np.argsort(values)) for values in (a, b))
    return float(np.corrcoef(first, second)[0, 1]) if len(a) > 2 else 0.0


def compact(entry: dict[str, Any]) -> str:
    """A schedule in a few letters."""
    plain = ("", "1", "False")
    return " ".join(f"{key}={value}" for key, value in entry.items() if key != "family" and str(value) not in plain)


def summarize(results: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """Of short and of long shapes, those for which the pick ran."""
    summary = {}
    for name, is_long in (("up to 500 us", False), ("above 500 us", True)):
        chosen = [r for r in results if r["ratio"] and (r["best_us"] > LONG_US) == is_long]
        if chosen:
            off = [r["predicted_us"] / r["pick_us"] for r in chosen]
            summary[name] = {
                "shapes": len(chosen),
                "geometric_mean": statistics.geometric_mean([r["ratio"] for r in chosen]),
                "worst": max(r["ratio"] for r in chosen),
                "predicted_by_measured": statistics.geometric_mean(off),
                "predicted_least": min(off),
                "predicted_most": max(off),
            }
    return summary


def line(r: dict[str, Any]) -> str:
    if r["ratio"] is None:
        return f"{r['shape']:28} {r.get('error') or 'the pick gave a wrong result: ' + r['pick_schedule']}"
    wrong = f"  {len(r['wrong'])} wrong" if r["wrong"] else ""
    return (
        f"{r['shape']:28} pick {r['pick_us']:8.2f} us (predicted {r['predicted_us']:8.2f})  best {r['best_us']:8.2f}"
        f"  ratio {r['ratio']:.3f}  of {r['swept']}/{r['legal']}{wrong}  {r['pick_schedule']} | {r['best_schedule']}"
    )


if __name__ == "__main__":
    sys.exit(main())
