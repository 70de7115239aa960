"""A program as a CUDA graph: captured at its first launch, replayed from then on.

What changed since the last launch decides, by four rules:

    nothing                 the graph is launched
    few arguments           the nodes of those kernels get new arguments
    many arguments          the graph is captured again
    a callback was set      the graph is captured again (callbacks are called while capturing)
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ..uncollected import uncollected
from .driver import Driver
from .launch_code import Launches

# Changing a node costs about as much host time as launching it into a capture, instantiating comes on top of that.
_RECAPTURE_FROM = 0.75

Emit = Callable[[int, Callable[[int], None]], None]


@dataclass
class Replays:
    """How often each rule was taken; `nodes` counts the changed ones."""

    captures: int = 0
    updates: int = 0
    nodes: int = 0
    reuse: int = 0


class GraphReplay:
    """The graph of a program's launches."""

    def __init__(self, driver: Driver, launches: Launches):
        self.replays = Replays()
        self._driver, self._launches = driver, launches
        self._stream = driver.create_stream()
        self._nodes: dict[int, int] = {}
        self._graph: ReadyGraph | None = None
        self._finalizer = weakref.finalize(self, driver.destroy_stream, self._stream)
        self._finalizer.atexit = False

    def forget(self) -> None:
        """Captures again at the next launch."""
        self._graph = None

    def launch(self, changed: Sequence[int], stream: int, emit: Emit) -> None:
        """Replays; `changed`: the phases whose arguments are not those of the last launch; emit(stream, after): puts a
        whole step into a stream, `after` is called with the number of each phase, behind it.

        Errors: DriverError, NovaError that names a kernel which cannot be launched; then the next launch captures.
        """
        graph = self._graph
        if graph is None or changed:
            graph = self._current(changed, emit)
        else:
            self.replays.reuse += 1
        self._driver.launch_graph(graph.executable, stream)

    def _current(self, changed: Sequence[int], emit: Emit) -> ReadyGraph:
        """The graph with the arguments as they are now."""
        graph, self._graph = self._graph, None  # until it is right again
        if graph is None or len(changed) > _RECAPTURE_FROM * len(self._launches.phases):
            graph = self._capture(emit)
        else:
            self._update(graph, changed)
        self._graph = graph
        return graph

    def _capture(self, emit: Emit) -> ReadyGraph:
        driver, stream, nodes = self._driver, self._stream, {}

        def note(number: int) -> None:
            nodes[number] = driver.last_captured(stream)

        graph = ReadyGraph(driver, capture(driver, stream, lambda: emit(stream, note)))
        self._nodes = nodes
        self.replays.captures += 1
        return graph

    def _update(self, graph: ReadyGraph, changed: Sequence[int]) -> None:
        for number in changed:
            phase, function = self._launches.details[number]
            params = self._launches.phases[number].params
            self._driver.update_node(
                graph.executable, self._nodes[number], function, phase.grid, phase.block, phase.shared_bytes, params
            )
        self.replays.updates += 1
        self.replays.nodes += len(changed)


class ReadyGraph:
    """A captured graph and its ready form, destroyed together."""

    def __init__(self, driver: Driver, graph: int):
        try:
            self.executable = driver.instantiate(graph)
        except BaseException:
            driver.destroy_graph(graph)
            raise
        self._finalizer = weakref.finalize(self, _destroy, driver, graph, self.executable)
        self._finalizer.atexit = False


def _destroy(driver: Driver, graph: int, executable: Any) -> None:
    driver.destroy_graph_executable(executable)
    driver.destroy_graph(graph)


def capture(driver: Driver, stream: int, emit: Callable[[], None]) -> int:
    """The graph of what `emit` puts into `stream`; an exception leaves the stream as it was.

    Meanwhile no garbage is collected: a finalizer that frees something on the device would end the capture.
    """
    with uncollected():
        try:
            driver.begin_capture(stream)
            emit()
            return driver.end_capture(stream)
        except BaseException:
            try:
                driver.destroy_graph(driver.end_capture(stream))
            except Exception:  # the capture is invalid after a failed launch, or over: there is no graph to destroy
                pass
            raise
