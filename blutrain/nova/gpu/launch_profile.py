"""Times of the launches of a program, by events inside a graph: no time of the host between kernels is counted."""

from __future__ import annotations

import itertools

from .driver import Driver
from .launch_code import Launches
from .launch_graph import ReadyGraph, capture


def profile(driver: Driver, launches: Launches, stream: int) -> list[float]:
    """Runs the program once in `stream`, waits for it, returns the microseconds of each launch (and callback)."""
    events = [driver.create_event(is_timed=True) for _ in range(launches.count + 1)]
    side = driver.create_stream()

    def emit() -> None:
        driver.record_in_graph(events[0], side)
        for index in range(launches.count):
            launches.emit_launch(index, side)
            driver.record_in_graph(events[index + 1], side)

    try:
        graph = ReadyGraph(driver, capture(driver, side, emit))
        driver.launch_graph(graph.executable, stream)
        driver.synchronize(stream)
        return [1e3 * driver.milliseconds(a, b) for a, b in itertools.pairwise(events)]
    finally:
        for event in events:
            driver.destroy_event(event)
        driver.destroy_stream(side)
