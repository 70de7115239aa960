"""What ranks on GPUs run in test_distributed_gpu.py: `launch ... distributed_gpu_programs.py NAME [arguments]`.

Everything here holds for any number of ranks; one rank runs NCCL, its stream and its graphs as two do.
"""

from __future__ import annotations

import contextlib
import gc
import sys
import time

import numpy as np
from distributed_programs import raises, seed

import blutrain as bt
from blutrain import distributed, nn
from blutrain.nova.explain import programs_of
from blutrain.optim import AdamW
from examples.gpt_mlp.model import MLPGPT, Config

ROWS, LENGTH, VOCABULARY, WIDTH = 16, 32, 203, 64


def device(kind):
    distributed.init_process_group(timeout=60)
    return distributed.local_device(kind)


def collectives(kind="cuda"):
    """Sums, maxima, means, gathers of every dtype, of nothing, and from a stream that is not the default one."""
    where = device(kind)
    rank, size = distributed.get_rank(), distributed.get_world_size()
    for name in ("float32", "float64", "float16", "bfloat16", "int64", "int32", "uint8"):
        dtype = getattr(bt, name)
        x = bt.arange(5).to(dtype).to(where) + rank
        assert distributed.all_reduce(x).tolist() == [size * i + size * (size - 1) // 2 for i in range(5)], name
        assert distributed.all_reduce(x, "max").tolist() == [i + size - 1 for i in range(5)], name
        if dtype.is_floating:
            mean = distributed.all_reduce(x, "mean")
            assert mean.dtype is dtype and mean.tolist() == [i + (size - 1) / 2 for i in range(5)], name
    assert distributed.all_reduce(bt.zeros(0, 3, device=where)).shape == (0, 3)
    assert distributed.all_reduce(bt.tensor([rank == 0, False], device=where), "max").tolist() == [True, False]
    assert distributed.all_gather(bt.tensor(rank, device=where)).tolist() == list(range(size))
    assert distributed.broadcast(bt.tensor([rank, 7], device=where), src=size - 1).tolist() == [size - 1, 7]
    part = distributed.reduce_scatter(bt.arange(3 * size, dtype="float32", device=where).reshape(size, 3), "mean")
    assert part.tolist() == [[3.0 * rank, 3.0 * rank + 1, 3.0 * rank + 2]]
    works = [distributed.all_reduce(bt.full((n,), 1.0, device=where), async_op=True) for n in (1, 1000, 1_000_000)]
    assert [work.wait()[-1].item() for work in works] == [size] * 3
    with contextlib.nullcontext() if where.is_cpu else where.xp.cuda.Stream(non_blocking=True):
        x = bt.full((1 << 22,), 1.0, device=where)
        for _ in range(20):  # each waits for the one before, or the sums are wrong
            x = distributed.all_reduce(x, "mean") + 1
        assert x.min().item() == x.max().item() == 21
    if size > 1:
        _messages(where, rank, size)
    distributed.barrier()
    print("collectives hold", flush=True)


def _messages(where, rank, size):
    """Round in a ring: on a GPU a rank's messages run in the order of its calls, so some have to receive first."""
    like = bt.zeros(2, device=where)
    if rank:
        got = distributed.recv(like, rank - 1)
    distributed.send(bt.full((2,), float(rank), device=where), (rank + 1) % size)
    if not rank:
        got = distributed.recv(like, size - 1)
    assert got.tolist() == [(rank - 1) % size] * 2


# ---------------------------------------------------------------- training


def batch(step, where):
    """All rows of a step, on every rank."""
    rng = np.random.default_rng([11, step % 3])
    x, y = (rng.integers(0, VOCABULARY, (ROWS, LENGTH)) for _ in range(2))
    return bt.from_numpy(x).to(where), bt.from_numpy(y).to(where)


def train(where, mode, wrapped, steps=6):
    """(losses, parameters) after steps of two micro-batches each, with clipping; the rows of all ranks together.

    mode: eager or compiled, "+sharded" where the ranks share the optimizer's work.
    """
    seed(0)
    model = MLPGPT(Config(VOCABULARY, LENGTH, WIDTH, 2, 0.0)).to(where)
    optimizer = AdamW(model.parameters(), lr=1e-2)
    kind, _, sharded = mode.partition("+")
    ddp, mine = None, slice(0, ROWS)
    if wrapped:
        ddp = distributed.DataParallel(model, bucket_cap_mb=0.05, shard_optimizer=bool(sharded))
        mine = distributed.shard(ROWS)
    if kind == "compiled":
        model.compile(strict=True, first_step="compiled")
    losses = []
    for step in range(steps):
        for micro in range(2):
            x, y = batch(2 * step + micro, where)
            with ddp.no_sync() if ddp and not micro else bt.enable_grad():
                loss = (ddp or model)(x[mine], y[mine]) / 2
                loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    if ddp:
        ddp.check_equal()
        losses = [distributed.all_reduce(loss, "mean") for loss in losses]
    if kind == "compiled" and not where.is_cpu:
        _was_captured(model)
    return [loss.item() for loss in losses], [p.numpy(force=True) for p in model.parameters()]


def _was_captured(model):
    found = [p.executable.bindings for p in programs_of(model) if p.executable.plan.buckets]
    assert sum(b.reuse + b.updates for b in found) >= (4 if found else 0), found
    print(f"programs with collectives: {found}", flush=True)


def training(kind="cuda"):
    """Ranks together as one GPU with all rows: to the bit where there is one rank."""
    where = device(kind)
    for mode in ("eager", "eager+sharded", "compiled", "compiled+sharded"):
        losses, parameters = train(where, mode, wrapped=True)
        expected_losses, expected = train(where, mode.partition("+")[0], wrapped=False)
        worst = max(float(np.abs(a - b).max()) for a, b in zip(parameters, expected, strict=True))
        equal = losses == expected_losses and all(map(np.array_equal, parameters, expected))
        if distributed.get_world_size() == 1:
            assert equal, (mode, losses, expected_losses, worst)
        np.testing.assert_allclose(losses, expected_losses, rtol=1e-5)
        assert worst < 2e-3, (mode, worst)  # Adam divides by the root of tiny numbers
        print(f"{mode}: losses {losses[0]:.6f} .. {losses[-1]:.6f}, largest difference {worst:.2e}", flush=True)
        gc.collect()


def accumulating(kind="cuda"):
    """A second averaged backward adds to the averages of the first, eager and compiled, whole and in parts."""
    where = device(kind)
    for sharded in (False, True):
        for compiled in (False, True):
            seed(1)
            single, model = nn.Linear(33, 17).to(where), nn.Linear(33, 17).to(where)
            model.load_state_dict(single.state_dict())
            ddp = distributed.DataParallel(model, shard_optimizer=sharded)
            if compiled:
                ddp.compile()
            optimizers = AdamW(single.parameters(), lr=0.1), AdamW(model.parameters(), lr=0.1)
            x = bt.from_numpy(np.random.default_rng(3).standard_normal((8, 33)).astype(np.float32)).to(where)
            mine = distributed.shard(8)
            for _ in range(3):
                for k in (1.0, 0.5):
                    (single(x) * k).square().mean().backward()
                    (ddp(x[mine]) * k).square().mean().backward()
                for optimizer in optimizers:
                    optimizer.step()
                    optimizer.zero_grad()
            for p, q in zip(model.parameters(), single.parameters(), strict=True):
                np.testing.assert_allclose(p.numpy(force=True), q.numpy(force=True), rtol=1e-5, atol=1e-6)
    print("averages add up", flush=True)


def bad_input(kind="cuda"):
    where = device(kind)
    if distributed.get_world_size() > 1:  # all on one GPU
        raises(RuntimeError, "use the same GPU", lambda: distributed.all_reduce(bt.ones(1, device="cuda:0")))
    elif where.xp.cuda.runtime.getDeviceCount() > 1:
        distributed.all_reduce(bt.ones(1, device=where))
        raises(RuntimeError, "another GPU", lambda: distributed.all_reduce(bt.ones(1, device="cuda:1")))
    raises(TypeError, "does not reduce this dtype", lambda: distributed.all_reduce(bt.ones(1, device=where).short()))


def late(kind="cuda"):
    """The last rank stays away from a replayed step: the others say so."""
    where = device(kind)
    model = nn.Linear(64, 64).to(where)
    ddp = distributed.DataParallel(model)
    ddp.compile(first_step="compiled")
    optimizer = AdamW(model.parameters())
    distributed.get_group().watch.timeout = 3.0
    for step in range(6):
        if step == 5 and distributed.get_rank() == distributed.get_world_size() - 1:
            time.sleep(60)
        ddp(bt.ones(4, 64, device=where)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        model.weight.sum().item()


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
