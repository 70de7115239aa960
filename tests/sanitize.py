"""compute-sanitizer over one launch of every GPU kernel family (`fire_cases`).

    python tests/sanitize.py check                   # on a GPU: all tools, all families; the last lines are the summary
    python tests/sanitize.py build FILE              # kernels, assembled, and their operands: needs no GPU
    python tests/sanitize.py run FILE simt ampere    # launches those families' kernels: what the tools look at

`run` has the CUDA driver alone in its process (no MLIR, no CuPy), and every buffer is an allocation of its own, so that
an access one byte outside is seen. memcheck and synccheck must find nothing in any family, racecheck nothing where
neither TMA nor clusters are used; what racecheck and initcheck say of the rest is reported.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import pickle
import re
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

TESTS = Path(__file__).resolve().parent
FAMILIES = ("simt", "ampere", "hopper")
# (tool, family, what is expected): "clean", "faulty" (a planted fault, so that a tool that sees nothing shows), or
# "reported": the tool does not know all that these kernels do.
RUNS = [
    ("memcheck", "planted-end", "faulty"),
    ("racecheck", "planted-race", "faulty"),
    *((tool, family, "clean") for tool in ("memcheck", "synccheck") for family in FAMILIES),
    ("racecheck", "simt", "clean"),
    ("racecheck", "ampere", "clean"),
    ("racecheck", "hopper", "reported"),
    *(("initcheck", family, "reported") for family in FAMILIES),
]
SUMMARY = re.compile(r"(?:ERROR SUMMARY|RACECHECK SUMMARY): (.*)")
ROOTS = ("/usr/local/cuda/bin", "/opt/nvidia/cuda/bin", "/usr/local/cuda/compute-sanitizer", "/opt/cuda/bin")


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    check_ = commands.add_parser("check")
    check_.add_argument("--seconds", type=float, default=60.0, help="for one tool over one family")
    check_.add_argument("--jobs", type=int, default=4, help="tools at once")
    check_.add_argument("--tools", nargs="*", default=["memcheck", "synccheck", "racecheck", "initcheck"])
    build_ = commands.add_parser("build")
    build_.add_argument("file")
    run_ = commands.add_parser("run")
    run_.add_argument("file")
    run_.add_argument("families", nargs="*", default=FAMILIES)
    run_.add_argument("--raw", action="store_true", help="leave results and workspace as they were allocated")
    options = parser.parse_args(argv)
    sys.path[:0] = [str(TESTS), str(TESTS.parent)]
    if options.command == "build":
        build(options.file)
        return 0
    if options.command == "run":
        run(options.file, options.families, not options.raw)
        return 0
    return check(options.tools, options.seconds, options.jobs)


def build(path: str) -> None:
    """Writes (name, plan, code, operands as bytes) of every case."""
    import fire_cases
    import numpy as np

    from blutrain.nova.gpu.assemble import assemble, plan_jobs

    cases = [fire_cases.make(name) for name in fire_cases.CASES]
    plans = [case.plan() for case in cases]
    code = assemble([job for plan in plans for job in plan_jobs(plan)], strict=False)
    operands = [[np.ascontiguousarray(array).tobytes() for array in case.arrays()] for case in cases]
    made = list(zip([case.name for case in cases], plans, code, operands, strict=True))
    by_name = {entry[0]: entry for entry in made}
    with open(path, "wb") as file:
        pickle.dump([*made, planted_end(by_name["simt map gelu"]), planted_race(by_name["simt row softmax"])], file)


def planted_end(entry: tuple) -> tuple:
    """The kernel with memory for one element less than it writes."""
    _, plan, code, operands = entry
    (result,) = plan.outputs
    short = dataclasses.replace(result, shape=(result.shape[0] - 1,))
    return "planted-end", dataclasses.replace(plan, outputs=(short,)), code, operands


def planted_race(entry: tuple) -> tuple:
    """The kernel without its barriers."""
    from blutrain.nova.gpu import lower
    from blutrain.nova.gpu.assemble import ptxas_path

    _, plan, code, operands = entry
    ptx, count = re.subn(r"\tbar\.sync[^;]*;", "", code.ptx)
    assert count, "a kernel with barriers is needed"
    cubin = lower.to_cubin(ptx, plan.kernels[0].target, ptxas_path())[0] if ptxas_path() else b""
    return "planted-race", plan, dataclasses.replace(code, ptx=ptx, cubin=cubin), operands


def run(path: str, families: list[str], is_poisoned: bool) -> None:
    """Launches each kernel of the families once."""
    from blutrain.nova.gpu.driver import driver

    with open(path, "rb") as file:
        cases = [case for case in pickle.load(file) if case[0].split()[0] in families]
    gpu = driver()
    context = gpu.call("cuDevicePrimaryCtxRetain", gpu.call("cuDeviceGet", 0))
    gpu.call("cuCtxSetCurrent", context)
    for case in cases:
        print("case", case[0], flush=True)
        launch(gpu, *case, is_poisoned)
    print("done", len(cases), "kernels", flush=True)


def launch(gpu: Any, name: str, plan: Any, code: Any, operands: list[bytes], is_poisoned: bool) -> None:
    from blutrain.nova.gpu.launch import ArgumentTable
    from blutrain.nova.gpu.launch_code import Launches, LoadedModule

    table = ArgumentTable(plan, gpu.encode_tensor_map)
    owned = []

    def buffer(num_bytes: int) -> int:
        address = int(gpu.call("cuMemAlloc", max(num_bytes, 1)))
        owned.append(address)
        return address

    for index, content in enumerate(operands):
        table.bind(index, address := buffer(len(content)))
        if content:
            gpu.call("cuMemcpyHtoD", address, content, len(content))
    poisoned = [("output", index, size) for index, size in enumerate(plan.sizes("output"))]
    for space, index, size in [*poisoned, ("workspace", 0, plan.kernels[0].workspace_bytes)]:
        table.set_base(space, index, address := buffer(size))
        if is_poisoned:
            gpu.call("cuMemsetD8", address, 0xFF, max(size, 1))
    table.take_changes()
    launches = Launches(gpu, plan, table.phases, [LoadedModule(gpu, code)], None)  # type: ignore[arg-type]
    launches.emit(0)
    gpu.call("cuCtxSynchronize")
    for address in owned:
        gpu.call("cuMemFree", address)


# -------------------------------------------------------------------- under the tools


def check(tools: list[str], seconds: float, jobs: int) -> int:
    """Runs the tools; 0 where none of those that must find nothing did."""
    sanitizer = find_sanitizer()
    if not sanitizer:
        print("sanitize: compute-sanitizer is not on the PATH nor where CUDA toolkits have it", file=sys.stderr)
        return 2
    wanted = [entry for entry in RUNS if entry[0] in tools]
    with tempfile.TemporaryDirectory(prefix="nova-sanitize-") as folder, ThreadPoolExecutor(jobs) as pool:
        path, start = os.path.join(folder, "cases"), time.perf_counter()
        subprocess.run([sys.executable, __file__, "build", path], check=True)
        print(f"built in {time.perf_counter() - start:.1f} s", flush=True)
        found = list(pool.map(lambda entry: one(sanitizer, *entry[:2], path, seconds), wanted))
    lines, is_clean = [], True
    for (tool, family, expected), (said, verdict) in zip(wanted, found, strict=True):
        is_as_expected = expected in ("reported", verdict)
        is_clean &= is_as_expected
        lines.append(f"{tool:10s} {family:12s} {said}{'' if is_as_expected else f' (expected: {expected})'}")
    print("\n".join(["SUMMARY", *lines, "CLEAN" if is_clean else "NOT CLEAN"]))
    return 0 if is_clean else 1


def find_sanitizer() -> str:
    """Its path, "" where there is none."""
    found = shutil.which("compute-sanitizer") or shutil.which("compute-sanitizer", path=os.pathsep.join(ROOTS))
    return found or next(
        (str(path) for path in sorted(Path("/opt").glob("**/compute-sanitizer")) if path.is_file()), ""
    )


def one(sanitizer: str, tool: str, family: str, path: str, seconds: float) -> tuple[str, str]:
    """What a tool says of a family in a line; and "clean", "faulty", or "unknown" where it did not come to its end."""
    command = [sanitizer, "--tool", tool, "--destroy-on-device-error", "kernel", "--print-limit", "20"]
    if tool == "racecheck":
        command += ["--racecheck-report", "all"]
    command += [sys.executable, __file__, "run", path, family, *(["--raw"] if tool == "initcheck" else [])]
    start, pipe = time.perf_counter(), subprocess.PIPE
    process = subprocess.Popen(command, stdout=pipe, stderr=subprocess.STDOUT, text=True, start_new_session=True)
    try:
        said, _ = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, 9)
        said = process.communicate()[0]
    took = time.perf_counter() - start
    summaries, names = SUMMARY.findall(said), re.findall(r"^case (.*)$", said, re.MULTILINE)
    is_done = bool(re.search(r"^done \d+ kernels$", said, re.MULTILINE))
    summary = summaries[-1] if summaries else "no summary"
    counted = re.match(r"\d+", summary)
    verdict = "unknown" if counted is None else "faulty" if int(counted[0]) else "clean" if is_done else "unknown"
    if verdict != "clean" and not family.startswith("planted"):
        show(tool, family, said)
    state = "" if is_done else f", stopped in {names[-1] if names else 'its start'!r}"
    return f"{len(names)} kernels, {took:.0f} s: {summary}{state}", verdict


def show(tool: str, family: str, said: str) -> None:
    """The tool's first complaints, each under the case that it came in."""
    kept, case = [], ""
    for line in said.splitlines():
        if line.startswith("case "):
            case = line
        elif line.startswith("=========") and "Host Frame" not in line and len(line) > 12 and "Saved host" not in line:
            if case:
                kept.append(case)
                case = ""
            kept.append(line)
    tail = [line for line in said.splitlines() if not line.startswith("=========")][-8:]
    print("\n".join([f"--- {tool} {family}", *kept[:50], *tail]), flush=True)


if __name__ == "__main__":
    sys.exit(main())
