"""linear + cross-entropy with exponentials against the target's logit (decompose_linear_ce_shifted): the values of the
four operations it comes from, also where the exponentials overflow.
"""

from __future__ import annotations

import dataclasses

import numpy
import pytest
from evaluate_ir import evaluate
from mlir import ir
from test_passes import ids, loss_step, normal

from blutrain.nova.capabilities import capabilities
from blutrain.nova.dialect import Graph, create_context, verify
from blutrain.nova.passes import decompose_linear_ce, decompose_linear_ce_shifted, recognise_composites
from blutrain.nova.passes.driver import Settings, run_passes

PASSES = ("recognise_composites", "decompose_linear_ce", "decompose_composites", "expand_indices", "canonicalize")


@pytest.fixture(autouse=True)
def chunks_of_six_rows(monkeypatch):
    target = dataclasses.replace(capabilities(None), min_chunk_rows=7, logits_bytes=0, row_sums=True)
    monkeypatch.setattr(decompose_linear_ce, "capabilities", lambda facts: target)
    monkeypatch.setattr(recognise_composites, "LARGE_BYTES", 0)
    monkeypatch.setattr(decompose_linear_ce_shifted, "ALIGNMENT", 1)


def run(reduction: str, smoothing: float, bias: bool, leading, inputs, precision: str = "tf32", later=None):
    """(expected, outputs, flags of the checks, names of operations); outputs and flags for `later`, by default inputs."""
    with create_context():
        module = ir.Module.parse(loss_step(reduction, smoothing, bias, leading))
        module.operation.attributes["nova.precision"] = ir.StringAttr.get(precision)
        verify(module)
        expected, _, _ = evaluate(module, inputs)
        run_passes(module, PASSES, None, Settings(verify=True))
        outputs, _, flags = evaluate(module, later or inputs)
        return expected, outputs, flags, [op.name for op in Graph(module).operations()]


def arguments(reduction: str, leading, scale: float = 1.0):
    target = numpy.where(numpy.arange(24) % 7 == 3, 2, ids(10, 24))  # 2 is ignored
    grad = normal(24) if reduction == "none" else numpy.asarray(numpy.float32(0.7))
    return [normal(*leading, 6) * numpy.float32(scale), normal(10, 6), normal(10), target, grad]


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("leading", [(24,), (2, 12)])
@pytest.mark.parametrize("scale", [1.0, 200.0])
def test_values(reduction, leading, scale):
    """At scale 200 logits differ by hundreds: the exponentials of most chunks overflow."""
    inputs = arguments(reduction, leading, scale)
    expected, outputs, flags, names = run(reduction, 0.0, False, leading, inputs)
    for output, wanted in zip(outputs, expected, strict=True):
        largest = numpy.abs(wanted).max()  # sums are rounded by their largest terms
        numpy.testing.assert_allclose(output, wanted, rtol=2e-5, atol=2e-6 * max(scale, largest))
    assert not any(flags) and names.count("nova.index_add") == 1


def test_only_the_chunk_that_overflows_is_computed_again():
    inputs = arguments("mean", (24,))
    inputs[0][8] *= 300
    expected, outputs, _, names = run("mean", 0.0, False, (24,), inputs)
    for output, wanted in zip(outputs, expected, strict=True):
        numpy.testing.assert_allclose(output, wanted, rtol=2e-5, atol=1e-4)
    assert names.count("nova.matmul") == 4 * 4, "per chunk: exponentials, logits again, two gradients"


def test_infinite_logits_of_an_ignored_row_count_for_nothing():
    inputs = arguments("mean", (24,))
    row = int(numpy.argmax(inputs[3] == 2))
    inputs[0][row] = 3e38
    expected, outputs, _, _ = run("mean", 0.0, False, (24,), inputs)
    assert numpy.isfinite(outputs[0])
    for output, wanted in zip(outputs, expected, strict=True):
        numpy.testing.assert_allclose(output, wanted, rtol=2e-5, atol=2e-6)


def test_a_target_out_of_range_is_reported():
    inputs = arguments("mean", (24,))
    later = [*inputs[:3], numpy.where(numpy.arange(24) == 20, 10, inputs[3]), inputs[4]]
    _, _, flags, _ = run("mean", 0.0, False, (24,), inputs, later=later)
    assert 10 in flags


def test_no_row_kept():
    inputs = [normal(24, 6), normal(10, 6), normal(10), numpy.full(24, 2), numpy.asarray(numpy.float32(1))]
    _, (loss, *gradients), _, _ = run("mean", 0.0, False, (24,), inputs)
    assert numpy.isnan(loss) and all(numpy.all(g == 0) for g in gradients)


def test_bf16_keeps_its_exponentials_narrow_and_its_sums_wide():
    inputs = arguments("mean", (24,))
    expected, outputs, _, _ = run("mean", 0.0, False, (24,), inputs, "bf16")
    numpy.testing.assert_allclose(outputs[0], expected[0], rtol=1e-2)
    for output, wanted in zip(outputs[1:], expected[1:], strict=True):
        assert numpy.abs(output - wanted).max() < 2e-2 * numpy.abs(wanted).max()


@pytest.mark.parametrize(
    "smoothing, bias, precision", [(0.1, False, "tf32"), (0.0, True, "tf32"), (0.0, False, "fp32")]
)
def test_smoothing_bias_and_full_precision_take_the_other_form(smoothing, bias, precision):
    inputs = arguments("mean", (24,))
    expected, outputs, _, names = run("mean", smoothing, bias, (24,), inputs, precision)
    for output, wanted in zip(outputs, expected, strict=True):
        numpy.testing.assert_allclose(output, wanted, rtol=2e-5, atol=2e-6)
    assert "nova.index_add" not in names
