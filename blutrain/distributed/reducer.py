"""The reducer: averages the gradients of a model over all ranks during backward, bucket by bucket.

Eager, the engine calls `ready(leaf)` as each gradient is there: it is copied into its bucket, of which `leaf.grad` then
is a view, and a bucket that is full starts its all-reduce while backward goes on; `finish()` waits for all. Buckets
start in the order of their numbers on every rank, whatever the order of the gradients. Where nova records the backward
it calls `reduce(grads)` instead, which says the same in one primitive per bucket.
"""

from __future__ import annotations

import itertools
from collections.abc import Container, Sequence
from typing import Any

import numpy

from ..autograd.hooks import reducing, sharing
from ..errors import message
from ..nn.module import Module
from ..tensor import dispatch
from ..tensor.tensor import Tensor, storage_epoch, structure_epoch
from .bucket_primitives import REDUCE_BUCKET, reducers
from .buckets import Bucket, plan_buckets
from .collectives import all_reduce
from .group import ProcessGroup
from .shards import Shard, find_shards, gather

_numbers = itertools.count()


class Reducer:
    """For the parameters (name, tensor) that are given; `number`: the same on all ranks.

    shards: of each bucket every rank gets the averages of one part only, for which it does the optimizer's work (see
    shards.py); the rest of `leaf.grad` then means nothing. `is_open`: gradients are sums of this rank, to be averaged.
    `is_syncing`: a backward now averages gradients.
    """

    def __init__(
        self,
        named_parameters: Sequence[tuple[str, Tensor]],
        group: ProcessGroup,
        cap_bytes: int,
        find_unused: bool = False,
        shards: bool = False,
    ):
        self.group, self.find_unused = group, find_unused
        self.is_sharding, self.is_open = shards, False
        self.number = next(_numbers)  # all ranks make their reducers in one order
        reducers[self.number] = self
        self.is_syncing = True
        reducing.add(self)
        self.buckets = plan_buckets(named_parameters, cap_bytes)
        for bucket in self.buckets if self.is_sharding else ():
            bucket.divide(group.size)
        for bucket in self.buckets:
            bucket.blocks = group.backend(bucket.device).few_blocks
        self._place = {id(m.parameter): (b, i) for b in self.buckets for i, m in enumerate(b.members)}
        self._shards = find_shards(self) if self.is_sharding else {}
        if self.is_sharding:
            sharing.add(self)
        self._flat: dict[int, Any] = {}  # bucket -> its array
        self._parts: dict[int, list[Any]] = {}  # bucket -> the members' parts of it
        self._views: dict[int, list[Tensor]] = {}  # bucket -> the members' gradients, which are views of them
        self._under_way: list[tuple[Any, Any]] = []  # of the first buckets, in order
        self.before: list[Reducer] = []  # those that start all they have first, in this backward
        self.is_over = True  # nothing is left to start
        self._epochs = 0, 0
        self.reset()

    def require_planned(self, model: Module) -> None:
        """Errors: RuntimeError for a parameter that is trained, or of another type, only since the plan was made: its
        gradients would not be averaged.
        """
        epochs = structure_epoch.value, storage_epoch.value
        if epochs == self._epochs:
            return
        for name, p in model.named_parameters():
            bucket, _ = self._place.get(id(p), (None, 0))
            if p.requires_grad and (bucket is None or (bucket.dtype, bucket.device) != (p.dtype, p.device)):
                expected = "no gradient of it" if bucket is None else f"{bucket.dtype.short} on {bucket.device}"
                rule, help = f"{name} has changed since the model was wrapped", "wrap it again: DataParallel(model)"
                got = f"{p.dtype.short} on {p.device}"
                raise RuntimeError(message("DataParallel", rule, expected=expected, got=got, help=help))
        self._epochs = epochs

    def shard_of(self, leaf: Tensor) -> Shard | None:
        """The part of a parameter that this rank updates; None: all of it."""
        return self._shards.get(id(leaf))

    def mine(self, flat: Any) -> Any:
        """This rank's part of a bucket's array."""
        part = flat.shape[0] // self.group.size
        return flat[self.group.rank * part : (self.group.rank + 1) * part]

    def total(self, x: Tensor, op: str) -> Tensor:
        """The "sum" or "max" over the ranks."""
        return all_reduce(x, op)

    def gather(self, parts: dict[int, Tensor | None]) -> list[tuple[Tensor, Tensor]]:
        """(parameter, new value) from the ranks' new parts: see shards.py."""
        return gather(self, parts)

    def reset(self) -> None:
        """A backward is over, as it should be or by an exception: what it started would still write to gradients."""
        self._join()
        self.before, self.is_over = [], True
        self._missing = {b.number: {id(m.parameter) for m in b.members} for b in self.buckets}
        self._began = False

    # ---------------------------------------------------------------- eager

    def ready(self, leaf: Tensor) -> None:
        """The gradient of `leaf` is in leaf.grad; None: this rank adds nothing to it."""
        bucket, index = self._place[id(leaf)]
        self._began = True
        missing = self._missing[bucket.number]
        with bucket.device.activate():
            self._fill(bucket, index, leaf)
            missing.discard(id(leaf))
            if not missing:
                self._start_full()
            elif self._under_way:
                self.group.progress()

    def finish(self) -> None:
        """Backward is over: all gradients are averages over the ranks from here on.

        Errors: RuntimeError where a parameter got no gradient, unless the reducer finds unused ones.
        """
        if not self._began:
            return
        unused = [m for b in self.buckets for m in b.members if id(m.parameter) in self._missing[b.number]]
        if unused and not self.find_unused:
            raise RuntimeError(unused_message([m.name for m in unused]))
        self.before = []  # whoever took part is done
        self._start_full()
        empty = {id(m.parameter) for m in unused if m.parameter.grad is None}
        for member in unused:
            self.ready(member.parameter)
        self._join()
        self.is_open = False
        if self.find_unused:
            self._drop_unused(empty)
        self.reset()

    def _join(self) -> None:
        under_way, self._under_way = self._under_way, []
        for entry, request in under_way:
            self.group.join(entry, request)

    def add_nothing(self) -> None:
        """A backward of zero for every parameter."""
        self.open()
        for bucket in self.buckets:
            for member in bucket.members:
                self.ready(member.parameter)
        self.finish()

    # ---------------------------------------------------------------- averages in parts

    def open(self) -> None:
        """Before a backward adds to gradients of which each rank has the averages of one part: they become sums, whose
        averages over the ranks they are.
        """
        if not self.is_sharding or self.is_open:
            return
        self.is_open = True
        for bucket in self.buckets:
            for member in bucket.members:
                if member.parameter._grad is not None:
                    self._spread(member.parameter, member.parameter._grad)

    def _spread(self, leaf: Tensor, grad: Tensor) -> None:
        """This rank's part times the number of ranks, zeros elsewhere."""
        shard, array = self._shards[id(leaf)], grad._buffer()
        with grad.device.activate():
            whole = grad.device.xp.zeros(array.size, array.dtype)
            whole[shard.start : shard.stop] = array.reshape(-1)[shard.start : shard.stop] * self.group.size
            array[...] = whole.reshape(array.shape)
        grad._bump_version()

    def has_gradients(self, pending: Container[int]) -> bool:
        """Whether a parameter has one, or its id is among `pending`."""
        members = (m.parameter for b in self.buckets for m in b.members)
        return any(p._grad is not None or id(p) in pending for p in members)

    # ---------------------------------------------------------------- buckets in eager mode

    def _fill(self, bucket: Bucket, index: int, leaf: Tensor) -> None:
        """Bring one gradient into the bucket: leaf.grad becomes a view of it. A missing one counts as zero."""
        views = self._views.get(bucket.number) or self._view(bucket)
        grad, part = leaf.grad, self._parts[bucket.number][index]
        if grad is not None and grad._pending is not None:
            grad._buffer()  # what is recorded adds to it, in place perhaps
        if grad is views[index]:
            return
        if grad is None:
            part[...] = 0
        else:
            _copy(part, grad._buffer())
        views[index]._bump_version()
        views[index] = leaf.grad = Tensor._wrap(part, bucket.device, leaf._aval)

    def _view(self, bucket: Bucket) -> list[Tensor]:
        """The gradients of a bucket as tensors that share its memory, which is made at the first use."""
        flat = self._flat[bucket.number] = bucket.device.xp.zeros(bucket.size, bucket.dtype.numpy)
        parts = self._parts[bucket.number] = [m.view(flat) for m in bucket.members]
        views = self._views[bucket.number] = [Tensor._wrap(part, bucket.device) for part in parts]
        return views

    def _start_full(self) -> None:
        """Start what can start; let MPI work on what is under way."""
        if any(not reducer.is_over for reducer in self.before):
            return
        while len(self._under_way) < len(self.buckets) and not self._missing[len(self._under_way)]:
            bucket = self.buckets[len(self._under_way)]
            with bucket.device.activate():
                self._under_way.append(self.start(bucket, self._flat[bucket.number]))
        self.is_over = len(self._under_way) == len(self.buckets)
        self.group.progress()

    def start(self, bucket: Bucket, flat: Any) -> tuple[Any, Any]:
        """Enter the all-reduce of a bucket whose gradients lie in `flat`."""
        name = self._name("gradients", bucket)
        if self.is_sharding:
            return self.group.start(bucket.device, name, "reduce_scatter", flat, self.mine(flat), "mean", bucket.blocks)
        return self.group.start(bucket.device, name, "all_reduce", flat, flat, "mean", bucket.blocks)

    def start_gather(self, bucket: Bucket, flat: Any) -> tuple[Any, Any]:
        """Enter the all-gather of parameters, of which this rank's part lies in `flat`."""
        name = self._name("parameters", bucket)
        return self.group.start(bucket.device, name, "all_gather", self.mine(flat), flat, bucket.blocks)

    def _name(self, what: str, bucket: Bucket) -> str:
        model = f" of model {self.number + 1}" if self.number else ""  # where there is one it needs no number
        return f"{what}{model}, bucket {bucket.number} of {len(self.buckets)} ({bucket.dtype.short}[{bucket.size}])"

    def _drop_unused(self, empty: set[int]) -> None:
        """Parameters that have a gradient on no rank have none, as in a single process. empty: those of this rank."""
        members = [m for b in self.buckets for m in b.members]
        device = self.buckets[0].device
        with device.activate():
            used = device.xp.array([id(m.parameter) not in empty for m in members], "uint8")
            self.group.run(device, "which parameters are used", "all_reduce", used, used, "max")
        for member, flag in zip(members, used.tolist(), strict=True):
            if not flag:
                member.parameter.grad = None

    # ---------------------------------------------------------------- recorded by nova

    def reduce(self, grads: dict[int, Tensor]) -> dict[int, Tensor]:
        """The averages of gradients (by id of the parameter), as primitives: one per bucket, in order.

        Errors: RuntimeError where a parameter has no gradient.
        """
        missing = [m.name for b in self.buckets for m in b.members if id(m.parameter) not in grads]
        if missing:
            raise RuntimeError(unused_message(missing))
        result = {}
        for bucket in self.buckets:
            operands = [grads[id(m.parameter)] for m in bucket.members]
            attrs = {
                "reducer": self.number,
                "bucket": bucket.number,
                "blocks": bucket.blocks,
                "offsets": tuple(m.offset for m in bucket.members),
            }
            reduced = dispatch.apply(REDUCE_BUCKET, *operands, size=bucket.size, **attrs)
            result.update({id(m.parameter): r for m, r in zip(bucket.members, reduced, strict=True)})
        return result


def _copy(target: Any, source: Any) -> None:
    """target[...] = source, on a GPU without a kernel of CuPy's: that costs the host four times as much."""
    if isinstance(target, numpy.ndarray) or not source.flags.c_contiguous:
        target[...] = source
    else:
        target.data.copy_from_device_async(source.data, target.nbytes)


def unused_message(names: list[str]) -> str:
    """The text of the error where parameters got no gradient."""
    shown = ", ".join(names[:10]) + (f" and {len(names) - 10} more" if len(names) > 10 else "")
    return message(
        "DataParallel",
        "parameters got no gradient in this backward, so their average over the ranks is not known",
        expected="every parameter takes part in the loss",
        got=shown,
        help="find_unused_parameters=True, or requires_grad_(False) before the model is wrapped",
    )
