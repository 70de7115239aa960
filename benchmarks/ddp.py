"""Data-parallel training of MLP-GPT: tokens/s of all ranks, efficiency against one, and how much communication is hidden.

    python -m blutrain.distributed.launch --nproc-per-node 2 benchmarks/ddp.py --preset 144M --precision tf32 --trace t.json

--batch-size is that of each rank. Rank 0 prints (and --json appends) one JSON object:

tokens_per_s        of all ranks together; one_rank_tokens_per_s: of a rank that trains alone, at the same time
efficiency          ms of a step alone by ms of a step together
peak_memory_bytes   of rank 0: on a GPU in the part that trains together, on a CPU of the whole process
communication_ms    the time in which at least one bucket was being reduced, in one step; exposed_ms: the part of it in
                    which kernels waited for it; hidden: the share of it in which they did not

--trace FILE writes that step for Perfetto or chrome://tracing: a row of kernels and a row of buckets a rank. Compiled
steps only: the times of kernels are those of the host program, launch by launch.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import blutrain as bt
from blutrain import distributed
from blutrain.distributed import reducer
from blutrain.optim import AdamW
from examples.gpt_mlp.model import MLPGPT
from examples.gpt_mlp.options import add_model_flags, fill_in, model_config
from examples.gpt_mlp.precision import pick_device, set_precision, synchronize
from examples.gpt_mlp.report import peak_memory_bytes


def main(argv: list[str] | None = None) -> int:
    options = parse(argv)
    group = distributed.init_process_group()
    options.device = pick_device(options.device)
    options.device = "cpu" if options.device == "cpu" else str(distributed.local_device())
    alone = milliseconds(options, wrap=False)[0]
    free_memory(options.device)
    together, ddp = milliseconds(options, wrap=True)
    tokens = options.batch_size * options.block_size
    record = {
        "preset": options.preset,
        "precision": options.precision,
        "shard_optimizer": options.shard_optimizer,
        "mode": "compiled" if options.compile else "eager",
        "ranks": group.size,
        "ms": together,
        "one_rank_ms": alone,
        "tokens_per_s": group.size * tokens / together * 1e3,
        "one_rank_tokens_per_s": tokens / alone * 1e3,
        "efficiency": alone / together,
        "peak_memory_bytes": peak_memory_bytes(options.device),
        "buckets": len(ddp._reducer.buckets),
    }
    if options.compile:
        spans = record_step(ddp.module, options.device)
        record.update(shares(spans))
        everyone = group.exchange("trace", spans)
        if options.trace and group.rank == 0:
            write_trace(options.trace, everyone)
    if group.rank == 0:
        print(json.dumps(record), flush=True)
        if options.json:
            with open(options.json, "a") as file:
                file.write(json.dumps(record) + "\n")
    return 0


def parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Time data-parallel training steps.", allow_abbrev=False)
    add_model_flags(parser)
    parser.add_argument("--compile", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--bucket-mb", type=float, default=25.0)
    parser.add_argument("--shard-optimizer", action="store_true", help="ZeRO-1")
    parser.add_argument("--trace", metavar="FILE", help="write one step as Chrome trace JSON")
    parser.add_argument("--json", metavar="FILE", help="append the record to a file")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=5, help="steps a round")
    given = parser.parse_args(argv)
    own = {
        name: getattr(given, name)
        for name in ("compile", "bucket_mb", "shard_optimizer", "trace", "json", "rounds", "steps")
    }
    options = fill_in(given)
    vars(options).update(own, vocab_size=options.vocab_size or 256)
    return options


def free_memory(device: str) -> None:
    """Give back what the part before held, so that a GPU's peak is that of the next."""
    gc.collect()
    if device != "cpu":
        import cupy

        cupy.get_default_memory_pool().free_all_blocks()


def milliseconds(options: argparse.Namespace, wrap: bool) -> tuple[float, Any]:
    """The median milliseconds of a step, all ranks at the same time: each alone, or together. And the wrapped model."""
    bt.default_generator.stream = 0
    bt.manual_seed(options.seed)
    model = MLPGPT(model_config(options)).to(options.device)
    precision = set_precision(model, options.precision, options.device, options.compile)
    optimizer = AdamW(model.parameters(), lr=3e-4)
    ddp = None
    if wrap:
        shard = options.shard_optimizer
        ddp = distributed.DataParallel(model, bucket_cap_mb=options.bucket_mb, shard_optimizer=shard)
    if options.compile:
        model.compile(precision=precision, first_step="compiled")
    rng = np.random.default_rng(distributed.get_rank())
    shape = options.batch_size, options.block_size
    x, y = (bt.from_numpy(rng.integers(0, options.vocab_size, shape)).to(options.device) for _ in range(2))

    def steps(count: int) -> float:
        began = time.perf_counter()
        for _ in range(count):
            (ddp or model)(x, y).backward()
            optimizer.step()
            optimizer.zero_grad()
        synchronize(options.device)
        return (time.perf_counter() - began) * 1e3 / count

    steps(4)
    times = []
    for _ in range(options.rounds):
        distributed.barrier()
        times.append(steps(options.steps))
    distributed.barrier()
    return statistics.median(times), ddp


# ---------------------------------------------------------------- one step in detail


def record_step(model: Any, device: str) -> dict[str, list[list]]:
    """Spans of one step in microseconds from its beginning: {"kernels": [name, start, end], "buckets": ...,
    "waits": ...}. Every rank runs it; state changes as by a step.
    """
    from blutrain.nova.explain import programs_of
    from blutrain.nova.plan import READY, WAIT, Callback

    program = programs_of(model)[-1]
    executable = program.executable
    clock = HostClock() if device == "cpu" else GpuClock(executable._driver, distributed.get_group())
    distributed.barrier()
    reducer.observer = clock.around
    try:
        durations = executable.profile()  # unlike program.profile: collectives run
    finally:
        reducer.observer = None
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
        return [(name, (began - first) / 1e3, (request.done_ns - first) / 1e3) for name, began, request in self.seen]


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
