"""Optimizer: parameter groups, their state, and one step as buckets -> scalars -> update.

A step is cut so that nova can record it: `_buckets` says which parameters step together, `_scalars` gives every number
of that step (run-time scalars of the compiled program), `_update` is pure tensor work on operands that it is handed.
"""

from __future__ import annotations

from collections.abc import Iterable
from numbers import Real
from typing import Any, NamedTuple

import numpy as np

from ..autograd import enable_grad, no_grad
from ..autograd.hooks import require_averages, shard_of, sharing
from ..errors import message
from ..tensor import dispatch
from ..tensor.device import cpu
from ..tensor.dtype import compute_dtype
from ..tensor.ops.composite.update_in_place import update_in_place
from ..tensor.ops.effect import assign
from ..tensor.primitive import TABLE
from ..tensor.tensor import Tensor, structure_epoch


class StepCount:
    """How many steps some parameters have made: one cell shared by all that have always stepped together."""

    __slots__ = ("value",)

    def __init__(self, value: int = 0):
        self.value = value

    def __repr__(self) -> str:
        return f"StepCount({self.value})"


class State(dict):
    """State of an optimizer, or of one parameter; a compiled step looks again at what it updates when entries change."""

    def _noting(name: str) -> Any:
        method = getattr(dict, name)

        def changed(self, *args: Any, **kwargs: Any) -> Any:
            structure_epoch.bump()
            return method(self, *args, **kwargs)

        return changed

    __setitem__, __delitem__, __ior__ = map(_noting, ("__setitem__", "__delitem__", "__ior__"))
    clear, pop, popitem, setdefault, update = map(_noting, ("clear", "pop", "popitem", "setdefault", "update"))


class OwnState(State):
    """State of an optimizer with a `step` of the user's, which makes what it keeps of a parameter: an empty dict at first."""

    def __missing__(self, p: Tensor) -> State:
        self[p] = state = State()
        return state


class Bucket(NamedTuple):
    """Parameters of one group that step together and share their count."""

    group: dict[str, Any]
    count: StepCount
    params: list[Tensor]


class LoadPlan(NamedTuple):
    """A checked state, ready to be taken over."""

    optimizer: Optimizer
    state: dict[Tensor, dict[str, Any]]
    numbers: list[dict[str, Any]]

    def commit(self) -> None:
        """Take the state over. What exists already is written in place: a compiled step stays bound to it."""
        own = self.optimizer.state
        in_place = self._counts_in_place()
        if in_place is None or own.keys() != self.state.keys():
            own.clear()
            own.update(self.state)
        else:
            for p, entries in self.state.items():
                for name, value in entries.items():
                    if isinstance(value, Tensor):
                        own[p][name].copy_(value)
            for count, value in in_place.items():
                count.value = value
        for group, numbers in zip(self.optimizer.param_groups, self.numbers):
            group.update(numbers)

    def _counts_in_place(self) -> dict[StepCount, int] | None:
        """The new value of each count, or None where parameters that share one now have different values."""
        values: dict[StepCount, int] = {}
        if self.optimizer._has_own_step:
            return None
        for p, entries in self.optimizer.state.items():
            if (
                p not in self.state
                or values.setdefault(entries["step"], self.state[p]["step"].value) != self.state[p]["step"].value
            ):
                return None
        return values


class Optimizer:
    """Base of the optimizers. A subclass gives `_init_state`, `_scalars` and `_rule`, and checks its numbers in
    `_check_group`. Or it gives a `step` of its own, as one writes it with PyTorch: `self.state[p]` is an empty dict at first.

    params: tensors, or dicts with "params" and numbers that differ from the defaults. Errors: ValueError, TypeError
    for bad ones.
    """

    def __init__(self, params: Iterable, defaults: dict[str, Any]):
        self.defaults = defaults
        self.param_groups: list[dict[str, Any]] = []
        self._has_own_step = type(self)._init_state is Optimizer._init_state
        self.state: dict[Tensor, dict[str, Any]] = OwnState() if self._has_own_step else State()
        self._parts: dict[Any, dict[int, Any]] = {}  # during an update: reducer -> id of a parameter -> its new part
        if isinstance(params, Tensor | dict | str):
            self._fail(
                "params must be a list", expected="an iterable of tensors or of dicts", got=type(params).__name__
            )
        groups = list(params)
        if not groups:
            self._fail("there is nothing to optimize", got="an empty list of parameters")
        if not isinstance(groups[0], dict):
            groups = [{"params": groups}]
        for group in groups:
            self.add_param_group(group)

    def add_param_group(self, group: dict[str, Any]) -> None:
        """Add parameters, with their own numbers where given.

        Errors: ValueError for a parameter twice, not a leaf, an unknown or bad number, no parameters.
        """
        if not isinstance(group, dict) or "params" not in group:
            self._fail("a group is a dict", expected='{"params": [...], ...}', got=repr(group)[:80])
        params = group["params"]
        params = [params] if isinstance(params, Tensor) else list(params)
        unknown = group.keys() - self.defaults.keys() - {"params", "initial_lr"}
        if unknown:
            self._fail(f"unknown option {sorted(unknown)[0]!r}", expected=", ".join(self.defaults))
        taken = {id(p) for g in self.param_groups for p in g["params"]}
        for i, p in enumerate(params):
            if not isinstance(p, Tensor):
                self._fail(f"parameter {i} is no tensor", got=type(p).__name__)
            if p.grad_fn is not None:
                self._fail(f"parameter {i} is the result of an operation", expected="a leaf", got=str(p._aval))
            if id(p) in taken:
                self._fail(
                    f"parameter {i} is given twice", got=str(p._aval), help="tied weights belong in one group, once"
                )
            taken.add(id(p))
        numbers = {k: v.item() if isinstance(v, np.generic) else v for k, v in {**self.defaults, **group}.items()}
        group = {**numbers, "params": params}
        self._check_group(group)
        self.param_groups.append(group)
        structure_epoch.bump()

    # ---- what a subclass gives

    def _check_group(self, group: dict[str, Any]) -> None:
        """Raise for numbers that make no sense."""

    def _init_state(self, group: dict[str, Any], p: Tensor) -> dict[str, Tensor]:
        """The state of a parameter before its first step (without "step")."""
        raise NotImplementedError

    def _scalars(self, bucket: Bucket) -> tuple[float, ...]:
        """Every number of the step that `bucket.count` has just been raised to; computed in float64."""
        raise NotImplementedError

    def _rule(self, bucket: Bucket) -> tuple[str, dict[str, Any]]:
        """Name and attributes of the update primitive for a bucket.

        Its operands are p, g, the state in order, the scalars.
        """
        raise NotImplementedError

    def _update(self, bucket: Bucket, params: list[Tensor], grads: list[Tensor], scalars: tuple) -> None:
        """The step as primitives, for recording: pure updates and assigns.

        `scalars` may be the recorder's stand-ins.
        """
        name, attrs = self._rule(bucket)
        for p, g in zip(params, grads):
            shard = shard_of(p)
            if shard is not None:
                parts = self._parts.setdefault(shard.reducer, {})
                if not shard.size:
                    parts[id(p)] = None
                    continue
                g = shard.part(g)
            states, old = self._states(p), p if shard is None else shard.part(p.detach())
            if any(s.shape != old.shape for s in states):
                help = "wrap the model in DataParallel before the optimizer steps or loads its state"
                self._fail("its state is of whole parameters, of which it is to update parts", help=help)
            new = dispatch.apply(TABLE[name], old, g, *states, *scalars, **attrs)
            first, *others = new if isinstance(new, tuple) else (new,)
            if shard is None:
                assign(p, first)
            else:
                parts[id(p)] = first
            for target, value in zip(states, others):
                assign(target, value)

    def _end_update(self) -> None:
        """After the `_update` of all buckets: where processes share the work, they give each other what they made."""
        for reducer, parts in self._parts.items():
            for p, value in reducer.gather(parts):
                assign(p, value)
        self._parts = {}

    def _states(self, p: Tensor) -> tuple[Tensor, ...]:
        return tuple(v for v in self.state[p].values() if isinstance(v, Tensor))

    # ---- the step

    def step(self, closure: Any = None) -> Any:
        """Update all parameters that have a gradient.

        closure: called first with gradients on; its result is returned.
        """
        result = None
        if closure is not None:
            with enable_grad():
                result = closure()
        if sharing:
            require_averages(type(self).__name__, (p for group in self.param_groups for p in group["params"]))
        if dispatch.recorder is not None and dispatch.recorder.optimizer_step(self):
            return result
        with no_grad():
            for bucket in self._buckets():
                bucket.count.value += 1
                grads, states = [p.grad for p in bucket.params], [self._states(p) for p in bucket.params]
                if any(shard_of(p) is not None for p in bucket.params):
                    self._update(bucket, bucket.params, grads, self._scalars(bucket))
                    continue
                name, attrs = self._rule(bucket)
                update_in_place(name, bucket.params, grads, states, self._scalars(bucket), **attrs)
            self._end_update()
        return result

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop all gradients (`set_to_none`), or fill them with zeros."""
        groups = self.param_groups
        params = groups[0]["params"] if len(groups) == 1 else [p for group in groups for p in group["params"]]
        if dispatch.recorder is not None and dispatch.recorder.zero_grad(params, set_to_none, self):
            return
        for p in params:
            if set_to_none:
                p.grad = None
            elif p.grad is not None:
                p.grad.detach().zero_()

    def _buckets(self) -> list[Bucket]:
        """The parameters that have a gradient, by group and count.

        Makes the state of those that step for the first time.
        """
        buckets, skipped = [], []
        for group in self.param_groups:
            by_count: dict[StepCount, list[Tensor]] = {}
            fresh = StepCount()
            for p in group["params"]:
                if p.grad is None:
                    if p in self.state:
                        skipped.append(p)
                    continue
                if p not in self.state:
                    self.state[p] = State(step=fresh, **self._init_state(group, _own_part(p)))
                by_count.setdefault(self.state[p]["step"], []).append(p)
            buckets += [Bucket(group, count, params) for count, params in by_count.items()]
        self._split(skipped, {bucket.count for bucket in buckets})
        return buckets

    def _split(self, skipped: list[Tensor], stepping: set[StepCount]) -> None:
        """Parameters that sit out a step which others of their count make get a copy of the count."""
        copies: dict[StepCount, StepCount] = {}
        for p in skipped:
            count = self.state[p]["step"]
            if count in stepping:
                self.state[p]["step"] = copies.setdefault(count, StepCount(count.value))

    # ---- saving

    def state_dict(self) -> dict[str, Any]:
        """As PyTorch: {"state": {index: {"step": int, name: tensor}}, "param_groups": numbers and indices}.

        Where processes share the optimizer's work each has to call it: the state is put together from all.
        """
        order = {id(p): i for i, p in enumerate(p for g in self.param_groups for p in g["params"])}
        state = {}
        for p, entries in sorted(self.state.items(), key=lambda item: order[id(item[0])]):
            state[order[id(p)]] = {k: _saved(p, v) for k, v in entries.items()}
        groups = [{**g, "params": [order[id(p)] for p in g["params"]]} for g in self.param_groups]
        return {"state": dict(sorted(state.items())), "param_groups": groups}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over numbers and state.

        All is checked first. Errors: ValueError where groups, names or shapes differ.
        """
        self.plan_load(state_dict).commit()

    def plan_load(self, state_dict: dict[str, Any]) -> LoadPlan:
        """Check a state and copy its tensors; nothing of this optimizer changes before `commit`."""
        if not isinstance(state_dict, dict) or not {"param_groups", "state"} <= state_dict.keys():
            got = ", ".join(map(str, state_dict)) if isinstance(state_dict, dict) else type(state_dict).__name__
            self._fail("not a state of an optimizer", expected="a dict of param_groups and state", got=got)
        groups, state = state_dict["param_groups"], state_dict["state"]
        sizes, own_sizes = [len(g["params"]) for g in groups], [len(g["params"]) for g in self.param_groups]
        if sizes != own_sizes:
            self._fail("the state has other parameter groups", expected=f"sizes {own_sizes}", got=f"sizes {sizes}")
        unnamed = state.keys() - {index for group in groups for index in group["params"]}
        if unnamed:
            self._fail("the state has entries of parameters that no group names", got=str(sorted(unnamed)))
        fresh: dict[Tensor, dict[str, Any]] = {}
        numbers = []
        for own, group in zip(self.param_groups, groups):
            numbers.append(self._checked_numbers(own, group))
            counts: dict[int, StepCount] = {}
            for p, index in zip(own["params"], group["params"]):
                if index in state:
                    entries = dict(state[index])
                    if self._has_own_step:
                        fresh[p] = State({k: _loaded(p, v) for k, v in entries.items()})
                        continue
                    step = int(entries.pop("step", -1))
                    tensors = self._checked_state(own, index, p, step, entries)
                    fresh[p] = State(step=counts.setdefault(step, StepCount(step)), **tensors)
        return LoadPlan(self, fresh, numbers)

    def _checked_numbers(self, own: dict[str, Any], group: dict[str, Any]) -> dict[str, Any]:
        """The numbers of a saved group; lists (JSON has no tuples) become tuples again."""
        optional = {"initial_lr"}
        if group.keys() - optional != own.keys() - optional:
            self._fail("the state is of another optimizer", expected=", ".join(own), got=", ".join(group))
        numbers = {k: tuple(v) if isinstance(v, list) else v for k, v in group.items() if k != "params"}
        if not isinstance(numbers.get("initial_lr", 0.0), int | float):
            self._fail("initial_lr is no number", got=repr(numbers["initial_lr"]))
        self._check_group(numbers)
        return numbers

    def _checked_state(
        self, group: dict, index: int, p: Tensor, step: int, entries: dict[str, Any]
    ) -> dict[str, Tensor]:
        """Copies of the entries of one parameter on its device."""
        own = self._init_state(group, _own_part(p))
        if step < 0 or entries.keys() != own.keys():
            rule = f"the state of parameter {index} is of another optimizer"
            self._fail(rule, expected=", ".join(["step", *own]), got=", ".join(entries))
        for name, tensor in own.items():
            value = entries[name]
            if not isinstance(value, Tensor | np.ndarray) or tuple(value.shape) != p.shape:
                got, expected = f"shape {tuple(getattr(value, 'shape', ()))}", f"{tensor.dtype.short}{list(p.shape)}"
                self._fail(f"{name} of parameter {index} does not fit", expected=expected, got=got)
            value = value.detach() if isinstance(value, Tensor) else Tensor._wrap(value, cpu)
            if value.dtype.is_floating is not tensor.dtype.is_floating:
                rule = f"{name} of parameter {index} has another kind of dtype"
                self._fail(rule, expected=str(tensor._aval), got=str(value._aval))
            shard = shard_of(p)
            tensor.copy_((value if shard is None else shard.part(value)).to(tensor.device))
        return own

    def _fail(self, rule: str, **rest: str) -> None:
        raise ValueError(message(type(self).__name__, rule, **rest))

    def __repr__(self) -> str:
        lines = [f"{type(self).__name__} ("]
        for i, group in enumerate(self.param_groups):
            numbers = "  ".join(f"{k}: {v}" for k, v in group.items() if k != "params")
            lines.append(f"  group {i}: {len(group['params'])} parameters  {numbers}")
        return "\n".join(lines + [")"])


def _own_part(p: Tensor) -> Tensor:
    """What of a parameter this process updates, and keeps the state of: all, or its shard as a vector."""
    shard = shard_of(p)
    return p if shard is None else shard.part(p.detach())


def _saved(p: Tensor, entry: Any) -> Any:
    """An entry of a parameter's state, for state_dict."""
    if isinstance(entry, StepCount):
        return entry.value
    return _whole(p, entry.detach()) if isinstance(entry, Tensor) else entry


def _loaded(p: Tensor, entry: Any) -> Any:
    """A copy of a saved entry that a user's optimizer made, on the parameter's device."""
    return entry.detach().to(p.device).clone() if isinstance(entry, Tensor) else entry


def _whole(p: Tensor, state: Tensor) -> Tensor:
    """State like the parameter, put together from all processes where each keeps a part: then all have to call this."""
    shard = shard_of(p)
    return state if shard is None else shard.whole(p, state)


def zero_state(p: Tensor) -> Tensor:
    """Zeros of p's shape in at least float32, made directly: the making of state is no part of a recorded step."""
    with p.device.activate():
        return Tensor._wrap(p.device.xp.zeros(p.shape, compute_dtype(p.dtype).numpy), p.device)


def check_number(optimizer: Optimizer, group: dict, name: str, low: float, high: float = float("inf")) -> None:
    """Errors: ValueError if group[name] is no number in low <= x < high (high infinite: any finite number)."""
    value = group[name]
    if not isinstance(value, Real) or isinstance(value, bool) or not low <= value < high:
        bound = f"{low} <= {name} < {high}" if high != float("inf") else f"a finite {name} of at least {low}"
        optimizer._fail(f"{name} is out of range", expected=bound, got=repr(value))
