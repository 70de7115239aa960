"""What changes where several processes train one model: each takes its rows of every batch, gradients are averaged.

python -m blutrain.distributed.launch --nproc-per-node 2 -m examples.gpt_mlp.train
"""

from __future__ import annotations

import contextlib
import shlex
import sys
from pathlib import Path
from typing import Any

import blutrain as bt
from blutrain import distributed, nn
from blutrain.errors import message


class Ranks:
    """This process among the ranks. `ddp`: the model wrapped, under a launcher; `is_first`: it alone writes."""

    def __init__(self, batch_size: int):
        if distributed.is_launched():
            distributed.init_process_group()
        self.size, self.batch_size = distributed.get_world_size(), batch_size
        self.is_first = distributed.get_rank() == 0
        self.mine = distributed.shard(batch_size)
        self.rows = self.mine.stop - self.mine.start
        self.ddp: distributed.DataParallel | None = None
        if batch_size < self.size:
            help = "a larger --batch-size (it is that of all ranks together), or fewer ranks"
            expected, got = f"at least {self.size}, a row for each rank", str(batch_size)
            raise ValueError(
                message("--batch-size", "too few rows", expected=expected, got=got, location=("", 0), help=help)
            )

    def device(self, name: str) -> str:
        """The GPU of this rank, where GPUs are used."""
        return str(distributed.local_device()) if name != "cpu" and distributed.is_launched() else name

    def wrap(self, model: nn.Module, fingerprint: str, shard_optimizer: bool) -> None:
        """Take over rank 0's parameters. Errors: ValueError where the ranks' models or data differ."""
        if distributed.is_launched():
            distributed.require_equal("the data", fingerprint)
            self.ddp = distributed.DataParallel(model, shard_optimizer=shard_optimizer)

    def backward(self, loss: bt.Tensor, is_last: bool) -> None:
        """loss.backward(); the average over the ranks is taken at the last of several micro-batches."""
        if self.ddp is None:
            loss.backward()
            return
        even = self.batch_size % self.size == 0
        with contextlib.nullcontext() if is_last else self.ddp.no_sync():
            self.ddp.backward(loss, weight=None if even else self.rows)

    def mean(self, loss: bt.Tensor) -> float:
        """The mean over the batch of all ranks from the means over their rows; every rank calls it."""
        if self.ddp is None:
            return loss.item()
        return distributed.all_reduce(loss.detach() * self.rows).item() / self.batch_size

    def any(self, flag: bool) -> bool:
        """Whether it holds on any rank; every rank calls it."""
        return flag if self.ddp is None else any(distributed.get_group().exchange("whether to stop", flag))

    def command(self) -> str:
        """How this program was started."""
        launch = f"blutrain.distributed.launch --nproc-per-node {self.size} -m " if distributed.is_launched() else ""
        python = Path(sys.executable)
        python = python.relative_to(Path.cwd()) if python.is_relative_to(Path.cwd()) else python
        return f"{shlex.quote(str(python))} -m {launch}examples.gpt_mlp.train"


def restarted(checkpoint: Any) -> bool:
    """Whether the launcher starts this run again after a failure, and there is something to continue from."""
    return distributed.restart_count() > 0 and checkpoint.is_file()
