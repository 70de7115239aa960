"""Steps recorded from shapes, and the report of kernels compiled without a GPU."""

from __future__ import annotations

import json

import numpy as np
import pytest

import blutrain as bt
from blutrain.errors import NovaError
from blutrain.nova import aot, recorder
from blutrain.nova.aot_record import record_step, shapes_only
from blutrain.nova.explain import programs_of
from blutrain.nova.gpu.assemble import AssembledKernel, ptxas_path
from blutrain.nova.gpu.assemble_report import FunctionReport
from blutrain.nova.gpu.kernel import GpuKernel, GpuPhase
from blutrain.nova.plan import Launch, ProgramPlan
from blutrain.nova.target_gpu import ARCHITECTURES, gpu_facts
from blutrain.nova.trace import Trace
from blutrain.tensor.aval import Aval
from blutrain.tensor.device import Device, cpu
from blutrain.tensor.dtype import int64
from examples.gpt_mlp.model import MLPGPT, Config

CONFIG = Config(vocab_size=64, block_size=16, n_embd=32, n_layer=2)
TOKENS = Aval((2, 16), int64)


def made() -> tuple[MLPGPT, bt.optim.Optimizer]:
    model = MLPGPT(CONFIG)
    return model, bt.optim.AdamW(model.parameters(), lr=1e-3)


def real_trace() -> Trace:
    """The trace of a step that was really made."""
    model, optimizer = made()
    model.compile(first_step="compiled")
    tokens = [bt.from_numpy(np.random.default_rng(0).integers(0, 64, (2, 16))) for _ in range(2)]
    loss = model(*tokens)
    loss.backward()
    optimizer.step()
    (program,) = programs_of(model)
    return program.trace


def described(trace: Trace) -> tuple:
    lines = [node.location.line if node.location.file.endswith("model.py") else 0 for node in trace.nodes]
    nodes = [(node.key(), line) for node, line in zip(trace.nodes, lines, strict=True)]
    inputs = [(x.value, x.role, x.aval) for x in trace.inputs]
    return nodes, inputs, trace.avals, trace.outputs, trace.updates


def test_a_step_recorded_from_shapes_is_the_real_one():
    with shapes_only():
        model, optimizer = made()
    before = recorder()
    trace = record_step(model, optimizer, [TOKENS, TOKENS], device=cpu)
    assert recorder() is before
    assert described(trace) == described(real_trace())


def test_a_preset_for_a_gpu_needs_neither_gpu_nor_memory():
    trace = aot.preset_trace("144M", "tf32", 8, 1024)
    assert trace.device is Device("cuda") and len(trace.outputs) == 1
    parameters = sum(trace.avals[v].size for v in trace.updates) // 3
    assert parameters == pytest.approx(144e6, rel=0.02)
    assert str(trace.nodes[0].location).startswith(str(aot.importlib.import_module("examples.gpt_mlp.model").__file__))


def test_shapes_only_puts_the_recorder_back_and_makes_no_values():
    before = recorder()
    with pytest.raises(TypeError, match="takes values from the host"), shapes_only():
        bt.tensor([1.0, 2.0])
    assert recorder() is before


def test_a_step_that_reads_a_value_cannot_be_recorded():
    class Reading(bt.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = bt.nn.Linear(4, 4)

        def forward(self, x):
            y = self.layer(x).sum()
            return y * float(y)

    with shapes_only():
        model = Reading()
        optimizer = bt.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(NovaError, match="cannot be recorded: value_read"):
        record_step(model, optimizer, [Aval((2, 4), bt.float32)], device=cpu)


def test_unknown_presets_and_targets():
    with pytest.raises(ValueError, match="no preset '45M'; known are 42M, 46M"):
        aot.preset_trace("45M", "fp32", 8, 1024)
    with pytest.raises(SystemExit):
        aot.main(["--target", "sm_70"])


def plan_and_code() -> tuple[ProgramPlan, list[AssembledKernel]]:
    phases = GpuPhase("gemm", (132, 1, 1), 384, 2, 200_000), GpuPhase("fold", (4, 1, 1), 256)
    kernel = GpuKernel("text", "sm_90a", phases, 512, 10**8, 10**11, 400.0, "128x192x64 ping-pong", "bf16")
    launches = Launch(0, (), None, ("a.py:2",), "contract 0"), Launch(0, (), None, ("a.py:1", "b.py:3"), "contract 0")
    functions = {"gemm": FunctionReport(168, 9, 1024, 0, 4, 8), "fold": FunctionReport(32, 1, 0, 0, 0, 0)}
    return ProgramPlan((kernel,), launches, 4096), [AssembledKernel("ptx", b"cubin", "said", functions)]


def test_rows_of_kernels():
    plan, code = plan_and_code()
    (row,) = aot.kernel_rows(plan, code, gpu_facts("sm_90a"))
    assert (row["launches"], row["lines"], row["intensity"]) == (2, ["a.py:1", "a.py:2", "b.py:3"], 1000.0)
    assert row["roofline_us"] == pytest.approx(1e11 / 989.4e6)
    gemm, fold = row["phases"]
    assert (gemm["registers"], gemm["spill_bytes"], gemm["shared_bytes"], gemm["cluster"]) == (168, 12, 201_024, 2)
    assert (fold["registers"], fold["spill_bytes"], fold["shared_bytes"]) == (32, 0, 0)
    assert json.loads(json.dumps(row))["schedule"] == "128x192x64 ping-pong"


def test_the_table_has_a_line_for_each_phase(monkeypatch, capsys, tmp_path):
    plan, code = plan_and_code()
    monkeypatch.setattr(aot, "preset_trace", lambda *arguments: None)
    monkeypatch.setattr(aot, "compile_for", lambda *arguments: plan)
    monkeypatch.setattr(aot, "assemble", lambda jobs: code)
    assert aot.main(["--dump", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "contract 0" in lines[1] and "a.py:1, a.py:2 +1" in lines[1] and "132x1x1 c2" in lines[1]
    assert lines[2].split() == ["fold", "4x1x1", "256", "32", "0", "0"]
    assert lines[3].startswith("2 launches of 1 kernels, 800 us predicted")
    assert (tmp_path / "kernel-000.cubin").read_bytes() == b"cubin"
    assert aot.main(["--json"]) == 0
    assert json.loads(capsys.readouterr().out)["predicted_us"] == 800.0


# -------------------------------------------------------------------- every target, assembled

FEW_LAYERS = "42M"  # as wide as 46M with half its layers: the same kernels, fewer launches


@pytest.mark.skipif(not ptxas_path(), reason="needs ptxas (the wheel nvidia-cuda-nvcc)")
@pytest.mark.parametrize("precision", ["tf32", "bf16", "fp32"])
@pytest.mark.parametrize("target", ARCHITECTURES)
def test_every_kernel_of_a_step_assembles(target, precision, capsys):
    """Exit status 1 is a spill or a message C75xx in the code of a product; limits and the report are checked here."""
    status = aot.main(["--target", target, "--preset", FEW_LAYERS, "--precision", precision, "--json"])
    said = capsys.readouterr()
    assert status == 0, said.err
    report, facts = json.loads(said.out), gpu_facts(target)
    assert {row["kernel"].split()[0] for row in report["kernels"]} >= {"contract", "row", "map", "scatter"}
    assert sum(row["launches"] for row in report["kernels"]) == report["launches"]
    for row in report["kernels"]:
        assert row["lines"] and all(line.rpartition(":")[2].isdigit() for line in row["lines"]), row["kernel"]
        assert row["schedule"] and row["bytes"] > 0 and row["predicted_us"] > 0, row["kernel"]
        assert row["intensity"] == pytest.approx(row["flops"] / row["bytes"])
        for phase in row["phases"]:
            check_limits(row["kernel"], phase, facts)
    products = [row for row in report["kernels"] if row["kernel"].startswith("contract")]
    assert all(row["flops"] > 0 for row in products)
    schedules = " ".join(row["schedule"] for row in products)
    assert ("mma.m16n8k" in schedules) == (target != "sm_90a" or precision == "fp32")


def check_limits(name: str, phase: dict, facts) -> None:
    """What a launch needs is there on the target; nothing spills."""
    assert phase["spill_bytes"] == 0, f"{name}: {phase['symbol']} spills {phase['spill_bytes']} bytes"
    assert 0 < phase["registers"] <= facts.max_registers_per_thread, name
    allocated = -(-phase["registers"] // 8) * 8 * -(-phase["block"] // 32) * 32
    assert allocated <= facts.registers_per_sm, f"{name}: {allocated} registers a block"
    assert phase["block"] <= facts.max_threads_per_block and phase["block"] % 32 == 0, name
    assert phase["shared_bytes"] <= facts.shared_bytes_per_block, f"{name}: {phase['shared_bytes']} bytes shared"
    assert phase["cluster"] == 1 or facts.clusters(phase["cluster"]), f"{name}: clusters of {phase['cluster']}"
    assert all(phase["grid"]) and phase["grid"][0] % phase["cluster"] == 0, name
