"""Data-parallel training of MLP-GPT: tokens/s of all ranks, efficiency against one, and how much communication is hidden.

    python -m blutrain.distributed.launch --nproc-per-node 2 benchmarks/ddp.py --preset 144M --precision tf32 --trace t.json

--batch-size is that of each rank. --peers adds torch's DistributedDataParallel, eager and compiled: all subjects run
interleaved, round by round, first the ranks together, then each alone (all at the same time). Rank 0 prints (and --json
appends) a JSON object a subject:

mode                "compiled", "eager" (--no-compile), "torch DDP", "torch DDP + compile"
ms, one_rank_ms     median of a step of the ranks together; of a rank that trains alone
tokens_per_s        of all ranks together; one_rank_tokens_per_s: of a rank alone
efficiency          one_rank_ms by ms
speedup             of blutrain, with --peers: its tokens_per_s by those of the best peer
peak_memory_bytes   of rank 0 together: what the framework held on the GPU; on a CPU of the whole process
buckets             of blutrain; and of its compiled steps
communication_ms    the time in which at least one bucket was being reduced or gathered, in one step; exposed_ms: the part
                    of it in which kernels waited for it; hidden: the share of it in which they did not

besides preset, precision, ranks and shard_optimizer. --trace FILE writes that one step for Perfetto or chrome://tracing:
a row of kernels and a row of buckets a rank. The times of kernels are those of the host program, launch by launch.
"""

from __future__ import annotations

import argparse
import json
import socket
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import trainers
from trainers import BlutrainTrainer

from blutrain import distributed
from blutrain.distributed import bucket_primitives
from examples.gpt_mlp.report import peak_memory_bytes

PEERS = {"torch": "torch DDP", "torch.compile": "torch DDP + compile"}
WARM_STEPS = 4


def main(argv: list[str] | None = None) -> int:
    options = parse(argv)
    group = distributed.init_process_group()
    options.device = "cpu" if options.device == "cpu" else str(distributed.local_device())
    if options.peers:
        join_torch(options.device, group)
    together = {name: Subject(name, options, wrap=True) for name in subjects(options)}
    records = {name: together_record(subject, options) for name, subject in together.items()}
    for name, ms in measure(together, options).items():
        records[name]["ms"] = ms
    if options.compile:
        spans = record_step(together["compiled"].trainer, options.device)
        records["compiled"].update(shares(spans))
        everyone = group.exchange("trace", spans)
        if options.trace and group.rank == 0:
            write_trace(options.trace, everyone)
    del together
    trainers.free_memory(options.device)
    alone = measure({name: Subject(name, options, wrap=False) for name in records}, options)
    for name, ms in alone.items():
        records[name]["one_rank_ms"] = ms
    if group.rank == 0:
        report(finished(records, options), options.json)
    if options.peers:
        leave_torch()
    return 0


def parse(argv: list[str] | None) -> argparse.Namespace:
    def add_flags(parser: argparse.ArgumentParser) -> None:
        add = parser.add_argument
        add("--compile", action=argparse.BooleanOptionalAction, default=True)
        add("--bucket-mb", type=float, default=25.0)
        add("--shard-optimizer", action="store_true", help="ZeRO-1")
        add("--peers", action="store_true", help="torch DDP beside it, eager and compiled")
        add("--trace", metavar="FILE", help="write one step as Chrome trace JSON")
        add("--json", metavar="FILE", help="append the records to a file")
        add("--rounds", type=int, default=5)
        add("--steps", type=int, default=5, help="steps a round")

    options = trainers.parse("Time data-parallel training steps.", add_flags, argv)
    if options.trace and not options.compile:
        sys.exit("--trace shows compiled steps: leave out --no-compile")
    return options


def subjects(options: argparse.Namespace) -> list[str]:
    return ["compiled" if options.compile else "eager", *(PEERS if options.peers else ())]


def together_record(subject: Subject, options: argparse.Namespace) -> dict[str, Any]:
    """What is known of a subject before it is timed."""
    found = {
        "preset": options.preset,
        "precision": options.precision,
        "mode": PEERS.get(subject.name, subject.name),
        "ranks": distributed.get_world_size(),
        "peak_memory_bytes": subject.peak_bytes,
    }
    if subject.name not in PEERS:
        found.update(shard_optimizer=options.shard_optimizer, buckets=len(subject.ddp._reducer.buckets))
    return found


def finished(records: dict[str, dict[str, Any]], options: argparse.Namespace) -> list[dict[str, Any]]:
    """With what follows from the milliseconds."""
    tokens = options.grad_accum * options.batch_size * options.block_size
    for r in records.values():
        r["tokens_per_s"] = r["ranks"] * tokens / r["ms"] * 1e3
        r["one_rank_tokens_per_s"] = tokens / r["one_rank_ms"] * 1e3
        r["efficiency"] = r["one_rank_ms"] / r["ms"]
    ours, *peers = records.values()
    if peers:
        ours["speedup"] = ours["tokens_per_s"] / max(peer["tokens_per_s"] for peer in peers)
    return [ours, *peers]


def report(records: list[dict[str, Any]], path: str | None) -> None:
    lines = "".join(json.dumps(record) + "\n" for record in records)
    print(lines, end="", flush=True)
    if path:
        with open(path, "a") as file:
            file.write(lines)


# ---------------------------------------------------------------- who trains


class Subject:
    """A trainer, alone or together with those of the other ranks, warmed up. peak_bytes: what that took."""

    def __init__(self, name: str, options: argparse.Namespace, wrap: bool):
        self.name, self.ddp = name, None
        before = self._held(options.device, restart=True)
        self.trainer: Any = trainers.make(name, options)
        if wrap:
            self._wrap(options)
        rng = np.random.default_rng(distributed.get_rank())
        shape = options.batch_size, options.block_size
        pairs = [[rng.integers(0, options.vocab_size, shape) for _ in range(2)] for _ in range(options.grad_accum)]
        self.batches = [tuple(map(self.trainer.put, pair)) for pair in pairs]
        self.milliseconds(WARM_STEPS)
        self.peak_bytes = self._held(options.device) - before

    def _wrap(self, options: argparse.Namespace) -> None:
        if isinstance(self.trainer, BlutrainTrainer):
            self.ddp = distributed.DataParallel(
                self.trainer.model, bucket_cap_mb=options.bucket_mb, shard_optimizer=options.shard_optimizer
            )
            return
        import torch
        from torch.nn.parallel import DistributedDataParallel

        self.ddp = DistributedDataParallel(self.trainer.model, gradient_as_bucket_view=True)
        self.trainer.run = torch.compile(self.ddp) if self.name == "torch.compile" else self.ddp

    def _held(self, device: str, restart: bool = False) -> int:
        """Bytes: the most since the last restart, the present ones at a restart."""
        if device == "cpu":
            return 0 if restart else peak_memory_bytes(device)
        if self.name not in PEERS:
            return peak_memory_bytes(device)
        import torch

        if restart:
            torch.cuda.reset_peak_memory_stats()
            return torch.cuda.memory_allocated()
        return torch.cuda.max_memory_allocated()

    def milliseconds(self, steps: int) -> float:
        """Of a step, on average over some in a row."""
        began = time.perf_counter()
        for _ in range(steps):
            self.trainer.step(self.batches)
        self.trainer.synchronize()
        return (time.perf_counter() - began) * 1e3 / steps


def measure(subjects: dict[str, Subject], options: argparse.Namespace) -> dict[str, float]:
    """The median milliseconds of a step, all ranks at the same time."""
    times: dict[str, list[float]] = {name: [] for name in subjects}
    for _ in range(options.rounds):
        for name, subject in subjects.items():
            distributed.barrier()
            times[name].append(subject.milliseconds(options.steps))
    distributed.barrier()
    return {name: statistics.median(found) for name, found in times.items()}


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


# ---------------------------------------------------------------- one step in detail


def record_step(trainer: BlutrainTrainer, device: str) -> dict[str, list[list]]:
    """Spans of one step in microseconds from its beginning: {"kernels": [name, start, end], "buckets": ...,
    "waits": ...}. Every rank runs it; state changes as by a step.
    """
    from blutrain.nova.plan import READY, WAIT, Callback

    executable = trainer.program.executable
    clock = HostClock() if device == "cpu" else GpuClock(executable._driver, distributed.get_group())
    distributed.barrier()
    bucket_primitives.observer = clock.around
    try:
        durations = executable.profile()  # unlike program.profile: collectives run
    finally:
        bucket_primitives.observer = None
    edges = np.concatenate([[0.0], np.cumsum(durations)])
    spans: dict[str, list[list]] = {"kernels": [], "waits": [], "buckets": []}
    begin = None
    for launch, start, end in zip(executable.plan.launches, edges[:-1], edges[1:], strict=True):
        if not isinstance(launch, Callback):
            spans["kernels"].append([launch.label, start, end])
        elif launch.symbol == WAIT:
            spans["waits"].append([f"wait for bucket {launch.argument}", start, end])
        elif launch.symbol == READY and begin is None:
            begin = start  # the first bucket's start ties the two clocks together
    spans["buckets"] = [[name, begin + start, begin + end] for name, start, end in clock.spans()]
    return spans


class HostClock:
    """Times of MPI's requests: MPI works on them only when called, so they end where that is seen."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, int, Any]] = []

    def around(self, name: str, start: Any) -> Any:
        began = time.monotonic_ns()
        entry, request = start()
        self.seen.append((name, began, request))
        return entry, request

    def spans(self) -> list[tuple[str, float, float]]:
        """(name, start, end) in microseconds from the first start."""
        first = self.seen[0][1]
        ends = [getattr(request, "done_ns", began) for _, began, request in self.seen]  # alone: at once
        return [
            (n, (began - first) / 1e3, (end - first) / 1e3) for (n, began, _), end in zip(self.seen, ends, strict=True)
        ]


class GpuClock:
    """Events on NCCL's stream, in the graph that the profile captures."""

    def __init__(self, driver: Any, group: Any):
        self.driver, self.backend, self.stream = driver, group._nccl, group._nccl.stream.ptr
        self.seen: list[tuple[str, int, int]] = []

    def around(self, name: str, start: Any) -> Any:
        import cupy

        from blutrain.distributed.nccl import Request

        before, after = (self.driver.create_event(is_timed=True) for _ in range(2))
        fork = cupy.cuda.Event(disable_timing=True)
        fork.record(cupy.cuda.get_current_stream())
        self.driver.call("cuStreamWaitEvent", self.stream, fork.ptr, 0)
        self.driver.record_in_graph(before, self.stream)
        entry, _ = start()
        self.driver.record_in_graph(after, self.stream)
        self.seen.append((name, before, after))
        return entry, Request(self.backend, self.backend.stream, None)  # whoever waits for it waits for `after`, too

    def spans(self) -> list[tuple[str, float, float]]:
        first = self.seen[0][1]
        ms = self.driver.milliseconds
        return [(name, 1e3 * ms(first, before), 1e3 * ms(first, after)) for name, before, after in self.seen]


def shares(spans: dict[str, list[list]]) -> dict[str, float]:
    """How much of the communication of a step is hidden behind kernels."""
    total, until = 0.0, -1.0
    for _, start, end in sorted(spans["buckets"], key=lambda s: s[1]):
        total += max(0.0, end - max(start, until))
        until = max(until, end)
    exposed = min(total, sum(end - start for _, start, end in spans["waits"]))
    return {
        "communication_ms": total / 1e3,
        "exposed_ms": exposed / 1e3,
        "hidden": 1 - exposed / total if total else 1.0,
    }


def write_trace(path: str, everyone: list[dict[str, list[list]]]) -> None:
    """Chrome's trace format, which Perfetto reads: a process a rank, a thread for kernels, one for buckets."""
    events: list[dict[str, Any]] = []
    for rank, spans in enumerate(everyone):
        events.append({"name": "process_name", "ph": "M", "pid": rank, "args": {"name": f"rank {rank}"}})
        for thread, (name, kinds) in enumerate({"kernels": ("kernels", "waits"), "all-reduce": ("buckets",)}.items()):
            events.append({"name": "thread_name", "ph": "M", "pid": rank, "tid": thread, "args": {"name": name}})
            for kind in kinds:
                for label, start, end in spans[kind]:
                    place = {"pid": rank, "tid": thread, "ts": start, "dur": end - start}
                    events.append({"name": label, "cat": kind, "ph": "X", **place})
    Path(path).write_text(json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}))


if __name__ == "__main__":
    sys.exit(main())
