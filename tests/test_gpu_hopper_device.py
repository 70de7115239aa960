"""The sm_90a contraction family on a device: against float64, bit for bit over runs, from poisoned memory."""

from __future__ import annotations

import numpy as np
import pytest
from gpu import needs_gpu
from hopper_kernels import LAYOUTS, accumulated, bias_gelu, gated, generate, plain

from blutrain.nova.plan import BufferRef, InputSpec, Launch, OutputSpec, ProgramPlan

pytestmark = needs_gpu

COOPERATIVE = {"pingpong": False, "consumers": 2, "split": 1, "multicast": "", "fetch": 2, "stages": 3}
RUNS = 5


class Program:
    """One launch of a kernel on the current device."""

    def __init__(self, make, layout: str, shape: tuple[int, int, int], dtype: str, **schedule):
        import cupy
        from contract_harness import context, parse_kernel
        from mlir import ir

        from blutrain.nova.gpu.executable import build_executable
        from blutrain.tensor.device import Device

        text = make(layout, *shape, dtype)
        with context(), ir.Location.unknown():
            kernel, _module = parse_kernel(text)
        self.cupy = cupy
        self.operands, self.results, self.aliases = kernel.operands, kernel.results, kernel.aliases
        places = [BufferRef("input", i) for i in range(len(kernel.operands))]
        places += [BufferRef("input", a) if a >= 0 else BufferRef("output", i) for i, a in enumerate(kernel.aliases)]
        plan = ProgramPlan(
            kernels=(generate(text, **schedule),),
            launches=(Launch(0, tuple(places), label=f"{layout} {shape} {dtype}"),),
            arena_bytes=0,
            inputs=tuple(InputSpec(t.shape, t.dtype, "state") for t in kernel.operands),
            outputs=tuple(OutputSpec(t.shape, t.dtype) for t in kernel.results),
        )
        self.executable = build_executable(plan, Device("cuda", 0))

    def arrays(self, seed: int) -> list[np.ndarray]:
        """Operands, each element exact in its dtype."""
        rng = np.random.default_rng(seed)
        return [rng.standard_normal(t.shape).astype(_numpy(t.dtype)) for t in self.operands]

    def run(self, arrays: list[np.ndarray]) -> list[np.ndarray]:
        """The results, in float64, the same in each of a few runs into poisoned memory."""
        seen = None
        for _ in range(RUNS):
            operands = [self.cupy.asarray(a.view(np.uint16) if a.dtype.itemsize == 2 else a) for a in arrays]
            results = [
                operands[a] if a >= 0 else self.cupy.full(t.bytes, 0xFF, self.cupy.uint8)
                for t, a in zip(self.results, self.aliases, strict=True)
            ]
            for i, operand in enumerate(operands):
                self.executable.bind(i, operand.data.ptr)
            for i, result in enumerate(results):
                self.executable.bind_output(i, result.data.ptr)
            self.executable.launch()
            self.cupy.cuda.get_current_stream().synchronize()
            got = [self.cupy.asnumpy(r).tobytes() for r in results]
            assert seen is None or got == seen, "two runs differ"
            seen = got
        return [
            np.frombuffer(b, _numpy(t.dtype)).reshape(t.shape).astype(np.float64)
            for b, t in zip(seen, self.results, strict=True)
        ]


def _numpy(dtype: str):
    import ml_dtypes

    return {"f32": np.float32, "bf16": ml_dtypes.bfloat16, "f16": np.float16}[dtype]


def product(layout: str, arrays: list[np.ndarray]) -> np.ndarray:
    a, b = (x.astype(np.float64) for x in arrays[:2])
    return (a if layout[0] == "N" else np.swapaxes(a, -1, -2)) @ (b if layout[1] == "N" else np.swapaxes(b, -1, -2))


def check(got: np.ndarray, want: np.ndarray, dtype: str, limit: float = 0.0) -> None:
    """Largest error relative to the largest value: TF32 rounds operands to 11 bits, bf16 results have 8."""
    limit = max(limit, 4e-3 if dtype == "bf16" else 5e-4)
    assert np.isfinite(got).all()
    assert np.abs(got - want).max() <= limit * np.abs(want).max()


SCHEDULES = [
    {},
    {
        "pingpong": True,
        "consumers": 2,
        "fetch": 0,
        "multicast": "",
        "tile_m": 128,
        "tile_n": 128,
        "stages": 4,
        "split": 1,
    },
    COOPERATIVE | {"tile_m": 128, "tile_n": 256},
    COOPERATIVE | {"tile_m": 256, "tile_n": 128},
    COOPERATIVE | {"tile_m": 128, "tile_n": 128, "multicast": "n"},
    COOPERATIVE | {"tile_m": 128, "tile_n": 128, "multicast": "m"},
    COOPERATIVE | {"tile_m": 128, "tile_n": 128, "split": 3},
    COOPERATIVE | {"tile_m": 128, "tile_n": 128, "split": 3, "split_in": "cluster"},
    COOPERATIVE | {"tile_m": 128, "tile_n": 128, "split": 3, "split_in": "cluster", "chunk": 64},
    COOPERATIVE | {"tile_m": 128, "tile_n": 64, "split": 7, "split_in": "cluster", "staging": 0},
]


TURNS = COOPERATIVE | {"pingpong": True, "tile_m": 128, "tile_n": 128, "chunk": 64}
FORMS = {
    "picked": {},
    "one set": TURNS | {"staging": 1, "fetch": 4},
    "three sets": TURNS | {"staging": 3, "fetch": 4},
    "wide": TURNS | {"tile_n": 192, "staging": 2, "fetch": 3},
}


@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda s: "-".join(f"{k}={v}" for k, v in s.items()) or "picked")
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", ["bf16", "tf32"])
def test_product(layout, dtype, schedule):
    in_registers = dtype == "tf32" and layout != "NT"
    if in_registers and (schedule.get("pingpong") or max(schedule.get("tile_m", 0), schedule.get("tile_n", 0)) > 128):
        pytest.skip("a schedule of the shared form")
    if in_registers and layout == "NN" and schedule.get("tile_n") == 64:
        schedule = schedule | {"repack": "n"}  # in registers, two consumers share 128 columns at least
    program = Program(plain, layout, (648, 520, 776), dtype, **schedule)
    arrays = program.arrays(1)
    check(program.run(arrays)[0], product(layout, arrays), dtype)


ODD = [
    ("NT", (129, 77, 160)),
    ("NT", (1, 33, 160)),
    ("NN", (1000, 520, 136)),
    ("TN", (264, 392, 200)),
    ("TT", (8, 8, 8)),
]


@pytest.mark.parametrize(("layout", "shape"), ODD, ids=str)
@pytest.mark.parametrize("dtype", ["bf16", "tf32"])
def test_odd_shapes(layout, shape, dtype):
    program = Program(lambda *a: plain(*a, out="f32"), layout, shape, dtype)
    arrays = program.arrays(2)
    check(program.run(arrays)[0], product(layout, arrays), "tf32")


@pytest.mark.parametrize("batch", [(3,), (2, 3)])
@pytest.mark.parametrize("layout", ["NT", "NN"])
@pytest.mark.parametrize("dtype", ["bf16", "tf32"])
def test_batches(layout, dtype, batch):
    program = Program(lambda *a: plain(*a, batch=batch), layout, (264, 200, 256), dtype)
    arrays = program.arrays(3)
    check(program.run(arrays)[0], product(layout, arrays), dtype)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", ["bf16", "tf32"])
def test_bias_and_gelu(layout, dtype):
    program = Program(bias_gelu, layout, (520, 264, 384), dtype)
    arrays = program.arrays(4)
    x = product(layout, arrays) + arrays[2].astype(np.float64)
    want = 0.5 * x * (1 + np.tanh(0.7978845608 * x + 0.0356774081 * x**3))
    check(program.run(arrays)[0], want, dtype, limit=1e-3)  # tanh.approx


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", ["bf16", "tf32"])
@pytest.mark.parametrize("multicast", ["", "n"])
def test_row_factor_gate_transposed_copy_and_column_sums(layout, dtype, multicast):
    tile = {"tile_m": 128, "tile_n": 128}
    program = Program(gated, layout, (520, 776, 384), dtype, **COOPERATIVE | tile | {"multicast": multicast})
    arrays = program.arrays(5)
    want = product(layout, arrays) * np.tanh(arrays[2].astype(np.float64)) + arrays[3].astype(np.float64)[:, None]
    y, turned, sums = program.run(arrays)
    check(y, want, dtype, limit=1e-3)
    check(turned, want.T, dtype, limit=1e-3)
    check(sums, want.sum(0), "tf32", limit=1.5e-3)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", ["bf16", "tf32"])
def test_accumulates(layout, dtype):
    program = Program(accumulated, layout, (520, 264, 1032), dtype)
    arrays = program.arrays(6)
    check(program.run(arrays)[0], product(layout, arrays) + arrays[2].astype(np.float64), "tf32")


@pytest.mark.parametrize("layout", ["NT", "NN"])
@pytest.mark.parametrize("dtype", ["bf16", "tf32"])
@pytest.mark.parametrize("make", [accumulated, gated, bias_gelu], ids=lambda f: f.__name__)
@pytest.mark.parametrize("form", FORMS)
def test_several_tiles_a_block(form, make, layout, dtype):
    """Rings and staging buffers go round: what a tile reads and writes is its own."""
    if form != "picked" and (dtype, layout) == ("tf32", "NN"):
        pytest.skip("a schedule of the shared form")
    if form == "one set" and make is not gated:
        pytest.skip("nothing is fetched")
    program = Program(make, layout, (3968, 2560, 128), dtype, **FORMS[form])
    arrays = program.arrays(7)
    want = product(layout, arrays)
    if make is accumulated:
        want = want + arrays[2].astype(np.float64)
    elif make is gated:
        want = want * np.tanh(arrays[2].astype(np.float64)) + arrays[3].astype(np.float64)[:, None]
    else:
        x = want + arrays[2].astype(np.float64)
        want = 0.5 * x * (1 + np.tanh(0.7978845608 * x + 0.0356774081 * x**3))
    check(program.run(arrays)[0], want, dtype, limit=1e-3)
