"""How many programs user code makes, and how often they run: what makes a new one, and what must not."""

from __future__ import annotations

import dataclasses
import gc
import warnings
import weakref

import numpy as np
import pytest
from loops import Net, batches, make, state
from replay_support import programs

import blutrain as bt
from blutrain import nn, nova
from blutrain.nn import functional as F
from blutrain.nova.interpret import OutOfMemory
from blutrain.optim import SGD, AdamW
from blutrain.optim.schedule import LambdaLR

pytestmark = pytest.mark.usefixtures("interpreted")


class Counting(Net):
    """Counts how often its body runs."""

    bodies = 0

    def forward(self, x, targets=None):
        Counting.bodies += 1
        return super().forward(x, targets)


def train(model, optimizer, data, zero_grad=None):
    """Steps; returns how many of them a program ran."""
    nova.flush()
    before = nova.recorder().replayed_steps
    for x, y in data:
        optimizer.zero_grad() if zero_grad is None else optimizer.zero_grad(set_to_none=zero_grad)
        model(x, y).backward()
        optimizer.step()
    nova.flush()
    return nova.recorder().replayed_steps - before


def test_second_call_verifies_and_later_ones_do_not_run_the_body():
    Counting.bodies = 0
    model, optimizer = make(True, cls=Counting)
    assert train(model, optimizer, batches(6)) == 5
    assert Counting.bodies == 2 and programs(model) == 1


def test_a_thousand_learning_rates_are_one_program():
    model, optimizer = make(True)
    schedule = LambdaLR(optimizer, lambda step: 1.0 / (1 + step))
    x, y = next(batches())
    for _ in range(1000):
        model(x, y).backward()
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
    assert programs(model) == 1 and nova.recorder().replayed_steps >= 999


@pytest.mark.parametrize("change", ["betas", "eps", "weight_decay", "max_norm", "loss_scale", "tokens"])
def test_numbers_are_read_at_each_step(change):
    model, optimizer = make(True)
    for i, (x, y) in enumerate(batches(6)):
        number = 0.9 - 0.01 * i
        loss = model(x, y) * (number if change == "loss_scale" else 1.0)
        if change == "tokens":
            loss = (loss * i + 1 - i) / (7 + i)
        loss.backward()
        if change == "max_norm":
            nn.utils.clip_grad_norm_(model.parameters(), number)
        elif change not in ("loss_scale", "tokens"):
            optimizer.param_groups[0][change] = (number, 0.99) if change == "betas" else number
        optimizer.step()
        optimizer.zero_grad()
    assert programs(model) == 1


def test_both_ways_of_zeroing_are_one_program():
    model, optimizer = make(True)
    for i in range(6):
        train(model, optimizer, batches(1, seed=i), zero_grad=i % 2 == 0)
    assert programs(model) == 1


def test_loaded_state_is_the_same_program():
    model, optimizer = make(True)
    train(model, optimizer, batches(3))
    saved, saved_optimizer = {k: v.clone() for k, v in model.state_dict().items()}, optimizer.state_dict()
    assert train(model, optimizer, batches(2)) == 2
    model.load_state_dict(saved)
    optimizer.load_state_dict(saved_optimizer)
    assert train(model, optimizer, batches(2)) == 2
    assert programs(model) == 1


def test_train_eval_train_are_two_programs():
    model, optimizer = make(True, dropout=0.5)
    for _ in range(3):
        model.train()
        train(model, optimizer, batches(3))
        model.eval()
        train(model, optimizer, batches(3))
    assert programs(model) == 2


def test_an_attribute_that_forward_does_not_read_is_no_guard():
    model, optimizer = make(True)
    model.calls = 0
    for i in range(6):
        model.calls += 1
        train(model, optimizer, batches(1, seed=i))
    assert programs(model) == 1 and nova.recorder().log is None


def test_an_attribute_that_forward_reads_is_one():
    class Scaled(Net):
        scale = 1.0

        def forward(self, x, targets=None):
            return super().forward(x * self.scale, targets)

    model, optimizer = make(True, cls=Scaled)
    for scale in (1.0, 2.0, 1.0, 2.0):
        model.scale = scale
        train(model, optimizer, batches(3))
    assert programs(model) == 2


def test_a_short_last_batch_makes_one_more():
    model, optimizer = make(True)
    for _ in range(4):
        train(model, optimizer, batches(3, last=2))
    assert programs(model) == 2


@pytest.mark.parametrize("rows, other", [(4, 8), (1, 7), (0, 3)])
def test_a_program_serves_its_shapes_only(rows, other):
    model, _ = make(True)
    weight, bias = model.fc.weight.detach().numpy(), model.fc.bias.detach().numpy()
    with bt.no_grad():
        for n in (rows, rows, rows, other, rows, other, other):
            x = np.random.default_rng(n).standard_normal((n, 6))
            got = nn.Module.__call__(model.fc.compile() if model.fc._compiled is None else model.fc, bt.tensor(x))
            np.testing.assert_allclose(got.numpy(), x @ weight.T + bias, atol=1e-12)


def test_dtypes_and_gradients_of_inputs_make_programs():
    model, _ = make(True)
    model.to(bt.float32)
    for dtype, requires_grad in ((bt.float32, False), (bt.float32, True)) * 3:
        x = bt.ones(3, 6, dtype=dtype, requires_grad=requires_grad)
        model(x).sum().backward()
        model.zero_grad()
    assert programs(model) == 2


def test_every_step_counts_as_a_write_to_all_that_it_updates():
    """Also where sequences that update the same tensors take turns, and eager code writes in between."""
    model, opt = make(True)
    data = [next(iter(batches(1, rows=rows))) for rows in (7, 3)]
    before: list[int] = []
    for i in range(12):
        train(model, opt, [data[i // 2 % 2]])
        written = [
            *model.parameters(),
            *(t for s in opt.state.values() for t in s.values() if isinstance(t, bt.Tensor)),
        ]
        after = [t._version.value for t in written]
        if i:
            assert all(a > b for a, b in zip(after, before, strict=True)), i
        if i % 3 == 0:
            model.fc.bias.data.mul_(1.0)
            with bt.no_grad():
                model.head.bias.mul_(1.0)
            assert model.head.bias._version.value > after[-1]
        before = [t._version.value for t in written]


def test_two_instances_of_a_class_have_their_own_programs():
    first, optimizer = make(True)
    second, other = make(True, seed=1)
    expected, eager = make(False, seed=1)
    for i in range(4):
        train(first, optimizer, batches(1, seed=i))
        train(second, other, batches(1, seed=i))
        train(expected, eager, batches(1, seed=i))
    assert programs(first) == programs(second) == 1
    for k, v in state(second).items():
        np.testing.assert_allclose(v, state(expected)[k], rtol=1e-9, atol=1e-11)


def test_accumulation_settles():
    """k micro-steps are a handful of programs, however long it goes on."""
    model, optimizer = make(True)
    counts = []
    for _ in range(5):
        for x, y in batches(3):
            (model(x, y) / 3).backward()
        optimizer.step()
        optimizer.zero_grad()
        counts.append(programs(model))
    assert counts[1:] == [counts[1]] * 4 and counts[-1] <= 3


def test_reading_the_loss_before_backward_is_two_programs():
    model, optimizer = make(True)
    for x, y in batches(6):
        loss = model(x, y)
        assert loss.item() > 0
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    assert programs(model) == 2 and nova.recorder().log is None


def test_reading_every_third_loss_replays_all_the_same():
    model, optimizer = make(True)
    before = nova.recorder().replayed_steps
    for i, (x, y) in enumerate(batches(30)):
        loss = model(x, y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if i % 3 == 0:
            loss.item()
    assert programs(model) == 1 and nova.recorder().replayed_steps - before == 29


def test_without_gradients_the_second_call_compiles():
    model, _ = make(True)
    model.eval()
    x, _ = next(batches())
    with bt.no_grad():
        model(x)
        assert programs(model) == 0
        model(x)
        assert programs(model) == 1
        model(x)
    assert programs(model) == 1


def test_first_step_compiled():
    model, optimizer = make(False)
    model.compile(first_step="compiled")
    assert train(model, optimizer, batches(1)) == 0 and programs(model) == 1
    assert model._compiled.programs[0].program is not None
    assert train(model, optimizer, batches(1)) == 1


def test_a_step_over_the_memory_limit_compiles_first(monkeypatch):
    interpreted = []
    monkeypatch.setattr("blutrain.nova.execute.interpret", lambda *args: interpreted.append(1))
    model, optimizer = make(False)
    model.compile(memory_limit=1)
    train(model, optimizer, batches(3))
    assert not interpreted and programs(model) == 1


@pytest.mark.parametrize("grad", [True, False])
def test_a_step_that_finds_no_memory_is_run_by_its_program(grad, monkeypatch):
    """The interpreter runs out of memory before it has written anything: the program takes over at once."""

    def exhausted(trace, bindings):
        raise OutOfMemory("no memory", is_whole=True)

    monkeypatch.setattr("blutrain.nova.execute.interpret", exhausted)
    model, optimizer = make(True)
    expected, eager = make(False)
    if grad:
        train(model, optimizer, batches(3))
        train(expected, eager, batches(3))
    x, y = next(batches())
    with bt.set_grad_enabled(grad):
        np.testing.assert_allclose(model(x, y).item(), expected(x, y).item(), rtol=1e-9)
    assert programs(model) >= 1


def test_out_of_memory_after_a_write_is_an_error(monkeypatch):
    def exhausted(trace, bindings):
        raise OutOfMemory("no memory", is_whole=False)

    monkeypatch.setattr("blutrain.nova.execute.interpret", exhausted)
    model, optimizer = make(True)
    with pytest.raises(MemoryError, match="no memory"):
        train(model, optimizer, batches(1))


def test_interpreter_says_whether_anything_was_written():
    model, optimizer = make(True)
    train(model, optimizer, batches(2))
    (entry,) = model._compiled.programs
    node = entry.trace.nodes[3]
    broken = dataclasses.replace(node.prim, eager=exhaust)
    object.__setattr__(broken, "name", node.prim.name)
    entry.trace.nodes[3] = dataclasses.replace(node, prim=broken)
    with pytest.raises(OutOfMemory) as caught:
        train(model, optimizer, batches(1))
    assert caught.value.is_whole


def exhaust(*args, **kwargs):
    raise MemoryError("no memory")


def test_compiling_again_starts_over():
    model, optimizer = make(True)
    assert train(model, optimizer, batches(4)) == 3
    model.compile(keep_grads=True)
    assert train(model, optimizer, batches(4)) == 3 and programs(model) == 1
    assert model.fc.weight.grad is not None


def test_memory_limit_that_is_not_reached_changes_nothing():
    model, optimizer = make(False)
    model.compile(memory_limit=1 << 30)
    assert train(model, optimizer, batches(3)) == 2


def test_disabled_runs_eagerly():
    Counting.bodies = 0
    model, optimizer = make(True, cls=Counting)
    with bt.config.scope(NOVA_DISABLE=True):
        assert train(model, optimizer, batches(4)) == 0
    assert Counting.bodies == 4 and programs(model) == 0
    assert train(model, optimizer, batches(4)) == 3


def test_anomaly_detection_runs_eagerly():
    model, optimizer = make(True)
    with bt.config.scope(detect_anomaly=True):
        assert train(model, optimizer, batches(4)) == 0


def test_least_recently_used_program_goes():
    model, optimizer = make(False)
    model.compile(max_programs=2)
    for rows in (3, 4, 3, 5):
        train(model, optimizer, batches(2, rows=rows))
    assert programs(model) == 2
    shapes = [entry.trace.inputs[0].aval.shape[0] for entry in model._compiled.programs]
    assert shapes == [3, 5]


def test_too_many_programs_are_announced_with_the_guard_that_changes():
    class Scaled(Net):
        def forward(self, x, targets=None):
            return super().forward(x * self.scale, targets)

    eager, first = make(False, cls=Scaled)
    model, second = make(False, cls=Scaled)
    model.compile(max_programs=2)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for i, batch in enumerate(batches(12)):
            model.scale = eager.scale = 1 + i  # (floats are run-time scalars then)
            train(model, second, [batch])
            train(eager, first, [batch])
    said = [str(w.message) for w in caught if issubclass(w.category, nova.NovaWarning)]
    assert len(said) == 1 and "'scale'" in said[0] and "2 programs of Scaled" in said[0], said
    assert programs(model) <= 2
    for k, v in state(model).items():
        np.testing.assert_allclose(v, state(eager)[k], rtol=1e-9, atol=1e-11)


def test_what_is_remembered_stays_bounded():
    """Keys that never come again: neither the tree of sequences nor the programs grow without end."""
    model, optimizer = make(False)
    model.compile(max_programs=2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", nova.NovaWarning)
        for i, (x, y) in enumerate(batches(200)):
            (model(x, y) * (i + 1)).backward()
            optimizer.step()
            optimizer.zero_grad()
    steps = sum(1 for variants in nova.recorder().root.children.values() for v in variants for _ in v.tree())
    assert programs(model) <= 2 and steps < 1000


def test_a_module_that_is_gone_leaves_nothing():
    model, optimizer = make(True)
    train(model, optimizer, batches(4))
    references = [weakref.ref(p) for p in model.parameters()]
    children = len(nova.recorder().root.children)
    del model, optimizer
    gc.collect()
    assert len(nova.recorder().root.children) < children
    gc.collect()  # what was forgotten is a cycle itself
    assert not any(r() is not None for r in references)


def test_gradients_of_other_optimizers_keep_their_programs():
    """Two optimizers that step in turn on one model."""
    model, _ = make(True)
    first, second = AdamW(model.fc.parameters(), lr=0.05), SGD(model.head.parameters(), lr=0.1)
    for i, (x, y) in enumerate(batches(12)):
        optimizer = (first, second)[i % 2]
        model.zero_grad()
        model(x, y).backward()
        optimizer.step()
    assert programs(model) <= 4


def test_precision_and_default_dtype_are_part_of_the_key():
    class Fresh(Net):
        def forward(self, x, targets=None):
            return super().forward(x, targets) + bt.zeros(())

    model, _ = make(True, cls=Fresh)
    x, y = next(batches())
    with bt.no_grad():
        for dtype in (bt.float32, bt.float64) * 3:
            bt.set_default_dtype(dtype)
            try:
                assert model(x, y).dtype is bt.float64
            finally:
                bt.set_default_dtype(bt.float32)
    assert programs(model) == 2


def test_functional_loss_outside_of_the_model_is_part_of_the_program():
    model, optimizer = make(True)
    for x, y in batches(6):
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
    (entry,) = model._compiled.programs
    assert {"cross_entropy", "adamw"} <= {node.prim.name for node in entry.trace.nodes}
