"""From the records of benchmarks/ddp.py, one a line, to a JSON file, a table and a plot: for scaling.sh."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from record import save

NAMES = {"eager": "blutrain eager", "compiled": "blutrain compiled", "sharded": "blutrain compiled, ZeRO-1"}


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("records", help="a file with a JSON object a line, or a JSON file that this script wrote")
    for name in ("json", "table", "plot"):
        parser.add_argument(f"--{name}", metavar="FILE")
    options = parser.parse_args(argv)
    records = read(Path(options.records))
    print(text := table(records))
    if options.json:
        save(options.json, __file__, records, argv)
    if options.table:
        Path(options.table).write_text(text)
    if options.plot:
        plot(records, options.plot)
    return 0


def read(path: Path) -> list[dict[str, Any]]:
    """The last record of each subject, which says most."""
    text = path.read_text() if path.exists() else ""
    if text.startswith("{\n"):
        return json.loads(text)["results"]
    records = [json.loads(line) for line in text.splitlines()]
    return list({(r["preset"], r["precision"], r["mode"], r["ranks"]): r for r in records}.values())


def table(records: list[dict[str, Any]]) -> str:
    """Tokens/s of all GPUs, and efficiency against one that trains alone at the same time; below, what blutrain hides."""
    counts = sorted({r["ranks"] for r in records})
    by = {(r["precision"], NAMES.get(r["mode"], r["mode"]), r["ranks"]): r for r in records}
    lines = [
        "| precision | | " + " | ".join(f"{c} GPU{'s' * (c > 1)}" for c in counts) + " | peak MiB a GPU | hidden |"
    ]
    lines.append("|---|---|" + "---|" * (len(counts) + 2))
    for precision, name in dict.fromkeys((precision, name) for precision, name, _ in by):
        row = [by.get((precision, name, count)) for count in counts]
        cells = [_cell(r) if r else "" for r in row]
        most = [r for r in row if r][-1]
        hidden = f"{100 * most['hidden']:.0f} %" if "hidden" in most else ""
        lines.append(
            f"| {precision} | {name} | {' | '.join(cells)} | {most['peak_memory_bytes'] / 2**20:.0f} | {hidden} |"
        )
    return "\n".join(lines) + "\n"


def _cell(record: dict[str, Any]) -> str:
    efficiency = f" ({record['efficiency']:.2f})" if "efficiency" in record else ""
    return f"{record['tokens_per_s'] / 1e3:.0f}K{efficiency}"


def plot(records: list[dict[str, Any]], path: str) -> None:
    """Tokens/s over the number of GPUs, a panel a precision."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    precisions = list(dict.fromkeys(r["precision"] for r in records))
    figure = Figure(figsize=(5 * max(1, len(precisions)), 4), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    for axes, precision in zip(figure.subplots(1, max(1, len(precisions)), squeeze=False)[0], precisions, strict=False):
        for mode in dict.fromkeys(r["mode"] for r in records if r["precision"] == precision):
            mine = sorted(
                (r["ranks"], r["tokens_per_s"] / 1e3)
                for r in records
                if (r["precision"], r["mode"]) == (precision, mode)
            )
            axes.plot(*zip(*mine, strict=True), marker="o", markersize=4, label=NAMES.get(mode, mode))
        axes.set(xlabel="GPUs", ylabel="thousand tokens/s", title=precision, ylim=(0, None))
        axes.set_xticks(sorted({r["ranks"] for r in records}))
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8)
    figure.savefig(path)


if __name__ == "__main__":
    sys.exit(main())
