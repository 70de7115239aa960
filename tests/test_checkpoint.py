"""Checkpoints: what comes back, what is refused, what stays whole when writing fails."""

from __future__ import annotations

import copy
import json
import subprocess
import sys

import numpy as np
import pytest

import blutrain as bt
from blutrain import nn
from blutrain.nn import checkpoint
from blutrain.nn.checkpoint import CheckpointError
from blutrain.optim import AdamW, StepLR


class Tied(nn.Module):
    def __init__(self, width=4):
        super().__init__()
        self.wte = nn.Embedding(5, width)
        self.drop = nn.Dropout(0.5)
        self.head = nn.Linear(width, 5, bias=False)
        self.head.weight = self.wte.weight
        self.register_buffer("seen", bt.zeros(1, dtype=bt.int64))

    def forward(self, ids):
        return self.head(self.drop(self.wte(ids)))


def make(width=4):
    model = Tied(width)
    optimizer = AdamW([{"params": list(model.parameters()), "betas": (0.8, 0.9)}], lr=0.1)
    return model, optimizer, StepLR(optimizer, 2)


def train(model, optimizer, scheduler, count):
    losses = []
    for _ in range(count):
        loss = nn.functional.cross_entropy(model(bt.tensor([0, 1, 2])), bt.tensor([1, 2, 3]))
        loss.backward()
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def test_a_run_continues_bit_for_bit(tmp_path):
    path = tmp_path / "run" / "c.safetensors"
    bt.manual_seed(3)
    run = make()
    train(*run, 3)
    checkpoint.save(path, *run, extra={"step": 3, "nested": [1, "x", None]})
    expected = train(*run, 3)
    bt.manual_seed(99)
    other = make()
    assert checkpoint.load(path, *other) == {"step": 3, "nested": [1, "x", None]}
    assert other[0].head.weight is other[0].wte.weight
    assert other[1].param_groups[0]["betas"] == (0.8, 0.9)
    assert train(*other, 3) == expected
    np.testing.assert_array_equal(run[0].wte.weight.detach().numpy(), other[0].wte.weight.detach().numpy())
    assert checkpoint.read_extra(path)["step"] == 3


def test_the_file_is_plain_safetensors_with_tied_weights_once(tmp_path):
    from safetensors.numpy import load_file

    path = tmp_path / "c.safetensors"
    model = Tied().bfloat16()
    checkpoint.save(path, model)
    (tmp_path / "plain").touch()
    assert path.stat().st_mode == (tmp_path / "plain").stat().st_mode
    arrays = load_file(path)
    assert set(arrays) == {"model.wte.weight", "model.seen"}
    np.testing.assert_array_equal(arrays["model.wte.weight"], model.wte.weight.detach().numpy())
    other = Tied().bfloat16()
    assert checkpoint.load(path, other) is None
    np.testing.assert_array_equal(other.wte.weight.detach().numpy(), model.wte.weight.detach().numpy())


def test_views_and_transposes_are_saved_by_value(tmp_path):
    model = nn.Linear(2, 3)
    model.weight.data = bt.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]).T
    checkpoint.save(tmp_path / "c", model)
    other = nn.Linear(2, 3)
    checkpoint.load(tmp_path / "c", other)
    np.testing.assert_array_equal(other.weight.detach().numpy(), [[1, 4], [2, 5], [3, 6]])


def test_a_checkpoint_of_another_model_changes_nothing(tmp_path):
    path = tmp_path / "c"
    checkpoint.save(path, *make(width=6), extra=1)
    model, optimizer, scheduler = make()
    train(model, optimizer, scheduler, 1)
    other = nn.Linear(2, 2)
    weight, counter = model.wte.weight.detach().numpy().copy(), bt.get_rng_state()
    with pytest.raises(ValueError, match=r"shape: wte\.weight: expected f32\[5,4\], got float32\[5,6\]"):
        checkpoint.load(path, model, optimizer, scheduler)
    checkpoint.save(path, model, AdamW(other.parameters()))
    with pytest.raises(ValueError, match="other parameter groups"):
        checkpoint.load(path, model, optimizer)
    checkpoint.save(path, model)
    with pytest.raises(CheckpointError, match="saved without its optimizer"):
        checkpoint.load(path, model, optimizer)
    groups = AdamW([{"params": [p]} for p in other.parameters()])
    checkpoint.save(path, model, scheduler=StepLR(groups, 2))
    with pytest.raises(ValueError, match="the state has other groups"):
        checkpoint.load(path, model, scheduler=scheduler)
    np.testing.assert_array_equal(model.wte.weight.detach().numpy(), weight)
    assert bt.get_rng_state() == counter and optimizer.state[model.wte.weight]["step"].value == 1


def test_missing_truncated_and_foreign_files(tmp_path):
    from safetensors.numpy import save_file

    model, path = Tied(), tmp_path / "c.safetensors"
    with pytest.raises(FileNotFoundError, match=r"no such file(.|\n)*c\.safetensors"):
        checkpoint.load(path, model)
    checkpoint.save(path, model)
    whole = path.read_bytes()
    for cut in (0, 5, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:cut])
        with pytest.raises(CheckpointError, match="cannot be read"):
            checkpoint.load(path, model)
    save_file({"a": np.zeros(2)}, path)
    with pytest.raises(CheckpointError, match="is no checkpoint of blutrain"):
        checkpoint.load(path, model)


def entries(tree, path=()):
    """The paths of all entries of nested dicts and lists."""
    for key, value in tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ():
        yield (*path, key)
        yield from entries(value, (*path, key))


def damaged(tree, path, value):
    """A copy of `tree` with another value at `path`; Ellipsis: without it."""
    tree = copy.deepcopy(tree)
    place = tree
    for key in path[:-1]:
        place = place[key]
    if value is ...:
        del place[path[-1]]
    else:
        place[path[-1]] = value
    return tree


def everything(model, optimizer, scheduler) -> list:
    state = [value for entry in optimizer.state.values() for value in entry.values() if isinstance(value, bt.Tensor)]
    arrays = [t.detach().numpy().tolist() for t in [*model.state_dict().values(), *state]]
    return [arrays, bt.get_rng_state(), scheduler.state_dict(), optimizer.param_groups[0]["lr"]]


def test_damaged_metadata_is_an_error_and_changes_nothing(tmp_path):
    """Each entry taken out or replaced: what is not an error is a number that might have been saved."""
    from safetensors.numpy import load_file, save_file

    path = tmp_path / "c.safetensors"
    run = make()
    train(*run, 2)
    checkpoint.save(path, *run, extra=7)
    arrays, (meta, _) = load_file(path), checkpoint._read(path, with_tensors=True)
    train(*run, 1)
    before = everything(*run)
    harmless = 0
    for place in entries(meta):
        for value in (..., None, "x", [], {}, 1.5):
            save_file(arrays, path, {checkpoint.KEY: json.dumps(damaged(meta, place, value))})
            try:
                checkpoint.load(path, *run)
            except (CheckpointError, ValueError):
                assert everything(*run) == before, (place, value)
            else:
                harmless += 1
                run = make()
                train(*run, 1)
                before = everything(*run)
    assert harmless < 15


def test_state_of_an_optimizer_keeps_its_kind_of_dtype(tmp_path):
    model, optimizer, scheduler = make()
    train(model, optimizer, scheduler, 1)
    state = optimizer.state_dict()
    state["state"][0]["exp_avg"] = state["state"][0]["exp_avg"].to(bt.int32)
    with pytest.raises(ValueError, match="exp_avg of parameter 0 has another kind of dtype"):
        optimizer.load_state_dict(state)


def test_a_failed_write_leaves_the_old_file_whole(tmp_path):
    """A file size limit stands for a full disk: the write fails in the middle with an error of the operating system."""
    script = f"""
import resource
from blutrain import nn
from blutrain.nn import checkpoint
model = nn.Linear(1000, 1000)
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
try:
    checkpoint.save({str(tmp_path / "c")!r}, model)
except checkpoint.CheckpointError as fault:
    print(fault)
"""
    checkpoint.save(tmp_path / "c", Tied())
    before = (tmp_path / "c").read_bytes()
    out = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert "could not be written" in out.stdout and "is unchanged" in out.stdout, out
    assert (tmp_path / "c").read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["c"]


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match="could not be written"):
        checkpoint.save(tmp_path / "file" / "c", Tied())
