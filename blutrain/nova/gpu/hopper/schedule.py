"""The schedule of a contraction on sm_90a: what `#nova.lowering_config` holds for it."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from blutrain.nova.gpu.hopper.problem import Problem
from blutrain.nova.kernel import Unsupported

STAGE_ROW_BYTES = 128  # one k-tile: the widest swizzle pattern
CONSUMER_ROWS = 64  # rows of one wgmma


@dataclass(frozen=True)
class Schedule:
    """How a product is cut.

    tile_m, tile_n: of one tile. stages: of the ring. consumers: warpgroups that multiply; `pingpong`: each has tiles
    of its own, in turns, else they share one. group_m: row tiles that blocks walk before the next column tile.
    split: ranges of k, summed in order by a second phase (`split_in` "workspace") or by the blocks of a cluster
    ("cluster"). repack: the factor ("m" or "n") that a first phase copies k-major, "" for none. staging: buffers of
    each consumer between accumulators and TMA stores (one suffices where operands are fetched); 0: from registers. multicast: the
    factor ("m" or "n") whose tiles the two blocks of a cluster share, each copying a half to both; "" for none.
    fetch: buffers of each consumer for operands of the epilogue, which TMA brings before it asks; 0: it loads them
    itself. chunk: bytes of a row of the chunks in which the epilogue works.
    """

    tile_m: int
    tile_n: int
    stages: int
    consumers: int = 2
    pingpong: bool = False
    group_m: int = 8
    split: int = 1
    split_in: str = "workspace"
    repack: str = ""
    staging: int = 2
    multicast: str = ""
    fetch: int = 0
    chunk: int = 128

    def to_config(self) -> dict[str, Any]:
        return {"family": "sm_90a", **dataclasses.asdict(self)}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Schedule:
        return cls(**{field.name: config[field.name] for field in dataclasses.fields(cls) if field.name in config})

    @property
    def in_cluster(self) -> bool:
        """Do the blocks of a cluster split k."""
        return self.split > 1 and self.split_in == "cluster"

    @property
    def slots(self) -> int:
        """Consumers that share a tile."""
        return 1 if self.pingpong else self.consumers


def register_axis(problem: Problem, repack: str) -> str:
    """The axis whose factor passes through registers, "" for the shared form. Raises `Unsupported` where neither
    form takes the layouts.
    """
    if problem.dtype != "tf32":
        return ""
    along_own_axis = [s.axis for s in (problem.rows, problem.columns) if not s.k_major and s.axis != repack]
    if len(along_own_axis) > 1:
        raise Unsupported("hopper: both TF32 factors run along their own axis; one must be repacked")
    return along_own_axis[0] if along_own_axis else ""
