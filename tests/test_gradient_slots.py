"""A gradient that a compiled step consumed stays consumed until it is zeroed: whatever else there is, dies or is collected."""

from __future__ import annotations

import gc

import pytest

import blutrain as bt
from blutrain import nn
from blutrain.errors import GradientConsumed
from blutrain.optim import SGD


def loss(model):
    return model(bt.ones(2, 4)).square().mean()


def step(model, optimizer):
    loss(model).backward()
    optimizer.step()


def made(module=None):
    module = module or nn.Linear(4, 4)
    return module, SGD(module.parameters(), lr=0.1)


def collect():
    for _ in range(3):  # what finalizers let go
        gc.collect()


def is_consumed(parameter):
    with pytest.raises(GradientConsumed):
        parameter.grad  # noqa: B018
    return True


def test_another_model_of_the_same_log_dies(interpreted):
    (first, _), (second, optimizer) = made(), made()
    first.compile()
    second.compile()
    pending = loss(first)
    step(second, optimizer)
    del first, pending
    collect()
    loss(second).backward()
    assert is_consumed(second.weight)


def test_another_model_with_the_same_parameters_dies(interpreted):
    inner, _ = made()
    (first, _), (second, optimizer) = made(nn.Sequential(inner)), made(nn.Sequential(inner))
    first.compile()
    second.compile()
    step(first, optimizer)
    optimizer.zero_grad()
    step(second, optimizer)
    del first
    collect()
    assert is_consumed(inner.weight)


def test_the_model_dies_and_its_parameter_does_not(interpreted):
    model, optimizer = made()
    model.compile()
    step(model, optimizer)
    weight = model.weight
    del model
    collect()
    assert is_consumed(weight)


def test_models_do_not_outlive_their_last_reference(interpreted):
    slots = None
    for _ in range(3):
        model, optimizer = made()
        model.compile()
        step(model, optimizer)
        slots = bt.nova.recorder().slots
        before = len(slots._group_of)
    del model, optimizer
    collect()
    assert len(slots._group_of) < before


def test_one_slot_is_dropped_by_hand_and_the_others_are_not(interpreted):
    model, optimizer = made()
    model.compile()
    for _ in range(3):
        step(model, optimizer)
        optimizer.zero_grad()
    step(model, optimizer)
    model.bias.grad = None
    loss(model).backward()
    assert is_consumed(model.weight)


def test_a_write_by_a_model_that_is_gone_shows(interpreted):
    """It changed what another model's backward reads."""
    for dies in (False, True):
        inner, optimizer = made()
        writer, reader = nn.Sequential(inner), nn.Sequential(inner, nn.GELU(), inner)
        writer.compile()
        reader.compile()
        for _ in range(3):
            loss(reader).backward()
            optimizer.zero_grad()
            step(writer, optimizer)
            optimizer.zero_grad()
        read = loss(reader)
        read.item()
        step(writer, optimizer)
        optimizer.zero_grad()
        if dies:
            del writer
            collect()
        with pytest.raises(RuntimeError, match="was changed in place after the forward pass"):
            read.backward()


@pytest.mark.parametrize("compiled", [False, True])
def test_a_write_by_a_compiled_step_shows_in_an_eager_graph(compiled, interpreted):
    model, optimizer = made()
    if compiled:
        model.compile()
    for _ in range(3):
        step(model, optimizer)
        optimizer.zero_grad()
    penalty = model.weight.square().sum()
    step(model, optimizer)
    optimizer.zero_grad()
    with pytest.raises(RuntimeError, match="was changed in place after the forward pass"):
        penalty.backward()
