"""What every benchmark's JSON file holds: the results, and the machine, versions, date and command behind them."""

from __future__ import annotations

import datetime
import functools
import importlib.metadata
import importlib.util
import json
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

PACKAGES = ("numpy", "cupy-cuda13x", "cupy-cuda12x", "torch", "jax", "mpi4py")


def environment(script: str, argv: list[str] | None) -> dict[str, Any]:
    """Name of the benchmark, machine, versions, date (UTC) and command; argv None: the process's arguments."""
    arguments = sys.argv[1:] if argv is None else argv
    return {
        "benchmark": Path(script).stem,
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "machine": machine(),
        "versions": versions(),
        "command": " ".join(["python", f"benchmarks/{Path(script).name}", *arguments]),
    }


@functools.cache
def machine() -> str:
    """ "4 x NVIDIA H200, driver 580.159, 64 CPU cores", or the CPU's name and its cores."""
    query = "--query-gpu=name,driver_version", "--format=csv,noheader"
    gpus = [line.split(", ") for line in _said("nvidia-smi", *query).splitlines() if ", " in line]
    cores = f"{len(os.sched_getaffinity(0)) if hasattr(os, 'sched_getaffinity') else os.cpu_count()} CPU cores"
    if not gpus:
        return f"{_cpu_name()}, {cores}"
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    count = len(gpus) if visible is None else len(visible.split(","))
    name, driver = gpus[0]
    return f"{f'{count} x ' if count > 1 else ''}{name}, driver {driver}, {cores}"


@functools.cache
def versions() -> dict[str, str]:
    """Of Python, of the packages that are installed, of the LLVM behind MLIR, and of ptxas."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    from blutrain.nova.cpu import orc
    from blutrain.nova.gpu.assemble import ptxas_version

    return {**found, "llvm": orc.version(), "ptxas": ptxas_version()}


def save(path: str | Path, script: str, results: Any, argv: list[str] | None = None, **more: Any) -> None:
    """Writes the file: `environment` of the script (its __file__), what `more` names, then the results."""
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    content = {**environment(script, argv), **more, "results": results}
    Path(path).write_text(json.dumps(content, indent=1) + "\n")


def _cpu_name() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())


def _said(*command: str) -> str:
    """What a command prints, "" where it is not there or fails."""
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""
