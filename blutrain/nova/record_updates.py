"""The recorder's events that use gradients: clipping, optimizer steps, zero_grad."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..errors import user_location
from ..tensor import dispatch
from ..tensor.tensor import Tensor, structure_epoch
from .log import Log
from .slots import GradSlots, Group, consumed_error
from .trace import Location, freeze


class UpdateEvents:
    """The part of the Recorder that this file holds; the other parts are in record.py."""

    if TYPE_CHECKING:
        log: Log | None
        recording: bool
        slots: GradSlots
        location: tuple[str, int] | None
        _optimizer_keys: dict[int, tuple[tuple, int]]
        _groupings: dict[tuple, int]

        def flush(self) -> None: ...
        def refuse_training(self) -> None: ...
        def _body(self) -> Any: ...
        def _abandon(self, log: Log, error: BaseException) -> None: ...
        def _event(self, log: Log, key: tuple, scalars: list, body: Any) -> Any: ...

    def clip_grad_norm(self, clip, parameters: list[Tensor], max_norm: float, **options):
        """clip_grad_norm_ on pending gradients: `clip(parameters, grads, max_norm, **options) -> (norm, new gradients)` is
        its math in primitives.
        """
        log = self.log
        if log is None or self.recording:
            return NotImplemented
        number, mine = self._clipped(log, parameters)
        if not mine:
            return NotImplemented
        if len(mine) < len(parameters):
            states = {self.slots.state(p) for p in parameters if id(p) not in log.grads}
            if "consumed" in states:
                raise consumed_error()
            if "value" in states or "zero" in states:
                self.flush()
                return NotImplemented
        log.fresh = {}
        syncing = tuple([reducer.number for reducer in dispatch.tape.reducers_of(mine)])  # who agree on the norm
        key = ("clip", number, freeze(options), syncing)

        def body(numbers):
            step = log.current
            step.grads = dict(log.grads)
            clipped: list[Tensor]
            with self._body(), dispatch.tape.no_grad():
                norm, clipped = clip(mine, [log.grad_tensor(p) for p in mine], numbers[0], **options)
            location = Location(*(self.location or user_location()))
            for p, g in zip(mine, clipped, strict=True):
                held = log.grad_tensor(p)
                assert held is not None and step.grads is not None
                log.assign(held, g, location)
                step.grads[id(p)] = p, log.operand(held)
            return norm

        return self._event(log, key, [float(max_norm)], body)

    @staticmethod
    def _clipped(log: Log, parameters: list[Tensor]) -> tuple[int, list[Tensor]]:
        """A number for this list after these events, and those of the parameters that have a pending gradient."""
        known, ids = log.position.clipped, tuple(map(id, parameters))
        found = known.get(ids)
        if found is None or log.position.has_input_grads:
            mine = [p for p in parameters if id(p) in log.grads]
            found = known[ids] = len(known) if found is None else found[0], mine, parameters
        return found[:2]

    def optimizer_step(self, optimizer) -> bool:
        """optimizer.step(): true where it was taken into the program, which runs now."""
        self.refuse_training()
        log = self.log
        if log is None or self.recording:
            return False
        if not log.grads:
            self.flush()
            return False
        key = self._step_key(log, optimizer)
        log.fresh = {}
        known = log.replayable(key)
        if known is None and not any(id(p) in log.grads for g in optimizer.param_groups for p in g["params"]):
            self.flush()
            return False
        try:
            if known is None:
                log.record(key, [], lambda _: self._update(log, optimizer))
            else:
                scalars: list[float] = []
                for bucket in known.buckets:
                    bucket.count.value += 1
                    log.counts.append(bucket.count)
                    scalars += optimizer._scalars(bucket)
                log.replay(known, scalars)
            self.flush()
        except Exception:
            log.uncount()
            raise
        except BaseException as error:
            self._abandon(log, error)
            raise
        return True

    def _update(self, log: Log, optimizer) -> None:
        """The optimizer's step as primitives, in the event being recorded."""
        step, pending = log.current, log.grads
        with dispatch.tape.no_grad():
            step.buckets = optimizer._buckets()
            with self._body():
                for bucket in step.buckets:
                    bucket.count.value += 1
                    log.counts.append(bucket.count)
                    grads = [self._step_gradient(log, p) for p in bucket.params]
                    numbers = [log.scalar(x) for x in optimizer._scalars(bucket)]
                    optimizer._update(bucket, bucket.params, grads, numbers)
                optimizer._end_update()
        taken = [p for b in step.buckets for p in b.params if id(p) in pending]
        keep = log.owner is not None and log.owner.options.keep_grads
        if not keep:
            step.grads = {k: v for k, v in pending.items() if all(k != id(p) for p in taken)}
            step.consumed = Group(optimizer, taken)
        step.key = ("step", self._optimizer_key(optimizer, _structure_of(optimizer)), step.key[2])

    def _step_key(self, log: Log, optimizer) -> tuple:
        """The key of an optimizer's step: what it updates, and the slots of those of its parameters that have no pending
        gradient: whether they step too.
        """
        known, structure = log.position.rests.get(id(optimizer)), _structure_of(optimizer)
        if known is None or known[0] != structure or log.position.has_input_grads:
            rest = [p for g in optimizer.param_groups for p in g["params"] if id(p) not in log.grads]
            key = "step", self._optimizer_key(optimizer, structure), ()
            known = log.position.rests[id(optimizer)] = structure, key, rest
        _, key, rest = known
        return (*key[:2], tuple([self.slots.state(p) for p in rest])) if rest else key

    def _step_gradient(self, log: Log, parameter: Tensor) -> Tensor:
        pending = log.grad_tensor(parameter)
        if pending is not None:
            return pending
        log.bind_gradient(parameter)
        grad = parameter._grad
        assert grad is not None
        return grad

    def _optimizer_key(self, optimizer, structure: tuple) -> tuple:
        """A small key for which parameters and state tensors an optimizer updates, and how."""
        cached = self._optimizer_keys.get(id(optimizer))
        if cached is None or cached[0] != structure:
            groups = tuple((tuple(map(id, g["params"])), freeze(_static_options(g))) for g in optimizer.param_groups)
            states = tuple((k, id(v)) for s in optimizer.state.values() for k, v in s.items())
            number = self._groupings.setdefault((id(optimizer), groups, states), len(self._groupings))
            cached = structure, number
            if states:
                self._optimizer_keys[id(optimizer)] = cached
        return id(optimizer), cached[1]

    def zero_grad(self, parameters: list[Tensor], set_to_none: bool, optimizer=None) -> bool:
        """zero_grad: true, all is done."""
        self.refuse_training()
        if self.log is not None and self.log.grads:
            self.flush()
        self.slots.zero(parameters, set_to_none, optimizer)
        return True


_NUMBERS = frozenset((float, int, tuple, list))  # the usual types of what is no part of a program
_STATIC = (bool, str, type(None))


def _structure_of(optimizer) -> tuple:
    """Changes where an optimizer came to update other parameters or state, or to do it otherwise; no loop over parameters.

    (`add_param_group` and changes of state bump the epoch; lists may be changed behind it.)
    """
    parts = [structure_epoch.value, id(optimizer.state)]
    for group in optimizer.param_groups:
        params = group["params"]
        parts += id(params), len(params)
        parts += [x for x in group.values() if type(x) not in _NUMBERS and isinstance(x, _STATIC)]
    return tuple(parts)


def _static_options(group: dict) -> dict:
    """The options of a parameter group that are part of the program (bools, strings), not run-time scalars."""
    return {k: v for k, v in group.items() if k != "params" and isinstance(v, _STATIC)}
