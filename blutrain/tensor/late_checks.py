"""Value checks of kernels that a GPU runs while the host goes on.

The host waits for them only where it is about to read a value or to write memory (an optimizer's step): what they found
is raised there, with the line of the forward pass, and nothing is half-updated.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import Protocol


class LateCheck(Protocol):
    """is_over(): has its kernel run and found nothing; wait(): until it has run. Errors of wait: CheckError."""

    def is_over(self) -> bool: ...

    def wait(self) -> None: ...


_running: deque[LateCheck] = deque()
_lock = threading.RLock()  # a signal handler may read values while the host waits


def watch(check: LateCheck) -> None:
    """Hear of `check` in time."""
    with _lock:
        while _running and _running[0].is_over():
            _running.popleft()
        _running.append(check)


def settle() -> None:
    """Wait for all checks so far. Errors: what the first of them found that failed."""
    if _running:
        with _lock:
            while _running:
                _running.popleft().wait()
