"""The compile workers: errors with a reproducer, crashes, time limits, and no process left behind."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest
from runtime_support import ROOT, build, run_script, scale_kernel

from blutrain import config
from blutrain.errors import NovaError
from blutrain.nova.cpu import compile_workers, lower, objects, orc
from blutrain.nova.cpu.objects import CompileJob, compile_object, compile_objects
from blutrain.nova.plan import BufferRef, Launch, ProgramPlan
from blutrain.nova.target import host_cpu


@pytest.fixture(scope="module")
def _shared():
    workers = compile_workers.CompileWorkers(2)
    yield workers
    workers.close()


@pytest.fixture(autouse=True)
def _surroundings(monkeypatch, tmp_path, _shared):
    """No cache on disk, reproducers in a folder of the test, and the workers of this file."""
    monkeypatch.setattr(objects, "shared_workers", lambda threads: _shared)
    with config.scope(NOVA_CACHE="0", NOVA_DUMP=str(tmp_path / "dump")):
        yield _shared


_numbers = iter(range(1000))


def fresh_text() -> str:
    """A kernel that no cache has seen."""
    return scale_kernel(1e-3 * (time.time() % 1000) + next(_numbers)).text


def is_running(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_objects_come_in_order_and_equal_texts_once():
    texts = [fresh_text() for _ in range(5)]
    texts.append(texts[0])
    before = objects.counts.compiled
    data = compile_objects([CompileJob(text) for text in texts], host_cpu())
    assert objects.counts.compiled == before + 5
    assert data[0] == data[5] and [compile_object(text, host_cpu()) for text in texts] == data


@pytest.mark.parametrize(
    "edit, stage, message",
    [
        (("arith.mulf", "arith.mulq"), "parse", "mulq"),
        (("%value, %factor", "%value, %count"), "parse", "'f32' vs 'i64'"),
        (("return", '"test.unknown"() : () -> ()\nreturn'), "parse", "unregistered dialect"),
        (("return", "%b = memref.alloc() : memref<4xf32>\nreturn"), "parse", "must not allocate"),
        (
            ("func.func @scale", "func.func private @p(tensor<4xf32>)\nfunc.func @scale"),
            "translate",
            "passes left: func.func",
        ),
    ],
)
def test_a_text_that_does_not_compile(edit, stage, message):
    kernel = scale_kernel(2.0)
    kernel = type(kernel)(kernel.text.replace(*edit), kernel.phases, 0, 0, 0, 1.0)
    launch = Launch(0, (BufferRef("arena", 0),) * 2, None, ("train.py:42",), "bias + gelu")
    with pytest.raises(NovaError, match=re.escape(message)) as caught:
        build(ProgramPlan((kernel,), (launch,), 1024))
    error = caught.value
    assert (error.stage, error.op, error.location) == (stage, "bias + gelu", "train.py:42")
    assert Path(error.dump).read_text() == kernel.text
    replay = subprocess.run(["sh", str(Path(error.dump).with_suffix(".sh"))], capture_output=True, text=True)
    assert replay.returncode != 0 and message in replay.stderr


def test_the_reproducer_of_a_good_text_makes_its_object():
    text = fresh_text()
    path = Path(objects.write_reproducer(text, host_cpu()))
    subprocess.run(["sh", str(path.with_suffix(".sh"))], check=True)
    assert path.with_suffix(".o").read_bytes() == compile_object(text, host_cpu())


def test_what_follows_from_an_object_is_compiled_beside_the_others(_surroundings):
    texts, kept = [fresh_text() for _ in range(4)], []

    def request(text):
        return lower.__file__, (text, *host_cpu().codegen_key(), str(orc.library_path()))

    def then(number, data):
        further = [None, texts[2], "no module", texts[2]][number]
        return None if further is None else (request(further), kept.append)

    requests = [request(text) for text in (texts[0], texts[1], texts[0])]
    also = [(request(texts[3]), kept.append), (request("nor this"), kept.append)]
    results = _surroundings.compile(requests, then, also)
    assert results == [compile_object(text, host_cpu()) for text in (texts[0], texts[1], texts[0])]
    assert sorted(kept) == sorted(compile_object(text, host_cpu()) for text in texts[2:])


@pytest.mark.parametrize("ending, status", [("os.abort()", -6), ("os._exit(3)", 3), ("os._exit(0)", 0)])
def test_a_compiler_that_ends_is_an_error(_surroundings, monkeypatch, ending, status):
    _surroundings.close()
    with monkeypatch.context() as patch:
        patch.setattr(compile_workers, "_PROGRAM", ending_worker(config.get("NOVA_DUMP"), ending))
        with pytest.raises(NovaError, match="Assertion `false' failed") as caught:
            compile_object(fresh_text(), host_cpu())
    assert caught.value.stage == "worker" and f"status {status}" in str(caught.value)
    assert Path(caught.value.dump).exists()
    assert compile_object(fresh_text(), host_cpu())


def ending_worker(folder: str, ending: str) -> str:
    """A worker that takes a request, says something and dies, as an assertion of LLVM does."""
    os.makedirs(folder, exist_ok=True)
    path = Path(folder) / "ending.py"
    program = f"""
        import os, sys
        sys.stdin.buffer.read(8)
        sys.stderr.write("Assertion `false' failed\\n")
        sys.stderr.flush()
        {ending}
    """
    path.write_text(textwrap.dedent(program))
    return str(path)


def test_workers_give_way_to_their_parent(_surroundings):
    assert compile_object(fresh_text(), host_cpu())
    mine = os.getpriority(os.PRIO_PROCESS, 0)
    theirs = [os.getpriority(os.PRIO_PROCESS, worker.process.pid) for worker in _surroundings._workers]
    assert mine == 19 or (theirs and min(theirs) > mine)


def test_a_worker_killed_at_work_fails_its_compile_only(_surroundings):
    workers = _surroundings
    workers.warm_up()
    processes = [worker.process for worker in workers._workers]
    for process in processes:
        os.kill(process.pid, signal.SIGSTOP)  # so that the compile is surely under way
    threading.Timer(0.2, lambda: [process.kill() for process in processes]).start()
    with pytest.raises(NovaError, match="status -9"):
        compile_object(fresh_text(), host_cpu())
    assert compile_object(fresh_text(), host_cpu())


def test_a_worker_that_hangs_is_ended(_surroundings, monkeypatch):
    monkeypatch.setattr(compile_workers, "COMPILE_LIMIT_SECONDS", 0.3)
    workers = _surroundings
    workers.warm_up(1)
    process = workers._workers[0].process
    os.kill(process.pid, signal.SIGSTOP)
    with pytest.raises(NovaError, match="no answer within"):
        compile_object(fresh_text(), host_cpu())
    assert process.returncode == -signal.SIGKILL


def test_a_worker_that_went_home_is_replaced(_surroundings, monkeypatch):
    workers = _surroundings
    compile_object(fresh_text(), host_cpu())
    for worker in workers._workers:
        worker.process.stdin.close()
        worker.process.wait()
        worker.process.stdin = open(os.devnull, "wb", buffering=0)
    before = [worker.process.pid for worker in workers._workers]
    assert compile_object(fresh_text(), host_cpu())
    assert all(worker.process.pid not in before for worker in workers._workers)


def test_an_interrupted_compile_leaves_no_busy_worker(_surroundings, monkeypatch):
    workers = _surroundings

    def interrupt(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(workers, "_collect", interrupt)
    with pytest.raises(KeyboardInterrupt):
        compile_object(fresh_text(), host_cpu())
    assert not workers._workers
    monkeypatch.undo()


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("ending", ["os._exit(0)", "os.kill(os.getpid(), 9)", "pass"])
def test_workers_end_with_their_parent(ending, tmp_path):
    script = f"""
        import os, sys, time
        from runtime_support import *
        from blutrain.nova.cpu.compile_workers import shared_workers
        build(chain_plan(2))
        shared_workers(2).warm_up()
        if os.fork() == 0:  # holds the workers' pipes open beyond our end
            time.sleep(4)
            os._exit(0)
        print(*(worker.process.pid for worker in shared_workers(2)._workers), flush=True)
        {ending}
    """
    command = [sys.executable, "-W", "ignore", "-c", "import textwrap, sys; exec(textwrap.dedent(sys.argv[1]))", script]
    variables = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([ROOT, os.path.join(ROOT, "tests"), os.environ.get("PYTHONPATH", "")]),
    }
    with subprocess.Popen(command, env={**variables, "NOVA_CACHE": "0"}, stdout=subprocess.PIPE, text=True) as process:
        workers = [int(pid) for pid in process.stdout.readline().split()]
        assert workers
        process.wait(timeout=20)
        deadline = time.monotonic() + 3
        while any(map(is_running, workers)) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not any(map(is_running, workers))


def test_the_users_main_runs_once(tmp_path):
    script = tmp_path / "main.py"
    script.write_text(
        "print('main', flush=True)\nfrom runtime_support import *\nbuild(chain_plan(4))\n"
    )  # no __name__ guard
    result = run_script(f"import runpy; runpy.run_path({str(script)!r}, run_name='__main__')", cache="0")
    assert result.returncode == 0, result.stderr
    assert result.stdout == "main\n"
