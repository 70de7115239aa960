"""Memory of a training step of MLP-GPT: blutrain compiled and eager beside torch.compile, each in a process of its own.

    python benchmarks/memory.py --device cuda --presets 46M,144M --precisions tf32,bf16 --clips none,1 --jobs 6 --json FILE
    python benchmarks/memory.py --device cuda --presets 144M --precisions tf32 --limit-gib 6     # who trains in 6 GiB

In the JSON, for each subject:

live_bytes    the most that was allocated at once in a steady step, parameters and optimizer state included: of CuPy's pool
              (blutrain) or torch's allocator; on a CPU what tracemalloc sees: NumPy, and some 10 MB of Python
held_bytes    what the pool or allocator had taken from the device by then
ratio         its live_bytes by torch.compile's

With --limit-gib the pool or allocator refuses to grow beyond that, from the start of the process; `fits` says whether all
steps ran, `losses` what they gave, `error` what stopped it. "default" is compile() as a user calls it: its first step
runs eagerly where that fits, and compiled where it does not.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import json
import subprocess
import sys
import tracemalloc
from typing import Any

import numpy as np
import trainers
from record import save
from trainers import BlutrainTrainer, Trainer

SUBJECTS = ("compiled", "default", "eager", "torch", "torch.compile")
STEADY_STEPS, LIMITED_STEPS = 3, 5
TIMEOUT_S = 240


def main(argv: list[str] | None = None) -> int:
    options = parse(argv)
    if options.child:
        print(json.dumps(measure(options.child, options)), flush=True)
        return 0
    work = []
    for preset in options.presets:
        for precision in options.precisions:
            sized = trainers.with_sizes(options, preset, precision)
            subjects = [s for s in options.subjects if not (s == "eager" and precision == "bf16")]
            for clip in options.clips:
                clipped = argparse.Namespace(**{**vars(sized), "clip": clip})
                work += [(clipped, subject) for subject in subjects]
    results: list[dict[str, Any]] = []
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        for result in pool.map(lambda item: in_process(*item), work):
            results.append(result)
            add_ratios(results)
            if options.json:  # each time: a run that is cut short has told something
                save(options.json, __file__, results, argv)
    print("\n".join(map(line, results)))
    return 0


def parse(argv: list[str] | None) -> argparse.Namespace:
    def add_flags(parser: argparse.ArgumentParser) -> None:
        add = parser.add_argument
        trainers.add_sizes(parser)
        add("--clips", default="none", help="like none,1.0")
        add("--subjects", type=trainers.some_of(SUBJECTS), help=f"some of {', '.join(SUBJECTS)}")
        add("--limit-gib", type=float, help="bytes that a subject may hold")
        add("--jobs", type=int, default=1, help="processes at once; memory does not depend on it, time does")
        add("--json", metavar="FILE")
        add("--child", help=argparse.SUPPRESS)

    options = trainers.parse("Measure the memory of a training step.", add_flags, argv)
    trainers.split_sizes(options)
    options.clips = [None if clip == "none" else float(clip) for clip in options.clips.split(",")]
    usual = ["compiled", "eager"] + ([] if options.device == "cpu" else ["torch.compile"])
    options.subjects = options.subjects or usual + (["default"] if options.limit_gib else [])
    if options.device == "cpu" and (options.limit_gib or any(s.startswith("torch") for s in options.subjects)):
        raise SystemExit("memory.py: torch's memory, and a limit, can be had on a GPU only")
    return options


def in_process(options: argparse.Namespace, subject: str) -> dict[str, Any]:
    """What a fresh process measures of a subject."""
    flags = [*trainers.as_flags(options), *([f"--limit-gib={options.limit_gib}"] if options.limit_gib else [])]
    command = [sys.executable, __file__, f"--child={subject}", *flags]
    known = {"subject": subject, "preset": options.preset, "precision": options.precision, "clip": options.clip}
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired:
        return {**known, "error": f"no result in {TIMEOUT_S} s"}
    if done.returncode:
        return {**known, "error": done.stderr.strip()[-600:]}
    return {**known, **json.loads(done.stdout.splitlines()[-1])}


# ---------------------------------------------------------------- in the subject's process


def measure(subject: str, options: argparse.Namespace) -> dict[str, Any]:
    if options.limit_gib:
        return limited(subject, options)
    if options.device == "cpu":
        tracemalloc.start()
    trainer = trainers.make(subject, options)
    placed = [(trainer.put(x), trainer.put(y)) for x, y in trainers.random_batches(options)]
    for _ in range(STEADY_STEPS):
        trainer.step(placed)
    trainer.synchronize()
    return peaks(trainer, placed)


def peaks(trainer: Trainer, placed: list) -> dict[str, int]:
    """live_bytes and held_bytes of steady steps."""

    def steps() -> None:
        for _ in range(STEADY_STEPS):
            trainer.step(placed)
        trainer.synchronize()

    if not isinstance(trainer, BlutrainTrainer):
        import torch

        torch.cuda.reset_peak_memory_stats()
        steps()
        return {"live_bytes": torch.cuda.max_memory_allocated(), "held_bytes": torch.cuda.memory_reserved()}
    if trainer.device == "cpu":
        tracemalloc.reset_peak()
        steps()
        return {"live_bytes": tracemalloc.get_traced_memory()[1]}
    import cupy

    pool = cupy.get_default_memory_pool()
    live = pool.used_bytes()

    class Peak(cupy.cuda.MemoryHook):
        name = "peak of live bytes"

        def malloc_postprocess(self, **what: Any) -> None:
            nonlocal live
            live = max(live, pool.used_bytes())

    with Peak():
        steps()
    return {"live_bytes": live, "held_bytes": pool.total_bytes()}


def limited(subject: str, options: argparse.Namespace) -> dict[str, Any]:
    """Train under the limit: the losses, or what stopped it."""
    limit = int(options.limit_gib * 2**30)
    if subject.startswith("torch"):
        import torch

        torch.cuda.set_per_process_memory_fraction(limit / torch.cuda.get_device_properties(0).total_memory)
        out_of_memory: type[BaseException] = torch.OutOfMemoryError
    else:
        import cupy

        cupy.get_default_memory_pool().set_limit(size=limit)
        out_of_memory = MemoryError
    losses: list[float] = []
    try:
        trainer = trainers.make(subject, options)
        placed = [(trainer.put(x), trainer.put(y)) for x, y in trainers.random_batches(options)]
        for _ in range(LIMITED_STEPS):
            losses.append(float(trainer.step(placed)))
    except Exception as error:
        if not isinstance(error, out_of_memory) and "out of device memory" not in str(error):
            raise
        return {"fits": False, "losses": losses, "error": f"{type(error).__name__}: {error}"[:400]}
    return {"fits": bool(np.isfinite(losses).all()), "losses": losses}


# ---------------------------------------------------------------- results


def add_ratios(results: list[dict[str, Any]]) -> None:
    kind = lambda r: (r["preset"], r["precision"], r["clip"])
    base = {kind(r): r["live_bytes"] for r in results if r["subject"] == "torch.compile" and "live_bytes" in r}
    for r in results:
        if "live_bytes" in r and kind(r) in base:
            r["ratio"] = r["live_bytes"] / base[kind(r)]


def line(r: dict[str, Any]) -> str:
    head = f"{r['preset'] or '':>5} {r['precision']} clip {r['clip'] or 'none':>5} {r['subject']:>14}"
    if "fits" in r:
        return f"{head}  {'trains: ' + str(r['losses']) if r['fits'] else r['error'].splitlines()[0]}"
    if "error" in r:
        return f"{head}  {r['error']}"
    held = f"  held {r['held_bytes'] / 2**20:8.1f}" if "held_bytes" in r else ""
    ratio = f"  {r['ratio']:.3f} of torch.compile" if "ratio" in r else ""
    return f"{head}  live {r['live_bytes'] / 2**20:8.1f} MiB{held}{ratio}"


if __name__ == "__main__":
    sys.exit(main())
