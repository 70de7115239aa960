"""What a run shows while it goes on: a line in the terminal and a JSON line each logged step."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np


def peak_memory_bytes(device: str) -> int:
    """The most memory the process has held so far: resident on a CPU (ru_maxrss), CuPy's pool on a GPU."""
    if device != "cpu":
        import cupy

        return int(cupy.get_default_memory_pool().total_bytes())
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024  # macOS counts bytes, Linux KiB


class Clock:
    """Milliseconds a step between two readings, without the time spent in `paused()` blocks (validation, saving)."""

    def __init__(self) -> None:
        self._start, self._step = time.perf_counter(), 0

    def restart(self, step: int) -> None:
        self._start, self._step = time.perf_counter(), step

    def read(self, step: int) -> float:
        """Milliseconds a step since the last reading or restart."""
        now = time.perf_counter()
        ms = (now - self._start) * 1e3 / max(1, step - self._step)
        self._start, self._step = now, step
        return ms

    def paused(self) -> _Pause:
        return _Pause(self)


class _Pause:
    def __init__(self, clock: Clock):
        self._clock = clock

    def __enter__(self) -> None:
        self._began = time.perf_counter()

    def __exit__(self, *exc) -> None:
        self._clock._start += time.perf_counter() - self._began


class JsonLines:
    """Writes one JSON object a line; `path` None writes nothing. A resumed run adds to the file."""

    def __init__(self, path: str | None, append: bool):
        self._file = None
        if path is not None:
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            self._file = open(path, "ab" if append else "wb", buffering=0)

    def write(self, record: dict[str, Any]) -> None:
        """Errors: OSError; the line is then written partly or not at all."""
        if self._file is not None:
            self._file.write(json.dumps(record).encode() + b"\n")

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


def progress_line(record: dict[str, Any], steps: int) -> str:
    """One line of progress from what is logged of a step; `steps` is the length of the run."""
    step, val_loss = record["step"], record.get("val_loss")
    validation = f"  val {val_loss:.4f}" if val_loss is not None else " " * 12
    seconds = round((steps - step) * record["ms"] / 1e3)
    left = f"{seconds // 60}:{seconds % 60:02} left" if step > 1 else f"(the first step, {record['mode']})"
    return (
        f"step {step:>{len(str(steps))}}/{steps}  loss {record['loss']:.4f}{validation}  lr {record['lr']:.2e}"
        f"  {record['ms']:7.1f} ms  {record['tokens_per_s'] / 1e3:6.1f}k tokens/s"
        f"  {record['peak_memory_bytes'] / 2**20:.0f} MiB  {left}"
    )


def is_finite(*values: float) -> bool:
    return bool(np.isfinite(values).all())
