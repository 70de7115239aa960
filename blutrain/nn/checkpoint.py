"""Checkpoints: one safetensors file with model, optimizer, schedule, random numbers and whatever else a run resumes
from.

A file is written beside the old one, flushed to the disk, and then takes its name: whatever fails on the way, the old
one stays whole.
Loading checks everything before anything changes.
"""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import message
from ..tensor import generator as random
from ..tensor.tensor import Tensor
from .state import plan_load

FORMAT = 1
KEY = "blutrain"  # the one metadata entry: a JSON text


class CheckpointError(RuntimeError):
    """A checkpoint that cannot be written or read; the message says why, and what is still whole."""


def save(
    path: str | os.PathLike,
    model: Any,
    optimizer: Any = None,
    scheduler: Any = None,
    extra: Any = None,
    write: bool = True,
) -> None:
    """Write a checkpoint. A tied parameter is stored once.

    extra: anything that JSON holds (step, data position, flags). write: False on all but one of several processes, which
    call this together (an optimizer's state may lie in parts on all of them). Errors: CheckpointError; a file of that
    name is then unchanged.

    >>> import tempfile
    >>> model, folder = nn.Linear(2, 2), tempfile.TemporaryDirectory()
    >>> save(f"{folder.name}/checkpoint.safetensors", model, extra={"step": 100})
    >>> load(f"{folder.name}/checkpoint.safetensors", model)
    {'step': 100}
    >>> folder.cleanup()
    """
    tensors, tied = _once(model.state_dict())
    arrays = {f"model.{name}": tensor for name, tensor in tensors.items()}
    meta: dict[str, Any] = {"format": FORMAT, "tied": tied, "extra": extra, "rng": random.get_rng_state()}
    if optimizer is not None:
        state = optimizer.state_dict()
        meta["optimizer"] = {"param_groups": state["param_groups"], "steps": {}}
        for index, entries in state["state"].items():
            meta["optimizer"]["steps"][str(index)] = entries["step"]
            arrays.update({f"optimizer.{index}.{k}": v for k, v in entries.items() if k != "step"})
    if scheduler is not None:
        meta["scheduler"] = scheduler.state_dict()
    if not write:
        return
    _write(Path(path), {name: _host(tensor) for name, tensor in arrays.items()}, {KEY: json.dumps(meta)})


def load(path: str | os.PathLike, model: Any, optimizer: Any = None, scheduler: Any = None, *, rng: bool = True) -> Any:
    """Take over a checkpoint and return its `extra`. rng: the default generators too.

    Errors: FileNotFoundError; CheckpointError for a damaged file; ValueError where it does not fit the model or the
    optimizer.
    In each case nothing has changed.
    """
    meta, arrays = _read(Path(path), with_tensors=True)
    try:
        plans: list[Any] = [plan_load(model, _weights(meta, arrays))]
        if optimizer is not None:
            plans.append(optimizer.plan_load(_optimizer_state(path, meta, arrays)))
        if scheduler is not None:
            _require(path, meta, "scheduler")
            scheduler.check_state(meta["scheduler"])
        random.Generator().set_state(meta["rng"])
        extra = meta["extra"]
    except (KeyError, IndexError, TypeError, AttributeError) as fault:  # not what `save` writes, though JSON
        raise _damaged(path, f"{type(fault).__name__}: {fault}") from fault
    for plan in plans:
        plan.commit()
    if scheduler is not None:
        scheduler.load_state_dict(meta["scheduler"])
    if rng:
        random.set_rng_state(meta["rng"])
    return extra


def read_extra(path: str | os.PathLike) -> Any:
    """The `extra` of a checkpoint, without its tensors. Errors: FileNotFoundError, CheckpointError."""
    meta, _ = _read(Path(path), with_tensors=False)
    if "extra" not in meta:
        raise _damaged(path, "no extra")
    return meta["extra"]


def _weights(meta: dict[str, Any], arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    weights = {name.removeprefix("model."): a for name, a in arrays.items() if name.startswith("model.")}
    return {**weights, **{name: weights[source] for name, source in meta["tied"].items()}}


def _once(state: dict[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Each tensor under its first name, and the other names of tied ones."""
    first: dict[int, str] = {}
    tied = {}
    for name, tensor in state.items():
        if id(tensor) in first:
            tied[name] = first[id(tensor)]
        else:
            first[id(tensor)] = name
    return {name: state[name] for name in first.values()}, tied


def _host(tensor: Tensor) -> np.ndarray:
    """A contiguous array in host memory; a tensor there already is not copied."""
    array = tensor._buffer()
    return np.asarray(array if tensor.device.is_cpu else array.get(), order="C")


def _write(path: Path, arrays: dict[str, np.ndarray], metadata: dict[str, str]) -> None:
    from safetensors import SafetensorError
    from safetensors.numpy import save_file

    unfinished = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished.touch()
        mode = unfinished.stat().st_mode  # what the umask gives; save_file makes files that only their owner can read
        save_file(arrays, unfinished, metadata)
        unfinished.chmod(mode)
        _flush_to_disk(unfinished)
        os.replace(unfinished, path)
        _flush_to_disk(path.parent)
    except (OSError, SafetensorError) as fault:
        kept = f"the checkpoint of that name is unchanged: {path}" if path.exists() else ""
        help = " ".join(filter(None, [kept, "free some disk space or choose another folder"]))
        raise CheckpointError(
            message("checkpoint", f"{path} could not be written", got=str(fault), help=help)
        ) from fault
    finally:
        with contextlib.suppress(OSError):
            unfinished.unlink()


def _flush_to_disk(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _read(path: Path, with_tensors: bool) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    from safetensors import SafetensorError, safe_open

    if not path.is_file():
        raise FileNotFoundError(message("checkpoint", "no such file", got=str(path)))
    try:
        with safe_open(path, framework="np") as file:
            metadata = file.metadata() or {}
            arrays = {name: file.get_tensor(name) for name in file.keys()} if with_tensors else {}
    except (OSError, SafetensorError) as fault:
        raise _damaged(path, str(fault)) from fault
    try:
        meta = json.loads(metadata[KEY])
        if meta["format"] != FORMAT:
            raise ValueError(f"format {meta['format']}")
    except (KeyError, TypeError, ValueError) as fault:
        rule = f"{path} is no checkpoint of blutrain"
        raise CheckpointError(message("checkpoint", rule, expected=f"format {FORMAT}", got=str(fault))) from fault
    return meta, arrays


def _damaged(path: Any, got: str) -> CheckpointError:
    help = "the file is damaged or truncated: use an older checkpoint"
    return CheckpointError(message("checkpoint", f"{path} cannot be read", got=got, help=help))


def _optimizer_state(path: Any, meta: dict, arrays: dict[str, np.ndarray]) -> dict[str, Any]:
    _require(path, meta, "optimizer")
    state: dict[int, dict[str, Any]] = {int(i): {"step": step} for i, step in meta["optimizer"]["steps"].items()}
    for name, array in arrays.items():
        if name.startswith("optimizer."):
            _, index, key = name.split(".", 2)
            state[int(index)][key] = array
    return {"state": state, "param_groups": meta["optimizer"]["param_groups"]}


def _require(path: Any, meta: dict, part: str) -> None:
    if part not in meta:
        help = f"load it without {part}="
        raise CheckpointError(message("checkpoint", f"{path} was saved without its {part}", help=help))
