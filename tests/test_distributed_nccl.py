"""The calls that reach NCCL, in a world that keeps their order instead of a GPU; test_distributed_gpu.py has the real one."""

from __future__ import annotations

import contextlib
import threading
from types import SimpleNamespace

import numpy as np
import pytest

from blutrain.distributed import nccl
from blutrain.distributed.environment import World
from blutrain.distributed.group import ProcessGroup
from blutrain.distributed.local import Alone
from blutrain.distributed.watch import Entry


class Stream:
    ptr = 7

    def __init__(self, log, name, is_capturing=False):
        self.log, self.name, self.captures = log, name, is_capturing

    def wait_event(self, event):
        self.log.append(f"{self.name} waits for {event.what}")

    def synchronize(self):
        self.log.append(f"{self.name} synchronized")

    def is_capturing(self):
        return self.captures


class Event:
    done = False

    def __init__(self, disable_timing):
        self.what = ""

    def record(self, stream):
        self.what = stream.name


class Communicator:
    def __init__(self, log, prefix=""):
        self.log, self.prefix = log, prefix

    def __getattr__(self, name):
        return lambda *arguments: self.log.append((self.prefix + name, *arguments))


@pytest.fixture
def world(monkeypatch):
    """(backend, log): what streams and the communicator were told, from here on."""
    monkeypatch.delenv("NCCL_MAX_CTAS", raising=False)
    return start(monkeypatch)


def start(monkeypatch, size=2):
    log: list = []
    current = Stream(log, "current")
    communicator = Communicator(log)
    cuda = SimpleNamespace(
        Stream=lambda **_: Stream(log, "side"),
        Event=Event,
        get_current_stream=lambda index: current,
    )
    cupy = SimpleNamespace(cuda=cuda, zeros=lambda n, dtype: Array(np.zeros(n, dtype)))
    binding = SimpleNamespace(
        NcclCommunicator=lambda size, key, rank: log.append((size, key, rank)) or communicator,
        get_unique_id=lambda: (1, -2),
    )
    monkeypatch.setattr(nccl, "_import", lambda: (cupy, binding))
    split = Communicator(log, "few:")
    monkeypatch.setattr(nccl, "SplitCommunicator", lambda *arguments: log.append(("split", arguments[2:])) or split)
    device = SimpleNamespace(index=1, activate=contextlib.nullcontext)
    kept: dict = {}
    store = SimpleNamespace(set=kept.__setitem__, get=lambda names, seconds: {"values": {n: kept[n] for n in names}})
    backend = nccl.NcclBackend(World(0, size, is_launched=True), store, device)
    return SimpleNamespace(backend=backend, log=log, current=current, communicator=communicator, split=split)


class Array:
    """An array of the device: its address is its first element."""

    def __init__(self, array):
        self.array, self.size, self.nbytes, self.dtype, self.shape = array, array.size, array.nbytes, array.dtype, (1,)
        self.data = SimpleNamespace(ptr=1000)

    def __getitem__(self, index):
        return Array(self.array[index])


def test_ranks_meet_by_the_id_of_the_first_and_connect_at_once(world):
    assert world.log[0] == (2, (1, -2), 0)
    assert world.log[1] == ("split", (0, nccl.FEW_BLOCKS))
    names = [entry[0] for entry in world.log if isinstance(entry, tuple)][2:]
    ways = ["allReduce", "reduceScatter", "allGather"] * 3
    assert names == [*ways, *(f"few:{name}" for name in ways)] and world.log[-1] == "side synchronized"


def test_a_collective_stands_between_the_current_stream_and_itself(world):
    world.log.clear()
    x = Array(np.zeros(10, np.float32))
    request = world.backend.all_reduce(x, x, "mean")
    request.join()
    average, float32 = 4, 7
    called = ("allReduce", 1000, 1000, 10, float32, average, Stream.ptr)
    assert world.log == ["side waits for current", called, "current waits for side"]
    world.backend.all_reduce(x, x, "mean", world.backend.few_blocks)
    assert world.log[-1] == ("few:allReduce", *called[1:])
    with pytest.raises(TypeError, match="does not reduce this dtype"):
        world.backend.all_reduce(Array(np.zeros(1, np.int16)), x, "sum")


def test_the_user_says_how_many_blocks_nccl_takes_and_one_rank_leaves_none(monkeypatch):
    monkeypatch.setenv("NCCL_MAX_CTAS", "6")
    world = start(monkeypatch)
    assert world.backend.few_blocks == 6 and not any(entry[0] == "split" for entry in world.log)
    x = Array(np.zeros(10, np.float32))
    world.backend.all_reduce(x, x, "sum", 6)
    assert world.log[-1][0] == "allReduce"
    monkeypatch.delenv("NCCL_MAX_CTAS")
    alone = start(monkeypatch, size=1)
    assert alone.backend.few_blocks == 0 and not any(entry[0] == "split" for entry in alone.log)


def test_a_communicator_in_a_graph_is_left_to_the_end_of_the_process(world):
    world.backend.close()
    assert world.log[-2:] == [("few:destroy",), ("destroy",)]
    world.current.captures = True
    world.backend.all_reduce(Array(np.zeros(1, np.float32)), Array(np.zeros(1, np.float32)), "sum")
    world.log.clear()
    world.backend.close()
    assert world.log == ["side synchronized"]


def test_faults_are_told_and_aborting_does_not_wait(world):
    assert world.backend.fault() == ""
    world.communicator.check_async_error = lambda: {}[6]
    assert world.backend.fault() == "KeyError: 6"
    aborted, too = threading.Event(), threading.Event()
    world.communicator.abort, world.split.abort = aborted.set, too.set
    world.backend.abort()
    assert aborted.wait(5) and too.wait(5) and world.backend.fault() == ""


def test_what_is_captured_is_entered_at_each_launch(world):
    group = ProcessGroup(World(), 1.0)
    group._local, group._nccl, group.watch = None, world.backend, Watch()
    where = world.backend.device = SimpleNamespace(is_cpu=False, index=1, activate=contextlib.nullcontext)
    x = Array(np.zeros(4, np.float32))
    group.start(where, "eager", "all_reduce", x, x, "sum")
    world.current.captures = True
    started = [group.start(where, name, "all_reduce", x, x, "sum") for name in ("bucket 0", "bucket 1")]
    assert group.watch.entered == ["eager"] and group.watch.followed == ["eager"]
    world.current.captures = False
    for _ in range(2):
        group.follow_replay(started)
    assert group.watch.entered == ["eager", *["bucket 0", "bucket 1"] * 2]
    assert group.watch.followed == ["eager", "bucket 1", "bucket 1"]


class Watch(Alone):
    def __init__(self):
        self.entered, self.followed = [], []

    def enter(self, name):
        self.entered.append(name)
        return Entry(len(self.entered), name)

    def follow(self, entry):
        self.followed.append(entry.name)
