"""Products on sm_90a whose numbers outgrow a grid's sides, 32 bits, or what the text of an address holds: without a device."""

from __future__ import annotations

import dataclasses
import re

import numpy as np
import pytest
from gpu_simulator import simulate
from hopper_kernels import factors, finished, gated, generate, multiply, plain
from test_gpu_hopper_rows import exponentials

from blutrain.nova.gpu import lower
from blutrain.nova.gpu.hopper import repack


@pytest.mark.parametrize(("m", "n", "k", "batch"), [(64, 64, 64, (70_000,)), (256, 256, 5_000_000, ())])
def test_grids_have_one_dimension(m, n, k, batch):
    """The others end at 65535."""
    for phase in generate(plain("TN", m, n, k, "tf32", batch=batch)).phases:
        assert phase.grid[1:] == (1, 1) and phase.grid[0] < 1 << 31


@pytest.mark.parametrize(("m", "n", "k", "batch"), [(72, 136, 200, ()), (68, 132, 65, (2, 3))])
def test_the_smaller_factor_is_copied_along_k(m, n, k, batch):
    kernel = generate(plain("TN", m, n, k, "tf32", batch=batch))
    first = dataclasses.replace(kernel.phases[0], shared_bytes=repack.shared_bytes())
    assert first.symbol.endswith("_repack") and "m repacked" in kernel.schedule
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((*batch, k, extent)).astype(np.float32) for extent in (m, n))
    c, copy = np.zeros((*batch, m, n), np.float32), np.full(kernel.workspace_bytes, 0xFF, np.uint8)
    simulate(dataclasses.replace(kernel, phases=(first,)), [a, b], [c], workspace=copy)
    pitch = -(-k // 4) * 4
    rows = copy.view(np.float32)[: np.prod((*batch, m, pitch), dtype=int)].reshape(*batch, m, pitch)
    np.testing.assert_array_equal(rows[..., :k], np.swapaxes(a, -1, -2))


WIDE = (1 << 24) + 8  # 256 rows: their distance in elements does not fit an address's text


@pytest.mark.parametrize(
    "text",
    [
        plain("NN", 256, WIDE, 64, "tf32"),
        plain("NT", 256, WIDE - 7, 64, "bf16"),
        gated("NT", 256, WIDE, 64, "bf16"),
        plain("TN", 256, 256, 5_000_000, "tf32"),
    ],
    ids=["rows", "rows of registers", "transposed", "workspace"],
)
def test_addresses_far_from_a_thread_s_first(text):
    kernel = generate(text)
    assert "wgmma" in lower.to_ptx(kernel.text, kernel.target)


def column_sums(m: int, n: int, k: int) -> str:
    """exp(a b) summed over its rows, and nothing else of it."""
    text, a, b = factors("NT", m, n, k, "bf16")
    e = text.map([(multiply(text, "NT", a, b), "(d0, d1)")], (m, n), "f32", "%e = math.exp %a : f32\n%e")
    sums = text.generic([(e, "(d0, d1)")], text.fill((n,), "f32"), "(d1)", "rp", "%q = arith.addf %o, %a : f32\n%q")
    return finished(text, sums, dtype="bf16")


@pytest.mark.parametrize(
    ("text", "pitch"),
    [(exponentials("NT", 1 << 22, 1 << 17, 64, "bf16"), 1 << 22), (column_sums(1 << 22, 3 << 16, 64), 3 << 16)],
    ids=["rows", "columns"],
)
def test_partial_sums_beyond_32_bits(text, pitch):
    """2^31 of them or more: both phases find their places in 64 bits."""
    kernel = generate(text)
    assert kernel.workspace_bytes >= 4 << 31
    for function in kernel.text.split("llvm.func")[1:]:
        (name,) = re.findall(rf"(%\w+) = arith.constant {pitch} : i64", function)
        assert re.search(rf"arith.muli %\w+, {name} : i64", function)
