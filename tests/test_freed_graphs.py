"""Every way to a graph that a backward freed is the same error eagerly and compiled, and what is left of one still serves."""

from __future__ import annotations

import pytest

import blutrain as bt
from blutrain import nn, nova
from blutrain.autograd import grad

WAYS = {}
ROUNDS = 4  # recorded, verified, replayed


def way(function):
    """Register function(model, x): what it returns, or raises, is compared."""
    WAYS[function.__name__] = function
    return function


class Head(nn.Module):
    """Compiled. In front of it stands a trunk that is not: `hidden` is what the trunk gave."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(3, 3)

    def forward(self, x):
        return self.fc(x).tanh()


class Model:
    def __init__(self, compiled: bool, has_trunk: bool):
        bt.manual_seed(0)
        self.trunk, self.head = nn.Linear(3, 3).double(), Head().double()
        self.has_trunk = has_trunk
        if compiled:
            self.head.compile(strict=True)
        self.first = (self.trunk if has_trunk else self.head.fc).weight  # the parameter furthest from the loss
        self.last = self.head.fc.weight

    def __call__(self, x):
        self.hidden = self.trunk(x).sin() if self.has_trunk else x.clone().requires_grad_()
        return self.head(self.hidden)


def unused(root, *inputs):
    return grad(root, inputs, allow_unused=True)


@way
def grad_after_backward(model, x):
    loss = model(x).sum()
    loss.backward()
    return grad(loss, [model.first])


@way
def unused_after_backward(model, x):
    loss = model(x).sum()
    loss.backward()
    return unused(loss, model.first, model.last, bt.ones(1, requires_grad=True))


@way
def unused_after_backward_and_flush(model, x):
    loss = model(x).sum()
    loss.backward()
    nova.flush()
    return unused(loss, model.first)


@way
def unused_of_what_came_in(model, x):
    loss = model(x).sum()
    loss.backward()
    nova.flush()
    hidden, model.hidden = model.hidden, None
    return unused(loss, hidden)


@way
def unused_when_what_came_in_is_gone(model, x):
    loss = model(x).sum()
    loss.backward()
    nova.flush()
    model.hidden = None
    return unused(loss, model.first)


@way
def unused_after_a_read(model, x):
    loss = model(x).sum()
    loss.backward()
    loss.item()
    return unused(loss * 2.0, model.first)


@way
def unused_after_a_step(model, x):
    optimizer = bt.optim.SGD([model.last], lr=0.0)
    out = model(x)
    out.sum().backward()
    optimizer.step()
    return unused(out.sum(), model.first)


@way
def grad_after_grad(model, x):
    loss = model(x).sum()
    grad(loss, [model.last])
    return unused(loss, model.first)


@way
def grad_of_half_the_graph_leaves_the_rest(model, x):
    out = model(x)
    loss = out.square().sum()
    grad(loss, [out])
    return unused(loss, model.first)


@way
def the_rest_of_the_graph(model, x):
    out = model(x)
    return *grad(out.square().sum(), [out]), *grad(model.hidden.sum(), [model.hidden]), *unused(out.sum(), model.last)


@way
def what_needs_no_freed_part(model, x):
    out, weight = model(x), bt.ones(3, dtype=bt.float64, requires_grad=True)
    out.sum().backward()
    return unused((out * weight).sum(), weight)


@way
def another_head_over_a_freed_trunk(model, x):
    model(x).sum().backward()
    return unused(model.head(model.hidden).sum(), model.first)


@way
def a_trunk_freed_before_the_head(model, x):
    loss = model(x).sum()
    model.hidden.sum().backward()
    return unused(loss, model.last, model.first)


@way
def a_trunk_freed_after_the_flush(model, x):
    loss = model(x).sum()
    nova.flush()
    model.hidden.sum().backward()
    loss.backward()
    return unused(loss, model.last)


@way
def of_two_calls_the_second(model, x):
    one, two = model(x).sum(), model.head(model.hidden).sum()
    one.backward()
    return unused(two, model.first)


@way
def backward_twice(model, x):
    loss = model(x).sum()
    loss.backward()
    loss.backward()


@way
def backward_twice_with_a_flush(model, x):
    out = model(x)
    out.sum().backward()
    nova.flush()
    (out * 2.0).sum().backward()


@way
def backward_into_inputs(model, x):
    loss = model(x).sum()
    loss.backward(inputs=[model.first])
    return (model.first.grad.clone(),)


@way
def backward_into_inputs_twice(model, x):
    loss = model(x).sum()
    loss.backward(inputs=[model.first])
    loss.backward(inputs=[model.last])


@way
def backward_into_inputs_after_backward(model, x):
    loss = model(x).sum()
    loss.backward()
    nova.flush()
    loss.backward(inputs=[model.first])


@way
def backward_into_inputs_of_a_freed_trunk(model, x):
    loss = model(x).sum()
    model.hidden.sum().backward()
    loss.backward(inputs=[model.first])
    return (model.first.grad.clone(),)


@way
def second_derivatives(model, x):
    loss = model(x).square().sum()
    (slope,) = grad(loss, [model.first], create_graph=True)
    slope.square().sum().backward()
    return unused(loss, model.first)


@way
def retained(model, x):
    loss = model(x).sum()
    loss.backward(retain_graph=True)
    nova.flush()
    return unused(loss, model.first, model.last)


def outcomes(function, compiled: bool, has_trunk: bool) -> list[str]:
    """What each round gives: the error's first line, or the sums of the gradients."""
    model, seen = Model(compiled, has_trunk), []
    for _ in range(ROUNDS):
        try:
            grads = function(model, bt.ones(2, 3, dtype=bt.float64))
            seen.append(str([None if g is None else round(g.sum().item(), 9) for g in grads or ()]))
        except RuntimeError as error:
            seen.append(str(error).splitlines()[0])
        for parameter in (*model.trunk.parameters(), *model.head.parameters()):
            parameter.grad = None
    return seen


@pytest.mark.parametrize("has_trunk", [False, True])
@pytest.mark.parametrize("name", sorted(WAYS))
def test_compiled_as_eagerly(name, has_trunk, interpreted):
    expected = outcomes(WAYS[name], False, has_trunk)
    assert outcomes(WAYS[name], True, has_trunk) == expected
    assert len(set(expected)) == 1
