"""Training loops as users write them. Each takes `compiled` and returns what it saw, for comparing eager with compiled.

Every loop runs at least four steps, so that a sequence is recorded, verified and then replayed.
"""

from __future__ import annotations

import numpy as np

import blutrain as bt
from blutrain import nn
from blutrain.nn import functional as F
from blutrain.optim import SGD, AdamW
from blutrain.optim.schedule import LambdaLR

LOOPS = {}
STEPS = 5


def loop(function):
    """Register a loop under its name."""
    LOOPS[function.__name__] = function
    return function


class Net(nn.Module):
    """Linear, GELU, LayerNorm, Dropout, Linear: a little of everything."""

    def __init__(self, width: int = 8, classes: int = 5, dropout: float = 0.0):
        super().__init__()
        self.fc = nn.Linear(6, width)
        self.norm = nn.LayerNorm(width)
        self.drop = nn.Dropout(dropout)
        self.head = nn.Linear(width, classes)

    def forward(self, x, targets=None):
        logits = self.head(self.drop(self.norm(F.gelu(self.fc(x)))))
        return logits if targets is None else F.cross_entropy(logits, targets)


def make(compiled: bool, dtype=None, seed: int = 0, cls=Net, optimizer=AdamW, lr: float = 0.05, **options):
    """A model and its optimizer, from a fixed seed; float64 so that both ways agree closely."""
    bt.manual_seed(seed)
    model = cls(**options)
    model.to(dtype or bt.float64)
    if compiled:
        model.compile()
    return model, optimizer(model.parameters(), lr=lr)


def batches(n: int = STEPS, rows: int = 7, seed: int = 1, last: int | None = None):
    """n batches of (x, targets); the last one of `last` rows."""
    rng = np.random.default_rng(seed)
    for i in range(n):
        r = last if last is not None and i == n - 1 else rows
        yield bt.tensor(rng.standard_normal((r, 6))), bt.tensor(rng.integers(0, 5, r))


def train(model, opt, data, before=lambda i: None) -> None:
    """The plainest loop; `before(i)` runs before step i."""
    for i, (x, y) in enumerate(data):
        before(i)
        model(x, y).backward()
        opt.step()
        opt.zero_grad()


def state(model) -> dict:
    return {k: v.numpy().copy() for k, v in model.state_dict().items()}


@loop
def loss_in_the_model(compiled):
    model, opt = make(compiled)
    losses = []
    for x, y in batches():
        opt.zero_grad()
        loss = model(x, y)
        loss.backward()
        opt.step()
        losses.append(loss.item())
    return {"losses": losses, **state(model)}


@loop
def loss_outside_the_model(compiled):
    model, opt = make(compiled)
    losses = []
    for x, y in batches():
        loss = F.cross_entropy(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        losses.append(float(loss))
    return {"losses": losses, **state(model)}


@loop
def loss_read_before_backward(compiled):
    model, opt = make(compiled)
    losses = []
    for x, y in batches():
        loss = model(x, y)
        losses.append(loss.item())
        loss.backward()
        opt.step()
        opt.zero_grad()
    return {"losses": losses, **state(model)}


@loop
def loss_read_every_third_step(compiled):
    model, opt = make(compiled)
    losses = []
    for i, (x, y) in enumerate(batches(10)):
        opt.zero_grad()
        loss = model(x, y)
        loss.backward()
        if i % 3 == 0:
            losses.append(loss.item())
        opt.step()
    return {"losses": losses, **state(model)}


@loop
def list_of_losses_survives(compiled):
    model, opt = make(compiled)
    kept = []
    for x, y in batches():
        loss = model(x, y)
        loss.backward()
        opt.step()
        opt.zero_grad()
        kept.append(loss)
    return {"losses": [k.item() for k in kept], **state(model)}


@loop
def zero_grad_to_zero(compiled):
    model, opt = make(compiled)
    for x, y in batches():
        opt.zero_grad(set_to_none=False)
        model(x, y).backward()
        opt.step()
    return state(model)


@loop
def module_zero_grad(compiled):
    model, opt = make(compiled)
    for x, y in batches():
        model(x, y).backward()
        opt.step()
        model.zero_grad()
    return state(model)


@loop
def gradient_accumulation(compiled):
    model, opt = make(compiled)
    losses = []
    for i, (x, y) in enumerate(batches(12)):
        loss = model(x, y) / 3
        loss.backward()
        losses.append(loss)
        if i % 3 == 2:
            opt.step()
            opt.zero_grad()
    return {"losses": [k.item() for k in losses], **state(model)}


@loop
def clipping_with_the_norm_logged(compiled):
    model, opt = make(compiled)
    norms = []
    for x, y in batches():
        model(x, y).backward()
        norms.append(nn.utils.clip_grad_norm_(model.parameters(), 0.1))
        opt.step()
        opt.zero_grad()
    return {"norms": [n.item() for n in norms], **state(model)}


@loop
def learning_rate_schedule(compiled):
    model, opt = make(compiled)
    schedule = LambdaLR(opt, lambda step: 1.0 / (1 + step))
    for x, y in batches(6):
        model(x, y).backward()
        opt.step()
        opt.zero_grad()
        schedule.step()
    return state(model)


@loop
def dropout(compiled):
    model, opt = make(compiled, dropout=0.5)
    losses = []
    for x, y in batches(6):
        loss = model(x, y)
        loss.backward()
        opt.step()
        opt.zero_grad()
        losses.append(loss.item())
    return {"losses": losses, **state(model)}


@loop
def evaluation_between_steps(compiled):
    model, opt = make(compiled, dropout=0.3)
    seen = []
    for x, y in batches(6):
        model.train()
        model(x, y).backward()
        opt.step()
        opt.zero_grad()
        model.eval()
        with bt.no_grad():
            seen.append(model(x).sum().item())
    return {"seen": seen, **state(model)}


@loop
def two_optimizers(compiled):
    model, _ = make(compiled)
    first = AdamW([*model.fc.parameters(), *model.norm.parameters()], lr=0.05)
    second = SGD(model.head.parameters(), lr=0.1, momentum=0.9)
    for x, y in batches(6):
        first.zero_grad()
        second.zero_grad()
        model(x, y).backward()
        first.step()
        second.step()
    return state(model)


@loop
def average_of_weights(compiled):
    model, opt = make(compiled)
    average = {k: v.clone() for k, v in model.state_dict().items()}
    for x, y in batches():
        model(x, y).backward()
        opt.step()
        opt.zero_grad()
        with bt.no_grad():
            for k, v in model.state_dict().items():
                average[k].mul_(0.9).add_(v * 0.1)
    return {k: v.numpy() for k, v in average.items()}


@loop
def logits_held_in_a_variable(compiled):
    model, opt = make(compiled)
    accuracy = []
    for x, y in batches():
        logits = model(x)
        F.cross_entropy(logits, y).backward()
        opt.step()
        opt.zero_grad()
        accuracy.append((logits.argmax(1) == y).float().mean().item())
    return {"accuracy": accuracy, **state(model)}


@loop
def model_called_twice(compiled):
    model, opt = make(compiled)
    for x, y in batches():
        loss = model(x, y) + 0.5 * model(x * 2.0, y)
        loss.backward()
        opt.step()
        opt.zero_grad()
    return state(model)


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(5, 6)
        self.head = nn.Linear(6, 5, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, x, y):
        return F.cross_entropy(self.head(self.embed(y) + x), y)


@loop
def tied_weights(compiled):
    model, opt = make(compiled, cls=Tied)
    train(model, opt, batches())
    return state(model)


@loop
def short_last_batch(compiled):
    model, opt = make(compiled)
    for _ in range(3):
        train(model, opt, batches(3, last=2))
    return state(model)


@loop
def exception_in_the_middle(compiled):
    class Fragile(Net):
        fail = False

        def forward(self, x, targets=None):
            hidden = self.fc(x)
            if self.fail:
                raise KeyError("in the middle")
            return F.cross_entropy(self.head(hidden), targets)

    model, opt = make(compiled, cls=Fragile)
    for i, (x, y) in enumerate(batches(6)):
        model.fail = i == 3
        try:
            model(x, y).backward()
        except KeyError:
            continue
        opt.step()
        opt.zero_grad()
    return state(model)


@loop
def gradient_read_and_changed(compiled):
    model, opt = make(compiled)
    seen = []
    for x, y in batches(6):
        opt.zero_grad()
        model(x, y).backward()
        seen.append(model.fc.weight.grad.abs().sum().item())
        model.fc.weight.grad.mul_(0.5)
        model.head.bias.grad = bt.zeros(5, dtype=bt.float64)
        opt.step()
    return {"seen": seen, **state(model)}


class Reverse(bt.autograd.Function):
    @staticmethod
    def forward(ctx, x, scale):
        ctx.scale = scale
        return x * 1.0

    @staticmethod
    def backward(ctx, grad):
        return grad * -ctx.scale, None


@loop
def custom_function(compiled):
    class Adversarial(Net):
        def forward(self, x, targets=None):
            hidden = F.gelu(self.fc(x))
            return F.cross_entropy(self.head(Reverse.apply(hidden, 0.7)), targets)

    model, opt = make(compiled, cls=Adversarial)
    train(model, opt, batches(6))
    return state(model)


@loop
def frozen_layers(compiled):
    model, _ = make(compiled)
    model.fc.requires_grad_(False)
    opt = AdamW([p for p in model.parameters() if p.requires_grad], lr=0.05)

    def thaw(i):
        if i == 4:
            model.fc.requires_grad_(True)
            opt.add_param_group({"params": list(model.fc.parameters())})

    train(model, opt, batches(8), thaw)
    return state(model)


@loop
def compiled_inside_eager(compiled):
    class Outer(nn.Module):
        def __init__(self):
            super().__init__()
            self.before = nn.Linear(6, 6)
            self.inner = Net()

        def forward(self, x, y):
            return F.cross_entropy(self.inner(self.before(x).tanh()), y)

    bt.manual_seed(0)
    model = Outer()
    model.to(bt.float64)
    if compiled:
        model.inner.compile()
    opt = AdamW(model.parameters(), lr=0.05)
    train(model, opt, batches(6))
    return state(model)


@loop
def side_output_in_an_attribute(compiled):
    class WithAttribute(Net):
        def forward(self, x, targets=None):
            self.hidden = F.gelu(self.fc(x))
            return F.cross_entropy(self.head(self.hidden), targets)

    model, opt = make(compiled, cls=WithAttribute)
    seen = []
    for x, y in batches(6):
        model(x, y).backward()
        opt.step()
        opt.zero_grad()
        seen.append(model.hidden.detach().sum().item())
    return {"seen": seen, **state(model)}


@loop
def calls_counted_in_an_attribute(compiled):
    model, opt = make(compiled)
    model.calls = 0

    def count(i):
        model.calls += 1

    train(model, opt, batches(6), count)
    return state(model)


@loop
def state_loaded_in_between(compiled):
    model, opt = make(compiled)
    start = {k: v.clone() for k, v in model.state_dict().items()}
    train(model, opt, batches(8), lambda i: model.load_state_dict(start) if i == 4 else None)
    return state(model)


@loop
def buffer_updated_in_forward(compiled):
    class Running(Net):
        def __init__(self):
            super().__init__()
            self.register_buffer("mean", bt.zeros(6))

        def forward(self, x, targets=None):
            if self.training:
                with bt.no_grad():
                    self.mean.mul_(0.9).add_(x.mean(0) * 0.1)
            return F.cross_entropy(self.head(F.gelu(self.fc(x - self.mean))), targets)

    model, opt = make(compiled, cls=Running)
    train(model, opt, batches(6))
    return state(model)


@loop
def gradient_penalty(compiled):
    model, opt = make(compiled)
    for x, y in batches(6):
        x.requires_grad_(True)
        loss = model(x, y)
        (gx,) = bt.autograd.grad(loss, (x,), create_graph=True)
        (loss + 0.1 * (gx * gx).sum()).backward()
        opt.step()
        opt.zero_grad()
    return state(model)


@loop
def contrastive_pairs(compiled):
    model, opt = make(compiled)
    for x, _ in batches(6):
        first, second = model(x), model(x.flip(1))
        logits, pairs = first @ second.t(), bt.arange(len(x))
        loss = F.cross_entropy(logits, pairs) + F.cross_entropy(logits.t(), pairs)
        loss.backward()
        opt.step()
        opt.zero_grad()
    return state(model)


@loop
def losses_summed_in_place(compiled):
    model, opt = make(compiled)
    total, seen = 0, []
    for x, y in batches(6):
        loss = model(x, y)
        total += loss.detach()
        loss.backward()
        opt.step()
        opt.zero_grad()
        seen.append(total)
        loss.detach().mul_(2)
        seen.append(loss)
    return {"seen": [t.item() for t in seen], **state(model)}


@loop
def weight_penalty_outside(compiled):
    model, opt = make(compiled)
    for x, y in batches(6):
        loss = model(x, y)
        for p in model.parameters():
            loss = loss + 0.01 * (p * p).sum()
        loss.backward()
        opt.step()
        opt.zero_grad()
    return state(model)


@loop
def backward_without_step(compiled):
    model, _ = make(compiled)
    totals = []
    for x, y in batches(4):
        model(x, y).backward()
        totals.append(model.head.weight.grad.sum().item())
    return {"totals": totals, "grad": model.fc.weight.grad.numpy()}


@loop
def branch_on_a_plain_attribute(compiled):
    class Branch(Net):
        wide = False

        def __init__(self):
            super().__init__()
            self.wide = False

        def forward(self, x, targets=None):
            x = x * 2.0 if self.wide else x
            return F.cross_entropy(self.head(F.gelu(self.fc(x))), targets)

    model, opt = make(compiled, cls=Branch)
    train(model, opt, batches(9), lambda i: setattr(model, "wide", i % 2 == 1))
    return state(model)


SCALE = 1.0


@loop
def global_value_read_in_forward(compiled):
    global SCALE

    class Global(Net):
        def forward(self, x, targets=None):
            return F.cross_entropy(self.head(F.gelu(self.fc(x))) * SCALE, targets)

    model, opt = make(compiled, cls=Global)

    def change(i):
        global SCALE
        SCALE = 1.0 + i

    train(model, opt, batches(4), change)
    SCALE = 1.0
    return state(model)


@loop
def value_read_in_forward(compiled):
    class Reads(Net):
        def forward(self, x, targets=None):
            hidden = F.gelu(self.fc(x))
            scale = 1.0 + abs(hidden.mean().item())
            return F.cross_entropy(self.head(hidden) / scale, targets)

    model, opt = make(compiled, cls=Reads)
    train(model, opt, batches(4))
    return state(model)


@loop
def keeps_graph_for_two_backwards(compiled):
    model, opt = make(compiled)
    for x, y in batches(5):
        loss = model(x, y)
        loss.backward(retain_graph=True)
        loss.backward()
        opt.step()
        opt.zero_grad()
    return state(model)
