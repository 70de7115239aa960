"""What the ranks run in test_distributed_collectives.py: collectives inside of forward, compiled and eager."""

from __future__ import annotations

import sys

import numpy as np
from distributed_programs import raises, seed

import blutrain as bt
from blutrain import distributed, nn
from blutrain.nova.explain import programs_of
from blutrain.optim import SGD
from blutrain.tensor import dispatch


class Sharded(nn.Module):
    """A layer whose rows lie on the ranks, and the four collectives around it."""

    def __init__(self, op="mean"):
        super().__init__()
        self.op, size = op, distributed.get_world_size()
        self.first, self.second = nn.Linear(6, 4), nn.Linear(4 * size, 3 * size)

    def forward(self, x):
        x = distributed.broadcast(self.first(x).tanh(), src=distributed.get_world_size() - 1)
        x = distributed.all_gather(x.T).T  # every rank's features, beside each other
        x = self.second(x).T
        x = distributed.reduce_scatter(x, self.op) * 2  # this rank's features, summed over the ranks
        return x + distributed.all_reduce(x * x.abs(), "sum") + x.exp()


class Attention(nn.Module):
    """Reads before and after: the operand of a collective is used elsewhere, too, and so is its result, twice."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 6)

    def forward(self, x):
        y = self.layer(x)
        whole = distributed.all_gather(y)
        mean, parts = whole.mean(0), distributed.all_gather(whole.sum())
        return (y * mean).sum() + distributed.broadcast(y[0]).sum() * parts.sum() + whole.square().sum()


def training(kind="cpu"):
    """Losses and parameters of steps, compiled and eager."""
    distributed.init_process_group(timeout=60)
    where = distributed.local_device(kind)
    for make in (Sharded, lambda: Sharded("sum"), Attention):
        results = []
        for compiled in (False, True):
            seed(2)
            model = make().to(where).to("float64" if where.is_cpu else "float32")
            if compiled:
                model.compile(strict=True)
            results.append(_train(model, where))
        (program,) = [p for p in programs_of(model) if p.executable.plan.buckets]
        assert len(program.executable.plan.buckets) >= 6 and program.runs >= 3, program.runs
        for a, b in zip(*results, strict=True):
            tolerance = 1e-12 if where.is_cpu else 1e-4
            np.testing.assert_allclose(b, a, rtol=tolerance, atol=tolerance)
    assert dispatch.recorder.replayed_steps >= 6
    print("equal", flush=True)


def _train(model, where):
    optimizer, found = SGD(model.parameters(), lr=0.01), []
    for step in range(6):
        x = np.random.default_rng([step, distributed.get_rank()]).standard_normal((5, 6))
        loss = model(bt.from_numpy(x).to(where, next(model.parameters()).dtype)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        found.append(loss.item())
    return [*found, *(p.numpy(force=True) for p in model.parameters())]


class Meets(nn.Module):
    def __init__(self, how):
        super().__init__()
        self.how, self.layer = how, nn.Linear(2, 2)

    def forward(self, x):
        x = self.layer(x)
        other = distributed.get_world_size() - 1 - distributed.get_rank()
        if self.how == "barrier":
            distributed.barrier()
        elif distributed.get_rank():
            distributed.send(x.detach(), other)
        else:
            x = x + distributed.recv(x, other)
        return x


def refused():
    """Messages and barriers in a compiled call: an error that says so, or, where that is allowed, eager rules."""
    distributed.init_process_group(timeout=30)
    for how in ("barrier", "message"):
        model = Meets(how)
        model.compile(strict=True, first_step="compiled")
        optimizer = SGD(model.parameters(), lr=0.01)

        def step(model=model, optimizer=optimizer):
            model(bt.ones(1, 2)).sum().backward()
            optimizer.step()

        raises(Exception, "do not run inside of a compiled program", step)
    print("refused", flush=True)


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
