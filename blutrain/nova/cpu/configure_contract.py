"""Schedule of a contract kernel on a CPU: register tile, blocks, tasks, in closed form from the machine's facts.

The model counts cycles. A register tile of `mr` rows by `nv` vectors costs, per step of k, the larger of its
multiply-adds and its loads, plus the part of the panels' traffic that out-of-order execution does not hide. Blocks
follow the caches (Goto and van de Geijn, "Anatomy of High-Performance Matrix Multiplication", 2008): a panel of the
column factor stays near L1, a block of row panels in L2. Tasks are cut along the longer axis, so that the smaller
factor is packed once and shared.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

from blutrain.nova.contract.form import Contract
from blutrain.nova.kernel import ITEM_BYTES
from blutrain.nova.target import CpuFacts

K_UNROLL = 4  # steps of k per loop iteration: packed panels are padded with zeros to a multiple of it
LOADS_PER_CYCLE = 2  # vector or broadcast loads; every core of the last ten years does two or more
FMA_LATENCY = 4  # cycles, Skylake to Zen 4 and Neoverse: fewer accumulators than latency * rate leave the units idle
STREAMED = 1 / 32  # cycles per byte of a row panel, which comes from L2 (32 bytes a cycle) or L3 for every tile
REUSED = 1 / 128  # cycles per byte of a column panel, which stays near L1 for all row panels
MAX_COLUMN_VECTORS = 8
MAX_K_BLOCK = 1024  # a longer block gains nothing: sums are revisited every 1024 steps at the cost of one
TASKS_PER_THREAD = 8  # enough that a thread which the system interrupts does not hold up the others
TASK_CYCLES = 60_000  # 20 us: ten times a fork-join
FAIR = 0.9  # share of thread time at work from which one axis alone is cut
PACK_TASK_BYTES = 64 << 10


@dataclass(frozen=True)
class ContractSchedule:
    """How a contract kernel runs. The product is cut into tiles of `mr` rows x `nv` vectors of `lanes` columns.

    A task computes one cell of the grid batch x m_tasks x n_tasks, over one of `split` ranges of k (the partial sums
    of the ranges are added in order by a later phase). A factor with `share_*` is packed as a whole by a phase
    before; otherwise each task packs what it needs, `kc` steps of k and `group` column panels at a time.
    """

    lanes: int
    mr: int
    nv: int
    kc: int
    group: int
    m_tasks: int
    n_tasks: int
    split: int
    share_rows: bool
    share_columns: bool
    pack_tasks: int

    @property
    def nr(self) -> int:
        return self.nv * self.lanes

    @property
    def row_pitch(self) -> int:
        """Elements from one k to the next in a row panel.

        `mr` in whole vectors, so that packing stores whole vectors.
        """
        return round_up(self.mr, self.lanes)

    def to_config(self) -> dict[str, int | bool]:
        """As entries of `#nova.lowering_config`."""
        return dataclasses.asdict(self)

    @classmethod
    def from_config(cls, config: dict) -> ContractSchedule:
        return cls(**{field.name: config[field.name] for field in dataclasses.fields(cls)})


def round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


def configure(contract: Contract, facts: CpuFacts) -> ContractSchedule:
    """The schedule for one kernel; a pure function of shapes, dtype and facts."""
    batch, m, n, k = (contract.extent(axis) for axis in ("batch", "m", "n", "k"))
    return schedule(batch, m, n, k, contract.dtype, facts)


def schedule(batch: int, m: int, n: int, k: int, dtype: str, facts: CpuFacts) -> ContractSchedule:
    """Schedule for `batch` products of (m x k) and (k x n) in `dtype` (f32 or f64)."""
    item = ITEM_BYTES[dtype]
    lanes = facts.vector_bytes // item
    mr, nv = register_tile(m, n, lanes, item, facts)
    panels = max(1, -(-m // mr)), max(1, -(-n // (nv * lanes)))
    kc = k_block(k, nv * lanes, lanes, item, facts)
    work = batch * panels[0] * panels[1] * k * step_cycles(mr, nv, lanes, item, facts)
    wanted = wanted_tasks(batch, work, facts.threads)
    m_tasks, n_tasks, split = cut(wanted, *panels, m >= n, k // kc, facts.threads)
    row_bytes, column_bytes = batch * panels[0] * mr * k * item, batch * panels[1] * nv * lanes * k * item
    room = max(facts.l3_bytes, 4 * facts.l2_bytes)
    if n_tasks == split == 1 and column_bytes <= room:
        m_tasks = max(m_tasks, row_blocks(panels[0], round_up(mr, lanes) * kc * item, facts))
    elif m_tasks > 1 and column_bytes > room:
        m_tasks = min(m_tasks, 2 * facts.threads)  # every task packs the column factor anew
    share_rows, share_columns = n_tasks > 1 and row_bytes <= room, m_tasks > 1 and column_bytes <= room
    shared_bytes = row_bytes * share_rows + column_bytes * share_columns
    pack_tasks = max(1, min(4 * facts.threads, shared_bytes // PACK_TASK_BYTES))
    group = max(1, facts.l2_bytes // 4 // (nv * lanes * kc * item))
    return ContractSchedule(lanes, mr, nv, kc, group, m_tasks, n_tasks, split, share_rows, share_columns, pack_tasks)


def step_cycles(mr: int, nv: int, lanes: int, item: int, facts: CpuFacts) -> float:
    """Modelled cycles of one step of k on a register tile."""
    busy = max(mr * nv / facts.fma_per_cycle, (mr + nv) / LOADS_PER_CYCLE, FMA_LATENCY)
    return busy + round_up(mr, lanes) * item * STREAMED + nv * lanes * item * REUSED


def register_tile(m: int, n: int, lanes: int, item: int, facts: CpuFacts) -> tuple[int, int]:
    """(mr, nv) with the fewest modelled cycles for all tiles, edges counted in full.

    Accumulators, one row of column vectors and some broadcasts in flight must fit the registers: with one register for
    broadcasts (14 x 32 of AVX-512) LLVM's scheduler spills an accumulator in every iteration, measured 3 % slower.
    """
    registers = facts.num_vector_registers * 7 // 8
    fits = [
        (mr, nv) for nv in range(1, MAX_COLUMN_VECTORS + 1) for mr in range(1, registers) if mr * nv + nv <= registers
    ]

    def cycles(tile: tuple[int, int]) -> tuple[float, int]:
        mr, nv = tile
        tiles = max(1, -(-m // mr)) * max(1, -(-n // (nv * lanes)))
        return tiles * step_cycles(mr, nv, lanes, item, facts), -mr * nv

    return min(fits, key=cycles)


def k_block(k: int, nr: int, lanes: int, item: int, facts: CpuFacts) -> int:
    """Steps of k in one block: equal blocks whose column panel takes an eighth of L2 at most."""
    step = max(lanes, K_UNROLL)
    longest = min(MAX_K_BLOCK, max(step, facts.l2_bytes // 8 // (nr * item)))
    blocks = max(1, -(-k // longest))
    return round_up(-(-max(1, k) // blocks), step)


def wanted_tasks(batch: int, cycles: float, threads: int) -> int:
    """Tasks into which one batch is cut.

    None of them short, and only where the batches alone do not feed the threads.
    """
    if threads == 1 or batch >= 2 * threads:
        return 1
    tasks = min(threads * TASKS_PER_THREAD, math.ceil(cycles / TASK_CYCLES))
    return -(-tasks // max(1, batch))


def cut(
    wanted: int, panels_m: int, panels_n: int, m_is_longer: bool, blocks: int, threads: int
) -> tuple[int, int, int]:
    """Tasks along m, n and k.

    One axis where its panels share out fairly, the longer one first: the other factor is then packed once for all
    tasks. Otherwise a grid. k where the tiles are hardly more than the threads: then no factor is packed twice, or
    shared.
    """
    if wanted <= 1:
        return 1, 1, 1
    if panels_m * panels_n < TASKS_PER_THREAD * threads and blocks >= 4 * threads:
        return 1, 1, min(wanted, blocks // 2)
    along_m, along_n = min(wanted, panels_m), min(wanted, panels_n)
    axes = [(along_m, 1), (1, along_n)] if m_is_longer else [(1, along_n), (along_m, 1)]
    fair = [axis for axis in axes if balance(panels_m, panels_n, *axis, threads) >= FAIR]
    if fair:
        return *fair[0], 1
    grids = [(a, b) for a in range(1, along_m + 1) for b in range(1, along_n + 1) if a * b <= wanted]
    a, b = max(grids, key=lambda g: (round(balance(panels_m, panels_n, *g, threads), 2), -g[0] * g[1], g))
    return a, b, max(1, min(blocks // 2, 2 * threads // (a * b))) if a * b < threads else 1


def balance(panels_m: int, panels_n: int, m_tasks: int, n_tasks: int, threads: int) -> float:
    """Share of thread time at work when the tasks of a grid are claimed in order."""
    rounds = -(-(m_tasks * n_tasks) // threads)
    # Along one axis the sizes differ by one panel and alternate, so that those of a thread add up evenly.
    if n_tasks == 1:
        busiest = -(-rounds * panels_m // m_tasks) * panels_n
    elif m_tasks == 1:
        busiest = panels_m * -(-rounds * panels_n // n_tasks)
    else:
        busiest = rounds * -(-panels_m // m_tasks) * -(-panels_n // n_tasks)
    return panels_m * panels_n / (threads * busiest)


def row_blocks(panels_m: int, panel_bytes: int, facts: CpuFacts) -> int:
    """Fewest cuts of m whose block of packed rows takes half of L2."""
    return min(panels_m, -(-panels_m * panel_bytes // (facts.l2_bytes // 2)))
