"""Machine code of GPU kernels, from the cache or from the compile workers.

    assembled = assemble([AssembleJob(kernel.text, kernel.target, op="contract 3", location="train.py:12")])
    assembled[0].image                  # what the driver loads: a cubin, or PTX where there is no ptxas
    assembled[0].functions["gemm"]      # registers, spills and shared memory of each kernel function

A text that does not compile, and a product of matrices whose machine code spills or waits where it must not
(`assemble_report.faults`), raise NovaError with a reproducer: a file with the text, and the command that replays it.
A program that runs takes the second kind with a warning (strict=False): another release of ptxas may spill a few bytes.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import os
import pickle
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ... import config
from ...errors import NovaError
from .. import cache
from ..cpu import orc
from ..cpu.compile_workers import Failure, Further, shared_workers
from ..cpu.objects import object_cache
from ..plan import Launch, ProgramPlan
from ..target import num_threads
from . import lower
from .assemble_report import FunctionReport, faults, read_report
from .launch import gpu_kernel


@dataclass(frozen=True)
class AssembleJob:
    """A text to compile for a target, and whose it is: a launch's label and the user's line, for the error message."""

    text: str
    target: str
    op: str = ""
    location: str = ""


@dataclass(frozen=True)
class AssembledKernel:
    """PTX, machine code (empty without a ptxas: the driver compiles the PTX), and ptxas's report by function."""

    ptx: str
    cubin: bytes
    said: str
    functions: dict[str, FunctionReport] = field(compare=False)

    @property
    def image(self) -> bytes:
        """What cuModuleLoadData takes: the machine code, or PTX with its terminating zero."""
        return self.cubin or self.ptx.encode() + b"\0"


@dataclass
class Counts:
    """What `assemble` did in this process: kernels found in the cache, kernels compiled."""

    cached: int = 0
    compiled: int = 0


counts = Counts()


def plan_jobs(plan: ProgramPlan) -> list[AssembleJob]:
    """One job a kernel, named after the first launch that uses it."""
    owners = {launch.kernel: launch for launch in reversed(plan.launches) if isinstance(launch, Launch)}
    jobs = []
    for number in range(len(plan.kernels)):
        launch = owners.get(number, Launch(number, ()))
        kernel = gpu_kernel(plan, launch)
        location = launch.locations[0] if launch.locations else ""
        jobs.append(AssembleJob(kernel.text, kernel.target, op=launch.label, location=location))
    return jobs


def assemble(jobs: Sequence[AssembleJob], strict: bool = True) -> list[AssembledKernel]:
    """One kernel for each job. Equal texts are compiled once. Raises NovaError for the first job that failed."""
    store, keys = object_cache(), [assembly_key(job.text, job.target) for job in jobs]
    found = {key: store.get(key) for key in keys}
    missing = {key: job for key, job in zip(keys, jobs, strict=True) if found[key] is None}
    counts.cached += len(found) - len(missing)
    if missing:
        requests = [(lower.__file__, (job.text, job.target, ptxas_path())) for job in missing.values()]
        results = shared_workers(num_threads()).compile(requests)
        for (key, job), result in zip(missing.items(), results, strict=True):
            if isinstance(result, Failure):
                raise _error(job, result.stage, result.message)
            store.put(key, result)
            found[key] = result
            counts.compiled += 1
    kernels = {key: _read(data) for key, data in found.items() if data is not None}
    for key, job in zip(keys, jobs, strict=True):
        if problem := faults(kernels[key].ptx, kernels[key].said, kernels[key].functions):
            fault = _error(job, "ptxas", problem)
            if strict:
                raise fault
            warnings.warn(f"{fault}\n  the kernel is right, and slower than it should be", RuntimeWarning, stacklevel=2)
    return [kernels[key] for key in keys]


def assemble_ahead(text: str, target: str) -> Further | None:
    """What lets a worker compile a text that `assemble` will ask for, and keeps what it made; None where it is there."""
    store, key = object_cache(), assembly_key(text, target)
    if store.get(key) is not None:
        return None

    def keep(data: bytes) -> None:
        store.put(key, data)
        counts.compiled += 1

    return (lower.__file__, (text, target, ptxas_path())), keep


def _read(data: bytes) -> AssembledKernel:
    ptx, cubin, said = pickle.loads(data)
    return AssembledKernel(ptx, cubin, said, read_report(said))


def assembly_key(text: str, target: str) -> str:
    """The cache key of a text compiled for a target."""
    return cache.object_key(text, ("gpu", target), toolchain())


@functools.cache
def toolchain() -> tuple[str, ...]:
    """Versions of LLVM (and the library's size, which tells its builds apart) and ptxas, source of the lowering."""
    source = hashlib.sha256(Path(lower.__file__).read_bytes()).hexdigest()
    return orc.version(), str(orc.library_path().stat().st_size), source, ptxas_version()


@functools.cache
def ptxas_path() -> str:
    """ptxas of the wheel nvidia-cuda-nvcc, of the PATH, or of a CUDA toolkit; "" without any.

    Of two wheels that of CUDA 12: a driver runs the code of older toolkits, and perhaps not that of newer ones.
    """
    spec = importlib.util.find_spec("nvidia")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        for pattern in ("cuda_nvcc/bin/ptxas", "cu*/bin/ptxas"):
            found = sorted(Path(folder).glob(pattern))
            if found and os.access(found[0], os.X_OK):
                return str(found[0])
    roots = [os.environ.get("CUDA_HOME", ""), os.environ.get("CUDA_PATH", ""), "/usr/local/cuda"]
    toolkits = [os.path.join(root, "bin") for root in roots if root]
    return shutil.which("ptxas") or shutil.which("ptxas", path=os.pathsep.join(toolkits)) or ""


@functools.cache
def ptxas_version() -> str:
    """ "13.0.88", or "none" where the driver compiles PTX. Raises NovaError for a ptxas that does not run."""
    path = ptxas_path()
    if not path:
        return "none"
    try:
        said = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=30, check=True).stdout
    except (OSError, subprocess.SubprocessError) as error:
        raise NovaError(f"ptxas cannot be run: {error}", stage="toolchain") from error
    match = re.search(r"V(\d[\d.]*)", said)
    return match.group(1) if match else said.strip()


def _error(job: AssembleJob, stage: str, message: str) -> NovaError:
    path = write_reproducer(job.text, job.target)
    return NovaError(message, stage=stage, op=job.op, location=job.location, dump=path)


def write_reproducer(text: str, target: str) -> str:
    """Writes a text, and beside it the command that compiles it, to NOVA_DUMP or a new private folder; its path."""
    folder = config.get("NOVA_DUMP") or tempfile.mkdtemp(prefix="nova-")
    os.makedirs(folder, exist_ok=True)
    path = Path(folder) / f"{hashlib.sha256(text.encode()).hexdigest()[:16]}.mlir"
    path.write_text(text, encoding="utf-8")
    command = [sys.executable, lower.__file__, str(path), target, *([ptxas_path()] if ptxas_path() else [])]
    script = shlex.join(command) + f" > {shlex.quote(str(path.with_suffix('.ptx')))}\n"
    path.with_suffix(".sh").write_text(script, encoding="utf-8")
    return str(path)
