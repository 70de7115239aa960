"""Random trainings (`draw_layers`) for as long as there is time, by many processes; a line of JSON for each seed.

    python tests/long_run_layers.py --device cuda --seconds 100 --jobs 14 --folder results [--first 0]
    python tests/long_run_layers.py --device plans --seconds 600 --jobs 1 --folder results     # needs no GPU

On "cuda" each training is compiled, replayed and judged (`gpu_layers.faults`); on "cpu" judged; with "plans" its steps
are compiled for sm_90a, their memory checked, their kernels assembled. Seeds take turns in precision and in which part
of the GPU they are compiled for (`small_gpus`). Failing seeds are printed, with the smallest recipe found that fails,
too. A process that dies is started again behind the seed that killed it.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
import traceback
from pathlib import Path

TESTS = Path(__file__).resolve().parent
PRECISIONS = ("tf32", "bf16", "tf32", "bf16", "fp32")
LEAVE, MARGIN = 25.0, 6.0  # seconds for a smaller recipe; before the end nothing new is begun


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cuda", "cpu", "plans"), default="cuda")
    parser.add_argument("--seconds", type=float, default=100.0)
    parser.add_argument("--jobs", type=int, default=14)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--folder", default="layer-results")
    parser.add_argument("--worker", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    end = time.time() + options.seconds
    folder = Path(options.folder)
    folder.mkdir(parents=True, exist_ok=True)
    if options.worker is not None:
        worker(options, folder, end)
        return 0
    environment = {**os.environ, "BLUTRAIN_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    firsts = {number: options.first + number for number in range(options.jobs)}
    running = {number: started(options, number, first, end, environment) for number, first in firsts.items()}
    while running and time.time() < end + MARGIN:
        time.sleep(0.2)
        for number, process in list(running.items()):
            if process.poll() is None:
                continue
            del running[number]
            firsts[number] = last_seed(folder, number, firsts[number]) + options.jobs
            if process.returncode and time.time() < end - MARGIN:
                running[number] = started(options, number, firsts[number], end, environment)
    for process in running.values():
        process.kill()
    return summary(folder)


def started(options, number: int, first: int, end: float, environment: dict) -> subprocess.Popen:
    rest = ["--device", options.device, "--seconds", str(end - time.time()), "--folder", options.folder]
    rest += ["--first", str(first), "--jobs", str(options.jobs), "--worker", str(number)]
    with (Path(options.folder) / f"worker-{number}.log").open("a") as log:
        return subprocess.Popen([sys.executable, __file__, *rest], env=environment, stdout=log, stderr=log)


def last_seed(folder: Path, number: int, first: int) -> int:
    path = folder / f"worker-{number}.begun"
    return int(path.read_text()) if path.exists() else first


def worker(options, folder: Path, end: float) -> None:
    """Seeds first, first + jobs, ... until the time is over."""
    sys.path[:0] = [str(TESTS), str(TESTS.parent)]
    from draw_layers import draw

    seed = options.first
    while time.time() < end - MARGIN:
        (folder / f"worker-{options.worker}.begun").write_text(str(seed))
        start, recipe, precision = time.time(), draw(seed), PRECISIONS[seed % len(PRECISIONS)]
        found = tried(recipe, options.device, precision, seed)
        row = {"seed": seed, "precision": precision, "seconds": round(time.time() - start, 2), "faults": found[:6]}
        write(folder, options.worker, {**row, "recipe": recipe.text(), "data": repr(recipe)} if found else row)
        if any("CUDA_ERROR" in text or "cudaError" in text for text in found):
            sys.exit(3)  # nothing works in this process any more
        if found:
            until = min(time.time() + min(LEAVE, options.seconds / 4), end - MARGIN)
            least = less(recipe, options.device, precision, kind(found), until)
            write(folder, options.worker, {"seed": seed, "smallest": least.text(), "data of it": repr(least)})
        seed += options.jobs


def less(recipe, device: str, precision: str, wanted: str, until: float):
    """The smallest recipe found in time with that kind of fault."""
    from draw_layers import smallest

    return smallest(recipe, lambda r: time.time() < until and kind(tried(r, device, precision, r.seed)) == wanted)


def write(folder: Path, number: int, row: dict) -> None:
    with (folder / f"worker-{number}.jsonl").open("a") as file:
        file.write(json.dumps(row) + "\n")


def tried(recipe, device: str, precision: str, seed: int) -> list[str]:
    """The faults of a training, exceptions among them."""
    try:
        return faults_on(recipe, device, precision, seed)
    except Exception as error:
        where = traceback.format_tb(error.__traceback__)[-2:]
        return [f"{type(error).__name__}: {error}"[:1500], *where]


def faults_on(recipe, device: str, precision: str, seed: int) -> list[str]:
    if device == "cuda":
        from gpu_layers import faults

        return faults(recipe, precision, seed)
    if device == "cpu":
        from rounding_judge import judged

        return judged(recipe, "cpu", None)
    from layer_plans import planned, recorded
    from small_gpus import variant

    from blutrain.nova.gpu.assemble import assemble, plan_jobs
    from blutrain.nova.target_gpu import gpu_facts

    for step in recorded(recipe):
        assemble(plan_jobs(planned(step, variant(gpu_facts("sm_90a"), seed), precision)))
    return []


def kind(found: list[str]) -> str:
    """What sort of fault: the class of an exception, or where a number differs."""
    return found[0].split(":")[0].split(" ")[0] if found else ""


def summary(folder: Path) -> int:
    """Prints what failed; the number of seeds that did."""
    rows: dict[int, dict] = {}
    for path in sorted(folder.glob("worker-*.jsonl")):
        for line in path.read_text().splitlines():
            row = json.loads(line)
            rows[row["seed"]] = {**rows.get(row["seed"], {}), **row}
    failed = [row for row in rows.values() if row["faults"]]
    for row in failed:
        print(
            f"seed {row['seed']} {row['precision']}:",
            *row["faults"][:2],
            row.get("smallest", row.get("recipe", "")),
            sep="\n  ",
        )
    begun = {int(path.read_text()) for path in folder.glob("worker-*.begun")} - rows.keys()
    print(f"{len(rows)} seeds, {len(failed)} failed {sorted(row['seed'] for row in failed)}; not finished {sorted(begun)}; "
          f"{sum(row['seconds'] for row in rows.values()):.0f} s of work")  # fmt: skip
    return len(failed)


if __name__ == "__main__":
    sys.exit(min(1, main()))
