"""The launcher: `python -m blutrain.distributed.launch --nproc-per-node N [options] script.py [its arguments]`.

Starts N processes of a script, each with RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT. Their lines come
out with the rank in front. When one fails the others end within 5 seconds, its own output comes last and whole, and its
exit status is the launcher's. On several hosts it runs once on each, with --nnodes, --node-rank and one --master-addr.
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import subprocess
import sys
import time
import uuid
from pathlib import Path

from ..errors import message
from .launch_output import Output

GRACE_SECONDS = 2.0  # after a failure, for the others to say what they have to say
TERM_SECONDS = 1.0  # between SIGTERM and SIGKILL
INTERRUPT_SECONDS = 30.0  # after Ctrl-C, to finish a step and save; a second Ctrl-C ends all at once
POLL_SECONDS = 0.02
THREADS = ("BLUTRAIN_NUM_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


class LaunchError(ValueError):
    """Nothing was started."""


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    """The launcher's own options, and the script's command behind them."""
    parser = argparse.ArgumentParser(prog="blutrain-launch", description="Run a script as several ranks.")
    add = parser.add_argument
    add("--nproc-per-node", type=int, default=1, metavar="N", help="ranks on this host (1)")
    add("--nnodes", type=int, default=1, metavar="N", help="hosts; the launcher runs once on each (1)")
    add("--node-rank", type=int, default=0, metavar="I", help="which host this is, from 0 (0)")
    add("--master-addr", default=None, metavar="HOST", help="the host of rank 0 (127.0.0.1)")
    add("--master-port", type=int, default=None, metavar="PORT", help="a free port there (one host: any)")
    add("--log-dir", default=None, metavar="DIR", help="also write each rank's output to DIR/rank-I.log")
    add("--max-restarts", type=int, default=0, metavar="N", help="start all ranks again after a failure, N times (0)")
    add("-m", "--module", action="store_true", help="the script is a module's name, as with python -m")
    add("script", help="the script")
    add("arguments", nargs=argparse.REMAINDER, help="its arguments")
    options = parser.parse_args(argv)
    check(options)
    return options


def check(options: argparse.Namespace) -> None:
    """Errors: LaunchError for options that make no sense."""
    for name in ("nproc_per_node", "nnodes"):
        if getattr(options, name) < 1:
            _fail(f"--{name.replace('_', '-')} must be at least 1", got=str(getattr(options, name)))
    if options.master_port is not None and not 0 < options.master_port < 1 << 16:
        _fail("--master-port is no port", expected="1 to 65535", got=str(options.master_port))
    if options.max_restarts < 0:
        _fail("--max-restarts must not be negative", got=str(options.max_restarts))
    if not 0 <= options.node_rank < options.nnodes:
        _fail("--node-rank is no host", expected=f"0 <= node rank < {options.nnodes}", got=str(options.node_rank))
    if options.nnodes > 1 and (options.master_addr is None or options.master_port is None):
        _fail("several hosts need --master-addr and --master-port, the same on each", got=f"--nnodes {options.nnodes}")
    if not options.module and not Path(options.script).is_file():
        _fail("there is no such script", got=options.script)
    if options.log_dir:
        try:
            Path(options.log_dir).mkdir(parents=True, exist_ok=True)
            fault = "" if os.access(options.log_dir, os.W_OK) else f"{options.log_dir} may not be written to"
        except OSError as error:
            fault = str(error)
        if fault:
            _fail("--log-dir cannot be used", got=fault)


def command(options: argparse.Namespace) -> list[str]:
    """What each rank runs."""
    module = ["-m"] if options.module else []
    return [sys.executable, "-u", *module, options.script, *options.arguments]


def environments(options: argparse.Namespace, port: int, job: str, attempt: int) -> list[dict[str, str]]:
    """The environment of each rank of this host."""
    count = options.nproc_per_node
    shared = {
        **{
            name: value for name, value in os.environ.items() if not name.startswith("PMI")
        },  # of an mpiexec further out
        "WORLD_SIZE": str(count * options.nnodes),
        "LOCAL_WORLD_SIZE": str(count),
        "MASTER_ADDR": options.master_addr or "127.0.0.1",
        "MASTER_PORT": str(port),
        "LAUNCH_ID": job,
        "LAUNCH_RESTART": str(attempt),
        "LAUNCH_PID": str(os.getpid()),
        "PYTHONUNBUFFERED": "1",
    }
    for name in THREADS if count > 1 else ():
        shared.setdefault(name, str(max(1, (os.cpu_count() or 1) // count)))
    first = options.node_rank * count
    return [{**shared, "RANK": str(first + i), "LOCAL_RANK": str(i)} for i in range(count)]


class Rank:
    """One process of the job, in a session of its own: Ctrl-C reaches it only through the launcher."""

    def __init__(self, number: int, command: list[str], environment: dict[str, str], output: Output):
        self.number, self.output = number, output
        self.process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        assert self.process.stdout is not None and self.process.stderr is not None
        output.follow(number, self.process.stdout, self.process.stderr)
        self.ended_at: float | None = None

    def poll(self) -> int | None:
        """The exit status, None while it runs; the end's time is noted."""
        status = self.process.poll()
        if status is not None and self.ended_at is None:
            self.ended_at = time.monotonic()
        return status

    def send(self, number: int) -> None:
        """A signal to the process and all that it started."""
        try:
            os.killpg(self.process.pid, number)
        except (ProcessLookupError, PermissionError):
            pass

    @property
    def failed(self) -> bool:
        return self.poll() not in (None, 0)


class Job:
    """All ranks of this host, once."""

    def __init__(self, options: argparse.Namespace, port: int, job: str, attempt: int):
        self.output = Output(options.log_dir, append=attempt > 0)
        self.interrupts = 0
        self.signal = signal.SIGINT
        self.killed: set[int] = set()
        self.ranks: list[Rank] = []
        try:
            for environment in environments(options, port, job, attempt):
                self.ranks.append(Rank(int(environment["RANK"]), command(options), environment, self.output))
        except BaseException:
            self.end_all(signal.SIGKILL)
            raise

    def wait(self) -> Rank | None:
        """Until all ranks have ended; the one whose failure was the first, None where none failed."""
        while True:
            running = [rank for rank in self.ranks if rank.poll() is None]
            if any(rank.failed for rank in self.ranks) or self.interrupts:
                break
            if not running:
                self.output.close()
                return None
            time.sleep(POLL_SECONDS)
        self._end_the_others()
        self.output.close()
        return self._first_failure() if any(rank.failed for rank in self.ranks) else None

    def _end_the_others(self) -> None:
        """Nobody can go on without the rank that failed."""
        seconds = INTERRUPT_SECONDS if self.interrupts else GRACE_SECONDS
        self._wait_for_all(seconds)
        for number, seconds in ((signal.SIGTERM, TERM_SECONDS), (signal.SIGKILL, 5.0)):
            self.killed |= {rank.number for rank in self.ranks if rank.poll() is None}
            self.end_all(number)
            self._wait_for_all(seconds)
        self.end_all(signal.SIGKILL, also_ended=True)  # what they started themselves

    def _wait_for_all(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until and any(rank.poll() is None for rank in self.ranks) and self.interrupts < 2:
            time.sleep(POLL_SECONDS)

    def end_all(self, number: int, also_ended: bool = False) -> None:
        for rank in self.ranks:
            if also_ended or rank.poll() is None:
                rank.send(number)

    def _first_failure(self) -> Rank:
        """Ranks that ended only because of another one, or because we killed them, come after all others."""
        failed = [rank for rank in self.ranks if rank.failed]

        def order(rank: Rank) -> tuple:
            secondary = rank.number in self.killed or self.output.is_secondary(rank.number)
            return secondary, self.output.failed_at(rank.number) or rank.ended_at, rank.number

        return min(failed, key=order)


def run(options: argparse.Namespace) -> int:
    """The job, with its restarts; the exit status."""
    job_id = uuid.uuid4().hex if options.nnodes == 1 else f"{options.master_addr}:{options.master_port}"
    previous = {}
    current: list[Job] = []

    def interrupt(number: int, frame) -> None:
        job = current[-1]
        job.interrupts, job.signal = job.interrupts + 1, number
        job.end_all(signal.SIGINT if job.interrupts == 1 else signal.SIGKILL)

    for number in (signal.SIGINT, signal.SIGTERM):
        previous[number] = signal.signal(number, interrupt)
    try:
        for attempt in range(options.max_restarts + 1):
            port = options.master_port or _free_port()
            if options.node_rank == 0:
                _check_port(options.master_addr or "127.0.0.1", port)
            current.append(Job(options, port, job_id, attempt))
            failure = current[-1].wait()
            if current[-1].interrupts:
                return 128 + current[-1].signal
            if failure is None:
                return 0
            report(failure, current[-1].output)
            if attempt < options.max_restarts:
                print(f"launch: starting all ranks again ({attempt + 1} of {options.max_restarts})", file=sys.stderr)
        return status_of(failure)
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
        for job in current:
            job.end_all(signal.SIGKILL)


def report(failure: Rank, output: Output) -> None:
    """The first failure, after everything else that was printed: what the rank said, whole."""
    status = failure.process.returncode
    end = f"was killed by {signal.Signals(-status).name}" if status < 0 else f"failed with exit status {status}"
    print(f"launch: rank {failure.number} {end}; its last output:", file=sys.stderr)
    text = output.last_words(failure.number)
    print(text or "(nothing)", file=sys.stderr, flush=True)


def status_of(failure: Rank) -> int:
    """The exit status a shell would give: 128 + the number of a signal."""
    status = failure.process.returncode
    return 128 - status if status < 0 else status


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _check_port(address: str, port: int) -> None:
    """Errors: LaunchError where somebody listens already."""
    with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address if address in ("127.0.0.1", "localhost", "::1") else "", port))
        except OSError as fault:
            _fail(f"port {port} cannot be used", got=str(fault), help="choose another --master-port, or leave it out")


def _fail(rule: str, **rest: str) -> None:
    raise LaunchError(message("launch", rule, location=("", 0), **rest))


def main(argv: list[str] | None = None) -> int:
    """The program. Exit status: that of the first rank that failed; 2 for bad input; 130 after Ctrl-C, 143 after SIGTERM."""
    try:
        return run(parse(argv))
    except LaunchError as fault:
        print(f"error: {fault}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
