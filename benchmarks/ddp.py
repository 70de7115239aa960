"""Data-parallel training of MLP-GPT: tokens/s of all ranks, efficiency against one, and how much communication is hidden.

    python -m blutrain.distributed.launch --nproc-per-node 2 benchmarks/ddp.py --preset 144M --precisions tf32,bf16 \\
        --subjects compiled,sharded,torch,torch.compile --trace t.json

--batch-size is that of each rank. Subjects are timed round by round, the ranks together and each alone (all at the same
time), in an order drawn for each round: a GPU at its limit of power is slower behind a subject that drew more. torch.compile,
which takes longest to start, joins the others once they have been timed. Rank 0 prints (and --json appends) a JSON object a
subject, again each time more is known of it: the last one counts.

mode                "compiled", "sharded" (compiled, ZeRO-1), "eager", "torch DDP", "torch DDP + compile"
ms, one_rank_ms     median of a step of the ranks together; of a rank that trains alone
tokens_per_s        of all ranks together; one_rank_tokens_per_s: of a rank alone
efficiency          one_rank_ms by the ms of the same rounds
speedup             of blutrain's: its tokens_per_s by those of the best peer timed with it
peak_memory_bytes   of rank 0 together: what the framework held on the GPU; on a CPU of the whole process
start_s             from nothing to the fourth step, all ranks together
buckets             of blutrain's; and of "compiled":
communication_ms    the time in which at least one bucket was being reduced or gathered, in one step; exposed_ms: the part
                    of it in which kernels waited for it; hidden: the share of it in which they did not

besides preset, precision and ranks. --trace FILE writes that one step for Perfetto or chrome://tracing: a row of kernels
and a row of buckets a rank (several precisions: FILE gets their names). The times of kernels are those of the host program,
launch by launch.
"""

from __future__ import annotations

import argparse
import json
import random
import socket
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import trainers
from ddp_trace import record_step, shares, write_trace
from trainers import BlutrainTrainer

import blutrain as bt
from blutrain import distributed
from examples.gpt_mlp.precision import set_precision
from examples.gpt_mlp.report import peak_memory_bytes

OURS = ("compiled", "sharded", "eager")
PEERS = {"torch": "torch DDP", "torch.compile": "torch DDP + compile"}
SLOW = "torch.compile"
WARM_STEPS = 4


def main(argv: list[str] | None = None) -> int:
    options = parse(argv)
    began = time.monotonic()
    group = distributed.init_process_group()
    options.device = "cpu" if options.device == "cpu" else str(distributed.local_device())
    if any(name in PEERS for name in options.subjects):
        join_torch(options.device, group)
    runs = [Run(with_precision(options, precision)) for precision in options.precisions]
    stages = [(run, stage) for stage in (Run.time_quick, Run.time_slow, Run.time_slow_alone) for run in runs]
    for run, stage in stages:
        if group.exchange("the time", time.monotonic() - began)[0] > options.budget:
            if group.rank == 0:
                print(f"left out for time: {run.options.precision}, {stage.__name__}", flush=True)
            continue
        stage(run)
        if group.rank == 0:
            report(run, options.json)
    if any(name in PEERS for name in options.subjects):
        leave_torch()
    return 0


def parse(argv: list[str] | None) -> argparse.Namespace:
    def add_flags(parser: argparse.ArgumentParser) -> None:
        add = parser.add_argument
        known = (*OURS, *PEERS)
        add("--subjects", default="compiled", type=trainers.some_of(known), help=f"of {', '.join(known)} (compiled)")
        trainers.add_precisions(parser)
        add("--bucket-mb", type=float, default=25.0)
        add("--trace", metavar="FILE", help="write one step of compiled as Chrome trace JSON")
        add("--json", metavar="FILE", help="append the records to a file")
        add("--rounds", type=int, default=5)
        add("--steps", type=int, default=5, help="steps a round")
        add("--budget", type=float, default=float("inf"), metavar="S", help="begin no part of the work later than that")

    options = trainers.parse("Time data-parallel training steps.", add_flags, argv)
    trainers.split_sizes(options)
    if options.trace and "compiled" not in options.subjects:
        sys.exit("--trace shows steps of the subject compiled")
    return options


def with_precision(options: argparse.Namespace, precision: str) -> argparse.Namespace:
    """A copy for one of the precisions; the trace's file is named after it."""
    changed: dict[str, Any] = {"precision": precision}
    if options.trace and len(options.precisions) > 1:
        path = Path(options.trace)
        changed["trace"] = str(path.with_stem(f"{path.stem}-{precision}"))
    if precision == "bf16":
        changed["subjects"] = [name for name in options.subjects if name != "eager"]
    return argparse.Namespace(**{**vars(options), **changed})


class Run:
    """All subjects in one precision. records: what is known, by subject."""

    def __init__(self, options: argparse.Namespace):
        self.options = options
        self.together: dict[str, Subject] = {}
        self.records: dict[str, dict[str, Any]] = {}
        self.news: set[str] = set()  # of which more is known than was reported

    def time_quick(self) -> None:
        """All but the one that starts slowly: together and alone, then one step in detail."""
        options, names = self.options, [name for name in self.options.subjects if name != SLOW]
        for name in names:
            self._start(name)
        alone = [name for name in names if name != "sharded"]  # which alone has no other to share the work with
        subjects = {(name, "ms"): subject for name, subject in self.together.items()}
        subjects |= {(name, "one_rank_ms"): Subject(name, options, wrap=False) for name in alone}
        times = measure(subjects, options)
        for what in ("ms", "one_rank_ms"):
            self._note({name: ms for (name, kind), ms in times.items() if kind == what}, what)
        if "sharded" in names and "compiled" in names:
            self._note({"sharded": self.records["compiled"]["one_rank_ms"]}, "one_rank_ms")
        if "compiled" in names:
            spans = record_step(self.together["compiled"].trainer, options.device)
            self.records["compiled"].update(shares(spans))
            everyone = distributed.get_group().exchange("trace", spans)
            if options.trace and distributed.get_rank() == 0:
                write_trace(options.trace, everyone)
        subjects.clear()
        if SLOW not in options.subjects:
            self.together.clear()
        self.together.pop("sharded", None)
        trainers.free_memory(options.device)

    def time_slow(self) -> None:
        """The one that starts slowly, and the others with it."""
        if SLOW in self.options.subjects:
            self._start(SLOW)
            times = measure({(name, "ms"): subject for name, subject in self.together.items()}, self.options)
            self._note({name: ms for (name, _), ms in times.items()}, "ms")
        self.together.clear()
        trainers.free_memory(self.options.device)

    def time_slow_alone(self) -> None:
        if SLOW in self.options.subjects:
            times = measure({(SLOW, "one_rank_ms"): Subject(SLOW, self.options, wrap=False)}, self.options)
            self._note({SLOW: times[SLOW, "one_rank_ms"]}, "one_rank_ms")
            trainers.free_memory(self.options.device)

    def _start(self, name: str) -> None:
        began = time.monotonic()
        subject = self.together[name] = Subject(name, self.options, wrap=True)
        record = self.records[name] = {
            "preset": self.options.preset,
            "precision": self.options.precision,
            "mode": PEERS.get(name, name),
            "ranks": distributed.get_world_size(),
            "peak_memory_bytes": subject.peak_bytes,
            "start_s": time.monotonic() - began,
        }
        if name in OURS:
            record["buckets"] = len(subject.ddp._reducer.buckets)

    def _note(self, times: dict[str, float], what: str) -> None:
        """Milliseconds of some subjects, and what follows from them."""
        options = self.options
        tokens = options.grad_accum * options.batch_size * options.block_size
        self.news |= times.keys()
        for name, ms in times.items():
            record = self.records[name]
            record[what] = ms
            if what == "ms":
                record["tokens_per_s"] = record["ranks"] * tokens / ms * 1e3
            else:  # timed with "ms" (or, what starts slowly, behind it): later times of "ms" are of other rounds
                record["one_rank_tokens_per_s"] = tokens / ms * 1e3
                record["efficiency"] = ms / record["ms"]
        peers = [times[name] for name in PEERS if name in times]
        for name in OURS if peers and what == "ms" else ():
            if name in times:
                self.records[name]["speedup"] = min(peers) / times[name]


def report(run: Run, path: str | None) -> None:
    lines = "".join(json.dumps(record) + "\n" for name, record in run.records.items() if name in run.news)
    run.news.clear()
    print(lines, end="", flush=True)
    if path:
        with open(path, "a") as file:
            file.write(lines)


# ---------------------------------------------------------------- who trains


class Subject:
    """A trainer, alone or together with those of the other ranks, warmed up. peak_bytes: what that took."""

    def __init__(self, name: str, options: argparse.Namespace, wrap: bool):
        self.name, self.ddp, self.options = name, None, options
        before = self._restart(options.device)
        bt.set_default_device(options.device)  # weights are drawn there: a host takes 20 s for 144M
        self.trainer: Any = trainers.make("compiled" if name == "sharded" else name, options)
        bt.set_default_device("cpu")
        if wrap:
            self._wrap()
        rng = np.random.default_rng(distributed.get_rank())
        shape = options.batch_size, options.block_size
        self._restart(options.device)  # the steps' memory, not that of building
        pairs = [[rng.integers(0, options.vocab_size, shape) for _ in range(2)] for _ in range(options.grad_accum)]
        self.batches = [tuple(map(self.trainer.put, pair)) for pair in pairs]
        self.milliseconds(WARM_STEPS)
        self.peak_bytes = self._peak(options.device) - before

    def _wrap(self) -> None:
        if isinstance(self.trainer, BlutrainTrainer):
            self.ddp = distributed.DataParallel(
                self.trainer.model, bucket_cap_mb=self.options.bucket_mb, shard_optimizer=self.name == "sharded"
            )
            return
        import torch
        from torch.nn.parallel import DistributedDataParallel

        self.ddp = DistributedDataParallel(self.trainer.model, gradient_as_bucket_view=True)
        self.trainer.run = torch.compile(self.ddp) if self.name == "torch.compile" else self.ddp

    def _restart(self, device: str) -> int:
        """Count memory from here; the bytes that are in use now (on a CPU 0: the process is counted whole)."""
        if device == "cpu":
            return 0
        if self.name in OURS:
            import cupy

            pool = cupy.get_default_memory_pool()
            pool.free_all_blocks()
            return pool.total_bytes()
        import torch

        torch.cuda.reset_peak_memory_stats()
        return torch.cuda.memory_allocated()

    def _peak(self, device: str) -> int:
        """The most bytes in use since the last restart."""
        if device == "cpu" or self.name in OURS:
            return peak_memory_bytes(device)
        import torch

        return torch.cuda.max_memory_allocated()

    def milliseconds(self, steps: int) -> float:
        """Of a step, on average over some in a row."""
        self._set_precision()
        began = time.perf_counter()
        for _ in range(steps):
            self.trainer.step(self.batches)
        self.trainer.synchronize()
        return (time.perf_counter() - began) * 1e3 / steps

    def _set_precision(self) -> None:
        """That of the process, which subjects in another precision may have set."""
        if self.name in OURS:
            set_precision(self.trainer.model, self.options.precision, self.options.device, self.name != "eager")
        else:
            from torch_peers import set_tf32

            set_tf32(self.options.precision)


def measure(subjects: dict[tuple[str, str], Subject], options: argparse.Namespace) -> dict[tuple[str, str], float]:
    """The median milliseconds of a step, all ranks at the same time, by subject and what is measured of it."""
    times: dict[tuple[str, str], list[float]] = {key: [] for key in subjects}
    for number in range(options.rounds):
        order = list(subjects)
        random.Random(number).shuffle(order)  # the same on all ranks
        for key in order:
            distributed.barrier()
            times[key].append(subjects[key].milliseconds(options.steps))
    distributed.barrier()
    return {key: statistics.median(found) for key, found in times.items()}


def join_torch(device: str, group: Any) -> None:
    """Torch's process group of the same ranks, at a port of its own."""
    import torch

    with socket.socket() as probe:
        probe.bind(("", 0))
        port = group.exchange("torch's port", probe.getsockname()[1])[0]
    if device != "cpu":
        torch.cuda.set_device(device)
    address = f"tcp://{group.world.address or '127.0.0.1'}:{port}"
    backend = "gloo" if device == "cpu" else "nccl"
    torch.distributed.init_process_group(backend, init_method=address, rank=group.rank, world_size=group.size)


def leave_torch() -> None:
    import torch

    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    sys.exit(main())
