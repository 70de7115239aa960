"""Who this process is among the ranks, from the environment variables of whoever started it.

The names of PyTorch's launchers come first (our own launcher, torchrun and Kubernetes set them), then those of MPICH's
and Open MPI's mpiexec and of SLURM. Nothing here talks to anybody.
"""

from __future__ import annotations

import os
import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass

from ..errors import message


@dataclass(frozen=True)
class World:
    """rank 0 <= rank < size; local_rank counts the ranks of one host (-1: nobody says, see group.py); address, port: where
    rank 0 listens ("" and 0: MPI itself has to tell); speaks_pmi: MPI's own process manager started this process; job:
    equal on all ranks of one start; restart: how often the launcher has started the job again; is_launched: somebody
    started this process as a rank, if only as the one of one.
    """

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1
    address: str = ""
    port: int = 0
    speaks_pmi: bool = False
    job: str = ""
    restart: int = 0
    is_launched: bool = False


# (rank, size, rank on this host, size on this host), by starter
_NAMES = (
    ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
    ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_NTASKS_PER_NODE"),
)


def read_world(environment: Mapping[str, str] | None = None) -> World:
    """This process among the ranks; a world of one where nobody started several.

    Errors: ValueError for variables that contradict each other, or an address that is missing.
    """
    env = os.environ if environment is None else environment
    names = next((n for n in _NAMES if n[0] in env and n[1] in env), None)
    if names is None:
        _refuse_half(env)
        return World()
    rank, size = _number(env, names[0]), _number(env, names[1], least=1)
    if rank >= size:
        _fail(f"{names[0]}={rank} is no rank of {names[1]}={size}", expected=f"0 <= rank < {size}")
    is_mpiexecs = (env.get("PMI_RANK"), env.get("PMI_SIZE")) == (str(rank), str(size))  # not of one further out
    speaks_pmi = is_mpiexecs and ("PMI_FD" in env or "PMI_PORT" in env)
    local_rank = _number(env, names[2]) if names[2] in env else -1 if size > 1 else 0
    local_size = _number(env, names[3], least=1) if names[3] in env else size
    address, port = _meeting_place(env, size, speaks_pmi)
    job = env.get("LAUNCH_ID") or env.get("TORCHELASTIC_RUN_ID") or _slurm_job(env)
    restart = int(env.get("LAUNCH_RESTART") or env.get("TORCHELASTIC_RESTART_COUNT") or 0)
    is_launched = size > 1 or "RANK" in env  # an allocation of one task (SLURM) sets its variables for any command
    return World(
        rank, size, local_rank, local_size, address, port, speaks_pmi, f"{job}/{restart}", restart, is_launched
    )


def restart_count() -> int:
    """How often the launcher has started this job again after a failure: a script resumes where it is not 0."""
    return read_world().restart


def is_launched() -> bool:
    """Whether a launcher started this process as a rank, if only as the one of one."""
    return read_world().is_launched


def _meeting_place(env: Mapping[str, str], size: int, speaks_pmi: bool) -> tuple[str, int]:
    """Where rank 0 listens."""
    if "MASTER_ADDR" in env and "MASTER_PORT" in env:
        # torchrun's own store keeps listening at the port that it hands out
        return env["MASTER_ADDR"], _port(env) + ("TORCHELASTIC_RUN_ID" in env)
    if "SLURM_PROCID" in env and "RANK" not in env and ("SLURM_STEP_NODELIST" in env or "SLURM_JOB_NODELIST" in env):
        nodes = env.get("SLURM_STEP_NODELIST") or env["SLURM_JOB_NODELIST"]
        port = _port(env) if "MASTER_PORT" in env else _port_of(_slurm_job(env))
        return env.get("MASTER_ADDR") or _first_host(nodes), port
    local = env.get("OMPI_COMM_WORLD_LOCAL_SIZE")
    if local is not None and local == env.get("OMPI_COMM_WORLD_SIZE"):
        return "127.0.0.1", _port_of(env.get("PMIX_NAMESPACE", "") + env.get("OMPI_MCA_ess_base_jobid", ""))
    if speaks_pmi:
        return "", 0
    if size > 1:
        missing = " and ".join(name for name in ("MASTER_ADDR", "MASTER_PORT") if name not in env)
        _fail(
            f"{missing} is not set",
            expected="the host of rank 0 and a free port there",
            help="start the script with python -m blutrain.distributed.launch, which sets them",
        )
    return "127.0.0.1", 0


def _port(env: Mapping[str, str]) -> int:
    port = _number(env, "MASTER_PORT", least=1)
    if port >= 1 << 16:
        _fail("MASTER_PORT is no port", expected="1 to 65535", got=str(port))
    return port


def _slurm_job(env: Mapping[str, str]) -> str:
    return f"slurm-{env['SLURM_JOB_ID']}.{env.get('SLURM_STEP_ID', '')}" if "SLURM_JOB_ID" in env else ""


def _port_of(job: str) -> int:
    """A port that all ranks of a job compute alike."""
    return 20000 + zlib.crc32(job.encode()) % 20000


def _first_host(nodes: str) -> str:
    """The first of SLURM's list: node[03-05,9],other -> node03."""
    found = re.match(r"([^,\[]+)(?:\[([^\],-]+))?", nodes)
    return "".join(filter(None, found.groups())) if found else nodes


def _refuse_half(env: Mapping[str, str]) -> None:
    for rank, size, *_ in _NAMES[:1]:
        given = [name for name in (rank, size) if name in env]
        if given:
            missing = rank if given[0] == size else size
            _fail(f"{given[0]} is set, {missing} is not", help=f"set both, or unset {given[0]}")


def _number(env: Mapping[str, str], name: str, least: int = 0) -> int:
    text = env[name]
    if not text.isdigit() or int(text) < least:
        _fail(f"{name} is no such number", expected=f"an integer of at least {least}", got=repr(text))
    return int(text)


def _fail(rule: str, **rest: str) -> None:
    raise ValueError(message("distributed", rule, location=("", 0), **rest))
