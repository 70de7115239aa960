"""Lets an MPI library find the other ranks through the store, whoever started the processes.

MPICH (and what descends from it) asks its process manager over an inherited socket by a protocol of text lines, PMI-1:
who am I, put this address, wait for all, get that one's address. mpiexec is one such manager. Here each process serves
its own library, and puts and gets go to the store that the ranks share.

    cmd=put kvsname=... key=P0-businesscard value=...     ->  cmd=put_result rc=0 msg=success
    cmd=barrier_in                                        ->  cmd=barrier_out     (once all ranks are there)
"""

from __future__ import annotations

import os
import socket
import threading

from .environment import World
from .store import Client

_FIXED = {
    "init": "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0",
    "get_maxes": "cmd=maxes kvsname_max=256 keylen_max=64 vallen_max=1024",
    "get_appnum": "cmd=appnum appnum=0",
    "get_my_kvsname": "cmd=my_kvsname kvsname={job}",
    "get_universe_size": "cmd=universe_size size={size} rc=0",
    "finalize": "cmd=finalize_ack",
    "abort": "cmd=abort_ack",
}
# (the kvsname must differ from that of any other job: MPICH names shared memory after it)
SECONDS = 120.0  # how long a rank waits for the addresses of the others


def serve(world: World, store: Client) -> socket.socket:
    """Start serving this process; the library must be initialized by a call that releases the GIL.

    The result is for `end`.
    """
    ours, theirs = socket.socketpair()
    os.environ.update(PMI_FD=str(theirs.detach()), PMI_RANK=str(world.rank), PMI_SIZE=str(world.size))
    for name in ("PMI_PORT", "PMI_ID", "PMIX_NAMESPACE", "PMIX_RANK"):
        os.environ.pop(name, None)
    threading.Thread(target=_Service(world, store).run, args=(ours,), name="pmi", daemon=True).start()
    return ours


def end(connection: socket.socket) -> None:
    """MPI was finalized. The library says goodbye while the process exits, when no thread of Python runs any more: the
    answer that it then waits for is put there now.
    """
    connection.sendall((_FIXED["finalize"] + "\n").encode())


class _Service:
    def __init__(self, world: World, store: Client):
        self.world, self.store, self.barriers = world, store, 0

    def run(self, connection: socket.socket) -> None:
        with connection.makefile("rw", encoding="ascii", newline="\n") as lines:
            for line in lines:
                try:
                    answer = self.answer(line)
                except (OSError, ValueError):  # the store is gone, and with it rank 0
                    connection.shutdown(socket.SHUT_RDWR)  # the library gives up instead of waiting
                    return
                lines.write(answer + "\n")
                lines.flush()

    def answer(self, line: str) -> str:
        """The answer to one line of the library."""
        words = dict(word.split("=", 1) for word in line.split() if "=" in word)
        command = words.get("cmd", "")
        if command == "put":
            self.store.set(f"pmi/{words['key']}", words["value"])
            return "cmd=put_result rc=0 msg=success"
        if command == "get":
            return self._get(words["key"])
        if command == "barrier_in":
            return self._barrier()
        if command in _FIXED:
            return _FIXED[command].format(size=self.world.size, job=self.store.token)
        return f"cmd={command}_result rc=-1 msg=not_supported"

    def _get(self, key: str) -> str:
        """What the library gets it has put before a barrier: a name that is not there now never comes."""
        values = self.store.get([f"pmi/{key}"], 0.0)["values"]
        if not values:
            return "cmd=get_result rc=-1 msg=key_not_found value=unknown"
        return f"cmd=get_result rc=0 msg=success value={next(iter(values.values()))}"

    def _barrier(self) -> str:
        self.barriers += 1
        names = [f"pmi/barrier/{self.barriers}/{rank}" for rank in range(self.world.size)]
        self.store.set(names[self.world.rank], 1)
        reached = self.store.get(names, SECONDS)["values"]
        return "cmd=barrier_out" if len(reached) == len(names) else "cmd=barrier_out rc=-1 msg=a_rank_is_missing"
