"""Every schedule that a contraction of a GPU family can have, as far as its generator allows: for configurator.py.

The number of stages is the largest that fits; all else is enumerated: tiles, warps or warpgroups, how k is split and where
the parts are summed, which factor is copied or shared, and the order of tiles. A split leaves at least MIN_STEPS steps to
each range and makes at most MAX_WAVES waves of tiles.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator
from typing import Any

from blutrain.nova.gpu.ampere import configure as ampere
from blutrain.nova.gpu.ampere.instruction import LANES
from blutrain.nova.gpu.ampere.problem import read_problem as read_for_ampere
from blutrain.nova.gpu.ampere.schedule import Schedule as AmpereSchedule
from blutrain.nova.gpu.ampere.tiles import Tiles as AmpereTiles
from blutrain.nova.gpu.hopper import configure as hopper
from blutrain.nova.gpu.hopper.problem import Problem, read_problem
from blutrain.nova.gpu.hopper.schedule import Schedule
from blutrain.nova.kernel import Kernel, Unsupported
from blutrain.nova.target_gpu import GpuFacts

MIN_STEPS, MAX_WAVES, MAX_SPLIT = 4, 4, 16
MAX_STAGES = 8
GROUPS = (8, 1, 2, 32)  # row tiles that are walked before the next column tile

Candidate = tuple[dict[str, Any], float]  # entries of #nova.lowering_config, predicted microseconds


def space(family: str, kernel: Kernel, facts: GpuFacts) -> list[Candidate]:
    """All legal schedules of a family ("hopper", "ampere"), the configurator's pick first, then by predicted time."""
    candidates = _hopper(read_problem(kernel), facts) if family == "hopper" else _ampere(read_for_ampere(kernel), facts)
    found = {str(config): (config, us) for config, us in candidates}
    first = pick(family, kernel, facts)
    found.pop(str(first[0]), None)
    return [first, *sorted(found.values(), key=lambda candidate: candidate[1])]


def pick(family: str, kernel: Kernel, facts: GpuFacts) -> Candidate:
    """What the configurator picks."""
    if family == "hopper":
        problem = read_problem(kernel)
        schedule = hopper.configure(problem, facts)
        return schedule.to_config(), hopper.predict_us(hopper.tiles_of(problem, schedule, facts), facts)
    problem = read_for_ampere(kernel)
    schedule = ampere.configure(problem, facts)
    return schedule.to_config(), ampere.predict_us(problem, schedule, facts)


def _hopper(problem: Problem, facts: GpuFacts) -> Iterator[Candidate]:
    own = [side.axis for side in (problem.rows, problem.columns) if not side.k_major]
    copies = ["", *own] if problem.dtype == "tf32" else [""]
    sides = range(64, 257, 32)
    warpgroups = ((2, False), (2, True), (3, False))
    for tile_m, tile_n, (consumers, pingpong), copied in itertools.product(sides, sides, warpgroups, copies):
        rows, columns = math.ceil(problem.m / tile_m), math.ceil(problem.n / tile_n)
        steps = math.ceil(problem.k * problem.item / 128)
        for split, where in _splits(problem.batch * rows * columns, steps, facts, clusters=not pingpong):
            for shared, group in itertools.product(("", "m", "n"), dict.fromkeys(min(g, rows) for g in GROUPS)):
                base = Schedule(tile_m, tile_n, 2, consumers, pingpong, group, split, where, copied, 2, shared)
                yield from _deepest(base, problem, facts)


def _deepest(base: Schedule, problem: Problem, facts: GpuFacts) -> Iterator[Candidate]:
    """The schedule with the most stages that it can have; with one buffer for results where two leave too few."""
    for staging, stages in itertools.product((2, 1), range(MAX_STAGES, 2, -1)):
        schedule = dataclasses.replace(base, stages=stages, staging=staging)
        try:
            tiles = hopper.tiles_of(problem, schedule, facts)
            if not tiles.problem_with_schedule():
                yield schedule.to_config(), hopper.predict_us(tiles, facts)
                return
        except Unsupported:
            return


def _splits(tiles: int, steps: int, facts: GpuFacts, clusters: bool) -> Iterator[tuple[int, str]]:
    yield 1, "workspace"
    for split in range(2, min(MAX_SPLIT, steps // MIN_STEPS, MAX_WAVES * facts.sms // tiles) + 1):
        yield split, "workspace"
        if clusters and facts.clusters(split):
            yield split, "cluster"


def _ampere(problem: Any, facts: GpuFacts) -> Iterator[Candidate]:
    blocks, warps = (32, 64, 128, 256), (16, 32, 64)
    for block, warp in itertools.product(itertools.product(blocks, blocks), itertools.product(warps, warps)):
        num_warps = math.prod(block) // math.prod(warp)
        if any(b % w for b, w in zip(block, warp, strict=True)) or not 1 <= num_warps <= 8:
            continue
        if math.prod(warp) // LANES > ampere.max_sums(problem):
            continue
        runs = [ampere.run_of(problem, problem.sides[axis], size) for axis, size in zip("mn", warp, strict=True)]
        rows = math.ceil(problem.extent["m"] / block[0])
        tiles = problem.extent["batch"] * rows * math.ceil(problem.extent["n"] / block[1])
        for step in sorted({16, 32, *(step for step, _ in ampere.steps_of(problem))}):
            stages = _stages(problem, block, warp, step, runs, facts)
            steps = math.ceil(problem.extent["k"] / step)
            for split, _ in _splits(tiles, steps, facts, clusters=False) if stages else ():
                for group in sorted({min(g, rows) for g in GROUPS}):
                    name = problem.instruction.name
                    schedule = AmpereSchedule(block, warp, step, stages, split, group, name, *runs)
                    yield schedule.to_config(), ampere.predict_us(problem, schedule, facts)


def _stages(problem: Any, block: tuple, warp: tuple, step: int, runs: list[int], facts: GpuFacts) -> int:
    """The most stages that fit, 0 where two do not."""
    for stages in range(MAX_STAGES, 1, -1):
        schedule = AmpereSchedule(block, warp, step, stages, 1, 1, problem.instruction.name, *runs)
        if AmpereTiles(problem, schedule).shared_bytes <= facts.shared_bytes_per_block:
            return stages
    return 0
