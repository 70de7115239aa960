"""Dispatch: devices, the recorder's slot, pending tensors, scalars, threads."""

from __future__ import annotations

import math
import threading

import numpy as np
import pytest

import blutrain as bt
from blutrain.tensor import dispatch
from blutrain.tensor.aval import Aval
from blutrain.tensor.device import cpu
from blutrain.tensor.primitive import TABLE
from blutrain.tensor.tensor import Tensor, write_epoch


class Recorder:
    """Records everything as pending tensors; materialize computes zeros."""

    def __init__(self):
        self.recording, self.seen, self.written = False, [], []

    def primitive(self, prim, operands, attrs):
        self.seen.append(prim.name)
        avals = prim.infer(*[dispatch.aval_of(x) for x in operands], **attrs)
        results = tuple(Tensor._make_pending(a, cpu, object()) for a in (avals if prim.num_results != 1 else (avals,)))
        dispatch.tape.record(prim, operands, results, attrs)
        return results if prim.num_results != 1 else results[0]

    def materialize(self, tensor):
        tensor._array, tensor._pending = np.zeros(tensor.shape, tensor.dtype.numpy), None

    def value_read(self):
        pass

    def write(self, tensor):
        self.written.append(tensor)

    def get_grad(self, tensor):
        return tensor._grad

    def set_grad(self, tensor, value):
        tensor._grad = value

    def backward(self, *args):
        return NotImplemented

    grad = function_apply = backward

    def note_function(self, *args):
        pass


@pytest.fixture
def recorder(monkeypatch):
    recorder = Recorder()
    monkeypatch.setattr(dispatch, "recorder", recorder)
    return recorder


def test_nothing_is_recorded_outside_of_a_recording(recorder):
    assert (bt.ones(2) + 1).tolist() == [2, 2] and recorder.seen == []


def test_a_pending_operand_or_a_recording_goes_to_the_recorder(recorder):
    pending = Tensor._make_pending(Aval((2,), bt.float32), cpu, object())
    assert (pending + 1)._pending is not None
    recorder.recording = True
    y = bt.ones(2) * 2
    z = (y @ y).sum()
    assert (
        z._pending is not None and recorder.seen[0] == "add" and {"full", "mul", "matmul", "sum"} <= set(recorder.seen)
    )
    recorder.recording = False
    assert z.item() == 0.0 and z._pending is None


def test_backward_runs_on_pending_tensors(recorder):
    x = bt.ones(3, 3, requires_grad=True)
    recorder.recording = True
    y = ((x @ x).tanh() * 2).mean()
    got = {}
    dispatch.tape.run_backward([y], [None], accumulate=lambda leaf, grad: got.__setitem__(id(leaf), grad))
    assert got[id(x)]._pending is not None and got[id(x)].shape == (3, 3) and x._grad is None
    recorder.recording = False


def test_writes_are_announced(recorder):
    x = bt.zeros(2)
    x[0] = 1
    x.add_(1)
    x.data = bt.ones(2)
    assert [w is x for w in recorder.written] == [True] * 3


def test_assign(recorder):
    from blutrain.tensor.ops.effect import assign

    x = bt.zeros(2)
    assert (
        assign(x, bt.ones(2)) is x
        and x.tolist() == [1, 1]
        and x._version.value == write_epoch.value
        and recorder.written == [x]
    )
    assert assign(x, x[:]).tolist() == [1, 1]
    with pytest.raises(ValueError, match="assign: the value does not fit"):
        assign(x, bt.ones(3))
    recorder.recording = True
    assign(x, bt.ones(2))
    assert recorder.seen[-1] == "assign"
    recorder.recording = False


def test_devices_must_agree():
    elsewhere = Tensor._make_pending(Aval((2,), bt.float32), bt.device("cuda"), None)
    elsewhere._array = np.ones(2)
    with pytest.raises(
        ValueError, match=r"add: tensors are on different devices\n  got: f32\[2\] on cpu, f32\[2\] on cuda:0"
    ):
        bt.ones(2) + elsewhere


def test_bad_operands_name_the_operation():
    with pytest.raises(TypeError, match="not a tensor"):
        bt.add(bt.ones(2), np.ones(2))
    with pytest.raises(TypeError, match="not a tensor"):
        bt.add(bt.ones(2), None)


def test_infer_is_remembered():
    add = TABLE["add"]
    x = bt.ones(7, 13)
    x + x
    before = add.plan.cache_info().hits
    x + x
    assert add.plan.cache_info().hits == before + 1


def test_operations_in_several_threads():
    """Each thread has its own quiet NumPy context and its own grad mode."""
    faults = []

    def work():
        try:
            for _ in range(200):
                x = bt.zeros(4, requires_grad=True)
                y = (1 / (x + 1)).log().sum()
                y.backward()
                assert x.grad.tolist() == [-1] * 4
                assert (1 / bt.zeros(2)).isinf().all()
        except BaseException as error:
            faults.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not faults


def test_an_operation_inside_of_another():
    """As where a signal handler saves a checkpoint in the middle of an operation."""

    class Interrupts(np.ndarray):
        def __array_finalize__(self, other):
            seen.append((bt.ones(2) / bt.zeros(2)).tolist())

    seen: list = []
    x = bt.ones(3)
    x._array = np.ones(3, np.float32).view(Interrupts)
    assert (x / 0.0).tolist() == [math.inf] * 3 and [math.inf] * 2 in seen


def test_numpys_error_state_is_left_alone():
    before = np.geterr()
    bt.zeros(2).log()
    assert np.geterr() == before
    with pytest.raises(FloatingPointError), np.errstate(divide="raise"):
        bt.zeros(2).log()
        np.log(np.zeros(2))
