"""Products that the memory adds to a matrix (`gpu/hopper/addition.py`): which, with what code, and that bits are kept."""

from __future__ import annotations

import numpy as np
import pytest
from contract_harness import KernelText, Value, context, parse_kernel
from gpu import needs_gpu
from hopper_kernels import LAYOUTS, accumulated, factors, finished, generate, multiply, narrowed
from mlir import ir
from test_gpu_hopper_device import COOPERATIVE, Program, plain, product

from blutrain.nova.contract.read import read_contract
from blutrain.nova.gpu.assemble import AssembleJob, assemble
from blutrain.nova.gpu.hopper.addition import added_in_place
from blutrain.nova.gpu.hopper.problem import read_problem

SHAPE = (264, 200, 136)
TILE = {"tile_m": 128, "tile_n": 128}
SUM = "%s = arith.addf %a, %b : f32\n%s"


def added(
    layout: str, m: int, n: int, k: int, dtype: str, region: str = SUM, aliases=(2,), swapped: bool = False
) -> str:
    """The region of (c, a b), in the memory of c."""
    text, a, b = factors(layout, m, n, k, dtype)
    terms = [(text.operand(m, n), "(d0, d1)"), (multiply(text, layout, a, b), "(d0, d1)")]
    return finished(
        text, text.map(terms[::-1] if swapped else terms, (m, n), "f32", region), dtype=dtype, aliases=aliases
    )


def recognised(text: str) -> bool:
    with context(), ir.Location.unknown():
        kernel, _module = parse_kernel(text)
        assert read_problem(kernel).adds == (added_in_place(read_contract(kernel, row_reductions=True)) is not None)
        return read_problem(kernel).adds


def test_sums_in_place_are_recognised():
    assert recognised(accumulated("TN", *SHAPE, "bf16"))
    assert recognised(added("TN", *SHAPE, "bf16"))
    assert recognised(added("NT", *SHAPE, "tf32", swapped=True))


def _of(*results_of, layout: str = "NT") -> str:
    """Kernels whose first result is c + a b in the memory of c."""
    text, a, b = factors(layout, 128, 128, 128, "tf32")
    c = text.operand(128, 128)
    y = text.map([(c, "(d0, d1)"), (multiply(text, layout, a, b), "(d0, d1)")], (128, 128), "f32", SUM)
    others = [make(text, y) for make in results_of]
    return finished(text, y, *others, dtype="tf32", aliases=(2, *(-1 for _ in others)))


def _column_sums(text: KernelText, y: Value) -> Value:
    return text.generic([(y, "(d0, d1)")], text.fill((128,), "f32"), "(d1)", "rp", "%q = arith.addf %o, %a : f32\n%q")


def _of_itself() -> str:
    """a + a b in the memory of a."""
    text, a, b = factors("NT", 128, 128, 128, "tf32")
    y = text.map([(a, "(d0, d1)"), (multiply(text, "NT", a, b), "(d0, d1)")], (128, 128), "f32", SUM)
    return finished(text, y, dtype="tf32", aliases=(0,))


@pytest.mark.parametrize(
    "text",
    [
        added("NT", *SHAPE, "tf32", aliases=(-1,)),
        added("NT", *SHAPE, "tf32", region="%s = arith.subf %a, %b : f32\n%s"),
        added("NT", *SHAPE, "tf32", region="%s = arith.addf %b, %b : f32\n%s"),
        added("NT", *SHAPE, "tf32", region="%t = arith.addf %a, %b : f32\n%s = arith.addf %t, %b : f32\n%s"),
        _of(lambda text, y: narrowed(text, y, "bf16")),
        _of(_column_sums),
        _of_itself(),
    ],
    ids=["elsewhere", "difference", "twice the product", "more than a sum", "used again", "reduced", "a factor"],
)
def test_whatever_else_needs_the_old_values_reads_them(text):
    assert not recognised(text)


def test_nothing_is_fetched_and_each_element_is_added_once():
    """One instruction adds for each that would store; the schedule is that of the product alone, but for what it moves."""
    for make in (accumulated, added):
        kernel = generate(make("TN", 2056, 2056, 512, "bf16"))
        (phase,) = kernel.phases
        assert "fetched" not in kernel.schedule and len(phase.tensor_maps) == 3
        alone = generate(plain("TN", 2056, 2056, 512, "bf16", out="f32"))
        assert kernel.schedule == f"{alone.schedule}, added in memory"
        assert kernel.text.count("bulk.tensor.reduce") == alone.text.count("bulk.tensor.global.shared.cta") > 0
        assert "bulk.tensor.global.shared.cta" not in kernel.text and kernel.bytes == alone.bytes + 4 * 2056 * 2056


@pytest.mark.parametrize("where", ["workspace", "cluster"])
def test_the_last_phase_of_a_split_product_adds(where):
    kernel = generate(accumulated("TN", 384, 512, 8192, "bf16"), **COOPERATIVE | TILE | {"split": 4, "split_in": where})
    *_, last = kernel.text.split("llvm.func @")
    addition = "red.global.add" if where == "workspace" else "bulk.tensor.reduce"
    assert kernel.text.count(addition) == last.count(addition) > 0


KERNELS = [
    (accumulated("TN", 2056, 2056, 512, "bf16"), {}, "cp.reduce.async.bulk.tensor.2d.global.shared::cta.add"),
    (added("NT", 129, 77, 160, "bf16"), {}, "red.global.add.f32"),
    (added("TT", 520, 264, 384, "tf32"), {}, "red.global.add.v2.f32"),
    (added("NN", 520, 264, 384, "tf32"), {"split": 1}, "cp.reduce.async.bulk.tensor.2d.global.shared::cta.add"),
]


def test_machine_code():
    kernels = [generate(text, **schedule) for text, schedule, _ in KERNELS]
    for code, (_, _, instruction) in zip(
        assemble([AssembleJob(k.text, k.target) for k in kernels]), KERNELS, strict=True
    ):
        assert instruction in code.ptx
        assert all(report.spill_store_bytes == 0 for report in code.functions.values())


SCHEDULES = [
    {},
    COOPERATIVE | TILE,
    COOPERATIVE | TILE | {"multicast": "n"},
    COOPERATIVE | TILE | {"split": 3, "split_in": "workspace"},
    COOPERATIVE | TILE | {"split": 3, "split_in": "cluster"},
]


@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda s: "-".join(f"{k}={v}" for k, v in s.items()) or "picked")
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", [pytest.param(dtype, marks=needs_gpu) for dtype in ("bf16", "tf32")])
def test_bits_are_those_of_a_sum_in_registers(layout, dtype, schedule):
    """c + a b, rounded once: exactly c plus what the same schedule makes of the product alone."""
    shape = (648, 520, 776)
    alone = Program(lambda *given: plain(*given, out="f32"), layout, shape, dtype, **schedule)
    summed = Program(accumulated, layout, shape, dtype, **schedule)
    arrays = summed.arrays(11)
    (want,), (got,) = alone.run(arrays[:2]), summed.run(arrays)
    assert np.abs(want - product(layout, arrays)).max() < 1e-3 * np.abs(want).max()
    np.testing.assert_array_equal(got, (want.astype(np.float32) + arrays[2]).astype(np.float64))
