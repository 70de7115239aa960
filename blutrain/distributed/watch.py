"""The watchdog: each rank tells the store twice a second what it is doing, and learns of ranks that die or do not come.

A rank that waits in a collective asks `check`: it raises once a rank is lost, has ended, is in another collective in its
place, or has not entered the collective for `timeout` seconds. A rank that compiles counts as being on its way
(`tensor.dispatch.busy` says so).

The thread calls nothing of CUDA: it would wait for locks of the driver, and hold Python's, while a kernel waits for a
rank that does not come.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Iterator
from typing import Any

from ..errors import message
from ..tensor import dispatch
from .environment import World
from .errors import CollectiveMismatch, CollectiveTimeout, PeerLost
from .store import Client

BEAT_SECONDS = 0.5
SILENT_SECONDS = 60.0  # a rank not heard of for so long is lost, though its connection stands (its host is gone)
LAST_SECONDS = 4.0  # what a rank has to end by itself once another one is lost
KEPT = 64  # collectives remembered for messages


class Entry:
    """A collective that this rank has entered: its number, what it is, since when. A message between two ranks has the
    number that it is among those to, or from, `peer`.
    """

    __slots__ = ("name", "number", "peer", "since")

    def __init__(self, number: int, name: str, peer: int | None = None):
        self.number, self.name, self.since, self.peer = number, name, time.monotonic(), peer

    def __str__(self) -> str:
        return f"{self.name} ({'collective' if self.peer is None else 'message'} {self.number})"


class _Start:
    """The start of a library."""

    is_over = False


class Watch:
    """What this rank knows of the others, kept up to date by a thread."""

    def __init__(self, world: World, client: Client, timeout: float):
        self.world, self.timeout = world, timeout
        self.lost: dict[int, str] = {}
        self.states: dict[int, dict[str, Any]] = {}
        self.on_lost: Any = None  # called once, in the thread, when another rank is lost
        self.device_fault: Any = None  # tells what went wrong on the device, or nothing
        self._entered = 0
        self._names: dict[int, str] = {}
        self._messages: Counter[str] = Counter()  # "send 1": those to rank 1
        self._apart: tuple[Entry, int, str] | None = None  # a collective here, a rank, and what that has in its place
        self._client, self._end, self._error = client, None, None
        client.answer_within(SILENT_SECONDS)
        self._followed: deque[tuple[Entry, _Start | None]] = deque()
        self._thread = threading.Thread(target=self._run, name="watchdog", daemon=True)
        self._thread.start()

    def enter(self, name: str) -> Entry:
        """Note that this rank enters a collective."""
        number = self._entered + 1
        self._names[number] = name  # first: the thread tells the others of all up to `_entered`
        self._entered = number
        self._names.pop(number - KEPT, None)
        return Entry(number, name)

    def enter_message(self, kind: str, name: str, peer: int) -> Entry:
        """Note that this rank enters a "send" to, or a "recv" from, another one."""
        self._messages[f"{kind} {peer}"] += 1
        return Entry(self._messages[f"{kind} {peer}"], name, peer)

    @contextlib.contextmanager
    def starting(self, library: str) -> Iterator[None]:
        """Ranks meet in the start of a library as in a collective, but nothing can interrupt one that waits there."""
        start = _Start()
        self.follow(self.enter(f"the start of {library}"), start)
        try:
            yield
        finally:
            start.is_over = True

    def follow(self, entry: Entry, start: _Start | None = None) -> None:
        """Look after a collective that nobody waits for on the host (a GPU's), until all ranks have entered it, or `start`
        is over: what `check` would raise ends this rank.
        """
        self._followed.append((entry, start))

    def check(self, entry: Entry) -> None:
        """Errors: PeerLost, CollectiveTimeout where `entry` cannot be expected to finish."""
        error = self._fault(entry)
        if error is not None:
            raise error

    def _fault(self, entry: Entry) -> Exception | None:
        for rank, why in self.lost.items():
            help = f"it happened during {entry}"
            return PeerLost(message("distributed", f"rank {rank} is lost", got=why, help=help))
        if self._apart is not None:
            mine, rank, other = self._apart
            rule = f"ranks {self.world.rank} and {rank} are in different collectives"
            return CollectiveMismatch(self._text(mine, rule, [f"rank {rank}: entered {other} in its place"]))
        missing = self._missing(entry)
        ended = [rank for rank in missing if self.states.get(rank, {}).get("end")]
        if ended:
            rule = f"{_ranks(ended)} ended without entering it"
            return CollectiveTimeout(self._text(entry, rule, self._whereabouts(missing)))
        if time.monotonic() - entry.since < self.timeout:
            return None
        if missing and all(self.states.get(rank, {}).get("busy") for rank in missing):
            return None
        rule = f"{_ranks(missing)} did not come within {self.timeout:g} s" if missing else "it does not end"
        return CollectiveTimeout(self._text(entry, rule, self._whereabouts(missing or list(self.states))))

    def _missing(self, entry: Entry) -> list[int]:
        if entry.peer is not None:
            answer = f"{'recv' if entry.name.startswith('send') else 'send'} {self.world.rank}"
            came = self.states.get(entry.peer, {}).get("messages", {}).get(answer, 0)
            return [entry.peer] if came < entry.number else []
        others = (rank for rank in range(self.world.size) if rank != self.world.rank)
        return [rank for rank in others if self.states.get(rank, {}).get("entered", 0) < entry.number]

    def _text(self, entry: Entry, rule: str, lines: list[str]) -> str:
        help = (
            "all ranks must call the same collectives in the same order; timeout= of init_process_group gives more time"
        )
        got = "\n    ".join(["", *lines])
        if threading.current_thread() is self._thread:  # which runs no line of the user's
            return message(str(entry), rule, got=got, help=help, location=("", 0))
        return message(str(entry), rule, got=got, help=help)

    def _whereabouts(self, ranks: list[int]) -> list[str]:
        return [f"rank {rank}: {self._whereabouts_of(rank)}" for rank in ranks]

    def _whereabouts_of(self, rank: int) -> str:
        state = self.states.get(rank)
        if state is None:
            return "never heard of"
        names, number = state["names"], state["entered"]
        last = f"last in {names[str(number)]} (collective {number})" if names else "in no collective yet"
        doing = state.get("end") or state.get("busy") or "running"
        return f"{last}, {doing}, heard of {state['silent']:.1f} s ago"

    # ---------------------------------------------------------------- telling the others

    def fail(self, error: BaseException) -> None:
        """This rank is about to end by an exception."""
        self._error = f"it raised {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
        self._beat()

    def finish(self) -> None:
        """This rank ends as it should: the others hear of it."""
        self._end = "ended"
        self._beat()

    def close(self) -> None:
        """Take leave of the store."""
        self._client.close()

    def all_finished(self) -> bool:
        """Whether every rank has ended as it should."""
        self._beat()
        return not self.lost and all(self.states.get(r, {}).get("end") for r in range(self.world.size))

    def _state(self) -> dict[str, Any]:
        names = {str(number): name for number, name in list(self._names.items())}
        return {
            "entered": self._entered,
            "names": names,
            "messages": dict(self._messages),
            "busy": dispatch.busy,
            "end": self._end,
            "error": self._error,
        }

    # ---------------------------------------------------------------- the thread

    def _run(self) -> None:
        launcher = os.environ.get("LAUNCH_PID") == str(os.getppid())
        while self._beat() and self._followed_are_well():
            # Where this thread gets no turn, the others give this rank up: then it says where it hangs, and ends.
            faulthandler.dump_traceback_later(SILENT_SECONDS, exit=True, file=2)
            if launcher and os.environ["LAUNCH_PID"] != str(os.getppid()):
                _say(f"distributed: the launcher is gone: rank {self.world.rank} ends")
                os._exit(1)
            time.sleep(BEAT_SECONDS)
        faulthandler.cancel_dump_traceback_later()
        if self._end is None and self._error is None:
            self._leave()

    def _beat(self) -> bool:
        """One heartbeat. False: another rank is lost."""
        request = {"do": "state", "rank": self.world.rank, "state": self._state()}
        try:
            answer = self._client.ask(request)
        except TimeoutError:
            self.lost.setdefault(0, f"no answer for {SILENT_SECONDS:.0f} s")
            return False
        except (OSError, ValueError):
            self.lost.setdefault(0, "its process is gone")
            return False
        self.states = {int(rank): state for rank, state in answer["states"].items()}
        self._apart = self._apart or self._first_apart()
        lost = {int(rank): why for rank, why in answer["lost"].items() if int(rank) != self.world.rank}
        for rank, state in self.states.items():
            if state["silent"] > SILENT_SECONDS and not state.get("end") and rank != self.world.rank:
                lost.setdefault(rank, f"not heard of for {state['silent']:.0f} s")
        self.lost.update(lost)
        return not self.lost

    def _first_apart(self) -> tuple[Entry, int, str] | None:
        """The first collective, of those remembered, that is another one on some rank; that rank, and its name there."""
        names = dict(list(self._names.items()))
        theirs = [(int(n), rank, name) for rank, s in self.states.items() for n, name in s["names"].items()]
        apart = [x for x in theirs if names.get(x[0], x[2]) != x[2]]
        if not apart:
            return None
        number, rank, name = min(apart)
        return Entry(number, names[number]), rank, name

    def _followed_are_well(self) -> bool:
        """Whether all ranks come to collectives on GPUs in time, and to the same; else what is wrong is printed."""
        while self._followed and self._apart is None:
            entry, start = self._followed[0]
            if self._missing(entry) if start is None else not start.is_over:
                break
            self._followed.popleft()
        fault = self._fault(self._followed[0][0]) if self._followed else None
        if fault is not None:
            _say(f"{type(fault).__module__}.{type(fault).__name__}: {fault}")
        elif self.device_fault is not None and (text := self.device_fault()):
            _say(f"distributed: NCCL failed on rank {self.world.rank}: {text}")
        else:
            return True
        return False

    def _leave(self) -> None:
        """Another rank is lost: this one ends, by the exception that its next collective raises, or else here."""
        if self.on_lost is not None:
            self.on_lost()
        time.sleep(LAST_SECONDS)
        for rank, why in list(self.lost.items())[: self._error is None]:
            _say(
                f"{PeerLost.__module__}.PeerLost: distributed: rank {rank} is lost ({why}): rank {self.world.rank} ends"
            )
        os._exit(1)


def _say(text: str) -> None:
    """To stderr, which may be gone with the launcher."""
    with contextlib.suppress(OSError):
        print(text, file=sys.stderr, flush=True)


def _ranks(ranks: list[int]) -> str:
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))}"
