"""Milliseconds of a whole training step (forward, backward, AdamW) of MLP-GPT, beside torch and JAX if asked.

    python benchmarks/step.py --n-embd 256 --n-layer 4 --batch-size 8 --block-size 256 --mode both --peers
    python benchmarks/step.py --device cuda --presets all --precisions tf32,bf16 --peers compile --json FILE

All subjects of a size run interleaved in one process, round by round, so that a noisy machine is noisy for all; figures
are medians over rounds of some steps in a row, waited for once. With --jobs N that many sizes start at once, each in a
process of its own, as most of a run is compiling; they are timed one after the other when all have started. No clipping
(--clip) and no accumulation (--grad-accum) unless asked. --peers: some of torch, compile, reduce-overhead (torch.compile
into CUDA graphs, the optimizer's step too) and jax; a peer that fails is reported with its error. In the JSON, for each subject:

ms, tokens_per_s    median of a step
ratio               a peer's (or eager's) milliseconds by blutrain's
host_us             median from the step's first call to its return, the device idle before ("step"), and the part of it
                    in optimizer.step() ("update"); a jitted JAX step is one call
replay_us           on a CPU: Python's share of a compiled step, the launch of its kernels left out
live_bytes          what a compiled step needs beside parameters and optimizer state: its arena and workspace; of eager on
                    a CPU, NumPy's traced peak in a step of its own. benchmarks/memory.py measures whole processes
first_step_s        seconds of the first step ("step"), of blutrain's also by stage; how much of it the caches held
                    depends on what ran before (benchmarks/first_step.py empties them), how long it took on what runs beside
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import multiprocessing.connection
import statistics
import sys
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any

import trainers
from record import save
from trainers import MODES, PEERS, BlutrainTrainer, Trainer


def main(argv: list[str] | None = None) -> int:
    options = parse(argv)
    sizes = [
        trainers.with_sizes(options, name, precision) for name in options.presets for precision in options.precisions
    ]
    results: list[dict[str, Any]] = []
    for found in side_by_side(sizes, options.jobs) if options.jobs > 1 else one_by_one(sizes):
        print("\n".join(map(line, found)), flush=True)
        results += found
        results.sort(key=lambda r: (options.presets.index(r["preset"]), options.precisions.index(r["precision"])))
        if options.json:
            save(options.json, __file__, results, argv)
    return 0


def one_by_one(sizes: list[argparse.Namespace]) -> Iterator[list[dict[str, Any]]]:
    for size in sizes:
        yield compare(size, contextlib.nullcontext())
        trainers.free_memory(size.device)


def side_by_side(sizes: list[argparse.Namespace], jobs: int) -> Iterator[list[dict[str, Any]]]:
    """As many processes at once as `jobs`. Errors: RuntimeError once all have ended, of those that failed."""
    context, failed = multiprocessing.get_context("spawn"), []
    for start in range(0, len(sizes), jobs):
        group = sizes[start : start + jobs]
        turn = Turn(context.Barrier(len(group)), context.Lock())
        running: dict[Any, str] = {}
        for size in group:
            pipe, end = context.Pipe(duplex=False)
            context.Process(target=in_turn, args=(size, turn, end)).start()
            end.close()
            running[pipe] = f"{size.preset} {size.precision}"
        while running:
            ready: list[Any] = multiprocessing.connection.wait(list(running))
            for pipe in ready:
                name = running.pop(pipe)
                try:
                    yield pipe.recv()
                except EOFError:
                    failed.append(name)
                    turn.all_started.abort()  # where it has not come the others would wait for ever
    if failed:
        raise RuntimeError(f"no figures, as their processes failed: {', '.join(failed)}")


class Turn:
    """What a process enters to be timed: all others have started by then, and none is timed beside it."""

    def __init__(self, all_started: Any, alone: Any):
        self.all_started, self.alone = all_started, alone

    def __enter__(self) -> None:
        with contextlib.suppress(threading.BrokenBarrierError):  # one has failed
            self.all_started.wait()
        self.alone.acquire()

    def __exit__(self, *error: object) -> None:
        self.alone.release()


def in_turn(options: argparse.Namespace, turn: Turn, results: Any) -> None:
    """Sends the records of a size; where that fails the process ends with what went wrong."""
    results.send(compare(options, turn))


def parse(argv: list[str] | None) -> argparse.Namespace:
    def add_flags(parser: argparse.ArgumentParser) -> None:
        add = parser.add_argument
        add("--mode", choices=[*MODES, "both"], default="compiled")
        trainers.add_sizes(parser)
        known = f"some of {', '.join(PEERS)} (torch,compile)"
        add("--peers", nargs="?", const="torch,compile", default=(), type=trainers.some_of(PEERS), help=known)
        add("--rounds", type=int, default=5)
        add("--steps", type=int, default=5, help="steps a subject a round")
        add("--host-repeats", type=int, default=50, help="steps behind host_us; of peers no more than the default")
        add("--jobs", type=int, default=1, help="sizes that start at once (they need their memory at once, too)")
        add("--compile-only", action="store_true", help="only the first step, which fills the caches")
        add("--json", metavar="FILE")

    options = trainers.parse("Time a training step of MLP-GPT.", add_flags, argv)
    trainers.split_sizes(options)
    options.peers = [PEERS[name] for name in options.peers]
    return options


def compare(options: argparse.Namespace, turn: contextlib.AbstractContextManager[Any]) -> list[dict[str, Any]]:
    """The records of all subjects at one size; timed within `turn`."""
    batches = trainers.random_batches(options)
    modes = [m for m in MODES if options.mode in (m, "both") and not (m == "eager" and options.precision == "bf16")]
    subjects: dict[str, Trainer] = {}
    steps: dict[str, Callable[[], None]] = {}
    records: dict[str, dict[str, Any]] = {}
    for name in (*modes, *options.peers):
        try:
            began = time.perf_counter()
            subjects[name], steps[name], records[name] = subject(name, options, batches)
        except Exception as error:
            if name in MODES:
                raise
            records[name] = {"error": f"{type(error).__name__}: {error}"[:500], "after_s": time.perf_counter() - began}
    if not options.compile_only:
        with turn:
            for name, trainer in subjects.items():
                repeats = options.host_repeats if name in MODES else min(options.host_repeats, 50)
                records[name]["host_us"] = host_us(trainer, steps[name], repeats)
                if isinstance(trainer, BlutrainTrainer):
                    records[name].update(own_figures(name, trainer, steps[name]))
            for name, times in measure(subjects, steps, options).items():
                records[name]["ms"] = statistics.median(times)
    sizes = ("preset", "precision", "n_embd", "n_layer", "vocab_size", "batch_size", "block_size", "grad_accum", "clip")
    known = {"device": options.device, **{key: getattr(options, key) for key in sizes}}
    finish(records, options.grad_accum * options.batch_size * options.block_size)
    return [{"mode": name, **known, **record} for name, record in records.items()]


def subject(
    name: str, options: argparse.Namespace, batches: list
) -> tuple[Trainer, Callable[[], None], dict[str, Any]]:
    """A trainer, its step on the batches, warmed up, and what is known of it so far."""
    trainer: Any = trainers.make(name, options)
    placed = [(trainer.put(x), trainer.put(y)) for x, y in batches]

    def step() -> None:
        trainer.step(placed)

    began = time.perf_counter()
    step()
    trainer.synchronize()
    record: dict[str, Any] = {"first_step_s": {"step": time.perf_counter() - began}}
    if not options.compile_only:
        for _ in range(3):
            step()
        trainer.synchronize()
    if name == "compiled":
        record["first_step_s"].update(trainer.program.seconds)
    return trainer, step, record


def own_figures(name: str, trainer: BlutrainTrainer, step: Callable[[], None]) -> dict[str, Any]:
    """live_bytes and replay_us, where they can be known."""
    on_cpu = trainer.device == "cpu"
    if name == "eager":
        return {"live_bytes": traced_bytes(step)} if on_cpu else {}
    plan = trainer.program.executable.plan
    live = plan.arena_bytes + max((k.workspace_bytes for k in plan.kernels), default=0)
    return {"live_bytes": live, **({"replay_us": replay_us(trainer.program, step)} if on_cpu else {})}


def host_us(trainer: Trainer, step: Callable[[], None], repeats: int) -> dict[str, float]:
    """Median microseconds until a step returns, and of its optimizer's part; the device is idle before each."""
    whole, update = [], []
    for _ in range(repeats):
        trainer.synchronize()
        began = time.perf_counter()
        step()
        whole.append(time.perf_counter() - began)
        update.append(trainer.update_s)
    return {"step": statistics.median(whole) * 1e6, "update": statistics.median(update) * 1e6}


def replay_us(program: Any, step: Callable[[], None], repeats: int = 50) -> float:
    """Microseconds of Python in a replayed step: the step with the launch of the kernels left out."""
    times = []
    program.executable.launch = lambda *counts: None  # shadows the method
    try:
        for _ in range(repeats):
            began = time.perf_counter()
            step()
            times.append(time.perf_counter() - began)
    finally:
        del program.executable.launch
    return statistics.median(times) * 1e6


def traced_bytes(step: Callable[[], None]) -> int:
    """The peak of NumPy's allocations during one step above what lived before it."""
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    tracemalloc.reset_peak()
    step()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak - before


def measure(
    subjects: dict[str, Trainer], steps: dict[str, Callable[[], None]], options: argparse.Namespace
) -> dict[str, list[float]]:
    """Milliseconds a step of each subject in each round; the order turns from round to round."""
    times: dict[str, list[float]] = {name: [] for name in subjects}
    for turn in range(options.rounds):
        names = list(subjects)
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            if options.device == "cpu":
                time.sleep(0.05)  # the thread pools of the one before go to sleep
            steps[name]()
            subjects[name].synchronize()
            began = time.perf_counter()
            for _ in range(options.steps):
                steps[name]()
            subjects[name].synchronize()
            times[name].append((time.perf_counter() - began) * 1e3 / options.steps)
    return times


def finish(records: dict[str, dict[str, Any]], tokens: int) -> None:
    """Rates and ratios, once all times are known."""
    timed = {name: record["ms"] for name, record in records.items() if "ms" in record}
    for name, ms in timed.items():
        records[name]["tokens_per_s"] = tokens / ms * 1e3
        if name in MODES:
            records[name]["ratio"] = {other: timed[other] / ms for other in timed if other not in (name, "compiled")}


def line(record: dict[str, Any]) -> str:
    head = f"{record['preset'] or '':>5} {record['precision']} {record['mode']:>30}"
    if "error" in record:
        return f"{head}  {record['error'][:120]}"
    first = f"first {record['first_step_s']['step']:.2f} s"
    if "ms" not in record:
        return f"{head}  {first}"
    host = f"host {record['host_us']['step']:.0f} us, update {record['host_us']['update']:.0f}"
    ratios = "  ".join(f"{ratio:.2f}x {other}" for other, ratio in record.get("ratio", {}).items())
    return f"{head}  {record['ms']:8.2f} ms  {record['tokens_per_s'] / 1e3:7.1f}k tokens/s  {first}  {host}  {ratios}"


if __name__ == "__main__":
    sys.exit(main())
