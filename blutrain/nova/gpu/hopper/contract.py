"""The generator of contract kernels for sm_90a: `supports`, `configure`, `generate`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from blutrain.nova.clone import check_block
from blutrain.nova.contract.combine import Combiner
from blutrain.nova.gpu.builder import Builder, Module
from blutrain.nova.gpu.emit_region import check_regions
from blutrain.nova.gpu.hopper import columns, exchange, repack, split
from blutrain.nova.gpu.hopper import configure as configurator
from blutrain.nova.gpu.hopper.epilogue import Epilogue
from blutrain.nova.gpu.hopper.fetch import Fetch
from blutrain.nova.gpu.hopper.mainloop import emit_main
from blutrain.nova.gpu.hopper.operands import copies
from blutrain.nova.gpu.hopper.pieces import fetched_loads, sent_rows, staged_stores, tile_map
from blutrain.nova.gpu.hopper.problem import read_problem
from blutrain.nova.gpu.hopper.schedule import Schedule
from blutrain.nova.gpu.hopper.shape import WARPGROUP
from blutrain.nova.gpu.hopper.tiles import Tiles
from blutrain.nova.gpu.kernel import GpuKernel, GpuPhase, TensorMap
from blutrain.nova.kernel import Kernel, Unsupported
from blutrain.nova.target_gpu import GpuFacts

TARGET = "sm_90a"


def supports(kernel: Kernel, facts: GpuFacts) -> str | None:
    """None, or why this family does not take the kernel (the sm_80 family may)."""
    if not facts.is_hopper:
        return f"hopper: needs {TARGET}, the target is {facts.arch}"
    try:
        problem = read_problem(kernel)
        check_regions(kernel.ops)
        for generic in kernel.generics:
            check_block(generic.block)
        for reduction in (*problem.contract.reductions, *problem.contract.row_reductions):
            if Combiner(reduction).dtype != "f32":
                return "hopper: a reduction that is not f32"
        if next(configurator.fitting(problem, facts), None) is None:
            return "hopper: no schedule fits"
    except Unsupported as reason:
        return str(reason)
    return None


def configure(kernel: Kernel, facts: GpuFacts) -> dict[str, Any]:
    """The schedule, as entries of `#nova.lowering_config`: the fields of `Schedule`."""
    return configurator.configure(read_problem(kernel), facts).to_config()


def generate(kernel: Kernel, facts: GpuFacts, config: dict[str, Any]) -> GpuKernel:
    """The kernel's code under a schedule. Raises `Unsupported` where the schedule does not fit the kernel."""
    problem = read_problem(kernel)
    schedule = Schedule.from_config(config)
    tiles = configurator.tiles_of(problem, schedule, facts)
    tiles.check()
    module = Module(kernel)
    phases: list[GpuPhase] = []

    def phase(
        part: str, blocks: int, threads: int, emit: Callable[[Builder, str], None],
        maps: tuple[TensorMap, ...] = (), static: int = 0, dynamic: int = 0, cluster: int = 1,
    ) -> None:  # fmt: skip
        symbol, out = f"{kernel.symbol}_{part}", Builder()
        emit(out, symbol)
        module.add(symbol, out, threads, len(maps), cluster, static)
        phases.append(GpuPhase(symbol, (blocks, 1, 1), threads, cluster, dynamic, maps))

    if schedule.repack:
        emit = lambda o, s: repack.emit_repack(o, tiles, s)
        phase("repack", repack.blocks(tiles), repack.THREADS, emit, static=repack.shared_bytes())
    maps = tensor_maps(tiles)
    shared, cluster = tiles.total_shared_bytes, tiles.cluster
    phase("product", tiles.blocks, tiles.threads, lambda o, _: _emit_product(o, tiles), maps, 0, shared, cluster)
    if tiles.in_workspace:
        phase("sum", split.sum_blocks(tiles), WARPGROUP, lambda o, _: split.emit_sum(o, tiles))
    for part, partials in (("columns", columns.of_columns(tiles)), ("rows", columns.of_rows(tiles))):
        if partials.reductions:
            emit = lambda o, s, p=partials: columns.emit_totals(o, tiles, p, s)
            phase(part, partials.blocks, columns.THREADS, emit, static=columns.shared_bytes())
    return GpuKernel(
        text=module.text(),
        target=TARGET,
        phases=tuple(phases),
        workspace_bytes=tiles.workspace_bytes,
        bytes=kernel.bytes,
        flops=2 * problem.batch * problem.m * problem.n * problem.k,
        predicted_us=configurator.predict_us(tiles, facts),
        schedule=describe(tiles),
        unit="tf32" if problem.dtype == "tf32" else "bf16",
    )


def tensor_maps(tiles: Tiles) -> tuple[TensorMap, ...]:
    """Of the factors along p and q, of the operands that TMA fetches for the epilogue, of the staged results."""
    factors = [copies(tiles, axis).map for axis in (tiles.p_axis, tiles.q_axis)]
    fetched = [tile_map(tiles, access) for access in fetched_loads(tiles)]
    staged = [tile_map(tiles, store.access, sent_rows(tiles)) for store in staged_stores(tiles)]
    maps = (*factors, *fetched, *staged)
    for map_ in maps:
        if problem := map_.problem():
            raise Unsupported(f"hopper: tensor map: {problem}")
    return maps


def _emit_product(out: Builder, tiles: Tiles) -> None:
    if tiles.in_workspace:
        emit_main(out, tiles, 0, split.emit_partial(out, tiles))
        return
    epilogue = Epilogue(out, tiles)
    num_maps = len(epilogue.fetched) + len(epilogue.staged)
    if tiles.clustered:
        initialise = lambda thread: exchange.initialise(out, tiles, thread)
        finish = exchange.emit_exchange(out, tiles, epilogue)
        emit_main(out, tiles, num_maps, finish, epilogue.finish, initialise=initialise)
    else:
        fetcher = (lambda thread, consumer: Fetch(out, tiles, thread, consumer)) if epilogue.fetched else None
        emit_main(out, tiles, num_maps, epilogue, epilogue.finish, epilogue.prefetch, fetcher)


def describe(tiles: Tiles) -> str:
    """`tf32 128x192x32 cooperative, 5 stages, split 4 (cluster)`, for explain."""
    s, problem = tiles.schedule, tiles.problem
    parts = [f"{problem.dtype} {s.tile_m}x{s.tile_n}x{tiles.k_tile} {'ping-pong' if s.pingpong else 'cooperative'}"]
    parts += [f"{s.stages} stages", f"{s.consumers} consumers"] if s.consumers != 2 else [f"{s.stages} stages"]
    parts += [f"{tiles.register_axis} in registers"] if tiles.in_registers else []
    parts += [f"{s.multicast} tiles shared"] if s.multicast else []
    parts += [f"{s.fetch} chunks fetched"] if s.fetch else []
    parts += ["added in memory"] if problem.adds else []
    parts += [f"split {s.split} ({s.split_in})"] if s.split > 1 else []
    parts += [f"{s.repack} repacked"] if s.repack else []
    return ", ".join(parts)
