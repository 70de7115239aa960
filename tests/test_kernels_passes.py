"""The kernel passes on whole steps: a training step of a small model, value checks, memory, order, launches, errors."""

from __future__ import annotations

import kernels_support
import linalg_reference
import numpy as np
import pytest
from kernels_support import Step, anchors, kernels_of, run_step
from mlir import ir

from blutrain.errors import NovaError
from blutrain.nova.dialect import create_context
from blutrain.nova.import_trace import import_trace
from blutrain.nova.kernel import read_kernel
from blutrain.nova.passes import configure, plan_memory
from blutrain.nova.passes.driver import run_passes
from blutrain.nova.passes.host_program import run as build_plan
from blutrain.nova.passes.step_launches import StepLaunches
from blutrain.nova.pipeline import PIPELINES
from blutrain.nova.target import host_cpu
from blutrain.tensor.dtype import float32, int64

LAYERS = 3


def training_step(layers: int = LAYERS, rows: tuple[int, int] = (2, 3), width: int = 8) -> Step:
    """Residual blocks of layer norm, linear, gelu, linear; mean square; backward; an SGD update per parameter."""
    step = Step()
    x = step.input((*rows, width))
    rate = step.scalar(0.125)
    parameters, saved = [], []
    for _ in range(layers):
        shapes = ((width,), (width,), (4 * width, width), (4 * width,), (width, 4 * width), (width,))
        gain, shift, w1, b1, w2, b2 = held = [step.input(shape, role="state") for shape in shapes]
        normed, mean, rstd = step.op("layer_norm", x, gain, shift, num_dims=1, eps=1e-5)
        hidden = step.op("linear", normed, w1, b1)
        active = step.op("gelu", hidden, approximate="tanh")
        saved.append((x, gain, mean, rstd, normed, w1, hidden, active, w2))
        x = step.op("add", x, step.op("linear", active, w2, b2))
        parameters.append(held)
    loss = step.op("mean", step.op("mul", x, x), dims=(0, 1, 2), keepdim=False)
    gradient = step.op("mul", x, 2.0 / (rows[0] * rows[1] * width))
    for held, (before, gain, mean, rstd, normed, w1, hidden, active, w2) in zip(
        parameters[::-1], saved[::-1], strict=True
    ):
        needs = (True, True, True)
        d_active, d_w2, d_b2 = step.op("linear_backward", gradient, active, w2, needs=needs)
        d_hidden = step.op("gelu_backward", d_active, hidden, approximate="tanh")
        d_normed, d_w1, d_b1 = step.op("linear_backward", d_hidden, normed, w1, needs=needs)
        d_before, d_gain, d_shift = step.op(
            "layer_norm_backward", d_normed, before, mean, rstd, gain, num_dims=1, needs=needs
        )
        gradient = step.op("add", gradient, d_before)
        for parameter, d in zip(held, (d_gain, d_shift, d_w1, d_b1, d_w2, d_b2), strict=True):
            step.assign(parameter, step.op("sub", parameter, step.op("mul", d, rate)))
    step.output(loss)
    return step


@pytest.fixture(scope="module")
def module() -> ir.Module:
    return run_step(training_step())


def test_training_step_is_few_kernels(module):
    """Per layer two products forward, four backward and a row kernel each way; a map for each update of a vector,
    those of matrices are epilogues. The first layer needs no gradient of its input: its column sums are an epilogue.
    """
    assert anchors(module) == {"contract": 6 * LAYERS, "row": 2 * LAYERS - 1 + 1, "map": 4 * LAYERS}


def test_equal_layers_share_kernels():
    few, many = (run_step(training_step(layers)) for layers in (3, 5))
    counts = []
    for module in (few, many):
        with module.context:
            counts.append(max(ir.DenseI64ArrayAttr(StepLaunches(module).graph.func.attributes["nova.kernels"])))
    assert counts[0] == counts[1]


def test_update_stands_right_behind_its_gradient(module):
    """At most two launches that are no updates lie between."""
    with module.context:
        step = StepLaunches(module)
        is_update = [bool(step.writes_state(launch)) for launch in step.launches]
        for number, launch in enumerate(step.launches):
            if is_update[number]:
                writers = [step.buffers[b].writer for b in launch.operands if step.buffers[b].writer is not None]
                assert is_update[max(writers) + 1 : number].count(False) <= 2


def test_buffers_alive_at_once_do_not_meet(module):
    with module.context:
        step = StepLaunches(module)
        held = step.graph.func.attributes
        places: dict[int, str] = {}
        for launch, row in zip(step.launches, held["nova.memory"], strict=True):
            places.update(zip((*launch.operands, *launch.results), (p.value for p in row), strict=True))
        aliased = _aliased(step)
        arena = [b for b in step.buffers if places.get(b.number, "").startswith("arena")]
        for a in arena:
            for b in arena:
                if a.number < b.number and (a.number, b.number) not in aliased:
                    apart = _end(a) < b.writer or _end(b) < a.writer
                    start_a, start_b = (int(places[x.number].split(":")[1]) for x in (a, b))
                    assert apart or start_a + a.bytes <= start_b or start_b + b.bytes <= start_a
        assert held["nova.arena_bytes"].value <= 1.2 * held["nova.live_bytes"].value


def _end(buffer) -> int:
    return max(buffer.readers, default=buffer.writer)


def _aliased(step: StepLaunches) -> set[tuple[int, int]]:
    found = set()
    for launch in step.launches:
        for result, alias in zip(launch.results, ir.DenseI64ArrayAttr(launch.op.attributes["aliases"]), strict=True):
            if alias >= 0:
                found.add((launch.operands[alias], result))
    return found


def test_state_is_written_in_place(module):
    with module.context:
        step = StepLaunches(module)
        rows = [[p.value for p in row] for row in step.graph.func.attributes["nova.memory"]]
        for launch, row in zip(step.launches, rows, strict=True):
            for result, place in zip(launch.results, row[len(launch.operands) :], strict=True):
                if step.buffers[result].state is not None:
                    assert place == f"input:{step.buffers[result].state}"


# --- state, checks


def test_swapped_state_goes_through_copies():
    step = Step()
    a, b = step.input((5,), role="state"), step.input((5,), role="state")
    step.assign(a, step.op("mul", b, 2.0))
    step.assign(b, step.op("mul", a, 3.0))
    run_step(step)


def test_state_read_at_another_place_is_not_overwritten():
    step = Step()
    a = step.input((4, 4), role="state")
    step.assign(a, step.op("add", a, step.op("transpose", a, perm=(1, 0))))
    module = run_step(step)
    with module.context:
        assert all(set(ir.DenseI64ArrayAttr(k.attributes["aliases"])) == {-1} for k in kernels_of(module))


def test_a_value_that_is_state_and_output_twice():
    step = Step()
    a = step.input((4,), role="state")
    new = step.op("exp", a)
    step.assign(a, new)
    step.output(new, new)
    run_step(step)


def _checked_step(ids) -> Step:
    step = Step()
    table = step.input((4, 3), role="state")
    index = step.input(np.shape(ids), "i64", value=ids)
    rows = step.op("embedding", table, index, padding_idx=None)
    gradient = step.op("embedding_backward", rows, index, num_rows=4, padding_idx=None)
    step.assign(table, step.op("sub", table, gradient))
    step.output(rows)
    return step


def test_embedding_step():
    run_step(_checked_step([0, 3, 3, 1, 0]))


def test_failed_check_updates_nothing():
    step = _checked_step([0, 3, 4, 1, 0])
    context = create_context()
    module = import_trace(step.trace, context)
    run_passes(module, (*kernels_support.GRAPH, *kernels_support.KERNELS), host_cpu())
    before = np.array(step.bindings[0])
    arrays = [np.array(step.bindings[x.value]) for x in step.trace.inputs]
    with context:
        _, flags = linalg_reference.run_plan(module, arrays)
    assert 4 in flags
    np.testing.assert_array_equal(arrays[0], before)


def test_tied_embedding_accumulates_in_place():
    """The scatter adds onto the product's gradient in the product's memory."""
    step = Step()
    table, ids, g = step.input((6, 4), role="state"), step.input((5,), "i64"), step.input((5, 4))
    rows = step.op("embedding", table, ids, padding_idx=None)
    product = step.op("matmul", step.op("transpose", step.input((3, 6)), perm=(1, 0)), step.input((3, 4)))
    total = step.op("add", product, step.op("embedding_backward", g, ids, num_rows=6, padding_idx=None))
    step.assign(table, step.op("sub", table, total))
    step.output(rows)
    module = run_step(step)
    with module.context:
        (scatter,) = (k for k in kernels_of(module) if k.attributes["anchor"].value == "scatter")
        assert list(ir.DenseI64ArrayAttr(scatter.attributes["aliases"])) == [0]
    assert anchors(module) == {"row": 1, "map": 3, "gather": 1, "contract": 1, "scatter": 1}


# --- fusion across movement


def test_attention_like_heads_need_no_copies():
    """Heads are split, transposed and merged by reshapes; products and softmax see through all of them."""
    step = Step()
    x, w = step.input((2, 5, 8)), step.input((8, 8))
    flat = step.op("reshape", x, shape=(10, 8))
    heads = step.op("transpose", step.op("reshape", step.op("matmul", flat, w), shape=(2, 5, 2, 4)), perm=(0, 2, 1, 3))
    scores = step.op("matmul", heads, step.op("transpose", heads, perm=(0, 1, 3, 2)))
    shifted = step.op("sub", scores, step.op("amax", scores, dims=(3,), keepdim=True))
    powers = step.op("exp", shifted)
    weights = step.op("div", powers, step.op("sum", powers, dims=(3,), keepdim=True))
    merged = step.op("transpose", step.op("matmul", weights, heads), perm=(0, 2, 1, 3))
    step.output(step.op("matmul", step.op("reshape", merged, shape=(10, 8)), w))
    module = run_step(step)
    assert anchors(module) == {"contract": 4, "row": 1}


def test_rows_see_nothing_of_each_other():
    """Row i needs the sum of row 4 - i: another kernel, although both read the same tensor."""
    step = Step()
    x = step.input((5, 6))
    total = step.op("sum", x, dims=(1,), keepdim=True)
    step.output(step.op("div", x, step.op("flip", total, dims=(0,))))
    assert anchors(run_step(step)) == {"row": 1, "map": 1}


def test_batch_norm_statistics():
    """Sums over all but the middle dimension, the second one of a value that needs the first."""
    step = Step()
    x = step.input((2, 3, 4, 5))
    mean = step.op("mean", x, dims=(0, 2, 3), keepdim=True)
    centred = step.op("sub", x, mean)
    variance = step.op("mean", step.op("mul", centred, centred), dims=(0, 2, 3), keepdim=True)
    step.output(step.op("div", centred, step.op("sqrt", step.op("add", variance, 1e-5))))
    run_step(step)


def test_sum_of_two_products_is_one_epilogue():
    step = Step()
    a, b, c, d = step.input((4, 6)), step.input((6, 5)), step.input((4, 3)), step.input((3, 5))
    step.output(step.op("tanh", step.op("add", step.op("matmul", a, b), step.op("matmul", c, d))))
    assert anchors(run_step(step)) == {"contract": 2}


def test_dropout_is_recomputed_from_its_counter():
    step = Step()
    x, w = step.input((4, 8)), step.input((8, 8))
    seed, draw = step.input((), "i64", value=5), step.input((), "i64", value=3)
    bits = step.op("random_bits", seed, draw, shape=(4, 8), site=2)
    kept = step.op("mul", x, step.op("cast", step.op("lt", bits, 1000), dtype=float32))
    step.output(step.op("matmul", kept, w), kept)
    run_step(step)


# --- configure, generate, host_program


def _tiny_plan():
    step = Step()
    x, w, b, p = step.input((6, 8)), step.input((8, 5)), step.input((5,)), step.input((5,), role="state")
    y = step.op("add", step.op("matmul", x, w), b)
    step.assign(p, step.op("sum", y, dims=(0,), keepdim=False))
    step.output(y)
    context = create_context()
    module = import_trace(step.trace, context)
    facts = host_cpu()
    run_passes(module, PIPELINES["cpu"], facts)
    return module, facts


def test_schedule_is_read_back_from_the_ir():
    module, facts = _tiny_plan()
    with module.context:
        for op in kernels_of(module):
            assert read_kernel(op).config == configure.schedule_of(op, facts)


def test_plan_is_the_same_twice():
    first, second = (_tiny_plan() for _ in range(2))
    plans = []
    for module, facts in (first, second):
        with module.context:
            plans.append(build_plan(module, facts))
    assert plans[0] == plans[1]
    assert plans[0].launches[0].locations[0].startswith("train.py:")
    assert [x.role for x in plans[0].inputs] == ["input", "input", "input", "state"]


def test_error_names_operation_line_and_reason():
    step = Step()
    step.output(step.op("argsort", step.input((3, 4)), dim=1, descending=False))
    with pytest.raises(NovaError, match=r"argsort cannot be compiled(.|\n)*nova.argsort(.|\n)*train.py:1"):
        run_step(step)


@pytest.mark.parametrize("dtype", ["u8", "u16"])
def test_unsigned_integers_wrap_after_every_operation(dtype):
    step = Step()
    top = 255 if dtype == "u8" else 65535
    x, y = (step.input((3,), dtype, value=v) for v in ([top, top - 1, 3], [top, 2, 5]))
    total = step.op("add", x, y)
    step.output(total, step.op("floor_divide", total, 2), step.op("amax", total, dims=(0,), keepdim=False))
    step.output(step.op("sum", step.op("mul", x, y), dims=(0,), keepdim=False), step.op("lt", step.op("sub", y, x), x))
    step.output(step.op("cast", step.op("neg", x), dtype=float32), step.op("argmin", total, dim=0, keepdim=False))
    run_step(step)


def test_clipping_by_the_global_norm():
    """All gradients wait for the norm; its scale is one number that every update reads."""
    step = Step()
    states = [step.input((3, n), role="state") for n in (2, 3, 4, 5)]
    gradients = [step.op("exp", s) for s in states]
    total = None
    for g in gradients:
        part = step.op("sum", step.op("mul", g, g), dims=(0, 1), keepdim=False)
        total = part if total is None else step.op("add", total, part)
    scale = step.op("div", 1.0, step.op("add", step.op("sqrt", total), 1e-6))
    for s, g in zip(states, gradients, strict=True):
        step.assign(s, step.op("sub", s, step.op("mul", g, scale)))
    step.output(total)
    module = run_step(step)
    assert anchors(module)["map"] == len(states)


def test_color_puts_intervals_in_the_lowest_gap():
    offsets, total = plan_memory.color({1: [0, 1, 64], 2: [1, 2, 128], 3: [2, 3, 64]})
    assert (offsets, total) == ({2: 0, 1: 128, 3: 128}, 192)


def test_index_operations_along_other_dimensions():
    step = Step()
    x, ids = step.input((3, 5)), step.input((2,), "i64", value=[-1, 2])
    taken = step.op("take", x, ids, dim=1)
    step.output(taken, step.op("index_add", x, ids, taken, dim=1), step.op("index_copy", x, ids, taken, dim=1))
    run_step(step)
    assert int64.itemsize == 8


def test_gathers_and_scatters_of_numbers_that_are_the_same_everywhere():
    """Tables, ids, updates and bases that are splats are in memory all the same."""
    step = Step()
    full = lambda shape, value, dtype: step.op("full", shape=shape, value=value, dtype=dtype, device="cpu")
    x, ids = step.input((5, 4)), step.input((3,), "i64")
    zeros, ones = full((5, 4), 0.0, float32), full((5, 4), 1.0, float32)
    same, rows = full((3,), 2, int64), full((3, 4), 1.0, float32)
    step.output(step.op("take", ones, ids, dim=0), step.op("take", x, same, dim=0))
    for base in (zeros, ones, x):
        for places in (ids, same):
            step.output(step.op("index_add", base, places, rows, dim=0))
    run_step(step)
