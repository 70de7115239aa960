"""What the ranks run in test_distributed_*.py: `launch ... distributed_programs.py NAME [arguments]`."""

from __future__ import annotations

import ctypes
import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import blutrain as bt
from blutrain import distributed
from blutrain.distributed import watch
from blutrain.tensor import dispatch


def seed(number):
    """As manual_seed in a single process: DataParallel gives ranks streams of their own."""
    bt.default_generator.stream = 0
    bt.manual_seed(number)


def raises(kind, part, function):
    """Runs `function` and checks its error."""
    try:
        function()
    except kind as error:
        assert part in str(error), error
    else:
        raise AssertionError(f"no {kind.__name__}")


def started_by():
    """Sums ranks: whoever started them."""
    group = distributed.init_process_group(timeout=30)
    total = distributed.all_reduce(bt.tensor(float(group.rank + 1))).item()
    assert total == group.size * (group.size + 1) / 2
    here = f"rank {group.world.local_rank} of {group.world.local_size} here"
    print(f"sum {total} of {group.size}, {here}", flush=True)


def again(leaves):
    """One group after the other. MPI starts once in a process."""
    for i in range(3):
        distributed.init_process_group(timeout=20)
        assert distributed.all_reduce(bt.ones(1)).item() == 2
        if i < 2 or leaves == "leaves":
            distributed.destroy_process_group()
    print("left", flush=True)


# ---------------------------------------------------------------- collectives


def collectives():
    group = distributed.init_process_group(timeout=30)
    rank, size = group.rank, group.size
    for name in ("float32", "float64", "float16", "bfloat16", "int64", "int32", "uint8"):
        _reductions(rank, size, getattr(bt, name))
    assert distributed.all_reduce(bt.tensor([rank == 1, False]), "max").tolist() == [True, False]
    empty = distributed.all_reduce(bt.zeros(0, 3))
    assert empty.shape == (0, 3)
    assert distributed.all_gather(bt.tensor(rank)).tolist() == list(range(size))
    rows = distributed.all_gather(bt.full((2, 3), float(rank)).T.contiguous().T)
    assert rows.shape == (2 * size, 3) and rows[::2, 0].tolist() == list(map(float, range(size)))
    assert distributed.broadcast(bt.tensor([rank, 7]), src=size - 1).tolist() == [size - 1, 7]
    part = distributed.reduce_scatter(bt.arange(3 * size, dtype="float32").reshape(size, 3), "mean")
    assert part.tolist() == [[3.0 * rank, 3.0 * rank + 1, 3.0 * rank + 2]]
    _gradients(rank, size)
    _asynchronous(rank, size)
    _refused(size)
    distributed.barrier()


def _reductions(rank, size, dtype):
    x = bt.arange(5).to(dtype) + rank
    total = [size * i + size * (size - 1) // 2 for i in range(5)]
    assert distributed.all_reduce(x).tolist() == total
    assert distributed.all_reduce(x, "max").tolist() == [i + size - 1 for i in range(5)]
    if dtype.is_floating:
        mean = distributed.all_reduce(x, "mean")
        assert mean.dtype is dtype and mean.tolist() == [i + (size - 1) / 2 for i in range(5)]


def _gradients(rank, size):
    """Of the sum of all ranks' losses, each weighted by its rank."""
    weight = float(rank + 1)
    everyone = size * (size + 1) / 2
    for function, expected in (
        (lambda x: distributed.all_reduce(x), [everyone] * 4),
        (lambda x: distributed.all_reduce(x, "mean"), [everyone / size] * 4),
        (lambda x: distributed.broadcast(x, 1), [everyone if rank == 1 else 0.0] * 4),
        (lambda x: distributed.all_gather(x), [everyone] * 4),
    ):
        x = bt.ones(4, dtype="float64").requires_grad_()
        (function(x) * weight).sum().backward()
        assert x.grad.tolist() == expected
    x = bt.ones(size, 2).requires_grad_()
    (distributed.reduce_scatter(x) * weight).sum().backward()
    assert x.grad.tolist() == [[r + 1.0] * 2 for r in range(size)]
    x = bt.ones(2).requires_grad_()
    raises(RuntimeError, "max has no gradient", lambda: distributed.all_reduce(x, "max").sum().backward())


def _asynchronous(rank, size):
    works = [distributed.all_reduce(bt.full((n,), float(rank)), "max", async_op=True) for n in (1, 1000, 100_000)]
    assert [work.wait().shape[0] for work in works] == [1, 1000, 100_000]
    assert all(work.is_done() and work.wait()[0].item() == size - 1 for work in works)
    following, before = (rank + 1) % size, (rank - 1) % size
    sent = distributed.send(bt.tensor([rank, rank]), following, tag=3, async_op=True)
    assert distributed.recv(bt.zeros(2).long(), before, tag=3).tolist() == [before, before]
    sent.wait()
    x = bt.ones(2).requires_grad_()
    raises(RuntimeError, "asynchronous", lambda: distributed.all_reduce(x, async_op=True))


def _refused(size):
    one = bt.ones(2)
    raises(ValueError, "unknown op", lambda: distributed.all_reduce(one, "min"))
    raises(TypeError, "mean of integers", lambda: distributed.all_reduce(one.long(), "mean"))
    raises(TypeError, "sum of booleans", lambda: distributed.all_reduce(one > 0))
    raises(ValueError, "no such rank", lambda: distributed.broadcast(one, size))
    raises(ValueError, "no equal parts", lambda: distributed.reduce_scatter(bt.ones(size + 1)))
    raises(TypeError, "no tensor", lambda: distributed.all_reduce(1.0))


# ---------------------------------------------------------------- failures


def fails(how):
    """Rank 1 ends, the others wait for it."""
    group = distributed.init_process_group(timeout=2)
    distributed.all_reduce(bt.ones(1))
    print("before", flush=True)
    if group.rank == 1:
        if how == "raise":
            raise KeyError("the reason")
        if how == "exit":
            sys.stderr.write("giving up\n")
            os._exit(7)
        if how == "return":
            return
        if how == "leave":
            sys.exit(3)
        if how == "sleep":
            time.sleep(60)
    distributed.all_reduce(bt.ones(3), "mean")


def apart():
    """Rank 1 does not raise what the others do, and deal with: they go on to something else."""
    group = distributed.init_process_group(timeout=60)
    distributed.all_reduce(bt.ones(1))
    if group.rank == 1:
        distributed.all_reduce(bt.ones(3), "mean")
    distributed.barrier()


def messages():
    """Between two of three ranks: collectives are the same ones on all ranks all the same."""
    group = distributed.init_process_group(timeout=3)
    for i in range(10):
        if group.rank == 0:
            distributed.send(bt.full((2,), float(i)), 1)
        elif group.rank == 1:
            assert distributed.recv(bt.zeros(2), 0).tolist() == [i, i]
    assert distributed.all_reduce(bt.ones(1)).item() == 3
    if group.rank == 0:
        distributed.recv(bt.zeros(2), 2)
    distributed.barrier()


def sleeps_first():
    if os.environ["RANK"] == "1":
        time.sleep(60)
    distributed.init_process_group(timeout=2)
    distributed.all_reduce(bt.ones(1))


def sleeps_before_mpi():
    if distributed.init_process_group(timeout=2).rank == 1:
        time.sleep(60)
    distributed.all_reduce(bt.ones(1))


def hangs():
    """Rank 1 waits in C and lets no other thread of Python run."""
    watch.SILENT_SECONDS = 3.0
    group = distributed.init_process_group(timeout=30)
    distributed.all_reduce(bt.ones(1))
    time.sleep(1)
    if group.rank == 1:
        ctypes.PyDLL(None).sleep(60)
    distributed.all_reduce(bt.ones(1))


def compiles():
    """A rank that compiles for longer than the timeout is waited for."""
    group = distributed.init_process_group(timeout=1)
    distributed.all_reduce(bt.ones(1))
    if group.rank == 1:
        dispatch.busy = "compiling"
        time.sleep(3)
        dispatch.busy = ""
    distributed.all_reduce(bt.ones(1))
    print("met", flush=True)


def waits():
    """Until Ctrl-C."""
    distributed.init_process_group(timeout=60)
    distributed.barrier()
    print("waiting", flush=True)
    time.sleep(60)


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
