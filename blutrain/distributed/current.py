"""The group that this process is in, and what is asked of it everywhere.

init_process_group()                  # once in each process; finds the ranks by the environment variables
get_rank(), get_world_size()
"""

from __future__ import annotations

import atexit
import itertools
import os
import sys
from dataclasses import replace
from typing import Any

from ..errors import message
from ..tensor.device import Device
from .environment import read_world
from .group import ProcessGroup

_group: ProcessGroup | None = None
_starts = itertools.count()


def init_process_group(timeout: float = 600.0) -> ProcessGroup:
    """Join the other ranks; a second call gives the group that is there.

    timeout: seconds that a rank waits in a collective for one that does not come (one that compiles is waited for).
    Errors: ValueError for environment variables that make no sense; StoreError where the ranks cannot meet.
    """
    global _group
    if _group is None:
        if not timeout > 0:
            raise ValueError(message("init_process_group", "timeout must be a positive number", got=repr(timeout)))
        world = read_world()  # (a group after this one has another name: ranks may leave this one late)
        _group = ProcessGroup(replace(world, job=f"{world.job}.{next(_starts)}"), float(timeout))
        _hook_exceptions(_group)
        atexit.register(_group.close)
    return _group


def get_group() -> ProcessGroup:
    """The group. Errors: RuntimeError before init_process_group."""
    if _group is None:
        help = "call blutrain.distributed.init_process_group() first"
        raise RuntimeError(message("distributed", "there is no process group", help=help))
    return _group


def is_initialized() -> bool:
    """Whether this process has joined a group."""
    return _group is not None


def get_rank() -> int:
    """This process's rank; 0 without a group."""
    return 0 if _group is None else _group.rank


def get_world_size() -> int:
    """The number of ranks; 1 without a group."""
    return 1 if _group is None else _group.size


def destroy_process_group() -> None:
    """Leave the group; all ranks call it, and may meet in another one. It happens by itself when the process ends."""
    global _group
    if _group is not None:
        group, _group = _group, None
        atexit.unregister(group.close)
        group.close(is_end=False)


def require_equal(what: str, value: Any) -> None:
    """All ranks call it. Errors: ValueError where `value` (of what JSON holds) is another one on some rank."""
    values = get_group().exchange(f"comparing {what}", value)
    for rank, other in enumerate(values):
        if other != values[0]:
            expected, got = f"{values[0]} (rank 0)", f"{other} (rank {rank})"
            raise ValueError(message("distributed", f"the ranks differ in {what}", expected=expected, got=got))


def local_device(kind: str = "cuda") -> Device:
    """This rank's device of its host: the CPU, or the GPU with the number of its rank there, which becomes CuPy's current
    one.

    Errors: RuntimeError where there are more ranks than GPUs.
    """
    if kind == "cpu":
        return Device("cpu")
    world = read_world()
    if world.local_rank < 0:
        world = init_process_group().world
    cupy: Any = Device("cuda").xp
    count, index = cupy.cuda.runtime.getDeviceCount(), world.local_rank
    if count == 1 and os.environ.get("CUDA_VISIBLE_DEVICES") and "LAUNCH_ID" not in os.environ:
        index = 0  # a starter shows each rank its own GPU only (SLURM's --gpus-per-task); NCCL refuses one for two
    if index >= count:
        raise RuntimeError(
            message(
                "distributed",
                f"rank {world.rank} has no GPU of its own",
                expected=f"at least {world.local_size} GPUs on this host, one for each rank",
                got=str(count),
                location=("", 0),
                help="start fewer ranks (--nproc-per-node), or train on the CPU",
            )
        )
    cupy.cuda.Device(index).use()
    return Device("cuda", index)


def _hook_exceptions(group: ProcessGroup) -> None:
    """An exception that nobody catches tells the other ranks before it ends this one."""
    before = sys.excepthook

    def hook(kind, error, traceback) -> None:
        if not issubclass(kind, KeyboardInterrupt):
            before(kind, error, traceback)
            sys.stderr.flush()
        group.fail(error)
        if issubclass(kind, KeyboardInterrupt):
            before(kind, error, traceback)

    sys.excepthook = hook
