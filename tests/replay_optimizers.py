"""Scenarios about optimizers: groups, states, several of them, steps that are left out."""

from __future__ import annotations

import copy

from loops import Net, make, state
from replay_support import collector

import blutrain as bt
from blutrain import nn
from blutrain.nn import functional as F
from blutrain.optim import SGD, AdamW

OPTIMIZERS, scenario = collector()


class Skipping(Net):
    """A layer is left out of some calls."""

    def forward(self, x, y, skip=False):
        hidden = self.fc(x)
        hidden = hidden if skip else self.norm(hidden)
        return F.cross_entropy(self.head(F.gelu(hidden)), y)


def steps_of(optimizer) -> list[int]:
    return [entry["step"] for entry in optimizer.state_dict()["state"].values()]


@scenario()
def numbers_of_groups_change(run):
    fc, rest = list(run.model.fc.parameters()), [*run.model.norm.parameters(), *run.model.head.parameters()]
    run.opt = AdamW([{"params": fc, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}], lr=0.05)
    for i, (x, y) in enumerate(run.batches(8)):
        run.step(run.model(x, y))
        run.opt.param_groups[0]["weight_decay"] *= 0.9
        run.opt.param_groups[1]["betas"] = (0.9 - 0.01 * i, 0.99)


@scenario()
def state_of_the_optimizer_loaded(run):
    for i, (x, y) in enumerate(run.batches(10)):
        run.step(run.model(x, y))
        if i == 3:
            saved = copy.deepcopy(run.opt.state_dict())
        if i == 6:
            run.opt.load_state_dict(saved)
    run.see(*steps_of(run.opt))


@scenario()
def new_optimizer(run):
    for i, (x, y) in enumerate(run.batches(10)):
        if i == 5:
            run.opt = SGD(run.model.parameters(), lr=0.1, momentum=0.9)
        run.step(run.model(x, y))


@scenario(cls=Skipping)
def parameters_left_out_of_some_steps(run):
    for i, (x, y) in enumerate(run.batches(9)):
        run.step(run.model(x, y, skip=i % 3 == 2))
    run.see(*steps_of(run.opt))


@scenario(cls=Skipping)
def parameters_left_out_with_zero_gradients(run):
    for i, (x, y) in enumerate(run.batches(9)):
        run.opt.zero_grad(set_to_none=False)
        run.model(x, y, skip=i % 3 == 2).backward()
        run.opt.step()
    run.see(*steps_of(run.opt))


@scenario()
def both_ways_of_zeroing(run):
    for i, (x, y) in enumerate(run.batches(8)):
        run.opt.zero_grad(set_to_none=i % 2 == 0)
        run.model(x, y).backward()
        run.opt.step()
        run.see(run.model.fc.bias.requires_grad)


@scenario()
def step_without_gradients(run):
    for x, y in run.batches():
        run.opt.step()
        run.step(run.model(x, y))


@scenario()
def step_given_a_closure(run):
    for x, y in run.batches():

        def closure(x=x, y=y):
            run.opt.zero_grad()
            loss = run.model(x, y)
            loss.backward()
            return loss

        run.see(run.opt.step(closure))


@scenario()
def optimizer_of_other_parameters_steps_in_between(run):
    extra = nn.Parameter(bt.ones(3, dtype=bt.float64))
    other = SGD([extra], lr=0.1)
    for x, y in run.batches():
        extra.square().sum().backward()
        run.model(x, y).backward()
        other.step()
        other.zero_grad()
        run.opt.step()
        run.opt.zero_grad()
        run.see(extra.detach().sum())


@scenario()
def one_loss_of_two_models(run):
    second, optimizer = make(run.compiled, seed=5)
    for x, y in run.batches():
        F.cross_entropy(run.model(x) + second(x), y).backward()
        run.opt.step()
        optimizer.step()
        run.opt.zero_grad()
        optimizer.zero_grad()
    run.see(*[v.sum() for v in state(second).values()])


@scenario()
def teacher_and_student(run):
    teacher, _ = make(run.compiled, seed=5)
    for x, _ in run.batches():
        with bt.no_grad():
            target = teacher(x)
        run.step((run.model(x) - target).square().mean())


@scenario()
def parameters_reset(run):
    for i, (x, y) in enumerate(run.batches(8)):
        if i == 4:
            with bt.no_grad():
                for p in run.model.parameters():
                    p.fill_(0.1)
        run.step(run.model(x, y))


@scenario()
def loss_scaled_by_changing_numbers(run):
    for i, (x, y) in enumerate(run.batches(8)):
        run.step(run.model(x, y) * (1.0 / (1 + i)))


@scenario()
def dropout_outside_of_the_model(run):
    for x, y in run.batches():
        run.step(F.cross_entropy(F.dropout(run.model(x), 0.5, True), y))


@scenario()
def copied_between_backward_and_step(run):
    for i, (x, y) in enumerate(run.batches()):
        loss = run.model(x, y)
        loss.backward()
        if i % 2:
            twin = copy.deepcopy(run.model)
            run.see(twin.fc.weight.grad.sum(), twin(x, y))
        run.opt.step()
        if i == 4:
            copy.deepcopy(run.model)  # its gradients were consumed, and are not missed
        run.opt.zero_grad()


@scenario()
def moved_before_its_gradients_are_dropped(run):
    for i, (x, y) in enumerate(run.batches()):
        if i == 3:
            run.model.float().double()
        run.opt.zero_grad()
        run.model(x, y).backward()
        run.opt.step()


@scenario()
def group_added_whose_gradients_are_dropped(run):
    """zero_grad clears parameters that the optimizer got after its last step."""
    extra = nn.Parameter(bt.ones(5, dtype=bt.float64))
    for i, (x, y) in enumerate(run.batches(8)):
        run.step(run.model(x, y))
        if i == 4:
            run.opt.add_param_group({"params": [extra]})
            extra.square().sum().backward()
            run.opt.zero_grad()
        run.see(extra.grad is None)


OPTIMIZER_CHANGES = {
    "state cleared": lambda opt, p: opt.state.clear(),
    "state replaced": lambda opt, p: setattr(opt, "state", {}),
    "state of a parameter dropped": lambda opt, p: opt.state.pop(p),
    "moment replaced": lambda opt, p: opt.state[p].update(exp_avg=bt.zeros_like(p.detach())),
    "moment zeroed": lambda opt, p: opt.state[p]["exp_avg"].zero_(),
    "group dropped": lambda opt, p: opt.param_groups.pop(),
    "parameter dropped": lambda opt, p: opt.param_groups[1]["params"].pop(),
    "parameters replaced": lambda opt, p: opt.param_groups[1].update(params=[p]),
    "groups swapped": lambda opt, p: opt.param_groups.reverse(),
}


def _enter(what: str) -> None:
    @scenario()
    def function(run):
        first, *rest = run.model.parameters()
        run.opt = AdamW([{"params": [first]}, {"params": rest, "lr": 0.1}], lr=0.01)
        for i, (x, y) in enumerate(run.batches(9)):
            run.step(run.model(x, y))
            if i == 4:
                OPTIMIZER_CHANGES[what](run.opt, rest[0])
        run.see(*[entries["step"].value for entries in run.opt.state.values()])

    OPTIMIZERS[what.replace(" ", "_")] = OPTIMIZERS.pop("function")


for _what in OPTIMIZER_CHANGES:
    _enter(_what)


@scenario(optimizer=SGD)
def nesterov_turned_on(run):
    run.opt.param_groups[0]["momentum"] = 0.9
    for i, (x, y) in enumerate(run.batches(8)):
        run.opt.param_groups[0]["nesterov"] = i > 4
        run.step(run.model(x, y))


@scenario()
def gradients_that_are_none_do_not_become_zeros(run):
    for x, y in run.batches(7):
        run.step(run.model(x, y))
        run.opt.zero_grad(set_to_none=False)
        run.model.zero_grad(set_to_none=False)
        run.see(run.model.fc.weight.grad is None)
        run.opt.step()
    run.see(*steps_of(run.opt))


@scenario(cls=Skipping)
def gradients_left_out_do_not_become_zeros(run):
    for i, (x, y) in enumerate(run.batches(10)):
        run.model(x, y, skip=i % 3 == 2).backward()
        run.opt.step()
        run.opt.zero_grad(set_to_none=i % 2 == 0)
        run.see(run.model.norm.weight.grad is None)
        run.opt.step()
    run.see(*steps_of(run.opt))
