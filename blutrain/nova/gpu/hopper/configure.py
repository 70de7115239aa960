"""Chooses the schedule of a contraction on sm_90a in closed form. No search on a device.

Every candidate of a small space is priced by one model (`cost`) and the cheapest taken. Cuts into tiles come by the
time that the tensor cores need for them, so that most are never priced: that time alone is too long.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator

from blutrain.nova.gpu.hopper.cost import (
    GPC_ROWS_PER_CYCLE,
    PRODUCTS_PER_CYCLE,
    gpc_rows,
    predict_us,
    product_us,
)
from blutrain.nova.gpu.hopper.pieces import (
    chunk_columns,
    fetched_loads,
    num_chunks,
    sends_by_warps,
    staged_stores,
    tile_of,
)
from blutrain.nova.gpu.hopper.problem import Problem
from blutrain.nova.gpu.hopper.schedule import CONSUMER_ROWS, STAGE_ROW_BYTES, Schedule, register_axis
from blutrain.nova.gpu.hopper.tiles import MAX_SIDE, Tiles
from blutrain.nova.kernel import Unsupported
from blutrain.nova.target_gpu import GpuFacts

MAX_SPLIT = 16
MAX_LIVE_VALUES = {2: 192, 3: 160}  # by consumers
ADDRESS_REGISTERS, BLOCK_REGISTERS = 8, 4  # what else an epilogue holds; for each of a consumer's blocks of rows
SIDES = range(64, MAX_SIDE + 1, 32)  # of tiles
WARPGROUPS = ((2, False), (3, False), (2, True))  # consumers, and whether they take turns
MIN_STAGES, ENOUGH_STAGES, MANY_STAGES, MAX_STAGES = 3, 4, 5, 8
FETCH_DEPTHS = (4, 3, 2, 1)  # sets of buffers for operands
SHORT_ROW, GPC_TILES, LONG_ROW, SQUARE = 7, 16, 40, 4  # tiles


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
    for least_us, cut in _cuts(problem, facts):
        if best is not None and least_us > best[0]:
            break
        for tiles in _fitting(cut, problem, facts):
            cost = predict_us(tiles, facts)
            if best is None or cost < best[0] * (1 - 1e-9):
                best = cost, tiles.schedule
    if best is None:
        raise Unsupported("hopper: no schedule fits")
    return best[1]


def fitting(problem: Problem, facts: GpuFacts) -> Iterator[Tiles]:
    """The candidates that fit shared memory and registers."""
    for _, cut in _cuts(problem, facts):
        yield from _fitting(cut, problem, facts)


def _cuts(problem: Problem, facts: GpuFacts) -> list[tuple[float, Schedule]]:
    """Ways to cut the product into tiles and ranges of k, and the microseconds that each takes at least."""
    found = []
    for repack in _repacks(problem):
        for cut in _shapes(problem, repack):
            for split, where in _splits(problem, cut, facts):
                cut = dataclasses.replace(cut, split=split, split_in=where)
                found.append((product_us(problem, cut, facts), cut))
    return sorted(found, key=lambda item: item[0])


def _fitting(cut: Schedule, problem: Problem, facts: GpuFacts) -> Iterator[Tiles]:
    """The schedules of a cut that fit, with as many stages as fit."""
    for shared in _multicasts(cut, problem, facts):
        for schedule in _deepest(dataclasses.replace(cut, multicast=shared), problem, facts):
            tiles = tiles_of(problem, schedule, facts)
            if not tiles.problem_with_schedule() and _fits_registers(tiles):
                yield tiles


def _fits_registers(tiles: Tiles) -> bool:
    """Will the epilogue find registers beside the accumulators. Several results hold a chunk where TMA fetches all matrices:
    its operands, results and column sums. Else a load for each element, a further store and a column sum hold about 16 values
    each; the register form two steps of fragments, vectors and sums of the whole tile. The bounds: what ptxas did not spill.
    """
    contract, traffic = tiles.problem.contract, tiles.problem.traffic
    in_chunks = len(fetched_loads(tiles)) == len(traffic.matrices) and bool(staged_stores(tiles))
    if len(contract.stores) > 1 and tiles.p_axis == "m" and in_chunks:
        words = (tiles.problem.read_bytes + tiles.problem.written_bytes) / 4 + len(contract.reductions) / 2
        addresses = max(ADDRESS_REGISTERS, BLOCK_REGISTERS * tiles.blocks_p)
        return chunk_columns(tiles) / 2 * words + addresses <= tiles.spare_registers
    vectors = sum(traffic.axes[access] == tiles.q_axis for access in traffic.loads)
    ahead = chunk_columns(tiles) / 2 * vectors + ADDRESS_REGISTERS  # of this chunk and of the next one
    if vectors and tiles.p_axis == "m" and tiles.has_few_registers and ahead >= tiles.spare_registers:
        return False
    weight = len(traffic.matrices) + len(contract.stores) - 1 + len(contract.reductions)
    along_q = vectors + len(contract.reductions) * (tiles.q_axis == "n")
    beside = ADDRESS_REGISTERS + along_q * tiles.q_tile // 8 if weight else 0
    fragments = 32 * tiles.blocks_p + beside if tiles.in_registers else 0
    return tiles.num_accumulators + fragments + 16 * weight <= MAX_LIVE_VALUES[tiles.schedule.consumers]


def _multicasts(schedule: Schedule, problem: Problem, facts: GpuFacts) -> tuple[str, ...]:
    """Which tiles two blocks may share: the larger one, or either where rows of one factor cross more lines; none where the
    blocks of a cluster split k.
    """
    if schedule.in_cluster or not facts.clusters(2):
        return ("",)
    pitches = (side.stride if side.k_major else side.k_stride for side in (problem.rows, problem.columns))
    alike = len({math.gcd(pitch * problem.item, STAGE_ROW_BYTES) for pitch in pitches}) == 1
    longer = schedule.tile_m - schedule.tile_n
    return ("", "m" if longer > 0 else "n") if alike and longer else ("", "n", "m")


def _deepest(schedule: Schedule, problem: Problem, facts: GpuFacts) -> Iterator[Schedule]:
    """The schedule with as many stages as fit: with the buffers of the epilogue that leave most of them, and with the best
    that leave enough.
    """
    deep = MAX_STAGES
    if len(problem.contract.stores) > 1 and problem.written_bytes < 8:
        deep = ENOUGH_STAGES  # several bf16 results: ptxas 13 spilled a register where the ring was deeper
    if schedule.in_cluster:
        deep = ENOUGH_STAGES  # a deeper ring was as fast at best: what many blocks read stays less long in the L2
    found = [
        dataclasses.replace(s, stages=min(deep, _stages(problem, s, facts))) for s in _buffers(problem, schedule, facts)
    ]
    most = max(found, key=lambda s: min(s.stages, MANY_STAGES))
    best = next((s for s in found if s.stages >= ENOUGH_STAGES), most)
    for schedule in dict.fromkeys((best, most)):
        if schedule.stages >= MIN_STAGES:
            for group in _groups(problem, schedule, facts):
                yield dataclasses.replace(schedule, group_m=group)


def _buffers(problem: Problem, schedule: Schedule, facts: GpuFacts) -> list[Schedule]:
    """Numbers of sets of buffers and sizes of chunks, best first. A tile takes whole rounds of the fetching ring."""
    tiles = tiles_of(problem, dataclasses.replace(schedule, fetch=1), facts)
    several = len(problem.contract.stores) > 1  # registers run short in wide chunks
    if tiles.in_registers:
        kinds = [(2, 128), (0, 128)]
    elif several and sends_by_warps(tiles):
        kinds = [(1, 64)]
    else:  # small chunks go round the blocks of a cluster more evenly
        kinds = [(2, 64)] if several or tiles.clustered else [(2, 128), (2, 64)]
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


def _shapes(problem: Problem, repack: str) -> Iterator[Schedule]:
    """Tiles that warpgroups can share or take in turns: whole wgmma, sums (and fragments) that registers hold."""
    p_is_n = register_axis(problem, repack) == "n"
    for (consumers, pingpong), p_tile, q_tile in itertools.product(WARPGROUPS, SIDES, SIDES):
        rows = CONSUMER_ROWS * (1 if pingpong else consumers)
        if p_tile % rows == 0 and p_tile // rows * q_tile // 2 <= MAX_LIVE_VALUES[consumers]:
            tile_m, tile_n = (q_tile, p_tile) if p_is_n else (p_tile, q_tile)
            yield Schedule(tile_m, tile_n, MIN_STAGES, consumers, pingpong, repack=repack)


def _splits(problem: Problem, cut: Schedule, facts: GpuFacts) -> Iterator[tuple[int, str]]:
    tiles = problem.batch * math.ceil(problem.m / cut.tile_m) * math.ceil(problem.n / cut.tile_n)
    steps = math.ceil(problem.k * problem.item / STAGE_ROW_BYTES)
    yield 1, "workspace"
    if problem.contract.reductions or tiles > facts.sms:
        return
    for split in range(2, min(MAX_SPLIT, steps // 8, math.ceil(2 * facts.sms / tiles)) + 1):
        if facts.clusters(split) and not cut.pingpong:
            yield split, "cluster"
        yield split, "workspace"


def _stages(problem: Problem, schedule: Schedule, facts: GpuFacts) -> int:
    tiles = tiles_of(problem, schedule, facts)
    fixed = tiles.staging_bytes + tiles.fetch_bytes + tiles.sums_bytes
    room = facts.shared_bytes_per_block - fixed - 16 * (MAX_STAGES + schedule.fetch * schedule.consumers)
    return min(MAX_STAGES, room // tiles.stage_bytes)


def _groups(problem: Problem, schedule: Schedule, facts: GpuFacts) -> tuple[int, ...]:
    """Row tiles walked before the next column tile. Where all tiles run at once, the shorter side is walked first: then
    neighbours share the tile of the longer factor, which comes from memory; so, too, where rows are short, or where tiles
    end within a line, so that neighbours in a row share it. Where rows are very long, many: then all of them stay in the
    L2. Where a GPC may not bring in what that asks of it, a square is priced, too.
    """
    s = schedule
    rows, columns = math.ceil(problem.m / s.tile_m), math.ceil(problem.n / s.tile_n)
    if problem.batch * rows * columns * s.split <= facts.sms:
        is_short = columns <= rows and s.multicast != "n"
    else:
        within_line = not problem.columns.k_major and s.tile_n * problem.item % STAGE_ROW_BYTES > 0
        is_short = columns <= (GPC_TILES if within_line else SHORT_ROW) and not s.multicast
    first = 1 if is_short and not s.in_cluster else min(rows, 32 if columns > LONG_ROW else 8)
    if s.multicast or s.in_cluster:
        return (first,)
    enough = GPC_ROWS_PER_CYCLE * s.tile_m * s.tile_n / PRODUCTS_PER_CYCLE
    is_enough = gpc_rows(problem, dataclasses.replace(s, group_m=first), facts.sms) <= enough
    return (first,) if is_enough else tuple(dict.fromkeys((first, min(rows, SQUARE))))
