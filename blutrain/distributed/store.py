"""The meeting place of the ranks: a small store of names and values that rank 0 serves over TCP.

It is used to find each other (MPI's and NCCL's addresses), to compare what must be equal before the first step, and to
hear of ranks that die or do not come. Tensors never pass through it. A request and its answer are one line of JSON.
"""

from __future__ import annotations

import contextlib
import json
import re
import socket
import sys
import threading
import time
import uuid
from typing import Any

from ..errors import message

MAGIC = "blutrain-store-1"
CONNECT_SECONDS = 300.0  # how long the other ranks wait for rank 0 to listen
SILENT_SECONDS = 10.0  # until they say so
HELLO_SECONDS = 30.0  # in which whatever listens there has to answer
AGAIN_SECONDS = 0.2


class StoreError(RuntimeError):
    """The ranks cannot meet, or what they say contradicts itself."""


class Server:
    """Rank 0's end. `port`: where it listens. Errors: StoreError where the port is taken."""

    def __init__(self, address: str, port: int, size: int, job: str):
        self.size, self.job, self.token = size, job, uuid.uuid4().hex
        self.values: dict[str, Any] = {}
        self.states: dict[int, dict[str, Any]] = {}
        self.lost: dict[int, str] = {}
        self._others = 0  # connections of other ranks
        self._changed = threading.Condition()
        self._listener = _listen(address, port)
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, name="store", daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=self._serve, args=(connection,), name="store", daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        rank, watched = -1, False
        try:
            with connection, connection.makefile("rw", encoding="utf-8", newline="\n") as lines:
                for line in lines:
                    request = json.loads(line)
                    if request["do"] == "hello":
                        rank, watched = request["rank"], request["watched"]
                        self._count(rank, 1)
                    lines.write(json.dumps(self._answer(request)) + "\n")
                    lines.flush()
        except (OSError, ValueError, LookupError, TypeError, AttributeError):
            pass  # it broke, or a stranger is there
        self._count(rank, -1)
        if watched and self.states.get(rank, {}).get("end") is None:
            self._lose(rank, "its process is gone")

    def close(self) -> None:
        """Take no more connections."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # or the thread that accepts keeps the port
        self._listener.close()

    def _count(self, rank: int, change: int) -> None:
        with self._changed:
            self._others += change if rank > 0 else 0
            self._changed.notify_all()

    def wait_until_left(self, seconds: float) -> None:
        """Rank 0 ends last: until no other rank needs the store."""
        with self._changed:
            self._changed.wait_for(lambda: not self._others, seconds)

    def _lose(self, rank: int, why: str) -> None:
        with self._changed:
            self.lost.setdefault(rank, why)
            self._changed.notify_all()

    def _answer(self, request: dict[str, Any]) -> dict[str, Any]:
        return getattr(self, f"_do_{request['do']}")(request)

    def _do_hello(self, request) -> dict[str, Any]:
        expected, got = (self.size, self.job), (request["size"], request["job"])
        if got[0] == expected[0] and is_later(got[1], expected[1]):
            return {"later": True}
        if got != expected:
            return {"error": f"rank {request['rank']} is of another job: {got} where rank 0 has {expected}"}
        name = f"hello/{request['rank']}/{request['watched']}"
        with self._changed:
            if self.values.setdefault(name, request["process"]) != request["process"]:
                return {"error": f"two processes say that they are rank {request['rank']}"}
        return {"magic": MAGIC, "token": self.token}

    def _do_set(self, request) -> dict[str, Any]:
        with self._changed:
            self.values[request["name"]] = request["value"]
            self.values.pop(request["forget"], None)
            self._changed.notify_all()
        return {}

    def _do_get(self, request) -> dict[str, Any]:
        """Waits until all names are there, a rank is lost, or the time is over."""
        names = request["names"]
        with self._changed:
            self._changed.wait_for(lambda: self.lost or all(n in self.values for n in names), request["seconds"])
            return {
                "values": {n: self.values[n] for n in names if n in self.values},
                "lost": {str(rank): why for rank, why in self.lost.items()},
            }

    def _do_state(self, request) -> dict[str, Any]:
        """A heartbeat: what a rank is doing; the answer is what all do, with the seconds since they were heard."""
        now = time.monotonic()
        with self._changed:
            self.states[request["rank"]] = {**request["state"], "at": now}
            if request["state"].get("error"):
                self.lost.setdefault(request["rank"], request["state"]["error"])
                self._changed.notify_all()
            states = {str(r): {**s, "silent": now - s["at"]} for r, s in self.states.items()}
            return {"states": states, "lost": {str(rank): why for rank, why in self.lost.items()}}


def _listen(address: str, port: int) -> socket.socket:
    """Errors: StoreError where the port is taken or the address is none of this host's."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    local = address if address in ("127.0.0.1", "localhost", "::1") else ("::" if family == socket.AF_INET6 else "")
    try:
        listener.bind((local, port))
        listener.listen(1024)
    except OSError as fault:
        listener.close()
        help = "another program listens there: choose another --master-port (MASTER_PORT)"
        raise StoreError(_text(f"rank 0 cannot listen at {address}:{port}", got=str(fault), help=help)) from fault
    return listener


def is_later(job: str, other: str) -> bool:
    """Whether a job ("id/start", a start like 1.2) is the other one, started again."""
    mine, theirs = (re.fullmatch(r"(.*/)(\d+)\.(\d+)", text) for text in (job, other))
    if mine is None or theirs is None or mine[1] != theirs[1]:
        return False
    return (int(mine[2]), int(mine[3])) > (int(theirs[2]), int(theirs[3]))


class Client:
    """A rank's connection. hello: who it is; `watched` in it: the server takes the connection's end for the rank's.
    `token`: a text that only the ranks of this start know.

    Errors: StoreError where nobody answers at the address, or somebody else does.
    """

    def __init__(self, address: str, port: int, hello: dict[str, Any], *, seconds: float = CONNECT_SECONDS):
        self._lock = threading.Lock()
        self._where = f"{address}:{port}"
        until = time.monotonic() + seconds
        while (answer := self._greet(address, port, until, hello)).get("later"):
            self.close()  # rank 0 of the start before, on its way out: another one comes
            if time.monotonic() > until:
                answer = {"error": f"rank 0 of an earlier start still listens at {self._where}"}
                break
            time.sleep(AGAIN_SECONDS)
        if answer.get("magic") != MAGIC:
            self.close()
            help = "choose another --master-port (MASTER_PORT); start each rank once, all with one WORLD_SIZE"
            raise StoreError(_text("the ranks cannot meet", got=answer.get("error", self._where), help=help))
        self.token: str = answer["token"]

    def _greet(self, address: str, port: int, until: float, hello: dict[str, Any]) -> dict[str, Any]:
        """The answer to a hello over a new connection."""
        self._connection = _connect(address, port, until - time.monotonic())
        self._lines = self._connection.makefile("rw", encoding="utf-8", newline="\n")
        self._connection.settimeout(HELLO_SECONDS)
        stranger = f"what listens at {self._where} is no store of blutrain"
        try:
            answer = self.ask({"do": "hello", **hello})
        except (OSError, ValueError) as fault:
            return {"error": f"{stranger} ({fault})"}
        self._connection.settimeout(None)
        return answer if isinstance(answer, dict) else {"error": stranger}

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """One request. Errors: OSError, ValueError where the connection broke."""
        with self._lock:
            self._lines.write(json.dumps(request) + "\n")
            self._lines.flush()
            line = self._lines.readline()
        if not line:
            raise ConnectionResetError("rank 0 closed the connection")
        return json.loads(line)

    def answer_within(self, seconds: float) -> None:
        """From now on `ask` raises TimeoutError where no answer comes in time."""
        self._connection.settimeout(seconds)

    def set(self, name: str, value: Any, forget: str = "") -> None:
        """Put a value there; one that nobody needs any more may be forgotten with the same request."""
        self.ask({"do": "set", "name": name, "value": value, "forget": forget})

    def get(self, names: list[str], seconds: float) -> dict[str, Any]:
        """{"values": those that came within the time, "lost": ranks that died}."""
        return self.ask({"do": "get", "names": names, "seconds": seconds})

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        with contextlib.suppress(OSError):
            self._lines.close()
        self._connection.close()


def _connect(address: str, port: int, seconds: float) -> socket.socket:
    """Tries until rank 0 listens."""
    until, pause, says_at = time.monotonic() + seconds, 0.01, time.monotonic() + SILENT_SECONDS
    while True:
        try:
            connection = socket.create_connection((address, port), timeout=max(1.0, until - time.monotonic()))
            connection.settimeout(None)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return connection
        except OSError as fault:
            if time.monotonic() > until:
                help = "is rank 0 running, and MASTER_ADDR the address of its host?"
                rule = f"nobody answers at {address}:{port} (MASTER_ADDR, MASTER_PORT)"
                raise StoreError(_text(rule, got=f"{fault} for {seconds:.0f} s", help=help)) from fault
            if time.monotonic() > says_at:
                print(f"distributed: waiting for rank 0 at {address}:{port} ({fault})", file=sys.stderr, flush=True)
                says_at = until
        time.sleep(pause)
        pause = min(2 * pause, 0.5)


def _text(rule: str, **rest: str) -> str:
    return message("distributed", rule, location=("", 0), **rest)
