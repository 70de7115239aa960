"""Starting several ranks in a test."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PROGRAMS = str(ROOT / "tests" / "distributed_programs.py")
TRAINING = str(ROOT / "tests" / "distributed_training.py")
FAULTS = str(ROOT / "tests" / "distributed_faults.py")
LAUNCH = [sys.executable, "-m", "blutrain.distributed.launch"]


def environment(**more) -> dict[str, str]:
    """That of a shell in which nobody launched anything."""
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", "PMI_RANK", "SLURM_PROCID")
    kept = {k: v for k, v in os.environ.items() if k not in names}
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    return {**kept, "PYTHONPATH": path, **more}


def start(ranks: int, *command: str, options: tuple[str, ...] = (), **env) -> subprocess.Popen:
    """The launcher with `ranks` ranks of a command (script, or -m module, and arguments)."""
    return subprocess.Popen(
        [*LAUNCH, "--nproc-per-node", str(ranks), *options, *command],
        cwd=ROOT,
        env=environment(**env),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def launch(ranks: int, *command: str, options: tuple[str, ...] = (), **env) -> tuple[int, str, str]:
    """(exit status, stdout, stderr) of the launcher."""
    process = start(ranks, *command, options=options, **env)
    try:
        out, err = process.communicate(timeout=100)
    except subprocess.TimeoutExpired:
        process.kill()
        out, err = process.communicate()
        raise AssertionError(f"the ranks do not end\n{out}\n{err}") from None
    return process.returncode, out, err


def program(ranks: int, *arguments: str, **rest) -> tuple[int, str, str]:
    """Ranks of tests/distributed_programs.py."""
    return launch(ranks, PROGRAMS, *arguments, **rest)
