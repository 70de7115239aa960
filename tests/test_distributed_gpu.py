"""Ranks on GPUs, by NCCL: one rank is enough for its calls, its stream and its graphs; what needs two is marked."""

from __future__ import annotations

import json

import pytest
from distributed_support import ROOT, launch
from gpu import is_there, needs_gpu

pytestmark = needs_gpu
PROGRAMS = str(ROOT / "tests" / "distributed_gpu_programs.py")


def count() -> int:
    """GPUs of this host."""
    if not is_there():
        return 0
    import cupy

    return cupy.cuda.runtime.getDeviceCount()


several = [
    pytest.mark.multi_gpu,
    pytest.mark.skipif("__import__('test_distributed_gpu').count() < 2", reason="needs two GPUs"),
]
RANKS = [1, pytest.param(2, marks=several)]


def program(ranks: int, *command: str) -> str:
    """What ranks print that end well."""
    status, out, err = launch(ranks, *command)
    assert status == 0, out + err
    return out


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("name", ["collectives", "training", "accumulating", "bad_input"])
def test_on_gpus(ranks, name):
    print(program(ranks, PROGRAMS, name))


@pytest.mark.parametrize("ranks", RANKS)
def test_collectives_inside_of_a_compiled_forward(ranks):
    assert (
        program(ranks, str(ROOT / "tests" / "distributed_collectives.py"), "training", "cuda").count("equal") == ranks
    )


def test_more_ranks_than_gpus():
    status, _, err = launch(count() + 1, PROGRAMS, "collectives")
    assert status == 1 and f"rank {count()} has no GPU of its own" in err and f"got: {count()}" in err


@pytest.mark.multi_gpu
@pytest.mark.skipif("__import__('test_distributed_gpu').count() < 2", reason="needs two GPUs")
def test_a_rank_that_stays_away_from_a_replayed_step_is_named():
    status, _, err = launch(2, PROGRAMS, "late")
    assert status == 1 and "rank 1 did not come within 3 s" in err and "gradients, bucket 0 of 1" in err


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("more", [(), ("--shard-optimizer",)])
def test_the_example(ranks, more, tmp_path):
    text = tmp_path / "text.txt"
    text.write_bytes(b"the quick brown fox jumps over the lazy dog. " * 200)
    sizes = "--n-embd 64 --n-layer 1 --block-size 32 --batch-size 8 --steps 20 --sample-tokens 0 --device cuda".split()
    out = "--out", str(tmp_path / "out"), "--json", str(tmp_path / "lines")
    status, shown, err = launch(
        ranks, "-m", "examples.gpt_mlp.train", *sizes, "--data", str(text), *out, *more, "--precision", "tf32"
    )
    assert status == 0 and "[rank 0] step 20/20" in shown and "NovaWarning" not in err, shown + err
    lines = [json.loads(line) for line in (tmp_path / "lines").read_text().splitlines()]
    assert lines[-1]["loss"] < lines[0]["loss"]


@pytest.mark.parametrize("ranks", RANKS)
def test_the_benchmark(ranks, tmp_path):
    sizes = "--n-embd 64 --n-layer 2 --block-size 32 --batch-size 8 --rounds 1 --device cuda --bucket-mb 0.1".split()
    trace = tmp_path / "trace.json"
    status, shown, err = launch(ranks, "benchmarks/ddp.py", *sizes, "--trace", str(trace))
    assert status == 0, shown + err
    record = json.loads(shown.partition("[rank 0] ")[2].splitlines()[0])
    assert record["ranks"] == ranks and record["buckets"] > 1 and 0 <= record["hidden"] <= 1, record
    events = json.loads(trace.read_text())["traceEvents"]
    assert {e["cat"] for e in events if e["ph"] == "X"} == {"kernels", "waits", "buckets"}
    print(record)
