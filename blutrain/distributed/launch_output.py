"""What the ranks print: passed on line by line with the rank in front, and kept where it may explain a failure."""

from __future__ import annotations

import sys
import threading
import time
from collections import deque
from pathlib import Path
from typing import IO

KEPT_LINES = 400  # of each rank's stderr, for the report of a failure
TRACEBACK = "Traceback (most recent call last):"
# The classes of errors.py, as the last line of a traceback names them.
SECONDARY = ("blutrain.distributed.errors.PeerLost", "blutrain.distributed.errors.CollectiveTimeout")


class Output:
    """Follows the pipes of all ranks."""

    def __init__(self, log_dir: str | None, append: bool):
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._kept: dict[int, deque[str]] = {}
        self._traceback_at: dict[int, float] = {}
        self._directory = Path(log_dir) if log_dir else None
        self._logs: dict[int, IO[str]] = {}
        self._append = append

    def follow(self, rank: int, out: IO[bytes], err: IO[bytes]) -> None:
        """Start reading a rank's two pipes."""
        self._kept[rank] = deque(maxlen=KEPT_LINES)
        if self._directory:
            self._logs[rank] = open(self._directory / f"rank-{rank}.log", "a" if self._append else "w")
        for pipe, stream in ((out, sys.stdout), (err, sys.stderr)):
            thread = threading.Thread(target=self._read, args=(rank, pipe, stream), daemon=True)
            thread.start()
            self._threads.append(thread)

    def _read(self, rank: int, pipe: IO[bytes], stream: IO[str]) -> None:
        for raw in pipe:
            line = raw.decode("utf-8", "replace").rstrip("\n")
            with self._lock:
                if stream is sys.stderr:
                    self._keep(rank, line)
                print(f"[rank {rank}] {line}", file=stream, flush=True)
                if rank in self._logs:
                    print(line, file=self._logs[rank], flush=True)

    def _keep(self, rank: int, line: str) -> None:
        if line.startswith(TRACEBACK) and rank not in self._traceback_at:
            self._traceback_at[rank] = time.monotonic()
        self._kept[rank].append(line)

    def close(self) -> None:
        """The ranks have ended: read what is left (a process that they left behind may hold a pipe open)."""
        until = time.monotonic() + 1.0
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))
        for log in self._logs.values():
            log.close()
        self._logs.clear()

    def last_words(self, rank: int) -> str:
        """The rank's stderr from its first uncaught traceback on, or its last lines."""
        lines = list(self._kept[rank])
        start = next((i for i, line in enumerate(lines) if line.startswith(TRACEBACK)), max(0, len(lines) - 30))
        return "\n".join(lines[start:])

    def failed_at(self, rank: int) -> float | None:
        """When its traceback began."""
        return self._traceback_at.get(rank)

    def is_secondary(self, rank: int) -> bool:
        """Whether the rank ended only because of another one."""
        return any(line.startswith(SECONDARY) for line in self._kept[rank])
