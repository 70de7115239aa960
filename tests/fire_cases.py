"""One small kernel of every GPU family and form, for the tests under delays and for compute-sanitizer.

    case = make("hopper split cluster bf16")
    case.kernel, case.arrays(seed)

Products come from one text for both families of contractions: the sm_80 one is generated with the facts of sm_80, sm_86
or sm_89 and its text then assembled for the GPU at hand, so that it runs on newer ones with the schedule of older ones.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import ampere_support
import hopper_kernels
import map_bodies
import numpy as np
import row_bodies
from contract_harness import context, parse_kernel
from cpu_kernels import NUMPY, Body, parsed, random, region
from mlir import ir
from test_cpu_scan import body as running_sums
from test_cpu_scatter import scatter
from test_gpu_hopper_rows import both, exponentials
from test_gpu_simt_map import turned

from blutrain.nova.gpu import generate as gpu
from blutrain.nova.gpu.kernel import GpuKernel
from blutrain.nova.plan import BufferRef, InputSpec, Launch, OutputSpec, ProgramPlan
from blutrain.nova.target_gpu import gpu_facts

H200 = gpu_facts("sm_90a")
Typed = tuple[tuple[int, ...], str]


@dataclass(frozen=True)
class Case:
    """A kernel with the shapes and dtypes of what it takes and gives; integers among its operands are below `ids`, and
    numbers are above 0 where it `is_positive` that takes roots.
    """

    name: str
    kernel: GpuKernel
    operands: tuple[Typed, ...]
    results: tuple[Typed, ...]
    aliases: tuple[int, ...]
    ids: int = 3
    is_positive: bool = False

    def arrays(self, seed: int = 0) -> list[np.ndarray]:
        rng = np.random.default_rng(seed)
        return [self._array(rng, shape, dtype) for shape, dtype in self.operands]

    def _array(self, rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> np.ndarray:
        if dtype in ("i64", "i32"):
            return rng.integers(0, self.ids, shape).astype(NUMPY[dtype])
        made = random(rng, shape, dtype)
        return np.abs(made) if self.is_positive else made

    def plan(self) -> ProgramPlan:
        """A program of one launch: operands are its inputs, results its outputs."""
        places = [BufferRef("input", i) for i in range(len(self.operands))]
        places += [BufferRef("input", a) if a >= 0 else BufferRef("output", i) for i, a in enumerate(self.aliases)]
        return ProgramPlan(
            kernels=(self.kernel,),
            launches=(Launch(0, tuple(places), label=self.name),),
            arena_bytes=0,
            inputs=tuple(InputSpec(shape, dtype, "state") for shape, dtype in self.operands),
            outputs=tuple(OutputSpec(shape, dtype) for shape, dtype in self.results),
        )


def make(name: str) -> Case:
    """The case of that name, generated."""
    return replace(CASES[name](), name=name)


def hopper(text_of: Callable, *arguments: Any, **schedule: Any) -> Callable[[], Case]:
    def build() -> Case:
        text = text_of(*arguments)
        return _of_text(text, hopper_kernels.generate(text, **schedule))

    return build


def ampere(text_of: Callable, *arguments: Any, arch: str = "sm_80", **schedule: Any) -> Callable[[], Case]:
    def build() -> Case:
        text = text_of(*arguments)
        kernel = ampere_support.generate(text, arch, **schedule)
        return _of_text(text, replace(kernel, target="sm_90a"))

    return build


def body(
    body_of: Callable, *arguments: Any, ids: int = 3, is_positive: bool = False, **schedule: Any
) -> Callable[[], Case]:
    def build() -> Case:
        made = body_of(*arguments)
        with parsed(made) as op:
            kernel, module, facts = gpu._chosen(op, H200)
            generated = module.generate(kernel, facts, {**module.configure(kernel, facts), **schedule})
        typed = lambda values: tuple((v.shape, v.dtype) for v in values)
        return Case("", generated, typed(made.operands), typed(made.results), tuple(made.aliases), ids, is_positive)

    return build


def _of_text(text: str, generated: GpuKernel) -> Case:
    with context(), ir.Location.unknown():
        kernel, _module = parse_kernel(text)
    typed = lambda types: tuple((tuple(t.shape), t.dtype) for t in types)
    return Case("", generated, typed(kernel.operands), typed(kernel.results), tuple(kernel.aliases))


def column_sums(rows: int, columns: int) -> Body:
    """g x in the memory of g, and its column sums."""
    made = Body("column")
    g, x = made.operand(rows, columns), made.operand(rows, columns)
    multiply = region("%r = arith.mulf %i0, %i1 : f32", "%r : f32")
    d = made.map([(g, "d0, d1"), (x, "d0, d1")], (rows, columns), multiply)
    made.result(d, alias=0)
    add = region("%s = arith.addf %i0, %o0 : f32", "%s : f32")
    made.result(made.reduce([(d, "d0, d1")], (columns,), "d1", "rp", add))
    return made


def norm(*shape: int) -> Body:
    """The root of the sum of squares: what clipping begins with."""
    made = Body("full")
    x = made.operand(*shape)
    loops = ", ".join(f"d{d}" for d in range(len(shape)))
    square = region("%q = arith.mulf %i0, %i0 : f32", "%s = arith.addf %q, %o0 : f32", "%s : f32")
    total = made.reduce([(x, loops)], (), "", "r" * len(shape), square)
    made.result(made.map([(total, "")], (), region("%r = math.sqrt %i0 : f32", "%r : f32")))
    return made


def embedding(rows: int, columns: int, count: int) -> Body:
    """table[ids] + positions."""
    made = Body("gather")
    table, ids, positions = made.operand(rows, columns), made.operand(count, dtype="i64"), made.operand(count, columns)
    found = made.op("nova.gather", [table, ids], (count, columns), "f32")
    add = region("%r = arith.addf %i0, %i1 : f32", "%r : f32")
    made.result(made.map([(found, "d0, d1"), (positions, "d0, d1")], (count, columns), add))
    return made


def batched(layout: str, batch: tuple[int, ...], m: int, n: int, k: int, dtype: str) -> str:
    return hopper_kernels.plain(layout, m, n, k, dtype, batch=batch)


PLAIN, GELU, GATED, ADDED = (
    hopper_kernels.plain, hopper_kernels.bias_gelu, hopper_kernels.gated, hopper_kernels.accumulated
)  # fmt: skip
COOPERATIVE = {"pingpong": False, "consumers": 2, "split": 1, "multicast": "", "fetch": 2, "stages": 3, "tile_m": 128,
               "tile_n": 128}  # fmt: skip
THREE = {
    "pingpong": False,
    "consumers": 3,
    "split": 1,
    "multicast": "",
    "fetch": 2,
    "stages": 4,
    "tile_m": 192,
    "tile_n": 192,
}
PINGPONG = {"pingpong": True, "consumers": 2, "split": 1, "tile_m": 128, "tile_n": 128, "stages": 4}
SHAPE = (648, 520, 776)

HOPPER: dict[str, Callable[[], Case]] = {
    "pingpong bf16": hopper(PLAIN, "NT", *SHAPE, "bf16", **PINGPONG),
    "pingpong tf32": hopper(PLAIN, "NT", *SHAPE, "tf32", **PINGPONG),
    "one set bf16": hopper(GATED, "NN", *SHAPE, "bf16", **PINGPONG | {"multicast": "", "staging": 1, "fetch": 4, "chunk": 64}),
    "cooperative bf16": hopper(PLAIN, "NN", *SHAPE, "bf16", **COOPERATIVE),
    "cooperative tf32": hopper(PLAIN, "NT", *SHAPE, "tf32", **COOPERATIVE),
    "multicast n bf16": hopper(PLAIN, "TN", *SHAPE, "bf16", **COOPERATIVE | {"multicast": "n"}),
    "multicast m tf32": hopper(PLAIN, "NT", *SHAPE, "tf32", **COOPERATIVE | {"multicast": "m"}),
    "split workspace bf16": hopper(PLAIN, "TN", 384, 520, 2056, "bf16", **COOPERATIVE | {"split": 3, "split_in": "workspace"}),
    "split cluster bf16": hopper(PLAIN, "TN", 384, 520, 2056, "bf16", **COOPERATIVE | {"split": 3, "split_in": "cluster"}),
    "split cluster tf32": hopper(PLAIN, "NT", 384, 520, 2056, "tf32", **COOPERATIVE | {"split": 4, "split_in": "cluster"}),
    "registers NN tf32": hopper(PLAIN, "NN", *SHAPE, "tf32"),
    "registers TT tf32": hopper(PLAIN, "TT", *SHAPE, "tf32"),
    "repack TN tf32": hopper(PLAIN, "TN", 520, 1032, 520, "tf32"),
    "three consumers NN tf32": hopper(PLAIN, "NN", *SHAPE, "tf32", **THREE | {"repack": ""}),
    "three consumers TT tf32": hopper(PLAIN, "TT", *SHAPE, "tf32", **THREE),
    "three consumers bf16": hopper(PLAIN, "NT", *SHAPE, "bf16", **THREE | {"stages": 3}),
    "three consumers split tf32": hopper(PLAIN, "TN", 392, 400, 8192, "tf32", **THREE | {"split": 8}),
    "three consumers column sums tf32": hopper(GATED, "NN", 1032, 776, 384, "tf32", **THREE | {"tile_m": 128}),
    "large gelu bf16": hopper(GELU, "NT", 4104, 1544, 384, "bf16"),
    "large gelu tf32": hopper(GELU, "NT", 4104, 1544, 384, "tf32"),
    "large accumulate bf16": hopper(ADDED, "TN", 2056, 2056, 512, "bf16"),
    "large bf16": hopper(GATED, "NN", 2056, 1544, 384, "bf16"),
    "large tf32": hopper(GATED, "NN", 2056, 1544, 384, "tf32"),
    "weights tf32": hopper(PLAIN, "TN", 384, 520, 8192, "tf32"),
    "weights bf16": hopper(PLAIN, "TN", 384, 520, 8192, "bf16"),
    "batched bf16": hopper(batched, "NT", (2, 3), 264, 200, 256, "bf16"),
    "batched tf32": hopper(batched, "NN", (3,), 264, 200, 256, "tf32"),
    "gelu bf16": hopper(GELU, "NT", 520, 264, 384, "bf16"),
    "gelu tf32": hopper(GELU, "NN", 520, 264, 384, "tf32"),
    "column sums bf16": hopper(GATED, "NT", 520, 776, 384, "bf16"),
    "column sums tf32": hopper(GATED, "NN", 520, 776, 384, "tf32"),
    "row sums tf32": hopper(exponentials, "NT", 200, 328, 96, "tf32"),
    "row sums bf16": hopper(exponentials, "NT", 264, 1000, 96, "bf16"),
    "row and column sums bf16": hopper(both, "TN", 264, 200, 64, "bf16"),
    "accumulate tf32": hopper(ADDED, "TN", 520, 264, 1032, "tf32"),
    "accumulate bf16": hopper(ADDED, "NT", 520, 264, 1032, "bf16"),
    "accumulate registers tf32": hopper(ADDED, "TT", *SHAPE, "tf32"),
    "accumulate split cluster bf16": hopper(ADDED, "TN", 384, 520, 2056, "bf16", **COOPERATIVE | {"split": 3, "split_in": "cluster"}),
    "tails f16": hopper(PLAIN, "NT", 129, 77, 160, "f16"),
}  # fmt: skip
AMPERE: dict[str, Callable[[], Case]] = {
    **{f"{kind} {layout} {arch}": ampere(ampere_support.plain, layout, 197, 264, 136, kind, arch=arch)
       for (kind, layout), arch in zip(
           [(k, l) for k in ampere_support.KINDS for l in ampere_support.LAYOUTS], ["sm_80", "sm_86", "sm_89"] * 7)},
    "unaligned bf16": ampere(ampere_support.plain, "NN", 101, 63, 61, "bf16"),
    "split tf32": ampere(ampere_support.plain, "TN", 130, 100, 2011, "tf32", split=3),
    "split bf16": ampere(ampere_support.plain, "TN", 384, 520, 2056, "bf16", split=4),
    "gelu bf16": ampere(GELU, "NT", 260, 264, 384, "bf16"),
    "gelu tf32": ampere(GELU, "NN", 260, 264, 384, "tf32", arch="sm_86"),
    "column sums bf16": ampere(GATED, "NT", 260, 200, 136, "bf16", arch="sm_89"),
    "column sums fp32": ampere(GATED, "TN", 260, 200, 136, "fp32"),
    "accumulate tf32": ampere(ADDED, "TN", 260, 264, 520, "tf32"),
    "batched bf16": ampere(batched, "NT", (2, 3), 72, 100, 96, "bf16"),
}  # fmt: skip
SIMT: dict[str, Callable[[], Case]] = {
    "map gelu": body(map_bodies.gelu, 100_003),
    "map gelu backward": body(map_bodies.gelu_backward, 65_536),
    "map tiles": body(turned, (130, 200), "f32", "bf16"),
    "map tiles narrow": body(turned, (96, 72), "bf16", "f32"),
    "map adamw": body(map_bodies.adamw, 70_001, is_positive=True),
    "row layer norm": body(row_bodies.layer_norm, 300, 384),
    "row layer norm backward": body(row_bodies.layer_norm_backward, 300, 384),
    "row layer norm backward shared": body(row_bodies.layer_norm_backward, 40, 521, threads=96, block=96, form="resident"),
    "row softmax": body(row_bodies.softmax, 100, 1000),
    "row softmax staged": body(row_bodies.softmax, 20, 30_000, threads=256, block=256, form="staged", unroll=2),
    "row softmax swept": body(row_bodies.softmax, 20, 30_000, threads=256, block=256, form="swept", unroll=2),
    "row cross entropy": body(row_bodies.cross_entropy, 60, 5000, ids=5000),
    "column sums": body(column_sums, 2000, 264),
    "column sums narrow": body(column_sums, 3000, 17),
    "full norm": body(norm, 300, 301),
    "full norm long": body(norm, 1_000_003),
    "scan": body(running_sums, (3, 5000, 40), "f32"),
    "scan of one line": body(running_sums, (1, 100_003, 1), "f32"),
    "gather": body(embedding, 500, 100, 700, ids=500),
    "scatter": body(scatter, 256, 96, 700, ids=256),
    "scatter hot": body(scatter, 40, 300, 2000, ids=3),
    "scatter accumulate": body(scatter, 300, 36, 900, "f32", None, "i64", True, ids=300),
}  # fmt: skip
FAMILIES = {"hopper": HOPPER, "ampere": AMPERE, "simt": SIMT}
CASES = {f"{family} {name}": build for family, table in FAMILIES.items() for name, build in table.items()}
