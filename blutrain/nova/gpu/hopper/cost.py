"""Predicts the time of a contraction on sm_90a from its schedule, in closed form.

The busiest SM takes its tiles one after another. A step of k costs what the slowest of three needs for it: the tensor
core, the shared memory that TMA fills and wgmma reads, and the latency of TMA, which the ring must cover. Beside that,
all of an SM's tiles cost at least what TMA needs to bring their rows and to take their results away. Where two such
times are close, both count: they join as their 6-norm. Then the chip's power bounds the whole, the memory's bandwidth
too, and launches, clusters and other phases add constants. Those without another source were fitted to 3,400 schedules
of 76 products on an H200 (benchmarks/configurator.py --table); its SHAPES, which took no part, tell what the fit is worth.
"""

from __future__ import annotations

import math
from collections import Counter

from blutrain.nova.gpu.hopper.epilogue_cost import EXCHANGE_CYCLES, finish_cycles
from blutrain.nova.gpu.hopper.operands import REGISTER_BLOCK, own_block
from blutrain.nova.gpu.hopper.pieces import chunk_columns, fetched_loads, staged_stores
from blutrain.nova.gpu.hopper.problem import Problem
from blutrain.nova.gpu.hopper.schedule import CONSUMER_ROWS, STAGE_ROW_BYTES, Schedule
from blutrain.nova.gpu.hopper.tiles import Tiles
from blutrain.nova.kernel import ITEM_BYTES
from blutrain.nova.target_gpu import GpuFacts

CLOCK_GHZ = 1.755  # under load
# Cycles of one k-step (128 bytes of k) of a tile: rows * columns / 32 at the tensor core's full rate.
PRODUCTS_PER_CYCLE = 32.0
STEP_SLACK = 1.14  # over that: 1.03 in cycles, the rest is the clock, which sinks below CLOCK_GHZ where they are busy
SHARED_BYTES_PER_CYCLE = 156.0  # that TMA, wgmma and fragment loads together move to and from an SM's shared memory
LATENCY_CYCLES, SHARED_LATENCY_CYCLES = 1400.0, 500.0  # of TMA until a stage is there; more, where two blocks fill it
SHARED_STEP_CYCLES = 400.0  # a step takes at least, where two blocks fill each other's stages: they tell each other
# Of an SM's TMA: a row of up to 128 bytes in one line of the L2; more for one across two lines, more for one that does
# not start with a sector of 32 bytes; the share of it where two blocks receive the row.
ROW_CYCLES, CROSSING_CYCLES, SECTOR_CYCLES, SHARED_ROW = 1.42, 1.75, 1.4, 0.66
# A row of a box that lies beyond the factor is fetched, too (ncu counts as many bytes into each SM), and the L2 is slow at
# it: 2.6 to 5.3 cycles by probes of 64 x 128 to 256 x 64 tiles whose last column or row holds 8 to 128 of their elements.
BEYOND_CYCLES = 3.5
# What neighbouring blocks share, their GPC brings in once: so many such rows in a cycle. Read off orders of tiles that took
# 4 to 60 % longer than others of the same tiles: 2.9 to 4.5 in them; with those that needed less, orders hardly matter.
GPCS, GPC_ROWS_PER_CYCLE = 8, 3.5
STORED_BYTES_PER_CYCLE = 60.0  # of results and operands of an epilogue
POWER = 0.84  # of the peak that the chip's power allows a long product
HALF_LINE_BYTES_PER_CYCLE = 100.0  # written in rows of 64 bytes: what that delays the products
# Written from registers, in sectors of 32 bytes, while the other consumer multiplies: what that delays it. Read off ten
# schedules of TF32 TN 6368 x 3432 x 832 and 4096 x 1280 x 2304 (8 to 29).
DIRECT_BYTES_PER_CYCLE = 16.0
TURNS_SLACK = 1.1  # where one consumer at a time loads fragments and multiplies
ALONE_SLACK = 1.15  # of the last epilogue, where consumers take turns: one warpgroup runs it alone
FETCHING_TURNS_SLACK = 1.7  # where besides matrices are fetched for the other
LAUNCH_US = 0.8  # of a kernel in a graph, until its first tile is under way
CLUSTER_US = 0.9  # more, where blocks form clusters
SPLIT_CLUSTER_US, COLD_BLOCK_US = 1.8, 3.0  # where they split k; and of each next block, which starts cold
FULL_CLUSTERS_US = 2.0  # where they take every place that there is for one: the last is free late (30 of 4 blocks)
FILL_CYCLES = 1500.0  # latency of the first k-step: tensor map, TMA, first wgmma
STREAM_GB_S = 0.88  # of the memory bandwidth that a product's traffic reaches
PHASE_US = 1.1  # of a phase before or after, beside its traffic
PARTIALS_GB_S, REPACK_GB_S = 0.83, 0.7  # of the memory bandwidth: partial sums (written and read), a copied factor
NORM = 6


def predict_us(tiles: Tiles, facts: GpuFacts) -> float:
    """Microseconds of one launch of all phases."""
    problem, s = tiles.problem, tiles.schedule
    step, finish = _step_cycles(tiles), finish_cycles(tiles)
    work = tiles.k_steps * step
    if _writes_half_lines(tiles):
        work += s.tile_m * s.tile_n * problem.written_bytes / HALF_LINE_BYTES_PER_CYCLE
    elif s.pingpong and s.split == 1 and not staged_stores(tiles):
        work += s.tile_m * s.tile_n * problem.written_bytes / DIRECT_BYTES_PER_CYCLE
    waves = num_waves(tiles.total_tiles, s, facts)
    exchange = waves * finish if tiles.clustered else 0.0  # blocks that wait for each other need little power
    cycles = _pingpong_cycles(waves, work, finish) if s.pingpong else waves * (work + finish) - exchange
    cycles = _joined(cycles, waves * _moved_cycles(tiles)) + _ragged_cycles(tiles, step)
    us = _joined((cycles + FILL_CYCLES) / (CLOCK_GHZ * 1e3), _power_us(problem, facts)) + exchange / (CLOCK_GHZ * 1e3)
    memory = problem.contract.kernel.bytes / (facts.mem_gb_s * STREAM_GB_S * 1e3)
    us = max(us, memory) + LAUNCH_US
    if tiles.clustered:
        is_full = tiles.output_tiles % facts.clusters(s.split) == 0
        us += SPLIT_CLUSTER_US + FULL_CLUSTERS_US * is_full + COLD_BLOCK_US * (waves - 1)
    elif tiles.cluster > 1:
        us += CLUSTER_US
    if tiles.in_workspace:
        us += _partials_us(tiles.partials_bytes, facts)
    if s.repack:
        us += PHASE_US + 2 * tiles.repacked_bytes / (facts.mem_gb_s * REPACK_GB_S * 1e3)
    if problem.contract.reductions:
        us += PHASE_US
    return us


def product_us(problem: Problem, schedule: Schedule, facts: GpuFacts) -> float:
    """What the tensor cores, and splitting k, need at least, where `schedule` is all that is known: a lower bound of
    `predict_us`.
    """
    s = schedule
    tiles = problem.batch * math.ceil(problem.m / s.tile_m) * math.ceil(problem.n / s.tile_n) * s.split
    steps = math.ceil(math.ceil(problem.k * problem.item / STAGE_ROW_BYTES) / s.split)
    cycles = num_waves(tiles, s, facts) * steps * s.tile_m * s.tile_n / PRODUCTS_PER_CYCLE * STEP_SLACK
    us = _joined((cycles + FILL_CYCLES) / (CLOCK_GHZ * 1e3), _power_us(problem, facts)) + LAUNCH_US
    if s.in_cluster:
        us += SPLIT_CLUSTER_US + EXCHANGE_CYCLES / (CLOCK_GHZ * 1e3)
    elif s.split > 1:
        us += _partials_us(4 * tiles * s.tile_m * s.tile_n, facts)
    return us


def num_waves(tiles: int, schedule: Schedule, facts: GpuFacts) -> int:
    """Tiles of the busiest SM."""
    size = schedule.split if schedule.in_cluster else 1
    return math.ceil(tiles / (facts.clusters(size) * size))


def gpc_rows(problem: Problem, schedule: Schedule, num_sms: int) -> int:
    """Rows and columns of the tiles of a GPC's blocks, which lie side by side in the order of tiles."""
    s = schedule
    tiles_m, tiles_n = math.ceil(problem.m / s.tile_m), math.ceil(problem.n / s.tile_n)
    blocks = max(1, min(problem.batch * tiles_m * tiles_n * s.split, num_sms) // GPCS)
    height = min(s.group_m, tiles_m, blocks)
    columns = min(math.ceil(blocks / height), tiles_n)
    rows = min(height * math.ceil(blocks / (height * columns)), tiles_m)
    return min(rows * s.tile_m, problem.m) + min(columns * s.tile_n, problem.n)


def _partials_us(size: int, facts: GpuFacts) -> float:
    """Of a second phase, and of partial sums written and read."""
    return PHASE_US + 2 * size / (facts.mem_gb_s * PARTIALS_GB_S * 1e3)


def _joined(a: float, b: float) -> float:
    """Of two times the longer one, and more where they are near each other."""
    longer, shorter = max(a, b), min(a, b)
    return longer * (1 + (shorter / longer) ** NORM) ** (1 / NORM)


def _step_cycles(tiles: Tiles) -> float:
    s = tiles.schedule
    step = s.tile_m * s.tile_n / PRODUCTS_PER_CYCLE * STEP_SLACK
    exchanged = _exchanged_bytes(tiles) / tiles.k_steps if s.pingpong else 0  # the other consumer's epilogue, meanwhile
    step = _joined(step, (_shared_bytes(tiles) + exchanged) / SHARED_BYTES_PER_CYCLE)
    latency = LATENCY_CYCLES + SHARED_LATENCY_CYCLES * (s.multicast != "")
    step = _joined(step, latency / (s.stages - 1))
    if s.multicast:
        step = _joined(step, SHARED_STEP_CYCLES)
    elif not tiles.clustered:
        step = max(step, gpc_rows(tiles.problem, s, tiles.num_sms) / GPC_ROWS_PER_CYCLE)
    if tiles.in_registers and s.pingpong:
        step *= FETCHING_TURNS_SLACK if s.fetch else TURNS_SLACK
    return step


def _shared_bytes(tiles: Tiles) -> int:
    """What a k-step moves to and from shared memory: TMA writes both tiles; the p tile is read once, by wgmma or as
    fragments, the q tile once for every 64 rows of p.
    """
    return tiles.stage_bytes + tiles.p_bytes + tiles.q_bytes * tiles.p_tile // CONSUMER_ROWS


def _exchanged_bytes(tiles: Tiles) -> int:
    """What an epilogue moves through shared memory: results in and out again, matrices too."""
    accesses = [*(store.access for store in staged_stores(tiles)), *fetched_loads(tiles)]
    return 2 * tiles.schedule.tile_m * tiles.schedule.tile_n * sum(ITEM_BYTES[access.dtype] for access in accesses)


def _moved_cycles(tiles: Tiles) -> float:
    """Of an SM's TMA and L2 for one tile: the rows of both factors, what the epilogue reads and writes."""
    s, problem = tiles.schedule, tiles.problem
    rows = sum(_axis_cycles(tiles, axis) for axis in "mn")
    moved = problem.read_bytes + problem.written_bytes
    element = 4 if tiles.in_workspace else moved / (s.split if tiles.clustered else 1)
    return tiles.k_steps * rows + s.tile_m * s.tile_n * element / STORED_BYTES_PER_CYCLE


def _ragged_cycles(tiles: Tiles, step: float) -> float:
    """What the last tiles along an axis add, where many of their rows along k lie beyond the factor."""
    beyond = {axis: -tiles.extent(axis) % tiles.tile(axis) for axis in "mn" if tiles.side(axis).k_major}
    if not any(beyond.values()):
        return 0.0
    rows, added = sum(_axis_cycles(tiles, axis) for axis in "mn"), 0.0
    for axis, count in beyond.items():
        longer = rows + count * (BEYOND_CYCLES * _share(tiles, axis) - _axis_cycles(tiles, axis) / tiles.tile(axis))
        if longer > max(step, rows):
            added += tiles.k_steps * (longer - max(step, rows)) * _most_last_tiles(tiles, axis)
    return added


def _most_last_tiles(tiles: Tiles, axis: str) -> int:
    """Of the last tiles along an axis, most that one block gets."""
    group, rows, columns = tiles.group_m, tiles.steps_along("m"), tiles.steps_along("n")
    firsts = range(0, rows, group)
    if axis == "m":
        height = rows - firsts[-1]
        work = [firsts[-1] * columns + height * (column + 1) - 1 for column in range(columns)]
    else:
        heights = [min(group, rows - first) for first in firsts]
        work = [
            first * columns + (columns - 1) * height + row
            for first, height in zip(firsts, heights, strict=True)
            for row in range(height)
        ]
    return max(Counter(number % tiles.workers for number in work).values())


def _axis_cycles(tiles: Tiles, axis: str) -> float:
    return _row_cycles(tiles, axis) * _share(tiles, axis)


def _share(tiles: Tiles, axis: str) -> float:
    """What a block pays of the rows of a factor: two blocks may receive them."""
    return SHARED_ROW if axis == tiles.schedule.multicast else 1.0


def _row_cycles(tiles: Tiles, axis: str) -> float:
    """Of the rows that TMA copies of one factor in a k-step: along k, or blocks of rows along the factor's own axis."""
    side, item, rows = tiles.side(axis), tiles.problem.item, tiles.tile(axis)
    pitch = side.stride if side.k_major else side.k_stride
    if not side.k_major:
        width = REGISTER_BLOCK if axis == tiles.register_axis else own_block(tiles, axis)
        rows = rows // width * tiles.k_tile
    aligned = math.gcd(pitch * item, STAGE_ROW_BYTES)
    crossing = CROSSING_CYCLES * (1 - aligned / STAGE_ROW_BYTES)
    return rows * (ROW_CYCLES + crossing + SECTOR_CYCLES * (aligned < 32))


def _writes_half_lines(tiles: Tiles) -> bool:
    if tiles.in_registers or tiles.schedule.split > 1 or not tiles.problem.contract.stores:
        return False
    widest = max(ITEM_BYTES[store.access.dtype] for store in tiles.problem.contract.stores)
    return min(tiles.schedule.chunk, chunk_columns(tiles) * widest) < STAGE_ROW_BYTES


def _pingpong_cycles(waves: int, work: float, finish: float) -> float:
    """Two consumers take turns: one multiplies while the other runs its epilogue, if that takes no longer."""
    behind = work if waves % 2 == 0 else 0.0  # the second consumer starts later, and ends last
    return max(waves * work + finish * ALONE_SLACK, math.ceil(waves / 2) * (work + finish) + behind)


def _power_us(problem: Problem, facts: GpuFacts) -> float:
    peak = facts.tf32_tflops if problem.dtype == "tf32" else facts.bf16_tflops
    return 2 * problem.batch * problem.m * problem.n * problem.k / (peak * POWER * 1e6)
