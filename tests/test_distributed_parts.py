"""Parts of blutrain.distributed that need no second rank."""

from __future__ import annotations

import socket
import threading
import time
from collections import deque
from types import SimpleNamespace

import numpy as np
import pytest

import blutrain as bt
from blutrain import distributed, nn
from blutrain.distributed import current, launch
from blutrain.distributed.buckets import plan_buckets
from blutrain.distributed.environment import World, read_world
from blutrain.distributed.launch_output import Output
from blutrain.distributed.store import Client, Server, StoreError

ADDRESS = {"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500"}


@pytest.mark.parametrize(
    "variables, expected",
    [
        ({}, World()),
        (
            {"RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", **ADDRESS},
            World(3, 8, 1, 2, "10.0.0.1", 29500, job="/0", is_launched=True),
        ),
        (
            {"RANK": "1", "WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "a", "TORCHELASTIC_RESTART_COUNT": "2", **ADDRESS},
            World(1, 2, -1, 2, "10.0.0.1", 29501, job="a/2", restart=2, is_launched=True),
        ),
        (
            {"PMI_RANK": "1", "PMI_SIZE": "4", "PMI_FD": "5", "MPI_LOCALRANKID": "0", "MPI_LOCALNRANKS": "2"},
            World(1, 4, 0, 2, speaks_pmi=True, job="/0", is_launched=True),
        ),
        (
            {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_SIZE": "1", **ADDRESS},
            World(1, 2, -1, 1, "10.0.0.1", 29500, job="/0", is_launched=True),
        ),
    ],
)
def test_worlds(variables, expected):
    assert read_world(variables) == expected


def test_nobody_says_which_rank_of_its_host_this_is():
    """Kubernetes: group.py asks for the names of the hosts."""
    world = read_world({"RANK": "3", "WORLD_SIZE": "4", **ADDRESS})
    assert (world.rank, world.local_rank) == (3, -1)
    assert read_world({"RANK": "0", "WORLD_SIZE": "1", **ADDRESS}).local_rank == 0


def test_slurm_names_the_first_host_and_one_port():
    variables = {
        "SLURM_NTASKS": "4",
        "SLURM_LOCALID": "0",
        "SLURM_STEP_NODELIST": "gpu[03-05,9],b",
        "SLURM_JOB_ID": "7",
    }
    worlds = [read_world({**variables, "SLURM_PROCID": str(rank)}) for rank in (0, 3)]
    assert worlds[0].address == "gpu03" and worlds[0].port == worlds[1].port and worlds[0].job == worlds[1].job
    assert [w.rank for w in worlds] == [0, 3]
    world = read_world({**variables, "SLURM_PROCID": "1", "MASTER_PORT": "1234", "MASTER_ADDR": "login"})
    assert (world.address, world.port) == ("login", 1234)
    with pytest.raises(ValueError, match="MASTER_PORT is no such number"):
        read_world({**variables, "SLURM_PROCID": "1", "MASTER_PORT": "any"})


@pytest.mark.parametrize(
    "variables, said",
    [
        ({"RANK": "2", "WORLD_SIZE": "2", **ADDRESS}, "RANK=2 is no rank of WORLD_SIZE=2"),
        ({"RANK": "x", "WORLD_SIZE": "2", **ADDRESS}, "RANK is no such number"),
        ({"RANK": "1", "WORLD_SIZE": "2", "MASTER_PORT": "1"}, "MASTER_ADDR is not set"),
        ({"WORLD_SIZE": "2"}, "WORLD_SIZE is set, RANK is not"),
        ({"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "a", "MASTER_PORT": "99999"}, "MASTER_PORT is no port"),
    ],
)
def test_environments_that_contradict_themselves(variables, said):
    with pytest.raises(ValueError, match=said):
        read_world(variables)


def test_more_ranks_than_gpus(monkeypatch):
    runtime, used = SimpleNamespace(getDeviceCount=lambda: 2), []
    cuda = SimpleNamespace(runtime=runtime, Device=lambda i: SimpleNamespace(use=lambda: used.append(i)))
    device = SimpleNamespace(xp=SimpleNamespace(cuda=cuda))
    monkeypatch.setattr(current, "Device", lambda kind, index=None: device if index is None else (kind, index))
    for name, value in {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "4", **ADDRESS}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert distributed.local_device() == ("cuda", 1) and used == [1]
    monkeypatch.setenv("LOCAL_RANK", "2")
    with pytest.raises(RuntimeError, match="rank 5 has no GPU of its own"):
        distributed.local_device()
    runtime.getDeviceCount = lambda: 1
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2")  # SLURM gave each rank its own
    assert distributed.local_device() == ("cuda", 0)
    monkeypatch.setenv("LAUNCH_ID", "x")
    with pytest.raises(RuntimeError, match="rank 5 has no GPU of its own"):
        distributed.local_device()


# ---------------------------------------------------------------- the store


def _hello(rank=1, size=2, job="j", process="p", watched=False):
    return {"rank": rank, "size": size, "job": job, "process": process, "watched": watched}


def test_a_port_in_use_is_named():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(StoreError, match="rank 0 cannot listen at 127"):
            Server("127.0.0.1", taken.getsockname()[1], 2, "j")


@pytest.fixture
def server():
    server = Server("127.0.0.1", 0, 2, "j")
    yield server
    server.close()


def test_ranks_that_contradict_each_other(server):
    first = Client("127.0.0.1", server.port, _hello())
    with pytest.raises(StoreError, match="two processes say that they are rank 1"):
        Client("127.0.0.1", server.port, _hello(process="q"))
    with pytest.raises(StoreError, match="rank 0 is of another job"):
        Client("127.0.0.1", server.port, _hello(rank=0, size=3))
    first.close()


def test_a_stranger_at_the_address():
    with socket.socket() as stranger:
        stranger.bind(("127.0.0.1", 0))
        stranger.listen()

        def answer():
            connection, _ = stranger.accept()
            connection.sendall(b"HTTP/1.1 400 Bad Request\n")
            connection.close()

        threading.Thread(target=answer, daemon=True).start()
        with pytest.raises(StoreError, match="is no store of blutrain"):
            Client("127.0.0.1", stranger.getsockname()[1], _hello())


def test_a_stranger_that_says_nothing(monkeypatch):
    monkeypatch.setattr("blutrain.distributed.store.HELLO_SECONDS", 0.2)
    with socket.socket() as stranger:
        stranger.bind(("127.0.0.1", 0))
        stranger.listen()
        with pytest.raises(StoreError, match="is no store of blutrain"):
            Client("127.0.0.1", stranger.getsockname()[1], _hello())


def test_a_rank_of_the_next_start_waits_for_the_last_one_to_end():
    """Two hosts restart: one may be faster."""
    last = Server("127.0.0.1", 0, 2, "j/0.3")
    with pytest.raises(StoreError, match="an earlier start still listens"):
        Client("127.0.0.1", last.port, _hello(job="j/1.0"), seconds=0.3)
    with pytest.raises(StoreError, match="rank 1 is of another job"):
        Client("127.0.0.1", last.port, _hello(job="k/1.0"))
    found = []
    waiting = threading.Thread(target=lambda: found.append(Client("127.0.0.1", last.port, _hello(job="j/1.0"))))
    waiting.start()
    time.sleep(0.3)
    last.close()
    following = Server("127.0.0.1", last.port, 2, "j/1.0")
    waiting.join(10)
    assert found[0].token == following.token
    found[0].close()
    following.close()


def test_nobody_at_the_address():
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        with pytest.raises(StoreError, match="nobody answers"):
            Client("127.0.0.1", unused.getsockname()[1], _hello(), seconds=0.1)


def test_a_lost_connection_is_a_lost_rank(server):
    mine = Client("127.0.0.1", server.port, _hello(rank=0))
    mine.set("a", [1, 2])
    assert mine.get(["a"], 1.0) == {"values": {"a": [1, 2]}, "lost": {}}
    Client("127.0.0.1", server.port, _hello(watched=True)).close()
    assert mine.get(["never"], 10.0)["lost"] == {"1": "its process is gone"}
    mine.close()


# ---------------------------------------------------------------- the launcher


@pytest.mark.parametrize(
    "arguments, said",
    [
        (["--nproc-per-node", "0", "x.py"], "--nproc-per-node must be at least 1"),
        (["no_such_script.py"], "there is no such script"),
        (["--master-port", "65536", __file__], "--master-port is no port"),
        (["--log-dir", "/proc/nothing", __file__], "--log-dir cannot be used"),
        (["--nnodes", "2", __file__], "several hosts need --master-addr and --master-port"),
        (["--nnodes", "2", "--node-rank", "2", "--master-addr", "a", "--master-port", "1", __file__], "is no host"),
    ],
)
def test_options_that_make_no_sense(arguments, said, capsys):
    assert launch.main(arguments) == 2
    assert said in capsys.readouterr().err


def test_the_launcher_refuses_a_port_in_use(capsys):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        assert launch.main(["--master-port", str(taken.getsockname()[1]), __file__]) == 2
    assert "cannot be used" in capsys.readouterr().err


def test_environments_of_a_second_host(monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    options = launch.parse(
        ["--nproc-per-node", "2", "--nnodes", "2", "--node-rank", "1", "--master-addr", "a", "--master-port", "9"]
        + [__file__, "--flag"]
    )
    first, second = launch.environments(options, 9, "job", 0)
    assert (first["RANK"], first["LOCAL_RANK"], second["RANK"], second["LOCAL_RANK"]) == ("2", "0", "3", "1")
    assert first["WORLD_SIZE"] == "4" and first["MASTER_ADDR"] == "a" and int(first["OMP_NUM_THREADS"]) >= 1
    assert launch.command(options)[-2:] == [__file__, "--flag"]


def test_last_words_begin_with_the_traceback(capsys):
    output = Output(None, append=False)
    output._kept[0] = lines = deque()
    lines.extend(["noise", "Traceback (most recent call last):", "  ...", "ValueError: x"])
    assert output.last_words(0) == "Traceback (most recent call last):\n  ...\nValueError: x"
    assert not output.is_secondary(0)
    lines.append("blutrain.distributed.errors.PeerLost: distributed: rank 1 is lost")
    assert output.is_secondary(0)


# ---------------------------------------------------------------- buckets, data


def test_buckets_follow_backward_and_are_aligned():
    named = [(f"p{i}", bt.zeros(n)) for i, n in enumerate([10, 100, 7, 300, 5])] + [("d", bt.zeros(3).double())]
    buckets = plan_buckets(named, cap_bytes=1024)
    assert [[m.name for m in b.members] for b in buckets] == [["d"], ["p4"], ["p3"], ["p2", "p1", "p0"]]
    assert [(b.number, b.size) for b in buckets] == [(0, 32), (1, 64), (2, 320), (3, 64 + 128 + 64)]
    assert [m.offset for m in buckets[3].members] == [0, 64, 192]
    assert all(m.offset * b.dtype.itemsize % 256 == 0 for b in buckets for m in b.members)


def test_shards_take_everything_once():
    for count in (0, 1, 7, 12):
        for size in (1, 2, 3, 5):
            parts = [list(range(count))[distributed.shard(count, rank, size)] for rank in range(size)]
            assert [i for part in parts for i in part] == list(range(count))
            assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_a_sampler_takes_every_sample_once_and_resumes():
    sampler = distributed.Sampler(23, batch_size=5, seed=3)
    epoch = list(sampler)
    assert sorted(np.concatenate(epoch)) == list(range(23)) and [len(b) for b in epoch] == [5, 5, 5, 5, 3]
    following = list(sampler)
    assert not np.array_equal(np.concatenate(epoch), np.concatenate(following))
    resumed = distributed.Sampler(23, batch_size=5, seed=3)
    for _, _ in zip(range(2), resumed):
        state = resumed.state_dict()
    again = distributed.Sampler(23, batch_size=5, seed=3)
    again.load_state_dict(state)
    assert all(np.array_equal(a, b) for a, b in zip(list(again), epoch[2:], strict=True))
    with pytest.raises(ValueError, match="the state is of other data"):
        distributed.Sampler(24, 5, 3).load_state_dict(state)
    with pytest.raises(ValueError, match="expected: batch_size 4"):
        distributed.Sampler(23, 4, 3).load_state_dict(state)


# ---------------------------------------------------------------- a world of one


def test_a_world_of_one_needs_no_mpi():
    alone = distributed.init_process_group()
    try:
        x = bt.ones(3).requires_grad_()
        (distributed.all_reduce(x, "mean") * 2).sum().backward()
        assert x.grad.tolist() == [2.0] * 3
        assert distributed.all_gather(bt.tensor(4)).tolist() == [4]
        assert distributed.broadcast(bt.ones(2), 0).tolist() == [1, 1]
        assert distributed.reduce_scatter(bt.ones(2)).tolist() == [1, 1]
        distributed.barrier()
        with pytest.raises(ValueError, match="there is no other rank"):
            distributed.send(bt.ones(1), 0)
        model = nn.Linear(2, 2)
        ddp = distributed.DataParallel(model)
        ddp.backward(ddp(bt.ones(1, 2)).sum(), weight=3)
        assert model.weight.grad.tolist() == [[1.0, 1.0]] * 2 and alone.size == 1
        ddp.check_equal()
    finally:
        distributed.destroy_process_group()
    with pytest.raises(RuntimeError, match="there is no process group"):
        distributed.all_reduce(bt.ones(1))
