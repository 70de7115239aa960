"""Products that sum the rows of their results (sm_90a): what ptxas says, what is refused, and values on a device."""

from __future__ import annotations

import numpy as np
import pytest
from contract_harness import context, parse_kernel
from gpu import needs_gpu
from hopper_kernels import H200, factors, finished, generate, multiply, narrowed, supports
from mlir import ir
from test_gpu_hopper_device import Program, product

from blutrain.nova.contract.read import read_contract
from blutrain.nova.gpu.assemble import AssembleJob, assemble
from blutrain.nova.kernel import Unsupported

COOPERATIVE = {"pingpong": False, "consumers": 2, "split": 1, "multicast": "", "fetch": 2, "stages": 3}


def exponentials(layout: str, m: int, n: int, k: int, dtype: str) -> str:
    """e = exp(a b - c), c a row factor; results e in the operands' type and its row sums in f32."""
    text, a, b = factors(layout, m, n, k, dtype)
    c = text.operand(m)
    region = "%s = arith.subf %a, %b : f32\n%e = math.exp %s : f32\n%e"
    e = text.map([(multiply(text, layout, a, b), "(d0, d1)"), (c, "(d0)")], (m, n), "f32", region)
    sums = text.generic([(e, "(d0, d1)")], text.fill((m,), "f32"), "(d0)", "pr", "%q = arith.addf %o, %a : f32\n%q")
    return finished(text, narrowed(text, e, a.dtype), sums, dtype=dtype)


def both(layout: str, m: int, n: int, k: int, dtype: str) -> str:
    """a b with its column sums and twice its row sums."""
    text, a, b = factors(layout, m, n, k, dtype)
    y = multiply(text, layout, a, b)
    add = "%q = arith.addf %o, %a : f32\n%q"
    columns = text.generic([(y, "(d0, d1)")], text.fill((n,), "f32"), "(d1)", "rp", add)
    rows = text.generic([(y, "(d0, d1)")], text.fill((m,), "f32"), "(d0)", "pr", add)
    twice = text.map([(rows, "(d0)")], (m,), "f32", "%t = arith.addf %a, %a : f32\n%t")
    return finished(text, y, columns, twice, dtype=dtype)


CASES = [
    (exponentials, "NT", (1024, 50304, 384), "tf32", {}),
    (exponentials, "NT", (2048, 50304, 384), "bf16", {}),
    (exponentials, "NT", (200, 328, 96), "tf32", {}),
    (exponentials, "NN", (200, 328, 96), "bf16", COOPERATIVE | {"tile_m": 128, "tile_n": 128}),
    (exponentials, "NN", (200, 328, 96), "tf32", COOPERATIVE | {"tile_m": 128, "tile_n": 128}),
    (both, "NN", (264, 200, 64), "tf32", COOPERATIVE | {"tile_m": 64, "tile_n": 256}),
    (both, "TT", (264, 200, 64), "tf32", COOPERATIVE | {"tile_m": 128, "tile_n": 128}),
    (both, "TN", (264, 200, 64), "bf16", {}),
]  # fmt: skip
NAMES = [f"{c[0].__name__}-{c[1]}-{c[3]}-{i}" for i, c in enumerate(CASES)]


def test_machine_code():
    made = [generate(make(layout, *shape, dtype), **schedule) for make, layout, shape, dtype, schedule in CASES]
    for kernel, code in zip(made, assemble([AssembleJob(k.text, k.target) for k in made]), strict=True):
        assert set(code.functions) == {phase.symbol for phase in kernel.phases}
        assert kernel.phases[-1].symbol.endswith("_rows")
        for report in code.functions.values():
            assert report.spill_store_bytes == report.spill_load_bytes == 0


def test_every_tile_column_leaves_a_partial_sum_of_its_rows():
    schedule = COOPERATIVE | {"tile_m": 128, "tile_n": 128}
    kernel = generate(exponentials("NT", 200, 328, 96, "bf16"), **schedule)
    assert kernel.workspace_bytes == 3 * 256 * 4
    transposed = generate(exponentials("NN", 200, 328, 96, "tf32"), **schedule)
    assert transposed.workspace_bytes == 3 * (4 * 2) * 256 * 4, "one from each warp of two consumers"


def test_only_who_asks_gets_row_reductions():
    with context(), ir.Location.unknown():
        kernel, _module = parse_kernel(exponentials("NT", 64, 64, 32, "tf32"))
        with pytest.raises(Unsupported, match="not over all rows"):
            read_contract(kernel)
        contract = read_contract(kernel, row_reductions=True)
    assert len(contract.row_reductions) == 1 and not contract.reductions
    assert supports(exponentials("NT", 64, 64, 32, "tf32"), H200) is None
    assert "precision fp32" in supports(exponentials("NT", 64, 64, 32, "fp32"), H200)


@pytest.mark.parametrize(
    "make, layout, shape, dtype, schedule", [pytest.param(*c, marks=needs_gpu) for c in CASES], ids=NAMES
)
def test_values(make, layout, shape, dtype, schedule):
    program = Program(make, layout, shape, dtype, **schedule)
    arrays = program.arrays(3)
    arrays[0] = (arrays[0].astype(np.float32) * 0.05).astype(arrays[0].dtype)
    results = program.run(arrays)
    y = product(layout, arrays)
    if make is both:
        wanted = [y, y.sum(0), 2 * y.sum(1)]
    else:
        y = np.exp(y - arrays[2].astype(np.float64)[:, None])
        wanted = [y, y.sum(1)]
    for got, value in zip(results, wanted, strict=True):
        assert np.abs(got - value).max() <= 6e-3 * np.abs(value).max() + 1e-6
