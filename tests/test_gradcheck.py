"""Derivatives of every case against central differences, first and second order, and of gradcheck itself."""

from __future__ import annotations

import pytest
from cases import CASES, Case, f

import blutrain as bt
from blutrain.autograd import Function, gradcheck
from blutrain.tensor.primitive import TABLE, NotDifferentiable

DIFFERENTIABLE = [c for c in CASES if c.order and any(x.kind == "float" for x in c.inputs)]


@pytest.mark.parametrize("case", DIFFERENTIABLE, ids=lambda c: c.name)
def test_derivatives(case: Case):
    gradcheck(case.call, case.tensors(requires_grad=True), order=case.order)


def test_every_derivative_is_checked_twice():
    checked = {c.primitive for c in DIFFERENTIABLE if c.order == 2}
    once = {"remainder"}  # its derivative is floor_divide, which has none
    simple = {
        n
        for n, p in TABLE.items()
        if not isinstance(p.vjp, NotDifferentiable) and p.kind not in ("composite", "random", "create", "effect")
    }
    assert simple - checked - once == set()


def test_a_wrong_derivative_is_found():
    class Wrong(Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(ctx, grad):
            return grad * ctx.saved_tensors[0]

    with pytest.raises(AssertionError, match="derivative of order 1 differs"):
        gradcheck(Wrong.apply, (bt.rand(3, dtype=bt.float64, requires_grad=True),))


def test_a_wrong_second_derivative_is_found():
    class Cut(Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x**3

        @staticmethod
        def backward(ctx, grad):
            return grad * 3 * ctx.saved_tensors[0].detach() ** 2

    x = bt.rand(3, dtype=bt.float64, requires_grad=True)
    gradcheck(Cut.apply, (x,))
    with pytest.raises(AssertionError, match="derivative of order 2 differs"):
        gradcheck(Cut.apply, (x,), order=2)


def test_third_order():
    gradcheck(
        lambda x: (x.sin() * x).exp(), Case("", None, (f(4),), None).tensors(requires_grad=True), order=3, atol=1e-4
    )


def test_inputs_are_checked():
    with pytest.raises(ValueError, match="float64"):
        gradcheck(bt.sin, (bt.rand(3, requires_grad=True),))
