"""Seconds of the first compiled step of MLP-GPT: with all caches empty, and in a new process with what that one left.

    python benchmarks/first_step.py --device cuda --presets 46M,144M --precisions tf32,bf16 --json FILE

Each is a process of its own, one at a time, with a compile cache in a folder of its own. In the JSON, for each size:

cold, cached    "step": seconds of the first step; by stage; "process": from the start of Python to the end of that step
                (imports, the model's weights, the step)
eager           the same of an eager model with CuPy's cache of compiled kernels (NVRTC) empty
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from typing import Any

import trainers
from record import save

TIMEOUT_S = 240


def main(argv: list[str] | None = None) -> int:
    options = parse(argv)
    if options.child:
        print(json.dumps(first_step(options.child, options)), flush=True)
        return 0
    results = []
    for preset in options.presets:
        for precision in options.precisions:
            results.append(compare(trainers.with_sizes(options, preset, precision)))
            print(line(results[-1]), flush=True)
            if options.json:
                save(options.json, __file__, results, argv)
    return 0


def parse(argv: list[str] | None) -> argparse.Namespace:
    def add_flags(parser: argparse.ArgumentParser) -> None:
        add = parser.add_argument
        trainers.add_sizes(parser)
        add("--json", metavar="FILE")
        add("--child", help=argparse.SUPPRESS)

    options = trainers.parse("Time the first step.", add_flags, argv)
    trainers.split_sizes(options)
    return options


def compare(options: argparse.Namespace) -> dict[str, Any]:
    result: dict[str, Any] = {"preset": options.preset, "precision": options.precision, "device": options.device}
    with tempfile.TemporaryDirectory() as folder:
        result["cold"] = in_process("compiled", options, folder)
        result["cached"] = in_process("compiled", options, folder)
    if options.precision != "bf16":
        with tempfile.TemporaryDirectory() as folder:
            result["eager"] = in_process("eager", options, folder)
    return result


def in_process(subject: str, options: argparse.Namespace, folder: str) -> dict[str, float]:
    caches = {"NOVA_CACHE": os.path.join(folder, "nova"), "CUPY_CACHE_DIR": os.path.join(folder, "cupy")}
    command, began = [sys.executable, __file__, f"--child={subject}", *trainers.as_flags(options)], time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, env={**os.environ, **caches})
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr}")
    return {"process": time.perf_counter() - began, **json.loads(done.stdout.splitlines()[-1])}


def first_step(subject: str, options: argparse.Namespace) -> dict[str, float]:
    """In the subject's process."""
    trainer = trainers.make(subject, options)
    placed = [(trainer.put(x), trainer.put(y)) for x, y in trainers.random_batches(options)]
    trainer.synchronize()
    began = time.perf_counter()
    trainer.step(placed)
    trainer.synchronize()
    seconds = {"step": time.perf_counter() - began}
    return {**seconds, **(trainer.program.seconds if subject == "compiled" else {})}  # type: ignore[attr-defined]


def line(result: dict[str, Any]) -> str:
    stages = ", ".join(f"{name} {s:.2f}" for name, s in result["cold"].items() if name not in ("step", "process"))
    steps = {name: result[name]["step"] for name in ("cold", "cached", "eager") if name in result}
    figures = "  ".join(f"{name} {s:.2f} s" for name, s in steps.items())
    return f"{result['preset'] or '':>5} {result['precision']}  {figures}  ({stages})"


if __name__ == "__main__":
    sys.exit(main())
