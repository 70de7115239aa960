"""Schedules and code of kernels from the compile workers: as those made here, errors raised here."""

from __future__ import annotations

import pickle
from collections import OrderedDict
from types import SimpleNamespace

import pytest
from kernels_support import run_step
from runtime_support import run_script
from test_kernels_passes import training_step

from blutrain import config
from blutrain.nova.aot import compile_for
from blutrain.nova.aot_record import record_step, shapes_only
from blutrain.nova.gpu import assemble, launch_courier
from blutrain.nova.passes import configure, generate, kernel_jobs
from blutrain.nova.passes.dedupe_kernels import distinct_kernels
from blutrain.nova.passes.driver import run_passes
from blutrain.nova.target import host_cpu
from blutrain.nova.target_gpu import gpu_facts
from blutrain.optim import AdamW
from blutrain.tensor.aval import Aval
from blutrain.tensor.device import Device
from blutrain.tensor.dtype import int64
from examples.gpt_mlp.model import MLPGPT, Config


@pytest.fixture(scope="module")
def kernels():
    module = run_step(training_step())
    with module.context:
        yield distinct_kernels(module)


def test_workers_answer_as_this_process(kernels, monkeypatch):
    facts = host_cpu()
    asked = [kernel_jobs.ask(answer, kernels, facts) for answer in (configure.schedule_of, generate.code_of)]
    monkeypatch.setattr(kernel_jobs, "LEAST", len(kernels) + 1)
    monkeypatch.setattr(kernel_jobs, "shared_workers", None)
    here = [kernel_jobs.ask(answer, kernels, facts) for answer in (configure.schedule_of, generate.code_of)]
    assert asked == here and len(kernels) >= kernel_jobs.LEAST - 1


def test_code_is_made_on_the_way_to_a_schedule(monkeypatch):
    """In one request a kernel; the pass behind finds all of it."""
    asked = []
    monkeypatch.setattr(configure, "ask", lambda answer, *rest: asked.append(answer) or kernel_jobs.ask(answer, *rest))
    monkeypatch.setattr(generate, "ask", lambda answer, ops, facts: asked.append(len(ops)) or [])
    monkeypatch.setattr(generate, "_known", OrderedDict())
    module = run_step(training_step())
    run_passes(module, ("configure", "generate"), host_cpu())
    with module.context:
        assert asked == [configure.schedule_and_code, 0]
        codes = [generate.code_of(op, host_cpu()) for op in distinct_kernels(module)]
        assert list(generate.generated(module, host_cpu())) == codes
        generate._known.clear()  # as in another process
        assert list(generate.generated(module, host_cpu())) == codes


def test_machine_code_is_made_while_other_kernels_have_no_code_yet():
    """With that of the runtime itself: when the passes are done there is nothing left to assemble."""
    facts = gpu_facts("sm_90a")
    with config.scope(NOVA_CACHE="0"):
        plan = compile_for(small_trace(Device("cuda")), facts, "fp32")
        before = assemble.counts.compiled
        assemble.assemble([*assemble.plan_jobs(plan), assemble.AssembleJob(launch_courier.TEXT, facts.arch)])
        assert assemble.counts.compiled == before and len(plan.kernels) >= kernel_jobs.LEAST


def small_trace(device: Device):
    with shapes_only():
        model = MLPGPT(Config(64, 16, 32, 2))
        optimizer = AdamW(model.parameters(), lr=1e-3)
    return record_step(model, optimizer, [Aval((2, 16), int64)] * 2, device=device)


def test_what_a_worker_cannot_answer_is_asked_here(kernels, monkeypatch):
    refused = []
    failing = SimpleNamespace(compile=lambda requests, *_: [refused.append(r) for r in requests])
    monkeypatch.setattr(kernel_jobs, "shared_workers", lambda threads: failing)
    schedules = kernel_jobs.ask(configure.schedule_of, kernels, host_cpu())
    assert schedules == [configure.schedule_of(op, host_cpu()) for op in kernels] and len(refused) == len(kernels)


def test_an_error_is_that_of_the_kernel(kernels):
    with pytest.raises(ValueError, match="refused"):
        kernel_jobs.ask(refuse, kernels, host_cpu())


def refuse(op, facts):
    raise ValueError(f"refused: {len(op.operands)} operands")


def test_a_module_keeps_nothing_of_the_step(kernels):
    for op in kernels:
        text = kernel_jobs._alone(op)
        assert text.count('"nova.kernel"') == 1 and "train.py" not in text


@pytest.mark.parametrize("target", ["cpu", "sm_80", "sm_90a"])
def test_a_worker_has_loaded_what_a_kernel_takes(target, tmp_path, monkeypatch):
    """Before its first request, while nobody waits for it."""
    facts = host_cpu() if target == "cpu" else gpu_facts(target)
    requests = []

    def note(answer, ops, facts, *_):
        requests.append(([kernel_jobs._alone(op) for op in ops], facts))
        return [answer(op, facts) for op in ops]

    monkeypatch.setattr(configure, "ask", note)
    compile_for(small_trace(Device("cpu" if target == "cpu" else "cuda")), facts, "fp32")
    file = tmp_path / "requests"
    file.write_bytes(pickle.dumps(requests))
    script = f"""
        import importlib, pickle, sys
        from blutrain.nova.capabilities import generator_modules
        from blutrain.nova.plan_cache import KERNEL_MODULES
        ((texts, facts),) = pickle.load(open({str(file)!r}, "rb"))
        for name in (*KERNEL_MODULES, *generator_modules(facts)):
            importlib.import_module(name)
        from blutrain.nova.passes import configure, kernel_jobs
        loaded = set(sys.modules)
        for text in texts:
            kernel_jobs.compile_text(text, configure.schedule_and_code, facts)
        print(len(texts), sorted(set(sys.modules) - loaded))
    """
    done = run_script(script, cache="0")
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{len(requests[0][0])} []\n" and len(requests[0][0]) > 8
