"""The other side of benchmarks/ddp.py: the same model and step under torch's DistributedDataParallel, eager and compiled.

    python -m blutrain.distributed.launch --nproc-per-node 2 benchmarks/torch_ddp.py --preset 144M --precisions tf32,bf16

--batch-size is that of each rank. Rank 0 prints (and --json appends) a JSON object for each precision and mode, with the
fields of benchmarks/ddp.py: a rank alone, all at the same time, then together.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from typing import Any

import torch
import torch.distributed as dist
import trainers
from torch.nn.parallel import DistributedDataParallel
from torch_peers import TorchTrainer, forget_compiled

MODES = {"torch": "torch DDP", "torch.compile": "torch DDP + compile"}


def main(argv: list[str] | None = None) -> int:
    options = parse(argv)
    rank = int(os.environ["RANK"])
    on_gpu = options.device != "cpu"
    if on_gpu:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if on_gpu else "gloo")
    try:
        for precision in options.precisions.split(","):
            for mode in options.modes.split(","):
                record = measure(mode, trainers.with_sizes(options, options.preset, precision))
                if rank == 0:
                    print(json.dumps(record), flush=True)
                    if options.json:
                        with open(options.json, "a") as file:
                            file.write(json.dumps(record) + "\n")
    finally:
        dist.destroy_process_group()
    return 0


def parse(argv: list[str] | None) -> argparse.Namespace:
    def add_flags(parser: argparse.ArgumentParser) -> None:
        add = parser.add_argument
        add("--precisions", default="tf32,bf16")
        add("--modes", default=",".join(MODES), help=f"some of {', '.join(MODES)}")
        add("--json", metavar="FILE", help="append the records to a file")
        add("--rounds", type=int, default=5)
        add("--steps", type=int, default=5, help="steps a round")

    return trainers.parse("Time data-parallel training steps of torch.", add_flags, argv)


def measure(mode: str, options: argparse.Namespace) -> dict[str, Any]:
    """The record of one mode: on every rank."""
    alone = milliseconds(mode, options, wrap=False)
    forget_compiled()
    if options.device != "cpu":
        torch.cuda.reset_peak_memory_stats()
    together = milliseconds(mode, options, wrap=True)
    peak = torch.cuda.max_memory_allocated() if options.device != "cpu" else 0
    forget_compiled()
    ranks, tokens = dist.get_world_size(), options.batch_size * options.block_size
    return {
        "preset": options.preset,
        "precision": options.precision,
        "mode": MODES[mode],
        "ranks": ranks,
        "ms": together,
        "one_rank_ms": alone,
        "tokens_per_s": ranks * tokens / together * 1e3,
        "one_rank_tokens_per_s": tokens / alone * 1e3,
        "efficiency": alone / together,
        "peak_memory_bytes": peak,
    }


def milliseconds(mode: str, options: argparse.Namespace, wrap: bool) -> float:
    """The median milliseconds of a step, each rank alone at the same time, or all together."""
    trainer = TorchTrainer(mode, options)
    if wrap:
        model: Any = DistributedDataParallel(trainer.model, gradient_as_bucket_view=True)
        trainer.run = torch.compile(model) if mode == "torch.compile" else model
    batches = [(trainer.put(x), trainer.put(y)) for x, y in trainers.random_batches(options)]

    def steps(count: int) -> float:
        began = time.perf_counter()
        for _ in range(count):
            trainer.step(batches)
        trainer.synchronize()
        return (time.perf_counter() - began) * 1e3 / count

    steps(4)
    times = []
    for _ in range(options.rounds):
        dist.barrier()
        times.append(steps(options.steps))
    dist.barrier()
    return statistics.median(times)


if __name__ == "__main__":
    sys.exit(main())
