"""Graph passes keep what a step computes: every composite against its decomposition, linear + cross-entropy in chunks,
a whole step.
"""

from __future__ import annotations

import dataclasses

import numpy
import pytest
from evaluate_ir import evaluate
from mlir import ir

import blutrain
from blutrain.nova import execute as execution
from blutrain.nova import pipeline
from blutrain.nova.capabilities import capabilities
from blutrain.nova.dialect import Graph, create_context, verify
from blutrain.nova.import_trace import import_trace
from blutrain.nova.interpret import interpret
from blutrain.nova.passes import choose_saved, decompose_linear_ce, recognise_composites, template
from blutrain.nova.passes.driver import Settings, run_passes
from blutrain.nova.target_gpu import gpu_facts
from blutrain.nova.trace import Constant, Input, Location, Node, Trace
from blutrain.tensor import dtype as dt
from blutrain.tensor.aval import Aval, scalar_aval
from blutrain.tensor.device import cpu
from blutrain.tensor.dispatch import execute
from blutrain.tensor.dtype import from_numpy_dtype
from blutrain.tensor.primitive import TABLE

RNG = numpy.random.default_rng(7)


def normal(*shape, dtype="f4"):
    return RNG.normal(size=shape).astype(dtype)


def positive(*shape):
    return numpy.abs(normal(*shape)) + numpy.float32(0.5)


def ids(size, *shape):
    return RNG.integers(0, size, shape)


LOSS = {"ignore_index": 2, "label_smoothing": 0.1, "reduction": "mean"}
TARGET = numpy.array([0, 4, 2, 3, 1, 2])
UPDATE = (0.01, 0.9, 0.999, 1e-8, 0.1, 0.3, 0.02)
RANDOM = {"shape": (3, 5), "site": 2, "device": cpu}
FULL = {"needs": (True, True, True)}

# Every composite: operands (arrays, or Python numbers known only at run time) and attributes.
SAMPLES = {
    "scaled_dot_product_attention": (
        [normal(2, 3, 5, 4), normal(2, 3, 6, 4), normal(2, 3, 6, 2)], {"is_causal": True, "scale": 0.5},
    ),
    "scaled_dot_product_attention_backward": (
        [normal(2, 3, 5, 2), normal(2, 3, 5, 4), normal(2, 3, 6, 4), normal(2, 3, 6, 2)],
        {"is_causal": True, "scale": 0.5, "needs": (True, True, True)},
    ),
    "cross_entropy": ([normal(6, 5), TARGET], LOSS),
    "cross_entropy_backward": ([normal(), normal(6, 5), TARGET, positive(6)], LOSS),
    "uniform": ([5, 3], {**RANDOM, "low": -1.0, "high": 2.0, "dtype": dt.float32}),
    "normal": ([5, 3], {**RANDOM, "mean": 1.0, "std": 2.0, "dtype": dt.float32}),
    "bernoulli": ([5, 3], {**RANDOM, "p": 0.25}),
    "randint": ([5, 3], {**RANDOM, "low": -2, "high": 9, "dtype": dt.int64}),
    "dropout": ([normal(3, 5), 5, 3], {"p": 0.4, "site": 1}),
    "embedding": ([normal(7, 4), ids(7, 2, 3)], {"padding_idx": 1}),
    "embedding_backward": ([normal(2, 3, 4), ids(7, 2, 3)], {"num_rows": 7, "padding_idx": 1}),
    "gelu": ([normal(3, 5) * 3], {"approximate": "none"}),
    "gelu_backward": ([normal(3, 5), normal(3, 5) * 3], {"approximate": "tanh"}),
    "layer_norm": ([normal(2, 3, 8), normal(8), normal(8)], {"num_dims": 1, "eps": 1e-5}),
    "layer_norm_backward": (
        [normal(2, 3, 8), normal(2, 3, 8), normal(2, 3, 1), positive(2, 3, 1), normal(8)], {"num_dims": 1, **FULL},
    ),
    "linear": ([normal(2, 3, 8), normal(4, 8), normal(4)], {}),
    "linear_backward": ([normal(2, 3, 4), normal(2, 3, 8), normal(4, 8)], {"needs": (True, False, True)}),
    "mse_loss": ([normal(3, 4), normal(3, 4)], {"reduction": "mean"}),
    "mse_loss_backward": ([normal(), normal(3, 4), normal(3, 4)], {"reduction": "mean"}),
    "relu": ([normal(3, 4)], {}),
    "relu_backward": ([normal(3, 4), normal(3, 4)], {}),
    "silu": ([normal(3, 4)], {}),
    "silu_backward": ([normal(3, 4), normal(3, 4)], {}),
    "rms_norm": ([normal(2, 3, 8), normal(8)], {"num_dims": 1, "eps": 1e-5}),
    "rms_norm_backward": (
        [normal(2, 3, 8), normal(2, 3, 8), positive(2, 3, 1), normal(8)], {"num_dims": 1, "needs": (True, True)},
    ),
    "softmax": ([normal(3, 5)], {"dim": 1}),
    "log_softmax": ([normal(3, 5)], {"dim": 0}),
    "softmax_backward": ([normal(3, 5), positive(3, 5)], {"dim": 1}),
    "log_softmax_backward": ([normal(3, 5), -positive(3, 5)], {"dim": 1}),
    "adamw": ([normal(4, 3), normal(4, 3), normal(4, 3), positive(4, 3), *UPDATE], {}),
    "adam": ([normal(4, 3), normal(4, 3), normal(4, 3), positive(4, 3), *UPDATE], {}),
    "sgd": ([normal(4, 3), normal(4, 3), 0.1, 0.01], {}),
    "sgd_momentum": ([normal(4, 3), normal(4, 3), normal(4, 3), 0.1, 0.9, 0.2, 0.01], {"nesterov": True}),
}  # fmt: skip


def test_every_composite_has_a_sample():
    assert {name for name, prim in TABLE.items() if prim.compose is not None} == set(SAMPLES)


def one_node(name, operands, attrs, constants=False):
    """The module of a step that computes `name` alone; numbers are inputs of role scalar, or constants of the step."""
    avals, inputs, items = [], [], []
    for x in operands:
        aval = scalar_aval(x) if isinstance(x, (int, float)) else Aval(x.shape, from_numpy_dtype(x.dtype))
        if aval.weak and constants:
            items.append(Constant(x))
            continue
        inputs.append(Input(len(avals), "scalar" if aval.weak else "input", aval))
        items.append(len(avals))
        avals.append(aval)
    prim = TABLE[name]
    results = prim.infer(*[avals[x] if isinstance(x, int) else scalar_aval(x.value) for x in items], **attrs)
    results = [results] if prim.num_results == 1 else list(results)
    numbers = tuple(range(len(avals), len(avals) + len(results)))
    node = Node(prim, tuple(items), attrs, numbers, Location("user.py", 3))
    return import_trace(Trace(cpu, inputs, avals + results, [node], list(numbers), {}), create_context())


@pytest.mark.parametrize("constants", [False, True], ids=["run-time numbers", "constants"])
@pytest.mark.parametrize("name", sorted(SAMPLES))
def test_decomposition_computes_what_the_eager_rule_does(name, constants):
    operands, attrs = SAMPLES[name]
    module = one_node(name, operands, attrs, constants)
    run_passes(module, ("decompose_composites", "canonicalize"), None, Settings(verify=True))
    with module.context:
        ops = Graph(module).operations()
        names = {op.name for op in ops}
        assert not any(n.removeprefix("nova.") in SAMPLES for n in names), "a composite is left"
        assert all("user.py" in str(op.location) for op in ops if op.name not in ("func.return", "nova.constant"))
        bound = [x for x in operands if not (constants and isinstance(x, (int, float)))]
        outputs, _, flags = evaluate(module, bound)
    expected = execute(TABLE[name], cpu, operands, attrs)
    expected = expected if isinstance(expected, tuple) else (expected,)
    for output, wanted in zip(outputs, expected, strict=True):
        numpy.testing.assert_allclose(output, wanted, rtol=3e-5, atol=3e-6)
    assert not any(flags)


def test_narrow_floats_are_computed_in_f32_and_rounded_once():
    x = normal(3, 64).astype(dt.bfloat16.numpy)
    module = one_node("softmax", [x], {"dim": 1})
    run_passes(module, ("decompose_composites",), None, Settings(verify=True))
    with module.context:
        (output,), _, _ = evaluate(module, [x])
    expected = execute(TABLE["softmax"], cpu, [x], {"dim": 1})
    difference = numpy.abs(output.astype("f4") - expected.astype("f4"))
    assert difference.max() <= 2**-8 * numpy.abs(expected.astype("f4")).max()


def test_equal_composites_are_composed_once():
    template._template_of.cache_clear()
    for _ in range(3):
        run_passes(one_node("gelu", [normal(3, 5)], {"approximate": "none"}), ("decompose_composites",), None)
    assert template._template_of.cache_info().misses == 1


def loss_step(reduction, smoothing, needs_bias, leading=(24,), classes=10):
    """linear + cross_entropy and their backward, as autograd writes them; 24 rows of 6 features."""
    T, X = f"tensor<24x{classes}xf32>", f"tensor<{'x'.join(map(str, leading))}x6xf32>"
    G = "tensor<24xf32>" if reduction == "none" else "tensor<f32>"
    bias, bias_type = (", %b", f", tensor<{classes}xf32>") if needs_bias else ("", "")
    attrs = f'{{ignore_index = 2, label_smoothing = {smoothing}, reduction = "{reduction}"}}'
    L = f"tensor<{'x'.join(map(str, leading))}x{classes}xf32>"
    outs = [X, f"tensor<{classes}x6xf32>"] + ([f"tensor<{classes}xf32>"] if needs_bias else [])
    needs = f"[true, true, {'true' if needs_bias else 'false'}]"
    return f"""
    func.func @step(%x: {X}, %w: tensor<{classes}x6xf32>, %b: tensor<{classes}xf32>, %t: tensor<24xi64>, %grad: {G}) ->
    ({", ".join([G, *outs])}) {{
      %l = "nova.linear"(%x, %w{bias}) : ({X}, tensor<{classes}x6xf32>{bias_type}) -> {L}
      %m = "nova.reshape"(%l) {{shape = array<i64: 24, {classes}>}} : ({L}) -> {T}
      %loss, %lse = "nova.cross_entropy"(%m, %t) {attrs} : ({T}, tensor<24xi64>) -> ({G}, tensor<24xf32>)
      %g = "nova.cross_entropy_backward"(%grad, %m, %t, %lse) {attrs} : ({G}, {T}, tensor<24xi64>, tensor<24xf32>) ->
      {T} %h = "nova.reshape"(%g) {{shape = array<i64: {", ".join(map(str, leading))}, {classes}>}} : ({T}) -> {L}
      %d:{len(outs)} = "nova.linear_backward"(%h, %x, %w) {{needs = {needs}}} : ({L}, {X}, tensor<{classes}x6xf32>) ->
      ({", ".join(outs)}) return %loss, {", ".join(f"%d#{i}" for i in range(len(outs)))} : {", ".join([G, *outs])}
    }}"""


@pytest.fixture
def small_chunks(monkeypatch):
    """At most 7 rows of 24 in a chunk (so 6), however small the logits are."""
    monkeypatch.setattr(recognise_composites, "LARGE_BYTES", 0)
    small = dataclasses.replace(capabilities(None), min_chunk_rows=7, logits_bytes=0)
    monkeypatch.setattr(decompose_linear_ce, "capabilities", lambda facts: small)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("smoothing, bias, leading", [(0.0, True, (24,)), (0.1, False, (2, 12))])
def test_chunked_linear_ce(small_chunks, reduction, smoothing, bias, leading):
    target = ids(10, 24)
    target[5] = 2  # ignored, as are others by chance
    grad = normal(24) if reduction == "none" else numpy.float32(0.7)
    inputs = [normal(*leading, 6), normal(10, 6), normal(10), target, numpy.asarray(grad)]
    with create_context():
        module = ir.Module.parse(loss_step(reduction, smoothing, bias, leading))
        verify(module)
        expected, _, _ = evaluate(module, inputs)
        run_passes(module, ("recognise_composites",), None, Settings(verify=True))
        assert [op.name for op in Graph(module).operations()].count("nova.linear_ce") == 1
        run_passes(module, ("decompose_linear_ce", "decompose_composites", "canonicalize"), None, Settings(verify=True))
        outputs, _, flags = evaluate(module, inputs)
        inputs[3] = numpy.where(numpy.arange(24) == 20, 10, target)
        _, _, bad_flags = evaluate(module, inputs)
    for output, wanted in zip(outputs, expected, strict=True):
        numpy.testing.assert_allclose(output, wanted, rtol=2e-5, atol=2e-6)
    assert flags == [0], "one check of all targets"
    assert bad_flags == [10]


def test_chunked_linear_ce_with_no_row_kept(small_chunks):
    inputs = [normal(24, 6), normal(10, 6), normal(10), numpy.full(24, 2), numpy.asarray(numpy.float32(1))]
    with create_context():
        module = ir.Module.parse(loss_step("mean", 0.0, True))
        run_passes(module, ("recognise_composites", "decompose_linear_ce"), None, Settings(verify=True))
        (loss, *gradients), _, _ = evaluate(module, inputs)
    assert numpy.isnan(loss) and all(numpy.all(g == 0) for g in gradients)


@pytest.mark.parametrize(
    "rows, classes, expected",
    [
        (8192, 50304, 512),
        (2048, 16384, 1024),
        (100, 50304, 100),
        (1021, 50304, 512),
        (4096, 1000, 4096),
        (700, 50304, 350),
    ],
)
def test_chunk_rows(rows, classes, expected):
    assert decompose_linear_ce.chunk_rows(rows, classes, 4, capabilities(None)) == expected


@pytest.mark.parametrize("arch, rows", [("sm_80", 1024), ("sm_90a", 4096)])
def test_chunks_on_a_gpu_are_larger(arch, rows):
    assert decompose_linear_ce.chunk_rows(8192, 50304, 4, capabilities(gpu_facts(arch))) == rows


class TwoLayers(blutrain.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = blutrain.nn.LayerNorm(16)
        self.up, self.down = blutrain.nn.Linear(16, 32), blutrain.nn.Linear(32, 16)
        self.head = blutrain.nn.Linear(16, 9, bias=False)

    def forward(self, x, target):
        x = x + self.down(blutrain.nn.functional.gelu(self.up(self.norm(x))))
        return blutrain.nn.functional.cross_entropy(self.head(x), target)


class Recorded(Exception):
    """Raised in place of compiling, once the trace is there."""


@pytest.fixture(scope="module")
def training_step():
    """(trace, what its inputs hold in order) of a step with forward, backward, clipping and AdamW, as recorded."""
    blutrain.manual_seed(0)
    model = TwoLayers()
    optimizer = blutrain.optim.AdamW(model.parameters(), lr=0.01)
    seen = []

    def note(trace, bindings):
        held = [bindings[x.value] for x in trace.inputs]
        seen.append((trace, [numpy.array(x) if isinstance(x, numpy.ndarray) else x for x in held]))
        raise Recorded

    with pytest.MonkeyPatch.context() as patch, pytest.raises(Recorded):
        patch.setattr(execution, "interpret", note)
        model.compile()
        loss = model(blutrain.tensor(normal(6, 16)), blutrain.tensor(ids(9, 6)))
        loss.backward()
        blutrain.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
    return seen[0]


def assert_same_step(got, wanted, tolerance):
    for a, b in zip(got[0], wanted[0], strict=True):
        numpy.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)
    assert got[1].keys() == wanted[1].keys()
    for state in wanted[1]:
        numpy.testing.assert_allclose(got[1][state], wanted[1][state], rtol=tolerance, atol=tolerance)


def test_import_computes_what_the_interpreter_does(training_step):
    trace, inputs = training_step
    module = import_trace(trace, create_context())
    verify(module)
    with module.context:
        outputs, updates, _ = evaluate(module, inputs)
    bindings = {x.value: numpy.array(v) if isinstance(v, numpy.ndarray) else v for x, v in zip(trace.inputs, inputs)}
    results = interpret(trace, bindings)
    for value, output in zip(trace.outputs, outputs, strict=True):
        numpy.testing.assert_allclose(output, results[value], rtol=1e-6, atol=1e-7)
    assert len(updates) == len(trace.updates) > 0
    for number, x in enumerate(trace.inputs):
        if number in updates:
            numpy.testing.assert_allclose(updates[number], bindings[x.value], rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("recompute", [False, True])
def test_graph_passes_keep_a_training_step(training_step, recompute, monkeypatch):
    trace, inputs = training_step
    if recompute:
        monkeypatch.setattr(choose_saved, "MIN_BYTES", 1)
        monkeypatch.setattr(choose_saved, "CHEAP", choose_saved.DEAR)
    module = import_trace(trace, create_context())
    with module.context:
        wanted = evaluate(module, inputs)
        run_passes(module, pipeline.GRAPH, None, Settings(verify=True))
        got = evaluate(module, inputs)
        names = [op.name.removeprefix("nova.") for op in Graph(module).operations()]
        recomputed = [op for op in Graph(module).operations() if "nova.recompute" in op.attributes]
    assert all(TABLE[n].compose is None for n in names if n in TABLE)
    assert_same_step(got, wanted, 2e-5)
    assert got[2] == [0] * len(got[2]) and len(got[2]) == 1
    assert bool(recomputed) == recompute


def test_bf16_products_are_close_and_different(training_step):
    trace, inputs = training_step
    module = import_trace(trace, create_context())
    with module.context:
        wanted = evaluate(module, inputs)
        names = pipeline.passes("cpu", precision="bf16")
        run_passes(module, names[: names.index("form_kernels")], None, Settings(verify=True))
        got = evaluate(module, inputs)
    assert_same_step(got, wanted, 0.03)
    assert float(got[0][0]) != float(wanted[0][0])


def test_passes_are_deterministic(training_step):
    texts = set()
    for _ in range(2):
        module = import_trace(training_step[0], create_context())
        run_passes(module, pipeline.GRAPH, None)
        texts.add(module.operation.get_asm(enable_debug_info=True))
    assert len(texts) == 1


def test_unknown_targets_and_precisions():
    with pytest.raises(ValueError, match="no target 'tpu'"):
        pipeline.passes("tpu")
    with pytest.raises(ValueError, match="precision 'fp4'"):
        pipeline.passes("cpu", precision="fp4")
