"""The bucket plan: which gradients are reduced together, in which order, and where each lies in its bucket.

The same on every rank and for every executor (eager, nova's interpreter, compiled programs): a bucket is one flat
vector, each gradient begins at a multiple of 256 bytes, gaps are there but mean nothing. Buckets follow the order in
which backward makes gradients, which is the reverse of that in which modules define their parameters.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from ..tensor.tensor import Tensor

ALIGNMENT_BYTES = 256


@dataclass(frozen=True, eq=False)
class Member:
    """A parameter's gradient in its bucket, `offset` elements from the beginning."""

    name: str
    parameter: Tensor
    offset: int

    @property
    def size(self) -> int:
        return self.parameter.numel()

    def view(self, flat: Any) -> Any:
        """The gradient's part of the bucket's array, in its shape."""
        return flat[self.offset : self.offset + self.size].reshape(self.parameter.shape)


@dataclass(eq=False)
class Bucket:
    """Gradients of one dtype and device that are reduced by one collective. size: elements, gaps included. Where ranks
    share the optimizer's work, each has one of `ranks` equal parts of the vector, whatever parameters lie there. blocks: of
    a GPU that its collectives may take, each a multiprocessor; 0: as many as they like.
    """

    number: int
    dtype: Any
    device: Any
    members: list[Member] = field(default_factory=list)
    size: int = 0
    blocks: int = 0

    def add(self, name: str, parameter: Tensor) -> None:
        self.members.append(Member(name, parameter, self.size))
        step = max(1, ALIGNMENT_BYTES // self.dtype.itemsize)
        self.size += -(-parameter.numel() // step) * step

    def divide(self, ranks: int) -> None:
        """Make the size one that `ranks` aligned parts of equal size fill."""
        step = ranks * max(1, ALIGNMENT_BYTES // self.dtype.itemsize)
        self.size = -(-self.size // step) * step

    @property
    def bytes(self) -> int:
        return self.size * self.dtype.itemsize


def plan_buckets(named_parameters: Iterable[tuple[str, Tensor]], cap_bytes: int) -> list[Bucket]:
    """Buckets of at most `cap_bytes` (a larger gradient is alone in one), numbered in the order they are reduced in."""
    buckets: list[Bucket] = []
    open_buckets: dict[tuple, Bucket] = {}
    for name, parameter in reversed(list(named_parameters)):
        key = parameter.dtype, parameter.device
        bucket = open_buckets.get(key)
        if bucket is None or bucket.bytes + parameter.nbytes > cap_bytes:
            bucket = open_buckets[key] = Bucket(len(buckets), *key)
            buckets.append(bucket)
        bucket.add(name, parameter)
    return buckets
