"""The passes for GPUs on a whole training step of a small MLP-GPT: the planned launches compute what the interpreter
does, and are the kernels that a GPU wants.
"""

from __future__ import annotations

import collections
import dataclasses

import linalg_reference
import numpy as np
import pytest
from mlir import ir

import blutrain
from blutrain import nn
from blutrain.nova import capabilities as targets
from blutrain.nova import execute, pipeline
from blutrain.nova.aot import compile_for
from blutrain.nova.dialect import create_context
from blutrain.nova.gpu.hopper.problem import read_problem
from blutrain.nova.import_trace import import_trace
from blutrain.nova.interpret import interpret
from blutrain.nova.kernel import Generic, Operand, read_kernel
from blutrain.nova.passes import choose_saved, recognise_composites
from blutrain.nova.passes.driver import Settings, run_passes
from blutrain.nova.passes.set_precision import PRECISION
from blutrain.nova.passes.step_launches import StepLaunches
from blutrain.nova.program import compile_trace
from blutrain.nova.target_gpu import gpu_facts
from blutrain.tensor.device import Device

VOCABULARY, WIDTH, LAYERS, BATCH, LENGTH = 56, 16, 2, 2, 96
CHUNKS = 3
_plans: dict[tuple[str, bool], ir.Module] = {}


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln, self.fc, self.proj = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        return x + self.proj(nn.functional.gelu(self.fc(self.ln(x)), approximate="tanh"))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.h = nn.ModuleList(Block() for _ in range(LAYERS))
        self.ln_f, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, idx, target=None):
        x = self.wte(idx) + self.wpe.weight[: idx.shape[1]]
        for block in self.h:
            x = block(x)
        logits = self.head(self.ln_f(x))
        if target is None:
            return logits
        return nn.functional.cross_entropy(logits.reshape(-1, VOCABULARY), target.reshape(-1))


class Recorded(Exception):
    """Raised in place of the eager first step, once the trace is there."""


@pytest.fixture(scope="module")
def step():
    """(trace, the values of its inputs) of a step with forward, backward and AdamW."""
    return recorded(lambda model, ids, target: model(ids, target))


def recorded(loss_of):
    """As `step`, of any loss."""
    blutrain.manual_seed(0)
    model = Model()
    optimizer = blutrain.optim.AdamW(model.parameters(), lr=0.01)
    rng = np.random.default_rng(3)
    ids, target = rng.integers(0, VOCABULARY, (2, BATCH, LENGTH))
    target[0, :5] = -100
    seen = []

    def note(trace, bindings):
        seen.append((trace, {x.value: bindings[x.value] for x in trace.inputs}))
        raise Recorded

    with pytest.MonkeyPatch.context() as patch, pytest.raises(Recorded):
        patch.setattr(execute, "interpret", note)
        model.compile()
        loss = loss_of(model, blutrain.tensor(ids), blutrain.tensor(target))
        loss.backward()
        optimizer.step()
        loss.item()
    return seen[0]


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Everything is worth what large tensors are worth; chunks of 64 rows."""
    monkeypatch.setattr(recognise_composites, "LARGE_BYTES", 0)
    monkeypatch.setattr(choose_saved, "MIN_BYTES", 1)
    rows = BATCH * LENGTH // CHUNKS
    target = dataclasses.replace(targets._HOPPER, min_chunk_rows=rows, logits_bytes=0)
    monkeypatch.setattr(targets, "_HOPPER", target)


def planned(trace, precision: str, monkeypatch, row_sums: bool = True) -> ir.Module:
    """The step behind plan_memory and dedupe_kernels for sm_90a; made once."""
    if (precision, row_sums) in _plans:
        return _plans[precision, row_sums]
    monkeypatch.setattr(targets, "_HOPPER", dataclasses.replace(targets._HOPPER, row_sums=row_sums))
    module = import_trace(trace, create_context())
    with module.context:
        module.operation.attributes[PRECISION] = ir.StringAttr.get(precision)
    names = [n for n in pipeline.passes("cuda", precision=precision) if n != "configure"]
    names = names[: names.index("dedupe_kernels") + 1]
    run_passes(module, tuple(names), gpu_facts("sm_90a"), Settings(verify=True))
    _plans[precision, row_sums] = module
    return module


def run(module: ir.Module, trace, values: dict) -> tuple[list[np.ndarray], dict[int, np.ndarray]]:
    """(outputs, new state by value number)."""
    kinds = {"scalar": lambda x: np.array(x, np.float64 if isinstance(x, float) else np.int64)}
    arrays = [kinds.get(x.role, np.array)(values[x.value]) for x in trace.inputs]
    with module.context:
        outputs, flags = linalg_reference.run_plan(module, arrays)
    assert not any(flags)
    return outputs, {x.value: a for x, a in zip(trace.inputs, arrays, strict=True) if x.role == "state"}


def expected(trace, values: dict):
    copies = {v: np.array(a) if isinstance(a, np.ndarray) else a for v, a in values.items()}
    results = interpret(trace, copies)
    return [results[v] for v in trace.outputs], copies


@pytest.mark.parametrize("row_sums", [False, True])
@pytest.mark.parametrize("precision, tolerance", [("tf32", 2e-5), ("bf16", 3e-2)])
def test_a_step_computes_what_the_interpreter_does(step, precision, tolerance, row_sums, monkeypatch):
    trace, values = step
    module = planned(trace, precision, monkeypatch, row_sums)
    outputs, state = run(module, trace, values)
    wanted, copies = expected(trace, values)
    for output, value in zip(outputs, wanted, strict=True):
        np.testing.assert_allclose(output, value, rtol=tolerance)
    for number, array in state.items():
        # An AdamW step of lr 0.01 moves by about 0.01 whatever the gradient is; signs of tiny ones may differ in bf16.
        np.testing.assert_allclose(array, copies[number], rtol=tolerance, atol=1e-5 if precision != "bf16" else 2.1e-2)


def test_a_step_whose_exponentials_overflow(step, monkeypatch):
    trace, values = step
    values = dict(values)
    for x in trace.inputs:
        if x.aval.shape == (VOCABULARY, WIDTH):  # the head, and the embedding, which a norm undoes
            values[x.value] = values[x.value] * np.float32(1000)
    module = planned(trace, "tf32", monkeypatch)
    outputs, state = run(module, trace, values)
    wanted, copies = expected(trace, values)
    assert wanted[0] > 80, "some exponentials must overflow"
    np.testing.assert_allclose(outputs[0], wanted[0], rtol=2e-5)
    for number, array in state.items():
        np.testing.assert_allclose(array, copies[number], rtol=2e-4, atol=1e-4)


def launches(module: ir.Module) -> StepLaunches:
    with module.context:
        return StepLaunches(module)


def kernels(module: ir.Module):
    with module.context:
        return [read_kernel(launch.op) for launch in launches(module).launches]


@pytest.mark.parametrize("precision", ["tf32", "bf16"])
def test_products_read_memory_as_it_lies(step, precision, monkeypatch):
    """Both factors are operands of the kernel, in the type that is multiplied."""
    for kernel in kernels(planned(step[0], precision, monkeypatch)):
        for op in kernel.ops if kernel.anchor == "contract" else ():
            if isinstance(op, Generic) and op.is_anchor:
                assert all(isinstance(access.source, Operand) for access in op.inputs)
                assert {access.dtype for access in op.inputs} == {"bf16" if precision == "bf16" else "f32"}


def test_kernels_of_a_step(step, monkeypatch):
    """Per layer: norm, two products forward; two products and two weight gradients, a norm backward. Per chunk of the
    loss: four products, one of which is skipped with the row kernel behind it, the totals, and the scaled rows.
    """
    module = planned(step[0], "tf32", monkeypatch)
    counts = collections.Counter(kernel.anchor for kernel in kernels(module))
    assert counts["contract"] == 6 * LAYERS + 4 * CHUNKS
    assert counts["scatter"] == 2 and counts["gather"] == 0, "the first norm and the targets' logits gather their rows"
    tables = [k for k in kernels(module) if k.anchor == "scatter"]
    # Both tables are updated by one kernel, small as they are; the sums of the one are made in it.
    assert sorted((len(k.results), -1 not in k.aliases) for k in tables) == [(1, False), (6, True)]
    # The vectors of all layers, the products' weights and the positions, small as they are here: one launch.
    updates = [k for k in kernels(module) if k.anchor == "map" and len(k.results) >= 3]
    shapes = collections.Counter(t.shape for k in updates for t in k.results)
    assert len(updates) == 1 and shapes[WIDTH,] == 3 * (3 * LAYERS + 2) and shapes[4 * WIDTH,] == 3 * LAYERS
    assert shapes[4 * WIDTH, WIDTH] == shapes[WIDTH, 4 * WIDTH] == 3 * LAYERS
    assert all(-1 not in k.aliases for k in updates), "state is written in place"
    with module.context:
        held = launches(module).graph.func.attributes
        skipped = [kernels(module)[i].anchor for i, place in enumerate(held["nova.skips"]) if place.value]
        assert len(set(ir.DenseI64ArrayAttr(held["nova.kernels"]))) < 45
    assert collections.Counter(skipped) == {"contract": CHUNKS, "row": CHUNKS}


def test_gelu_is_computed_again_by_the_product_that_reads_its_operand(step, monkeypatch):
    """The backward of the second product of a layer gives three results: the gradient of gelu's operand, gelu again, in
    the layout of the gradient of weights that reads it, and the gradient of a bias.
    """
    found = [
        k for k in kernels(planned(step[0], "tf32", monkeypatch)) if k.anchor == "contract" and len(k.results) == 3
    ]
    assert len(found) == LAYERS
    for kernel in found:
        shapes = [t.shape for t in kernel.results]
        assert (4 * WIDTH,) in shapes and (4 * WIDTH, BATCH, LENGTH) in shapes and (BATCH, LENGTH, 4 * WIDTH) in shapes


@pytest.mark.parametrize("precision", ["tf32", "bf16"])
def test_weight_gradients_of_the_chunks_are_added_in_memory(step, precision, monkeypatch):
    """That of the first chunk is written, those of the others are added where it stands."""
    module = planned(step[0], precision, monkeypatch)
    with module.context:
        products = [read_problem(k) for k in kernels(module) if k.anchor == "contract"]
    assert sum(problem.adds for problem in products) == CHUNKS - 1


def test_norms_read_the_gradients_of_products_in_bf16(step, monkeypatch):
    """The gradient of each norm's output comes from a product (the head's joined from its chunks), stored rounded; the
    one other gradient of that size that a norm's backward reads and writes, the residual one, stays f32.
    """
    module = planned(step[0], "bf16", monkeypatch)
    products = [k for k in kernels(module) if k.anchor == "contract"]
    stored = [
        t.dtype
        for k in products
        for t in k.results
        if np.prod(t.shape[:-1]) in (BATCH * LENGTH, BATCH * LENGTH // CHUNKS) and t.shape[-1] == WIDTH
    ]
    assert stored.count("bf16") == LAYERS + CHUNKS
    backwards = [k for k in kernels(module) if k.anchor == "row" and sum(t.shape == (WIDTH,) for t in k.results) >= 2]
    assert len(backwards) == LAYERS + 1
    for kernel in backwards:
        wide = [t.dtype for t in kernel.operands if np.prod(t.shape) == BATCH * LENGTH * WIDTH]
        assert sorted(wide) in (["bf16", "f32"], ["bf16", "f32", "f32"])


def test_precision_stands_on_products_of_f32(step, monkeypatch):
    for precision, wanted in (("tf32", '"tf32"'), ("fp32", '"fp32"'), ("bf16", None)):
        module = planned(step[0], precision, monkeypatch)
        with module.context:
            products = [
                op
                for launch in launches(module).launches
                for op in launch.op.regions[0].blocks[0].operations
                if "nova.anchor" in op.attributes
            ]
            found = {str(op.attributes["precision"]) if "precision" in op.attributes else None for op in products}
        assert found == {wanted}


def test_updates_stand_right_behind_the_last_gradient(step, monkeypatch):
    """No gradient of a matrix of a layer outlives the layer's backward."""
    module = planned(step[0], "tf32", monkeypatch)
    with module.context:
        plan = launches(module)
        for launch_number, launch in enumerate(plan.launches):
            if plan.writes_state(launch):
                made = [w for b in launch.operands for w in plan.writers(b)]
                assert launch_number - max(made) <= 6


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_a_loss_outside_of_the_model(arch, monkeypatch):
    """Ids of two dimensions and targets that come flat: checks over equal loops of other shapes share no kernel."""

    def outside(model, ids, target):
        flat = blutrain.tensor(target.numpy().reshape(-1))
        return nn.functional.cross_entropy(model(ids).reshape(-1, VOCABULARY), flat)

    trace, values = recorded(outside)
    compile_for(dataclasses.replace(trace, device=Device("cuda")), gpu_facts(arch), "tf32")
    _plans.clear()
    outputs, states = run(planned(trace, "tf32", monkeypatch), trace, values)
    _plans.clear()
    wanted, updated = expected(trace, values)
    for got, want in zip(outputs, wanted, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5)
    for number, state in states.items():
        np.testing.assert_allclose(state, updated[number], rtol=1e-3, atol=1e-4)


def test_where_the_largest_is_along_both_dimensions():
    """argmax has no order to be taken apart in: over the rows it is no result of a kernel over rows."""

    class Both(nn.Module):
        def forward(self, x):
            return x.argmax(0), x.argmax(1), x.amax(0), x.amax(1)

    x = np.random.default_rng(0).standard_normal((33, 33))
    model, seen = Both(), []
    model.compile(first_step="compiled", strict=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            execute, "compile_trace", lambda trace, options: seen.append(trace) or compile_trace(trace, options)
        )
        got = [result.numpy() for result in model(blutrain.tensor(x))]
    for result, want in zip(got, (x.argmax(0), x.argmax(1), x.max(0), x.max(1)), strict=True):
        np.testing.assert_array_equal(result, want)
    compile_for(dataclasses.replace(seen[0], device=Device("cuda")), gpu_facts("sm_90a"), "fp32")


@pytest.mark.parametrize("precision", ["tf32", "bf16"])
def test_every_update_waits_for_all_checks_and_is_predicated_on_them(step, precision, monkeypatch):
    """Updates of their own, in groups, and behind the sums of a table's rows."""
    module = planned(step[0], precision, monkeypatch)
    with module.context:
        held = launches(module)
        assert len(held.checks) >= 2 and held.guard is not None
        guard = held.buffers[held.guard].writer
        predicated = list(ir.DenseI64ArrayAttr(held.graph.func.attributes["nova.predicated"]))
        updates = [n for n, launch in enumerate(held.launches) if held.writes_state(launch)]
        anchors = {ir.StringAttr(held.launches[n].op.attributes["anchor"]).value for n in updates}
        assert anchors == {"map", "scatter"} and guard is not None
        assert all(predicated[n] and guard < n for n in updates)
