"""Runs a function of a test module in a process of its own: resident memory means little in one that ran thousands of tests."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def run_in_fresh_process(module: str, function: str) -> None:
    """Call `module.function()` in a new interpreter. Fails with its output where it raises."""
    tests = Path(__file__).parent
    path = os.pathsep.join([str(tests.parent), str(tests), os.environ.get("PYTHONPATH", "")])
    code = f"import {module}; {module}.{function}()"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
