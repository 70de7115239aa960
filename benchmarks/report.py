"""The tables of docs/performance.md, from the JSON files in benchmarks/results/, so that neither can be old without the other.

    python benchmarks/report.py docs/performance.md             # renders every block again
    python benchmarks/report.py docs/performance.md --check     # status 1 where a block is not what its file says

A block begins with the line `<!-- results/step-h200.json -->` and ends with `<!-- end -->`. The benchmark that wrote the file
decides how it is rendered.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from scaling_report import table as scaling

BLOCK = re.compile(r"(<!-- (results/[\w.-]+\.json) -->\n).*?(<!-- end -->)", re.DOTALL)
MIB = 2**20


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("page")
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args(argv)
    path = Path(options.page)
    text = path.read_text()
    rendered = BLOCK.sub(lambda found: found[1] + render(Path(__file__).parent / found[2]) + found[3], text)
    if options.check:
        return int(text != rendered)
    path.write_text(rendered)
    return 0


def render(path: Path) -> str:
    """A result file as Markdown, with what it ran on below. Errors: KeyError for a script that has no table."""
    run = json.loads(path.read_text())
    table = TABLES[run["benchmark"]](run)
    versions = ", ".join(f"{name} {version}" for name, version in run["versions"].items())
    command = re.sub(r" --(json|plot|table) \S+", "", run["command"])
    return f"{table}\n`{command}`, {run['date'][:10]}, {run['machine']}; {versions}.\n"


def rows(header: Iterable[str], lines: Iterable[Iterable[Any]]) -> str:
    header = list(header)
    shown = [header, ["---"] * len(header), *lines]
    return "".join(f"| {' | '.join(map(str, line))} |\n" for line in shown)


def step(run: dict[str, Any]) -> str:
    """A row for each size: each subject's milliseconds, then ours: compiled's (or eager's) ratio to the fastest peer."""
    sizes: dict[tuple, dict[str, dict]] = {}
    for r in run["results"]:
        name = r["preset"] or f"{r['n_embd']} x {r['n_layer']} layers, {r['batch_size']} x {r['block_size']} tokens"
        sizes.setdefault((name, r["precision"]), {})[r["mode"]] = r
    modes = list(dict.fromkeys(r["mode"] for r in run["results"]))
    lines = []
    for size, subjects in sizes.items():
        timed = {mode: r for mode, r in subjects.items() if "ms" in r}
        cells = [cell(subjects.get(mode)) for mode in modes]
        ours = timed.get("compiled") or timed.get("eager")
        best = min((r["ms"] for mode, r in timed.items() if mode not in ("compiled", "eager")), default=None)
        ratio = f"{best / ours['ms']:.2f}" if ours and best else ""
        lines.append([*size, *cells, ratio, f"{ours['host_us']['step']:.0f} us" if ours else ""])
    return rows(["model", "precision", *modes, "ratio to the best peer", "host time of a step"], lines)


def cell(r: dict[str, Any] | None) -> str:
    if r is None or "ms" not in r:
        return "failed" if r and "error" in r else ""
    return f"{r['ms']:.2f} ms, {r['tokens_per_s'] / 1e3:.0f}K tokens/s"


def matmul(run: dict[str, Any]) -> str:
    """All cases, a row each with both precisions; the summary above them."""
    precisions = list(run["summary"])
    head = rows(
        ["", "least", "at least 1.0", "geometric mean", "largest error", "by torch's, at most"],
        [
            [p, f"{s['least']:.2f}", f"{100 * s['share_at_least_1']:.0f} %", f"{s['geometric_mean']:.3f}",
             f"{s['largest_error']:.1e}", f"{s['largest_error_ratio']:.2f}"]
            for p, s in run["summary"].items()
        ],
    )  # fmt: skip
    cases: dict[tuple, dict[str, dict]] = {}
    for r in run["results"]:
        cases.setdefault((r["case"], f"{r['layout']} {r['m']} x {r['n']} x {r['k']}"), {})[r["precision"]] = r
    lines = [
        [*case, *(f"{by[p]['us']['blutrain']:.1f} us, {by[p]['speedup']:.2f}" if p in by else "" for p in precisions)]
        for case, by in cases.items()
    ]
    return head + "\n" + rows(["product", "M x N x K", *(f"{p}: time, ratio to torch" for p in precisions)], lines)


def configurator(run: dict[str, Any]) -> str:
    head = rows(
        ["shapes", "number", "geometric mean of pick / best", "worst", "predicted / measured, mean (least to most)"],
        [
            [name, s["shapes"], f"{s['geometric_mean']:.3f}", f"{s['worst']:.3f}",
             f"{s['predicted_by_measured']:.2f} ({s['predicted_least']:.2f} to {s['predicted_most']:.2f})"]
            for name, s in run["summary"].items()
        ],
    )  # fmt: skip
    lines = [
        [r["shape"], f"{r['pick_us']:.1f}", f"{r['best_us']:.1f}", f"{r['ratio']:.3f}", f"{r['predicted_us']:.1f}",
         f"{r['swept']} of {r['legal']}", r["pick_schedule"]]
        for r in run["results"] if r["ratio"]
    ]  # fmt: skip
    names = ["shape", "pick, us", "best, us", "ratio", "predicted, us", "swept of legal", "pick"]
    return head + "\n" + rows(names, lines)


def memory(run: dict[str, Any]) -> str:
    """A row for each size and clipping; with a limit a row a subject."""
    results = run["results"]
    if any("fits" in r for r in results):
        lines = [
            [r["preset"], r["precision"], r["subject"], "trains" if r.get("fits") else "does not"] for r in results
        ]
        return rows(["model", "precision", "subject", "under the limit"], lines)
    subjects = list(dict.fromkeys(r["subject"] for r in results))
    sizes: dict[tuple, dict[str, dict]] = {}
    for r in results:
        sizes.setdefault((r["preset"], r["precision"], r["clip"] or "none"), {})[r["subject"]] = r
    lines = [[*size, *(live(by.get(s)) for s in subjects)] for size, by in sizes.items()]
    return rows(["model", "precision", "clipping", *(f"{s}, MiB" for s in subjects)], lines)


def live(r: dict[str, Any] | None) -> str:
    if r is None or "live_bytes" not in r:
        return ""
    ratio = f" ({r['ratio']:.2f})" if "ratio" in r and r["subject"] != "torch.compile" else ""
    return f"{r['live_bytes'] / MIB:.0f}{ratio}"


def losses(run: dict[str, Any]) -> str:
    lines = [
        [r["precision"], name, f"{d['final']:.4f} %", f"{d['largest']:.4f} %"]
        for r in run["results"] for name, d in r["difference"].items()
    ]  # fmt: skip
    return rows(["precision", "compiled against", "final difference", "largest of any window"], lines)


def first_step(run: dict[str, Any]) -> str:
    names = ("cold", "cached", "eager")
    lines = [
        [r["preset"], r["precision"], *(f"{r[n]['step']:.2f} s" if n in r else "" for n in names)]
        for r in run["results"]
    ]
    return rows(["model", "precision", "caches empty", "from the cache", "eager, caches empty"], lines)


TABLES: dict[str, Callable[[dict[str, Any]], str]] = {
    **{f.__name__: f for f in (step, matmul, configurator, memory, losses, first_step)},
    "scaling_report": lambda run: scaling(run["results"]),
}


if __name__ == "__main__":
    sys.exit(main())
