"""The schedule of a contract kernel from shapes, layouts and the GPU's facts: a model of cycles, no search on a device.

Every tile of the table is costed. A step of k takes the longest of: multiplying, reading fragments from shared memory,
and bringing the stage from the L2. An SM works through its tiles one after the other; the first copies and the
epilogue of each are hidden only as far as other blocks share the SM. Ranges of k cost another phase, and the traffic of
their sums.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from blutrain.nova.gpu.ampere.instruction import LANES
from blutrain.nova.gpu.ampere.problem import PIECES, Problem, Side
from blutrain.nova.gpu.ampere.schedule import Schedule
from blutrain.nova.gpu.ampere.tiles import Tiles
from blutrain.nova.kernel import ITEM_BYTES, Unsupported
from blutrain.nova.target_gpu import GpuFacts

# (block tile, warp tile); a warp holds warp_m * warp_n / 32 sums a lane.
TILES = (
    ((256, 128), (64, 64)),
    ((128, 256), (64, 64)),
    ((128, 128), (64, 64)),
    ((128, 128), (64, 32)),
    ((128, 64), (64, 32)),
    ((64, 128), (32, 64)),
    ((64, 64), (32, 32)),
    ((32, 128), (32, 32)),
    ((128, 32), (32, 32)),
    ((32, 64), (16, 32)),
    ((64, 32), (32, 16)),
    ((32, 32), (16, 16)),
)
MAX_SUMS = {"fp32": 64, "f64": 32}  # a lane's, by kind: split factors and f64 take two registers each
STEP = 32  # elements of k in a stage, whatever their size: half the size makes twice the stages
SHORT_STEP = 16  # where that leaves fewer than MIN_STAGES, or the factors' parts and sums already fill the registers
MIN_STAGES, MAX_STAGES = 3, 8  # of factors that pass through registers the least: they do not wait in the ring
RESERVED_SHARED = 1 << 10  # bytes a block, taken by the system
SPARE_REGISTERS = 48  # addresses, counters, temporaries
MMA_EFFICIENCY = {False: 0.9, True: 0.62}  # of the data sheet's rate; mma.sync on Hopper reaches less than wgmma
SHARED_BYTES_PER_CYCLE = 128
L2_BYTES_PER_CYCLE = 32  # an SM's, all of them reading
BARRIER_CYCLES = 40
START_CYCLES = 1500  # from the start of a block to its first product
LAUNCH_US = 2.0
GROUP = 8


@dataclass(frozen=True)
class Candidate:
    schedule: Schedule
    predicted_us: float


def configure(problem: Problem, facts: GpuFacts) -> Schedule:
    """The schedule with the least predicted time. A pure function of the problem and the facts."""
    return best(problem, facts).schedule


def best(problem: Problem, facts: GpuFacts) -> Candidate:
    found = candidates(problem, facts)
    if not found:
        raise Unsupported(f"ampere: no tile fits {facts.shared_bytes_per_block} bytes of shared memory")
    return min(found, key=lambda c: (c.predicted_us, c.schedule.split, -math.prod(c.schedule.workgroup)))


def candidates(problem: Problem, facts: GpuFacts) -> list[Candidate]:
    """Every schedule of the table that fits, each with its predicted time."""
    found = []
    for block, warp in TILES:
        if math.prod(warp) // LANES > max_sums(problem):
            continue
        schedule = _staged(problem, block, warp, facts)
        if schedule is None:
            continue
        for split in _splits(problem, schedule, facts):
            option = replace(schedule, split=split)
            found.append(Candidate(option, predict_us(problem, option, facts)))
    return found


def max_sums(problem: Problem) -> int:
    """Most sums of a lane: fewer where splitting factors, or copies in many small pieces, take registers too."""
    small_pieces = any(side.piece != PIECES[0] for side in problem.sides.values())
    return min(MAX_SUMS.get(problem.kind, 128), 64 if small_pieces else 128)


def _staged(problem: Problem, block: tuple[int, int], warp: tuple[int, int], facts: GpuFacts) -> Schedule | None:
    """A tile with the deepest ring of stages that leaves as many blocks an SM as registers allow."""
    threads = LANES * math.prod(block) // math.prod(warp)
    by_registers = facts.registers_per_sm // (threads * registers(problem, warp))
    most = MAX_STAGES if all(side.piece for side in problem.sides.values()) else MIN_STAGES
    runs = {axis: run_of(problem, problem.sides[axis], warp["mn".index(axis)]) for axis in "mn"}
    for blocks in range(min(2, max(1, by_registers)), 0, -1):
        room = min(facts.shared_bytes_per_block, facts.shared_bytes_per_sm // blocks - RESERVED_SHARED)
        for step, fewest in ((STEP, MIN_STAGES), (SHORT_STEP, MIN_STAGES), (SHORT_STEP, 2)):
            step = SHORT_STEP if problem.kind in MAX_SUMS else step
            stages = min(most, room // (sum(block) * step * problem.item))
            if stages >= fewest:
                stages = max(2, min(stages, math.ceil(problem.extent["k"] / step) + 1))
                name = problem.instruction.name
                return Schedule(block, warp, step, stages, 1, GROUP, name, runs["m"], runs["n"])
    return None


def registers(problem: Problem, warp: tuple[int, int]) -> int:
    """A thread's registers, estimated: sums, two steps' fragments, and what prepared ones take beside them."""
    words = 2 if problem.kind == "f64" else 1
    sums = math.prod(warp) // LANES * words
    fragments = sum(warp) * problem.instruction.k * problem.item // 4 // LANES
    copies = 4 if problem.kind == "fp32" else 2
    return min(255, -(-(sums + copies * fragments + SPARE_REGISTERS) // 8) * 8)


def run_of(problem: Problem, side: Side, extent: int) -> int:
    """How many subtiles interleave: as many as one load takes, or as make stores of 16 bytes."""
    if not problem.instruction.is_mma:
        return 1
    subtiles = extent // problem.instruction.subtile[side.axis]
    if not side.is_k_major:
        return math.gcd(4, subtiles) if problem.item == 4 else 1
    contract = problem.contract
    inner = contract.axes[side.axis][-1:]
    items = [ITEM_BYTES[s.access.dtype] for s in contract.stores if inner and s.access.strides[inner[0]] == 1]
    if not items:
        return 1
    # A lane holds one element of a row subtile, two of a column subtile.
    return math.gcd(4, subtiles, 16 // min(items) // (2 if side.axis == "n" else 1))


def _splits(problem: Problem, schedule: Schedule, facts: GpuFacts) -> list[int]:
    tiles = Tiles(problem, schedule)
    most = min(16, tiles.count("k") // 8, 2 * facts.sms // max(1, tiles.output_tiles))
    return [1, *range(2, most + 1)]


def predict_us(problem: Problem, schedule: Schedule, facts: GpuFacts) -> float:
    """Modelled time of all phases."""
    tiles = Tiles(problem, schedule)
    if problem.is_empty:
        return LAUNCH_US
    step = step_cycles(tiles, facts)
    blocks = tiles.output_tiles * tiles.split
    resident = resident_blocks(tiles, facts)
    each = math.ceil(blocks / facts.sms)  # blocks that the busiest SM runs
    stored = sum(ITEM_BYTES[s.access.dtype] for s in problem.contract.stores)
    stored = stored if tiles.split == 1 else tiles.result_item
    byte_cycles = facts.mem_gb_s / facts.sms / facts.clock_ghz  # bytes of memory an SM gets in a cycle
    end = tiles.tile("m") * tiles.tile("n") * stored / byte_cycles
    cycles = each * tiles.steps * step + math.ceil(each / resident) * (START_CYCLES + end)
    memory_us = problem.contract.kernel.bytes / (facts.mem_gb_s * 1e3)
    total = LAUNCH_US + max(cycles / (facts.clock_ghz * 1e3), memory_us)
    if tiles.split > 1:
        total += LAUNCH_US + 2 * tiles.sums_bytes / (facts.mem_gb_s * 1e3)
    return total + (LAUNCH_US + 1.0 if problem.contract.reductions else 0.0)


def step_cycles(tiles: Tiles, facts: GpuFacts) -> float:
    """Cycles of one step of k for one tile, where an SM has enough to do."""
    problem, k = tiles.problem, tiles.tile("k")
    products = tiles.tile("m") * tiles.tile("n") * k * problem.instruction.products
    multiply = products / (product_rate(problem.kind, facts) * _filling(tiles, facts))
    read = math.prod(tiles.warps) * (tiles.warp_tile("m") + tiles.warp_tile("n")) * k * problem.item
    if not problem.instruction.is_mma:
        read *= 4  # elements one by one
    shared = (read + tiles.stage_bytes) / SHARED_BYTES_PER_CYCLE
    return max(multiply, shared, tiles.stage_bytes / L2_BYTES_PER_CYCLE) + BARRIER_CYCLES


def _filling(tiles: Tiles, facts: GpuFacts) -> float:
    """Share of the multipliers' rate that the warps of an SM reach: below eight they wait for their own results."""
    blocks = min(resident_blocks(tiles, facts), math.ceil(tiles.output_tiles * tiles.split / facts.sms))
    return min(1.0, 0.6 + 0.05 * blocks * math.prod(tiles.warps))


def product_rate(kind: str, facts: GpuFacts) -> float:
    """Multiply-adds of an SM in a cycle."""
    tflops = {"bf16": facts.bf16_tflops, "f16": facts.bf16_tflops, "f64": facts.f32_tflops / 2}.get(
        kind, facts.tf32_tflops
    )
    efficiency = 0.3 if kind == "f64" else MMA_EFFICIENCY[facts.is_hopper]
    return tflops * 1e3 / 2 / facts.sms / facts.clock_ghz * efficiency


def resident_blocks(tiles: Tiles, facts: GpuFacts) -> int:
    """Blocks that share an SM."""
    by_shared = facts.shared_bytes_per_sm // (tiles.shared_bytes + RESERVED_SHARED)
    by_registers = facts.registers_per_sm // (tiles.threads * registers(tiles.problem, tiles.schedule.subgroup))
    return max(1, min(by_shared, by_registers, facts.threads_per_sm // tiles.threads))
