"""Functions under PyTorch's names: the values, dtypes and gradients of PyTorch, the same eager and compiled."""

from __future__ import annotations

import itertools
import warnings

import numpy as np
import pytest
from torch_names import ARRAYS, EXPRESSIONS, REFUSED, expressions

import blutrain as bt
from blutrain import nn, nova
from blutrain.autograd import gradcheck
from blutrain.nova import NovaWarning

FLOATS = [name for name, array in ARRAYS.items() if array.dtype.kind == "f"]


def leaves(tensors: dict) -> list:
    return [tensors[name].requires_grad_() for name in FLOATS]


def evaluate(text: str, m, tensors: dict) -> list:
    """The tensors that an expression gives."""
    result = eval(text, {"m": m, "F": m.nn.functional, **tensors})
    return list(result) if isinstance(result, tuple | list) else [result]


def differentiate(results: list, m, inputs: list) -> list:
    """Gradients of a weighted sum of the results."""
    for x in inputs:
        x.grad = None
    total = 0
    for y in results:
        if y.requires_grad:
            weights = m.arange(y.numel(), dtype=y.dtype).reshape(y.shape) * 0.3 + 1
            total = total + (y * weights).sum()
    if not isinstance(total, int):
        total.backward()
    return [x.grad for x in inputs]


def arrays(tensors: list) -> list:
    return [None if x is None else x.detach().numpy().copy() for x in tensors]


def same(got: list, expected: list, what: str) -> None:
    assert len(got) == len(expected), what
    for a, b in zip(got, expected):
        if a is None or b is None:  # a gradient of zeros may be None
            assert a is None or not a.any(), what
            assert b is None or not b.any(), what
            continue
        assert a.dtype == b.dtype, what
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-10, err_msg=what)


@pytest.mark.parametrize("text", [*itertools.chain(*map(expressions, EXPRESSIONS))])
def test_as_in_pytorch(text):
    torch = pytest.importorskip("torch")
    theirs = {name: torch.from_numpy(array.copy()) for name, array in ARRAYS.items()}
    ours = {name: bt.tensor(array) for name, array in ARRAYS.items()}
    inputs = [leaves(theirs), leaves(ours)]
    torch.set_default_dtype(torch.float64)
    bt.set_default_dtype(bt.float64)
    try:
        results = [evaluate(text, torch, theirs), evaluate(text, bt, ours)]
        same(arrays(results[1]), arrays(results[0]), text)
        grads = [differentiate(results[0], torch, inputs[0]), differentiate(results[1], bt, inputs[1])]
    finally:
        torch.set_default_dtype(torch.float32)
        bt.set_default_dtype(bt.float32)
    same(arrays(grads[1]), arrays(grads[0]), f"gradient of {text}")


class Family(nn.Module):
    """All expressions of a family."""

    def __init__(self, family: str):
        super().__init__()
        self.lines = tuple(expressions(family))

    def forward(self, **tensors):
        return [y for text in self.lines for y in evaluate(text, bt, tensors)]


@pytest.mark.parametrize("family", EXPRESSIONS)
def test_compiled_as_eager(family):
    nova.forget_warnings()
    seen = []
    for compiled in (False, True):
        model = Family(family)
        if compiled:
            model.compile()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for _ in range(3 if compiled else 1):
                tensors = {name: bt.tensor(array) for name, array in ARRAYS.items()}
                inputs = leaves(tensors)
                results = model(**tensors)
                grads = differentiate(results, bt, inputs)
                seen.append((arrays(results), arrays(grads)))
        said = [str(w.message) for w in caught if issubclass(w.category, NovaWarning)]
        assert bool(said) == (compiled and family in REFUSED), said
        assert all(REFUSED[family] in text for text in said)
    for results, grads in seen[1:]:
        same(results, seen[0][0], family)
        same(grads, seen[0][1], f"gradients of {family}")


KINKED = ("special", "ties", "* 0", "(x > 0)", "argsort(", "detach")
SMOOTH = [
    text
    for family in ("formulas", "activations", "losses", "attention", "order", "scatter")
    for text in expressions(family)
    if not any(kink in text for kink in KINKED)
]


@pytest.mark.parametrize("text", SMOOTH)
def test_derivatives(text):
    constants = {name: bt.tensor(array) for name, array in ARRAYS.items()}
    used = [name for name in FLOATS if name in compile(text, "", "eval").co_names]

    def function(*inputs):
        tensors = {**constants, **dict(zip(used, inputs))}
        results = [y for y in evaluate(text, bt, tensors) if y.requires_grad]
        return results[0] if len(results) == 1 else tuple(results)

    inputs = [bt.tensor(ARRAYS[name]).requires_grad_() for name in used]
    if any(y.requires_grad for y in evaluate(text, bt, {**constants, **dict(zip(used, inputs))})):
        assert gradcheck(function, inputs)
