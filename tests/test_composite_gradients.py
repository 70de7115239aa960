"""First and second derivatives of the composites against central differences, and of backward primitives taken by
themselves.
"""

from __future__ import annotations

import threading

import numpy as np
import pytest
from composite_cases import CASES, Source, case_id

import blutrain as bt
from blutrain.autograd import gradcheck
from blutrain.nn import functional as F
from blutrain.tensor import dispatch
from blutrain.tensor.ops import composite
from blutrain.tensor.primitive import TABLE, NotDifferentiable

_random = np.random.default_rng(3)


def leaf(*shape):
    return bt.tensor(_random.standard_normal(shape)).requires_grad_()


TARGET = bt.tensor(np.array([1, 0, -100, 2]))
IDS = bt.tensor(np.array([[1, 2, 2], [0, 1, 2]]))
FUNCTIONS = {
    "linear": (F.linear, [(2, 3, 4), (5, 4), (5,)]),
    "linear without bias": (F.linear, [(3, 4), (5, 4)]),
    "gelu": (F.gelu, [(7,)]),
    "gelu tanh": (lambda x: F.gelu(x, approximate="tanh"), [(7,)]),
    "relu": (F.relu, [(7,)]),
    "silu": (F.silu, [(7,)]),
    "softmax": (lambda x: F.softmax(x, 0), [(3, 4)]),
    "log_softmax": (lambda x: F.log_softmax(x, 1), [(3, 4)]),
    "layer_norm": (lambda x, w, b: F.layer_norm(x, (4,), w, b), [(3, 4), (4,), (4,)]),
    "layer_norm bare": (lambda x: F.layer_norm(x, (3, 4)), [(2, 3, 4)]),
    "layer_norm bias only": (lambda x, b: F.layer_norm(x, (4,), None, b), [(3, 4), (4,)]),
    "rms_norm": (lambda x, w: F.rms_norm(x, (4,), w), [(3, 4), (4,)]),
    "cross_entropy": (lambda x: F.cross_entropy(x, TARGET), [(4, 3)]),
    "cross_entropy sum smoothed": (
        lambda x: F.cross_entropy(x, TARGET, reduction="sum", label_smoothing=0.1),
        [(4, 3)],
    ),
    "cross_entropy none": (lambda x: F.cross_entropy(x, TARGET, reduction="none"), [(4, 3)]),
    "cross_entropy of images": (lambda x: F.cross_entropy(x, TARGET.reshape(1, 2, 2)), [(1, 3, 2, 2)]),
    "embedding": (lambda w: composite.embedding(w, IDS), [(3, 4)]),
    "dropout": (lambda x: composite.dropout(x, 0.4, 3, 4), [(12,)]),
    "attention": (composite.scaled_dot_product_attention, [(2, 3, 4), (2, 5, 4), (2, 5, 6)]),
    "attention causal": (
        lambda q, k, v: composite.scaled_dot_product_attention(q, k, v, is_causal=True),
        [(2, 3, 4), (2, 3, 4), (2, 3, 6)],
    ),
    "mse_loss": (F.mse_loss, [(5,), (5,)]),
    "mse_loss none": (lambda x, y: F.mse_loss(x, y, reduction="none"), [(5,), (5,)]),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_first_and_second_order(name):
    function, shapes = FUNCTIONS[name]
    assert gradcheck(function, [leaf(*shape) for shape in shapes], order=2)


BACKWARD = [
    c
    for c in CASES
    if c.name.endswith("_backward")
    and all(c.attrs.get("needs", [True]))
    and not isinstance(TABLE[c.name].vjp, NotDifferentiable)
]


@pytest.mark.parametrize("case", BACKWARD, ids=case_id)
def test_backward_primitives(case):
    operands = [
        bt.tensor(x).requires_grad_(np.issubdtype(np.asarray(x).dtype, np.floating) and i not in _constant(case.name))
        if isinstance(x, np.ndarray)
        else x
        for i, x in enumerate(case.operands(Source(np.float64)))
    ]
    assert gradcheck(lambda *xs: dispatch.apply(TABLE[case.name], *xs, **case.attrs), operands)


def _constant(name: str) -> tuple[int, ...]:
    """relu_backward depends on y by a step."""
    return (1,) if name == "relu_backward" else ()


def test_only_what_is_needed_is_computed():
    x, w, b = leaf(3, 4), leaf(5, 4), leaf(5)
    w.requires_grad_(False)
    F.linear(x, w, b).sum().backward()
    assert w.grad is None
    np.testing.assert_allclose(x.grad.numpy(), np.ones((3, 5)) @ w.numpy())
    np.testing.assert_allclose(b.grad.numpy(), np.full(5, 3.0))


def test_padding_row_gets_no_gradient():
    # pytorch#26302: wrong at particular numbers of indices
    for count in (1, 768, 769, 100_000):
        ids = _random.integers(0, 4, count)
        weight = bt.zeros(4, 3, requires_grad=True)
        F.embedding(bt.tensor(ids), weight, padding_idx=2).sum().backward()
        wanted = np.bincount(ids, minlength=4).astype(np.float32)
        wanted[2] = 0
        np.testing.assert_array_equal(weight.grad.numpy(), np.repeat(wanted[:, None], 3, 1))


def test_embedding_gradient_accumulates_in_float32():
    weight = bt.zeros(2, 1, dtype=bt.bfloat16, requires_grad=True)
    F.embedding(bt.zeros(1000, dtype=bt.int64), weight).sum().backward()
    assert weight.grad[0].item() == 1000.0


def test_dropout_gradient_has_the_same_mask():
    x = bt.ones(1000, requires_grad=True)
    y = composite.dropout(x, 0.25, 11, 12)
    y.sum().backward()
    np.testing.assert_array_equal(y.detach().numpy(), x.grad.numpy())


def test_the_same_tensor_twice_in_a_second_derivative():
    x = leaf(3, 3)
    assert gradcheck(lambda x: composite.scaled_dot_product_attention(x, x, x), [x], order=2)


def test_derivatives_in_two_threads():
    """The tape's slot is borrowed while a composite is differentiated; another thread's operations stay its own."""
    faults, tape = [], dispatch.tape

    def work():
        try:
            for _ in range(5):
                assert gradcheck(lambda q, k, v: composite.scaled_dot_product_attention(q, k, v), [leaf(2, 3)] * 3)
        except BaseException as fault:
            faults.append(fault)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not faults
    assert dispatch.tape is tape


def test_updates_are_not_differentiated():
    p = leaf(3)
    new = composite.sgd(p, bt.ones(3, dtype=bt.float64), 0.1, 0.0)
    with pytest.raises(RuntimeError, match="sgd: has no gradient"):
        new.sum().backward()
