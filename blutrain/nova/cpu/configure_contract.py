"""Schedule of a contract kernel on a CPU: register tile, blocks, tasks, in closed form from the machine's facts.

The model counts cycles. A register tile of `mr` rows by `nv` vectors costs, per step of k, the larger of its multiply-adds and its loads,
plus the part of the packed panels' traffic that out-of-order execution does not hide. Blocks follow the caches (Goto and van de Geijn,
"Anatomy of High-Performance Matrix Multiplication", 2008): a panel of the column factor stays near L1, a block of row panels in L2. Tasks
are cut along the axis whose factor is larger, so that the smaller one is packed once and shared.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

from blutrain.nova.cpu.contract_form import Contract
from blutrain.nova.kernel import ITEM_BYTES
from blutrain.nova.target import CpuFacts

K_UNROLL = 4  # steps of k per loop iteration: packed panels are padded with zeros to a multiple of it
LOADS_PER_CYCLE = 2  # vector or broadcast loads; every core of the last ten years does two or more
FMA_LATENCY = 4  # cycles on Skylake to Zen 4 and Neoverse: fewer accumulators than latency * rate leave the units idle
STREAMED = 1 / 32  # cycles per byte of a row panel, which comes from L2 (32 bytes a cycle) or L3 for every tile
REUSED = 1 / 128  # cycles per byte of a column panel, which stays near L1 for all row panels
MAX_COLUMN_VECTORS = 8
TASKS_PER_THREAD = 8  # enough that a thread which the system interrupts does not hold up the others
TASK_CYCLES = 60_000  # 20 us: ten times a fork-join
K_BLOCK = (
    512  # longest k block of f32: a longer one evicts the panels it reuses, a shorter one revisits the sums more often
)


@dataclass(frozen=True)
class ContractSchedule:
    """How a contract kernel runs. The product is cut into tiles of `mr` rows x `nv` vectors of `lanes` columns.

    A task computes a grid cell of (batch, m_tasks, n_tasks), its k range cut `split` ways (partial sums added in order by a second phase).
    A factor with `share_*` is packed as a whole by a phase before; otherwise each task packs what it needs, `kc` steps of k at a time.
    """

    lanes: int
    mr: int
    nv: int
    kc: int
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
        """Elements from one k to the next in a row panel: `mr` rounded up to whole vectors, so that packing stores whole vectors."""
        return -(-self.mr // self.lanes) * self.lanes

    def to_config(self) -> dict:
        """As entries of `#nova.lowering_config`."""
        return dataclasses.asdict(self)

    @classmethod
    def from_config(cls, config: dict) -> ContractSchedule:
        return cls(**{field.name: config[field.name] for field in dataclasses.fields(cls)})


def configure(contract: Contract, facts: CpuFacts) -> ContractSchedule:
    """The schedule for one kernel; a pure function of shapes, dtype and facts."""
    extents = [contract.extent(axis) for axis in ("batch", "m", "n", "k")]
    return schedule(*extents, contract.dtype, facts)


def schedule(batch: int, m: int, n: int, k: int, dtype: str, facts: CpuFacts) -> ContractSchedule:
    """Schedule for `batch` products of (m x k) and (k x n) in `dtype` (f32 or f64)."""
    item = ITEM_BYTES[dtype]
    lanes = facts.vector_bytes // item
    mr, nv = register_tile(m, n, lanes, item, facts)
    panels_m, panels_n = max(1, -(-m // mr)), max(1, -(-n // (nv * lanes)))
    kc = k_block(k, lanes, item)
    work = batch * panels_m * panels_n * k * step_cycles(mr, nv, lanes, item, facts)
    wanted = 1 if facts.threads == 1 else min(facts.threads * TASKS_PER_THREAD, math.ceil(work / TASK_CYCLES))
    per_batch = -(-wanted // max(1, batch))
    m_tasks, n_tasks = cut(per_batch, panels_m, panels_n, m, n, facts.threads)
    split = split_k(per_batch, m_tasks * n_tasks, k, kc)
    row_bytes = batch * panels_m * mr * k * item
    column_bytes = batch * panels_n * nv * lanes * k * item
    limit = max(facts.l3_bytes, 4 * facts.l2_bytes)
    share_rows = n_tasks > 1 and row_bytes <= limit
    share_columns = m_tasks > 1 and column_bytes <= limit
    if not share_rows and m_tasks > 0:
        m_tasks = max(m_tasks, fit_l2(panels_m, mr, kc, lanes, item, facts)) if share_columns else m_tasks
    pack_tasks = min(facts.threads * 4, max(1, (row_bytes * share_rows + column_bytes * share_columns) // 65536))
    return ContractSchedule(lanes, mr, nv, kc, m_tasks, n_tasks, split, share_rows, share_columns, pack_tasks)


def step_cycles(mr: int, nv: int, lanes: int, item: int, facts: CpuFacts) -> float:
    """Modelled cycles of one step of k on a register tile."""
    row_bytes, column_bytes = -(-mr // lanes) * lanes * item, nv * lanes * item
    busy = max(mr * nv / facts.fma_per_cycle, (mr + nv) / LOADS_PER_CYCLE, FMA_LATENCY)
    return busy + row_bytes * STREAMED + column_bytes * REUSED


def register_tile(m: int, n: int, lanes: int, item: int, facts: CpuFacts) -> tuple[int, int]:
    """(mr, nv) with the fewest modelled cycles for the whole product: accumulators, one row of vectors and a broadcast fit the registers."""
    fits = [
        (mr, nv)
        for nv in range(1, MAX_COLUMN_VECTORS + 1)
        for mr in range(1, facts.num_vector_registers)
        if mr * nv + nv + 1 <= facts.num_vector_registers
    ]

    def cycles(tile: tuple[int, int]) -> tuple[float, int]:
        mr, nv = tile
        panels = max(1, -(-m // mr)) * max(1, -(-n // (nv * lanes)))
        return panels * step_cycles(mr, nv, lanes, item, facts), -mr * nv

    return min(fits, key=cycles)


def k_block(k: int, lanes: int, item: int) -> int:
    """Steps of k in one block: all of them up to K_BLOCK, else equal blocks; whole vectors and unrolled iterations."""
    longest = K_BLOCK * 4 // item
    blocks = max(1, -(-k // longest))
    each = -(-max(1, k) // blocks)
    step = max(lanes, K_UNROLL)
    return -(-each // step) * step


def cut(wanted: int, panels_m: int, panels_n: int, m: int, n: int, threads: int) -> tuple[int, int]:
    """Tasks along m and n. One axis if it has panels enough, the longer first: then the other factor is packed once for all tasks."""
    if wanted <= 1:
        return 1, 1
    along_m, along_n = min(wanted, panels_m), min(wanted, panels_n)
    enough = min(wanted, 2 * threads)
    if m >= n and along_m >= enough and balance(panels_m, along_m, threads) > 0.9:
        return along_m, 1
    if along_n >= enough and balance(panels_n, along_n, threads) > 0.9:
        return 1, along_n
    if along_m >= enough and balance(panels_m, along_m, threads) > 0.9:
        return along_m, 1
    grids = [(tm, tn) for tm in range(1, along_m + 1) for tn in range(1, along_n + 1) if tm * tn <= 2 * wanted]
    return max(grids, key=lambda g: (round(grid_balance(panels_m, panels_n, *g, threads), 2), -g[0] * g[1], g))


def balance(panels: int, tasks: int, threads: int) -> float:
    """Share of thread time that does work when `panels` are cut into `tasks` of nearly equal size, claimed in order."""
    rounds = -(-tasks // threads)
    return panels / (threads * -(-rounds * panels // tasks))


def grid_balance(panels_m: int, panels_n: int, m_tasks: int, n_tasks: int, threads: int) -> float:
    rounds = -(-(m_tasks * n_tasks) // threads)
    return panels_m * panels_n / (threads * rounds * -(-panels_m // m_tasks) * -(-panels_n // n_tasks))


def split_k(wanted: int, tasks: int, k: int, kc: int) -> int:
    """Cuts of k: only where the tiles alone leave threads idle and k has blocks to give away."""
    return max(1, min(wanted // (2 * tasks), k // (2 * kc))) if wanted > tasks else 1


def fit_l2(panels_m: int, mr: int, kc: int, lanes: int, item: int, facts: CpuFacts) -> int:
    """Fewest cuts of m whose block of packed rows takes half of L2."""
    pitch = -(-mr // lanes) * lanes
    return min(panels_m, -(-panels_m * pitch * kc * item // (facts.l2_bytes // 2)))
