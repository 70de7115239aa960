"""Finds the kernel behind a fault of the device.

Kernels run asynchronously, and after a fault nothing works in a process any more: the program is run again in a process
of its own, without the graph, on arguments that are zeros, waiting for each launch. That finds what does not depend on
values; `NOVA_CHECK=1` finds the rest, in the user's process.
"""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
import tempfile
from typing import Any

from ...errors import NovaError
from ...tensor.device import Device
from ..plan import Callback, ProgramPlan

LIMIT_SECONDS = 60.0


def find_fault(plan: ProgramPlan, device: Device) -> NovaError | None:
    """The error of the launch that fails on zeros, None where all is well then (or the search itself failed)."""
    with tempfile.TemporaryDirectory(prefix="nova-fault-") as folder:
        path = os.path.join(folder, "plan")
        with open(path, "wb") as file:
            pickle.dump(plan, file)
        command = [sys.executable, "-W", "ignore", "-m", __name__, path, str(device)]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "NOVA_CHECK": "0"}
        try:
            done = subprocess.run(command, env=environment, capture_output=True, timeout=LIMIT_SECONDS, check=False)
            found = json.loads(done.stdout.splitlines()[-1])
        except (OSError, subprocess.SubprocessError, ValueError, IndexError):
            return None
    return NovaError(found["rule"], stage="launch", op=found["op"], location=found["location"]) if found else None


def main(path: str, device: str) -> None:
    """Runs a pickled plan launch by launch; the last line of its output is the fault as JSON, or null."""
    with open(path, "rb") as file:
        plan: ProgramPlan = pickle.load(file)
    print(json.dumps(_run(plan, Device(device))), flush=True)
    os._exit(0)  # after a fault the device's libraries cannot clean up


def _run(plan: ProgramPlan, device: Device) -> dict[str, str] | None:
    from .executable import build_executable

    executable = build_executable(plan, device)
    with device.activate():
        arguments = [device.xp.zeros(max(size, 1), "u1") for size in plan.sizes("input")]
        for index, array in enumerate(arguments):
            executable.bind(index, executable.address(array))
        for symbol in {launch.symbol for launch in plan.launches if isinstance(launch, Callback)}:
            executable.set_callback(symbol, _nothing)
        try:
            executable.launch_checked()
        except NovaError as fault:
            return {"rule": str(fault).splitlines()[0].partition(": ")[2], "op": fault.op, "location": fault.location}
    return None


def _nothing(argument: Any) -> None:
    """Stands for a callback."""


if __name__ == "__main__":
    main(*sys.argv[1:])
