"""One data-parallel step in detail: when kernels ran and when buckets were reduced, on one clock; for ddp.py."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
from trainers import BlutrainTrainer

from blutrain import distributed
from blutrain.distributed import bucket_primitives


def record_step(trainer: BlutrainTrainer, device: str) -> dict[str, list[list]]:
    """Spans of one step in microseconds from its beginning: {"kernels": [name, start, end], "buckets": ...,
    "waits": ...}. Every rank runs it; state changes as by a step.
    """
    from blutrain.nova.plan import READY, WAIT, Callback

    executable = trainer.program.executable
    clock = HostClock() if device == "cpu" else GpuClock(executable._driver, distributed.get_group())
    distributed.barrier()
    bucket_primitives.observer = clock.around
    try:
        durations = executable.profile()  # unlike program.profile: collectives run
    finally:
        bucket_primitives.observer = None
    edges = np.concatenate([[0.0], np.cumsum(durations)])
    spans: dict[str, list[list]] = {"kernels": [], "waits": [], "buckets": []}
    begin = -1.0
    for launch, start, end in zip(executable.plan.launches, edges[:-1], edges[1:], strict=True):
        if not isinstance(launch, Callback):
            spans["kernels"].append([launch.label, start, end])
        elif launch.symbol == WAIT:
            spans["waits"].append([f"wait for bucket {launch.argument}", start, end])
        elif launch.symbol == READY and begin < 0:
            begin = start  # the first bucket's start ties the two clocks together
    spans["buckets"] = [[name, begin + start, begin + end] for name, start, end in clock.spans()]
    return spans


class HostClock:
    """Times of MPI's requests: MPI works on them only when called, so they end where that is seen."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, int, Any]] = []

    def around(self, name: str, start: Any) -> Any:
        began = time.monotonic_ns()
        entry, request = start()
        self.seen.append((name, began, request))
        return entry, request

    def spans(self) -> list[tuple[str, float, float]]:
        """(name, start, end) in microseconds from the first start."""
        first = self.seen[0][1]
        ends = [getattr(request, "done_ns", began) for _, began, request in self.seen]  # alone: at once
        return [
            (n, (began - first) / 1e3, (end - first) / 1e3) for (n, began, _), end in zip(self.seen, ends, strict=True)
        ]


class GpuClock:
    """Events on NCCL's stream, in the graph that the profile captures."""

    def __init__(self, driver: Any, group: Any):
        self.driver, self.backend, self.stream = driver, group._nccl, group._nccl.stream.ptr
        self.seen: list[tuple[str, int, int]] = []

    def around(self, name: str, start: Any) -> Any:
        import cupy

        from blutrain.distributed.nccl import Request

        before, after = (self.driver.create_event(is_timed=True) for _ in range(2))
        fork = cupy.cuda.Event(disable_timing=True)
        fork.record(cupy.cuda.get_current_stream())
        self.driver.call("cuStreamWaitEvent", self.stream, fork.ptr, 0)
        self.driver.record_in_graph(before, self.stream)
        entry, _ = start()
        self.driver.record_in_graph(after, self.stream)
        self.seen.append((name, before, after))
        return entry, Request(self.backend, self.backend.stream, None)  # whoever waits for it waits for `after`, too

    def spans(self) -> list[tuple[str, float, float]]:
        first = self.seen[0][1]
        ms = self.driver.milliseconds
        return [(name, 1e3 * ms(first, before), 1e3 * ms(first, after)) for name, before, after in self.seen]


def shares(spans: dict[str, list[list]]) -> dict[str, float]:
    """How much of the communication of a step is hidden behind kernels."""
    total, until = 0.0, -1.0
    for _, start, end in sorted(spans["buckets"], key=lambda s: s[1]):
        total += max(0.0, end - max(start, until))
        until = max(until, end)
    exposed = min(total, sum(end - start for _, start, end in spans["waits"]))
    return {
        "communication_ms": total / 1e3,
        "exposed_ms": exposed / 1e3,
        "hidden": 1 - exposed / total if total else 1.0,
    }


def write_trace(path: str, everyone: list[dict[str, list[list]]]) -> None:
    """Chrome's trace format, which Perfetto reads: a process a rank, a thread for kernels, one for buckets."""
    events: list[dict[str, Any]] = []
    for rank, spans in enumerate(everyone):
        events.append({"name": "process_name", "ph": "M", "pid": rank, "args": {"name": f"rank {rank}"}})
        for thread, (name, kinds) in enumerate({"kernels": ("kernels", "waits"), "all-reduce": ("buckets",)}.items()):
            events.append({"name": "thread_name", "ph": "M", "pid": rank, "tid": thread, "args": {"name": name}})
            for kind in kinds:
                for label, start, end in spans[kind]:
                    place = {"pid": rank, "tid": thread, "ts": start, "dur": end - start}
                    events.append({"name": label, "cat": kind, "ph": "X", **place})
    Path(path).write_text(json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}))
