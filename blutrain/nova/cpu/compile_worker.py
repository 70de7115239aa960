"""The program of a compile worker: reads requests from a pipe, compiles, answers.

A request is (lowering, arguments): the path of a file with `compile_text(*arguments) -> bytes` and an exception
`LoweringError(stage, message)`, such as `cpu/lower.py` and `gpu/lower.py`. Those files and this one import nothing of
blutrain, so that a worker starts quickly (`passes/kernel_jobs.py` does; its modules are loaded ahead); a crash of the
compiler (MLIR's bindings are built with assertions) ends a worker and not the user's process.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import os
import pickle
import select
import signal
import struct
import sys
import threading
import time
from collections.abc import Sequence
from types import ModuleType

IDLE_SECONDS = 20.0
# Processes that start and load MLIR all at once must not take the core of their parent, which is at its passes.
NICENESS = 5
PARENT_POLL_SECONDS = 0.5
FRAME = struct.Struct("<Q")


def serve(preload: Sequence[str] = ()) -> None:
    """Answers requests: ("object", bytes, seconds) or ("error", stage, message). preload: modules that they will need.

    Ends on end of file, after IDLE_SECONDS without a request, and within PARENT_POLL_SECONDS of its parent's death.
    """
    os.nice(NICENESS)
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever a library prints must not enter the protocol
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent decides
    threading.Thread(target=_end_with_parent, args=(os.getppid(),), daemon=True).start()
    import mlir.dialects.llvm  # loaded while the parent is still busy with its passes
    import mlir.passmanager  # noqa: F401

    for name in preload:
        importlib.import_module(name)
    while select.select([0], [], [], IDLE_SECONDS)[0]:
        request = read_frame(0)
        if request is None:
            return
        replies.write(frame(_answer(*request)))
        replies.flush()


def _answer(path: str, arguments: tuple[str, ...]) -> tuple:
    lowering, start = _load(path), time.perf_counter()
    try:
        data = lowering.compile_text(*arguments)
    except lowering.LoweringError as error:
        return "error", error.stage, error.message
    return "object", data, time.perf_counter() - start


@functools.cache
def _load(path: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location("nova_lowering", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _end_with_parent(parent: int) -> None:
    """A forked child of the parent may hold our pipe open, so end of file alone does not tell of the parent's death."""
    while os.getppid() == parent:
        time.sleep(PARENT_POLL_SECONDS)
    os._exit(1)


def frame(message: object) -> bytes:
    """A message with its length in front."""
    data = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
    return FRAME.pack(len(data)) + data


def read_frame(descriptor: int):
    """The next message of a pipe, or None at its end."""
    header = _read_exactly(descriptor, FRAME.size)
    data = _read_exactly(descriptor, FRAME.unpack(header)[0]) if header else None
    return pickle.loads(data) if data else None


def _read_exactly(descriptor: int, count: int) -> bytes | None:
    parts = []
    while count:
        part = os.read(descriptor, min(count, 1 << 20))
        if not part:
            return None
        parts.append(part)
        count -= len(part)
    return b"".join(parts)


if __name__ == "__main__":
    serve(sys.argv[1:])
