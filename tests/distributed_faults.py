"""What ranks run in test_distributed.py that go on after an error, or of which one runs by the eager rules."""

from __future__ import annotations

import contextlib
import sys
import warnings

import numpy as np
from distributed_programs import raises, seed

import blutrain as bt
from blutrain import distributed, nn
from blutrain.autograd import Function
from blutrain.optim import SGD


class ReadsInBackward(Function):
    """Its backward looks at a value: a compiled step is refused there, and goes on eagerly."""

    @staticmethod
    def forward(ctx, x):
        return x * 1.0

    @staticmethod
    def backward(ctx, grad):
        return grad * (2.0 if grad.sum().item() > -1e9 else 1.0)


class Model(nn.Module):
    """reads: None, "forward" or "backward", where it looks at a value."""

    def __init__(self, reads=None, width=3):
        super().__init__()
        self.first, self.second, self.reads = nn.Linear(width, width), nn.Linear(width, width), reads

    def forward(self, x, with_second=True):
        x = self.first(x)
        if self.reads == "forward":
            x.mean().item()
        x = ReadsInBackward.apply(x) if self.reads == "backward" else x
        return self.second(x) if with_second else x


def batch(rank, step, width=3):
    return bt.from_numpy(np.random.default_rng([rank, step]).standard_normal((4, width)).astype(np.float32))


def train(model, compiled, sharded, clipped_when):
    """The parameters after steps of a micro-batch of this rank alone and one of all; clipped_when: step -> whether the
    norm of the first is that of all ranks.
    """
    ddp = distributed.DataParallel(model, bucket_cap_mb=1e-5, shard_optimizer=sharded)
    optimizer = SGD(model.parameters(), lr=0.1)
    if compiled:
        model.compile()
    for step in range(8):
        for micro in range(2):
            alone = contextlib.ExitStack()
            with alone:
                if micro == 0 and not sharded:
                    alone.enter_context(ddp.no_sync())
                ddp(batch(distributed.get_rank(), 2 * step + micro)).square().sum().backward()
                if micro == 0 and clipped_when(step):
                    alone.close()
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        ddp.check_equal()
    return [p.numpy(force=True) for p in model.parameters()]


def one_runs_eagerly():
    """Rank 0, or both, look at values inside of a compiled model: the same numbers, and ranks that meet."""
    warnings.simplefilter("ignore")
    rank = distributed.init_process_group(timeout=20).rank
    for sharded in (False, True):
        for where in ("forward", "backward"):
            for reads in (where if rank == 0 else None, where):
                found = []
                for compiled in (False, True):
                    seed(0)
                    model = Model(reads if compiled or where == "backward" else None)
                    found.append(train(model, compiled, sharded, lambda step: step % 4 == 3))
                for a, b in zip(*found, strict=True):
                    np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6, err_msg=f"{sharded} {where}")


def train_two(compiled, sharded, wrapped):
    """The parameters of two models that train together, and one of them alone."""
    seed(0)
    models = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 6)), nn.Sequential(nn.Linear(6, 9), nn.Linear(9, 1))
    made, judged = [m.to("float64") for m in models]
    if wrapped:
        made, judged = [distributed.DataParallel(m, bucket_cap_mb=2e-4, shard_optimizer=sharded) for m in models]
    optimizers = [SGD(m.parameters(), lr=0.05, momentum=0.9) for m in models]
    for m in models if compiled else ():
        m.compile()
    mine = distributed.shard(6) if wrapped else slice(0, 6)
    for step in range(5):
        x = bt.from_numpy(np.random.default_rng(step).standard_normal((6, 4))[mine])
        with judged.no_sync() if wrapped else contextlib.nullcontext():
            (judged(made(x)) - 1).square().mean().backward()
        optimizers[0].step()
        for optimizer in optimizers:
            optimizer.zero_grad()
        (judged(made(x)) + 1).square().mean().backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    return [p.numpy(force=True) for m in models for p in m.parameters()]


def two_models():
    """Their buckets meet in one order, eager on one rank and compiled on the other, too."""
    rank = distributed.init_process_group(timeout=20).rank
    expected = train_two(False, False, False)
    for compiled in (False, True, rank == 0):
        for sharded in (False, True):
            for a, b in zip(expected, train_two(compiled, sharded, True), strict=True):
                np.testing.assert_allclose(a, b, rtol=0, atol=1e-12)


class Mixed(nn.Module):
    """Parameters of several types, one without elements; a rank's part may be of one type only."""

    def __init__(self):
        super().__init__()
        self.kinds = [
            (bt.float64, (0, 3)),
            (bt.float64, ()),
            (bt.float16, (64,)),
            (bt.float32, (129,)),
            (bt.float32, (5,)),
        ]
        for i, (dtype, shape) in enumerate(self.kinds):
            setattr(self, f"p{i}", nn.Parameter(bt.randn(*shape).to(dtype)))

    def forward(self, x):
        found = [getattr(self, f"p{i}") for i in range(len(self.kinds))]
        return sum(((p * x.to(p.dtype)).sin().float().sum() for p in found), bt.zeros(()))


def mixed_types():
    """The norm by which ranks clip is of one type, whatever parts of the gradients they have."""
    rank = distributed.init_process_group(timeout=20).rank
    inputs = [bt.tensor(0.5), bt.tensor(2.0)]
    for norm_type in (2.0, float("inf")):
        for compiled in (False, True):
            found = []
            for wrapped in (False, True):
                seed(0)
                model = Mixed()
                ddp = distributed.DataParallel(model, shard_optimizer=True) if wrapped else None
                optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9)
                if wrapped and compiled:
                    model.compile(strict=True)
                for _ in range(4):
                    for x in () if ddp else inputs:
                        (model(x) / 2).backward()
                    if ddp:
                        ddp(inputs[rank]).backward()
                    nn.utils.clip_grad_norm_(model.parameters(), 0.5, norm_type=norm_type)
                    optimizer.step()
                    optimizer.zero_grad()
                found.append([p.numpy(force=True).astype(np.float64) for p in model.parameters()])
            for a, b in zip(*found, strict=True):
                np.testing.assert_allclose(a, b, rtol=1e-2, atol=1e-3)
            ddp.check_equal()


def goes_on():
    """A backward that raised leaves no reduction behind that would write to gradients later."""
    rank = distributed.init_process_group(timeout=20).rank
    seed(0)
    model = Model(width=300)
    ddp = distributed.DataParallel(model, bucket_cap_mb=1e-3)
    with bt.no_grad():
        model.second.weight.fill_(1.0)
    model.second.weight.register_hook(_raises)
    for step in range(20):
        x = bt.full((2, 300), step + 1.0 + rank)
        raises(RuntimeError, "first.bias", lambda x=x: model.second(x).square().sum().backward())
        model.zero_grad(set_to_none=False)
        raises(KeyError, "a hook", lambda x=x: ddp(x * float("nan")).sum().backward())
        model.zero_grad()
        ddp(x).sum().backward()
        assert model.first.weight.grad[0, 0].item() == 300 * 2 * (step + 1.5)
        model.zero_grad()


def _raises(grad):
    if grad.isnan().any().item():
        raise KeyError("a hook")


def bad_input():
    """Options that differ between ranks, and weights that are no counts."""
    rank = distributed.init_process_group(timeout=20).rank
    for name, value in (
        ("bucket_cap_mb", 1.0 + rank),
        ("find_unused_parameters", rank > 0),
        ("shard_optimizer", rank > 0),
    ):
        seed(0)
        said = f"the ranks differ in {name} of DataParallel"
        raises(ValueError, said, lambda n=name, v=value: distributed.DataParallel(nn.Linear(3, 3), **{n: v}))
    seed(0)
    ddp = distributed.DataParallel(nn.Linear(3, 3))
    for weight in (float("inf"), float("nan"), -1):
        raises(ValueError, "a finite count", lambda w=weight: ddp.backward(ddp(bt.ones(2, 3)).sum(), weight=w))


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
