"""The process group: all ranks of the job, how each kind of device's memory is reduced, and waiting with a watchdog.

There is one group, of all ranks (current.py). MPI serves host memory, NCCL the memory of GPUs; each is started when first used.
"""

from __future__ import annotations

import os
import socket
import time
from dataclasses import replace
from typing import Any

from ..errors import message
from ..tensor import dispatch
from ..tensor.device import Device
from .environment import World
from .errors import CollectiveMismatch, CollectiveTimeout, PeerLost
from .local import Alone, LocalBackend
from .mpi import MpiBackend
from .store import Client, Server
from .watch import Entry, Watch

END_SECONDS = 30.0  # how long a rank that is done waits for the others before it leaves MPI
LEAVE_SECONDS = 5.0  # how long rank 0 then stays for ranks that are slower in leaving
# A wait asks in a loop for so long (where ranks share cores: not for long), then with growing pauses.
SPIN_SECONDS, SHARED_SPIN_SECONDS, LONGEST_PAUSE = 5e-3, 50e-6, 1e-3


def flush_pending() -> None:
    """Compute what nova has recorded if collectives are part of it: they run in the order in which the program called
    them, on every rank.
    """
    recorder = dispatch.recorder
    if recorder is not None and not recorder.recording and recorder.holds_collectives():
        recorder.flush()


class Work:
    """A collective under way. `wait()` gives its result: on a CPU the host waits, on a GPU the current stream does."""

    def __init__(self, group: ProcessGroup, entry: Entry, request: Any, result: Any = None):
        self._group, self._entry, self._request, self.result = group, entry, request, result

    def wait(self) -> Any:
        """The result. Errors: PeerLost, CollectiveMismatch, CollectiveTimeout."""
        if self._request is not None:
            self._group.join(self._entry, self._request)
            self._request = None
        return self.result

    def is_done(self) -> bool:
        """Whether the result is there already."""
        return self._request is None or self._request.is_done()


class ProcessGroup:
    """All ranks. `rank`, `size`; `mpi` and `nccl(device)` are the backends."""

    def __init__(self, world: World, timeout: float):
        self.world, self.rank, self.size = world, world.rank, world.size
        self.has_failed = False
        self._exchanges = 0
        self._under_way: list[Any] = []
        crowded = world.local_size > (os.cpu_count() or 1)
        self._spin_seconds = SHARED_SPIN_SECONDS if crowded else SPIN_SECONDS
        self._mpi: MpiBackend | None = None
        self._nccl: Any = None
        self._local = None if world.is_launched else LocalBackend()
        self._server: Server | None = None
        self.watch: Any = Alone()
        if self._local is None:
            self._meet(timeout)

    def _meet(self, timeout: float) -> None:
        """Find the other ranks."""
        if self.world.address:
            self._open_store(self.world.address, self.world.port)
        else:
            self._mpi = MpiBackend(self.world, None)
            self._open_store(*self._meet_by_mpi(self._mpi))
        self.watch = Watch(self.world, self._client(watched=True), timeout)
        self.watch.on_lost = self._abort
        if self.world.local_rank < 0:  # whoever set the variables (Kubernetes, a user's shell) did not say
            hosts = self.exchange("comparing hosts", socket.gethostname())
            here, before = hosts[self.rank], hosts[: self.rank]
            self.world = replace(self.world, local_rank=before.count(here), local_size=hosts.count(here))

    def _open_store(self, address: str, port: int) -> None:
        if self.rank == 0 and self._server is None:
            self._server = Server(address, port, self.size, self.world.job)
            port = self._server.port
        self._address = address, port
        self.store = self._client(watched=False)

    def _client(self, watched: bool) -> Client:
        process = f"{socket.gethostname()}:{os.getpid()}"
        hello = {"rank": self.rank, "size": self.size, "job": self.world.job, "process": process, "watched": watched}
        return Client(*self._address, hello)

    def _meet_by_mpi(self, mpi: MpiBackend) -> tuple[str, int]:
        """Where MPI's own manager started the ranks: rank 0 opens the store, MPI carries its address."""
        is_alone = 0 <= self.world.local_rank and self.world.local_size == self.size
        address = "127.0.0.1" if is_alone else socket.gethostname()
        if self.rank == 0:
            self._server = Server(address, 0, self.size, self.world.job)
        return mpi.comm.bcast((address, self._server.port) if self._server else None)

    # ---------------------------------------------------------------- backends

    @property
    def mpi(self) -> MpiBackend:
        """What reduces host memory. Errors: RuntimeError where MPI is missing."""
        if self._mpi is None:
            with self.watch.starting("MPI"):
                self._mpi = MpiBackend(self.world, self.store)
        return self._mpi

    def backend(self, device: Device) -> Any:
        """What reduces the memory of `device`. Errors: RuntimeError where the library, or the GPU, is missing."""
        if self._local is not None:
            return self._local
        if device.is_cpu:
            return self.mpi
        if self._nccl is None:
            self._nccl = self._start_nccl(device)
        if self._nccl.device is not device:
            expected, help = f"tensors on {self._nccl.device}", "a rank works on one GPU: distributed.local_device()"
            raise RuntimeError(message("distributed", "another GPU", expected=expected, got=str(device), help=help))
        return self._nccl

    def _start_nccl(self, device: Device) -> Any:
        """All ranks come here at their first collective on a GPU. Errors: RuntimeError where two have one GPU."""
        from .nccl import NcclBackend, name_of_gpu

        names = self.exchange("comparing GPUs", name_of_gpu(device))
        for rank, name in enumerate(names):
            if (first := names.index(name)) != rank:
                help = "tensors belong on distributed.local_device(); one rank for each GPU"
                rule = f"ranks {first} and {rank} use the same GPU"
                raise RuntimeError(message("distributed", rule, got=name, location=("", 0), help=help))
        most = self.exchange("comparing NCCL_MAX_CTAS", os.environ.get("NCCL_MAX_CTAS", "not set"))
        if len(set(most)) > 1:
            values = ", ".join(f"rank {rank}: {value}" for rank, value in enumerate(most))
            raise RuntimeError(message("distributed", "the ranks differ in NCCL_MAX_CTAS", got=values))
        with self.watch.starting("NCCL"):
            backend = NcclBackend(self.world, self.store, device)
        self.watch.device_fault = backend.fault
        return backend

    def start(self, device: Device, name: str, call: str, *operands: Any) -> tuple[Entry, Any]:
        """Enter a collective: `call` is the backend's method, `name` what messages say of it."""
        backend = self.backend(device)
        if backend is self._nccl and backend.is_capturing():
            return Entry(0, name), getattr(backend, call)(*operands)  # entered at each launch: follow_replay
        if call in ("send", "recv"):
            entry = self.watch.enter_message(call, name, operands[1])
        else:
            entry = self.watch.enter(name)
        if backend is self._nccl:
            return entry, self._start_watched(entry, call, operands)
        request = getattr(backend, call)(*operands)
        if device.is_cpu:
            self._under_way.append(request)
            self.progress()
        return entry, request

    def _start_watched(self, entry: Entry, call: str, operands: tuple) -> Any:
        """A collective on a GPU, which nobody waits for on the host: the watchdog does."""
        try:
            request = getattr(self._nccl, call)(*operands)
        except Exception:
            self.watch.check(entry)  # the communicator was given up because a rank is lost
            raise
        self.watch.check(entry)
        self.watch.follow(entry)
        return request

    def follow_replay(self, started: list[tuple[Entry, Any]]) -> None:
        """The current stream was given a captured program, in which these collectives are."""
        if self._nccl is not None:
            entry = [self.watch.enter(captured.name) for captured, _ in started][-1]
            self.watch.check(entry)
            self.watch.follow(entry)

    def progress(self) -> None:
        """Let MPI work on what is under way: it does so only when it is called."""
        self._under_way = [request for request in self._under_way if not request.is_done()]

    def run(self, device: Device, name: str, call: str, *operands: Any) -> None:
        """Enter a collective and wait for it (on a GPU: the current stream does)."""
        self.join(*self.start(device, name, call, *operands))

    def join(self, entry: Entry, request: Any) -> None:
        """Wait. Errors: PeerLost, CollectiveMismatch, CollectiveTimeout."""
        if hasattr(request, "join"):
            request.join()
            return
        begin, pause = time.perf_counter(), 20e-6
        while not request.is_done():
            if time.perf_counter() - begin < self._spin_seconds:
                time.sleep(0)  # lets another thread, or process, have the core
                continue
            self.watch.check(entry)
            time.sleep(pause)
            pause = min(1.5 * pause, LONGEST_PAUSE)

    # ---------------------------------------------------------------- small facts, by the store

    def exchange(self, what: str, value: Any) -> list[Any]:
        """The values (of what JSON holds) of all ranks, in order. Every rank calls it.

        Errors: PeerLost, CollectiveMismatch, CollectiveTimeout.
        """
        if self._local is not None:
            return [value]
        flush_pending()
        self._exchanges += 1
        entry = self.watch.enter(what)
        names = [f"exchange/{self._exchanges}/{rank}" for rank in range(self.size)]
        try:
            # The last exchange is over: all ranks were in it, and so were done with the one before it.
            self.store.set(names[self.rank], value, forget=f"exchange/{self._exchanges - 2}/{self.rank}")
            while len(values := self.store.get(names, 0.5)["values"]) < self.size:
                self.watch.check(entry)
        except OSError as fault:
            help = f"it happened during {entry}"
            raise PeerLost(message("distributed", "rank 0 is lost", got=str(fault), help=help)) from fault
        return [values[name] for name in names]

    # ---------------------------------------------------------------- the end

    def fail(self, error: BaseException) -> None:
        """This rank ends by an exception: the others hear of it, and MPI is not waited for."""
        if not self.has_failed:
            self.has_failed = True
            if self._local is None and not isinstance(error, (PeerLost, CollectiveMismatch, CollectiveTimeout)):
                self.watch.fail(error)

    def close(self, is_end: bool = True) -> None:
        """Leave: all ranks do. One that failed leaves at once. is_end: of the process."""
        if self.has_failed or self._local is not None:
            return
        self.has_failed = True
        self.watch.finish()
        until = time.monotonic() + END_SECONDS
        while not self.watch.all_finished() and not self.watch.lost and time.monotonic() < until:
            time.sleep(0.01)
        if self.watch.all_finished():
            if self._nccl is not None:
                self._nccl.close()
            if self._mpi is not None:
                self._mpi.close(is_end)
        self.watch.close()
        self.store.close()
        if self._server is not None:
            self._server.wait_until_left(LEAVE_SECONDS)
            self._server.close()

    def _abort(self) -> None:
        if self._nccl is not None:
            self._nccl.abort()
