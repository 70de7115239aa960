"""What the ranks run in test_distributed_*.py: `launch ... distributed_programs.py NAME [arguments]`."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import blutrain as bt
from blutrain import distributed, nn
from blutrain.optim import SGD, AdamW
from blutrain.tensor import dispatch
from examples.gpt_mlp.model import MLPGPT, Config

ROWS, LENGTH, VOCABULARY = 13, 8, 40


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
    print(f"sum {total} of {group.size}", flush=True)


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


# ---------------------------------------------------------------- training


def batch(step):
    rng = np.random.default_rng([7, step % 4])
    x, y = (rng.integers(0, VOCABULARY, (ROWS, LENGTH)) for _ in range(2))
    return x, y


def rows_of(arrays, rows):
    return [bt.from_numpy(np.ascontiguousarray(a[rows])) for a in arrays]


def model_and_optimizer(dtype, lr):
    seed(0)
    model = MLPGPT(Config(VOCABULARY, LENGTH, 16, 1, 0.0)).to(dtype)
    return model, AdamW(model.parameters(), lr=lr)


def train(mode, dtype, steps):
    """The losses of `steps` steps over all ranks; several buckets of odd sizes, uneven parts, clipping.

    mode: eager or compiled, "+sharded" where the ranks share the optimizer's work.
    """
    model, optimizer = model_and_optimizer(dtype, 1e-2)
    mode, _, sharded = mode.partition("+")
    ddp = distributed.DataParallel(model, bucket_cap_mb=0.004, shard_optimizer=bool(sharded))
    if mode == "compiled":
        ddp.compile(strict=True, first_step="compiled")
    mine, losses = distributed.shard(ROWS), []
    for step in range(steps):
        loss = ddp(*rows_of(batch(step), mine))
        ddp.backward(loss, weight=mine.stop - mine.start)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach() * (mine.stop - mine.start))
    ddp.check_equal()
    return [distributed.all_reduce(loss).item() / ROWS for loss in losses]


def training(out, modes="eager,compiled", steps="50"):
    """float64 losses of both modes, and float32 steps each from the state of a single process."""
    group = distributed.init_process_group(timeout=60)
    found = {mode: train(mode, "float64", int(steps)) for mode in modes.split(",")}
    if "compiled" in modes:
        assert dispatch.recorder.replayed_steps >= int(steps) - 2, dispatch.recorder.replayed_steps
    plain = [mode for mode in modes.split(",") if "+" not in mode]
    found["difference"] = max((_difference_in_float32(mode, 5) for mode in plain), default=0.0)
    if group.rank == 0:
        Path(out).write_text(json.dumps(found))


def _difference_in_float32(mode, steps):
    """The largest difference of a parameter after one step by all ranks and by one process, from equal states."""
    single, single_optimizer = model_and_optimizer("float32", 1e-3)
    model, optimizer = model_and_optimizer("float32", 1e-3)
    ddp = distributed.DataParallel(model, bucket_cap_mb=0.01)
    if mode == "compiled":
        ddp.compile(strict=True)
    mine, largest = distributed.shard(ROWS), 0.0
    for step in range(steps):
        single.load_state_dict(model.state_dict())
        single_optimizer.load_state_dict(optimizer.state_dict())
        single(*rows_of(batch(step), slice(None))).backward()
        single_optimizer.step()
        single_optimizer.zero_grad()
        loss = ddp(*rows_of(batch(step), mine))
        ddp.backward(loss, weight=mine.stop - mine.start)
        optimizer.step()
        optimizer.zero_grad()
        for p, q in zip(model.parameters(), single.parameters(), strict=True):
            largest = max(largest, (p - q).abs().max().item())
    return largest


# ---------------------------------------------------------------- DataParallel


class Two(nn.Module):
    """Two layers, of which the second may be left out."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 3)
        self.register_buffer("scale", bt.ones(1))

    def forward(self, x, with_second=True):
        x = self.first(x) * self.scale
        return self.second(x) if with_second else x


def data_parallel():
    """Cases on two ranks."""
    group = distributed.init_process_group(timeout=30)
    rank = group.rank
    for compiled in (False, True):
        _values_are_taken_over(rank, compiled)
        _accumulates(rank, compiled)
        _weights(rank, compiled)
        _different_programs(rank, compiled)
        _unused(rank, compiled)
        _changed_later(rank, compiled)
    _part_compiled(rank)
    _streams(rank)
    _bad_input(rank)


def _wrapped(compiled, **options):
    seed(1)
    model = Two()
    ddp = distributed.DataParallel(model, **{"bucket_cap_mb": 1e-5, **options})
    if compiled:
        ddp.compile()
    return model, ddp


def _x(rank):
    return bt.from_numpy(np.random.default_rng(rank).standard_normal((4, 3)).astype(np.float32))


def _gradient_of(*parts):
    """The gradients of a single process: parts are (input, weight of its sum)."""
    seed(1)
    model = Two()
    sum((model(x).square().sum() * weight for x, weight in parts), bt.zeros(())).backward()
    return [p.grad.numpy() for p in model.parameters()]


def _assert_gradients(model, expected):
    for p, e in zip(model.parameters(), expected, strict=True):
        if e is not None:
            np.testing.assert_allclose(p.grad.numpy(), e, rtol=2e-5, atol=1e-6)


def _values_are_taken_over(rank, compiled):
    seed(1)
    model = Two()
    with bt.no_grad():
        model.first.weight.add_(float(rank))
        model.scale.fill_(rank + 3.0)
    ddp = distributed.DataParallel(model)
    assert model.scale.item() == 3.0
    ddp.check_equal()
    assert set(ddp.state_dict()) == set(model.state_dict())
    with bt.no_grad():
        model.second.bias.add_(float(rank))
    raises(RuntimeError, "second.bias differs between ranks", ddp.check_equal)


def _accumulates(rank, compiled):
    """Two backwards without averaging, then one with: the sum of all is averaged."""
    model, ddp = _wrapped(compiled)
    optimizer = SGD(model.parameters(), lr=0.1)
    expected = _gradient_of(*[(_x(r + 10 * k), 0.5) for r in range(2) for k in range(3)])
    for _ in range(3):
        before = [p.detach().numpy().copy() for p in model.parameters()]
        for k in range(3):
            if k < 2:
                with ddp.no_sync():
                    ddp(_x(rank + 10 * k)).square().sum().backward()
            else:
                ddp(_x(rank + 10 * k)).square().sum().backward()
        _assert_gradients(model, expected)
        with bt.no_grad():
            optimizer.step()
            for p, old in zip(model.parameters(), before, strict=True):
                p.copy_(bt.from_numpy(old))
        optimizer.zero_grad()
    with ddp.no_sync():
        ddp(_x(rank)).square().sum().backward()
    _assert_gradients(model, _gradient_of((_x(rank), 1.0)))


def _weights(rank, compiled):
    model, ddp = _wrapped(compiled)
    for _ in range(3):
        model.zero_grad()
        ddp.backward(ddp(_x(rank)).square().sum(), weight=3 if rank == 0 else 1)
        _assert_gradients(model, _gradient_of((_x(0), 0.75), (_x(1), 0.25)))
    model.zero_grad()
    if rank == 0:
        ddp.backward(ddp(_x(0)).square().sum(), weight=5)
    else:
        ddp.backward(None)  # nothing left for this rank
    _assert_gradients(model, _gradient_of((_x(0), 1.0)))
    raises(ValueError, "weights must be positive", lambda: ddp.backward(ddp(_x(rank)).sum(), weight=0))


def _different_programs(rank, compiled):
    """One rank reads losses and gradients and has other shapes; they meet all the same."""
    model, ddp = _wrapped(compiled)
    optimizer = SGD(model.parameters(), lr=0.01)
    for step in range(4):
        x = _x(rank)[: 3 if rank and step == 3 else 4]
        loss = ddp(x).square().sum()
        if rank == 0:
            loss.item()
        loss.backward()
        if rank == 1:
            model.first.weight.grad.sum().item()
        distributed.all_reduce(bt.ones(2))
        optimizer.step()
        optimizer.zero_grad()
    ddp.check_equal()


def _unused(rank, compiled):
    model, ddp = _wrapped(compiled)
    for _ in range(2):
        raises(RuntimeError, "second.bias, second.weight", lambda: ddp(_x(rank), False).square().sum().backward())
        model.zero_grad()
    model, ddp = _wrapped(compiled, find_unused_parameters=True)
    for _ in range(2):
        model.zero_grad()
        ddp(_x(rank), rank == 0).square().sum().backward()  # used on one rank
        assert model.second.bias.grad is not None
        np.testing.assert_allclose(model.second.bias.grad.numpy(), _gradient_of((_x(0), 0.5))[3], rtol=2e-5)
        model.zero_grad()
        ddp(_x(rank), False).square().sum().backward()  # on none
        assert model.second.bias.grad is None and model.first.bias.grad is not None


def _changed_later(rank, compiled):
    """What is trained only since the model was wrapped, or is of another type since, would not be averaged."""
    seed(1)
    model = Two()
    model.second.requires_grad_(False)
    ddp = distributed.DataParallel(model)
    if compiled:
        ddp.compile()
    for _ in range(3):
        ddp(_x(rank)).square().sum().backward()
        model.zero_grad()
    model.second.bias.requires_grad_()
    raises(RuntimeError, "second.bias has changed since the model was wrapped", lambda: ddp(_x(rank)))
    ddp = distributed.DataParallel(model)  # again
    ddp(_x(rank)).square().sum().backward()
    _assert_gradients(model.second, [None, _gradient_of((_x(0), 0.5), (_x(1), 0.5))[3]])
    model.to("float64")
    raises(RuntimeError, "expected: f32 on cpu", lambda: ddp(_x(rank).double()))


def _part_compiled(rank):
    """Only one layer is compiled: backward is recorded in part, eager in part."""
    model, ddp = _wrapped(False)
    model.second.compile()
    for _ in range(3):
        model.zero_grad()
        ddp(_x(rank)).square().sum().backward()
        _assert_gradients(model, _gradient_of((_x(0), 0.5), (_x(1), 0.5)))


def _streams(rank):
    """Ranks draw different dropout masks, and a saved state holds for all of them."""
    _wrapped(False)
    masks = distributed.all_gather(nn.functional.dropout(bt.ones(1, 64), 0.5, training=True))
    assert masks[0].tolist() != masks[1].tolist()
    state = bt.get_rng_state()
    distributed.require_equal("the generator", state["counter"])
    first = bt.rand(3).tolist()
    bt.set_rng_state(state)
    assert bt.rand(3).tolist() == first


def _bad_input(rank):
    raises(ValueError, "models differ", lambda: distributed.DataParallel(nn.Linear(3, 3 + rank)))
    bt.manual_seed(rank)
    raises(ValueError, "the ranks differ in the seed", lambda: distributed.DataParallel(nn.Linear(3, 3)))
    raises(ValueError, "the length of Sampler", lambda: distributed.Sampler(10 + rank, 2))
    raises(ValueError, "no parameter requires", lambda: distributed.DataParallel(nn.ReLU()))
    raises(TypeError, "not a model", lambda: distributed.DataParallel(3))


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


def sleeps_first():
    if os.environ["RANK"] == "1":
        time.sleep(60)
    distributed.init_process_group(timeout=2)
    distributed.all_reduce(bt.ones(1))


def sleeps_before_mpi():
    if distributed.init_process_group(timeout=2).rank == 1:
        time.sleep(60)
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
