"""The example as a newcomer runs it: training, files it leaves, stopping and resuming bit for bit, bad input."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from examples.gpt_mlp.train import main

ROOT = Path(__file__).resolve().parents[1]
TEXT = b"the quick brown fox jumps over the lazy dog. " * 200
SMALL = "--n-embd 16 --n-layer 1 --block-size 8 --batch-size 2 --sample-tokens 20 --device cpu".split()
MODES = {"eager": "--no-compile", "compiled": "--compile"}


@pytest.fixture
def data(tmp_path):
    path = tmp_path / "text.txt"
    path.write_bytes(TEXT)
    return path


def flags(data, out, mode="eager", *more):
    return [*SMALL, MODES[mode], "--data", str(data), "--out", str(out), *map(str, more)]


def state(out):
    """Every array of a checkpoint: weights and moments."""
    return load_file(Path(out) / "checkpoint.safetensors")


def assert_same_state(a, b):
    a, b = state(a), state(b)
    assert a.keys() == b.keys()
    for name in a:
        np.testing.assert_array_equal(a[name], b[name], err_msg=name)


def lines(path):
    return [json.loads(line) for line in Path(path).read_text().splitlines()]


def start(arguments):
    command = [sys.executable, "-m", "examples.gpt_mlp.train", *arguments]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def run(arguments):
    """(exit status, stdout, stderr) of the program in a new process."""
    process = start(arguments)
    out, err = process.communicate(timeout=120)
    return process.returncode, out, err


@pytest.mark.parametrize("mode", MODES)
def test_a_newcomers_run(tmp_path, data, mode, capsys):
    out = tmp_path / "out"
    more = ["--steps", 60, "--lr", 1e-2, "--json", tmp_path / "log.jsonl", "--eval-every", 20]
    assert main(flags(data, out, mode, *more)) == 0
    assert {p.name for p in out.iterdir()} == {"checkpoint.safetensors", "loss.csv", "loss.png", "sample.txt"}
    logged = lines(tmp_path / "log.jsonl")
    assert [line["step"] for line in logged] == [1, 10, 20, 30, 40, 50, 60]
    keys = {"step", "loss", "lr", "grad_norm", "ms", "tokens_per_s", "peak_memory_bytes", "mode"}
    assert all(keys <= line.keys() and line["mode"] == mode for line in logged)
    assert logged[-1]["loss"] < 0.7 * logged[0]["loss"] and logged[0]["peak_memory_bytes"] > 1 << 20
    assert logged[-1]["val_loss"] < 0.7 * logged[0]["loss"]
    assert logged[0]["lr"] < logged[1]["lr"] > logged[-1]["lr"]
    shown = capsys.readouterr().out
    assert "step 60/60  loss" in shown and "tokens/s" in shown and "a sample" in shown
    assert len((out / "sample.txt").read_text()) > 10


@pytest.mark.parametrize("mode", MODES)
def test_five_steps_and_five_resumed_in_a_new_process_are_ten(tmp_path, data, mode):
    more = ["--steps", 10, "--dropout", 0.1, "--grad-accum", 2, "--log-every", 1, "--json"]
    assert main(flags(data, tmp_path / "whole", mode, *more, tmp_path / "whole.jsonl", "--stop-after", 10)) == 0
    halves = flags(data, tmp_path / "halves", mode, *more, tmp_path / "halves.jsonl", "--stop-after", 5)
    status, out, err = run(halves)
    assert status == 0 and "--resume --out" in out, err
    status, out, err = run(
        ["--resume", "--out", str(tmp_path / "halves"), MODES[mode], "--json", str(tmp_path / "halves.jsonl")]
    )
    assert status == 0 and "from step 5" in out, err
    assert_same_state(tmp_path / "whole", tmp_path / "halves")
    whole, halves = lines(tmp_path / "whole.jsonl"), lines(tmp_path / "halves.jsonl")
    assert [line["step"] for line in halves] == [1, 2, 3, 4, 5, 10]
    by_step = {line["step"]: line for line in whole}
    for line in halves:
        assert all(line[k] == by_step[line["step"]][k] for k in ("loss", "lr", "grad_norm"))


def test_a_killed_run_resumes_from_its_last_checkpoint(tmp_path, data):
    more = ["--steps", 3000, "--eval-every", 10]
    process = start(flags(data, tmp_path / "killed", "eager", *more))
    try:
        wait_for(lambda: (tmp_path / "killed" / "checkpoint.safetensors").exists(), process)
    finally:
        process.kill()
        process.communicate()
    at = int(json.loads(read_meta(tmp_path / "killed"))["extra"]["step"])
    stop = at + 7
    assert main(["--resume", "--no-compile", "--out", str(tmp_path / "killed"), "--stop-after", str(stop)]) == 0
    assert main(flags(data, tmp_path / "whole", "eager", *more, "--stop-after", stop)) == 0
    assert_same_state(tmp_path / "whole", tmp_path / "killed")


def test_ctrl_c_saves_and_says_how_to_go_on(tmp_path, data):
    out = tmp_path / "out with a space"
    process = start(flags(data, out, "eager", "--steps", 3000))
    wait_for(lambda: (out / "loss.csv").exists() and len((out / "loss.csv").read_text().splitlines()) > 3, process)
    process.send_signal(signal.SIGINT)
    shown, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert f"--resume --out '{out}' --no-compile" in shown and "stopping after this step" in err
    at = int(json.loads(read_meta(out))["extra"]["step"])
    assert main(["--resume", "--no-compile", "--out", str(out), "--stop-after", str(at + 3)]) == 0
    assert main(flags(data, tmp_path / "whole", "eager", "--steps", 3000, "--stop-after", at + 3)) == 0
    assert_same_state(tmp_path / "whole", out)


def read_meta(out):
    from safetensors import safe_open

    with safe_open(Path(out) / "checkpoint.safetensors", framework="np") as file:
        return file.metadata()["blutrain"]


def wait_for(condition, process, seconds=60):
    deadline = time.monotonic() + seconds
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.parametrize("mode", MODES)
def test_a_loss_that_is_not_finite_stops_before_the_checkpoint_is_overwritten(tmp_path, data, mode, capsys):
    out = tmp_path / "out"
    assert main(flags(data, out, mode, "--steps", 10, "--stop-after", 2)) == 0
    before = (out / "checkpoint.safetensors").read_bytes()
    poisoned = tmp_path / "poison.py"
    poisoned.write_text(POISON)
    command = [sys.executable, str(poisoned), "--resume", MODES[mode], "--out", str(out)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, env=with_root())
    assert done.returncode == 1, done
    assert "is not finite at step" in done.stderr and "the checkpoint of step 2 is unchanged" in done.stderr
    assert (out / "checkpoint.safetensors").read_bytes() == before


# Weights that overflow, as a run with too high a rate ends up with.
POISON = """
import sys
import blutrain as bt
from examples.gpt_mlp import train
prepare = train.prepare
def poisoned(argv):
    run = prepare(argv)
    with bt.no_grad():
        run.model.head.weight.fill_(float("inf"))
    return run
train.prepare = poisoned
sys.exit(train.main(sys.argv[1:]))
"""


def with_root():
    return {**os.environ, "PYTHONPATH": str(ROOT)}


def test_a_full_disk_while_saving_leaves_the_old_checkpoint(tmp_path, data):
    out = tmp_path / "out"
    assert main(flags(data, out, "eager", "--steps", 10, "--stop-after", 2)) == 0
    before = (out / "checkpoint.safetensors").read_bytes()
    script = f"""
import resource, sys
from examples.gpt_mlp import train
run = train.prepare(["--resume", "--no-compile", "--out", {str(out)!r}])
train.prepare = lambda argv: run
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
sys.exit(train.main([]))
"""
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1 and "could not be written" in done.stderr, done
    assert (out / "checkpoint.safetensors").read_bytes() == before


def test_a_run_goes_on_where_its_curve_cannot_be_written(tmp_path, data, monkeypatch, capsys):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("examples.gpt_mlp.curve.LossCurve.add", full)
    out = tmp_path / "out"
    assert main(flags(data, out, "eager", "--steps", 3)) == 0
    assert "warning: step 1 is not written: [Errno 28] No space left" in capsys.readouterr().err
    assert (out / "checkpoint.safetensors").is_file()


def test_ctrl_c_before_the_first_step_says_so(tmp_path, data, monkeypatch, capsys):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("examples.gpt_mlp.train.load_corpus", interrupted)
    assert main(flags(data, tmp_path / "out")) == 130
    assert "stopped before the first step" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("more", "text"),
    [
        (["--data", "/nowhere/text.txt"], "no such file or folder"),
        (["--resume"], "no such file"),
        (["--precision", "tf32"], "tf32 is a precision of GPUs"),
        (["--block-size", "100000"], "too little training text"),
        (["--vocab-size", "100"], "the data has token"),
        (["--out", "/proc/nothing/here"], "no folder can be made"),
    ],
)
def test_bad_input_is_named_before_anything_happens(tmp_path, data, more, text, capsys):
    assert main([*flags(data, tmp_path / "out"), *more]) == 2
    assert text in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_gpu_that_is_not_there_is_named(tmp_path, data, capsys):
    if has_gpu():
        pytest.skip("there is a GPU")
    assert main([*flags(data, tmp_path / "out"), "--device", "cuda"]) == 2
    assert "cuda" in capsys.readouterr().err


def has_gpu() -> bool:
    from blutrain.tensor.device import Device

    try:
        return Device("cuda").xp is not None
    except RuntimeError:
        return False


def test_resuming_refuses_other_sizes_other_data_and_a_damaged_file(tmp_path, data, capsys):
    out = tmp_path / "out"
    assert main(flags(data, out, "eager", "--steps", 4, "--stop-after", 2)) == 0
    resume = ["--resume", "--no-compile", "--out", str(out)]
    assert main([*resume, "--n-embd", "32"]) == 2
    assert "--n-embd differs" in capsys.readouterr().err
    data.write_bytes(TEXT + b"more")
    assert main(resume) == 2
    assert "the data has changed" in capsys.readouterr().err
    data.write_bytes(TEXT)
    path = out / "checkpoint.safetensors"
    path.write_bytes(path.read_bytes()[:-10])
    assert main(resume) == 2
    assert "the file is damaged or truncated" in capsys.readouterr().err
