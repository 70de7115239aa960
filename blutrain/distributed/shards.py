"""The part of the parameters that a rank updates where the ranks share the optimizer's work (ZeRO-1).

A bucket's vector is cut into as many equal parts as there are ranks, wherever parameters begin and end: a rank gets the
averages of its part (reduce_scatter), keeps the moments of the elements in it, updates them, and gives them to the
others (all_gather). So an optimizer meets at most two parameters a bucket of which it updates a part only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ..tensor import dispatch
from ..tensor.tensor import Tensor
from .bucket_primitives import GATHER_BUCKET
from .buckets import Bucket
from .collectives import all_reduce

if TYPE_CHECKING:
    from .reducer import Reducer


class Shard(NamedTuple):
    """Elements start <= i < stop of a parameter, flattened; in which bucket, at which element of it the first lies."""

    reducer: Reducer
    bucket: int
    start: int
    stop: int
    offset: int

    @property
    def size(self) -> int:
        return self.stop - self.start

    def part(self, x: Tensor) -> Tensor:
        """This part of a tensor like the parameter, as a vector (a view where x is contiguous)."""
        return x.reshape(-1)[self.start : self.stop]

    def whole(self, parameter: Tensor, part: Tensor) -> Tensor:
        """The tensor like the parameter that all ranks have parts of (an optimizer's state): every rank calls it.

        Bit for bit: bytes are added to zeros.
        """
        xp = part.device.xp
        with part.device.activate():
            array = xp.zeros(parameter.numel(), part.dtype.numpy)
            array[self.start : self.stop] = part._buffer()
            raw = all_reduce(Tensor._wrap(array.view("uint8"), part.device))
            return Tensor._wrap(raw._buffer().view(part.dtype.numpy).reshape(parameter.shape), part.device)


def find_shards(reducer: Reducer) -> dict[int, Shard]:
    """The shard of every parameter (by id), of size 0 where another rank has all of it."""
    rank, size = reducer.group.rank, reducer.group.size
    found = {}
    for bucket in reducer.buckets:
        begin, end = bucket.size // size * rank, bucket.size // size * (rank + 1)
        for member in bucket.members:
            start = min(max(begin - member.offset, 0), member.size)
            stop = max(start, min(end - member.offset, member.size))
            found[id(member.parameter)] = Shard(reducer, bucket.number, start, stop, member.offset + start)
    return found


def gather(reducer: Reducer, parts: dict[int, Tensor | None]) -> list[tuple[Tensor, Tensor]]:
    """(parameter, its new value) for the buckets of the parameters (by id) whose new parts are given (None: nothing of it
    is this rank's); what is not among `parts` stays as it is.
    """
    result = []
    for bucket in reducer.buckets:
        if any(id(m.parameter) in parts for m in bucket.members):
            values = _gather(reducer, bucket, parts)
            result += zip((m.parameter for m in bucket.members), values, strict=True)
    return result


def _gather(reducer: Reducer, bucket: Bucket, parts: dict[int, Tensor | None]) -> tuple[Tensor, ...]:
    operands, offsets = [], []
    for member in bucket.members:
        shard = reducer.shard_of(member.parameter)
        if shard.size:
            part = parts.get(id(member.parameter))
            operands.append(shard.part(member.parameter.detach()) if part is None else part)
            offsets.append(shard.offset)
    if not operands:  # nothing but a gap is this rank's: something has to stand there
        operands.append(bucket.members[0].parameter.detach().reshape(-1)[:1])
        offsets.append(bucket.size // reducer.group.size * reducer.group.rank)
    return dispatch.apply(
        GATHER_BUCKET,
        *operands,
        reducer=reducer.number,
        bucket=bucket.number,
        blocks=bucket.blocks,
        offsets=tuple(offsets),
        size=bucket.size,
        results=tuple(m.offset for m in bucket.members),
        shapes=tuple(m.parameter.shape for m in bucket.members),
    )
