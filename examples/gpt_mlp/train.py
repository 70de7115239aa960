"""Train an MLP-GPT on real text: `python -m examples.gpt_mlp.train`, or `make train`. `--help` lists the flags."""

from __future__ import annotations

import argparse
import contextlib
import signal
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import blutrain as bt
from blutrain import nn
from blutrain.errors import message
from blutrain.nn import checkpoint
from blutrain.optim import AdamW, WarmupCosineLR

from .batches import VALIDATION, Batches
from .corpus import Corpus, check_vocabulary, load_corpus
from .curve import LossCurve
from .model import MLPGPT
from .options import FIXED, fill_in, model_config, parse
from .precision import pick_device, set_precision
from .ranks import Ranks, restarted
from .report import Clock, JsonLines, is_finite, peak_memory_bytes, progress_line
from .sample import sample

EVAL_BATCHES = 8
BIN_VOCAB_SIZE = 50304  # GPT-2's vocabulary, padded: what nanoGPT's .bin files hold
BETAS = (0.9, 0.95)


class TrainingError(RuntimeError):
    """The run cannot go on; what it had saved is whole."""


@dataclass
class Run:
    """Everything a training run consists of; `step` is how many optimizer steps it has made."""

    options: argparse.Namespace
    device: str
    ranks: Ranks
    corpus: Corpus
    model: MLPGPT
    optimizer: AdamW
    scheduler: WarmupCosineLR
    train_data: Batches
    validation_data: Batches
    step: int = 0
    saved_step: int | None = None
    interrupted: bool = field(default=False)
    stops: bool = False

    @property
    def checkpoint(self) -> Path:
        return Path(self.options.out) / "checkpoint.safetensors"

    @property
    def tokens_per_step(self) -> int:
        return self.options.batch_size * self.options.block_size * self.options.grad_accum


def prepare(argv: list[str] | None = None) -> Run:
    """A run from flags, resumed where they say so.

    Errors: ValueError, OSError, ImportError, RuntimeError for what cannot be had.
    """
    given = parse(argv)
    saved, path = None, Path(given.out or "runs/gpt_mlp") / "checkpoint.safetensors"
    if given.resume or restarted(path):
        given.resume, saved = True, checkpoint.read_extra(path)
    options = fill_in(given, saved and saved["options"])
    ranks = Ranks(options.batch_size)
    device = ranks.device(pick_device(options.device))
    corpus = load_corpus(options.data, options.tokenizer, options.vocab_size)
    options.vocab_size = options.vocab_size or (corpus.tokenizer.vocab_size if corpus.tokenizer else BIN_VOCAB_SIZE)
    check_vocabulary(corpus, options.vocab_size)
    if saved is not None and saved["fingerprint"] != corpus.fingerprint:
        help = "name the data the run was started with by --data, or train into another --out"
        raise ValueError(message("--resume", "the data has changed", got=corpus.name, location=("", 0), help=help))

    bt.manual_seed(options.seed)
    model = MLPGPT(model_config(options)).to(device)
    compile_precision = set_precision(model, options.precision, device, options.compile)
    optimizer = make_optimizer(model, options)
    warmup = max(1, options.steps // 20)
    run = Run(
        options,
        device,
        ranks,
        corpus,
        model,
        optimizer,
        WarmupCosineLR(optimizer, warmup, options.steps),
        Batches(corpus.train, options.batch_size, options.block_size, options.seed, rows=ranks.mine),
        Batches(corpus.validation, options.batch_size, options.block_size, options.seed, VALIDATION, ranks.mine),
    )
    ranks.wrap(model, corpus.fingerprint, options.shard_optimizer)
    if saved is not None:
        run.step = run.saved_step = checkpoint.load(run.checkpoint, model, optimizer, run.scheduler)["step"]
    if options.compile:
        model.compile(precision=compile_precision, first_step="eager" if saved is None else "compiled")
    return run


def make_optimizer(model: nn.Module, options: argparse.Namespace) -> AdamW:
    """AdamW with weight decay on matrices only, as GPT-2."""
    matrices = [p for p in model.parameters() if p.ndim >= 2]
    others = [p for p in model.parameters() if p.ndim < 2]
    groups = [{"params": matrices, "weight_decay": options.weight_decay}, {"params": others, "weight_decay": 0.0}]
    return AdamW(groups, lr=options.lr, betas=BETAS)


def tensors(arrays: tuple, device: str) -> list[bt.Tensor]:
    return [bt.from_numpy(a).to(device) for a in arrays]


def train_step(run: Run) -> tuple[bt.Tensor, bt.Tensor]:
    """One optimizer step.

    Returns its mean loss (over this rank's rows) and the norm of its gradients before clipping, both still on the
    device.
    """
    accumulate, model = run.options.grad_accum, run.ranks.ddp or run.model
    total = None
    for micro in range(accumulate):
        loss = model(*tensors(run.train_data.batch(run.step * accumulate + micro), run.device)) / accumulate
        run.ranks.backward(loss, is_last=micro == accumulate - 1)
        total = loss.detach() if total is None else total + loss.detach()
    norm = nn.utils.clip_grad_norm_(run.model.parameters(), run.options.clip or float("inf"))
    run.optimizer.step()
    run.scheduler.step()
    run.optimizer.zero_grad()
    run.step += 1
    return total, norm


def evaluate(run: Run) -> float:
    """The mean loss over the same EVAL_BATCHES validation batches each time."""
    run.model.eval()
    with bt.no_grad():
        batches = (tensors(run.validation_data.batch(n), run.device) for n in range(EVAL_BATCHES))
        losses = [run.ranks.mean(run.model(*batch)) for batch in batches]
    run.model.train()
    return sum(losses) / len(losses)


def save(run: Run) -> None:
    """Write the checkpoint (the first rank does). Errors: checkpoint.CheckpointError; the old one is then unchanged."""
    kept = {name: getattr(run.options, name) for name in [*FIXED, "data"]}
    extra = {"step": run.step, "options": kept, "fingerprint": run.corpus.fingerprint}
    writes = run.ranks.is_first  # all ranks call it: the optimizer's state may lie in parts
    checkpoint.save(run.checkpoint, run.model, run.optimizer, run.scheduler, extra, write=writes)
    run.saved_step = run.step


def train(run: Run) -> None:
    """Steps until the schedule ends, --stop-after is reached, or Ctrl-C; leaves a checkpoint."""
    options = run.options
    last = min(options.steps, options.stop_after or options.steps)
    curve = LossCurve(Path(options.out), run.step) if run.ranks.is_first else None
    lines = JsonLines(options.json if run.ranks.is_first else None, append=options.resume)
    clock = Clock()
    clock.restart(run.step)
    with contextlib.closing(lines), stop_on_signal(run):
        while run.step < last and not run.stops:
            lr = run.optimizer.param_groups[0]["lr"]
            loss, norm = train_step(run)
            shown = run.step in (1, last) or run.step % options.log_every == 0 or run.step % options.eval_every == 0
            if shown or run.ranks.size == 1:
                run.stops = run.ranks.any(run.interrupted)  # several ranks stop at the same step
            if shown or run.stops:
                log(run, lr, run.ranks.mean(loss), norm.item(), run.stops or run.step == last, clock, curve, lines)
    if run.saved_step != run.step:
        save(run)
    if curve is not None and curve.draw() is None:
        print("no loss.png: matplotlib is not installed (the curve is in loss.csv)")


def log(
    run: Run, lr: float, loss: float, norm: float, due: bool, clock: Clock, curve: LossCurve | None, lines: JsonLines
) -> None:
    """Show a step; validate and save where it is time.

    Errors: TrainingError where the loss or the gradient is not finite.
    """
    if not is_finite(loss, norm):
        stop_for_bad_numbers(run, loss, norm)
    ms = clock.read(run.step)
    record = {
        "step": run.step,
        "loss": loss,
        "lr": lr,
        "grad_norm": norm,
        "ms": ms,
        "tokens_per_s": run.tokens_per_step / ms * 1e3,
        "peak_memory_bytes": peak_memory_bytes(run.device),
        "mode": "compiled" if run.options.compile else "eager",
    }
    with clock.paused():
        if due or run.step % run.options.eval_every == 0:
            record["val_loss"] = evaluate(run)
        try:  # a full disk need not end the run: there may be room at the next save
            if curve is not None:
                print(progress_line(record, run.options.steps), flush=True)
                lines.write(record)
                curve.add(run.step, loss, record.get("val_loss"))
            if "val_loss" in record and not due:
                save(run)
        except (checkpoint.CheckpointError, OSError) as fault:
            print(f"warning: step {run.step} is not written: {fault}", file=sys.stderr, flush=True)


def what_is_saved(run: Run) -> str:
    if run.saved_step is None:
        return "nothing was saved"
    return f"the checkpoint of step {run.saved_step} is unchanged: {run.checkpoint}"


def stop_for_bad_numbers(run: Run, loss: float, norm: float) -> None:
    raise TrainingError(
        message(
            "train",
            f"the loss or its gradient is not finite at step {run.step}",
            got=f"loss {loss}, gradient norm {norm}",
            location=("", 0),
            help=f"{what_is_saved(run)}; try a lower --lr, a smaller --clip, or --precision fp32",
        )
    )


@contextlib.contextmanager
def stop_on_signal(run: Run):
    """Ctrl-C and SIGTERM end the run after the step in progress; a second one ends it at once."""

    def stop(number: int, frame: Any) -> None:
        if run.interrupted:
            raise KeyboardInterrupt
        run.interrupted = True
        when = "after this step" if run.ranks.size == 1 else "at the next step that is shown"
        print(f"stopping {when} (once more: at once, without saving)", file=sys.stderr, flush=True)

    previous = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def describe(run: Run) -> str:
    parameters = sum(p.numel() for p in run.model.parameters())
    mode = "compiled" if run.options.compile else "eager"
    start = f"from step {run.step}, " if run.step else ""
    ranks = f", {run.ranks.size} ranks" if run.ranks.size > 1 else ""
    return (
        f"{run.corpus.name}: {len(run.corpus.train):,} tokens to train on, {len(run.corpus.validation):,} to validate\n"
        f"MLP-GPT with {parameters / 1e6:.2f}M parameters on {run.device}, {run.options.precision}, {mode}{ranks}; "
        f"{start}{run.options.steps} steps of {run.tokens_per_step:,} tokens"
    )


def show_sample(run: Run) -> None:
    """Print a sample of text and leave it in sample.txt."""
    start = int(run.corpus.validation[0])
    drawn = sample(run.model, start, run.options.sample_tokens, run.options.seed, run.device)
    decoded = run.corpus.tokenizer.decode(drawn) if run.corpus.tokenizer else " ".join(map(str, drawn))
    Path(run.options.out, "sample.txt").write_text(decoded, encoding="utf-8")
    print(f"--- a sample ---\n{decoded}\n---")


def main(argv: list[str] | None = None) -> int:
    """The program; returns its exit status: 0, 1 if training failed, 2 for bad input, 130 after Ctrl-C."""
    try:
        run = prepare(argv)
        make_folder(run.options.out)
    except (ValueError, OSError, ImportError, RuntimeError) as fault:
        print(f"error: {fault}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("stopped before the first step", file=sys.stderr)
        return 130
    try:
        return run_to_its_end(run)
    except (TrainingError, checkpoint.CheckpointError, OSError) as fault:
        print(f"error: {fault}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"stopped; {what_is_saved(run)}", file=sys.stderr)
        return 130


def make_folder(path: str) -> None:
    try:
        Path(path).mkdir(parents=True, exist_ok=True)
    except OSError as fault:
        raise ValueError(message("--out", "no folder can be made", got=str(fault), location=("", 0))) from fault


def run_to_its_end(run: Run) -> int:
    """Train, say what there is now, and return the exit status: 0, or 130 after Ctrl-C."""
    if run.ranks.is_first:
        print(describe(run), flush=True)
    train(run)
    if not run.ranks.is_first:
        return 130 if run.interrupted else 0
    if run.step < run.options.steps:
        print(f"saved {run.checkpoint} at step {run.step}; to go on:\n  {resume_command(run)}")
    elif run.options.sample_tokens > 0:
        show_sample(run)
    print(f"in {run.options.out}: {', '.join(sorted(p.name for p in Path(run.options.out).iterdir() if p.is_file()))}")
    return 130 if run.interrupted else 0


def resume_command(run: Run) -> str:
    import shlex

    mode = "" if run.options.compile else " --no-compile"
    return f"{run.ranks.command()} --resume --out {shlex.quote(str(run.options.out))}{mode}"


if __name__ == "__main__":
    sys.exit(main())
