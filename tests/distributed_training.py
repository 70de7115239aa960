"""What the ranks run that train: `launch ... distributed_training.py NAME [arguments]`, beside one process where they can."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
from distributed_programs import raises, seed

import blutrain as bt
from blutrain import distributed, nn, nova
from blutrain.optim import SGD, AdamW
from blutrain.tensor import dispatch
from examples.gpt_mlp.model import MLPGPT, Config

ROWS, LENGTH, VOCABULARY = 13, 8, 40


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
    _clipping_is_alike(rank)
    _part_compiled(rank)
    _jitted(rank)
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
    raises(ValueError, "a weight must be positive", lambda: ddp.backward(ddp(_x(rank)).sum(), weight=0))


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


def _clipping_is_alike(rank):
    """One rank is compiled, which sums a norm in another order: gradients are scaled to the same bits all the same."""
    seed(1)
    model = nn.Sequential(nn.Linear(37, 301), nn.Linear(301, 5))
    ddp = distributed.DataParallel(model)
    if rank == 0:
        ddp.compile()
    optimizer = SGD(model.parameters(), lr=0.1)
    for step in range(5):
        x = np.random.default_rng([step, rank]).standard_normal((8, 37)).astype(np.float32)
        ddp(bt.from_numpy(x)).square().mean().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.01)
        optimizer.step()
        optimizer.zero_grad()
        ddp.check_equal()
    if rank == 0:  # a norm alone is no business of the others
        ddp.module.zero_grad()
        with ddp.no_sync():
            ddp(bt.from_numpy(x)).square().mean().backward()
        assert nn.utils.clip_grad_norm_(model.parameters(), float("inf")).item() > 0


def _part_compiled(rank):
    """Only one layer is compiled: backward is recorded in part, eager in part."""
    model, ddp = _wrapped(False)
    model.second.compile()
    for _ in range(3):
        model.zero_grad()
        ddp(_x(rank)).square().sum().backward()
        _assert_gradients(model, _gradient_of((_x(0), 0.5), (_x(1), 0.5)))


def _jitted(rank):
    """A function that calls the model, and one that is the whole step, are as eager steps."""
    results = [_steps(rank, kind) for kind in ("eager", "loss", "step")]
    np.testing.assert_allclose(results[1:], [results[0]] * 2, rtol=1e-6)


def _steps(rank, kind):
    """The losses of a few steps, of which nova.jit has nothing, the loss or all."""
    model, ddp = _wrapped(False)
    optimizer = SGD(model.parameters(), lr=0.1)

    def loss_of(x):
        return ddp(x).square().mean()

    loss_of = nova.jit(loss_of, strict=True) if kind == "loss" else loss_of

    def step(x):
        loss = loss_of(x)
        ddp.backward(loss, weight=1.0 + rank)
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    step = nova.jit(step, strict=True) if kind == "step" else step
    return [step(_x(2 * i + rank)).item() for i in range(5)]


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


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
