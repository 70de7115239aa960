"""The thread pool: every task once, sleep when idle, several launching threads, fork, exit."""

from __future__ import annotations

import dataclasses
import threading
import time

import numpy as np
import pytest
from runtime_support import chain_plan, chain_reference, count_kernel, ramp, run_script

from blutrain import config
from blutrain.nova.cpu import pool_code
from blutrain.nova.cpu.executable import build_executable
from blutrain.nova.plan import BufferRef, Launch, ProgramPlan
from blutrain.nova.target import host_cpu


@pytest.fixture(autouse=True, scope="module")
def cache(tmp_path_factory):
    folder = str(tmp_path_factory.mktemp("cache") / "nova")
    with config.scope(NOVA_CACHE=folder):
        yield folder


def counting_executable(threads: int, tasks: int, work: int, launches: int = 1):
    """A program whose arena holds a count and the last worker of each task, zeroed."""
    refs = (BufferRef("arena", 0), BufferRef("arena", 0, 8 * tasks))
    plan = ProgramPlan((count_kernel(tasks, work),), (Launch(0, refs),) * launches, 16 * tasks)
    executable = build_executable(plan, dataclasses.replace(host_cpu(), threads=threads))
    counts, workers = executable.view(BufferRef("arena", 0), (2, tasks), "i64")
    counts[:], workers[:] = 0, 0
    return executable, counts, workers


@pytest.mark.parametrize("threads, tasks, work", [(1, 5, 0), (2, 2, 0), (2, 37, 50), (8, 3, 0), (8, 200, 20)])
def test_every_task_runs_exactly_once(threads, tasks, work):
    executable, counts, workers = counting_executable(threads, tasks, work, launches=50)
    for _ in range(20):
        executable.launch()
    assert np.array_equal(counts, np.full(tasks, 20 * 50))
    assert workers.min() >= 0 and workers.max() < threads


def test_tasks_are_shared_between_threads():
    executable, _, workers = counting_executable(2, 64, 20_000)
    for _ in range(20):
        executable.launch()
        if set(workers) == {0, 1}:
            return
    pytest.fail(f"one worker ran all tasks of 20 launches: {set(workers)}")


def test_a_pause_between_launches_loses_no_wake_up():
    executable, counts, _ = counting_executable(4, 8, 100)
    pauses = np.random.default_rng(0).random(200) * 3 * pool_code.SPIN_NANOSECONDS / 1e9
    for pause in pauses:
        executable.launch()
        time.sleep(pause)
    assert np.array_equal(counts, np.full(8, 200))


def test_idle_workers_use_no_processor():
    executable, _, _ = counting_executable(8, 64, 100)
    executable.launch()
    time.sleep(0.05)
    used = time.process_time()
    time.sleep(0.4)
    assert time.process_time() - used < 0.04


def test_two_threads_launch_two_programs():
    executables = [counting_executable(4, 50, 200, launches=20) for _ in range(2)]

    def launch(executable):
        for _ in range(50):
            executable.launch()

    threads = [threading.Thread(target=launch, args=(executable,)) for executable, _, _ in executables]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for _, counts, _ in executables:
        assert np.array_equal(counts, np.full(50, 50 * 20))


def test_the_interpreter_runs_while_a_program_does():
    executable, _, _ = counting_executable(2, 2, 50_000_000)
    thread = threading.Thread(target=executable.launch)
    start = time.perf_counter()
    thread.start()
    ticks = 0
    while thread.is_alive():
        time.sleep(0.001)
        ticks += 1
    assert ticks >= 5 or time.perf_counter() - start < 0.02


def test_results_do_not_depend_on_the_number_of_threads():
    x, results = ramp(), []
    for threads in (1, 2, 5):
        executable = build_executable(chain_plan(9), dataclasses.replace(host_cpu(), threads=threads))
        results.append(executable.run([x.ctypes.data])[0])
    assert all(np.array_equal(result, chain_reference(x, 9)) for result in results)


def test_a_forked_child_has_a_pool_of_its_own(cache):
    script = """
        import os, threading, warnings
        warnings.simplefilter("ignore")  # fork in a process with threads
        from runtime_support import *
        x, executable = ramp(), build(chain_plan(6))
        (y,) = executable.run([x.ctypes.data])
        for _ in range(3):  # a child forks too
            child = os.fork()
            if child:
                assert os.waitpid(child, 0)[1] == 0
                break
            assert [t.name for t in threading.enumerate() if t.name.startswith("nova")] == []
            (z,) = executable.run([x.ctypes.data])
            assert np.array_equal(y, z)
            assert np.array_equal(build(chain_plan(5, (7.0,))).run([x.ctypes.data])[0], x * 7**5)  # compiles
            names = [t.name for t in threading.enumerate() if t.name.startswith("nova")]
            assert names == ["nova-1", "nova-2"], names
        assert np.array_equal(executable.run([x.ctypes.data])[0], y)
    """
    result = run_script(script, cache=cache, BLUTRAIN_NUM_THREADS="3")
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize("pause", [0, 0.05])
def test_a_process_ends_while_workers_spin_or_sleep(cache, pause):
    script = """
        import atexit, time
        from runtime_support import *
        x = ramp()
        atexit.register(lambda: print(*executable.run([x.ctypes.data])[0][:3]))  # runs after the pool has ended
        executable = build(chain_plan(3))
        executable.run([x.ctypes.data])
        time.sleep({pause})
        print(time.time())
    """
    result = run_script(script.replace("{pause}", str(pause)), cache=cache, BLUTRAIN_NUM_THREADS="4")
    assert result.returncode == 0, result.stderr
    ended, *values = result.stdout.split()
    assert time.time() - float(ended) < 1.0 and values == ["3.0", "6.0", "9.0"]


@pytest.mark.parametrize("triple", ["x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu", "arm64-apple-darwin"])
def test_the_pool_compiles_for_every_target(triple):
    from blutrain.nova.cpu.objects import compile_object

    facts = dataclasses.replace(host_cpu(), triple=triple, cpu_name="generic", cpu_features="")
    data = compile_object(pool_code.pool_text(triple), facts)
    magic = {"x86_64": b"\x7fELF", "aarch64": b"\x7fELF", "arm64": b"\xcf\xfa\xed\xfe"}[triple.split("-")[0]]
    assert data.startswith(magic)
    machine = {"x86_64": 62, "aarch64": 183}.get(triple.split("-")[0])
    assert machine is None or int.from_bytes(data[18:20], "little") == machine
