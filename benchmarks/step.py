"""Milliseconds of a whole training step (forward, backward, AdamW) of MLP-GPT, beside torch and torch.compile if asked.

    python benchmarks/step.py --n-embd 256 --n-layer 4 --batch-size 8 --block-size 256 --mode both --peers

All subjects run interleaved in one process, round by round, so that a noisy machine is noisy for all; figures are
medians over rounds. No clipping and no accumulation unless asked. `--json FILE` adds a line a subject:

ms, tokens_per_s    median of a step
peak_memory_bytes   the most the process (CPU) or CuPy's pool (GPU) ever held; with several subjects it is the largest
                    of all so far
live_bytes          what one steady step needs beside parameters and optimizer state: eager, NumPy's traced peak in a
                    separate pass; compiled, the arena and workspace of the program (null where it is not known)
first_step_s        seconds of the first step ("step"), and of the stages of compiling in it
replay_us           Python's share of a replayed step: the time from the first call to the launch, without the kernels; on
                    a GPU from the first call to the return, launch included
ratio               torch's or torch.compile's milliseconds by this subject's, for each peer that ran
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import blutrain as bt
from blutrain import nn
from blutrain.optim import AdamW
from examples.gpt_mlp.model import MLPGPT
from examples.gpt_mlp.options import add_model_flags, fill_in, model_config
from examples.gpt_mlp.precision import pick_device, set_precision, synchronize
from examples.gpt_mlp.report import peak_memory_bytes


def main(argv: list[str] | None = None) -> int:
    options = parse(argv)
    inputs = random_batches(options)
    subjects: dict[str, Callable[[], None]] = {}
    records: dict[str, dict[str, Any]] = {}
    for mode in ("eager", "compiled") if options.mode == "both" else (options.mode,):
        subjects[mode], records[mode] = own_subject(options, mode, inputs)
    if options.peers:
        from torch_peers import peer_subject

        for peer in ("torch", "torch.compile"):
            subjects[peer], records[peer] = peer_subject(options, peer, inputs)
    times = measure(subjects, options.rounds, options.steps)
    for name, record in records.items():
        record["ms"] = statistics.median(times[name])
        record["tokens_per_s"] = inputs[0][0].size * options.grad_accum / record["ms"] * 1e3
        record["ratio"] = {
            p: statistics.median(times[p]) / record["ms"] for p in times if p.startswith("torch") and p != name
        }
        if "eager" in times and name == "compiled":
            record["ratio"]["eager"] = statistics.median(times["eager"]) / record["ms"]
        report(options, name, record)
    return 0


def parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Time a training step of MLP-GPT.", allow_abbrev=False)
    add_model_flags(parser)
    parser.add_argument("--mode", choices=["eager", "compiled", "both"], default="compiled")
    parser.add_argument("--clip", type=float, help="clip gradients to this norm (not at all)")
    parser.add_argument("--json", metavar="FILE", help="add a JSON line a subject")
    parser.add_argument("--peers", action="store_true", help="torch and torch.compile in the same rounds")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=5, help="steps a subject a round")
    given = parser.parse_args(argv)
    mode = {k: getattr(given, k) for k in ("mode", "peers", "rounds", "steps", "json", "clip")}
    options = fill_in(given)
    vars(options).update(mode, vocab_size=options.vocab_size or 256, device=pick_device(options.device))
    return options


def random_batches(options: argparse.Namespace) -> list[tuple[np.ndarray, np.ndarray]]:
    """One (inputs, targets) a micro-batch."""
    rng = np.random.default_rng(options.seed)
    shape = (options.batch_size, options.block_size)
    draw = lambda: rng.integers(0, options.vocab_size, shape)
    return [(draw(), draw()) for _ in range(options.grad_accum)]


def own_subject(options: argparse.Namespace, mode: str, batches: list) -> tuple[Callable[[], None], dict[str, Any]]:
    """A function that makes one step, warmed up, and what is known of it so far."""
    bt.manual_seed(options.seed)
    model = MLPGPT(model_config(options)).to(options.device)
    precision = set_precision(model, options.precision, options.device, mode == "compiled")
    optimizer = AdamW(model.parameters(), lr=3e-4)
    inputs = [[bt.from_numpy(a).to(options.device) for a in pair] for pair in batches]
    if mode == "compiled":
        model.compile(precision=precision, first_step="compiled")

    def step() -> None:
        for x, y in inputs:
            loss = model(x, y)
            (loss if len(inputs) == 1 else loss / len(inputs)).backward()
        if options.clip:
            nn.utils.clip_grad_norm_(model.parameters(), options.clip)
        optimizer.step()
        optimizer.zero_grad()

    def timed_step() -> None:
        step()
        synchronize(options.device)

    began = time.perf_counter()
    timed_step()
    first = time.perf_counter() - began
    for _ in range(3):
        timed_step()
    record = {
        "first_step_s": {"step": first},
        "live_bytes": traced_bytes(timed_step) if mode == "eager" and options.device == "cpu" else None,
        "replay_us": None,
    }
    if mode == "compiled":
        record.update(compiled_figures(model, step))
        record["first_step_s"] = {"step": first, **record.pop("stages")}
    return timed_step, record


def compiled_figures(model: nn.Module, step: Callable[[], None]) -> dict[str, Any]:
    """What nova knows of the program of the steady step. Errors: RuntimeError where the step was not compiled."""
    from blutrain.nova.explain import programs_of

    programs = programs_of(model)
    if not programs:
        raise RuntimeError("the step was not compiled: a warning above says why")
    program = programs[-1]
    plan = program.executable.plan
    live = plan.arena_bytes + max((k.workspace_bytes for k in plan.kernels), default=0)
    host = replay_us(program, step) if model.wte.weight.device.is_cpu else host_us(step)
    return {"live_bytes": live, "replay_us": host, "stages": dict(program.seconds)}


def host_us(step: Callable[[], None], repeats: int = 200) -> float:
    """Microseconds from the call of a step on a GPU to its return, the device idle before each."""
    times = []
    for _ in range(repeats):
        synchronize("cuda")
        began = time.perf_counter()
        step()
        times.append(time.perf_counter() - began)
    return statistics.median(times) * 1e6


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


def measure(subjects: dict[str, Callable[[], None]], rounds: int, steps: int) -> dict[str, list[float]]:
    """Milliseconds a step of each subject in each round; the order turns from round to round."""
    times: dict[str, list[float]] = {name: [] for name in subjects}
    for turn in range(rounds):
        names = list(subjects)
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            time.sleep(0.05)  # the thread pools of the one before go to sleep
            subjects[name]()
            began = time.perf_counter()
            for _ in range(steps):
                subjects[name]()
            times[name].append((time.perf_counter() - began) * 1e3 / steps)
    return times


def report(options: argparse.Namespace, name: str, record: dict[str, Any]) -> None:
    """Print one subject's line and add it to the JSON file."""
    sizes = {
        k: getattr(options, k)
        for k in ("n_embd", "n_layer", "vocab_size", "batch_size", "block_size", "grad_accum", "dropout")
    }
    record = {"mode": name, "device": options.device, "precision": options.precision, **sizes, **record}
    if not name.startswith("torch"):
        record["peak_memory_bytes"] = peak_memory_bytes(options.device)
    ratios = "  ".join(f"{r:.2f}x {peer}" for peer, r in record["ratio"].items())
    first = record["first_step_s"]["step"]
    rate = record["tokens_per_s"] / 1e3
    print(f"{name:>14}  {record['ms']:8.2f} ms  {rate:7.1f}k tokens/s  first {first:.2f} s  {ratios}", flush=True)
    if options.json:
        Path(options.json).parent.mkdir(parents=True, exist_ok=True)
        with open(options.json, "a") as file:
            file.write(json.dumps(record) + "\n")


if __name__ == "__main__":
    sys.exit(main())
