"""nova.jit: a function whose calls are recorded and replayed gives what it gives eagerly, whatever it reads."""

from __future__ import annotations

import functools
import gc
import inspect
import queue
import random
import time
import types
import warnings
import weakref
from dataclasses import dataclass

import numpy as np
import pytest
from loops import Net, batches, make
from replay_support import InterpretedProgram, same

import blutrain as bt
from blutrain import nn, nova
from blutrain.autograd import grad
from blutrain.errors import CompileRefused
from blutrain.nn import functional as F
from blutrain.nova.refuse import REASONS
from blutrain.optim import SGD, AdamW
from blutrain.tensor.device import Device

SCALE, TABLE, MASK = 1.0, {"scale": 1.0}, None
ones = functools.partial(bt.ones, dtype=bt.float64)
CASES: dict[str, tuple] = {}


def case(*reasons: str, programs: int | None = None):
    """Register a scenario: function(jit) -> what was seen. reasons: why it may be refused; programs: of the last function."""

    def enter(function):
        CASES[function.__name__] = function, reasons, programs
        return function

    return enter


def eager(function=None, **options):
    """In the place of nova.jit."""
    return function if function is not None else lambda f: f


def train(loss_of, model, optimizer, data, before=lambda i: None) -> list:
    seen = []
    for i, (x, y) in enumerate(data):
        before(i)
        loss = loss_of(x, y)
        loss.backward()
        seen += [p.grad.norm().item() for p in list(model.parameters())[: i % 2]]
        optimizer.step()
        optimizer.zero_grad()
        seen.append(loss.item())
    return seen + [p.detach().numpy().copy() for p in model.parameters()]


# -------------------------------------------------------------------- training


@case(programs=2)
def a_loss_that_captures_a_model(jit):
    model, optimizer = make(False)
    loss_of = jit(lambda x, y: F.cross_entropy(model(x), y))
    return loss_of, train(loss_of, model, optimizer, batches())


@case(programs=2)
def dropout_masks(jit):
    model, optimizer = make(False, dropout=0.5)
    loss_of = jit(lambda x, y: (model(x, y), F.dropout(x, 0.5).sum())[0], state=[model])
    return loss_of, train(loss_of, model, optimizer, batches(6))


@case()
def another_batch_size(jit):
    model, optimizer = make(False)
    loss_of = jit(lambda x, y: model(x, y), state=model)
    return loss_of, train(loss_of, model, optimizer, [*batches(4, last=3), *batches(4, rows=3)])


@case(programs=2)
def parameters_without_a_module(jit):
    weight, bias = nn.Parameter(ones(6, 5)), nn.Parameter(bt.zeros(5, dtype=bt.float64))
    optimizer = AdamW([weight, bias], lr=0.05)

    @jit(state={"weight": weight, "bias": [bias]})
    def loss_of(x, y):
        return F.cross_entropy(x @ weight + bias, y)

    holder = types.SimpleNamespace(parameters=lambda: [weight, bias])
    return loss_of, train(loss_of, holder, optimizer, batches(6))


@case()
def leaves_that_are_not_declared(jit):
    weight = ones(6, 5, requires_grad=True)
    optimizer = SGD([weight], lr=0.05)
    loss_of = jit(lambda x, y: F.cross_entropy(x @ weight, y))
    return loss_of, train(loss_of, types.SimpleNamespace(parameters=lambda: [weight]), optimizer, batches(6))


@case()
def modes_of_a_captured_model(jit):
    model, optimizer = make(False, dropout=0.5)
    hidden = [nn.Dropout(0.5)]
    loss_of = jit(lambda x, y: model(hidden[0](x), y))

    def before(i):
        model.train(i % 4 < 2)
        hidden[0].train(i % 3 > 0)

    return loss_of, train(loss_of, model, optimizer, batches(12), before)


@case(programs=1)
def no_grad_calls(jit):
    model, _ = make(False)
    score = jit(lambda x, y: (model(x).argmax(1) == y).mean(dtype=bt.float64))
    with bt.no_grad():
        return score, [score(x, y).item() for x, y in batches()]


@case()
def accumulation_and_two_functions(jit):
    model, optimizer = make(False)
    loss_of, penalty = jit(lambda x, y: model(x, y) / 2), jit(lambda: model.fc.weight.square().sum())
    seen = []
    for _ in range(5):
        for x, y in batches(2):
            (loss_of(x, y) + 0.1 * penalty()).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        optimizer.zero_grad()
        seen.append(model.fc.weight.sum().item())
    return penalty, seen


@case()
def gradients_inside(jit):
    """A whole step without an optimizer: autograd.grad and updates in place in the function."""
    weight = ones(6, 5, requires_grad=True)

    @jit(state=[weight])
    def step(x, y):
        loss = F.cross_entropy(x @ weight, y)
        (slope,) = grad(loss, [weight])
        with bt.no_grad():
            weight.sub_(0.1 * slope)
        return loss.detach()

    return step, [step(x, y).item() for x, y in batches(6)] + [weight.detach().numpy()]


@case(programs=1)
def a_whole_step_inside(jit):
    """Its Python runs each time, but the model in it is compiled, and with it what follows."""
    model, optimizer = make(False, dropout=0.5)

    @jit(strict=True)
    def step(x, y):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y) + SCALE
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss

    return step, [step(x, y).item() for x, y in batches(6)] + [p.detach().numpy().copy() for p in model.parameters()]


@case()
def a_step_of_anything(jit):
    """The model, its optimizer and arrays as arguments."""
    step, seen = jit(strict=True)(step_of), []
    for seed in range(2):
        model, optimizer = make(False, seed=seed, dropout=0.5)
        seen += [step(model, optimizer, x.numpy(), y.numpy(), 1.0 + i) for i, (x, y) in enumerate(batches(5))]
        seen += [p.detach().numpy().copy() for p in model.parameters()]
    return step, seen


def step_of(model, optimizer, x, y, factor):
    loss = model(bt.tensor(x), bt.tensor(y)) * factor
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


@case("value_read", programs=1)
def a_value_read_inside(jit):
    """What a refused function calls is compiled all the same."""
    model, optimizer = make(False)
    seen = []

    @jit
    def loss_of(x, y):
        loss = model(x, y)
        seen.append(loss.item())
        return loss

    return loss_of, train(loss_of, model, optimizer, batches(6)) + seen


@case()
def two_models_against_each_other(jit):
    (one, first), (two, second) = make(False), make(False, seed=1)
    steps = 0

    @jit
    def step(x, y):
        nonlocal steps
        steps += 1
        made = one(x)
        loss = F.cross_entropy(two(x), made.detach().argmax(1))
        loss.backward()
        second.step()
        second.zero_grad()
        back = F.cross_entropy(made, y) - two(x).square().mean()
        back.backward()
        first.step()
        first.zero_grad()
        two.zero_grad()
        return loss.item(), back.item()

    return step, [value for x, y in batches(6) for value in step(x, y)] + [steps]


@case("training")
def a_whole_step_without_modules(jit):
    weight = nn.Parameter(ones(6, 5))
    optimizer = SGD([weight], lr=0.1)

    @jit(state=[weight])
    def step(x, y):
        loss = F.cross_entropy(x @ weight, y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return step, [step(x, y).item() for x, y in batches(6)]


# -------------------------------------------------------------------- what it reads and writes


@case()
def values_of_globals(jit):
    global SCALE
    seen = []
    f = jit(lambda x: helper(x) * SCALE * TABLE["scale"])
    for i in range(12):
        SCALE, TABLE["scale"] = 1.0 + i // 4, 1.0 + i // 6
        seen.append(f(ones(3)).sum().item())
    SCALE = TABLE["scale"] = 1.0
    return f, seen


def helper(x):
    return x + SCALE


@case()
def values_of_closures(jit):
    power, act, config = 1, bt.exp, types.SimpleNamespace(inner=Config())
    f = jit(lambda x: act(x) ** power * config.inner.scale + config.inner.offset())
    seen = []
    for i in range(16):
        power, act = 1 + i // 8, (bt.exp, bt.tanh)[i // 4 % 2]
        config.inner.scale = 1.0 + i // 12
        if i == 10:
            config.inner = Config(5.0)
        seen.append(f(ones(3)).sum().item())
    return f, seen


class Config:
    base = 1.0

    def __init__(self, scale: float = 1.0):
        self.scale = scale

    def offset(self):
        return self.base


@case()
def an_attribute_of_a_class(jit):
    f, seen = jit(lambda x: x * Config.base + Config().offset()), []
    for i in range(8):
        Config.base = 1.0 + i // 4
        seen.append(f(ones(3)).sum().item())
    Config.base = 1.0
    return f, seen


@case()
def defaults_and_partial(jit):
    def scaled(x, weight, factor=[1.0]):  # noqa: B006 (it is what changes)
        return x * weight * factor[0]

    f, seen = jit(functools.partial(scaled, weight=ones(3) * 2.0)), []
    for i in range(8):
        scaled.__defaults__[0][0] = 1.0 + i // 4
        f_x = f(ones(3))
        seen.append(f_x.sum().item())
    return f, seen


@case(programs=1)
def tensors_of_globals(jit):
    """A tensor that is bound anew at each step is an operand: one program."""
    global MASK
    f, seen = jit(lambda x: x * MASK), []
    with bt.no_grad():
        for i in range(6):
            MASK = ones(3) * i
            seen.append(f(ones(3)).sum().item())
    MASK = None
    return f, seen


@case()
def tensors_that_are_changed_or_replaced(jit):
    held, pair = ones(3), [ones(3), ones(3)]
    f, seen = jit(lambda x: x * held + pair[0] * pair[1]), []
    for i in range(12):
        held.add_(1.0)
        pair[1] = pair[1] * 2.0
        if i == 6:
            held = bt.ones(3, dtype=bt.float32)
        if i == 9:
            pair[0].requires_grad_()
        out = f(ones(3))
        seen += [out.sum().item(), out.requires_grad, out.dtype]
    return f, seen


@case()
def a_captured_tensor_with_history(jit):
    leaf = ones(3, requires_grad=True)
    seen = []
    hidden = leaf
    f = jit(lambda x: (x * hidden).sum())
    for i in range(6):
        hidden = leaf * float(i)
        out = f(ones(3))
        out.backward()
        seen.append(leaf.grad.sum().item())
    return f, seen


@case(programs=1)
def state_that_is_updated(jit):
    mean, seen = bt.zeros(3, dtype=bt.float64), []

    @jit(state=[mean])
    def normalized(x):
        mean.mul_(0.9)
        mean.add_(x.mean(0) * 0.1)
        return x - mean

    with bt.no_grad():
        for i in range(6):
            seen += [normalized(ones(2, 3) * i).sum().item(), mean.sum().item()]
    return normalized, seen


@case()
def a_captured_tensor_that_is_updated(jit):
    count, seen = bt.zeros((), dtype=bt.float64), []
    f = jit(lambda x: x * count.add_(1.0))
    for _ in range(6):
        seen += [f(ones(3)).sum().item(), count.item()]
    return f, seen


@case("effects")
def a_list_that_grows(jit):
    sizes = []

    def f(x):
        sizes.append(x.shape[0])
        return x * 2.0

    f = jit(f)
    total = [f(ones(3 + i // 4)).sum().item() for i in range(12)]
    return f, total + sizes


@case()
def a_switch_that_is_thrown(jit):
    on = False

    def f(x):
        nonlocal on
        on = not on
        return x * (2.0 if on else 3.0)

    f = jit(f)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", nova.NovaWarning)
        return f, [f(ones(3)).sum().item() for _ in range(12)]


@case()
def a_cache_that_is_filled(jit):
    """The call that fills it runs its body, and the ones after are replayed."""
    cache = {}

    def f(x):
        if x.shape not in cache:
            cache[x.shape] = float(len(cache))
        return x * cache[x.shape]

    f = jit(f)
    return f, [f(ones(3 + i // 5)).sum().item() for i in range(15)] + [len(cache)]


@case("python_random")
def random_numbers_of_python(jit):
    random.seed(0)
    f = jit(lambda x: x * random.random())
    return f, [f(ones(3)).sum().item() for _ in range(5)]


class Slotted:
    __slots__ = ("factor", "weight")

    def __init__(self):
        self.factor, self.weight = 1.0, ones(3)


def weighted(x, held):
    return x * held.weight * held.factor


@case()
def an_object_with_slots(jit):
    held, seen = Slotted(), []
    f, g = jit(lambda x: x * held.factor * held.weight), jit(lambda x: weighted(x, held))
    for i in range(12):
        held.factor = 1.0 + i // 4
        held.weight = held.weight + float(i // 8)
        seen += [f(ones(3)).sum().item(), g(ones(3)).sum().item()]
    return g, seen


class Lenient:
    """Answers to every name, or fails in its own way."""

    def __getattr__(self, name):
        return {"factor": SCALE}[name]


@case()
def an_object_that_makes_its_attributes_up(jit):
    global SCALE
    held, seen = Lenient(), []
    f = jit(lambda x: x * (held.other if SCALE > 5.0 else held.factor))
    for i in range(8):
        SCALE = 1.0 + i // 4
        seen.append(f(ones(3)).sum().item())
    SCALE = 1.0
    return f, seen


@case()
def decorators_around_and_inside(jit):
    class Holder:
        @staticmethod
        @jit
        def inside(x):
            return x * SCALE

        outside = jit(staticmethod(lambda x: x * SCALE))

    global SCALE
    without, within, seen = bt.no_grad()(jit(lambda x: x * SCALE)), jit(bt.no_grad()(lambda x: x * SCALE)), []
    for i in range(8):
        SCALE, x = 1.0 + i // 4, ones(3, requires_grad=True)
        results = [Holder.inside(x), Holder().inside(x), Holder.outside(x), without(x), within(x)]
        seen += [value for y in results for value in (y.sum().item(), y.requires_grad)]
    SCALE = 1.0
    return within, seen


@case()
def what_is_returned_as_it_came(jit):
    weight, held = nn.Parameter(ones(3)), ones(3)
    f, seen = jit(lambda x: (x, weight, held, x * 2.0, held * weight)), []
    for i in range(8):
        if i % 3 == 0:
            held = ones(3) * i
        x = ones(3)
        a, b, c, d, e = f(x)
        seen += [a is x, b is weight, c is held, d.sum().item(), e.sum().item(), e.requires_grad]
    return f, seen


# -------------------------------------------------------------------- arguments and results


@dataclass
class Pair:
    x: bt.Tensor
    y: list


@case()
def nested_arguments_and_results(jit):
    def f(batch, *, scale=2.0, flags=()):
        total = batch["pair"].x * scale + sum(batch["pair"].y)
        return {"total": total, "rest": (len(flags), [total.sum()], batch["pair"])}

    f, seen = jit(f), []
    for i in range(8):
        pair = Pair(ones(3) * i, [ones(3)] * (1 + i // 4))
        out = f({"pair": pair}, scale=1.0 + i % 2, flags=(1,) * (i % 2))
        seen += [out["total"].sum().item(), out["rest"][0], out["rest"][1][0].item(), out["rest"][2].x is pair.x]
    return f, seen


@case()
def models_as_arguments(jit):
    (one, optimizer), (two, _) = make(False, dropout=0.5), make(False, seed=1)
    f, seen = jit(lambda model, x, y: model(x, y)), []
    for i, (x, y) in enumerate(batches(9)):
        one.train(i % 3 > 0)
        loss = f((one, two)[i % 2], x, y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        two.zero_grad()
        seen.append(loss.item())
    return f, seen


class Model(Net):
    factor = 1.0

    def loss(self, x, y):
        return F.cross_entropy(self(x), y) * self.factor


@case()
def a_method_of_a_model(jit):
    model, optimizer = make(False, cls=Model)
    loss_of = jit(model.loss)

    def before(i):
        model.factor = 1.0 + i // 4

    return loss_of, train(loss_of, model, optimizer, batches(8), before)


@case()
def a_decorated_method(jit):
    cls = type("Decorated", (Model,), {"loss": jit(Model.loss)})
    model, optimizer = make(False, cls=cls)
    return None, train(model.loss, model, optimizer, batches())


class Trainer:
    def __init__(self):
        self.model, self.optimizer = make(False, cls=Model)
        self.factor, self.steps, self.losses = 1.0, 0, []

    def loss(self, x, y):
        return self.model.loss(x, y) * self.factor + self.penalty

    @property
    def penalty(self):
        return self.model.fc.weight.square().sum() * TABLE["scale"]


@case()
def a_method_of_an_object(jit):
    """What the object holds besides what the method reads is no guard."""
    trainer = Trainer()
    loss_of = jit(trainer.loss)

    def before(i):
        trainer.steps += 1
        trainer.losses.append(i)
        trainer.factor, TABLE["scale"] = 1.0 + i // 4, 1.0 + i // 8

    seen = train(loss_of, trainer.model, trainer.optimizer, batches(12), before)
    TABLE["scale"] = 1.0
    return loss_of, seen


@case()
def functions_and_modules_in_each_other(jit):
    model, optimizer = make(False)
    inner = jit(lambda x: model(x) * SCALE)
    outer = jit(lambda x, y: F.cross_entropy(inner(x), y))

    def before(i):
        global SCALE
        SCALE = 1.0 + i // 4

    seen = train(outer, model, optimizer, batches(8), before)
    before(0)
    return outer, seen


@case()
def arguments_that_are_changed(jit):
    """A fresh dictionary at each call is filled at each call; a tensor that is written shows it."""

    def f(x, found):
        found["calls"] = found.get("calls", 0) + 1
        return x * 2.0

    f, g, seen = jit(f), jit(lambda x: x.mul_(2.0)), []
    for _ in range(6):
        found, x = {}, ones(3)
        seen += [f(x, found).sum().item(), found["calls"]]
        y = g(x)
        seen += [y is x, x.sum().item()]
    return f, seen


@case("iterator")
def a_generator(jit):
    def f(x):
        for i in range(3):
            yield x * float(i)

    f = jit(f)
    return f, [y.sum().item() for _ in range(4) for y in f(ones(3))]


# -------------------------------------------------------------------- the table


def run(name: str, jit) -> tuple:
    bt.manual_seed(0)
    function, values = CASES[name][0](jit)
    nova.flush()
    return function, values


@pytest.mark.parametrize("executor", ["interpreter", "program"])
@pytest.mark.parametrize("name", sorted(CASES))
def test_as_eagerly(name, executor, monkeypatch):
    """Values and gradients agree to 1e-9, and only what is expected is refused."""
    if executor == "interpreter":
        monkeypatch.setattr("blutrain.nova.execute.compile_trace", InterpretedProgram)
    _, reasons, programs = CASES[name]
    nova.forget_warnings()
    _, expected = run(name, eager)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        function, got = run(name, nova.jit)
    said = [str(w.message) for w in caught if issubclass(w.category, nova.NovaWarning)]
    assert len(said) == len(reasons) and all(REASONS[r] in s for r, s in zip(reasons, said)), said
    assert len(got) == len(expected)
    for number, (g, e) in enumerate(zip(got, expected)):
        same(g, e, f"number {number} of what was seen")
    if programs is not None:
        assert len(function._compiled.programs) == programs


# -------------------------------------------------------------------- options, errors, what is left behind


def test_decorator_name_and_explain():
    @nova.jit(state=[], strict=True, first_step="compiled")
    def doubled(x):
        """Twice x."""
        return x * 2.0

    assert doubled.__name__ == "doubled" and doubled.__doc__ == "Twice x." and callable(doubled.__wrapped__)
    assert doubled(ones(3)).sum().item() == 6.0
    assert "launch" in nova.explain(doubled)
    assert doubled._compiled.name.endswith("doubled")


@pytest.mark.parametrize(
    ("function", "options", "error", "text"),
    [
        (nn.Linear(2, 2), {}, TypeError, "a module has compile"),
        (3, {}, TypeError, "got: int"),
        (abs, {"state": 3}, TypeError, "expected: modules, parameters"),
        (abs, {"state": SGD([nn.Parameter(ones(2))], lr=0.1)}, TypeError, "after the call"),
        (abs, {"state": [ones(2, requires_grad=True) * 2.0]}, ValueError, "detach"),
        (abs, {"precision": "fp8"}, ValueError, "unknown precision"),
        (abs, {"speed": "high"}, TypeError, "speed"),
    ],
)
def test_what_is_no_function_or_no_state(function, options, error, text):
    with pytest.raises(error, match=text):
        nova.jit(function, **options)


def test_a_builtin_function(interpreted):
    f = nova.jit(abs)
    assert [f(-ones(3)).sum().item() for _ in range(4)] == [3.0] * 4


def test_what_was_not_declared_is_refused_with_its_line(interpreted):
    """A tensor that an object of the library has: guards do not look into it."""
    holder = SGD([nn.Parameter(ones(1))], lr=0.1)
    hidden = vars(holder)
    hidden["weight"] = ones(3)

    def f(x):
        return x * vars(holder)["weight"]  # here

    with pytest.raises(CompileRefused, match=rf"(?s)`state`.*f64\[3\].*test_jit.py:{line_of(f, '# here')}"):
        nova.jit(f, strict=True)(ones(3))
    jitted, seen = nova.jit(f), []
    with pytest.warns(nova.NovaWarning, match="state"):
        for i in range(6):
            hidden["weight"] = ones(3) * i
            seen.append(jitted(ones(3)).sum().item())
    assert seen == [3.0 * i for i in range(6)]
    declared = nova.jit(f, state=[hidden["weight"]], strict=True)
    assert [declared(ones(3)).sum().item() for _ in range(4)] == [15.0] * 4


def test_a_module_that_was_not_declared_is_refused(interpreted):
    holder = SGD([nn.Parameter(ones(1))], lr=0.1)
    vars(holder)["drop"] = nn.Dropout(0.5)
    with pytest.raises(CompileRefused, match="Dropout"):
        nova.jit(lambda x: vars(holder)["drop"](x), strict=True)(ones(3))
    inside = nova.jit(lambda x: nn.GELU()(x), strict=True)
    assert len({inside(ones(3)).sum().item() for _ in range(4)}) == 1


def line_of(function, mark: str) -> int:
    lines, first = inspect.getsourcelines(function)
    return first + next(i for i, line in enumerate(lines) if mark in line)


def test_errors_name_the_users_line_and_leave_nothing_behind(interpreted):
    weight = nn.Parameter(ones(3, 2))

    def f(x, fails=False):
        hidden = x @ weight  # the product
        if fails:
            raise KeyError("mine")
        return hidden

    jitted = nova.jit(f)
    for _ in range(3):
        assert jitted(ones(2, 3)).sum().item() == 12.0
        with pytest.raises(ValueError, match=rf"(?s)matmul: .*test_jit.py:{line_of(f, '# the product')}"):
            jitted(ones(2, 4))
        with pytest.raises(KeyError, match="mine"):
            jitted(ones(2, 3), fails=True)
        assert nova.recorder().log is None


def test_a_value_read_inside_is_refused(interpreted):
    f = nova.jit(lambda x: x * x.sum().item(), strict=True)
    with pytest.raises(CompileRefused, match="a value is read"):
        f(ones(3))


def test_gradient_slots_inside_are_refused(interpreted):
    weight = nn.Parameter(ones(3))
    optimizer = SGD([weight], lr=0.1)
    weight.grad = ones(3)
    bodies = [
        lambda x: x * weight.grad,
        lambda x: (optimizer.step(), x)[1],
        lambda x: (optimizer.zero_grad(), x)[1],
        lambda x: (weight.__setattr__("grad", None), x)[1],
        lambda x: ((x * weight).sum().backward(), x)[1],
    ]
    for body in bodies:
        with pytest.raises(CompileRefused, match="do that after the call"):
            nova.jit(body, state=[weight], strict=True)(ones(3))
    assert weight.grad.sum().item() == 3.0 and weight.sum().item() == 3.0


def test_the_variable_that_keeps_changing_is_named(interpreted):
    factor = 0
    f = nova.jit(lambda x: x * factor, max_programs=1)
    with bt.no_grad(), pytest.warns(nova.NovaWarning, match="more kinds.*the variable 'factor' of a surrounding"):
        for i in range(12):
            factor = i // 2
            assert f(ones(3)).sum().item() == 3.0 * factor


def test_keep_grads_and_bf16():
    model, optimizer = make(False, dtype=bt.float32)
    loss_of = nova.jit(lambda x, y: model(x.float(), y), keep_grads=True, precision="bf16", strict=True)
    for x, y in batches(4):
        loss_of(x, y).backward()
        optimizer.step()
        assert model.fc.weight.grad.norm().item() > 0
        optimizer.zero_grad()
    assert {p.options.precision for p in [loss_of._compiled]} == {"bf16"}


def test_a_replayed_call_does_not_run_the_function(interpreted):
    """Whatever it reads: constants of all kinds, helpers, a model, its first argument."""
    model, calls = make(False)[0], queue.SimpleQueue()
    config, table = types.SimpleNamespace(a=1.0), {"b": [2.0]}

    def f(x):
        return helper(model(x) * config.a * table["b"][0] * SCALE)

    def counted(x):
        calls.put(None)  # nothing that a guard can see
        return f(x)

    g = nova.jit(counted, strict=True)
    for _ in range(6):
        g(bt.ones(2, 6, dtype=bt.float64)).sum().backward()
    nova.flush()
    assert calls.qsize() == 2


def test_dropout_masks_are_those_of_eager_mode_bit_for_bit():
    def masks(jit):
        bt.manual_seed(3)
        f = jit(lambda x: F.dropout(x, 0.5))
        return [f(ones(50)).numpy().copy() for _ in range(5)]

    for got, expected in zip(masks(nova.jit), masks(eager)):
        assert np.array_equal(got, expected)


def test_the_function_and_what_it_holds_can_go(interpreted):
    trainer = Trainer()
    trainer.compiled = nova.jit(trainer.loss)
    for x, y in batches(4):
        trainer.compiled(x, y).backward()
        trainer.optimizer.step()
        trainer.optimizer.zero_grad()
    nova.flush()
    gone = weakref.ref(trainer), weakref.ref(trainer.compiled)
    children = len(nova.recorder().root.children)
    del trainer, x, y
    gc.collect()
    assert [ref() for ref in gone] == [None, None]
    assert len(nova.recorder().root.children) < children


def test_devices_inside_are_those_of_the_call(interpreted):
    """Mixing them is the eager error; work on another device alone is refused, not done on that of the call."""
    cuda = Device("cuda")
    other = bt.Tensor._wrap(ones(3).numpy(), cuda, ones(3)._aval)
    with pytest.raises(CompileRefused, match="several devices: cuda:0 and cpu"):
        nova.jit(lambda x: x * other, strict=True)(ones(3))
    hidden = {"other": other}.get
    with pytest.raises(ValueError, match=r"(?s)mul: tensors are on different devices.*test_jit.py"):
        nova.jit(lambda x: x * hidden("other"), strict=True)(ones(3))
    holder = types.SimpleNamespace(tensor=other)
    with pytest.raises(CompileRefused, match="several devices: mul on cuda:0 in a call on cpu"):
        nova.jit(lambda x: (x, holder.tensor * 2.0), strict=True)(ones(3))


def test_aliases_of_state_are_read_as_the_state(interpreted):
    """A detached parameter is another object each time; what stands in its place later is seen."""
    weight = nn.Parameter(ones(3))
    f, seen = nova.jit(lambda x: x * weight.detach(), strict=True), []
    for i in range(8):
        if i % 3 == 2:
            weight.data = ones(3) * i
        seen.append(f(ones(3, requires_grad=True)).sum().item())
    assert seen == [3.0, 3.0, 6.0, 6.0, 6.0, 15.0, 15.0, 15.0]


def test_large_values_are_guarded_by_their_size(interpreted):
    """Comparing a whole data set at every call would cost more than the call."""
    table, scale = list(range(100_000)), np.ones(1 << 20)
    f = nova.jit(lambda x: x * float(table[2] * scale.ndim * len(table)), strict=True)
    for _ in range(3):
        assert f(ones(3)).sum().item() == 6e5
    start = time.process_time()
    for _ in range(20):
        f(ones(3)).sum().item()
    assert time.process_time() - start < 0.4
    table.append(3)
    assert f(ones(3)).sum().item() == 6e5 + 6


def test_values_that_contain_themselves(interpreted):
    """Or each other: guards look into them as far as is sensible."""
    tree = {"factor": 2.0, "children": []}
    tree["children"].append({"parent": tree})
    node = types.SimpleNamespace(factor=1.0, all=[])
    node.all += [node, types.SimpleNamespace(parent=node, many=[types.SimpleNamespace(node=node) for _ in range(900)])]
    f, seen = nova.jit(lambda x: times(x, node, tree), strict=True), []
    for i in range(6):
        node.factor, tree["factor"] = 1.0 + i // 3, 2.0 + i // 4
        seen.append(f(ones(3)).sum().item())
    assert seen == [6.0, 6.0, 6.0, 12.0, 18.0, 18.0]


def times(x, node, tree):
    return x * node.factor * tree["factor"]


def test_an_optimizer_beside_the_model_is_no_guard(interpreted):
    """Its step counts change at every step; what is read of it is seen."""
    model, optimizer = make(False)
    trainer = types.SimpleNamespace(model=model, optimizer=optimizer)

    def f(x, y):
        return penalized(trainer, x, y) * optimizer.param_groups[0]["lr"]

    loss_of, expected = nova.jit(f, strict=True, max_programs=2), []
    for i, (x, y) in enumerate(batches(8)):
        optimizer.param_groups[0]["lr"] = 0.05 * (1 + i // 4)
        expected.append(f(x, y).item())
        loss = loss_of(x, y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        assert loss.item() == pytest.approx(expected[-1], rel=1e-12)
    assert len(loss_of._compiled.programs) == 2


def penalized(trainer, x, y):
    return trainer.model(x, y)


def test_a_model_that_its_own_code_refers_to_can_go(interpreted):
    """Through globals of forward, classes and variables: what is remembered of steps keeps nothing of it alive."""

    def trained():
        known = {}

        class Known(Net):
            def forward(self, x, y):
                return super().forward(x, y) * float(len(known))

        model, optimizer = make(True, cls=Known)
        known["model"], known["step"] = model, nova.jit(lambda x, y: known["model"](x, y))
        train(model, model, optimizer, batches(4))
        train(known["step"], model, optimizer, batches(4))
        return weakref.ref(model), weakref.ref(known["step"])

    gone = trained()
    nova.flush()
    gc.collect()
    assert [ref() for ref in gone] == [None, None]
