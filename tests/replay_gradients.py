"""Scenarios about tapes and gradients: what user code does with a loss, with outputs and with p.grad."""

from __future__ import annotations

import numpy as np
from loops import Net, make
from replay_support import collector

import blutrain as bt
from blutrain import nn
from blutrain.nn import functional as F

GRADIENTS, scenario = collector()


class Losses(Net):
    """Two losses that share a part, and one that shares nothing."""

    def forward(self, x, y):
        hidden = F.gelu(self.fc(x))
        return F.cross_entropy(self.head(hidden), y), hidden.square().mean(), self.norm.weight.square().sum()


class Detached(Net):
    """A part that no gradient goes through."""

    def forward(self, x):
        hidden = self.fc(x)
        return self.head(hidden.detach() * 2.0 + hidden)


class Scaled(bt.autograd.Function):
    """Saves a tensor, and keeps another one and a number on its context."""

    @staticmethod
    def forward(ctx, x, factor):
        ctx.save_for_backward(x)
        ctx.factor, ctx.extra = factor, x * 3.0
        return x * x

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * x * ctx.factor + ctx.extra * grad * 0.1, None


class Reversed(bt.autograd.Function):
    """Returns its argument."""

    @staticmethod
    def forward(ctx, x):
        return x

    @staticmethod
    def backward(ctx, grad):
        return grad * -0.5


class ReadsInBackward(bt.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 1.0

    @staticmethod
    def backward(ctx, grad):
        return grad * (1.0 + grad.abs().max().item())


class WithFunction(Net):
    function = staticmethod(lambda x: Scaled.apply(x, 2.0))

    def forward(self, x):
        hidden = self.fc(x)
        return self.head(self.function(hidden) + hidden.tanh())


class WithReversed(WithFunction):
    function = Reversed.apply


class WithReads(WithFunction):
    function = ReadsInBackward.apply


def new_event_behind_replayed_ones(run):
    """After some steps each kind of event follows the call that was not seen before: its tape has to be rebuilt."""
    for i, (x, y) in enumerate(run.batches(10)):
        out = run.model(x)
        out = [lambda z: z, lambda z: z * 2.0, bt.tanh, bt.exp, lambda z: z + 1][i % 5](out)
        run.step(F.cross_entropy(out, y))


@scenario(cls=Detached)
def detach_in_forward(run):
    new_event_behind_replayed_ones(run)


@scenario(cls=WithFunction)
def function_in_forward(run):
    new_event_behind_replayed_ones(run)


@scenario(cls=WithReversed)
def function_that_returns_its_argument(run):
    new_event_behind_replayed_ones(run)


@scenario(dropout=0.5)
def dropout_in_forward(run):
    new_event_behind_replayed_ones(run)


@scenario("value_read", cls=WithReads)
def function_whose_backward_reads_a_value(run):
    for x, y in run.batches():
        run.step(F.cross_entropy(run.model(x), y))


@scenario()
def function_outside(run):
    for x, y in run.batches():
        run.step(F.cross_entropy(Scaled.apply(run.model(x), 2.0), y))


@scenario()
def operation_after_the_loss_was_read(run):
    for x, y in run.batches():
        loss = run.model(x, y)
        run.see(loss)
        run.step(loss * 2.0)


@scenario(dropout=0.5)
def backward_after_the_loss_was_read(run):
    for x, y in run.batches():
        loss = run.model(x, y)
        run.see(loss)
        run.step(loss)


@scenario(cls=Losses)
def two_backwards_through_one_graph(run):
    for x, y in run.batches():
        first, second, _ = run.model(x, y)
        first.backward(retain_graph=True)
        run.step(second)


@scenario(cls=Losses)
def graphs_apart_after_a_read(run):
    for x, y in run.batches():
        first, _, apart = run.model(x, y)
        run.see(first)
        first.backward()
        run.step(apart)


@scenario()
def second_backward_raises(run):
    for x, y in run.batches():
        loss = run.model(x, y)
        loss.backward()
        run.see(raises(loss.backward, "freed"))
        run.opt.step()
        run.opt.zero_grad()


@scenario()
def backward_after_the_step_raises(run):
    for x, y in run.batches():
        loss = run.model(x, y)
        run.step(loss)
        run.see(raises(loss.backward, "freed"))


@scenario()
def backward_through_changed_parameters_raises(run):
    for x, y in run.batches():
        loss = run.model(x, y)
        loss.backward(retain_graph=True)
        run.opt.step()
        run.opt.zero_grad()
        run.see(raises(loss.backward, "changed in place"))


def raises(call, text: str) -> bool:
    try:
        call()
    except RuntimeError as error:
        return text in str(error)
    return False


@scenario()
def leaves_and_nodes_look_the_same(run):
    for x, y in run.batches():
        loss = run.model(x, y)
        run.see(loss.is_leaf, loss.requires_grad, loss.grad_fn is None, loss.detach().requires_grad)
        run.step(loss)


@scenario()
def backward_to_some_inputs(run):
    for x, y in run.batches():
        run.model(x, y).backward(inputs=[run.model.head.weight])
        run.opt.step()
        run.opt.zero_grad()


@scenario()
def own_update_from_autograd_grad(run):
    for x, y in run.batches():
        parameters = list(run.model.parameters())
        grads = bt.autograd.grad(run.model(x, y), parameters)
        with bt.no_grad():
            for p, g in zip(parameters, grads):
                p.sub_(0.1 * g)


@scenario()
def own_update_from_grad(run):
    for x, y in run.batches():
        run.model(x, y).backward()
        with bt.no_grad():
            for p in run.model.parameters():
                p -= 0.05 * p.grad
        run.model.zero_grad()


@scenario()
def gradient_of_the_input(run):
    for x, y in run.batches():
        x.requires_grad_()
        run.step(run.model(x, y))
        run.see(x.grad.sum())


@scenario()
def gradient_of_one_input_adds_up(run):
    x, y = next(run.batches())
    x.requires_grad_()
    for _ in range(6):
        run.model(x, y).backward()
        run.opt.zero_grad()
        run.see(x.grad.sum())


@scenario()
def second_derivative(run):
    for x, y in run.batches():
        loss = run.model(x, y)
        grads = bt.autograd.grad(loss, list(run.model.parameters()), create_graph=True)
        run.step(loss + 0.1 * sum((g * g).sum() for g in grads))


@scenario()
def two_halves_joined_by_hand(run):
    second = make(run.compiled, cls=nn.Linear, in_features=5, out_features=3)[0]
    for x, _ in run.batches():
        out = run.model(x)
        cut = out.detach().requires_grad_()
        second(cut).square().mean().backward()
        second.zero_grad()
        out.backward(cut.grad)
        run.opt.step()
        run.opt.zero_grad()


class TwoLeaves(Net):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Parameter(bt.ones(5)), nn.Parameter(bt.ones(5))

    def forward(self, x):
        return self.head(self.fc(x)) + (self.a + self.b)


@scenario(cls=TwoLeaves)
def one_gradient_for_two_leaves(run):
    for x, _ in run.batches():
        run.model(x).square().mean().backward()
        run.model.a.grad.mul_(0.5)
        run.see(run.model.a.grad.sum(), run.model.b.grad.sum())
        run.opt.step()
        run.opt.zero_grad()


@scenario()
def gradients_scaled_before_the_step(run):
    for x, y in run.batches():
        (run.model(x, y) * 128.0).backward()
        for p in run.model.parameters():
            p.grad /= 128.0
        nn.utils.clip_grad_norm_(run.model.parameters(), 0.1)
        run.opt.step()
        run.opt.zero_grad()


@scenario()
def gradient_held_while_it_adds_up(run):
    for x, y in run.batches():
        run.model(x, y).backward()
        grad = run.model.fc.weight.grad
        run.model(x, y).backward()
        run.see(grad.sum())
        run.model.fc.weight.grad.mul_(0.5)
        run.see(grad.sum(), run.model.fc.weight.grad is grad)
        run.opt.step()
        run.opt.zero_grad()


@scenario()
def gradient_replaced(run):
    for x, y in run.batches():
        run.model(x, y).backward()
        run.model.fc.weight.grad = run.model.fc.weight.grad * 0.5
        run.opt.step()
        run.opt.zero_grad()


@scenario()
def gradient_added_to_one_that_is_not_contiguous(run):
    for x, y in run.batches():
        run.model.fc.weight.grad = bt.tensor(np.ones((6, 8))).t()
        run.step(run.model(x, y))


@scenario()
def norm_of_gradients_read_each_step(run):
    for x, y in run.batches():
        run.model(x, y).backward()
        run.see(sum((p.grad * p.grad).sum().item() for p in run.model.parameters()))
        run.opt.step()
        run.opt.zero_grad()


@scenario()
def gradient_of_an_output_retained(run):
    for x, y in run.batches():
        out = run.model(x)
        out.retain_grad()
        F.cross_entropy(out, y).backward()
        run.see(out.grad.abs().sum())
        run.opt.step()
        run.opt.zero_grad()


@scenario()
def hook_on_an_output(run):
    calls = []
    for x, y in run.batches():
        out = run.model(x)
        out.register_hook(lambda g: calls.append(1) or g * 2.0)
        run.step(F.cross_entropy(out, y))
    run.see(len(calls))


@scenario()
def hook_on_an_output_comes_and_goes(run):
    """The backward of steps without it is another one, however often steps with it came first."""
    calls = []
    for i, (x, y) in enumerate(run.batches(12)):
        out = run.model(x)
        loss = F.cross_entropy(out, y)
        if i % 6 < 3:
            out.register_hook(lambda g: calls.append(1) or g * 2.0)
        if i % 2:
            run.see(*[g.sum() for g in bt.autograd.grad(loss, run.model.head.parameters(), retain_graph=True)])
        run.step(loss)
    run.see(len(calls))


@scenario("hooks")
def hook_on_a_parameter_comes_and_goes(run):
    calls = []
    for i, (x, y) in enumerate(run.batches(8)):
        if i == 3:
            handle = run.model.fc.weight.register_hook(lambda g: calls.append(1) or g * 2.0)
        if i == 6:
            handle.remove()
        run.step(run.model(x, y))
    run.see(len(calls))


@scenario()
def hook_on_a_parameter_used_outside_of_the_model(run):
    weight, calls = bt.ones(5, dtype=bt.float64).requires_grad_(), []
    for i, (x, y) in enumerate(run.batches(8)):
        if i == 4:
            weight.register_hook(lambda g: calls.append(g.sum().item()))
        run.step(F.cross_entropy(run.model(x) * weight, y))
    run.see(len(calls), sum(calls), weight.grad.sum())


@scenario()
def adversarial_pair(run):
    """The usual loop: what the generator's backward adds to the critic's gradients is thrown away unread."""
    critic, optimizer = make(run.compiled, seed=3, cls=nn.Linear, in_features=5, out_features=1)
    for x, _ in run.batches(8):
        fake = run.model(x)
        optimizer.zero_grad()
        (critic(fake.detach()).mean() - critic(fake.detach() * 0.5).mean()).backward()
        optimizer.step()
        run.opt.zero_grad()
        (-critic(fake).mean()).backward()
        run.opt.step()
        run.see(critic.weight.detach().sum())


@scenario()
def clipping_with_a_parameter_named_twice(run):
    """As where two models that share one are clipped together."""
    for x, y in run.batches(8):
        run.model(x, y).backward()
        parameters = [*run.model.parameters(), run.model.head.weight, run.model.fc.bias]
        run.see(nn.utils.clip_grad_norm_(parameters, 0.05))
        run.opt.step()
        run.opt.zero_grad()
