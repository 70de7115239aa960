"""Every benchmark runs at a tiny size on a CPU, its JSON has what its docstring promises, and the page of results is rendered."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path

import ampere_support
import pytest
from contract_harness import context, parse_kernel
from mlir import ir

from blutrain.nova.target_gpu import gpu_facts

torch = pytest.importorskip("torch")
ROOT = Path(__file__).resolve().parents[1]
TINY = "--device=cpu --n-embd=16 --n-layer=1 --batch-size=2 --block-size=16".split()
ENVIRONMENT = {"benchmark", "date", "machine", "versions", "command"}


@pytest.fixture(autouse=True)
def _importable(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))


def run(name: str, path: Path, *flags: str) -> dict:
    """What a benchmark's `main` wrote."""
    argv = [*flags, "--json", str(path / f"{name}.json")]
    assert importlib.import_module(name).main(argv) == 0
    written = json.loads((path / f"{name}.json").read_text())
    assert ENVIRONMENT < set(written)
    assert str(path) in written["command"]
    return written


def test_step(tmp_path):
    results = run("step", tmp_path, *TINY, "--mode=both", "--peers=torch", "--rounds=1", "--steps=1", "--clip=1")[
        "results"
    ]
    assert [r["mode"] for r in results] == ["eager", "compiled", "torch"]
    compiled = results[1]
    assert set(compiled["ratio"]) == {"eager", "torch"}
    assert {"ms", "tokens_per_s", "first_step_s", "live_bytes", "replay_us"} < set(compiled)
    assert 0 < compiled["host_us"]["update"] < compiled["host_us"]["step"]


@pytest.mark.parametrize("name", ["compiled", "torch", "jax"])
def test_subjects_take_the_same_steps(name):
    if name == "jax":
        pytest.importorskip("jax")
    trainers = importlib.import_module("trainers")
    options = trainers.parse("", lambda parser: None, [*TINY, "--clip=0.5", "--grad-accum=2"])
    batches = trainers.random_batches(options)

    def losses(subject):
        trainer = trainers.make(subject, options, trainers.initial_weights(options))
        return [float(trainer.step([(trainer.put(x), trainer.put(y)) for x, y in batches])) for _ in range(4)]

    assert losses(name) == pytest.approx(losses("eager"), rel=1e-5)


def test_step_goes_on_without_a_peer_that_fails(tmp_path, monkeypatch):
    step = importlib.import_module("step")
    monkeypatch.setitem(step.PEERS, "torch", "a peer that is not there")
    monkeypatch.setattr(importlib.import_module("torch_peers"), "TorchTrainer", lambda *_: 1 / 0)
    results = run("step", tmp_path, *TINY, "--peers=torch", "--rounds=1", "--steps=1")["results"]
    assert "ms" in results[0]
    assert "ZeroDivisionError" in results[1]["error"]


def test_presets_and_precisions_are_sizes_of_one_run():
    options = importlib.import_module("step").parse(["--device=cpu", "--presets=all", "--precisions=fp32,bf16"])
    assert options.presets == ["42M", "46M", "92M", "106M", "125M", "134M", "144M"]
    sized = importlib.import_module("trainers").with_sizes(options, "144M", "bf16")
    assert (sized.n_embd, sized.n_layer, sized.vocab_size, sized.block_size) == (768, 14, 50304, 1024)


def test_losses(tmp_path):
    plot = tmp_path / "losses.png"
    flags = "--steps=6", "--window=3", f"--data={ROOT / 'blutrain' / 'errors.py'}", f"--plot={plot}"
    written = run("losses", tmp_path, *TINY, *flags)
    assert [r["precision"] for r in written["results"]] == ["fp32", "bf16"]
    for r in written["results"]:
        assert {len(losses) for losses in r["losses"].values()} == {6}
        assert all(d["final"] < 0.1 for d in r["difference"].values())
    assert plot.stat().st_size > 0


def test_memory(tmp_path):
    results = run("memory", tmp_path, *TINY, "--clips=none,1", "--subjects=eager", "--jobs=2")["results"]
    assert [(r["clip"], r["subject"]) for r in results] == [(None, "eager"), (1.0, "eager")]
    assert all(r["live_bytes"] > 0 for r in results)


def test_sizes_that_start_at_once(tmp_path):
    flags = *TINY, "--precisions=fp32,fp64", "--peers=torch", "--rounds=1", "--steps=1", "--jobs=2"
    results = run("step", tmp_path, *flags)["results"]
    assert {(r["precision"], r["mode"]) for r in results} == {
        (p, m) for p in ("fp32", "fp64") for m in ("compiled", "torch")
    }
    assert all(record["ms"] > 0 for record in results)


def test_a_size_that_fails_beside_others_is_named_and_the_others_are_kept():
    step, trainers = importlib.import_module("step"), importlib.import_module("trainers")
    good = step.parse([*TINY, "--rounds=1", "--steps=1"])
    bad = trainers.with_sizes(good, None, "fp64")
    bad.n_layer = "two"
    found = step.side_by_side([good, bad], jobs=2)
    ((record,),) = [next(found)]
    assert record["precision"] == "fp32" and record["ms"] > 0
    with pytest.raises(RuntimeError, match="fp64"):
        next(found)


def test_unknown_sizes_are_refused(capsys):
    for flag in ("--presets=46M,47M", "--precisions=bf16,fp61", "--peers=torch,tortch"):
        with pytest.raises(SystemExit):
            importlib.import_module("step").parse([*TINY, flag])
        assert flag[-3:] in capsys.readouterr().err


def test_first_step(tmp_path):
    (result,) = run("first_step", tmp_path, *TINY)["results"]
    assert result["cached"]["step"] < result["cold"]["step"] < result["cold"]["process"]


def test_matmul(tmp_path):
    written = run("matmul", tmp_path, "--device=cpu", "--shapes=NT:64x48x32,TN:33x17x40", "--rounds=1")
    assert set(written["summary"]["fp32"]) == {
        "least", "share_at_least_1", "geometric_mean", "largest_error", "largest_error_ratio",
    }  # fmt: skip
    for r in written["results"]:
        assert r["error"]["blutrain"] < 1e-5
        assert r["speedup"] == pytest.approx(r["us"]["torch"] / r["us"]["blutrain"])


@pytest.mark.parametrize(
    ("name", "flags"),
    [
        ("fused_cpu", ["--only=residual_1024", "--rounds=1"]),
        ("kernels_cpu", ["--only=layer_norm backward", "--rounds=1"]),
        ("dispatch", ["--rounds=1", "--calls=5"]),
    ],
)
def test_kernels_of_a_cpu(tmp_path, name, flags):
    assert run(name, tmp_path, *flags)["results"]


def test_shapes_of_a_sweep_are_drawn_once():
    """The lot says the same on every Python: what was drawn before anything was priced is what is swept."""
    configurator = importlib.import_module("configurator")
    ends = configurator.SHAPES[0], configurator.SHAPES[-1]
    assert ends == ("NT:10112x2176x256", "TN:3032x728x7392")
    assert len({shape[:2] for shape in configurator.drawn(1)}) == 3
    assert not set(configurator.drawn(1)) & set(configurator.SHAPES)


def test_the_space_has_every_step_that_the_configurator_may_pick():
    schedule_space = importlib.import_module("schedule_space")
    with context(), ir.Location.unknown():
        kernel, _module = parse_kernel(ampere_support.plain("NT", 256, 192, 128, "bf16"))
        first, *others = schedule_space.space("ampere", kernel, gpu_facts("sm_80"))
    assert {config["reduction"] for config, _ in others} == {16, 32, 64}
    assert first[0]["reduction"] == 64


@pytest.mark.parametrize("family", ["hopper", "ampere"])
def test_sweep_is_built_here_and_measured_elsewhere(tmp_path, family, monkeypatch):
    configurator = importlib.import_module("configurator")
    monkeypatch.setattr(importlib.import_module("matmul").time, "sleep", lambda seconds: None)
    build = [f"--build={tmp_path}", "--shapes=NT:256x192x128", "--limit=4", "--precision=bf16", f"--family={family}"]
    assert configurator.main(build) == 0
    space = importlib.import_module("schedule_space")
    other = lambda family, kernel, facts: space.space(family, kernel, facts)[-1]  # what the next checkout picks
    monkeypatch.setattr(importlib.import_module("schedule_build"), "pick", other)
    (built,) = configurator.source(configurator.parse([f"--measure={tmp_path}"]))
    assert 2 < len(built.cubins) <= 5 < built.legal
    assert built.configs[0] == built.product.read(lambda k: other(family, k, gpu_facts("sm_90a")))[0]

    class OnCpu(configurator.Sweep):
        device = "cpu"

        def call(self, number, launches):
            a, b = self.built.product.factors(*self.operands[:2])
            wrong = number == 1  # one schedule computes nothing
            return lambda: None if wrong else torch.mm(a, b, out=self.operands[2])

    result = configurator.measure(built, True, print, OnCpu)
    assert len(result["wrong"]) == 1
    assert result["swept"] == len(built.cubins) - 1 == len(result["table"])
    assert result["ratio"] >= 1
    assert configurator.summarize([result])["up to 500 us"]["shapes"] == 1
    assert "ratio" in configurator.line(result)


@pytest.mark.slow
def test_scaling(tmp_path):
    sizes = "--n-embd 16 --n-layer 1 --batch-size 1 --block-size 16 --rounds 1 --steps 1"
    settings = {
        "DEVICE": "cpu",
        "COUNTS": "1",
        "PRECISIONS": "fp32",
        "PYTHON": sys.executable,
        "FLAGS": sizes,
        "PART": "280",
    }
    command = [ROOT / "benchmarks" / "scaling.sh", tmp_path / "scaling"]
    subprocess.run(command, env={**os.environ, **settings}, check=True, timeout=600)
    written = json.loads((tmp_path / "scaling.json").read_text())
    assert ENVIRONMENT < set(written)
    modes = {r["mode"] for r in written["results"]}
    assert modes == {"compiled", "sharded", "eager", "torch DDP", "torch DDP + compile"}
    assert "blutrain compiled" in (tmp_path / "scaling.md").read_text()
    assert (tmp_path / "scaling.png").stat().st_size > 0


def test_page_is_rendered_from_results(tmp_path, monkeypatch):
    report = importlib.import_module("report")
    monkeypatch.setattr(report, "__file__", str(tmp_path / "report.py"))
    (tmp_path / "results").mkdir()
    written = run("matmul", tmp_path / "results", "--device=cpu", "--shapes=NT:64x48x32", "--rounds=1")
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- results/matmul.json -->\nold\n<!-- end -->\nafter\n")
    assert report.main([str(page), "--check"]) == 1
    assert report.main([str(page)]) == 0
    assert report.main([str(page), "--check"]) == 0
    text = page.read_text()
    assert "| NT:64x48x32 | NT 64 x 48 x 32 |" in text
    assert written["machine"] in text
    assert text.startswith("before\n") and text.endswith("<!-- end -->\nafter\n")


def test_performance_page_is_what_the_results_say():
    assert importlib.import_module("report").main([str(ROOT / "docs" / "performance.md"), "--check"]) == 0
