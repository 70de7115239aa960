"""The thread pool of the process: Python threads that enter a compiled loop once and stay there (`pool_code.py`).

    pool = shared_pool(facts)       # starts facts.threads - 1 workers; the thread that launches is worker 0
    pool.cell_address               # a word that holds the control block's address: a program reads it at every launch

A forked child has no threads: its cell is null, programs run alone until `ensure_running()` starts workers of its own.
At exit the workers return.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import threading

import numpy as np

from ..target import CpuFacts
from . import orc, pool_code
from .objects import CompileJob

_ALIGNMENT = 128
_EXIT_SECONDS = 2.0


def pool_job(facts: CpuFacts) -> CompileJob:
    """The pool's code as a text to compile, so that it is compiled together with the first program's kernels."""
    return CompileJob(pool_code.pool_text(facts.triple), op="thread pool")


class ThreadPool:
    """`num_threads` workers (the launching thread counted) on one control block."""

    def __init__(self, code: bytes, num_threads: int):
        self._code = orc.load_object(code, pool_code.SYMBOLS)
        self.symbols = self._code.addresses
        self.num_threads = num_threads
        self._init = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(self.symbols["nova_pool_init"])
        self._stop = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(self.symbols["nova_stop"])
        self._work = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64)(self.symbols["nova_worker"])
        self._cell = np.zeros(1, np.uint64)
        self.cell_address = int(self._cell.ctypes.data)
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()
        self.is_running = False

    def ensure_running(self) -> None:
        """Starts the workers where there are none: at first, and in a forked child."""
        with self._lock:
            if not self.is_running:
                self._start()

    def _start(self) -> None:
        self.is_running = True
        if self.num_threads == 1 or _is_ending:
            return
        memory = np.zeros(pool_code.CONTROL_BYTES + _ALIGNMENT, np.uint8)
        control = -(-int(memory.ctypes.data) // _ALIGNMENT) * _ALIGNMENT
        self._init(control)
        for worker in range(1, self.num_threads):
            # A thread keeps the code and the control block alive as long as it is inside, whatever becomes of the pool.
            thread = threading.Thread(
                target=self._enter, args=(control, worker, memory), name=f"nova-{worker}", daemon=True
            )
            thread.start()
            self._threads.append(thread)
        self._control, self._memory = control, memory
        self._cell[0] = control

    def _enter(self, control: int, worker: int, memory: np.ndarray) -> None:
        self._work(control, worker)

    def close(self) -> None:
        """Lets the workers return; a later launch starts new ones."""
        with self._lock:
            if self._cell[0]:
                self._cell[0] = 0
                self._stop(self._control)
                for thread in self._threads:
                    thread.join(_EXIT_SECONDS)
            self._threads, self.is_running = [], False

    def forget(self) -> None:
        """In a forked child: the threads stayed in the parent, and so did whoever held the lock."""
        self._cell[0] = 0
        self._threads, self._lock, self.is_running = [], threading.Lock(), False


_is_ending = False  # no thread can be started any more: programs that other exit handlers run, run alone
_pools: dict[int, ThreadPool] = {}
_lock = threading.Lock()


def shared_pool(code: bytes, facts: CpuFacts) -> ThreadPool:
    """The process's pool of facts.threads workers; `code`: the object of `pool_job`."""
    with _lock:
        if not _pools:
            atexit.register(_close_all)
            os.register_at_fork(after_in_child=_forget_all)
        if facts.threads not in _pools:
            _pools[facts.threads] = ThreadPool(code, facts.threads)
        pool = _pools[facts.threads]
    pool.ensure_running()
    return pool


def _close_all() -> None:
    global _is_ending
    _is_ending = True
    for pool in _pools.values():
        pool.close()


def _forget_all() -> None:
    global _lock
    _lock = threading.Lock()
    for pool in _pools.values():
        pool.forget()
