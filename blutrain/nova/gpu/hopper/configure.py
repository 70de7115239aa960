"""Chooses the schedule of a contraction on sm_90a in closed form, and predicts its time. No search on a device.

Every candidate of a small space is priced by one model and the cheapest taken. The model: the busiest SM does
`waves` tiles; a tile costs its k-steps at the rate of the tensor core for its shape (or at the rate at which the L2
delivers its operands, whichever is slower), plus its epilogue where nothing hides it; the whole product costs at
least its memory traffic; phases and launches add constants. Constants fitted to measurements on an H200 stand at the
top with their meaning.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator

from blutrain.nova.gpu.hopper.epilogue_cost import finish_cycles
from blutrain.nova.gpu.hopper.pieces import fetched_loads, num_chunks, staged_stores, tile_of
from blutrain.nova.gpu.hopper.problem import Problem
from blutrain.nova.gpu.hopper.schedule import CONSUMER_ROWS, STAGE_ROW_BYTES, Schedule
from blutrain.nova.gpu.hopper.tiles import Tiles
from blutrain.nova.kernel import ITEM_BYTES, Unsupported
from blutrain.nova.target_gpu import GpuFacts

CLOCK_GHZ = 1.755  # under load
# Cycles of one k-step (128 bytes of k) of a tile: rows * columns / 32 at the tensor core's full rate.
PRODUCTS_PER_CYCLE = 32.0
STEP_SLACK = 1.04  # over that, measured in steady state
SHARED_BYTES_PER_CYCLE = 124.0  # that TMA, wgmma and fragment loads together move to and from an SM's shared memory
POWER = 0.79  # of the peak that the chip's power allows a long product
IN_FLIGHT_BYTES, SHALLOW_SLACK = 180_000, 1.03  # where a ring holds less than that
HALF_LINE_BYTES_PER_CYCLE = 130.0  # written in rows of 64 bytes: what that delays the products
TURNS_SLACK = 1.1  # where one consumer at a time loads fragments and multiplies
FETCHING_TURNS_SLACK = 1.7  # where besides matrices are fetched for the other
LAUNCH_US = 0.8  # of a kernel in a graph, until its first tile is under way
CLUSTER_US = 0.6  # more, where blocks form clusters
FILL_CYCLES = 1000.0  # latency of the first k-step: tensor map, TMA, first wgmma
L2_BYTES_PER_CYCLE = 60.0  # that one SM moves to and from the L2 when all do
STREAM_GB_S = 0.88  # of the memory bandwidth that a product's traffic reaches
PHASE_US = 2.2  # of a phase before or after
MAX_SPLIT = 16
MAX_LIVE_VALUES = {2: 192, 3: 160}  # by consumers
TILE_SHAPES = {
    "cooperative": ((256, 128), (128, 256), (256, 160), (128, 192), (128, 160), (128, 128), (128, 96), (128, 64)),
    "cooperative wide": ((192, 192), (192, 160), (192, 128)),
    "pingpong": ((128, 128), (128, 192), (64, 256), (64, 192), (64, 128), (64, 64), (128, 96), (128, 64)),
    "register": ((128, 256), (128, 192), (128, 128), (64, 128), (64, 256)),
    "register wide": ((192, 192), (128, 192), (64, 192)),
    "register pingpong": ((128, 128), (192, 64), (128, 64), (64, 128)),
}  # (m, n), register: (q, p); "wide": three consumers
MIN_STAGES, ENOUGH_STAGES, MANY_STAGES, MAX_STAGES = 3, 4, 5, 8
FETCH_DEPTHS = (4, 3, 2, 1)  # sets of buffers for operands


def tiles_of(problem: Problem, schedule: Schedule, facts: GpuFacts) -> Tiles:
    tiles = Tiles(problem, schedule, facts.shared_bytes_per_block, facts.sms, len(problem.contract.reductions))
    staging, fetch = (
        sum(tile_of(tiles, access).bytes for access in accesses)
        for accesses in ([s.access for s in staged_stores(tiles)], fetched_loads(tiles))
    )
    return dataclasses.replace(tiles, staging_set_bytes=staging, fetch_set_bytes=fetch, num_chunks=num_chunks(tiles))


def configure(problem: Problem, facts: GpuFacts) -> Schedule:
    """The cheapest candidate; ties go to the first. Raises `Unsupported` where none fits."""
    best: tuple[float, Schedule] | None = None
    for tiles in fitting(problem, facts):
        cost = predict_us(tiles, facts)
        if best is None or cost < best[0] * (1 - 1e-9):
            best = cost, tiles.schedule
    if best is None:
        raise Unsupported("hopper: no schedule fits")
    return best[1]


def fitting(problem: Problem, facts: GpuFacts) -> Iterator[Tiles]:
    """The candidates that fit shared memory and registers."""
    for schedule in candidates(problem, facts):
        tiles = tiles_of(problem, schedule, facts)
        if not tiles.problem_with_schedule() and _fits_registers(tiles):
            yield tiles


def candidates(problem: Problem, facts: GpuFacts) -> Iterator[Schedule]:
    """All schedules that the model prices, with as many stages as fit."""
    for repack in _repacks(problem):
        for variant, tile_m, tile_n in _shapes(problem, repack):
            consumers = 3 if variant.endswith("wide") else 2
            for split, where in _splits(problem, tile_m, tile_n, variant, facts):
                schedule = Schedule(
                    tile_m, tile_n, MIN_STAGES, consumers, variant.endswith("pingpong"), 8, split, where, repack
                )
                for shared in _multicasts(schedule, problem, facts):
                    yield from _deepest(dataclasses.replace(schedule, multicast=shared), problem, facts)


def _fits_registers(tiles: Tiles) -> bool:
    """Will the epilogue find registers beside the accumulators. A load for each element, a further store and a column
    sum hold about 16 values each, the register form two steps of fragments; the bound is what ptxas took without spills.
    """
    contract = tiles.problem.contract
    weight = len(tiles.problem.traffic.matrices) + len(contract.stores) - 1 + len(contract.reductions)
    fragments = 32 * tiles.blocks_p if tiles.in_registers else 0
    return tiles.num_accumulators + fragments + 16 * weight <= MAX_LIVE_VALUES[tiles.schedule.consumers]


def _multicasts(schedule: Schedule, problem: Problem, facts: GpuFacts) -> tuple[str, ...]:
    """Which tiles two blocks may share; not where the blocks of a cluster split k."""
    clustered = schedule.split > 1 and schedule.split_in == "cluster"
    return ("",) if clustered or not facts.clusters(2) else ("", "n", "m")


def _deepest(schedule: Schedule, problem: Problem, facts: GpuFacts) -> Iterator[Schedule]:
    """The schedule with as many stages as fit: with the buffers of the epilogue that leave most of them, and with the best
    that leave enough.
    """
    deep = MAX_STAGES
    if len(problem.contract.stores) > 1 and _written(problem) < 8:
        deep = ENOUGH_STAGES  # several bf16 results: ptxas 13 spilled a register where the ring was deeper
    found = [
        dataclasses.replace(s, stages=min(deep, _stages(problem, s, facts))) for s in _buffers(problem, schedule, facts)
    ]
    most = max(found, key=lambda s: min(s.stages, MANY_STAGES))
    best = next((s for s in found if s.stages >= ENOUGH_STAGES), most)
    for schedule in dict.fromkeys((best, most)):
        if schedule.stages >= MIN_STAGES:
            yield dataclasses.replace(schedule, group_m=_group(problem, schedule))


def _buffers(problem: Problem, schedule: Schedule, facts: GpuFacts) -> list[Schedule]:
    """Numbers of sets of buffers and sizes of chunks, best first. A tile takes whole rounds of the fetching ring."""
    tiles = tiles_of(problem, dataclasses.replace(schedule, fetch=1), facts)
    several = len(problem.contract.stores) > 1  # registers run short in wide chunks
    kinds = [(2, 128), (0, 128)] if tiles.in_registers else [(2, 64)] if several else [(2, 128), (2, 64)]
    found: list[Schedule] = []
    for staging, chunk in kinds:
        narrowed = dataclasses.replace(schedule, staging=staging, chunk=chunk, fetch=1)
        tiles = tiles_of(problem, narrowed, facts)
        depths = [depth for depth in FETCH_DEPTHS if tiles.num_chunks % depth == 0 and fetched_loads(tiles)]
        found += [dataclasses.replace(narrowed, fetch=depth) for depth in depths or [0]]
    return sorted(found, key=lambda s: s.fetch == 1)  # where one set is all, each chunk waits


def _repacks(problem: Problem) -> list[str]:
    """Which factor a first phase makes k-major: the smaller one, where both TF32 factors run along their own axis; where one
    does, it or none.
    """
    own = [side.axis for side in (problem.rows, problem.columns) if not side.k_major]
    if problem.dtype != "tf32" or not own:
        return [""]
    return ["", *own] if len(own) == 1 else ["m" if problem.m <= problem.n else "n"]


def _shapes(problem: Problem, repack: str) -> Iterator[tuple[str, int, int]]:
    own = [s.axis for s in (problem.rows, problem.columns) if not s.k_major and s.axis != repack]
    if problem.dtype != "tf32" or not own:
        for variant in ("cooperative", "cooperative wide", "pingpong"):
            yield from ((variant, m, n) for m, n in TILE_SHAPES[variant])
        return
    for variant in ("register", "register wide", "register pingpong"):
        for q, p in TILE_SHAPES[variant]:
            yield (variant, q, p) if own[0] == "n" else (variant, p, q)


def _splits(problem: Problem, tile_m: int, tile_n: int, variant: str, facts: GpuFacts) -> list[tuple[int, str]]:
    tiles = problem.batch * math.ceil(problem.m / tile_m) * math.ceil(problem.n / tile_n)
    steps = math.ceil(problem.k * problem.item / 128)
    found = [(1, "workspace")]
    if problem.contract.reductions or tiles > facts.sms:
        return found
    most = min(MAX_SPLIT, steps // 8, math.ceil(2 * facts.sms / tiles))
    for split in range(2, most + 1):
        if facts.clusters(split) and not variant.endswith("pingpong"):
            found.append((split, "cluster"))
        found.append((split, "workspace"))
    return found


def _stages(problem: Problem, schedule: Schedule, facts: GpuFacts) -> int:
    tiles = tiles_of(problem, schedule, facts)
    fixed = tiles.staging_bytes + tiles.fetch_bytes + tiles.sums_bytes
    room = facts.shared_bytes_per_block - fixed - 16 * (MAX_STAGES + schedule.fetch * schedule.consumers)
    return min(MAX_STAGES, room // tiles.stage_bytes)


def _group(problem: Problem, schedule: Schedule) -> int:
    """Row tiles walked before the next column tile: about as many as make a wave's footprint square, at most 32."""
    rows = math.ceil(problem.m / schedule.tile_m)
    columns = math.ceil(problem.n / schedule.tile_n)
    if columns > 64:
        return min(rows, 32)
    return min(rows, 8)


def predict_us(tiles: Tiles, facts: GpuFacts) -> float:
    """Microseconds of one launch of all phases."""
    problem, s = tiles.problem, tiles.schedule
    area = s.tile_m * s.tile_n
    step = area / PRODUCTS_PER_CYCLE * STEP_SLACK
    step = max(step, _shared_bytes(tiles) / SHARED_BYTES_PER_CYCLE)
    if s.stages * tiles.stage_bytes < IN_FLIGHT_BYTES:
        step *= SHALLOW_SLACK
    if tiles.in_registers and s.pingpong:
        step *= FETCHING_TURNS_SLACK if s.fetch else TURNS_SLACK
    work, finish = tiles.k_steps * step, finish_cycles(tiles)
    if s.chunk < STAGE_ROW_BYTES and not tiles.in_registers and s.split == 1:
        work += area * _written(problem) / HALF_LINE_BYTES_PER_CYCLE
    waves = math.ceil(tiles.total_tiles / _concurrent(tiles, facts))
    cycles = _pingpong_cycles(waves, work, finish) if s.pingpong else waves * (work + finish)
    cycles = max(cycles, _l2_cycles(tiles, facts))
    us = (cycles + FILL_CYCLES) / (CLOCK_GHZ * 1e3)
    us = (us**8 + _power_us(problem, facts) ** 8) ** (1 / 8)  # near the limit, both count
    memory = problem.contract.kernel.bytes / (facts.mem_gb_s * STREAM_GB_S * 1e3)
    us = max(us, memory) + LAUNCH_US + CLUSTER_US * (tiles.cluster > 1)
    if tiles.in_workspace:
        us += PHASE_US + 2 * tiles.partials_bytes / (facts.mem_gb_s * 1.2e3)
    if s.repack:
        us += PHASE_US + 2 * tiles.repacked_bytes / (facts.mem_gb_s * 0.8e3)
    if problem.contract.reductions:
        us += PHASE_US
    return us


def _power_us(problem: Problem, facts: GpuFacts) -> float:
    peak = facts.tf32_tflops if problem.dtype == "tf32" else facts.bf16_tflops
    return 2 * problem.batch * problem.m * problem.n * problem.k / (peak * POWER * 1e6)


def _pingpong_cycles(waves: int, work: float, finish: float) -> float:
    """Two consumers take turns: one multiplies while the other runs its epilogue, if that takes no longer."""
    behind = work if waves % 2 == 0 else 0.0  # the second consumer starts later, and ends last
    return max(waves * work + finish, math.ceil(waves / 2) * (work + finish) + behind)


def _shared_bytes(tiles: Tiles) -> int:
    """What a k-step moves to and from shared memory: TMA writes both tiles; the p tile is read once, by wgmma or as
    fragments, the q tile once for every 64 rows of p.
    """
    return tiles.stage_bytes + tiles.p_bytes + tiles.q_bytes * tiles.p_tile // CONSUMER_ROWS


def _l2_cycles(tiles: Tiles, facts: GpuFacts) -> float:
    """Of the busiest SM's traffic with the L2: operand tiles, what epilogues read and write."""
    s, problem = tiles.schedule, tiles.problem
    shared = tiles.tile(s.multicast) * STAGE_ROW_BYTES // 2 if s.multicast else 0  # that the other block brings
    read = sum(ITEM_BYTES[access.dtype] for access in problem.traffic.matrices)
    element = 4 if tiles.in_workspace else (read + _written(problem)) / (s.split if tiles.clustered else 1)
    tile = tiles.k_steps * (tiles.stage_bytes - shared) + s.tile_m * s.tile_n * element
    return tiles.total_tiles / min(tiles.total_tiles, _concurrent(tiles, facts)) * tile / L2_BYTES_PER_CYCLE


def _written(problem: Problem) -> int:
    """Bytes of an element of all results."""
    return sum(ITEM_BYTES[store.access.dtype] for store in problem.contract.stores)


def _concurrent(tiles: Tiles, facts: GpuFacts) -> int:
    if not tiles.clustered:
        return facts.sms
    return facts.clusters(tiles.cluster) * tiles.cluster
