"""DataParallel: one model on every rank, each on its part of the batch, gradients averaged during backward.

ddp = DataParallel(model)
loss = ddp(inputs, targets)
loss.backward()                          # or ddp.backward(loss, weight=number of tokens on this rank)
optimizer.step()
"""

from __future__ import annotations

import contextlib
import hashlib
import math
from collections.abc import Iterator
from itertools import zip_longest
from typing import Any

from ..autograd import no_grad
from ..autograd.hooks import set_reducer
from ..errors import message
from ..nn.module import Module
from ..tensor import dispatch
from ..tensor import generator as random
from ..tensor.creation import tensor
from ..tensor.dtype import float64
from ..tensor.ops.effect import assign
from ..tensor.tensor import Tensor
from .collectives import all_reduce, broadcast
from .current import init_process_group, require_equal
from .reducer import Reducer


class DataParallel(Module):
    """Wraps a model; calls go to it, `state_dict` and `load_state_dict` are its own (no prefix).

    Takes rank 0's parameters and buffers. bucket_cap_mb: mebibytes of gradients that are reduced together.
    find_unused_parameters: a parameter may be left out of the loss on some ranks (such steps run eagerly).
    shard_optimizer (ZeRO-1): each rank keeps the moments of, and updates, its part of the parameters; `grad` is complete
    in that part only, and the optimizer's state_dict is made by all ranks together. Errors: ValueError where the ranks'
    models, seeds or options differ, naming what on which rank.
    """

    def __init__(
        self,
        module: Module,
        bucket_cap_mb: float = 25.0,
        find_unused_parameters: bool = False,
        shard_optimizer: bool = False,
    ):
        super().__init__()
        if not isinstance(module, Module):
            raise TypeError(message("DataParallel", "not a model", expected="a Module", got=type(module).__name__))
        if not bucket_cap_mb > 0:
            raise ValueError(message("DataParallel", "bucket_cap_mb must be positive", got=repr(bucket_cap_mb)))
        self.module = module
        group = init_process_group()
        named = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
        if not named:
            raise ValueError(message("DataParallel", "no parameter requires a gradient"))
        options = {"bucket_cap_mb": bucket_cap_mb, "find_unused_parameters": find_unused_parameters}
        self._agree(group, {**options, "shard_optimizer": shard_optimizer})
        self._take_over(group)
        self._reducer = Reducer(named, group, int(bucket_cap_mb * 2**20), find_unused_parameters, shard_optimizer)
        for _, parameter in named:
            set_reducer(parameter, self._reducer)
        random.default_generator.stream = group.rank  # from here on ranks draw different numbers

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The model's result. Errors: RuntimeError where the model's parameters are not those that were wrapped."""
        self._reducer.require_planned(self.module)
        return super().__call__(*args, **kwargs)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The model's result."""
        return self.module(*args, **kwargs)

    # ---------------------------------------------------------------- gradients

    def backward(self, loss: Tensor | None, weight: float | Tensor | None = None) -> None:
        """loss.backward(), the gradients averaged over the ranks: with `weight` (how many tokens or samples the mean
        `loss` is of) each rank counts by its share, without all count the same.

        loss None: this rank has nothing to add (weight 0), and takes part in the average. Errors: ValueError for a
        weight that is negative, or zero on all ranks.
        """
        if weight is not None and not 0 <= float(weight) < math.inf:
            raise ValueError(message("DataParallel.backward", "a weight is a finite count", got=repr(weight)))
        if loss is None and weight:
            raise ValueError(message("DataParallel.backward", "a weight without a loss", got=repr(weight)))
        if dispatch.recorder is not None:
            dispatch.recorder.refuse_training()  # before the share is read
        if loss is None:
            self._share(0.0)
            self._add_nothing()
        elif weight is None:
            loss.backward()
        else:
            loss.backward(self._share(float(weight)).to(loss.dtype))

    def _share(self, weight: float) -> Tensor:
        """This rank's weight in units of the average weight, float64. On a GPU the host does not wait for it."""
        device = self._reducer.buckets[0].device
        total = all_reduce(tensor(weight, dtype=float64, device=device), "sum")
        if device.is_cpu and not total.item() > 0:
            raise ValueError(message("DataParallel.backward", "a weight must be positive", got="0 on all ranks"))
        return weight * self._reducer.group.size / total

    def _add_nothing(self) -> None:
        """A backward of zero for every parameter."""
        if self._reducer.is_syncing:
            self._reducer.add_nothing()

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Inside, backward adds to the gradients of this rank alone; the first one outside averages their sums."""
        before, self._reducer.is_syncing = self._reducer.is_syncing, False
        try:
            yield
        finally:
            self._reducer.is_syncing = before

    # ---------------------------------------------------------------- ranks are alike

    def check_equal(self) -> None:
        """Errors: RuntimeError where a parameter or buffer is not bit for bit the same on all ranks, naming it."""
        named = [*self.module.named_parameters(), *self.module.named_buffers()]
        mine = {name: _digest(t) for name, t in named}
        for rank, theirs in enumerate(self._reducer.group.exchange("comparing parameters", mine)):
            for name, digest in mine.items():
                if theirs[name] != digest:
                    rule = f"{name} differs between ranks {self._reducer.group.rank} and {rank}"
                    raise RuntimeError(message("DataParallel", rule))

    def _agree(self, group, options: dict[str, Any]) -> None:
        """Errors: ValueError where the ranks' models, seeds or options differ."""
        require_equal("the seed (blutrain.manual_seed)", random.default_generator.seed)
        for name, value in options.items():
            require_equal(f"{name} of DataParallel", value)
        named = [*self.module.named_parameters(), *self.module.named_buffers()]
        mine = [f"{name} {t._aval}{' trained' if t.requires_grad else ''}" for name, t in named]
        everyone = group.exchange("comparing models", mine)
        for rank, theirs in enumerate(everyone):
            for ours, other in zip_longest(everyone[0], theirs, fillvalue="nothing"):
                if ours != other:
                    expected, got = f"{ours} (rank 0)", f"{other} (rank {rank})"
                    help = "build the same model on every rank"
                    raise ValueError(message("DataParallel", "models differ", expected=expected, got=got, help=help))

    def _take_over(self, group) -> None:
        """Rank 0's values everywhere. Errors: RuntimeError where they did not arrive whole."""
        named = [*self.module.named_parameters(), *self.module.named_buffers()]
        with no_grad():
            for _, t in named:
                assign(t, broadcast(t.detach(), src=0))
        mine = {name: _digest(t) for name, t in named}
        for rank, theirs in enumerate(group.exchange("comparing parameters", mine)):
            wrong = next((name for name in mine if theirs[name] != mine[name]), None)
            if wrong is not None:
                rule = f"{wrong} did not arrive whole from rank 0"
                raise RuntimeError(message("DataParallel", rule, got=f"another value on rank {rank}"))

    # ---------------------------------------------------------------- state

    def state_dict(self, prefix: str = "") -> dict[str, Tensor]:
        """The model's."""
        return self.module.state_dict(prefix)

    def load_state_dict(self, state_dict: dict[str, Any], strict: bool = True) -> Any:
        """The model's."""
        return self.module.load_state_dict(state_dict, strict)


def _digest(t: Tensor) -> str:
    """A fingerprint of a tensor's bytes."""
    array = t.detach()._buffer()
    array = array if t.device.is_cpu else array.get()
    return hashlib.sha256(array.tobytes()).hexdigest()[:16]
