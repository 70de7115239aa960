"""Training on several processes: launcher, process group, collectives, data parallelism. Imports tensor, autograd, nn,
optim.

    python -m blutrain.distributed.launch --nproc-per-node 2 train.py

    from blutrain import distributed
    distributed.init_process_group()
    model = distributed.DataParallel(model)

Reading order: launch and launch_output (the launcher); environment, store, pmi, watch (how ranks find and watch each
other); mpi, nccl, local, group, current (who reduces); collectives, messages (the primitives); buckets, bucket_primitives, shards,
reducer, data_parallel (gradients); data.
"""

from __future__ import annotations

from .collectives import all_gather, all_reduce, broadcast, reduce_scatter
from .current import (
    destroy_process_group,
    get_group,
    get_rank,
    get_world_size,
    init_process_group,
    is_initialized,
    local_device,
    require_equal,
)
from .data import Sampler, shard
from .data_parallel import DataParallel
from .environment import is_launched, restart_count
from .errors import CollectiveMismatch, CollectiveTimeout, PeerLost
from .group import ProcessGroup, Work
from .messages import barrier, recv, send
from .store import StoreError

__all__ = [
    "CollectiveMismatch",
    "CollectiveTimeout",
    "DataParallel",
    "PeerLost",
    "ProcessGroup",
    "Sampler",
    "StoreError",
    "Work",
    "all_gather",
    "all_reduce",
    "barrier",
    "broadcast",
    "destroy_process_group",
    "get_group",
    "get_rank",
    "get_world_size",
    "init_process_group",
    "is_initialized",
    "is_launched",
    "local_device",
    "recv",
    "reduce_scatter",
    "require_equal",
    "restart_count",
    "send",
    "shard",
]
