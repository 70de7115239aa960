"""The schedule of a contract kernel from shapes, layouts and the GPU's facts: a model of cycles, no search on a device.

Every tile of the table is costed. A step of k takes the longest of multiplying, of shared memory's traffic and of bringing
the stage from the L2, and on top the issue slots of all that is no product: fragment loads, rounding, copies. An SM works
through its tiles one after the other; the first copies and the epilogue of each are hidden only as far as other blocks
share the SM. Ranges of k cost another phase, and the traffic of their sums.

Constants marked H200 were fitted to 90 kernels there, some with parts of the loop left out; of 36 products measured afterwards
33 took within 12 % of what they say (tests/test_gpu_ampere_configure.py has some). Nothing was measured on the others.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from blutrain.nova.contract.form import loads
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
LONG_STEP_BYTES = 128  # of k in a stage: a line of the L2 in one piece, and half the barriers
STEP = 32  # elements of k in a stage where no more fit, or pass through registers or in small pieces
SHORT_STEP = 16  # where that leaves fewer than MIN_STAGES, or the factors' parts and sums already fill the registers
MIN_STAGES, MAX_STAGES = 3, 8  # of factors that pass through registers the least: they do not wait in the ring
RESERVED_SHARED = 1 << 10  # bytes a block, taken by the system
SPARE_REGISTERS = 48  # addresses, counters, temporaries
CLOCK = {False: 1.0, True: 0.87}  # of the highest, under load; H200: 1.55 GHz (long) to 1.8 (short)
MMA_EFFICIENCY = {False: 0.9, True: 0.59}  # of the data sheet's rate; H200: an mma.m16n8k16 every 6.4 cycles
SHARED_BYTES_PER_CYCLE = 128
L2_BYTES_PER_CYCLE = {False: 32, True: 48}  # an SM's, all of them reading; H200
SCHEDULERS = 4  # of an SM; each issues an instruction a cycle
ROUNDING = {"tf32": 1, "fp32": 5}  # instructions for a register of a factor
COPY = 3  # instructions: the copy and its address
LOOP = 20  # instructions of a step beside products, fragments and copies
BARRIER_CYCLES = 20
START_CYCLES = 1200  # from the start of a block to its first product
LAUNCH_US = 1.0
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
        for schedule in _staged(problem, block, warp, facts):
            for split in _splits(problem, schedule, facts):
                option = replace(schedule, split=split)
                found.append(Candidate(option, predict_us(problem, option, facts)))
    return found


def max_sums(problem: Problem) -> int:
    """Most sums of a lane: fewer where splitting factors, or copies in many small pieces, take registers too."""
    small_pieces = any(side.piece != PIECES[0] for side in problem.sides.values())
    return min(MAX_SUMS.get(problem.kind, 128), 64 if small_pieces else 128)


def _staged(problem: Problem, block: tuple[int, int], warp: tuple[int, int], facts: GpuFacts) -> Iterator[Schedule]:
    """A tile with the deepest rings of stages: of one or two blocks an SM, as registers allow, and of steps of k."""
    threads = LANES * math.prod(block) // math.prod(warp)
    by_registers = facts.registers_per_sm // (threads * registers(problem, warp))
    most = MAX_STAGES if all(side.piece for side in problem.sides.values()) else MIN_STAGES
    runs = {axis: run_of(problem, problem.sides[axis], warp["mn".index(axis)]) for axis in "mn"}
    for blocks in range(min(2, max(1, by_registers)), 0, -1):
        room = min(facts.shared_bytes_per_block, facts.shared_bytes_per_sm // blocks - RESERVED_SHARED)
        for step, fewest in steps_of(problem):
            stages = min(most, room // (sum(block) * step * problem.item))
            if stages >= fewest:
                stages = max(2, min(stages, math.ceil(problem.extent["k"] / step) + 1))
                name = problem.instruction.name
                yield Schedule(block, warp, step, stages, 1, GROUP, name, runs["m"], runs["n"])
                if step <= STEP:
                    break


def steps_of(problem: Problem) -> list[tuple[int, int]]:
    """Steps of k and how many stages they need at least, from the longest."""
    if problem.kind in MAX_SUMS:
        return [(SHORT_STEP, MIN_STAGES), (SHORT_STEP, 2)]
    steps = [(STEP, MIN_STAGES), (SHORT_STEP, MIN_STAGES), (SHORT_STEP, 2)]
    is_whole = all(side.piece == PIECES[0] for side in problem.sides.values())
    long = LONG_STEP_BYTES // problem.item
    return [(long, MIN_STAGES), *steps] if is_whole and long > STEP else steps


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
    most = min(16, problem.extent["k"] // (8 * STEP), 4 * facts.sms // max(1, tiles.output_tiles))
    return [1, *range(2, most + 1)]


def predict_us(problem: Problem, schedule: Schedule, facts: GpuFacts) -> float:
    """Modelled time of all phases."""
    tiles = Tiles(problem, schedule)
    if problem.is_empty:
        return LAUNCH_US
    clock = facts.clock_ghz * CLOCK[facts.is_hopper]
    blocks = tiles.output_tiles * tiles.split
    resident = resident_blocks(tiles, facts)
    each = math.ceil(blocks / facts.sms)  # blocks that the busiest SM runs
    end = tiles.tile("m") * tiles.tile("n") * _end_bytes(tiles) / (facts.mem_gb_s / facts.sms / clock)
    cycles = each * tiles.steps * step_cycles(tiles, facts) + math.ceil(each / resident) * (START_CYCLES + end)
    memory_us = problem.contract.kernel.bytes / (facts.mem_gb_s * 1e3)
    total = LAUNCH_US + max(cycles / (clock * 1e3), memory_us)
    if tiles.split > 1:
        passes = 2 if tiles.sums_bytes > facts.l2_bytes else 1  # through memory; the L2 is twice as fast
        total += LAUNCH_US + passes * tiles.sums_bytes / (facts.mem_gb_s * 1e3)
    return total + (LAUNCH_US + 1.0 if problem.contract.reductions else 0.0)


def _end_bytes(tiles: Tiles) -> int:
    """Bytes of memory for an element at the end of a tile: results, and operands of the epilogue of their extent."""
    if tiles.split > 1:
        return tiles.result_item
    contract = tiles.problem.contract
    read = {access for store in contract.stores for access in loads(store.value)}
    inner = [axes[-1] for axes in (contract.axes["m"], contract.axes["n"]) if axes]
    accesses = [*(s.access for s in contract.stores), *(a for a in read if all(a.strides[d] for d in inner))]
    return sum(ITEM_BYTES[access.dtype] for access in accesses)


def step_cycles(tiles: Tiles, facts: GpuFacts) -> float:
    """Cycles of one step of k for one tile, where an SM has enough to do."""
    problem, k = tiles.problem, tiles.tile("k")
    products = tiles.tile("m") * tiles.tile("n") * k * problem.instruction.products
    multiply = products / (product_rate(problem.kind, facts) * _filling(tiles, facts))
    read = math.prod(tiles.warps) * (tiles.warp_tile("m") + tiles.warp_tile("n")) * k * problem.item
    if not problem.instruction.is_mma:
        read *= 4  # elements one by one
    shared = (read + tiles.stage_bytes) / SHARED_BYTES_PER_CYCLE
    longest = max(multiply, shared, tiles.stage_bytes / L2_BYTES_PER_CYCLE[facts.is_hopper])
    return longest + math.prod(tiles.warps) * _other_slots(tiles) / SCHEDULERS + BARRIER_CYCLES


def _other_slots(tiles: Tiles) -> float:
    """A warp's instructions of one step that are no products."""
    problem, total = tiles.problem, float(LOOP)
    if problem.kind == "fp32":  # the running sums, added to outside the tensor cores
        total += math.prod(tiles.schedule.subgroup) / LANES * tiles.tile("k") / problem.instruction.k
    for axis, side in problem.sides.items():
        registers = tiles.warp_tile(axis) * tiles.tile("k") * problem.item / (4 * LANES)
        total += registers * (1 / 4 + ROUNDING.get(problem.kind, 0))
        total += COPY * tiles.shared[axis].bytes / ((side.piece or PIECES[-1]) * tiles.threads)
    return total


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
    clock = facts.clock_ghz * CLOCK[facts.is_hopper]
    return tflops * 1e3 / 2 / facts.sms / clock * efficiency


def resident_blocks(tiles: Tiles, facts: GpuFacts) -> int:
    """Blocks that share an SM."""
    by_shared = facts.shared_bytes_per_sm // (tiles.shared_bytes + RESERVED_SHARED)
    by_registers = facts.registers_per_sm // (tiles.threads * registers(tiles.problem, tiles.schedule.subgroup))
    return max(1, min(by_shared, by_registers, facts.threads_per_sm // tiles.threads))
