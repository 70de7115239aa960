"""The loss curve of a run: loss.csv, which grows with the run, and loss.png, drawn from it."""

from __future__ import annotations

import csv
import os
from pathlib import Path

FIELDS = ("step", "loss", "val_loss")


class LossCurve:
    """Appends to `folder`/loss.csv; a resumed run (`from_step` > 0) first drops what it will write again."""

    def __init__(self, folder: Path, from_step: int = 0):
        self.path = folder / "loss.csv"
        kept = [row for row in self.read() if int(row["step"]) <= from_step] if from_step else []
        unfinished = self.path.with_suffix(".tmp")
        with open(unfinished, "w", newline="") as file:
            writer = csv.DictWriter(file, FIELDS)
            writer.writeheader()
            writer.writerows(kept)
        os.replace(unfinished, self.path)

    def add(self, step: int, loss: float, val_loss: float | None) -> None:
        with open(self.path, "a", newline="") as file:
            csv.writer(file).writerow([step, loss, "" if val_loss is None else val_loss])

    def read(self) -> list[dict[str, str]]:
        if not self.path.is_file():
            return []
        with open(self.path, newline="") as file:
            return list(csv.DictReader(file))

    def draw(self) -> Path | None:
        """Draw loss.png beside the CSV and return its path; None where matplotlib is not installed."""
        try:
            from matplotlib.backends.backend_agg import FigureCanvasAgg
            from matplotlib.figure import Figure
        except ImportError:
            return None
        rows = self.read()
        figure = Figure(figsize=(7, 4), dpi=120, layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.add_subplot(xlabel="step", ylabel="loss (nats per token)")
        axes.plot([int(r["step"]) for r in rows], [float(r["loss"]) for r in rows], linewidth=1, label="training")
        validated = [r for r in rows if r["val_loss"]]
        if validated:
            steps, losses = [int(r["step"]) for r in validated], [float(r["val_loss"]) for r in validated]
            axes.plot(steps, losses, marker="o", markersize=3, label="validation")
        axes.grid(alpha=0.3)
        axes.legend()
        target = self.path.with_suffix(".png")
        figure.savefig(target)
        return target
