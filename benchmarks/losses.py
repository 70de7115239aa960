"""Losses over a few hundred steps on real text: blutrain compiled against eager and torch, from the same weights.

    python benchmarks/losses.py --device cuda --preset 46M --batch-size 8 --json FILE --plot FILE.png
    python benchmarks/losses.py --draw FILE --plot FILE.png          # the plot of an earlier run

For each precision all subjects start from the same weights and see the same batches: windows of the sources of Python's
standard library, as bytes (--tokenizer bpe: byte pairs, 4096 of them), in a model of the preset's whole vocabulary. bf16 is
compared with torch's autocast. AdamW at a learning rate of 3e-4, no clipping. In the JSON:

losses           of each step, by precision and subject
difference       of compiled against another subject, percent of the latter: "final" of the means over the last
                 --window steps, "largest" of any such window
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import trainers
from record import save

from examples.gpt_mlp.batches import Batches
from examples.gpt_mlp.corpus import load_corpus

SUBJECTS = {
    "tf32": ("compiled", "eager", "torch"),
    "fp32": ("compiled", "eager", "torch"),
    "bf16": ("compiled", "torch"),
}


def main(argv: list[str] | None = None) -> int:
    options = parse(argv)
    if options.draw:
        draw(json.loads(Path(options.draw).read_text()), options.plot)
        return 0
    corpus = load_corpus(options.data, options.tokenizer, None)
    batches = Batches(corpus.train, options.batch_size, options.block_size, options.seed)
    weights = trainers.initial_weights(options)
    results = []
    for precision in options.precisions:
        results.append(compare(trainers.with_sizes(options, options.preset, precision), batches, weights))
    if options.json:
        sizes = {
            k: getattr(options, k) for k in ("n_embd", "n_layer", "vocab_size", "batch_size", "block_size", "steps")
        }
        text = {"text": corpus.name, "tokenizer": options.tokenizer, "fingerprint": corpus.fingerprint}
        save(options.json, __file__, results, argv, **sizes, **text, window=options.window)
    if options.plot:
        draw({"results": results, "window": options.window}, options.plot)
    return 0


def parse(argv: list[str] | None) -> argparse.Namespace:
    def add_flags(parser: argparse.ArgumentParser) -> None:
        add = parser.add_argument
        add("--precisions", type=trainers.some_of(SUBJECTS), help="like tf32,bf16 (all; tf32 needs a GPU)")
        add("--steps", type=int, default=300)
        add("--window", type=int, default=50, help="steps that are averaged")
        add("--data", help="a text file, a folder of text, or a .bin of tokens")
        add("--tokenizer", choices=["byte", "bpe"], default="byte")
        add("--json", metavar="FILE")
        add("--plot", metavar="FILE", help="draw the curves (needs matplotlib)")
        add("--draw", metavar="JSON", help="only draw an earlier run")

    options = trainers.parse("Compare losses over training.", add_flags, argv)
    options.precisions = options.precisions or [p for p in SUBJECTS if p != "tf32" or options.device != "cpu"]
    options.window = min(options.window, options.steps)
    return options


def compare(options: argparse.Namespace, batches: Batches, weights: dict[str, np.ndarray]) -> dict[str, Any]:
    """The losses of all subjects of one precision, and how far compiled is from the others."""
    losses, seconds = {}, {}
    for name in SUBJECTS[options.precision]:
        began = time.perf_counter()
        losses[name] = train(name, options, batches, weights)
        seconds[name] = time.perf_counter() - began
        trainers.free_memory(options.device)
        print(
            f"{options.precision} {name:9} {np.mean(losses[name][-options.window :]):.5f}  {seconds[name]:.1f} s",
            flush=True,
        )
    ours = smoothed(losses["compiled"], options.window)
    difference = {}
    for name in SUBJECTS[options.precision][1:]:
        percent = 100 * np.abs(ours / smoothed(losses[name], options.window) - 1)
        difference[name] = {"final": float(percent[-1]), "largest": float(percent.max())}
        print(f"{options.precision} compiled against {name}: final {percent[-1]:.4f} %, largest {percent.max():.4f} %")
    return {"precision": options.precision, "difference": difference, "seconds": seconds, "losses": losses}


def train(name: str, options: argparse.Namespace, batches: Batches, weights: dict[str, np.ndarray]) -> list[float]:
    trainer = trainers.make(name, options, weights)
    losses = []
    for number in range(options.steps):
        x, y = batches.batch(number)
        losses.append(float(trainer.step([(trainer.put(x), trainer.put(y))])))
    return losses


def smoothed(losses: list[float], window: int) -> np.ndarray:
    """Means over `window` successive steps."""
    sums = np.cumsum([0.0, *losses])
    return (sums[window:] - sums[:-window]) / window


def draw(run: dict[str, Any], path: str | None) -> None:
    """All curves above, compiled's distance from the others below."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 6), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(2, 1))
    styles, window = {"compiled": "-", "eager": "--", "torch": ":"}, run["window"]
    for color, result in zip(("C0", "C1", "C2"), run["results"], strict=False):
        for name, losses in result["losses"].items():
            label = f"{result['precision']} {name}"
            above.plot(range(1, len(losses) + 1), losses, styles[name], color=color, linewidth=1, label=label)
        ours = smoothed(result["losses"]["compiled"], window)
        for name in result["difference"]:
            percent = 100 * (ours / smoothed(result["losses"][name], window) - 1)
            label = f"{result['precision']} compiled against {name}"
            steps = range(window, window + len(percent))
            below.plot(steps, percent, styles[name], color=color, linewidth=1, label=label)
    above.set(ylabel="loss (nats per token)")
    below.set(xlabel="step", ylabel=f"difference, %, of means\nover {window} steps")
    for axes in (above, below):
        axes.grid(alpha=0.3)
        axes.legend(fontsize=7)
    figure.savefig(path or "losses.png")


if __name__ == "__main__":
    sys.exit(main())
