"""The subjects of benchmarks of training steps: blutrain's modes here, torch's and JAX's in their own files.

    trainer = make("compiled", options)           # one of MODES or PEERS; options: flags of the example
    loss = trainer.step([(x, y)])                 # forward, backward and AdamW; `put` made x and y from NumPy
    trainer.synchronize()

All have the same sizes, the same optimizer and, where `weights` are given, the same weights.
"""

from __future__ import annotations

import argparse
import copy
import gc
import sys
import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import blutrain as bt
from blutrain import nn
from blutrain.optim import AdamW
from examples.gpt_mlp.model import MLPGPT, PRESET_BLOCK_SIZE, PRESET_VOCAB_SIZE, PRESETS
from examples.gpt_mlp.options import add_model_flags, fill_in, model_config
from examples.gpt_mlp.precision import pick_device, set_precision, synchronize

MODES = ("eager", "compiled")
PRECISIONS = ("tf32", "bf16", "fp32", "fp64")
# What --peers calls them: how they stand in results.
PEERS = {
    "torch": "torch",
    "compile": "torch.compile",
    "reduce-overhead": "torch.compile(reduce-overhead)",
    "jax": "jax",
}
LEARNING_RATE = 3e-4
Batch = tuple[Any, Any]


class Trainer(Protocol):
    """A model and its optimizer. `update_s`: the host's seconds in the optimizer's part of the last step."""

    update_s: float

    def put(self, array: np.ndarray) -> Any:
        """int64 tokens on the device."""
        ...

    def step(self, batches: Sequence[Batch]) -> Any:
        """One step over these micro-batches; the loss of the last one, on the device (`float` of it waits)."""
        ...

    def synchronize(self) -> None:
        """Wait for the device."""
        ...


def make(name: str, options: argparse.Namespace, weights: dict[str, np.ndarray] | None = None) -> Trainer:
    """The subject of that name. Errors: ModuleNotFoundError where its framework is missing."""
    if name in (*MODES, "default"):
        return BlutrainTrainer(name, options, weights)
    if name == "jax":
        from jax_peer import JaxTrainer

        return JaxTrainer(options, weights or initial_weights(options))
    from torch_peers import TorchTrainer

    return TorchTrainer(name, options, weights)


def parse(description: str, add_flags: Callable[[argparse.ArgumentParser], None], argv: list[str] | None):
    """The example's flags of a model and a benchmark's own; vocabulary 256 and no clipping unless asked."""
    parser = argparse.ArgumentParser(description=description, allow_abbrev=False)
    add_model_flags(parser)
    of_model = vars(parser.parse_args([])).keys()
    parser.add_argument("--clip", type=float, help="clip gradients to this norm (not at all)")
    add_flags(parser)
    given = vars(parser.parse_args(argv))
    options = fill_in(argparse.Namespace(**{name: given[name] for name in of_model}))
    own = {name: value for name, value in given.items() if name not in of_model}
    vars(options).update(own, vocab_size=options.vocab_size or 256, device=pick_device(options.device))
    return options


def some_of(known: Collection[str]) -> Callable[[str], list[str]]:
    """Reads a flag that lists names: "a,b", or "all" of them."""

    def read(given: str) -> list[str]:
        names = list(known) if given == "all" else given.split(",")
        if unknown := [name for name in names if name not in known]:
            raise argparse.ArgumentTypeError(f"{', '.join(unknown)}: expected some of {', '.join(known)}, or all")
        return names

    return read


def add_precisions(parser: argparse.ArgumentParser) -> None:
    """Several precisions in one run; `split_sizes` reads them."""
    parser.add_argument("--precisions", type=some_of(PRECISIONS), help="like tf32,bf16")


def add_sizes(parser: argparse.ArgumentParser) -> None:
    """Flags for several sizes in one run; `split_sizes` reads them."""
    parser.add_argument("--presets", type=some_of(PRESETS), help="like 46M,144M, or all")
    add_precisions(parser)


def split_sizes(options: argparse.Namespace) -> None:
    """Lists of presets and precisions; what is not given is the one of --preset or --precision."""
    options.presets = getattr(options, "presets", None) or [options.preset]
    options.precisions = options.precisions or [options.precision]


def with_sizes(options: argparse.Namespace, preset: str | None, precision: str) -> argparse.Namespace:
    """A copy for another preset (None: the sizes stay) and precision."""
    changed = copy.copy(options)
    vars(changed).update(precision=precision, preset=preset)
    if preset is not None:
        width, layers = PRESETS[preset]
        vars(changed).update(n_embd=width, n_layer=layers, vocab_size=PRESET_VOCAB_SIZE, block_size=PRESET_BLOCK_SIZE)
    return changed


def as_flags(options: argparse.Namespace) -> list[str]:
    """The flags that give another process the same sizes, precision, device and clipping."""
    names = ("n_embd", "n_layer", "vocab_size", "batch_size", "block_size", "grad_accum", "seed", "precision", "device")
    flags = [f"--{name.replace('_', '-')}={getattr(options, name)}" for name in names]
    return flags + ([f"--clip={options.clip}"] if options.clip else [])


def free_memory(device: str) -> None:
    """Give back what dropped trainers held."""
    gc.collect()
    if "torch" in sys.modules:
        from torch_peers import forget_compiled

        forget_compiled()
    if device != "cpu":
        import cupy

        cupy.get_default_memory_pool().free_all_blocks()


def random_batches(options: argparse.Namespace) -> list[tuple[np.ndarray, np.ndarray]]:
    """One (inputs, targets) a micro-batch."""
    rng = np.random.default_rng(options.seed)
    shape = options.batch_size, options.block_size
    return [tuple(rng.integers(0, options.vocab_size, shape) for _ in range(2)) for _ in range(options.grad_accum)]


def initial_weights(options: argparse.Namespace) -> dict[str, np.ndarray]:
    """Weights by name, f32, as the example draws them from `options.seed`."""
    bt.manual_seed(options.seed)
    return {name: p.detach().numpy().copy() for name, p in MLPGPT(model_config(options)).named_parameters()}


class BlutrainTrainer:
    """The example's model, "eager", "compiled" (from the first step on), or "default" (from the second, if eager fits)."""

    def __init__(self, mode: str, options: argparse.Namespace, weights: dict[str, np.ndarray] | None = None):
        bt.manual_seed(options.seed)
        self.device, self.clip, self.update_s = options.device, options.clip, 0.0
        self.model = MLPGPT(model_config(options))
        if weights is not None:
            self.model.load_state_dict({name: bt.from_numpy(w) for name, w in weights.items()})
        self.model.to(options.device)
        precision = set_precision(self.model, options.precision, options.device, mode != "eager")
        self.optimizer = AdamW(self.model.parameters(), lr=LEARNING_RATE)
        if mode != "eager":
            self.model.compile(precision=precision, first_step="compiled" if mode == "compiled" else "eager")

    def put(self, array: np.ndarray) -> bt.Tensor:
        return bt.from_numpy(array).to(self.device)

    def step(self, batches: Sequence[Batch]) -> bt.Tensor:
        for x, y in batches:
            loss = self.model(x, y)
            (loss if len(batches) == 1 else loss / len(batches)).backward()
        if self.clip:
            nn.utils.clip_grad_norm_(self.model.parameters(), self.clip)
        began = time.perf_counter()
        self.optimizer.step()
        self.update_s = time.perf_counter() - began
        self.optimizer.zero_grad()
        return loss

    def synchronize(self) -> None:
        synchronize(self.device)

    @property
    def program(self) -> Any:
        """The program of the last step. Errors: RuntimeError where it was not compiled."""
        from blutrain.nova.explain import programs_of

        programs = programs_of(self.model)
        if not programs:
            raise RuntimeError("the step was not compiled: a warning above says why")
        return programs[-1]
