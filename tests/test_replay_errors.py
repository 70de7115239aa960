"""Steps that fail, gradients that are gone, threads, memory: nothing is half-updated and nothing is silently wrong."""

from __future__ import annotations

import gc
import resource
import sys
import threading
import warnings

import numpy as np
import pytest
from fresh import run_in_fresh_process
from loops import Net, batches, make, state
from replay_support import programs

import blutrain as bt
from blutrain import nn, nova
from blutrain.errors import CompileRefused
from blutrain.nn import functional as F
from blutrain.optim import SGD, AdamW
from blutrain.tensor.device import Device

EXECUTORS = pytest.mark.parametrize("executor", ["interpreter", "program"])


@pytest.fixture
def executor_of(request):
    """Chooses who runs programs: call it with the parameter `executor`."""
    return lambda executor: request.getfixturevalue("interpreted") if executor == "interpreter" else None


def train(model, optimizer, data) -> list[float]:
    losses = []
    for x, y in data:
        loss = model(x, y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def everything(model, optimizer) -> dict:
    """All that a step updates."""
    moments = {f"{i}.{k}": v for i, s in optimizer.state_dict()["state"].items() for k, v in s.items()}
    arrays = {k: v.detach().numpy().copy() if isinstance(v, bt.Tensor) else v for k, v in moments.items()}
    return {**state(model), **arrays}


def assert_same(got: dict, expected: dict, exact: bool = True) -> None:
    assert got.keys() == expected.keys()
    for k in expected:
        np.testing.assert_allclose(
            got[k], expected[k], rtol=0 if exact else 1e-9, atol=0 if exact else 1e-11, err_msg=k
        )


# -------------------------------------------------------------------- value checks


@EXECUTORS
@pytest.mark.parametrize("at", [0, 1, 3], ids=["first step", "second step", "replayed step"])
@pytest.mark.parametrize("target", [5, -1, 10**12])
def test_target_out_of_range(executor, at, target, executor_of):
    """ValueError with the value; nothing is updated, no step counted; the next good step goes on as if it had not been."""
    executor_of(executor)
    model, optimizer = make(True)
    expected, eager = make(False)
    for i, (x, y) in enumerate(batches(6)):
        if i == at:
            before = everything(model, optimizer) if at else None
            bad = y.numpy().copy()
            bad[3] = target
            with pytest.raises(ValueError, match=str(target)) as caught:
                train(model, optimizer, [(x, bt.tensor(bad))])
            assert "loops.py" in str(caught.value)  # where cross_entropy was called
            nova.flush()
            if at:
                assert_same(everything(model, optimizer), before)
            optimizer.zero_grad()
        train(model, optimizer, [(x, y)])
        train(expected, eager, [(x, y)])
    assert_same(everything(model, optimizer), everything(expected, eager), exact=False)


def test_check_in_a_step_that_compiles_first():
    model, optimizer = make(False)
    model.compile(first_step="compiled")
    x, y = next(batches())
    before = state(model)
    with pytest.raises(ValueError, match="9"):
        train(model, optimizer, [(x, y * 0 + 9)])
    assert_same(state(model), before)
    assert np.isfinite(train(model, optimizer, [(x, y)])[0])


class TwoTables(nn.Module):
    """Several value checks in one step: two tables and a loss with targets."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Embedding(7, 5), nn.Embedding(11, 5)
        self.head = nn.Linear(5, 3)

    def forward(self, i, j, target):
        return F.cross_entropy(self.head(self.first(i) + self.second(j)), target)


@pytest.mark.parametrize("at", range(3))
@EXECUTORS
def test_each_of_several_checks_prevents_all_updates(executor, at, executor_of):
    executor_of(executor)
    bt.manual_seed(0)
    model = TwoTables().compile()
    optimizer = AdamW(model.parameters(), lr=0.1)

    def step(numbers: list) -> None:
        loss = model(*(bt.tensor(n) for n in numbers))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    good = [[1, 2], [3, 4], [0, 2]]
    for _ in range(3):
        step(good)
    before = everything(model, optimizer)
    with pytest.raises(ValueError, match="out of range"):
        step([*good[:at], [99, 1], *good[at + 1 :]])
    assert_same(everything(model, optimizer), before)
    step(good)


@EXECUTORS
def test_norm_that_is_not_finite(executor, executor_of):
    """clip_grad_norm_(error_if_nonfinite=True) in a compiled step: an error, nothing updated."""
    executor_of(executor)
    model, optimizer = make(True)

    def step(x, y):
        loss = model(x, y)
        loss.backward()
        bt.nn.utils.clip_grad_norm_(model.named_parameters(), 1.0, error_if_nonfinite=True)
        optimizer.step()
        optimizer.zero_grad()

    good = list(batches(5))
    for x, y in good[:3]:
        step(x, y)
    before = everything(model, optimizer)
    with pytest.raises(RuntimeError, match=r"the gradient of fc\.weight f64\[8,6\] is not finite"):
        step(good[3][0] * float("inf"), good[3][1])
    assert_same(everything(model, optimizer), before)
    optimizer.zero_grad()
    step(*good[4])
    assert not np.array_equal(state(model)["fc.weight"], before["fc.weight"])


@EXECUTORS
def test_nan_and_inf_go_through_as_in_eager_mode(executor, executor_of):
    executor_of(executor)
    results = []
    for compiled in (False, True):
        model, optimizer = make(compiled, optimizer=SGD)
        losses = train(model, optimizer, batches(3))
        with np.errstate(all="ignore"):
            for bad in (float("nan"), float("inf")):
                x, y = next(batches())
                losses += train(model, optimizer, [(x * bad, y)])
        results.append((losses, everything(model, optimizer)))
    np.testing.assert_allclose(results[1][0], results[0][0], rtol=1e-9)
    assert_same(results[1][1], results[0][1], exact=False)


# -------------------------------------------------------------------- exceptions


class Fragile(Net):
    fail = False

    def forward(self, x, targets=None):
        self.hidden = self.fc(x)
        if self.fail:
            raise KeyError("in the middle")
        return F.cross_entropy(self.head(F.gelu(self.hidden)), targets)


@EXECUTORS
@pytest.mark.parametrize("at", [0, 1, 3])
def test_an_exception_in_forward_leaves_nothing_behind(executor, at, executor_of):
    executor_of(executor)
    model, optimizer = make(True, cls=Fragile)
    expected, eager = make(False, cls=Fragile)
    for i, (x, y) in enumerate(batches(5)):
        if i == at:
            model.fail = True
            with pytest.raises(KeyError, match="in the middle"):
                model(x, y)
            assert nova.recorder().log is None and not nova.recorder().recording
            if isinstance(model.hidden, bt.Tensor) and at == 0:
                with pytest.raises(RuntimeError, match="never computed"):
                    model.hidden.sum().item()
            model.fail = False
        train(model, optimizer, [(x, y)])
        train(expected, eager, [(x, y)])
    assert_same(everything(model, optimizer), everything(expected, eager), exact=False)


def test_an_exception_behind_pending_work_leaves_that_whole(interpreted):
    model, optimizer = make(True, cls=Fragile)
    x, y = next(batches())
    train(model, optimizer, [(x, y)] * 3)
    good = model(x, y)
    model.fail = True
    with pytest.raises(KeyError):
        model(x, y)
    model.fail = False
    expected = good.item()
    assert expected == model(x, y).item()


@pytest.mark.parametrize("what", ["shape", "dtype", "backward of many", "unhashable operand"])
def test_errors_of_operations_are_eager_modes_errors(what, interpreted):
    texts = []
    for compiled in (False, True):
        model, _ = make(compiled)
        x, y = next(batches())
        for _ in range(3):
            with pytest.raises((RuntimeError, TypeError, ValueError)) as caught:
                if what == "shape":
                    model(x[:, :3], y)
                elif what == "dtype":
                    model(x.long(), y)
                elif what == "backward of many":
                    model(x).backward()
                else:
                    model(x) + [1.0]
            texts.append(str(caught.value).split("\n  at ")[0])
    assert len(set(texts)) == 1


def test_a_failed_step_can_be_read_about(interpreted):
    """What the step would have made says so; the cause is attached."""
    model, _ = make(True)
    x, y = next(batches())
    loss = model(x, y * 0 + 7)
    logits = model(x)
    with pytest.raises(ValueError, match="7"):
        loss.item()
    with pytest.raises(RuntimeError, match="never computed") as caught:
        logits.sum().item()
    assert isinstance(caught.value.__cause__, ValueError)


# -------------------------------------------------------------------- consumed gradients


@pytest.mark.parametrize("steps", [1, 2, 4])
def test_reading_a_consumed_gradient_raises(steps, interpreted):
    model, optimizer = make(True)
    for x, y in batches(steps):
        optimizer.zero_grad()
        model(x, y).backward()
        optimizer.step()
    with pytest.raises(RuntimeError, match="keep_grads=True"):
        model.fc.weight.grad  # noqa: B018
    optimizer.zero_grad()
    assert model.fc.weight.grad is None


def test_a_consumed_gradient_cannot_be_added_to(interpreted):
    """Without zero_grad the sum is not known: stepping on it, clipping it and reading it all raise."""
    model, optimizer = make(True)
    for x, y in batches(4):
        optimizer.zero_grad()
        model(x, y).backward()
        optimizer.step()
    before = everything(model, optimizer)
    model(x, y).backward()
    with pytest.raises(RuntimeError, match="zero_grad"):
        bt.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    with pytest.raises(RuntimeError, match="zero_grad"):
        optimizer.step()
    with pytest.raises(RuntimeError, match="zero_grad"):
        model.fc.weight.grad  # noqa: B018
    assert_same(everything(model, optimizer), before)
    optimizer.zero_grad()
    model(x, y).backward()
    optimizer.step()
    assert not np.array_equal(state(model)["fc.weight"], before["fc.weight"])


def test_an_optimizer_that_is_gone_does_not_answer_for_others(interpreted):
    """model.zero_grad() clears this model's gradients, whatever other optimizers stepped before."""
    other, optimizer = make(True)
    train(other, optimizer, batches(3))
    del optimizer
    gc.collect()
    model, _ = make(True)
    for x, y in batches(3):
        model(x, y).backward()
        assert model.fc.weight.grad is not None
        model.zero_grad()
        assert model.fc.weight.grad is None
    assert other.fc.weight is not None


@EXECUTORS
def test_keep_grads(executor, executor_of):
    """compile(keep_grads=True): gradients stay after the step, and add up without zero_grad, as in eager mode."""
    executor_of(executor)
    results = []
    for compiled in (False, True):
        model, optimizer = make(False)
        if compiled:
            model.compile(keep_grads=True)
        seen = []
        for i, (x, y) in enumerate(batches(8)):
            model(x, y).backward()
            optimizer.step()
            seen.append(model.fc.weight.grad.numpy().copy())
            if i % 3 == 2:
                optimizer.zero_grad()
        results.append(seen)
    np.testing.assert_allclose(results[1], results[0], rtol=1e-9, atol=1e-11)


# -------------------------------------------------------------------- threads


def test_a_second_thread_is_refused_while_a_step_is_pending(interpreted):
    model, _ = make(True)
    x, y = next(batches())
    loss = model(x, y)
    caught = []

    def use():
        for action in (lambda: model(x, y), loss.item, lambda: loss * 2.0, nova.flush):
            try:
                action()
            except RuntimeError as error:
                caught.append(str(error))

    thread = threading.Thread(target=use)
    thread.start()
    thread.join()
    assert len(caught) == 4 and all("second thread" in text and "flush" in text for text in caught)
    assert np.isfinite(loss.item())


def test_another_thread_may_go_on_between_steps(interpreted):
    model, optimizer = make(True)
    expected, eager = make(False)
    for batch in batches(4):
        thread = threading.Thread(target=train, args=(model, optimizer, [batch]))
        thread.start()
        thread.join()
        train(expected, eager, [batch])
    assert_same(state(model), state(expected), exact=False)


def test_a_thread_that_ended_owns_nothing(interpreted):
    """Its pending step can be finished by another."""
    model, _ = make(True)
    x, y = next(batches())
    losses = []
    thread = threading.Thread(target=lambda: losses.append(model(x, y)))
    thread.start()
    thread.join()
    assert np.isfinite(losses[0].item()) and np.isfinite(model(x, y).item())


# -------------------------------------------------------------------- bits, memory


@pytest.mark.parametrize("rate", [0.1, 0.5])
def test_dropout_masks_are_equal_bit_for_bit(rate):
    """The same elements are dropped eagerly, in the recorded first step and by programs, in float32 and across a resume."""

    class Dropping(bt.nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = bt.nn.Dropout(rate), bt.nn.Dropout(rate)

        def forward(self, x):
            return self.first(x), self.second(x), self.first(x)

    masks = []
    for compiled in (False, True):
        bt.manual_seed(7)
        module = Dropping()
        if compiled:
            module.compile()
        x = bt.ones(33, 65)
        seen = []
        for step in range(5):
            if step == 3:
                saved = bt.get_rng_state()
            seen.append(np.stack([y.numpy() for y in module(x)]))
        bt.set_rng_state(saved)
        seen.append(np.stack([y.numpy() for y in module(x)]))
        masks.append(np.stack(seen))
    assert np.array_equal(masks[0], masks[1])
    assert np.array_equal(masks[1][3], masks[1][5]) and not np.array_equal(masks[1][0], masks[1][1])
    assert not np.array_equal(masks[1][0][0], masks[1][0][1]) and not np.array_equal(masks[1][0][0], masks[1][0][2])
    assert abs((masks[1] == 0).mean() - rate) < 0.02


def test_two_compiled_runs_are_bitwise_equal():
    results = []
    for _ in range(2):
        model, optimizer = make(True, dtype=bt.float32, dropout=0.1)
        data = [(x.to(bt.float32), y) for x, y in batches(8)]
        results.append((train(model, optimizer, data), everything(model, optimizer)))
    assert results[0][0] == results[1][0]
    assert_same(results[1][1], results[0][1])


def rss_bytes() -> int:
    """Resident memory now (the peak where the system only tells that)."""
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * resource.getpagesize()
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def test_a_thousand_steps_keep_memory_flat():
    """Neither resident memory nor the number of objects grows; every loss is held for a while."""
    run_in_fresh_process("test_replay_errors", "a_thousand_steps")


def a_thousand_steps() -> None:
    model, optimizer = make(True)
    data = list(batches(10))
    held: list = []

    def steps(n: int) -> None:
        for i in range(n):
            x, y = data[i % 10]
            loss = model(x, y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            held.append(loss)
            del held[:-20]
            if i % 10 == 0:
                loss.item()

    steps(300)
    gc.collect()
    before, objects = rss_bytes(), len(gc.get_objects())
    steps(1000)
    gc.collect()
    assert rss_bytes() - before < 4 << 20
    assert len(gc.get_objects()) - objects < 200
    assert programs(model) == 1


def test_memory_of_a_failed_compile_is_released(monkeypatch):
    """A compiler fault is announced once, and does not run at every step."""
    from blutrain.errors import NovaError

    calls = []

    def fail(trace, options=None):
        calls.append(1)
        raise NovaError("broken on purpose", stage="test", location="train.py:3")

    monkeypatch.setattr("blutrain.nova.execute.compile_trace", fail)
    model, optimizer = make(True)
    expected, eager = make(False)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        train(model, optimizer, batches(5))
    train(expected, eager, batches(5))
    assert len(calls) == 1 and sum("broken on purpose" in str(w.message) for w in caught) == 1
    assert programs(model) == 0
    assert_same(state(model), state(expected), exact=False)


class _Squares(nn.Module):
    def forward(self, x):
        return (x * x).sum()


def on_a_gpu(x: bt.Tensor) -> bt.Tensor:
    """A tensor that says it is on a GPU."""
    cuda = Device("cuda")
    return bt.Tensor._wrap(x.numpy(), cuda, x._aval)


def test_a_module_without_parameters_runs_where_its_arguments_are(monkeypatch):
    """And what another device's module left pending is done first."""
    flushed = []
    monkeypatch.setattr("blutrain.nova.record.flush_log", lambda recorder, log: flushed.append(log.device))
    model, other = _Squares(), _Squares()
    model.compile()
    other.compile()
    x = bt.tensor([1.0, 2.0])
    model(on_a_gpu(x))
    assert nova.recorder().log.device is Device("cuda")
    other(x)
    assert nova.recorder().log.device is Device("cpu") and flushed == [Device("cuda")]


def test_arguments_on_another_device_than_the_module():
    model, x = nn.Linear(2, 2), bt.tensor([[1.0, 2.0]])
    model.compile(strict=True)
    with pytest.raises(CompileRefused, match="on several devices: cuda:0 and cpu"):
        model(on_a_gpu(x))
    assert model(x).detach().numpy().shape == (1, 2)
