"""Gradient slots: what `p.grad` is between compiled steps.

A compiled step consumes the gradients of its parameters. They share one `Group`, whose `state` says what their slots
hold, so that neither a replayed step nor zero_grad loops over parameters.
"""

from __future__ import annotations

import itertools
import weakref

from ..errors import GradientConsumed, message
from ..tensor.tensor import Tensor
from .steps import Leaves


class Group:
    """Parameters (by id) whose gradients one compiled step consumed.

    state: "consumed", "none" (after zero_grad) or "zero". A parameter's slot lasts as long as the parameter does, whatever
    becomes of the module and the step.
    """

    __slots__ = ("members", "optimizer", "state")

    def __init__(self, optimizer, parameters: list[Tensor]):
        self.optimizer = weakref.ref(optimizer)
        self.members = {id(p): weakref.ref(p) for p in parameters}
        self.state = "consumed"

    def zero(self, state: str) -> None:
        """zero_grad: what is there becomes `state` ("none" or "zero"); nothing does not become zeros."""
        if self.state != "none":
            self.state = state

    def is_all(self, parameters: list[Tensor]) -> bool:
        """Whether these are the members, for a list that only grows or shrinks."""
        members = self.members
        return len(parameters) == len(members) and id(parameters[0]) in members and id(parameters[-1]) in members


class GradSlots:
    """The slots of all parameters that compiled steps touch. A parameter in no group has its raw `_grad`."""

    def __init__(self):
        self._group_of: dict[int, Group] = {}
        self._groups: set[Group] = set()  # those that are whole (a member may die at any time: loop over copies)
        self._watched: dict[int, weakref.ref] = {}  # parameters in groups
        self._epochs = itertools.count()
        self._epoch = next(self._epochs)  # another one: slots have to be looked at one by one

    def consume(self, group: Group) -> None:
        """The step of `group` ran: its members' slots are consumed."""
        group.state = "consumed"
        if group in self._groups:
            return
        for key, ref in group.members.items():
            parameter = ref()
            if parameter is None:
                continue
            old = self._group_of.get(key)
            if old is not None:
                self._leave(old, key)
            self._watched[key] = weakref.ref(parameter, lambda _, key=key: self._forget(key))
            self._group_of[key] = group  # after that: Ctrl-C may come in between
            parameter._grad = None
        self._groups.add(group)

    def _leave(self, group: Group, key: int) -> None:
        self._groups.discard(group)  # no longer whole: its next step enters all members again
        self._epoch = next(self._epochs)
        del self._group_of[key], self._watched[key]

    def _forget(self, key: int) -> None:
        """A parameter is gone; its id may be that of another one next."""
        if key in self._group_of:
            self._leave(self._group_of[key], key)

    def get(self, parameter: Tensor) -> Tensor | None:
        """What `p.grad` gives. Errors: RuntimeError for a consumed gradient."""
        group = self._group_of.get(id(parameter))
        if group is None or group.state == "none":
            return parameter._grad
        if group.state == "consumed":
            raise consumed_error()
        self.set(parameter, zeros_like(parameter))
        return parameter._grad

    def set(self, parameter: Tensor, value: Tensor | None) -> None:
        """`p.grad = value`."""
        group = self._group_of.get(id(parameter))
        if group is not None:
            self._leave(group, id(parameter))
        parameter._grad = value
        if value is not None:
            self._epoch = next(self._epochs)

    def state(self, parameter: Tensor) -> str:
        """none, zero, value or consumed."""
        group = self._group_of.get(id(parameter))
        if group is not None:
            return group.state
        return "none" if parameter._grad is None else "value"

    def states(self, leaves: Leaves):
        """The slots of the leaves that a backward captured, as part of its key; "clean" where each is none or zero."""
        if leaves.clean == self._epoch:
            for group in tuple(self._groups):
                if group.state == "consumed":
                    break
            else:
                return "clean"
        states = tuple([self.state(p) for p in leaves.tensors])
        if "value" in states or "consumed" in states:
            return states
        leaves.clean = self._epoch
        return "clean"

    def zero(self, parameters: list[Tensor], set_to_none: bool, optimizer=None) -> None:
        """zero_grad: for a group that is all of an optimizer's parameters one write, else parameter by parameter."""
        state = "none" if set_to_none else "zero"
        for group in tuple(self._groups):
            if optimizer is not None and group.optimizer() is optimizer and group.is_all(parameters):
                group.zero(state)
                return
        given = {id(p) for p in parameters}
        for group in [g for g in tuple(self._groups) if g.members.keys() <= given]:
            group.zero(state)
        for parameter in parameters:
            group = self._group_of.get(id(parameter))
            if group is not None and group.state not in (state, "none"):
                self._leave(group, id(parameter))
                parameter._grad = None if set_to_none else zeros_like(parameter)
            elif set_to_none:
                parameter._grad = None
            elif parameter._grad is not None:
                parameter._grad.detach().zero_()


def consumed_error() -> GradientConsumed:
    """For whoever wants a gradient that a step consumed, or what a backward after that step added to it."""
    return GradientConsumed(
        message(
            "grad",
            "the last compiled step consumed this gradient, and its slot was not zeroed since",
            help="read gradients before optimizer.step() and call zero_grad() before the next backward, "
            "or use compile(keep_grads=True)",
        )
    )


def zeros_like(tensor: Tensor) -> Tensor:
    """Zeros of a tensor's shape, dtype and device."""
    array = tensor._buffer()
    return Tensor._wrap(tensor.device.xp.zeros(array.shape, array.dtype), tensor.device, tensor._aval)
