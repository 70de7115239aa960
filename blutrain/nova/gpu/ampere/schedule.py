"""How a contract kernel runs: the entries of its `#nova.lowering_config`."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Schedule:
    """workgroup: rows and columns of a block's tile; subgroup: of a warp's; reduction: steps of k in one stage.

    stages: tiles in shared memory, all but one of them on their way; split: ranges of k, whose sums a second phase
    adds in order; group: tiles along m that run together, so that they share their columns in the L2. mma_kind: the
    instruction; row_run, column_run: subtiles that interleave (see `layout`).
    """

    workgroup: tuple[int, int]
    subgroup: tuple[int, int]
    reduction: int
    stages: int
    split: int
    group: int
    mma_kind: str
    row_run: int
    column_run: int

    def to_config(self) -> dict[str, Any]:
        return {"family": "ampere", **dataclasses.asdict(self)}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Schedule:
        return cls(**{field.name: config[field.name] for field in dataclasses.fields(cls)})

    def __str__(self) -> str:
        tile = f"{self.workgroup[0]}x{self.workgroup[1]}x{self.reduction}"
        parts = [self.mma_kind, tile, f"warps {self.subgroup[0]}x{self.subgroup[1]}", f"{self.stages} stages"]
        return ", ".join([*parts, *([f"split {self.split}"] if self.split > 1 else [])])
