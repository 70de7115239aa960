"""Worker processes that compile kernels (`compile_worker.py`): several cores at once, an abort of LLVM ends one only.

Workers are plain child processes on pipes (the user's `__main__` is never run again, as a multiprocessing spawn
would), started when the first text comes, kept while more are likely, and gone after some idle seconds
(`compile_worker.IDLE_SECONDS`) or with this process. A worker that dies or runs too long takes down one compile.
"""

from __future__ import annotations

import atexit
import bisect
import json
import os
import selectors
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from . import compile_worker

COMPILE_LIMIT_SECONDS = 120.0
EXIT_SECONDS = 10.0
MAX_WORKERS = 16
_PROGRAM = str(Path(compile_worker.__file__).resolve())
_BOOT = """
import json, runpy, sys
sys.path[:] = json.loads(sys.argv.pop(1))
runpy.run_path(sys.argv.pop(1), run_name="__main__")
"""


Request = tuple[str, tuple[Any, ...]]  # path of a lowering, what its `compile_text` takes: the text and more
Further = tuple[Request, Callable[[bytes], None]]  # a request that follows from an object, and who takes its own
Then = Callable[[int, bytes], Further | None]


@dataclass(frozen=True)
class Failure:
    """A text that did not compile: the stage that failed ("worker" for a crash or a timeout) and what was said."""

    stage: str
    message: str


class _Batch:
    """The jobs of one call: what is wanted, what waits, what came back."""

    def __init__(self, requests: Sequence[Request], then: Then | None, also: Sequence[Further]):
        self.requests, self.count, self.then = [*requests], len(requests), then
        self.results: list[bytes | Failure | None] = [None] * self.count
        self.retried: set[int] = set()
        # The longest is taken first, unless the caller knows better what others follow from.
        self._waiting = sorted(range(self.count), key=self._length) if then is None else [*range(self.count)][::-1]
        self._further: list[int] = []  # behind all that others may follow from
        self._takers: dict[int, Callable[[bytes], None]] = {}
        for further in also:
            self._add(*further)

    @property
    def num_waiting(self) -> int:
        return len(self._waiting) + len(self._further)

    def take(self) -> int:
        return (self._waiting or self._further).pop()

    def put_back(self, job: int) -> None:
        (self._waiting if job < self.count else self._further).append(job)

    def finish(self, job: int, result: bytes | Failure) -> None:
        self.results[job] = result
        if isinstance(result, Failure):
            return
        if job in self._takers:
            self._takers[job](result)
        elif self.then is not None and (further := self.then(job, result)) is not None:
            self._add(*further)

    def _add(self, request: Request, taker: Callable[[bytes], None]) -> None:
        job = len(self.requests)
        self._takers[job] = taker
        self.requests.append(request)
        self.results.append(None)
        bisect.insort(self._further, job, key=self._length)

    def _length(self, job: int) -> int:
        return len(self.requests[job][1][0])


class _Worker:
    """One child process and the job that it is at."""

    def __init__(self, preload: Sequence[str]):
        self.output: IO[bytes] = tempfile.TemporaryFile()
        arguments = [json.dumps([str(path) for path in sys.path]), _PROGRAM, *preload]
        command = [sys.executable, "-W", "ignore", "-c", _BOOT, *arguments]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=self.output, bufsize=0)
        self.job: int | None = None

    def send(self, job: int, request: Request) -> None:
        assert self.process.stdin is not None
        self.job = job
        view = memoryview(compile_worker.frame(request))
        while view:
            view = view[self.process.stdin.write(view) :]

    def receive(self) -> tuple[int, tuple | None]:
        """The job and its reply; None for a worker that has ended."""
        assert self.process.stdout is not None and self.job is not None
        job, self.job = self.job, None
        return job, compile_worker.read_frame(self.process.stdout.fileno())

    def said(self) -> str:
        """The end of what the worker printed: assertion and abort messages."""
        self.output.seek(0)
        return self.output.read()[-4000:].decode(errors="replace").strip()

    def wait(self) -> int:
        """The exit status of a process that has closed its pipe; a core dump may take a while."""
        try:
            return self.process.wait(EXIT_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait()

    def end(self) -> None:
        """Kills the process if it still runs, and frees its pipes."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout, self.output):
            if stream is not None:
                stream.close()


class CompileWorkers:
    """At most `size` worker processes. One thread at a time compiles; a forked child starts its own."""

    def __init__(self, size: int):
        self.size = size
        self._workers: list[_Worker] = []
        self._preload: tuple[str, ...] = ()
        self._lock = threading.Lock()

    def warm_up(self, count: int | None = None, preload: Sequence[str] = ()) -> None:
        """Starts workers ahead, so that they load MLIR (0.3 s) and the modules `preload` while the caller is busy with
        something else.
        """
        with self._lock:
            self._preload = tuple(preload)
            self._start(min(count or self.size, self.size))

    def compile(
        self, requests: Sequence[Request], then: Then | None = None, also: Sequence[Further] = ()
    ) -> list[bytes | Failure]:
        """Objects, or the reasons why not, of requests (lowering, its arguments), in their order.

        then(number of a request, its object): what is to be compiled because of it, or None; also: what else is, anyhow. Of
        those that fail nothing is said: who needs one asks again. With `then`, requests are taken in their order.
        """
        with self._lock:
            try:
                return self._compile(_Batch(requests, then, also))
            finally:  # after an interrupt a worker is still busy with a job that nobody waits for
                self._drop([worker for worker in self._workers if worker.job is not None])

    def _compile(self, batch: _Batch) -> list[bytes | Failure]:
        while batch.num_waiting or any(worker.job is not None for worker in self._workers):
            busy = sum(worker.job is not None for worker in self._workers)
            self._start(min(self.size, busy + batch.num_waiting))
            for worker in list(self._workers):
                if batch.num_waiting and worker.job is None:
                    self._give(worker, batch)
            self._collect(batch)
        return [result for result in batch.results[: batch.count] if result is not None]

    def _start(self, count: int) -> None:
        self._drop([worker for worker in self._workers if worker.process.poll() is not None and worker.job is None])
        while len(self._workers) < count:
            self._workers.append(_Worker(self._preload))

    def _give(self, worker: _Worker, batch: _Batch) -> None:
        """Sends the next job; a worker that went home in this moment is dropped and the job stays."""
        job = batch.take()
        try:
            worker.send(job, batch.requests[job])
        except BrokenPipeError:
            worker.job = None
            batch.put_back(job)
            self._drop([worker])

    def _collect(self, batch: _Batch) -> None:
        """Waits for at least one reply or death, or until no worker has answered for too long."""
        busy = [worker for worker in self._workers if worker.job is not None]
        with selectors.DefaultSelector() as selector:
            for worker in busy:
                assert worker.process.stdout is not None
                selector.register(worker.process.stdout, selectors.EVENT_READ, worker)
            ready = [key.data for key, _ in selector.select(COMPILE_LIMIT_SECONDS)]
        for worker in ready:
            job, reply = worker.receive()
            if reply is not None:
                batch.finish(job, reply[1] if reply[0] == "object" else Failure(reply[1], reply[2]))
                continue
            status, said = worker.wait(), worker.said()
            self._drop([worker])
            if status == 0 and job not in batch.retried:  # it went home, idle, as the job came
                batch.retried.add(job)
                batch.put_back(job)
            else:
                batch.finish(
                    job, Failure("worker", f"the compiler process ended with status {status}\n{said}".rstrip())
                )
        if busy and not ready:
            for worker in busy:
                assert worker.job is not None
                batch.finish(worker.job, Failure("worker", f"no answer within {COMPILE_LIMIT_SECONDS:.0f} s"))
            self._drop(busy)

    def _drop(self, workers: list[_Worker]) -> None:
        for worker in workers:
            self._workers.remove(worker)
            worker.end()

    def close(self) -> None:
        """Ends all workers; the next compile starts new ones."""
        with self._lock:
            self._drop(list(self._workers))

    def forget(self) -> None:
        """In a forked child: the workers, and a lock that another thread may have held, belong to the parent."""
        for worker in self._workers:
            worker.process.returncode = 0  # not this process's child: nothing to wait for
        self._workers, self._lock = [], threading.Lock()


_shared: CompileWorkers | None = None


def shared_workers(threads: int) -> CompileWorkers:
    """The workers of this process, one for each of `threads` cores (at most MAX_WORKERS: each holds about 150 MB)."""
    global _shared
    if _shared is None:
        _shared = CompileWorkers(min(threads, MAX_WORKERS))
        atexit.register(_shared.close)
        os.register_at_fork(after_in_child=_shared.forget)
    return _shared
