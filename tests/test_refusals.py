"""What cannot be replayed. Each reason: right results by the eager rules, one warning that names the user's line, and
CompileRefused under compile(strict=True). A change that lifts a refusal removes its reason and its case here.
"""

from __future__ import annotations

import contextlib
import inspect
import random
import warnings

import numpy as np
import pytest
from loops import Net, batches, make, state

import blutrain as bt
from blutrain import nn, nova
from blutrain.errors import CompileRefused
from blutrain.nn import functional as F
from blutrain.nova.refuse import REASONS
from blutrain.optim import SGD
from blutrain.optim.schedule import LambdaLR
from blutrain.tensor.primitive import TABLE, Unsupported

LEFT: list = []


class Opaque:
    """An argument that cannot be compared."""


HOLDER = LambdaLR(SGD([nn.Parameter(bt.ones(1))], lr=0.1), float)  # guards do not look into objects of the library
vars(HOLDER)["factor"] = bt.ones(8, dtype=bt.float64)


class Model(Net):
    """Calls `refused` between its layers: the line of that call, or one inside of it, is what a warning names."""

    refused = staticmethod(lambda hidden: hidden)

    def forward(self, x, y, extra=None):
        return F.cross_entropy(self.head(self.refused(F.gelu(self.fc(x)))), y)


def value_read(hidden):
    return hidden * abs(hidden.mean().item())  # here


def host_data(hidden):
    return hidden * bt.from_numpy(np.arange(8.0))  # here


def escapes(hidden):
    LEFT.append(hidden.detach())
    return hidden


def python_random(hidden):
    return hidden * random.random()


def shared_write(hidden):
    hidden = hidden.clone().detach()
    hidden[0].zero_()  # here
    return hidden


def unstable(hidden):
    vars(HOLDER)["count"] += 1
    return hidden * float(vars(HOLDER)["count"])  # here


def effects(hidden):
    LEFT.append(hidden.shape[0])
    return hidden * float(len(LEFT))


def undeclared(hidden):
    return hidden * vars(HOLDER)["factor"]  # here


def training(hidden):
    hidden.sum().backward(retain_graph=True)  # here
    return hidden


def unsupported(hidden):
    return hidden * hidden.argsort(1)  # here


FUNCTIONS = (
    value_read, host_data, escapes, python_random, shared_write, unstable, effects, undeclared, training, unsupported
)  # fmt: skip
BODIES = {f.__name__: f for f in FUNCTIONS}


def train(compiled: bool, reason: str, steps: int = 5, **options) -> dict:
    """Losses and parameters after some steps of a model that is refused for `reason`."""
    LEFT.clear()
    vars(HOLDER)["count"] = 0
    random.seed(0)
    cls = type("Case", (Model,), {"refused": staticmethod(BODIES.get(reason, Model.refused))})
    model, optimizer = make(False, cls=cls)
    if compiled:
        model.compile(**{"max_programs": 1, **options} if reason == "programs" else options)
    if reason == "hooks":
        model.fc.register_forward_hook(lambda module, args, output: output * 2.0)
    losses = []
    for i, (x, y) in enumerate(batches(steps)):
        rows = 7 - (i % 5 if reason == "programs" else 0)
        extra = Opaque() if reason == "argument" else None
        loss = model(x[:rows], y[:rows], extra)  # the call
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return {"losses": losses, **state(model)}


# below, in test_replay_errors.py, and in test_jit.py
OTHERS = {"device", "devices", "iterator"}
CASES = sorted(REASONS.keys() - OTHERS)


@pytest.mark.parametrize("reason", CASES)
def test_runs_by_the_eager_rules_with_one_warning(reason, request):
    """The results are eager mode's; the warning says why and at which line."""
    if reason != "unsupported":
        request.getfixturevalue("interpreted")
    expected = train(False, reason, steps=12)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        got = train(True, reason, steps=12)
    for key in expected:
        np.testing.assert_allclose(got[key], expected[key], rtol=1e-9, atol=1e-11, err_msg=key)
    said = [str(w.message) for w in caught if issubclass(w.category, nova.NovaWarning)]
    assert len(said) == 1, said
    assert REASONS[reason] in said[0] and ("eager rules" in said[0]) == (reason != "effects")
    assert any(
        f"at {__file__}:{line}" in said[0] or f"{loops_file()}:{line}" in said[0] for line in lines_of(reason)
    ), said


@pytest.mark.parametrize("reason", CASES)
def test_strict_raises(reason, request):
    """compile(strict=True) says the same as an error, and the step did nothing."""
    if reason != "unsupported":
        request.getfixturevalue("interpreted")
    with pytest.raises(CompileRefused, match=REASONS[reason].split("'")[0]):
        train(True, reason, steps=12, strict=True)
    assert nova.recorder().log is None


@pytest.mark.parametrize("reason", ["value_read", "escapes", "argument", "hooks"])
def test_nothing_happens_to_a_model_whose_step_is_refused_under_strict(reason, interpreted):
    cls = type("Case", (Model,), {"refused": staticmethod(BODIES.get(reason, Model.refused))})
    model, optimizer = make(False, cls=cls)
    model.compile(strict=True)
    if reason == "hooks":
        model.fc.register_forward_hook(lambda module, args, output: None)
    before = state(model)
    x, y = next(batches())
    with pytest.raises(CompileRefused):
        model(x, y, Opaque() if reason == "argument" else None)
    optimizer.step()
    assert all(np.array_equal(v, before[k]) for k, v in state(model).items())


def lines_of(reason: str) -> list[int]:
    """The lines that may be named: those marked "here", the call for what concerns the call as a whole."""
    function = BODIES.get(reason)
    if function is None or reason in ("escapes", "python_random", "effects"):
        marks = dict.fromkeys(("argument", "hooks", "effects"), (train, "# the call"))
        function, mark = marks.get(reason, (None, ""))
        if function is None:
            return list(range(1, 1000))
    else:
        mark = "# here"
    source, first = inspect.getsourcelines(function)
    return [first + i for i, line in enumerate(source) if mark in line]


def loops_file() -> str:
    return inspect.getsourcefile(Net)


def test_a_device_without_a_compiler(interpreted):
    """A device that nova generates no code for: the steps are interpreted."""
    attributes = {"type": "abacus", "is_cpu": False, "xp": np, "activate": contextlib.nullcontext}
    device = type("Device", (), attributes)()
    model, _ = make(True)
    x, _ = next(batches())
    for tensor in (x, *model.parameters()):
        tensor.device = device
    with bt.no_grad(), pytest.warns(nova.NovaWarning, match=REASONS["device"]):
        results = [model(x) for _ in range(3)]
    assert all(np.array_equal(results[0]._buffer(), r._buffer()) for r in results)


def test_every_reason_has_a_case():
    assert set(CASES) | OTHERS == set(REASONS)
    assert set(BODIES) <= set(REASONS)


# -------------------------------------------------------------------- operations without kernels

# Every record whose lowering is Unsupported, and a call that uses it. Give one a lowering, and it leaves this list.
WITHOUT_KERNELS = {
    "argsort": lambda x: x.topk(3).values,
    "randperm": lambda x: x * bt.randperm(8),
    "searchsorted": lambda x: x * bt.searchsorted(bt.zeros(1), x),
    "transfer": None,  # reads its operand, so the step before is done by then
}


def test_the_list_of_operations_without_kernels_is_complete():
    """(Collectives that are none: test_distributed.)"""
    records = {name: r for name, r in TABLE.items() if "collective" not in r.tags}
    assert {name for name, record in records.items() if isinstance(record.nova, Unsupported)} == set(WITHOUT_KERNELS)


@pytest.mark.parametrize("name", sorted(name for name, call in WITHOUT_KERNELS.items() if call))
def test_an_operation_without_kernels_is_named_when_it_is_compiled(name):
    class Case(bt.nn.Module):
        def forward(self, x):
            return WITHOUT_KERNELS[name](x)

    model = Case()
    model.compile(first_step="compiled", strict=True)
    reason = TABLE[name].nova.reason
    with bt.no_grad(), pytest.raises(CompileRefused, match=f"(?s){name} cannot be compiled: {reason}.*test_refusals"):
        model(bt.ones(4, 8)).numpy()
    assert nova.recorder().log is None
