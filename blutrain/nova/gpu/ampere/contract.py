"""The generator of contract kernels for sm_80 and newer: `supports`, `configure`, `generate`.

Phases, left out where there is nothing to do:

    product   each block one tile (of one range of k): multiply, then the epilogue or the sums' way to the workspace
    finish    only with ranges of k: add their sums in order, epilogue
    columns   only with reductions over rows: add the partial values in order
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from blutrain.nova.gpu.ampere import columns
from blutrain.nova.gpu.ampere import configure as configurator
from blutrain.nova.gpu.ampere.finish import Finish, emit_load_sums, emit_store_sums
from blutrain.nova.gpu.ampere.mainloop import Product, locate
from blutrain.nova.gpu.ampere.problem import read_problem
from blutrain.nova.gpu.ampere.schedule import Schedule
from blutrain.nova.gpu.ampere.tiles import Tiles
from blutrain.nova.gpu.builder import Builder, Module
from blutrain.nova.gpu.kernel import GpuKernel, GpuPhase
from blutrain.nova.kernel import Kernel, Unsupported
from blutrain.nova.target_gpu import GpuFacts


def supports(kernel: Kernel, facts: GpuFacts) -> str | None:
    """None, or why this family does not take the kernel: then no family does."""
    try:
        configurator.configure(read_problem(kernel), facts)
    except Unsupported as reason:
        return str(reason)
    return None


def configure(kernel: Kernel, facts: GpuFacts) -> dict[str, Any]:
    """The schedule, as entries of `#nova.lowering_config`: the fields of `Schedule`."""
    return configurator.configure(read_problem(kernel), facts).to_config()


def generate(kernel: Kernel, facts: GpuFacts, config: dict[str, Any]) -> GpuKernel:
    """The kernel's code under a schedule. Raises `Unsupported` where `supports` gives a reason."""
    problem = read_problem(kernel)
    tiles = Tiles(problem, Schedule.from_config(config))
    module = Module(kernel)
    phases: list[GpuPhase] = []

    def phase(part: str, blocks: int, threads: int, shared: int, emit: Callable[[Builder], None], layout="") -> None:
        symbol, out = f"{kernel.symbol}_{part}", Builder()
        emit(out)
        module.add(symbol, out, threads, layout=layout)
        phases.append(GpuPhase(symbol, (blocks, 1, 1), threads, shared_bytes=shared))

    if not problem.is_empty:
        layout, blocks = str(tiles.layout), tiles.output_tiles
        emit = lambda out: _emit_product(out, tiles)
        phase("product", blocks * tiles.split, tiles.threads, tiles.shared_bytes, emit, layout)
        if tiles.split > 1:
            phase("finish", blocks * tiles.slices, tiles.threads, 0, lambda out: _emit_finish(out, tiles), layout)
    if problem.contract.reductions and problem.extent["n"]:
        shared = columns.shared_bytes()
        phase("columns", columns.blocks(tiles), columns.THREADS, shared, lambda out: columns.emit_columns(out, tiles))
    extent = problem.extent
    return GpuKernel(
        text=module.text(),
        target=facts.arch,
        phases=tuple(phases),
        workspace_bytes=tiles.workspace_bytes if phases else 0,
        bytes=kernel.bytes,
        flops=2 * extent["batch"] * extent["m"] * extent["n"] * extent["k"],
        predicted_us=configurator.predict_us(problem, tiles.schedule, facts),
        schedule=str(tiles.schedule),
    )


def _emit_product(out: Builder, tiles: Tiles) -> None:
    block = locate(out, tiles)
    sums = Product(out, tiles, block).emit()
    if tiles.split > 1:
        emit_store_sums(out, tiles, block, sums)
    else:
        Finish(out, tiles, block).emit(sums)


def _emit_finish(out: Builder, tiles: Tiles) -> None:
    number = out.value("nvvm.read.ptx.sreg.ctaid.x : i32")
    slice = out.rem(number, tiles.slices)
    block = locate(out, tiles, out.div(number, tiles.slices))
    Finish(out, tiles, block, slice).emit(emit_load_sums(out, tiles, block, slice))
