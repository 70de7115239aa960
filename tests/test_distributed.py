"""Ranks that train together: collectives, the same numbers as one process, failures, resuming. MPI on CPUs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from distributed_support import FAULTS, LAUNCH, PROGRAMS, ROOT, TRAINING, environment, launch, program, start
from safetensors.numpy import load_file

pytest.importorskip("mpi4py", reason="needs blutrain[distributed]")

SMALL = "--n-embd 16 --n-layer 1 --block-size 8 --batch-size 6 --sample-tokens 0 --device cpu --log-every 1".split()
EXAMPLE = ["-m", "examples.gpt_mlp.train"]


def test_data_parallel_cases():
    status, _, err = launch(2, TRAINING, "data_parallel")
    assert status == 0, err


@pytest.fixture(scope="module")
def single(tmp_path_factory):
    """The float64 losses of a single process."""
    path = tmp_path_factory.mktemp("single") / "losses.json"
    command = [sys.executable, TRAINING, "training", str(path), "eager"]
    subprocess.run(command, env=environment(), cwd=ROOT, check=True, timeout=60)
    return json.loads(path.read_text())["eager"]


@pytest.mark.parametrize(
    "ranks, modes", [(2, "eager,compiled,compiled+sharded"), (3, "eager,eager+sharded"), (4, "eager,compiled")]
)
def test_ranks_train_as_one_process_does(ranks, modes, single, tmp_path):
    """Uneven parts, several buckets of odd sizes; every rank checks that all parameters are equal bit for bit. Sharded:
    the ranks share the optimizer's work.
    """
    status, _, err = launch(ranks, TRAINING, "training", str(tmp_path / "found.json"), modes)
    assert status == 0, err
    found = json.loads((tmp_path / "found.json").read_text())
    assert len(single) == 50 and single[-1] < single[0]
    for mode in modes.split(","):
        np.testing.assert_allclose(found[mode], single, rtol=0, atol=1e-9)
    assert found["difference"] <= 1e-6


# ---------------------------------------------------------------- the example


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_bytes(b"the quick brown fox jumps over the lazy dog. " * 200)
    return path


def flags(text, out, mode, *more):
    chosen = "--compile" if mode == "compiled" else "--no-compile"
    return [*EXAMPLE, *SMALL, chosen, "--data", str(text), "--out", str(out), *map(str, more)]


def state(out):
    return load_file(out / "checkpoint.safetensors")


def assert_same_state(a, b):
    a, b = state(a), state(b)
    assert a.keys() == b.keys()
    for name in a:
        np.testing.assert_array_equal(a[name], b[name], err_msg=name)


def kill_a_rank(process, rank, out, after):
    """SIGKILL to a rank once there is a checkpoint and `after` more seconds have gone by; the time it happened."""
    until = time.monotonic() + 60
    while not (out / "checkpoint.safetensors").exists() and time.monotonic() < until:
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)
    time.sleep(after)
    os.kill(_rank_pids(process)[rank], signal.SIGKILL)
    return time.monotonic()


def _rank_pids(process):
    """The launcher's children by rank."""
    found = {}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            parent = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
            entries = Path(f"/proc/{pid}/environ").read_text().split("\0")
        except OSError:
            continue
        if parent == process.pid:
            found[int(dict(e.partition("=")[::2] for e in entries)["RANK"])] = int(pid)
    return found


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="finds the ranks in /proc")
@pytest.mark.parametrize("mode", ["eager", "compiled"])
def test_a_killed_rank_ends_all_and_the_run_resumes_exactly(mode, tmp_path, text):
    rng = np.random.default_rng()  # a random time, a random rank
    steps = ["--steps", 4000, "--eval-every", 10, "--dropout", 0.1]
    out, whole = tmp_path / "killed", tmp_path / "whole"
    process = start(2, *flags(text, out, mode, *steps))
    rank = int(rng.integers(2))
    killed = kill_a_rank(process, rank, out, after=rng.uniform(0, 1))
    _, err = process.communicate(timeout=30)
    assert time.monotonic() - killed < 5 and process.returncode == 128 + signal.SIGKILL, err
    assert f"launch: rank {rank} was killed by SIGKILL" in err
    at = json.loads(_meta(out))["extra"]["step"]
    resume = [*EXAMPLE, "--resume", "--out", str(out), "--stop-after", str(at + 7)]
    status, _, err = launch(2, *resume, "--compile" if mode == "compiled" else "--no-compile")
    assert status == 0, err
    status, _, err = launch(2, *flags(text, whole, mode, *steps, "--stop-after", at + 7))
    assert status == 0, err
    assert_same_state(out, whole)


def _meta(out):
    from safetensors import safe_open

    with safe_open(out / "checkpoint.safetensors", framework="np") as file:
        return file.metadata()["blutrain"]


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="finds the ranks in /proc")
def test_the_launcher_restarts_from_the_last_checkpoint(tmp_path, text):
    """The optimizer's state lies in parts on the ranks."""
    steps = ["--steps", 400, "--eval-every", 10, "--stop-after", 200, "--shard-optimizer"]
    out, whole = tmp_path / "restarted", tmp_path / "whole"
    options = ("--max-restarts", "1", "--log-dir", str(tmp_path / "logs"))
    process = start(2, *flags(text, out, "eager", *steps), options=options)
    kill_a_rank(process, 0, out, after=0.0)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 0 and "starting all ranks again (1 of 1)" in err, err
    status, _, err = launch(2, *flags(text, whole, "eager", *steps))
    assert status == 0, err
    assert_same_state(out, whole)
    logs = [(tmp_path / "logs" / f"rank-{rank}.log").read_text() for rank in range(2)]
    assert "from step" in logs[0] and logs[0].count("2 ranks") == 2


def test_the_example_is_the_same_for_one_and_several_ranks(tmp_path, text):
    """The same command with and without the launcher: equal losses, one writer, the first rank's lines."""
    more = ["--steps", 6, "--grad-accum", 2, "--precision", "fp64", "--json"]
    command = [sys.executable, *flags(text, tmp_path / "one", "eager", *more, tmp_path / "one.jsonl")]
    subprocess.run(command, env=environment(), cwd=ROOT, check=True, timeout=60, capture_output=True)
    status, out, err = launch(4, *flags(text, tmp_path / "four", "eager", *more, tmp_path / "four.jsonl"))
    assert status == 0, err
    assert "[rank 0] step 6/6" in out and "4 ranks" in out and "[rank 1]" not in out
    one, four = ([json.loads(x) for x in (tmp_path / f"{n}.jsonl").read_text().splitlines()] for n in ("one", "four"))
    for a, b in zip(one, four, strict=True):
        assert a["step"] == b["step"]
        np.testing.assert_allclose([b["loss"], b["grad_norm"]], [a["loss"], a["grad_norm"]], rtol=1e-9)
    np.testing.assert_allclose(four[-1]["val_loss"], one[-1]["val_loss"], rtol=1e-9)


def test_ctrl_c_saves_once_and_ends_all(tmp_path, text):
    out = tmp_path / "out"
    process = start(2, *flags(text, out, "eager", "--steps", 100_000))
    while "loss" not in process.stdout.readline():
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    shown, err = process.communicate(timeout=40)
    assert process.returncode == 130, err
    assert "blutrain.distributed.launch --nproc-per-node 2 -m examples.gpt_mlp.train --resume" in shown
    assert (out / "checkpoint.safetensors").exists()


# ---------------------------------------------------------------- failures


def test_the_first_traceback_comes_last_and_whole():
    began = time.monotonic()
    status, out, err = program(2, "fails", "raise")
    assert status == 1 and time.monotonic() - began < 20
    assert "[rank 0] before" in out and "[rank 1] before" in out
    shown, _, last = err.partition("launch: rank 1 failed with exit status 1; its last output:\n")
    assert "[rank 0] blutrain.distributed.errors.PeerLost: distributed: rank 1 is lost" in shown
    assert "it raised KeyError: 'the reason'" in shown and "all_reduce mean float32[3]" in shown
    assert last.startswith("Traceback (most recent call last):\n") and last.endswith("KeyError: 'the reason'\n")


def test_an_exit_status_is_passed_on():
    status, _, err = program(2, "fails", "exit")
    assert status == 7 and err.endswith("its last output:\ngiving up\n")


@pytest.mark.parametrize("how", ["sleeps_first", "sleeps_before_mpi"])
def test_a_rank_that_never_starts_is_named(how):
    status, _, err = program(2, how)
    assert status == 1
    last = err.partition("its last output:\n")[2]
    assert "CollectiveTimeout: the start of MPI (collective 1): rank 1 did not come within 2 s" in last


def test_an_exit_status_is_told_from_those_that_it_causes():
    status, _, err = program(2, "fails", "leave")
    assert status == 3 and "launch: rank 1 failed with exit status 3" in err


@pytest.mark.parametrize("how, said", [("sleep", "rank 1 did not come within 2 s"), ("return", "rank 1 ended without")])
def test_a_rank_that_never_arrives_is_named(how, said):
    status, _, err = program(2, "fails", how)
    assert status == 1
    last = err.partition("its last output:\n")[2]
    assert f"CollectiveTimeout: all_reduce mean float32[3] (collective 3): {said}" in last
    assert "rank 1: last in all_reduce sum float32[1] (collective 2)" in last


@pytest.mark.parametrize("name", ["one_runs_eagerly", "two_models", "goes_on", "mixed_types", "bad_input"])
def test_errors_and_refusals(name):
    status, _, err = launch(2, FAULTS, name)
    assert status == 0, err


@pytest.mark.parametrize("how", ["leaves", "stays"])
def test_ranks_leave_a_group_and_meet_again(how):
    status, out, err = program(2, "again", how)
    assert status == 0 and out.count("left") == 2, err


def test_ranks_in_different_collectives_are_told_apart_at_once():
    began = time.monotonic()
    status, _, err = program(2, "apart")
    assert status == 1 and time.monotonic() - began < 30
    last = err.partition("its last output:\n")[2]
    assert "are in different collectives" in last and "CollectiveMismatch: " in last
    assert (
        "all_reduce mean float32[3] (collective 3)" in last or "entered all_reduce mean float32[3] in its place" in last
    )


def test_a_message_is_no_collective_and_one_that_never_comes_is_named():
    status, _, err = program(3, "messages")
    last = err.partition("its last output:\n")[2]
    assert (
        status == 1 and "CollectiveTimeout: recv from 2 float32[2] (message 1): rank 2 did not come within 3 s" in last
    )
    assert "rank 2: last in barrier" in last


@pytest.mark.skipif(sys.platform == "win32", reason="sleeps by the C library")
def test_a_rank_that_hangs_in_c_says_where():
    began = time.monotonic()
    status, _, err = program(2, "hangs")
    assert status == 1 and time.monotonic() - began < 20
    assert 'distributed_programs.py", line' in err and "in hangs" in err and "Timeout (0:00:03)!" in err


def test_a_rank_that_compiles_is_waited_for():
    status, out, err = program(2, "compiles")
    assert status == 0 and out.count("met") == 2, err


def test_ctrl_c_ends_ranks_that_wait():
    process = start(2, PROGRAMS, "waits")
    for _ in range(2):
        assert "waiting" in process.stdout.readline()
    began = time.monotonic()
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=20)
    assert process.returncode == 130 and time.monotonic() - began < 8


def test_sigterm_ends_ranks_that_wait():
    process = start(2, PROGRAMS, "waits")
    for _ in range(2):
        assert "waiting" in process.stdout.readline()
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=20)
    assert process.returncode == 128 + signal.SIGTERM


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="finds the ranks in /proc")
def test_ranks_do_not_outlive_the_launcher():
    process = start(2, PROGRAMS, "waits")
    for _ in range(2):
        assert "waiting" in process.stdout.readline()
    pids = _rank_pids(process).values()
    process.kill()
    process.communicate()
    until = time.monotonic() + 5
    while any(map(_runs, pids)) and time.monotonic() < until:
        time.sleep(0.05)
    assert len(pids) == 2 and not any(map(_runs, pids))


def _runs(pid):
    """Whether a process is there, and more than a zombie that nobody waits for."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


# ---------------------------------------------------------------- other launchers


def test_mpiexec_starts_ranks():
    mpiexec = os.path.join(os.path.dirname(sys.executable), "mpiexec")
    if not os.path.exists(mpiexec):
        pytest.skip("mpich is not installed beside Python")
    command = [mpiexec, "-n", "2", sys.executable, PROGRAMS, "started_by"]
    done = subprocess.run(command, env=environment(), cwd=ROOT, timeout=60, capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.count("sum 3.0 of 2") == 2, done.stderr


def test_the_launcher_works_inside_of_mpiexec():
    mpiexec = os.path.join(os.path.dirname(sys.executable), "mpiexec")
    if not os.path.exists(mpiexec):
        pytest.skip("mpich is not installed beside Python")
    command = [mpiexec, "-n", "1", *LAUNCH, "--nproc-per-node", "2", PROGRAMS, "started_by"]
    done = subprocess.run(command, env=environment(), cwd=ROOT, timeout=60, capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.count("sum 3.0 of 2") == 2, done.stderr


def test_a_starter_that_sets_no_local_rank():
    """As Kubernetes does; here both are on one host."""
    variables = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_port())}
    ranks = [
        subprocess.Popen(
            [sys.executable, PROGRAMS, "started_by"],
            env=environment(**variables, RANK=str(rank)),
            cwd=ROOT,
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    shown = [rank.communicate(timeout=60)[0] for rank in ranks]
    assert all(f"sum 3.0 of 2, rank {i} of 2 here" in text for i, text in enumerate(shown)), shown


@pytest.mark.skipif(sys.platform != "linux", reason="SLURM's first host is to be this one")
def test_slurm_starts_ranks():
    variables = {"SLURM_NTASKS": "2", "SLURM_STEP_NODELIST": "localhost", "SLURM_JOB_ID": str(_free_port())}
    ranks = [
        subprocess.Popen(
            [sys.executable, PROGRAMS, "started_by"],
            env=environment(**variables, SLURM_PROCID=str(rank), SLURM_LOCALID=str(rank)),
            cwd=ROOT,
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    assert all("sum 3.0 of 2" in rank.communicate(timeout=60)[0] for rank in ranks)


def test_torchrun_starts_ranks():
    pytest.importorskip("torch")
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", PROGRAMS, "started_by"]
    done = subprocess.run(command, env=environment(), cwd=ROOT, timeout=90, capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.count("sum 3.0 of 2") == 2, done.stderr


def test_a_missing_mpi_is_named(tmp_path):
    (tmp_path / "mpi4py.py").write_text("raise ImportError('there is no mpi4py here')")
    status, _, err = program(2, "started_by", PYTHONPATH=f"{tmp_path}{os.pathsep}{ROOT}")
    assert status == 1 and "distributed: MPI cannot be loaded" in err and "pip install 'blutrain[distributed]'" in err


def test_two_launchers_of_one_host_are_two_nodes(tmp_path):
    """--nnodes 2 on this host: the second launcher's rank is rank 1."""
    options = ["--nnodes", "2", "--master-addr", "127.0.0.1", "--master-port", str(_free_port())]
    nodes = [start(1, PROGRAMS, "started_by", options=(*options, "--node-rank", str(i))) for i in range(2)]
    for i, node in enumerate(nodes):
        out, err = node.communicate(timeout=60)
        assert node.returncode == 0 and f"[rank {i}] sum 3.0 of 2" in out, err


def _free_port():
    from blutrain.distributed.launch import _free_port

    return _free_port()


# ---------------------------------------------------------------- the benchmark


def test_the_benchmark_measures_and_traces(tmp_path):
    sizes = "--n-embd 32 --n-layer 2 --block-size 16 --batch-size 4 --rounds 1 --device cpu --bucket-mb 0.02".split()
    trace, lines = tmp_path / "trace.json", tmp_path / "lines"
    status, _, err = launch(2, "benchmarks/ddp.py", *sizes, "--trace", str(trace), "--json", str(lines))
    assert status == 0, err
    record = json.loads(lines.read_text())
    assert record["mode"] == "compiled" and record["ranks"] == 2 and record["buckets"] > 3
    assert record["efficiency"] > 0 and record["communication_ms"] > 0 and 0 <= record["hidden"] <= 1
    spans = [event for event in json.loads(trace.read_text())["traceEvents"] if event["ph"] == "X"]
    assert {(s["pid"], s["cat"]) for s in spans} == {(r, c) for r in (0, 1) for c in ("kernels", "waits", "buckets")}
