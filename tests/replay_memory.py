"""Scenarios about memory: views, aliases, writes in place, buffers, memory of others."""

from __future__ import annotations

import threading

import numpy as np
from loops import Net, state
from replay_support import collector

import blutrain as bt
from blutrain import nn, nova
from blutrain.nn import functional as F

MEMORY, scenario = collector()


@scenario()
def output_changed_in_place(run):
    for x, y in run.batches():
        logits = run.model(x)
        logits /= 2.0
        logits.mul_(1.5)
        run.step(F.cross_entropy(logits, y))


@scenario()
def views_of_outputs_written(run):
    for x, _ in run.batches():
        with bt.no_grad():
            logits = run.model(x)
            row, turned = logits[0], logits.t()
        row.zero_()
        run.see(logits.sum(), *turned.stride())
        turned[0] = 5.0
        run.see(logits.sum(), row.sum())


@scenario()
def pending_view_written(run):
    for x, _ in run.batches():
        logits = run.model(x).detach()
        row = logits[0]
        row.fill_(3.0)
        run.see(logits.sum())
        logits.mul_(2.0)
        run.see(row.sum())


class ViewWritten(Net):
    def forward(self, x, y):
        hidden = F.gelu(self.fc(x)).detach()
        hidden[0].zero_()
        return F.cross_entropy(self.head(hidden), y)


@scenario("shared_write", cls=ViewWritten)
def view_written_in_forward(run):
    for x, y in run.batches():
        run.step(run.model(x, y))


class PartsWritten(Net):
    def forward(self, x, y):
        hidden = F.gelu(self.fc(x))
        hidden[0] *= 2.0
        row = hidden[1]
        row *= self.norm.weight
        return F.cross_entropy(self.head(hidden), y) + row.mean()


@scenario("shared_write", cls=PartsWritten)
def parts_written_with_history_in_forward(run):
    for x, y in run.batches():
        run.step(run.model(x, y))


@scenario()
def parts_of_outputs_written_with_history(run):
    for x, y in run.batches():
        logits = run.model(x)
        logits[0] += 1.0
        row = logits[1]
        row *= x[1, :5]
        run.step(F.cross_entropy(logits, y) + row.mean())


@scenario()
def views_of_outputs_follow_what_is_written(run):
    for x, y in run.batches():
        logits = run.model(x)
        rows = logits.reshape(7, 1, 5)
        first = logits[0]
        logits *= 2.0
        rows[1] += first * 0.5
        run.step(F.cross_entropy(rows.reshape(7, 5), y) + first.square().mean())


@scenario()
def outputs_multiplied_in_place(run):
    weight = bt.ones(5, dtype=bt.float64, requires_grad=True)
    for x, y in run.batches():
        logits = run.model(x)
        logits *= weight
        run.step(F.cross_entropy(logits, y))
        run.see(weight.grad.sum())


@scenario()
def outputs_written_in_many_ways(run):
    weight = bt.ones(5, dtype=bt.float64, requires_grad=True)
    for x, y in run.batches():
        logits = run.model(x)
        logits *= weight
        logits[0] += 1.0
        logits[:, 1] = logits[:, 0] * 2.0
        logits.clamp_(-3, 3)
        run.step(F.cross_entropy(logits, y))
        run.see(weight.grad.sum())


@scenario()
def outputs_copied_into_other_memory(run):
    average = bt.zeros(7, 5, dtype=bt.float64)
    for x, y in run.batches():
        logits, copy = run.model(x), bt.zeros(7, 5, dtype=bt.float64)
        copy.copy_(logits)
        copy[1] = 0.5
        run.step(F.cross_entropy(copy, y))
        average.lerp_(copy.detach(), 0.5)
        run.see(average.sum())


class ReturnsView(Net):
    def forward(self, x):
        return self.fc(x), self.fc.weight[0], self.fc.weight


@scenario(cls=ReturnsView)
def view_of_a_parameter_returned(run):
    for x, _ in run.batches():
        out, row, whole = run.model(x)
        run.step(out.square().mean() + row.sum())
        run.see(row.detach().sum(), whole is run.model.fc.weight)
        with bt.no_grad():
            run.model.fc.weight.mul_(0.9)
        run.see(row.detach().sum())


class Twice(Net):
    def forward(self, x):
        out = self.fc(x)
        return out, out, out.detach()


@scenario(cls=Twice)
def aliases_returned(run):
    for x, _ in run.batches():
        first, second, alias = run.model(x)
        run.see(first is second, alias.requires_grad)
        alias.zero_()
        run.see(first.detach().sum(), alias.sum())


@scenario()
def results_do_not_overwrite_each_other(run):
    kept = []
    for x, y in run.batches():
        loss = run.model(x, y)
        run.step(loss)
        kept.append((loss, run.model(x)))
    run.see(*(loss for loss, _ in kept), *(logits.detach().sum() for _, logits in kept))


class Weighted(Net):
    def forward(self, x, weight, y):
        return F.cross_entropy(F.linear(F.gelu(self.fc(x)), weight), y)


@scenario(cls=Weighted)
def parameter_as_an_argument(run):
    for x, y in run.batches():
        run.step(run.model(x, run.model.head.weight, y))


@scenario(cls=Weighted)
def view_of_a_parameter_as_an_argument(run):
    for x, y in run.batches():
        run.step(run.model(x, run.model.head.weight[:], y))


@scenario(cls=Weighted)
def alias_of_a_parameter_as_an_argument(run):
    for x, y in run.batches():
        run.step(run.model(x, run.model.head.weight.detach(), y) + run.model.head.weight.sum())


class Running(Net):
    def __init__(self):
        super().__init__()
        self.register_buffer("mean", bt.zeros(6))

    def forward(self, x, y):
        with bt.no_grad():
            self.mean.mul_(0.9).add_(x.mean(0) * 0.1)
        return F.cross_entropy(self.head(F.gelu(self.fc(x - self.mean))), y)


@scenario(cls=Running)
def buffer_read_before_the_step(run):
    for x, y in run.batches():
        loss = run.model(x, y)
        run.see(run.model.mean.sum())
        run.step(loss)
        loss = run.model(x, y)
        run.see((run.model.mean * 2.0).sum())
        run.step(loss)
        run.model(x, y)
        run.see(run.model.state_dict()["mean"].numpy().sum())


class WritesArgument(Net):
    def forward(self, x, y):
        with bt.no_grad():
            x.mul_(0.5)
        return F.cross_entropy(self.head(F.gelu(self.fc(x))), y)


@scenario(cls=WritesArgument)
def argument_written_in_forward(run):
    for x, y in run.batches():
        run.step(run.model(x, y))
        run.see(x.sum())


@scenario(cls=WritesArgument)
def memory_of_numpy_written_in_forward(run):
    for x, y in run.batches():
        array = x.numpy().copy()
        run.step(run.model(bt.from_numpy(array), y))
        run.see(array.sum())


class WritesSharedArgument(Net):
    def forward(self, x, part, y):
        with bt.no_grad():
            x.mul_(0.5)
        return F.cross_entropy(self.head(F.gelu(self.fc(x + part))), y)


@scenario("shared_write", cls=WritesSharedArgument)
def argument_written_that_another_is_a_view_of(run):
    for x, y in run.batches():
        run.step(run.model(x, x[:1], y))


@scenario()
def numpy_buffer_used_again(run):
    """The batch is what it was at the call, though its memory gets the next one before the step runs."""
    array = np.empty((7, 6))
    for x, y in run.batches():
        np.copyto(array, x.numpy())
        loss = run.model(bt.from_numpy(array), y)
        if run.compiled:
            array.fill(np.nan)
        run.step(loss)
        run.see(loss)


@scenario()
def input_tensor_used_again(run):
    buffer = bt.empty(7, 6, dtype=bt.float64)
    for x, y in run.batches():
        buffer.copy_(x)
        loss = run.model(buffer, y)
        buffer.copy_(x * 0.0)
        run.see(loss)


@scenario()
def input_not_contiguous(run):
    for i, (x, y) in enumerate(run.batches(8)):
        x = bt.tensor(np.asfortranarray(x.numpy())) if i % 2 else x.t().contiguous().t()
        run.step(run.model(x, y))


@scenario()
def weights_swapped_for_an_evaluation(run):
    for x, y in run.batches():
        run.step(run.model(x, y))
        saved = {k: v.clone() for k, v in run.model.state_dict().items()}
        with bt.no_grad():
            for p in run.model.parameters():
                p.mul_(0.5)
            run.see(run.model(x, y))
        run.model.load_state_dict(saved)


@scenario()
def data_replaced(run):
    for x, y in run.batches():
        run.step(run.model(x, y))
        run.model.fc.weight.data = run.model.fc.weight.data * 0.9


@scenario()
def read_in_every_way(run):
    for x, y in run.batches():
        with bt.no_grad():
            logits = run.model(x)
            run.see(str(logits)[:20])
            run.see(float(run.model(x).sum()), bool(run.model(x).sum() > 0), int(run.model(x).argmax(1)[0]))
            run.see(np.from_dlpack(run.model(x)).sum(), np.asarray(run.model(x)).sum(), run.model(x).tolist()[0][0])
            run.see(f"{run.model(x).sum():.6f}", len(run.model(x)), run.model(x).data_ptr() != 0)
        loss = run.model(x, y)
        if loss > 0:
            run.step(loss)


@scenario()
def average_of_weights(run):
    average = {k: v.clone() for k, v in run.model.state_dict().items()}
    for x, y in run.batches():
        run.step(run.model(x, y))
        with bt.no_grad():
            for k, v in run.model.state_dict().items():
                average[k].mul_(0.9).add_(v * 0.1)
    run.see(*(v.sum() for v in average.values()))


@scenario()
def outputs_never_read(run):
    outs = []
    for x, _ in run.batches(80):
        outs.append(run.model(x))
    run.see(*(out.detach().sum() for out in outs[::9]))


@scenario()
def another_thread_prepares_data(run):
    stop, right = threading.Event(), []

    def prepare():
        while not stop.is_set():
            right.append((bt.tensor(np.arange(6.0)) * 2.0 + 1.0).sum().item() == 36.0)

    thread = threading.Thread(target=prepare)
    thread.start()
    try:
        for x, y in run.batches(20):
            run.step(run.model(x, y))
    finally:
        stop.set()
        thread.join()
    run.see(all(right))


@scenario()
def other_dtype(run):
    for i, (x, y) in enumerate(run.batches(8)):
        if i == 4:
            run.model.to(bt.float32)
        run.see(str(run.model(x.to(run.model.fc.weight.dtype), y).dtype))


@scenario()
def flushed_by_hand(run):
    for i, (x, y) in enumerate(run.batches(8)):
        loss = run.model(x, y)
        if run.compiled and i % 3 == 0:
            nova.flush()
        run.step(loss)
        run.see(*[v.sum() for v in state(run.model).values()])


INPUT_CHANGES = {
    "parameter": lambda p: p.mul_(0.5),
    "alias of the parameter": lambda p: p.detach().mul_(0.5),
    "data of the parameter": lambda p: p.data.mul_(0.5),
    "part of the parameter": lambda p: p[:5].mul_(0.5),
}
INPUT_VIEWS = {
    "view": lambda p: p[:6],
    "view of the alias": lambda p: p.detach()[:6],
    "view of the data": lambda p: p.data[:6],
}


def _enter(change: str, view: str) -> None:
    @scenario(cls=Weighted)
    def function(run):
        weight, head = nn.Parameter(run.model.fc.weight.detach().clone()), run.model.head.weight
        for _, y in run.batches(6):
            loss = run.model(INPUT_VIEWS[view](weight), head, y[:6])
            with bt.no_grad():
                INPUT_CHANGES[change](weight)
            run.see(loss)

    MEMORY[f"{view}_is_an_input_and_then_{change}_changes".replace(" ", "_")] = MEMORY.pop("function")


for _change in INPUT_CHANGES:
    for _view in INPUT_VIEWS:
        _enter(_change, _view)


# -------------------------------------------------------------------- memory that a call writes, seen by other tensors


class Adding(Net):
    """Adds to its argument and to a buffer, in place."""

    def __init__(self):
        super().__init__()
        self.register_buffer("table", bt.zeros(4, 6, dtype=bt.float64))

    def forward(self, x):
        self.table.add_(1.0)
        return self.fc(x.add_(1.0)).sum()


@scenario(cls=Adding)
def view_written_and_its_base_read(run):
    base = bt.zeros(4, 6, dtype=bt.float64)
    for i in range(8):
        out = run.model(base[i % 4 : i % 4 + 1])
        run.see(base.sum(), base.numpy().sum(), out)


@scenario(cls=Adding)
def base_written_and_its_views_read(run):
    base = bt.zeros(4, 6, dtype=bt.float64)
    row, turned, alias, table = base[1], base.t(), base.detach(), run.model.table[2]
    for i in range(12):
        run.step(run.model(base))
        run.model(base)
        reads = (lambda: row.sum(), lambda: row.tolist()[0], lambda: (turned * 2.0).sum(), lambda: alias[0, 0])
        run.see(reads[i % 4](), table.sum(), table[0].item())


@scenario(cls=Adding)
def base_written_and_a_view_an_operand(run):
    """Of the next call, of an operation on a pending tensor, and of one that writes."""
    base, other = bt.zeros(4, 6, dtype=bt.float64), bt.zeros(1, 6, dtype=bt.float64)
    row = base[1:2]
    for i in range(9):
        out = run.model(base)
        if i % 3 == 0:
            out = run.model(row)
        elif i % 3 == 1:
            out = out * row.sum()
        else:
            other.add_(row)
        run.see(out, base.sum(), other.sum(), row[0, 0])


class Peeking(Adding):
    def forward(self, x):
        self.table.add_(1.0)
        return self.fc(x).sum() * self.row.sum()


@scenario("shared_write", cls=Peeking)
def view_read_in_the_call_that_writes_its_base(run):
    run.model.row = run.model.table[1]
    for x, _ in run.batches():
        run.see(run.model(x))
