"""What the ranks run in test_distributed_accumulation.py: every order of backward, averaging, zeroing and stepping, beside
one process that has all rows. Each scenario is a line of actions:

    b0 b1    an averaged backward of batch 0, 1      n0      one inside of no_sync
    t0       two losses of one forward               u0      one that leaves the second layer out
    e0       one to which all ranks but the first have nothing to add
    step     the optimizer's                         zero    zero_grad(); zero0: set_to_none=False
    scale    p.grad *= 0.5 in place                  half    p.grad = p.grad * 0.5, another tensor
    read     p.grad is that of one process           clip    clip_grad_norm_, to a norm that matters
"""

from __future__ import annotations

import contextlib
import gc
import sys

import numpy as np
from distributed_programs import raises, seed

import blutrain as bt
from blutrain import distributed, nn
from blutrain.autograd.hooks import shard_of
from blutrain.optim import SGD

ROWS, WIDTH = 5, 7
RIGHT = [
    "b0 step zero b1 step zero",
    "b0 b1 step zero",
    "b0 b1 b2 read step zero b0 step zero",
    "n0 b1 step zero",
    "n0 n1 b2 read step zero",
    "b0 n1 b2 step zero",
    "b0 n1 n2 b0 read step zero",
    "t0 step zero",
    "t0 b1 step zero",
    "b0 step zero0 b1 step zero0",
    "b0 b1 step zero0 b2 step zero",
    "b0 zero0 b1 step zero",
    "n0 zero0 b1 step zero",
    "n0 zero b1 b2 step zero",
    "b0 read b1 read step zero",
    "b0 scale b1 step zero",
    "b0 half b1 half step zero",
    "b0 scale step zero",
    "n0 scale b1 step zero",
    "b0 clip step zero b1 b2 clip step zero",
    "b0 clip b1 clip step zero",
    "n0 b1 clip step zero0",
    "e0 step zero",
    "b0 e1 step zero e2 b0 step zero",
    "n0 e1 step zero",
    "e0 scale n0 e1 e2 step zero",
    "b0 n1 e2 step zero",
    "b0 b1 clip read step zero0",
    "b0 b1 scale read step zero",
]
AFTER_A_STEP = [
    "b0 step b1 step zero",
    "b0 step b1 b2 read step zero",
    "b0 step n1 b2 step zero",
    "b0 clip step b1 clip step zero",
]
UNUSED = [
    "u0 step zero",
    "b0 u1 step zero",
    "u0 b1 step zero",
    "u0 n1 b2 step zero",
    "b0 step zero u1 step zero b0 step zero",
]


class Tied(nn.Module):
    """One weight is used twice, one is frozen, one layer may be left out."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 3)
        self.tied = nn.Linear(WIDTH, WIDTH, bias=False)
        self.tied.weight = self.first.weight
        self.frozen = nn.Linear(WIDTH, WIDTH)
        for p in self.frozen.parameters():
            p.requires_grad_(False)

    def forward(self, x, with_second=True):
        x = self.tied(self.frozen(self.first(x).square()))
        return self.second(x) if with_second else x[:, :3]


def batch(k):
    return bt.from_numpy(np.random.default_rng(k).standard_normal((ROWS, WIDTH)))


class Trainer:
    """One process with all rows; `options`: of DataParallel, for a rank with its own."""

    def __init__(self, compiled, options=None, **compile_options):
        seed(5)
        self.model = Tied().to("float64")
        self.ddp = distributed.DataParallel(self.model, bucket_cap_mb=2e-4, **options) if options is not None else None
        self.optimizer = SGD([p for p in self.model.parameters() if p.requires_grad], lr=0.05, momentum=0.9)
        if compiled:
            self.model.compile(**compile_options)
        self.mine = distributed.shard(ROWS) if self.ddp else slice(0, ROWS)

    def do(self, action):
        kind, number = action[0], action[1:]
        if kind == "e" and number.isdigit():
            rows = batch(int(number))[distributed.shard(ROWS, 0)]
            if self.ddp is None:
                self.model(rows).square().mean().backward()
            elif distributed.get_rank() == 0:
                self.ddp.backward(self.ddp(rows).square().mean(), weight=len(rows))
            else:
                self.ddp.backward(None)
        elif number.isdigit():
            with self.ddp.no_sync() if self.ddp and kind == "n" else contextlib.nullcontext():
                y = (self.ddp or self.model)(batch(int(number))[self.mine], kind != "u")
                for loss in [y.square().mean(), y.abs().mean()][: 2 if kind == "t" else 1]:
                    self.backward(loss, kind == "t")
        elif action == "step":
            self.optimizer.step()
        elif action in ("zero", "zero0"):
            self.optimizer.zero_grad(set_to_none=action == "zero")
        elif action == "clip":
            nn.utils.clip_grad_norm_(self.optimizer.param_groups[0]["params"], 0.02)
        else:
            for p in self.optimizer.param_groups[0]["params"]:
                if p.grad is not None and action == "scale":
                    p.grad.mul_(0.5)
                elif p.grad is not None and action == "half":
                    p.grad = p.grad * 0.5

    def backward(self, loss, retain):
        if self.ddp is None:
            loss.backward(retain_graph=retain)
        elif retain:  # with a weight backward takes no options: the same average, written out
            rows = self.mine.stop - self.mine.start
            (loss * (rows * distributed.get_world_size() / ROWS)).backward(retain_graph=True)
        else:
            self.ddp.backward(loss, weight=self.mine.stop - self.mine.start)

    def round(self, scenario):
        """One round of its actions; the gradients at each "read", and the parameters, by name."""
        found = []
        for action in scenario.split():
            self.do(action)
            if action == "read":
                found.append({n: p.grad for n, p in self.model.named_parameters() if p.requires_grad})
                found[-1] = {n: g.numpy().copy() for n, g in found[-1].items()}
        return [*found, {n: p.numpy(force=True).copy() for n, p in self.model.named_parameters()}]

    def compare(self, expected, found, what):
        """A round with one of a single process: of gradients this rank's part."""
        parts = {n: shard for n, p in self.model.named_parameters() if (shard := shard_of(p)) is not None}
        for i, (there, here) in enumerate(zip(expected, found, strict=True)):
            assert there.keys() == here.keys()
            for name, value in here.items():
                mine = slice(None)
                if name in parts and i < len(found) - 1:
                    mine = slice(parts[name].start, parts[name].stop)
                a, b = value.reshape(-1)[mine], there[name].reshape(-1)[mine]
                np.testing.assert_allclose(a, b, rtol=0, atol=1e-10, err_msg=f"{what}: {name}, {i}")


def run(scenario, compiled, options, **compile_options):
    single, ranks = Trainer(False), Trainer(compiled, options, **compile_options)
    for number in range(4):  # recorded, recorded again, replayed
        what = f"{scenario} (round {number}, compiled {compiled}, {options})"
        expected = single.round(scenario)
        ranks.compare(expected, ranks.round(scenario), what)
        ranks.ddp.check_equal()


def right(mode, sharded):
    distributed.init_process_group(timeout=30)
    compiled, options = mode != "eager", {"shard_optimizer": sharded == "sharded"}
    for scenario in RIGHT:
        run(scenario, compiled, options)
    for scenario in AFTER_A_STEP:
        run(scenario, compiled, options, **({"keep_grads": True} if compiled else {}))
    for scenario in UNUSED:
        run(scenario, compiled, {**options, "find_unused_parameters": True})
    wrong(compiled, options)


def wrong(compiled, options):
    """What cannot be right is an error on every rank."""
    if compiled:  # whose step keeps no gradients: then it says so, whatever a rank has not collected yet
        gc.disable()
        run("u0 step zero", True, {**options, "find_unused_parameters": True})
        for _ in range(3 if distributed.get_rank() == 1 else 0):
            gc.collect()
        for scenario in AFTER_A_STEP:
            raises(RuntimeError, "consumed this gradient", lambda s=scenario: run(s, True, options))
        gc.enable()
    raises(RuntimeError, "parameters got no gradient", lambda: run("u0 step zero", compiled, options))
    if options["shard_optimizer"]:
        for scenario in ("n0 step", "b0 step zero n1 step", "b0 n1 step", "n0 clip step"):
            raises(RuntimeError, "no_sync", lambda s=scenario: run(s, compiled, options))


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
