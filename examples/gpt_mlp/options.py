"""The flags of the example: what they are, how presets and a resumed checkpoint fill them in, what is refused."""

from __future__ import annotations

import argparse
import math
from typing import Any

from blutrain.errors import message

from .model import PRESET_BLOCK_SIZE, PRESET_VOCAB_SIZE, PRESETS, Config

# Flags that a resumed run takes from its checkpoint; with another value it could not continue bit for bit.
FIXED = (
    "n_embd",
    "n_layer",
    "vocab_size",
    "block_size",
    "dropout",
    "tokenizer",
    "batch_size",
    "grad_accum",
    "steps",
    "lr",
    "seed",
    "precision",
    "clip",
    "weight_decay",
)
# What a flag is where it was not given. vocab_size None: what the data needs.
DEFAULTS: dict[str, Any] = {
    "device": "auto",
    "compile": True,
    "precision": "fp32",
    "preset": None,
    "n_embd": 256,
    "n_layer": 4,
    "vocab_size": None,
    "tokenizer": "byte",
    "batch_size": 8,
    "block_size": 256,
    "grad_accum": 1,
    "dropout": 0.0,
    "steps": 600,
    "stop_after": None,
    "lr": 1e-3,
    "seed": 0,
    "data": None,
    "out": "runs/gpt_mlp",
    "resume": False,
    "json": None,
    "clip": 1.0,
    "weight_decay": 0.1,
    "log_every": 10,
    "eval_every": 100,
    "sample_tokens": 300,
    "shard_optimizer": False,
}


def add_model_flags(parser: argparse.ArgumentParser) -> None:
    """The flags that decide a step; shared with benchmarks/step.py."""
    add = parser.add_argument
    add("--device", choices=["cpu", "cuda", "auto"], help="auto (default): a GPU where there is one")
    add("--precision", choices=["fp64", "fp32", "tf32", "bf16"], help="fp32 (default); tf32 needs a GPU")
    add(
        "--preset",
        choices=list(PRESETS),
        help=f"sizes of the paper: vocabulary {PRESET_VOCAB_SIZE}, context {PRESET_BLOCK_SIZE}",
    )
    add("--n-embd", type=positive, help="width (256)")
    add("--n-layer", type=positive, help="MLP blocks (4)")
    add("--vocab-size", type=positive, help="256 for bytes, 4096 for bpe, 50304 for .bin files and presets")
    add("--batch-size", type=positive, help="windows a micro-batch (8)")
    add("--block-size", type=positive, help="tokens a window (256)")
    add("--grad-accum", type=positive, help="micro-batches a step (1)")
    add("--dropout", type=fraction, help="probability (0)")
    add("--seed", type=seed, help="of weights, data order and dropout (0)")


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    """The flags as given: what was not given is None.

    Ends the program with a usage message for an unknown or bad flag.
    """
    parser = argparse.ArgumentParser(
        prog="python -m examples.gpt_mlp.train", description="Train an MLP-GPT on text.", allow_abbrev=False
    )
    add_model_flags(parser)
    add = parser.add_argument
    add("--compile", action=argparse.BooleanOptionalAction, default=None, help="compile the step with nova (on)")
    add("--tokenizer", choices=["byte", "bpe"], help="byte (default), or byte pairs trained on the data and cached")
    add("--steps", type=positive, help="length of the learning-rate schedule (600)")
    add("--stop-after", type=positive, metavar="N", help="stop, with a checkpoint, after step N of the schedule")
    add("--lr", type=amount, help="peak learning rate (1e-3)")
    add("--clip", type=amount, help="largest gradient norm, 0 for none (1.0)")
    add("--weight-decay", type=amount, help="of matrices (0.1)")
    add("--data", help="a text file, a folder of text, or a .bin of uint16 tokens (default: Python's standard library)")
    add("--out", metavar="DIR", help="where checkpoint, loss curve and sample go (runs/gpt_mlp)")
    add("--resume", action="store_const", const=True, help="continue from the checkpoint in --out, bit for bit")
    add("--json", metavar="FILE", help="write a JSON line each logged step")
    add("--log-every", type=positive, metavar="N", help="steps between progress lines (10)")
    add(
        "--eval-every", type=positive, metavar="N", help="steps between validation losses, each with a checkpoint (100)"
    )
    add(
        "--shard-optimizer",
        action="store_const",
        const=True,
        help="several ranks: each keeps and updates its part of the optimizer's state (ZeRO-1)",
    )
    add("--sample-tokens", type=natural, metavar="N", help="length of the sample at the end (300)")
    return parser.parse_args(argv)


def fill_in(given: argparse.Namespace, saved: dict[str, Any] | None = None) -> argparse.Namespace:
    """All flags with a value: as given, else as in the checkpoint (`saved`), else of the preset, else the default.

    Errors: ValueError where a given flag contradicts the checkpoint or the preset.
    """
    values = {**DEFAULTS, **{k: v for k, v in vars(given).items() if v is not None}}
    explicit = {k for k, v in vars(given).items() if v is not None}
    preset = _preset(values["preset"])
    _refuse_contradictions("--preset " + str(values["preset"]), values, explicit, preset, "leave the flag out")
    values.update({k: v for k, v in preset.items() if k not in explicit})
    if saved is not None:
        explicit |= set(preset)
        _refuse_contradictions("--resume", values, explicit, saved, "leave the flag out, or train into another --out")
        values.update({k: saved[k] for k in FIXED if k in saved})
        if values["data"] is None:
            values["data"] = saved["data"]
    return argparse.Namespace(**values)


def model_config(options: argparse.Namespace) -> Config:
    """The sizes of the model that the flags name."""
    return Config(options.vocab_size, options.block_size, options.n_embd, options.n_layer, options.dropout)


def _number(kind: type, low: float, high: float, expected: str):
    """A type of flags: a number of `kind` in low <= x < high."""

    def parse(text: str):
        try:
            value = kind(text)
        except ValueError:
            value = None
        if value is None or not low <= value < high:
            raise argparse.ArgumentTypeError(f"expected {expected}, got {text}")
        return value

    return parse


positive = _number(int, 1, math.inf, "an integer of at least 1")
natural = _number(int, 0, math.inf, "an integer of at least 0")
seed = _number(int, 0, 2**64, "an integer from 0 to 2**64 - 1")
fraction = _number(float, 0, 1, "0 <= p < 1")
amount = _number(float, 0, math.inf, "a finite number of at least 0")


def _preset(name: str | None) -> dict[str, int]:
    if name is None:
        return {}
    n_embd, n_layer = PRESETS[name]
    return {"n_embd": n_embd, "n_layer": n_layer, "vocab_size": PRESET_VOCAB_SIZE, "block_size": PRESET_BLOCK_SIZE}


def _refuse_contradictions(source: str, values: dict, explicit: set, other: dict, help: str) -> None:
    for name in ("n_embd", "n_layer") if source.startswith("--preset") else FIXED:
        if name in explicit and name in other and values[name] != other[name]:
            flag = "--" + name.replace("_", "-")
            expected, got = f"{flag} {other[name]}", f"{flag} {values[name]}"
            raise ValueError(
                message(source, f"{flag} differs", expected=expected, got=got, location=("", 0), help=help)
            )
