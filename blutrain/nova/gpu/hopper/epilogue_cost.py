"""What an epilogue costs in cycles of one SM: instructions, special functions, and waits for memory."""

from __future__ import annotations

from blutrain.nova.gpu.hopper.pieces import fetched_loads, staged_stores
from blutrain.nova.gpu.hopper.tiles import Tiles
from blutrain.nova.kernel import ITEM_BYTES

# Fitted to measurements on an H200, in cycles.
WARP_CYCLES = 1.9  # of an instruction, where one warp of a scheduler is awake
SPECIAL_CYCLES = 8.0  # of a special function of a warp
CHUNK_CYCLES = 150.0  # barriers, addresses and waits of a chunk
LATENCY_CYCLES = 2000.0  # of a load behind the tiles that are on their way to the SM
FIXED_CYCLES = 500.0  # from the last product to the first result, and to the next tile
EPILOGUE_BYTES_PER_CYCLE = 19.0  # of results and operands of an SM where all are at it
DIRECT = 3.0  # times that, from registers where TMA could take them (bf16, 192 x 96: 62.5 us against 59.9)
# Of blocks that split k in a cluster, by clock marks in such kernels: what one sends to the others and then writes, and
# the meeting, the wait for the first sums and for the last results to be away.
CLUSTER_BYTES_PER_CYCLE, EXCHANGE_CYCLES = 24.0, 2200.0
MOVES_OF_PARTIALS = 0.3


def finish_cycles(tiles: Tiles) -> float:
    """From a tile's last product until its consumer may begin the next: the whole epilogue, of one consumer alone or of
    all that share the tile.
    """
    s, elements = tiles.schedule, tiles.num_accumulators
    if tiles.in_workspace:
        return elements * WARP_CYCLES * MOVES_OF_PARTIALS + FIXED_CYCLES
    if tiles.clustered:
        moved = s.tile_m * s.tile_n * (4 * (s.split - 1) + tiles.problem.written_bytes) / s.split
        return elements / s.split * _element_cycles(tiles) + moved / CLUSTER_BYTES_PER_CYCLE + EXCHANGE_CYCLES
    cycles = elements * _element_cycles(tiles) + tiles.num_chunks * CHUNK_CYCLES + FIXED_CYCLES
    moved = s.tile_m * s.tile_n * (tiles.problem.written_bytes + tiles.problem.read_bytes)
    cycles = max(cycles, moved / EPILOGUE_BYTES_PER_CYCLE * (1.0 if s.staging else DIRECT))
    waits = LATENCY_CYCLES * (_unfetched(tiles, "m") + _unfetched(tiles, "n") > 0)
    if _unfetched(tiles, "mn"):
        waits += LATENCY_CYCLES * tiles.num_chunks
    elif tiles.fetch_set_bytes:  # the first sets are there; later ones are asked for as sets become free
        rounds = tiles.num_chunks // s.fetch
        waits += (rounds - 1) * max(0.0, LATENCY_CYCLES - cycles / rounds)
    return cycles + waits


def _element_cycles(tiles: Tiles) -> float:
    """Of one element in each thread: warps of one scheduler take turns, and share the special function unit."""
    needed, warps = tiles.problem.traffic.operations, tiles.schedule.slots
    issued = needed.issued + _moves(tiles)
    return max(WARP_CYCLES * issued, warps * issued, warps * SPECIAL_CYCLES * needed.special)


def _moves(tiles: Tiles) -> float:
    """Instructions of an element that move it: its operands into registers, its results out."""
    contract, staged, fetched = tiles.problem.contract, staged_stores(tiles), fetched_loads(tiles)
    count = 0.1 * len(contract.reductions)
    for access in tiles.problem.traffic.matrices:
        count += (0.15 if ITEM_BYTES[access.dtype] == 2 else 0.5) if access in fetched else 0.75
    for store in contract.stores:
        count += (0.6 if ITEM_BYTES[store.access.dtype] == 4 else 0.2) if store in staged else 1.0
    return count


def _unfetched(tiles: Tiles, axes: str) -> int:
    """Operands that the epilogue loads itself and waits for."""
    traffic, fetched = tiles.problem.traffic, fetched_loads(tiles)
    return sum(traffic.axes[access] == axes and access not in fetched for access in traffic.loads)
